//! Python semantics of chat templates' values: printing, tests, filters and methods, where minijinja differs from
//! Jinja.

use super::template_json::float;
use super::template_limits::BoundedText;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::io::{Result as IoResult, Write};

/// Replaces the filters and tests of minijinja that differ from Jinja's.
pub(super) fn apply(environment: &mut Environment<'_>) {
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    // In Python, strings and dicts also have a length and items, and so does Jinja's undefined value.
    environment.add_test("sequence", |value: &Value| {
        let kind = value.kind();
        matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
}

/// The filter `string`.
fn string(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    Ok(Value::from(printed(value)?.unwrap_or_else(|| value.to_string())))
}

/// The filter `length`; an undefined value has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    let what = || format!("cannot calculate length of value of type {}", value.kind());
    match value.len() {
        None if value.is_undefined() => Ok(0),
        length => length.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, what())),
    }
}

/// Methods of Python strings that `minijinja_contrib` lacks; tuples are lists.
pub(super) fn method(value: &Value, name: &str, arguments: &[Value]) -> Option<Value> {
    let [part] = arguments else { return None };
    let (text, part) = (value.as_str()?, part.as_str()?);
    match name {
        "removeprefix" => Some(text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => Some(text.strip_suffix(part).unwrap_or(text).into()),
        "partition" if !part.is_empty() => Some(match text.split_once(part) {
            Some((before, after)) => Value::from_iter([before, part, after]),
            None => Value::from_iter([text, "", ""]),
        }),
        "rpartition" if !part.is_empty() => Some(match text.rsplit_once(part) {
            Some((before, after)) => Value::from_iter([before, part, after]),
            None => Value::from_iter(["", "", text]),
        }),
        _ => None,
    }
}

/// Formats a list, dict or float like Python's `str`; `None` for other values, which minijinja prints alike.
pub(super) fn printed(value: &Value) -> Result<Option<String>, Error> {
    let is_fraction = value.is_number() && !value.is_integer();
    if !is_fraction && !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return Ok(None);
    }
    let mut text = BoundedText::default();
    let written = write(&mut text, value);
    text.check()?;
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
    Ok(Some(text.into_string()))
}

/// Writes a value like Python's `repr`.
fn write(to: &mut BoundedText, value: &Value) -> IoResult<()> {
    if let Some(text) = value.as_str() {
        return write_text(to, text);
    }
    let items = |value: &Value| value.try_iter().map_err(std::io::Error::other);
    match value.kind() {
        ValueKind::Seq => {
            to.write_all(b"[")?;
            for (i, item) in items(value)?.enumerate() {
                to.write_all(if i == 0 { b"" } else { b", " })?;
                write(to, &item)?;
            }
            to.write_all(b"]")
        }
        ValueKind::Map => {
            to.write_all(b"{")?;
            for (i, key) in items(value)?.enumerate() {
                to.write_all(if i == 0 { b"" } else { b", " })?;
                write(to, &key)?;
                to.write_all(b": ")?;
                write(to, &value.get_item(&key).unwrap_or_default())?;
            }
            to.write_all(b"}")
        }
        ValueKind::Number if !value.is_integer() => {
            match f64::try_from(value.clone()).unwrap_or(f64::NAN) {
                number if number.is_finite() => to.write_all(float(number).as_bytes()),
                number => write!(to, "{}", number.to_string().to_lowercase()),
            }
        }
        ValueKind::Undefined => to.write_all(b"Undefined"),
        _ => write!(to, "{value}"),
    }
}

/// Writes a string in quotes.
fn write_text(to: &mut BoundedText, text: &str) -> IoResult<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    write!(to, "{quote}")?;
    for c in text.chars() {
        match c {
            '\n' => to.write_all(b"\\n"),
            '\r' => to.write_all(b"\\r"),
            '\t' => to.write_all(b"\\t"),
            '\\' => to.write_all(b"\\\\"),
            _ if c == quote => write!(to, "\\{c}"),
            _ if is_printable(c) => write!(to, "{c}"),
            '\0'..='\u{ff}' => write!(to, "\\x{:02x}", u32::from(c)),
            '\0'..='\u{ffff}' => write!(to, "\\u{:04x}", u32::from(c)),
            _ => write!(to, "\\U{:08x}", u32::from(c)),
        }?;
    }
    write!(to, "{quote}")
}

/// Whether Python prints a character unescaped: no control, format or private-use characters, and no white space except
/// a space. Characters that Unicode has not assigned count as printable.
fn is_printable(c: char) -> bool {
    c == ' '
        || !(c.is_control()
            || c.is_whitespace()
            || matches!(c,
                '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
                | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0001}' | '\u{e0020}'..='\u{e007f}' | '\u{f0000}'..))
}

#[cfg(test)]
mod tests {
    use crate::text::template::ChatTemplate;
    use serde_json::json;

    /// Renders a template with one message, whose `content` is a string and whose `x` holds values of all types.
    fn rendered(source: &str) -> String {
        let (source, none) = (source.to_string(), String::new());
        let template = ChatTemplate { source, bos: none.clone(), eos: none, turn_end: None };
        let x = json!({"s": "it's\n\u{200d}\u{1f600}\u{7f}", "n": [1, 2.0, 1e20, null, true, {}]});
        let message = json!({"content": "a", "x": x});
        template.render(&[message]).unwrap()
    }

    #[test]
    fn values_are_printed_as_by_python() {
        // By Python's `str`.
        let n = "[1, 2.0, 1e+20, None, True, {}]";
        assert_eq!(rendered("{{ messages[0].x.n }}"), n);
        assert_eq!(rendered("{{ messages[0].x.n|string }}"), n);
        assert_eq!(rendered("{{ messages[0].x.n[2] }} {{ 0.00001|string }}"), "1e+20 1e-05");
        assert_eq!(
            rendered("{{ [messages[0].x.s, 'a', '\\'\"', 'b\\\\'] }}"),
            "[\"it's\\n\\u200d\u{1f600}\\x7f\", 'a', '\\'\"', 'b\\\\']"
        );
        assert_eq!(
            rendered("{{ {'b': 'x', 'a': {1: ''}} }}{{ 'x' }}"),
            "{'b': 'x', 'a': {1: ''}}x"
        );
    }

    #[test]
    fn lengths_sequences_and_methods_are_those_of_python() {
        // By Jinja.
        assert_eq!(rendered("{{ nothing|length }}{{ 'ab'|length }}{{ [1]|count }}"), "021");
        assert_eq!(
            rendered(
                "{{ 'a' is sequence }} {{ {} is sequence }} {{ [] is sequence }} {{ 1 is sequence }}"
            ),
            "True True True False"
        );
        assert_eq!(rendered("{{ 'aba'.removeprefix('a') }}{{ 'aba'.removesuffix('a') }}"), "baab");
        assert_eq!(
            rendered("{{ 'a-b-c'.partition('-')[2] }}|{{ 'a-b-c'.rpartition('-')[0] }}"),
            "b-c|a-b"
        );
        assert_eq!(rendered("{{ 'ab'.partition('-')[0] }}|{{ 'ab'.rpartition('-')[2] }}"), "ab|ab");
    }

    #[test]
    fn line_ends_of_windows_are_line_ends() {
        assert_eq!(rendered("a\r\n{% if true %}\r\n  b\r\n{% endif %}\r\nc\r\n"), "a\n  b\nc");
    }
}
