//! Messages of a conversation.

use super::json::Object;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The role of the model.
pub(super) const ASSISTANT: &str = "assistant";

/// A message of a conversation, in the form that chat templates expect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedMessage")]
pub struct Message {
    /// The author: `system`, `user` or `assistant`.
    pub role: String,
    /// The text, if there is one.
    #[serde(skip_serializing_if = "Content::is_absent")]
    pub content: Content,
    /// All other keys, such as `name` or `tool_calls`, for templates that use them.
    #[serde(flatten)]
    pub rest: Object,
}

impl Message {
    /// A message by the user.
    pub fn user(content: String) -> Self {
        let content = Content::Text(content);
        Self { role: "user".to_string(), content, rest: Object::default() }
    }
}

/// The content of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// No such key, in a message of the assistant.
    #[default]
    Absent,
    /// Null, which chat templates tell from an empty text.
    Null,
    /// A text. A list of parts is read as their texts in turn.
    Text(String),
}

impl Content {
    /// Whether the message lacks the key.
    pub fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// The text, which is empty if there is none.
    pub fn text(&self) -> &str {
        match self {
            Self::Absent | Self::Null => "",
            Self::Text(text) => text,
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text") | None, Some(text)) => Ok(text.to_string()),
            (Some(kind), _) => {
                Err(format!("a part of the content is of the type `{kind}`, not `text`"))
            }
            (None, None) => Err("a part of the content has no `text`".to_string()),
        };
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Null => Ok(Self::Null),
            Value::Array(parts) => {
                let texts = parts.iter().map(part).collect::<Result<_, _>>();
                texts.map(Self::Text).map_err(Error::custom)
            }
            other => Err(Error::custom(format!("the content is {other}, not a string"))),
        }
    }
}

/// A message as it is in a file, before its check.
#[derive(Deserialize)]
struct UncheckedMessage {
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(flatten)]
    rest: Object,
}

impl TryFrom<UncheckedMessage> for Message {
    type Error = &'static str;

    fn try_from(message: UncheckedMessage) -> Result<Self, Self::Error> {
        let UncheckedMessage { role, content, rest } = message;
        // Only an assistant's message that calls tools may lack it.
        if content.is_absent() && role != ASSISTANT {
            return Err("missing field `content`");
        }
        Ok(Self { role, content, rest })
    }
}
