//! Limits for chat templates, which come with a model and may loop, nest or grow without bound.

use crate::clock::{Stopwatch, thread_cpu_time};
use minijinja::machinery::{Token, WhitespaceConfig, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use std::cell::RefCell;
use std::io::{Error as IoError, Result as IoResult, Write};
use std::mem;
use std::ops::Range;
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
/// `{% set x =( y )|_assigned%}`, and `{% for x in y %}` is followed by `{% set x = (x)|_assigned %}`. The template
/// must be parsed as it was, too: with brackets that do not match, a value could end before its check.
///
/// Namespaces are the only mutable values, so a cyclic value, which is printed or compared without end, needs the
/// assignment of a namespace; and a string can double many times only through assignments.
///
/// # Errors
/// If the template is longer than [`MAX_SOURCE_BYTES`], or cannot be read.
pub(super) fn insert_checks(source: &str) -> Result<String, String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!("it is longer than {} KiB", MAX_SOURCE_BYTES >> 10));
    }
    let statements = find_statements(source).map_err(|error| error.to_string())?;
    let edits = statements.iter().flat_map(|statement| statement.insert_checks(source));
    Ok(apply_edits(source, edits))
}

/// A part of a template, and the text that takes its place.
pub(super) type Edit = (Range<usize>, String);

/// Applies edits, which are in the order of their places.
pub(super) fn apply_edits(source: &str, edits: impl IntoIterator<Item = Edit>) -> String {
    let (mut text, mut start) = (String::with_capacity(source.len()), 0);
    for (range, new) in edits {
        text += &source[start..range.start];
        text += &new;
        start = range.end;
    }
    text + &source[start..]
}

/// A statement of a template, between `{%` and `%}`.
pub(super) struct Statement<'a> {
    pub tokens: Vec<(Token<'a>, Range<usize>)>,
    /// The place of the closing bracket, with its mark for white space.
    end: Range<usize>,
}

/// Finds the statements of a template, by minijinja's own lexer: any other could be made to miss some.
///
/// # Errors
/// If the template has a token that is none of Jinja's, or a bracket without an end.
pub(super) fn find_statements(source: &str) -> Result<Vec<Statement<'_>>, Error> {
    let (mut statements, mut tokens) = (Vec::new(), Vec::new());
    for token in tokenize(source, false, SyntaxConfig, WhitespaceConfig::default()) {
        let (token, span) = token?;
        let range = span.start_offset as usize..span.end_offset as usize;
        match token {
            Token::BlockStart => tokens.clear(),
            Token::BlockEnd => {
                statements.push(Statement { tokens: mem::take(&mut tokens), end: range });
            }
            _ => tokens.push((token, range)),
        }
    }
    Ok(statements)
}

impl Statement<'_> {
    /// Inserts checks of the values that the statement assigns to names.
    fn insert_checks(&self, source: &str) -> Vec<Edit> {
        match self.tokens.first() {
            Some((Token::Ident("set"), _)) => self.check_set(),
            Some((Token::Ident("with"), _)) => self.check_values(0),
            Some((Token::Ident("for"), _)) => {
                let is_target = |token: &&Token| !matches!(token, Token::Ident("in"));
                let names = self.tokens[1..].iter().map(|(token, _)| token).take_while(is_target);
                vec![self.check_again(source, names.filter_map(as_name))]
            }
            Some((Token::Ident("macro"), _)) => self.check_parameters(source, 2),
            Some((Token::Ident("call"), _)) => self.check_parameters(source, 1),
            _ => Vec::new(),
        }
    }

    /// Checks the value of `set`: an assignment's, or the block up to `endset`.
    fn check_set(&self) -> Vec<Edit> {
        let is_end = |(token, _): &&(Token, _)| matches!(token, Token::Assign | Token::Pipe);
        let check = |open: &str, filter: &str| {
            let end = self.end.start;
            (end..end, format!("{open}|{filter}"))
        };
        match self.tokens.iter().find(is_end) {
            Some((Token::Assign, range)) => {
                let target = self.tokens.iter().take_while(|(_, at)| at.start < range.start);
                let is_attribute = target.into_iter().any(|(token, _)| matches!(token, Token::Dot));
                let filter = if is_attribute { STORED } else { ASSIGNED };
                vec![(range.end..range.end, "(".to_string()), check(")", filter)]
            }
            _ => vec![check("", ASSIGNED)],
        }
    }

    /// Checks the values of a list of names with values: those at this depth of brackets.
    fn check_values(&self, list_depth: i32) -> Vec<Edit> {
        let (mut depth, mut is_open, mut edits) = (0, false, Vec::new());
        for (token, range) in &self.tokens {
            let depth_before = depth;
            depth += nesting(token);
            let is_end = matches!(token, Token::Comma) && depth == list_depth
                || depth < list_depth && depth_before == list_depth;
            if is_open && is_end {
                edits.push((range.start..range.start, format!(")|{ASSIGNED}")));
                is_open = false;
            } else if matches!(token, Token::Assign) && depth == list_depth {
                edits.push((range.end..range.end, "(".to_string()));
                is_open = true;
            }
        }
        if is_open {
            edits.push((self.end.start..self.end.start, format!(")|{ASSIGNED}")));
        }
        edits
    }

    /// Checks the parameters of `macro` or `call`, whose list begins at this token if there is one, and their defaults.
    fn check_parameters(&self, source: &str, list_start: usize) -> Vec<Edit> {
        let list = &self.tokens[list_start.min(self.tokens.len())..];
        if !matches!(list.first(), Some((Token::ParenOpen, _))) {
            return Vec::new();
        }
        let (mut depth, mut names) = (0, Vec::new());
        for pair in list.windows(2) {
            let [(token, _), (next, _)] = pair else { continue };
            depth += nesting(token);
            if depth == 0 {
                break;
            }
            if depth == 1 && matches!(token, Token::ParenOpen | Token::Comma) {
                names.extend(as_name(next));
            }
        }
        let mut edits = if list_start == 2 { self.check_values(1) } else { Vec::new() };
        edits.push(self.check_again(source, names.into_iter()));
        edits
    }

    /// Checks values that the statement has already assigned to these names, by further assignments behind it.
    fn check_again<'n>(&self, source: &str, names: impl Iterator<Item = &'n str>) -> Edit {
        let mark = source[self.end.clone()].trim_end_matches("%}");
        let checks = names.map(|name| format!("{{% set {name} = ({name})|{ASSIGNED} {mark}%}}"));
        (self.end.end..self.end.end, checks.collect())
    }
}

/// The name that a token is.
fn as_name<'a>(token: &Token<'a>) -> Option<&'a str> {
    if let Token::Ident(name) = token { Some(name) } else { None }
}

/// The brackets that a token opens: -1 for one that it closes.
fn nesting(token: &Token) -> i32 {
    match token {
        Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => 1,
        Token::ParenClose | Token::BracketClose | Token::BraceClose => -1,
        _ => 0,
    }
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
    let arguments: Vec<Value> = std::iter::once(text).chain(options.0).collect();
    state.apply_filter(INDENT, &arguments)
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
    let arguments: Vec<Value> = std::iter::once(parts).chain(options.0).collect();
    state.apply_filter(JOIN, &arguments)
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
