//! Python semantics of chat templates' values: printing, tests, filters and methods, where minijinja differs from
//! Jinja.

use super::json::format_float;
use super::limits::BoundedText;
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use std::io::{Result as IoResult, Write};

/// Replaces the filters and tests of minijinja that differ from Jinja's.
pub(super) fn replace_filters_and_tests(environment: &mut Environment<'_>) {
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    // In Python, strings and dicts also have a length and items, and so does Jinja's undefined value.
    environment.add_test("sequence", |value: &Value| {
        is_list(value)
            || matches!(value.kind(), ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // In Python, a `bool` is an `int`.
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

/// Whether a value is a list, or a part of one, such as `messages[1:]`, which for minijinja is of another kind.
fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// The filter `int`: its argument, or 0, for what Python does not convert.
fn int(state: &State, value: &Value, arguments: Rest<Value>) -> Result<Value, Error> {
    let default = parse_default(&arguments, Value::from(0))?;
    let is_finite = |number: &Value| {
        !is_float(number) || f64::try_from(number.clone()).is_ok_and(f64::is_finite)
    };
    let number = to_number(value).filter(is_finite);
    number.map_or(Ok(default), |number| filters::int(state, &number))
}

/// The filter `float`: its argument, or 0.0, for what Python does not convert.
fn float(state: &State, value: &Value, arguments: Rest<Value>) -> Result<Value, Error> {
    let default = parse_default(&arguments, Value::from(0.0))?;
    to_number(value).map_or(Ok(default), |number| filters::float(state, &number))
}

/// Parses the argument `default` of a filter, its only one.
fn parse_default(arguments: &[Value], otherwise: Value) -> Result<Value, Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
    let default = match positional {
        [] if named.has("default") => named.get("default")?,
        [] => otherwise,
        [default] => default.clone(),
        _ => return Err(Error::from(ErrorKind::TooManyArguments)),
    };
    named.assert_all_used()?;
    Ok(default)
}

/// Converts a value to the number that Python reads from it; `None` if there is none. Error values are kept.
fn to_number(value: &Value) -> Option<Value> {
    let Some(text) = value.as_str() else {
        let kind = value.kind();
        let is_number = matches!(kind, ValueKind::Number | ValueKind::Bool | ValueKind::Invalid);
        return is_number.then(|| value.clone());
    };
    // Python allows single underscores between digits.
    let mut plain = String::new();
    for (i, part) in text.trim().split('_').enumerate() {
        let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        if i > 0 && !(is_digit(plain.chars().next_back()) && is_digit(part.chars().next())) {
            return None;
        }
        plain += part;
    }
    let whole = plain.parse::<i128>().map(Value::from);
    whole.or_else(|_| plain.parse::<f64>().map(Value::from)).ok()
}

/// Whether a value is a floating-point number.
fn is_float(value: &Value) -> bool {
    value.is_number() && !value.is_integer()
}

/// The filter `string`.
fn string(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    Ok(Value::from(format_python(value)?.unwrap_or_else(|| value.to_string())))
}

/// The filter `length`; an undefined value has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    let what = || format!("cannot calculate length of value of type {}", value.kind());
    match value.len() {
        None if value.is_undefined() => Ok(0),
        length => length.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, what())),
    }
}

/// Calls a method of Python strings that `minijinja_contrib` lacks; tuples are lists.
pub(super) fn call_method(value: &Value, name: &str, arguments: &[Value]) -> Option<Value> {
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
pub(super) fn format_python(value: &Value) -> Result<Option<String>, Error> {
    if !is_float(value) && !is_list(value) && value.kind() != ValueKind::Map {
        return Ok(None);
    }
    let mut text = BoundedText::default();
    let written = write_repr(&mut text, value);
    text.finish(written, ErrorKind::InvalidOperation).map(Some)
}

/// Writes a value like Python's `repr`.
fn write_repr(to: &mut BoundedText, value: &Value) -> IoResult<()> {
    if let Some(text) = value.as_str() {
        return write_text(to, text);
    }
    let items = |value: &Value| value.try_iter().map_err(std::io::Error::other);
    match value.kind() {
        _ if is_list(value) => {
            to.write_all(b"[")?;
            for (i, item) in items(value)?.enumerate() {
                to.write_all(if i == 0 { b"" } else { b", " })?;
                write_repr(to, &item)?;
            }
            to.write_all(b"]")
        }
        ValueKind::Map => {
            to.write_all(b"{")?;
            for (i, key) in items(value)?.enumerate() {
                to.write_all(if i == 0 { b"" } else { b", " })?;
                write_repr(to, &key)?;
                to.write_all(b": ")?;
                write_repr(to, &value.get_item(&key).unwrap_or_default())?;
            }
            to.write_all(b"}")
        }
        _ if is_float(value) => match f64::try_from(value.clone()).unwrap_or(f64::NAN) {
            number if number.is_finite() => to.write_all(format_float(number).as_bytes()),
            number => write!(to, "{}", number.to_string().to_lowercase()),
        },
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
    fn render(source: &str) -> String {
        let template = ChatTemplate { source: source.to_string(), ..ChatTemplate::default() };
        let x = json!({"s": "it's\n\u{200d}\u{1f600}\u{7f}", "n": [1, 2.0, 1e20, null, true, {}]});
        let message = json!({"content": "a", "x": x});
        template.render(&[message]).unwrap()
    }

    #[test]
    fn values_are_printed_as_by_python() {
        // The results of Python's `str`.
        let n = "[1, 2.0, 1e+20, None, True, {}]";
        assert_eq!(render("{{ messages[0].x.n }}"), n);
        assert_eq!(render("{{ messages[0].x.n|string }}"), n);
        assert_eq!(render("{{ messages[0].x.n[2] }} {{ 0.00001|string }}"), "1e+20 1e-05");
        assert_eq!(
            render("{{ [messages[0].x.s, 'a', '\\'\"', 'b\\\\'] }}"),
            "[\"it's\\n\\u200d\u{1f600}\\x7f\", 'a', '\\'\"', 'b\\\\']"
        );
        assert_eq!(render("{{ {'b': 'x', 'a': {1: ''}} }}{{ 'x' }}"), "{'b': 'x', 'a': {1: ''}}x");
        assert_eq!(
            render(
                "{% set l = [1, 'a', none] %}{{ l[1:] }}{{ l[::-1]|string }}{{ [l[2:]] }}{{ l[3:] }}"
            ),
            "['a', None][None, 'a', 1][[None]][]"
        );
    }

    #[test]
    fn values_are_tested_as_by_python() {
        // The results of Jinja.
        let tests = |values: &[&str], test: &str| -> Vec<bool> {
            let one = |value: &&str| render(&format!("{{{{ {value} is {test} }}}}")) == "True";
            values.iter().map(one).collect()
        };
        let none = ["none", "true", "1", "1.5"];
        let some = ["nothing", "'a'", "{}", "[]", "[1, 2][1:]", "range(2)"];
        assert_eq!(tests(&none, "iterable"), [false; 4]);
        assert_eq!(tests(&some, "iterable"), [true; 6]);
        assert_eq!(tests(&none, "sequence"), [false; 4]);
        assert_eq!(tests(&some, "sequence"), [true; 6]);
        assert_eq!(tests(&none, "number"), [false, true, true, true]);
        assert_eq!(tests(&some, "number"), [false; 6]);
        assert_eq!(
            render("{% if tools is iterable and tools | length > 0 %}a{% else %}b{% endif %}"),
            "b"
        );
    }

    #[test]
    fn numbers_are_read_as_by_python() {
        // The results of Jinja.
        for (source, expected) in [
            ("'3x'|int", "0"),
            ("' 3 '|int", "3"),
            ("'-3.7'|int", "-3"),
            ("'1e3'|int", "1000"),
            ("'1_000'|int", "1000"),
            ("'1__0'|int", "0"),
            ("''|int", "0"),
            ("'x'|int(5)", "5"),
            ("'x'|int(default=4)", "4"),
            ("'x'|int(none)", "None"),
            ("'inf'|int(3)", "3"),
            ("none|int(7)", "7"),
            ("[1]|int", "0"),
            ("true|int", "1"),
            ("3.9|int", "3"),
            ("'3x'|float", "0.0"),
            ("' 3.5 '|float", "3.5"),
            ("'inf'|float", "inf"),
            ("'x'|float(none)", "None"),
            ("true|float", "1.0"),
            ("3|float", "3.0"),
        ] {
            assert_eq!(render(&format!("{{{{ {source} }}}}")), expected, "{source}");
        }
    }

    #[test]
    fn lengths_and_methods_are_those_of_python() {
        // The results of Jinja.
        assert_eq!(render("{{ nothing|length }}{{ 'ab'|length }}{{ [1]|count }}"), "021");
        assert_eq!(render("{{ 'aba'.removeprefix('a') }}{{ 'aba'.removesuffix('a') }}"), "baab");
        assert_eq!(
            render("{{ 'a-b-c'.partition('-')[2] }}|{{ 'a-b-c'.rpartition('-')[0] }}"),
            "b-c|a-b"
        );
        assert_eq!(render("{{ 'ab'.partition('-')[0] }}|{{ 'ab'.rpartition('-')[2] }}"), "ab|ab");
    }

    #[test]
    fn line_ends_of_windows_are_line_ends() {
        assert_eq!(render("a\r\n{% if true %}\r\n  b\r\n{% endif %}\r\nc\r\n"), "a\n  b\nc");
    }
}
