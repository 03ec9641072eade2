//! Limits for chat templates, which come with a model and may loop, nest or grow without bound.

use crate::clock::{Stopwatch, thread_cpu_time};
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use std::cell::RefCell;
use std::io::{Error as IoError, Result as IoResult, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Maximum size of a template in bytes.
const MAX_SOURCE_BYTES: usize = 128 << 10;
/// Maximum size in bytes of a rendered text, and of any string assigned to a variable.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Maximum number of instructions of a rendering.
const MAX_INSTRUCTIONS: u64 = 20_000_000;
/// Stack size of a rendering in bytes, since expressions may nest as deep as [`MAX_SOURCE_BYTES`] permits.
const STACK_BYTES: usize = 512 << 20;
/// Maximum growth of the process during a rendering, bytes.
const MAX_GROWTH_BYTES: u64 = 512 << 20;
/// CPU time of a rendering that may have made the process grow so much; below it, other threads have.
const MIN_GROWTH_TIME: Duration = Duration::from_millis(20);
/// Maximum CPU time of a rendering, or duration where that is unknown; fuel ends it earlier unless single instructions
/// are slow.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of values within an assigned value.
const MAX_VALUES: usize = 1 << 20;
/// Filter that checks a value before it is assigned to a variable.
const ASSIGNED: &str = "_assigned";
/// Filter that checks a value before it is assigned to a namespace.
const STORED: &str = "_stored";
/// The unbounded filters `indent`, `replace` and `join`.
const INDENT: &str = "_indent";
const REPLACE: &str = "_replace";
const JOIN: &str = "_join";

/// Runs a rendering on its own thread with a deep stack, and gives up on it beyond the limits.
///
/// # Errors
/// Description of the rendering's error, or of the exceeded limit.
pub(super) fn run(
    render: impl FnOnce() -> Result<String, Error> + Send + 'static,
) -> Result<String, String> {
    let before = resident_bytes();
    let (sender, receiver) = channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&given_up);
    let task = move || {
        GIVEN_UP.set(Some(flag));
        // The receiver is gone if a limit was exceeded.
        let _ = sender.send(render().map_err(|error| error.to_string()));
    };
    let thread = thread::Builder::new().name("chat template".into()).stack_size(STACK_BYTES);
    let thread =
        thread.spawn(task).map_err(|error| format!("no thread to render it on: {error}"))?;
    let mut stopwatch = Stopwatch::start();
    let limit = loop {
        match receiver.recv_timeout(Duration::from_millis(5)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err("rendering panicked".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let time = thread_cpu_time(&thread).unwrap_or_else(|| stopwatch.elapsed());
        if let Some(limit) = find_exceeded_limit(time, resident_bytes().saturating_sub(before)) {
            break limit;
        }
    };
    given_up.store(true, Ordering::Relaxed);
    Err(limit)
}

/// Finds the limit that a rendering has exceeded in this time, while the process has grown by so many bytes.
fn find_exceeded_limit(time: Duration, growth: u64) -> Option<String> {
    if time > MIN_GROWTH_TIME && growth > MAX_GROWTH_BYTES {
        let mib = MAX_GROWTH_BYTES >> 20;
        return Some(format!("the process takes {mib} MiB of memory more while it is rendered"));
    }
    (time > MAX_TIME).then(|| format!("it takes more than {} seconds", MAX_TIME.as_secs()))
}

thread_local! {
    /// Set once this thread's rendering has exceeded a limit, and its result is no longer awaited.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Ends a rendering that has exceeded a limit.
fn check_given_up() -> Result<(), Error> {
    let is_given_up = |flag: &Option<Arc<AtomicBool>>| {
        flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    };
    if GIVEN_UP.with_borrow(is_given_up) { Err(refusal("it has passed a limit")) } else { Ok(()) }
}

/// Resident memory of the process, bytes; 0 where the platform does not report it, and in tests, which share a process.
fn resident_bytes() -> u64 {
    if cfg!(test) { 0 } else { crate::device::measure_memory(None).in_use.unwrap_or(0) }
}

/// Formats a value that minijinja would print differently; `None` for any other.
type FormatPython = fn(&Value) -> Result<Option<String>, Error>;
/// Calls a method of a value that minijinja lacks.
type CallMethod = fn(&Value, &str, &[Value]) -> Option<Value>;

/// Sets fuel, and replaces filters that can make long texts out of short templates.
pub(super) fn apply(environment: &mut Environment<'_>, format: FormatPython, call: CallMethod) {
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_formatter(move |to, state, value| {
        check_given_up()?;
        match format(value)? {
            Some(text) => to.write_str(&text).map_err(Error::from),
            None => escape_formatter(to, state, value),
        }
    });
    environment.add_filter(ASSIGNED, |value| check_value(value, true));
    environment.add_filter(STORED, |value| check_value(value, false));
    environment.add_filter(INDENT, filters::indent);
    environment.add_filter("indent", indent);
    environment.add_filter(REPLACE, filters::replace);
    environment.add_filter("replace", replace);
    environment.add_filter(JOIN, filters::join);
    environment.add_filter("join", join);
    environment.set_unknown_method_callback(move |state, value, name, arguments| {
        call(value, name, arguments)
            .map_or_else(|| call_bounded_method(state, value, name, arguments), Ok)
    });
    for name in ["batch", "slice", "format"] {
        environment.remove_filter(name);
    }
}

/// Rewrites a template so that every assigned value is checked: `{% set x = y %}` becomes
/// `{% set x = (y)|_assigned %}`, and `{% for x in y %}` is followed by `{% set x = (x)|_assigned %}`.
///
/// Namespaces are the only mutable values, so a cyclic value, which is printed or compared without end, needs the
/// assignment of a namespace; and a string can double many times only through assignments.
///
/// # Errors
/// If the template is longer than [`MAX_SOURCE_BYTES`].
pub(super) fn insert_checks(source: &str) -> Result<String, String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!("it is longer than {} KiB", MAX_SOURCE_BYTES >> 10));
    }
    Ok(rewrite_tags(source, rewrite_assignments))
}

/// Replaces the tags of a template for which `rewrite` returns a string. Raw blocks, expressions and comments count as
/// tags.
pub(super) fn rewrite_tags(source: &str, rewrite: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (tag, after) = split_tag(&rest[start..]);
        text += &rest[..start];
        text += rewrite(tag).as_deref().unwrap_or(tag);
        rest = after;
    }
    text + rest
}

/// Splits off the tag, raw block, expression or comment at the beginning of a template, or its first character.
fn split_tag(text: &str) -> (&str, &str) {
    let end = match text.as_bytes().get(1) {
        Some(b'#') => text.find("#}").map(|at| at + 2),
        Some(b'%') => find_raw_end(text).or_else(|| find_tag_end(text, "%}")),
        Some(b'{') => find_tag_end(text, "}}"),
        _ => Some(1),
    };
    text.split_at(end.unwrap_or(text.len()))
}

/// Content of a tag between its brackets.
pub(super) fn tag_content(tag: &str) -> &str {
    tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace())
}

/// Finds the end of a raw block, in which nothing is a tag.
fn find_raw_end(text: &str) -> Option<usize> {
    let tag = |from: usize| text[from..].find("%}").map(|at| from + at + 2);
    let mut at = tag(0)?;
    if tag_content(&text[..at]) != "raw" {
        return None;
    }
    loop {
        let start = at + text[at..].find("{%")?;
        let end = tag(start)?;
        if tag_content(&text[start..end]) == "endraw" {
            return Some(end);
        }
        at = start + 2;
    }
}

/// Finds the end of a tag, past `close` outside of quotes.
fn find_tag_end(text: &str, close: &str) -> Option<usize> {
    let mut bytes = unquoted_bytes(&text[2..]).map(|(at, ..)| at + 2);
    let is_end = |at: &usize| text.as_bytes()[*at..].starts_with(close.as_bytes());
    bytes.find(is_end).map(|at| at + close.len())
}

/// Rewrites a tag that assigns values to names, so that they pass through [`check_value`]; `None` for other tags.
fn rewrite_assignments(tag: &str) -> Option<String> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let (inner, end) = match inner.strip_suffix(['-', '+']) {
        Some(short) => (short, &inner[short.len()..]),
        None => (inner, ""),
    };
    let start = inner.len() - inner.trim_start_matches(['-', '+']).trim_start().len();
    let word = inner[start..].find(|c: char| !c.is_alphanumeric()).unwrap_or(inner.len() - start);
    let (begin, rest) = inner.split_at(start + word);
    // Loop variables and arguments already have their values; a further assignment checks them.
    let check_again = |names: &[&str]| -> String {
        names.iter().map(|name| format!("{{% set {name} = ({name})|{ASSIGNED} {end}%}}")).collect()
    };
    Some(match &inner[start..][..word] {
        "set" => format!("{{%{begin}{}{end}%}}", rewrite_set(rest)),
        "with" => format!("{{%{begin}{}{end}%}}", rewrite_values(rest)),
        "for" => {
            let words = rest.split(|c: char| c.is_whitespace() || ",()".contains(c));
            let names = words.filter(|word| !word.is_empty()).take_while(|word| *word != "in");
            format!("{tag}{}", check_again(&names.collect::<Vec<_>>()))
        }
        kind @ ("macro" | "call") => {
            let (name, list) = rest.split_once('(')?;
            if kind == "call" && !name.trim().is_empty() {
                return None;
            }
            let (list, after) = list.split_at(find_closing_bracket(list)?);
            let names = split_at_commas(list).into_iter().filter_map(|part| part.split('=').next());
            let names = names.map(str::trim).filter(|name| !name.is_empty());
            let (names, list) = (names.collect::<Vec<_>>(), rewrite_values(list));
            format!("{{%{begin}{name}({list}{after}{end}%}}{}", check_again(&names))
        }
        _ => return None,
    })
}

/// Rewrites the rest of a tag after `set`, so that the value is checked: an assignment's, or the block up to `endset`.
fn rewrite_set(rest: &str) -> String {
    match rest.split_once('=') {
        Some((target, value)) if !target.contains('|') => {
            let check = if target.contains('.') { STORED } else { ASSIGNED };
            format!("{target}=({value})|{check}")
        }
        _ => format!("{rest}|{ASSIGNED}"),
    }
}

/// Rewrites a list of names with values, so that the values are checked.
fn rewrite_values(list: &str) -> String {
    let checked = |part: &str| match part.split_once('=') {
        Some((name, value)) => format!("{name}=({value})|{ASSIGNED}"),
        None => part.to_string(),
    };
    split_at_commas(list).into_iter().map(checked).collect::<Vec<_>>().join(",")
}

/// Splits a list at its commas outside of quotes and brackets.
fn split_at_commas(list: &str) -> Vec<&str> {
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, depth, byte) in unquoted_bytes(list) {
        if depth == 0 && byte == b',' {
            parts.push(&list[start..at]);
            start = at + 1;
        }
    }
    parts.push(&list[start..]);
    parts
}

/// Finds the bracket that closes one opened before the text.
fn find_closing_bracket(text: &str) -> Option<usize> {
    unquoted_bytes(text).find(|(_, depth, _)| *depth < 0).map(|(at, ..)| at)
}

/// Iterates over the bytes of an expression outside of quotes, each with its position and the depth of brackets around
/// it.
fn unquoted_bytes(text: &str) -> impl Iterator<Item = (usize, i32, u8)> {
    let (mut quote, mut depth) = (None, 0);
    let mut bytes = text.bytes().enumerate();
    std::iter::from_fn(move || {
        loop {
            let (at, byte) = bytes.next()?;
            match (quote, byte) {
                (Some(_), b'\\') => drop(bytes.next()),
                (Some(open), _) if byte == open => quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, b'(' | b'[' | b'{') => {
                    depth += 1;
                    return Some((at, depth - 1, byte));
                }
                (None, b')' | b']' | b'}') => {
                    depth -= 1;
                    return Some((at, depth, byte));
                }
                (None, _) => return Some((at, depth, byte)),
            }
        }
    })
}

/// Rejects values that contain a namespace, unless the namespace is the whole value and `may_be_namespace`, and values
/// that are too large.
fn check_value(value: Value, may_be_namespace: bool) -> Result<Value, Error> {
    let is_namespace = |value: &Value| {
        value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
    };
    let (mut parts, mut bytes) = (MAX_VALUES, MAX_TEXT_BYTES);
    let mut open = vec![(value.clone(), may_be_namespace)];
    while let Some((value, may_be_namespace)) = open.pop() {
        check_given_up()?;
        if is_namespace(&value) && !may_be_namespace {
            return Err(refusal("a namespace is stored in another value"));
        }
        let length = value.as_str().map_or(0, str::len);
        bytes = bytes.checked_sub(length).ok_or_else(|| too_long_error("a text"))?;
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            continue;
        }
        let is_map = value.kind() == ValueKind::Map;
        for part in value.try_iter()? {
            let part = if is_map { value.get_item(&part)? } else { part };
            parts = parts.checked_sub(1).ok_or_else(|| refusal("a value has too many parts"))?;
            open.push((part, false));
        }
    }
    Ok(value)
}

/// The filter `indent` with a bounded result.
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

/// Repeats a string `count` times, with a bounded result.
pub(super) fn repeat(text: &str, count: usize) -> Result<String, Error> {
    check_length(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

/// Rejects a string of `bytes` bytes if it is too long.
fn check_length(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT_BYTES { Err(too_long_error("a text")) } else { Ok(()) }
}

/// Rejects the replacement of `from` by `to` in a string, or the insertion of `to` between its characters, if the
/// result is too long.
fn check_replacement(text: &str, from: &str, to: &str) -> Result<(), Error> {
    check_length(text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len()))
}

/// The filter `replace` with a bounded result.
fn replace(state: &State, text: Value, from: Value, to: Value) -> Result<Value, Error> {
    check_replacement(&text.to_string(), &from.to_string(), &to.to_string())?;
    state.apply_filter(REPLACE, &[text, from, to])
}

/// The filter `join` with a bounded result.
fn join(state: &State, parts: Value, options: Rest<Value>) -> Result<Value, Error> {
    let between = options.first().map_or(0, |between| between.to_string().len());
    let count = parts.as_str().map_or_else(|| parts.len().unwrap_or(0), |it| it.chars().count());
    check_length(count.saturating_mul(between))?;
    let all: Vec<Value> = std::iter::once(parts).chain(options.0).collect();
    state.apply_filter(JOIN, &all)
}

/// Calls a method of Python strings; those that can make long texts are bounded like the filters.
fn call_bounded_method(
    state: &State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (name, value.as_str(), arguments) {
        ("replace", Some(_), [from, to, ..]) => {
            check_replacement(&value.to_string(), &from.to_string(), &to.to_string())?;
        }
        ("join", Some(_), [parts]) => {
            return join(state, parts.clone(), Rest(vec![value.clone()]));
        }
        ("format", Some(text), _) => check_format(text)?,
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Rejects a format whose widths and precisions make too long a text, or come from its arguments.
fn check_format(text: &str) -> Result<(), Error> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let sum = |sum: usize, digits: &str| sum.saturating_add(digits.parse().unwrap_or(usize::MAX));
    check_length(numbers.fold(text.len(), sum))?;
    let mut is_open = false;
    for c in text.replace("{{", "").replace("}}", "").chars() {
        match c {
            '{' if is_open => return Err(refusal("a format has another format inside")),
            '{' => is_open = true,
            '}' => is_open = false,
            _ => {}
        }
    }
    Ok(())
}

/// Creates the error of a rendering that is not permitted.
fn refusal(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// The error of a text that is longer than [`MAX_TEXT_BYTES`].
fn too_long_error(text: &str) -> Error {
    let reason = format!("{text} is longer than {} MiB", MAX_TEXT_BYTES >> 20);
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// A rendered text that stops at [`MAX_TEXT_BYTES`].
#[derive(Default)]
pub(super) struct BoundedText {
    text: Vec<u8>,
    is_full: bool,
}

impl BoundedText {
    /// Rejects a truncated text.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_full { Err(too_long_error("its text")) } else { Ok(()) }
    }

    /// The text.
    pub(super) fn into_string(self) -> String {
        String::from_utf8(self.text).unwrap_or_default()
    }
}

impl Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        if self.text.len() + bytes.len() > MAX_TEXT_BYTES {
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
    fn formats_of_long_texts_are_rejected() {
        for text in
            ["{:01000000000000000}", "{:>100000000000}", "{:.99999999999999999999f}", "{:{}}"]
        {
            assert!(check_format(text).is_err(), "{text}");
        }
        for text in ["", "{} and {:>10}", "{{{0:.3f}}} in 2026", "{a[key]}"] {
            assert!(check_format(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn assignments_are_checked_and_other_tags_left_alone() {
        let source = "{% set x = '%}' ~ y -%}{# {% set a = 1 %} #}{{ x == 1 }}{% set z %}b{% endset %}{%- set ns.a, b = 1, 2 %}\
                      {% raw %}{% set x = 1 %}{%- endraw %}{% for a, (b, c) in d -%}{% with a = f(1, 2), b = '=,' %}\
                      {% macro f(a, b=(1, 2)) %}{% call(a) f(b) %}{% call f(b) %}{% set z | replace('=', '') %}";
        let wanted = "{% set x =( '%}' ~ y )|_assigned-%}{# {% set a = 1 %} #}{{ x == 1 }}{% set z |_assigned%}b{% endset %}\
                      {%- set ns.a, b =( 1, 2 )|_stored%}{% raw %}{% set x = 1 %}{%- endraw %}\
                      {% for a, (b, c) in d -%}{% set a = (a)|_assigned -%}{% set b = (b)|_assigned -%}\
                      {% set c = (c)|_assigned -%}{% with a =( f(1, 2))|_assigned, b =( '=,' )|_assigned%}\
                      {% macro f(a, b=((1, 2))|_assigned) %}{% set a = (a)|_assigned %}{% set b = (b)|_assigned %}\
                      {% call(a) f(b) %}{% set a = (a)|_assigned %}{% call f(b) %}\
                      {% set z | replace('=', '') |_assigned%}";
        assert_eq!(insert_checks(source).unwrap(), wanted);
    }

    #[test]
    fn limits_are_on_what_a_rendering_may_have_used_itself() {
        let found = |ms, growth| find_exceeded_limit(Duration::from_millis(ms), growth);
        for (ms, growth) in [(2000, 0), (2000, 512 << 20), (20, 1 << 40)] {
            assert!(found(ms, growth).is_none());
        }
        assert!(found(21, (512 << 20) + 1).is_some_and(|limit| limit.contains("512 MiB")));
        assert!(found(2001, 0).is_some_and(|limit| limit.contains("2 seconds")));
    }
}
