//! The entries of a `config.json` by type, and the errors of reading them.

use super::FAMILIES;
use serde_json::Value;

/// A `config.json` that describes no decoder that can be executed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An architecture that is not among [`FAMILIES`].
    #[error("`model_type` {found} is not supported; supported are {}", family_names())]
    Family {
        /// The `model_type` of the file.
        found: String,
    },
    /// A missing entry.
    #[error("there is no number `{0}`")]
    Missing(String),
    /// An entry with a value of the wrong type.
    #[error("`{name}` is {value}, but must be {expected}")]
    Type {
        /// The name of the entry.
        name: String,
        /// The value of the entry.
        value: Value,
        /// The values that are allowed, in words.
        expected: &'static str,
    },
    /// An entry with a value that is not supported.
    #[error("`{name}` {value} is not supported")]
    Value {
        /// The name of the entry.
        name: String,
        /// The value of the entry.
        value: Value,
    },
    /// A size out of range, or two that do not fit together.
    #[error("{0}")]
    Sizes(String),
}

/// The `model_type`s of the architectures that can be loaded, as a list in words.
pub fn family_names() -> String {
    FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

/// The error of an entry whose value is not supported.
pub(super) fn unsupported_error(name: &str, value: impl Into<Value>) -> ConfigError {
    ConfigError::Value { name: name.into(), value: value.into() }
}

/// Reads an entry of a configuration by `read`; `None` if it is absent or null.
pub(super) fn read_entry<'a, T>(
    config: &'a Value,
    name: &str,
    expected: &'static str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    let value = &config[name];
    match (value, read(value)) {
        (Value::Null, _) => Ok(None),
        (_, Some(read)) => Ok(Some(read)),
        _ => Err(ConfigError::Type { name: name.into(), value: value.clone(), expected }),
    }
}

/// Reads a size or a count of a configuration.
pub(super) fn read_count(config: &Value, name: &str) -> Result<Option<usize>, ConfigError> {
    let whole = |value: &Value| value.as_u64().map(|x| usize::try_from(x).unwrap_or(usize::MAX));
    read_entry(config, name, "a positive whole number", whole)
}

/// Reads a number of a configuration.
pub(super) fn read_number(config: &Value, name: &str) -> Result<Option<f64>, ConfigError> {
    read_entry(config, name, "a number", Value::as_f64)
}

/// Reads a switch of a configuration.
pub(super) fn read_switch(config: &Value, name: &str) -> Result<Option<bool>, ConfigError> {
    read_entry(config, name, "true or false", Value::as_bool)
}

/// Whether a switch of a configuration is on; off if it is absent.
pub(super) fn is_on(config: &Value, name: &str) -> Result<bool, ConfigError> {
    Ok(read_switch(config, name)?.unwrap_or(false))
}

/// Reads a string of a configuration.
pub(super) fn read_text<'a>(config: &'a Value, name: &str) -> Result<Option<&'a str>, ConfigError> {
    read_entry(config, name, "a string", Value::as_str)
}

/// Reads a table of a configuration.
pub(super) fn read_section<'a>(
    config: &'a Value,
    name: &str,
) -> Result<Option<&'a Value>, ConfigError> {
    read_entry(config, name, "a table", |value| value.is_object().then_some(value))
}

/// Checks that a list has an entry for each layer and returns it.
pub(super) fn check_layer_list(
    name: &str,
    values: Vec<bool>,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    if values.len() == num_layers {
        return Ok(values);
    }
    let count = values.len();
    Err(ConfigError::Sizes(format!(
        "`{name}` has {count} entries for {num_layers} layers (`num_hidden_layers`)"
    )))
}

/// Checks that an entry is absent, null or `false`.
pub(super) fn check_off(config: &Value, name: &str) -> Result<(), ConfigError> {
    match &config[name] {
        Value::Null | Value::Bool(false) => Ok(()),
        value => Err(unsupported_error(name, value.clone())),
    }
}

/// The shape of a small model of a family, with these entries in its `config.json`.
#[cfg(test)]
pub(super) fn sample_shape(
    model_type: &str,
    others: Value,
) -> Result<super::DecoderShape, ConfigError> {
    let mut config = serde_json::json!({
        "model_type": model_type,
        "vocab_size": 11,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 20,
        "max_position_embeddings": 64,
    });
    for (name, value) in others.as_object().expect("entries") {
        config[name] = value.clone();
    }
    super::DecoderShape::from_config(&config)
}
