//! The chat template of a model.

#[cfg(on_disk)]
mod checks;
#[cfg(on_disk)]
mod json;
#[cfg(on_disk)]
mod limits;
#[cfg(on_disk)]
mod python;
#[cfg(on_disk)]
mod render;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// A chat template in Jinja, which renders a conversation as one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Source of the template.
    pub source: String,
    /// Source of the template for conversations with tools, if it is another.
    pub tool_source: Option<String>,
    /// Texts of the tokenizer's special tokens by the names of their variables, such as `bos_token`.
    pub special_tokens: BTreeMap<String, String>,
    /// Token that the template puts after an answer, if any.
    pub turn_end: Option<u32>,
    /// The limit of time, memory or steps that a rendering has exceeded, after which there is no further one.
    pub exceeded: Arc<OnceLock<String>>,
}
