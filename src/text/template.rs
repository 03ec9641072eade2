//! The chat template of a model, as its files hold it.

/// A chat template in Jinja, which makes one text of a conversation's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template's source.
    pub source: String,
    /// The text of the token that begins a text, if there is one.
    pub bos: String,
    /// The text of the token that ends one.
    pub eos: String,
    /// The token that the template puts behind an answer, if it puts one there.
    pub turn_end: Option<u32>,
}
