//! The chat template of a model.

/// A chat template in Jinja, which renders a conversation as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Source of the template.
    pub source: String,
    /// Text of the beginning-of-text token; empty without one.
    pub bos: String,
    /// Text of the end-of-text token; empty without one.
    pub eos: String,
    /// Token that the template puts after an answer, if any.
    pub turn_end: Option<u32>,
}
