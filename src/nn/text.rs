//! The input of a decoder over tokens.

/// A prompt and its completions, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptWithCompletions<'a> {
    /// One token or more.
    pub prompt: &'a [u32],
    /// One token or more each.
    pub completions: Vec<&'a [u32]>,
}

/// The indices of a completion among those of some prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionIndex {
    /// Index of the prompt.
    pub prompt: usize,
    /// Index among the completions of the prompt.
    pub completion: usize,
}
