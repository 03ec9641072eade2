//! Conversion of a value from outside to the type of a setting.

use super::ConfigError;
use crate::schema::ValueRange;
use toml::Value;

/// `value` in the type of `like`: integers serve as floats, nothing else is converted. `range` is that of the setting,
/// unless it is a game's or a task's own.
pub(super) fn convert(
    key: &str,
    range: Option<ValueRange>,
    like: &Value,
    value: Value,
) -> Result<Value, ConfigError> {
    let wrong_value = |value: &Value, expected: &str| match value.as_str() {
        Some("") => ConfigError::Malformed(format!("`{key}` has no value, but must be {expected}")),
        _ => ConfigError::WrongValue {
            key: key.to_string(),
            value: value.to_string(),
            expected: format!("must be {expected}"),
        },
    };
    match (like, value) {
        (Value::Float(_), Value::Integer(i)) => Ok(Value::Float(i as f64)),
        (Value::Float(_), value) if !value.is_float() => Err(wrong_value(&value, "a number")),
        (Value::Integer(_), Value::Integer(i @ 0..)) => Ok(i.into()),
        (Value::Integer(_), value) => match range {
            Some(range) => Err(wrong_value(&value, &format!("a whole number, {range}"))),
            // The range of a game's or a task's own is checked where it is read.
            None if value.is_integer() => Ok(value),
            None => Err(wrong_value(&value, "a whole number")),
        },
        (Value::Boolean(_), value) if !value.is_bool() => Err(wrong_value(&value, "true or false")),
        (Value::String(_), value) if !value.is_str() => Err(wrong_value(&value, "a name")),
        (Value::Array(like), Value::Array(items)) => {
            let (has_strings, has_integers) =
                (are_strings(like), like.iter().all(Value::is_integer));
            let fits = |item: &Value| match item {
                Value::String(_) => has_strings,
                Value::Integer(0..) => has_integers,
                _ => false,
            };
            match items.iter().find(|item| !fits(item)) {
                None => Ok(Value::Array(items)),
                Some(item) if has_strings => Err(wrong_value(item, "a list of strings")),
                Some(item) => Err(wrong_value(item, "a list of whole numbers")),
            }
        }
        (Value::Array(like), Value::String(text)) if are_strings(like) => {
            Ok(Value::Array(vec![text.into()]))
        }
        (Value::Array(like), value) if are_strings(like) => {
            Err(wrong_value(&value, "a list of strings"))
        }
        (Value::Array(_), Value::Integer(i @ 0..)) => Ok(Value::Array(vec![i.into()])),
        (Value::Array(_), value) => Err(wrong_value(&value, "a list such as [64, 64]")),
        (_, value) => Ok(value),
    }
}

/// Whether all items of a list are strings; true for an empty one.
fn are_strings(list: &[Value]) -> bool {
    list.iter().all(Value::is_str)
}
