//! Reading settings from TOML tables; errors name the key of the offending value.

use super::{OutOfRange, Setting, ValueRange, declared_range_at, flatten_sections};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// The value of the setting at a path, `key` or `section.key`.
pub fn get<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((section, key)) => table.get(section)?.get(key),
    }
}

/// Reads settings from a table, some or all of which are declared in `settings`.
///
/// # Errors
/// The dotted key of the offending value, after `prefix`, and the reason; the key is empty if the table itself is
/// invalid.
pub(crate) fn read<T: DeserializeOwned>(
    prefix: &str,
    table: Table,
    settings: &'static [Setting],
) -> Result<T, String> {
    let values = table.clone();
    Value::Table(table).try_into().map_err(|e: toml::de::Error| {
        // The library only gives the key in the last line of its message.
        let text = e.to_string();
        let key = text.trim_end().rsplit_once("in `").and_then(|(_, key)| key.strip_suffix('`'));
        let key = key.unwrap_or_default();
        // The library gives no key for a section that is flattened into another.
        let keys = match key {
            "" => flatten_sections(settings).into_iter().map(|setting| setting.key).collect(),
            key => vec![key],
        };
        match keys.into_iter().find_map(|key| range_error(&values, settings, key)) {
            Some(error) => format!("{prefix}{error}"),
            None => format!("`{prefix}{key}`: {}", e.message()),
        }
    })
}

/// The error for an integer outside its declared range, which may be too large for its type.
fn range_error(table: &Table, settings: &'static [Setting], key: &str) -> Option<OutOfRange> {
    match (declared_range_at(settings, key)?, get(table, key)?) {
        (range @ ValueRange::Integer(low, high), Value::Integer(number)) => {
            let is_in = u64::try_from(*number).is_ok_and(|number| (low..=high).contains(&number));
            (!is_in).then(|| OutOfRange {
                key: key.to_string(),
                value: number.to_string(),
                allowed: range.to_string(),
            })
        }
        _ => None,
    }
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
    fn an_error_names_the_key_and_the_defect() {
        let read = |text: &str| read::<Outer>("game.", text.parse().unwrap(), &[]);
        let message = read("inner = { sizes = [1, 'two'] }").unwrap_err();
        assert!(message.starts_with("`game.inner.sizes`: "), "{message}");
        assert!(message.contains("invalid type: string \"two\""), "{message}");
        assert_eq!(read("other = 1").unwrap_err(), "`game.`: missing field `inner`");
        assert!(read("inner = { sizes = [1, 2] }").is_ok());
    }
}
