//! The input of a decoder over tokens.

/// A prompt and its completions, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptWithCompletions<'a> {
    /// One token or more.
    pub prompt: &'a [u32],
    /// One token or more each.
    pub completions: Vec<&'a [u32]>,
}

/// The indices of a completion among some texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionIndex {
    /// Index of the text.
    pub text: usize,
    /// Index among the completions of the text.
    pub completion: usize,
}
