//! The filter `tojson` of chat templates: JSON as Python's `json.dumps` writes it, with the arguments of
//! `transformers`.

use super::limits::{self, BoundedText};
use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use std::io::{Result as IoResult, Write};

/// Implements the filter. As in `transformers`, nothing is escaped for HTML.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let indent = indent.as_ref().map(parse_indent).transpose()?;
    let defaults = if indent.is_some() { [",", ": "] } else { [", ", ": "] };
    let separators = separators.unwrap_or_else(|| defaults.map(String::from).into());
    let Ok([item_separator, key_separator]) = <[String; 2]>::try_from(separators) else {
        let what = "`separators` of `tojson` must be two strings";
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    };
    let layout = PythonLayout { indent, item_separator, key_separator, depth: 0, is_empty: true };
    let text = match sort_keys {
        Some(true) => write_json(&sort_object_keys(value)?, layout)?,
        _ => write_json(value, layout)?,
    };
    Ok(if ensure_ascii == Some(true) { escape_non_ascii(&text) } else { text })
}

/// Parses the argument `indent`, the indentation of a level: a string, or a number of spaces.
fn parse_indent(indent: &Value) -> Result<String, Error> {
    match indent.as_str() {
        Some(text) => Ok(text.to_string()),
        None => {
            let width = usize::try_from(indent.clone())?;
            limits::check_length(width)?;
            Ok(" ".repeat(width))
        }
    }
}

/// Sorts the keys of all objects in a value; converts through text, whose length is bounded.
fn sort_object_keys(value: &Value) -> Result<Json, Error> {
    let json = serde_json::from_str(&write_json(value, CompactFormatter)?);
    json.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

fn write_json(value: &impl Serialize, formatter: impl Formatter) -> Result<String, Error> {
    let mut text = BoundedText::default();
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, formatter));
    text.finish(written, ErrorKind::BadSerialization)
}

/// Escapes all characters beyond ASCII, which occur in strings only, as UTF-16.
fn escape_non_ascii(json: &str) -> String {
    let mut units = [0; 2];
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\0'..='\x7e' => ascii.push(c),
            _ => ascii.extend(c.encode_utf16(&mut units).iter().map(|x| format!("\\u{x:04x}"))),
        }
    }
    ascii
}

/// Formats a finite number like Python's `repr`: the shortest digits that parse back, with an exponent from 1e16 on and
/// below 1e-4.
pub(super) fn format_float(number: f64) -> String {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((text.as_str(), "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => format!("{digits}e{exponent:+03}"),
        _ => format!("{number:?}"),
    }
}

/// The separators and line breaks of Python's `json.dumps`.
struct PythonLayout {
    /// Indentation of a level; `None` for all on one line.
    indent: Option<String>,
    /// Text between items.
    item_separator: String,
    /// Text between a key and its value.
    key_separator: String,
    /// Number of lists and objects that are open.
    depth: usize,
    /// Whether the innermost of them has no item yet.
    is_empty: bool,
}

impl PythonLayout {
    fn open<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> IoResult<()> {
        self.depth += 1;
        self.is_empty = true;
        to.write_all(bracket)
    }

    fn separate<W: ?Sized + Write>(&mut self, to: &mut W, is_first: bool) -> IoResult<()> {
        if !is_first {
            to.write_all(self.item_separator.as_bytes())?;
        }
        self.is_empty = false;
        self.break_line(to)
    }

    fn close<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> IoResult<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.break_line(to)?;
        }
        self.is_empty = false;
        to.write_all(bracket)
    }

    fn break_line<W: ?Sized + Write>(&self, to: &mut W) -> IoResult<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        to.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| to.write_all(indent.as_bytes()))
    }
}

impl Formatter for PythonLayout {
    fn write_f64<W: ?Sized + Write>(&mut self, to: &mut W, value: f64) -> IoResult<()> {
        to.write_all(format_float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> IoResult<()> {
        self.open(to, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> IoResult<()> {
        self.separate(to, first)
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> IoResult<()> {
        self.close(to, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> IoResult<()> {
        self.open(to, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> IoResult<()> {
        self.separate(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> IoResult<()> {
        to.write_all(self.key_separator.as_bytes())
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> IoResult<()> {
        self.close(to, b"}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders a template with a value `x`.
    fn render(template: &str, x: &str) -> Result<String, Error> {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", to_json);
        let x: Value = serde_json::from_str(x).unwrap();
        environment.render_str(template, Value::from_iter([("x", x)]))
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let x = r#"{"b": [1, 2.5, "<é>'"], "a": {"d": {}, "c": []}}"#;
        // The results of `json.dumps` with these arguments and `ensure_ascii=False` by default.
        for (arguments, expected) in [
            ("", x),
            ("ensure_ascii=false, indent=none, separators=none, sort_keys=false", x),
            ("separators=(',', ':')", r#"{"b":[1,2.5,"<é>'"],"a":{"d":{},"c":[]}}"#),
            ("ensure_ascii=true", r#"{"b": [1, 2.5, "<\u00e9>'"], "a": {"d": {}, "c": []}}"#),
            ("sort_keys=True", r#"{"a": {"c": [], "d": {}}, "b": [1, 2.5, "<é>'"]}"#),
            (
                "indent=2",
                "{\n  \"b\": [\n    1,\n    2.5,\n    \"<é>'\"\n  ],\n  \"a\": {\n    \"d\": {},\n    \"c\": []\n  }\n}",
            ),
            (
                "indent='\t', sort_keys=true",
                "{\n\t\"a\": {\n\t\t\"c\": [],\n\t\t\"d\": {}\n\t},\n\t\"b\": [\n\t\t1,\n\t\t2.5,\n\t\t\"<é>'\"\n\t]\n}",
            ),
            (
                "indent=0, separators=(', ', '=')",
                "{\n\"b\"=[\n1, \n2.5, \n\"<é>'\"\n], \n\"a\"={\n\"d\"={}, \n\"c\"=[]\n}\n}",
            ),
        ] {
            let template = format!("{{{{ x | tojson({arguments}) }}}}");
            assert_eq!(render(&template, x).unwrap(), expected, "{arguments}");
        }
        assert_eq!(
            render("{{ x | tojson(ensure_ascii=true) }}", "\"\u{1f600}\u{7f}\"").unwrap(),
            r#""\ud83d\ude00\u007f""#
        );
        assert_eq!(
            render("{{ {'b': x, 'a': [none, true]} | tojson }}", "7").unwrap(),
            r#"{"b": 7, "a": [null, true]}"#
        );
        for (arguments, reason) in [
            ("separators=(',',)", "must be two strings"),
            ("skipkeys=true", "unknown keyword argument 'skipkeys'"),
        ] {
            let error = render(&format!("{{{{ x | tojson({arguments}) }}}}"), "1");
            let error = error.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let numbers = "[1e16, -1.5e22, 123456789012345680.0, 9999999999999998.0, 100.0, 0.0001, 0.00001, -1.5e-7, 5e-324, \
                       -0.0, 7, 18446744073709551615]";
        // The result of Python's `json.dumps(json.loads(numbers))`.
        assert_eq!(
            render("{{ x | tojson }}", numbers).unwrap(),
            "[1e+16, -1.5e+22, 1.2345678901234568e+17, 9999999999999998.0, 100.0, 0.0001, 1e-05, -1.5e-07, 5e-324, -0.0, 7, \
             18446744073709551615]"
        );
    }
}
