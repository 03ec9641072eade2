//! Limits for chat templates, which come with a model and may loop, nest or grow without end.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use std::borrow::Cow;
use std::io::{Error as IoError, Result as IoResult, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Limit on the bytes of a template.
const MAX_SOURCE: usize = 128 << 10;
/// Limit on the bytes of a rendered text, and of any text assigned to a variable.
const MAX_TEXT: usize = 16 << 20;
/// Limit on the instructions of a rendering.
const FUEL: u64 = 20_000_000;
/// Stack size of a rendering, bytes: an expression may nest as deep as [`MAX_SOURCE`] holds.
const STACK: usize = 512 << 20;
/// Limit on the growth of the process during a rendering, bytes.
const MAX_GROWTH: u64 = 512 << 20;
/// Time of a rendering at most; fuel ends it earlier unless single instructions are slow.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Values within an assigned value at most.
const MAX_VALUES: usize = 1 << 20;
/// Filter that checks a value before a variable takes it.
const ASSIGNED: &str = "_assigned";
/// Filter that checks a value before a namespace takes it.
const STORED: &str = "_stored";
/// The filter `indent` without a bound.
const INDENT: &str = "_indent";
/// The filter `replace` without a bound.
const REPLACE: &str = "_replace";
/// The filter `join` without a bound.
const JOIN: &str = "_join";

/// Runs a rendering on a thread of its own with a deep stack, and gives up on it beyond the limits.
///
/// # Errors
/// The error of the rendering in words, or the limit that it has passed.
pub(super) fn run(
    render: impl FnOnce() -> Result<String, Error> + Send + 'static,
) -> Result<String, String> {
    let before = resident();
    let (sender, receiver) = channel();
    let task = move || {
        // Nobody receives it after the limits.
        let _ = sender.send(render().map_err(|error| error.to_string()));
    };
    let thread = thread::Builder::new().name("chat template".into()).stack_size(STACK);
    thread.spawn(task).map_err(|error| format!("no thread to render it on: {error}"))?;
    let begun = Instant::now();
    loop {
        match receiver.recv_timeout(Duration::from_millis(5)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err("rendering panicked".into()),
            Err(RecvTimeoutError::Timeout) if resident() > before + MAX_GROWTH => {
                return Err("it takes more than 512 MiB of memory".into());
            }
            Err(RecvTimeoutError::Timeout) if begun.elapsed() > MAX_TIME => {
                return Err("it takes more than 2 seconds".into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Resident memory of the process, bytes; 0 where the platform does not report it.
fn resident() -> u64 {
    crate::device::memory(None).in_use.unwrap_or(0)
}

/// Sets fuel, and replaces filters that make long texts out of short templates.
pub(super) fn apply(environment: &mut Environment<'_>) {
    environment.set_fuel(Some(FUEL));
    environment.add_filter(ASSIGNED, |value| checked(value, true));
    environment.add_filter(STORED, |value| checked(value, false));
    environment.add_filter(INDENT, filters::indent);
    environment.add_filter("indent", indent);
    environment.add_filter(REPLACE, filters::replace);
    environment.add_filter("replace", replace);
    environment.add_filter(JOIN, filters::join);
    environment.add_filter("join", join);
    environment.set_unknown_method_callback(method);
    for name in ["batch", "slice", "format"] {
        environment.remove_filter(name);
    }
}

/// The template with every assigned value checked: `{% set x = y %}` becomes `{% set x = (y)|_assigned %}`.
///
/// Namespaces are the only values that change, so cyclic values, on which printing and comparing never end, cannot
/// be made without an assignment of a namespace; and texts cannot double without one of a text.
///
/// # Errors
/// If the template is longer than [`MAX_SOURCE`].
pub(super) fn bounded(source: &str) -> Result<String, String> {
    if source.len() > MAX_SOURCE {
        return Err("it is longer than 128 KiB".into());
    }
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        text.push_str(&rest[..start]);
        rest = &rest[start..];
        let (tag, after) = split_tag(rest);
        text.push_str(&checked_assignment(tag));
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Splits off the tag, expression or comment at the beginning of a text, or its first character.
fn split_tag(text: &str) -> (&str, &str) {
    let end = match text.as_bytes().get(1) {
        Some(b'#') => text.find("#}").map(|at| at + 2),
        Some(b'%') => tag_end(text, "%}"),
        Some(b'{') => tag_end(text, "}}"),
        _ => Some(1),
    };
    text.split_at(end.unwrap_or(text.len()))
}

/// The end of a tag, past `close` outside of quotes.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut bytes = text.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(open), _) if byte == open => quote = None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, _) if text.as_bytes()[at..].starts_with(close.as_bytes()) => {
                return Some(at + close.len());
            }
            _ => {}
        }
    }
    None
}

/// A `set` tag with its value passed through [`checked`]; any other tag as it is.
fn checked_assignment(tag: &str) -> Cow<'_, str> {
    let assignment = || {
        let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
        let target = inner.trim_start_matches(['-', '+']).trim_start().strip_prefix("set")?;
        target.starts_with(char::is_whitespace).then_some(())?;
        let target = &target[..target.find('=')?];
        let is_name = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c);
        target.chars().all(is_name).then_some(())?;
        let (head, value) = inner.split_once('=')?;
        let value = value
            .strip_suffix(['-', '+'])
            .map_or((value, ""), |short| (short, &value[short.len()..]));
        let check = if target.contains('.') { STORED } else { ASSIGNED };
        Some(format!("{{%{head}=({})|{check}{}%}}", value.0, value.1))
    };
    assignment().map_or(tag.into(), Cow::from)
}

/// Refuses values that hold a namespace, unless it is the whole value and `may_be_one`, and values that are too large.
fn checked(value: Value, may_be_one: bool) -> Result<Value, Error> {
    let is_namespace = |value: &Value| {
        value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
    };
    let (mut parts, mut bytes) = (MAX_VALUES, MAX_TEXT);
    let mut open = vec![(value.clone(), may_be_one)];
    while let Some((value, may_be_one)) = open.pop() {
        if is_namespace(&value) && !may_be_one {
            return Err(refused("a namespace is stored in another value"));
        }
        let length = value.as_str().map_or(0, str::len);
        bytes = bytes.checked_sub(length).ok_or_else(|| refused("a text is longer than 16 MiB"))?;
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            continue;
        }
        let is_map = value.kind() == ValueKind::Map;
        for part in value.try_iter()? {
            let part = if is_map { value.get_item(&part)? } else { part };
            parts = parts.checked_sub(1).ok_or_else(|| refused("a value has too many parts"))?;
            open.push((part, false));
        }
    }
    Ok(value)
}

/// The filter `indent`, bounded in its result.
fn indent(state: &State, text: Value, options: Rest<Value>) -> Result<Value, Error> {
    let widths = options
        .iter()
        .flat_map(|option| [option.clone(), option.get_attr("width").unwrap_or_default()]);
    let width = widths.filter_map(|width| width.as_usize()).max().unwrap_or(0);
    let lines = text.as_str().map_or(0, |text| text.split('\n').count());
    check_length(width.saturating_mul(lines))?;
    let all: Vec<Value> = std::iter::once(text).chain(options.0).collect();
    state.apply_filter(INDENT, &all)
}

/// A text `count` times, bounded in its result.
pub(super) fn repeated(text: &str, count: usize) -> Result<String, Error> {
    check_length(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

/// Refuses a text of this many bytes if it is too long.
fn check_length(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT { Err(refused("a text is longer than 16 MiB")) } else { Ok(()) }
}

/// Refuses the replacement of `from` by `to` in a text, or putting `to` between its characters, if the result is too long.
fn check_replacement(text: &str, from: &str, to: &str) -> Result<(), Error> {
    check_length(text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len()))
}

/// The filter `replace`, bounded in its result.
fn replace(state: &State, text: Value, from: Value, to: Value) -> Result<Value, Error> {
    check_replacement(&text.to_string(), &from.to_string(), &to.to_string())?;
    state.apply_filter(REPLACE, &[text, from, to])
}

/// The filter `join`, bounded in its result.
fn join(state: &State, parts: Value, options: Rest<Value>) -> Result<Value, Error> {
    let between = options.first().map_or(0, |between| between.to_string().len());
    let count =
        parts.as_str().map_or_else(|| parts.len().unwrap_or(0), |text| text.chars().count());
    check_length(count.saturating_mul(between))?;
    let all: Vec<Value> = std::iter::once(parts).chain(options.0).collect();
    state.apply_filter(JOIN, &all)
}

/// Python's methods of texts, those that make long texts by the bounded filters.
fn method(state: &State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str(), arguments) {
        ("replace", Some(_), [from, to, ..]) => {
            check_replacement(&value.to_string(), &from.to_string(), &to.to_string())?;
        }
        ("join", Some(_), [parts]) => {
            return join(state, parts.clone(), Rest(vec![value.clone()]));
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

fn refused(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// A rendered text that stops at [`MAX_TEXT`].
#[derive(Default)]
pub(super) struct Limited {
    text: Vec<u8>,
    is_full: bool,
}

impl Limited {
    /// Refuses a text that was cut.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_full { Err(refused("its text is longer than 16 MiB")) } else { Ok(()) }
    }

    /// The text.
    pub(super) fn into_string(self) -> String {
        String::from_utf8(self.text).unwrap_or_default()
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        if self.text.len() + bytes.len() > MAX_TEXT {
            self.is_full = true;
            return Err(IoError::other("too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_checked_and_other_tags_left_alone() {
        let source = "{% set x = '%}' ~ y -%}{# {% set a = 1 %} #}{{ x == 1 }}{% set z %}b{% endset %}{%- set ns.a, b = 1, 2 %}";
        let wanted = "{% set x =( '%}' ~ y )|_assigned-%}{# {% set a = 1 %} #}{{ x == 1 }}{% set z %}b{% endset %}{%- set \
                      ns.a, b =( 1, 2 )|_stored%}";
        assert_eq!(bounded(source).unwrap(), wanted);
    }
}
