//! Settings read from TOML tables, with the key of a value that does not fit.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Reads settings from a table.
///
/// # Errors
/// The dotted key of the value that does not fit, empty if it is the table itself, and why.
pub(crate) fn read<T: DeserializeOwned>(table: Table) -> Result<T, (String, String)> {
    Value::Table(table).try_into().map_err(|e: toml::de::Error| {
        // The library gives the key in the last line of its message alone.
        let text = e.to_string();
        let key = text.trim_end().rsplit_once("in `").and_then(|(_, key)| key.strip_suffix('`'));
        (key.unwrap_or_default().to_string(), e.message().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(rename = "sizes")]
        _sizes: Vec<usize>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "inner")]
        _inner: Inner,
    }

    #[test]
    fn an_error_names_the_key_and_what_is_wrong_with_it() {
        let wrong = |text: &str| read::<Outer>(text.parse().unwrap()).unwrap_err();
        let (key, message) = wrong("inner = { sizes = [1, 'two'] }");
        assert_eq!(key, "inner.sizes");
        assert!(message.contains("invalid type: string \"two\""), "{message}");
        let (key, message) = wrong("other = 1");
        assert_eq!(key, "");
        assert_eq!(message, "missing field `inner`");
        assert!(read::<Outer>("inner = { sizes = [1, 2] }".parse().unwrap()).is_ok());
    }
}
