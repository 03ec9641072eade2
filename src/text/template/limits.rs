//! Limits for chat templates, which come with a model and may loop, nest or grow without bound.

use crate::clock::{Stopwatch, thread_cpu_time};
use minijinja::value::{Kwargs, StringInput, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja::{escape_formatter, filters, tests as jinja_tests};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io::{Error as IoError, Result as IoResult, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Maximum size of a template in bytes.
const MAX_SOURCE_BYTES: usize = 128 << 10;
/// Maximum size in bytes of a rendered text, and of all strings within a computed value.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Maximum size in bytes of all texts that a rendering writes, of which macros and blocks write some again.
const MAX_WRITTEN_BYTES: usize = 8 * MAX_TEXT_BYTES;
/// Maximum number of instructions of a rendering.
const MAX_INSTRUCTIONS: u64 = 20_000_000;
/// Stack size of a rendering in bytes, since expressions may nest as deep as [`MAX_SOURCE_BYTES`] permits.
const STACK_BYTES: usize = 512 << 20;
/// Maximum growth of the process during a rendering, bytes.
const MAX_GROWTH_BYTES: u64 = 512 << 20;
/// Growth counts against a rendering only once it has used this much CPU time; before, other threads caused it.
const MIN_GROWTH_TIME: Duration = Duration::from_millis(20);
/// Maximum CPU time of a rendering, or duration where that is unknown; fuel ends it earlier unless single instructions
/// are slow.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of values within a computed value.
const MAX_VALUES: usize = 1 << 20;
/// Maximum size in bytes of the characters that are stripped from a text, each of which is compared with each of them.
const MAX_STRIPPED_BYTES: usize = 1 << 10;
/// Filter that checks a value once it is computed.
pub(super) const COMPUTED: &str = "_computed";
/// Filter that checks a value before it is stored in a namespace.
pub(super) const STORED: &str = "_stored";

/// Rejects a template that is longer than [`MAX_SOURCE_BYTES`].
pub(super) fn check_source(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!("it is longer than {} KiB", MAX_SOURCE_BYTES >> 10));
    }
    Ok(())
}

/// Runs a rendering on its own thread with a deep stack, and gives up on it beyond the limits: then `exceeded` is set
/// to the limit, and no further rendering is run.
///
/// # Errors
/// Description of the rendering's error, or of the exceeded limit.
pub(super) fn run(
    exceeded: &OnceLock<String>,
    render: impl FnOnce() -> Result<String, Error> + Send + 'static,
) -> Result<String, String> {
    if let Some(limit) = exceeded.get() {
        return Err(limit.clone());
    }
    let before = resident_bytes();
    let (sender, receiver) = channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&given_up);
    let task = move || {
        GIVEN_UP.set(Some(flag));
        // The receiver is gone if a limit was exceeded.
        let _ = sender.send(render());
    };
    let thread = thread::Builder::new().name("chat template".into()).stack_size(STACK_BYTES);
    let thread =
        thread.spawn(task).map_err(|error| format!("no thread to render it on: {error}"))?;
    let mut stopwatch = Stopwatch::start();
    let limit = loop {
        match receiver.recv_timeout(Duration::from_millis(5)) {
            Ok(Err(error)) if error.kind() == ErrorKind::OutOfFuel => break error.to_string(),
            Ok(result) => return result.map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Disconnected) => return Err("rendering panicked".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let time = thread_cpu_time(&thread).unwrap_or_else(|| stopwatch.elapsed());
        if let Some(limit) = find_exceeded_limit(time, resident_bytes().saturating_sub(before)) {
            break limit;
        }
    };
    given_up.store(true, Ordering::Relaxed);
    Err(exceeded.get_or_init(|| limit).clone())
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
    /// Number of bytes that this thread's rendering has written.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
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

/// Counts bytes that a rendering is about to write.
fn count_written(bytes: usize) -> Result<(), Error> {
    let written = WRITTEN.get().saturating_add(bytes);
    WRITTEN.set(written);
    if written > MAX_WRITTEN_BYTES { Err(too_long_error("its text")) } else { Ok(()) }
}

/// Sets fuel, and replaces or removes filters that make long texts out of short templates, or take long.
pub(super) fn apply(environment: &mut Environment<'_>, format: FormatPython, call: CallMethod) {
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_formatter(move |to, state, value| {
        check_given_up()?;
        let text = format(value)?;
        let length = text.as_deref().or(value.as_str()).map_or(size_of::<Value>(), str::len);
        // A character becomes six at most where texts are escaped.
        let growth = if matches!(state.auto_escape(), AutoEscape::None) { 1 } else { 6 };
        count_written(length.saturating_mul(growth))?;
        match text {
            Some(text) => to.write_str(&text).map_err(Error::from),
            None => escape_formatter(to, state, value),
        }
    });
    environment.add_filter(COMPUTED, |value| check_value(value, true));
    environment.add_filter(STORED, |value| check_value(value, false));
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("trim", trim);
    environment.add_test("in", |state: &State, value: &Value, list: &Value| {
        check_given_up()?;
        jinja_tests::is_in(state, value, list)
    });
    environment.set_unknown_method_callback(move |state, value, name, arguments| {
        call(value, name, arguments)
            .map_or_else(|| call_bounded_method(state, value, name, arguments), Ok)
    });
    // Jinja has no `chain`: a dictionary that is chained with itself again and again is searched without end.
    for name in ["batch", "slice", "format", "chain"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
}

/// Rejects values that are too large, and those that contain a namespace, unless the namespace is the whole value and
/// `may_be_namespace`: a cyclic value, which is printed or compared without end, needs one. What would be computed
/// anew by each use, such as `[1] * 9`, becomes a list.
fn check_value(value: Value, may_be_namespace: bool) -> Result<Value, Error> {
    check_given_up()?;
    let value = match value.kind() {
        // Rejected below if it has more parts than this.
        ValueKind::Iterable => Value::from_iter(value.try_iter()?.take(MAX_VALUES + 1)),
        _ => value,
    };
    let is_namespace = |value: &Value| {
        value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
    };
    let (mut parts, mut bytes) = (MAX_VALUES, MAX_TEXT_BYTES);
    let mut open = vec![(value.clone(), may_be_namespace)];
    while let Some((value, may_be_namespace)) = open.pop() {
        let length = value.as_str().map_or(0, str::len);
        bytes = bytes.checked_sub(length).ok_or_else(|| too_long_error("a text"))?;
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            continue;
        }
        check_given_up()?;
        if is_namespace(&value) && !may_be_namespace {
            return Err(refusal("a namespace is stored in another value"));
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
fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let width = width.map_or_else(|| options.get("width"), |width| Ok(Some(width)))?;
    let lines = text.as_str().split('\n').count();
    check_length(width.unwrap_or(0).saturating_mul(lines))?;
    filters::indent(text, width, first, blank, options)
}

/// Rejects a string of `bytes` bytes if it is too long, as does [`check_given_up`], since filters may call filters.
pub(super) fn check_length(bytes: usize) -> Result<(), Error> {
    check_given_up()?;
    if bytes > MAX_TEXT_BYTES { Err(too_long_error("a text")) } else { Ok(()) }
}

/// Rejects the replacement of `from` by `to` in a string, or the insertion of `to` between its characters, if the
/// result is too long.
fn check_replacement(text: &str, from: &str, to: &str) -> Result<(), Error> {
    check_length(text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len()))
}

/// The filter `replace` with a bounded result.
fn replace(
    state: &State,
    text: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    check_replacement(text.as_str(), from.as_str(), to.as_str())?;
    filters::replace(state, text, from, to)
}

/// The filter `join` with a bounded result.
fn join(state: &State, parts: &Value, between: Option<StringInput<'_>>) -> Result<Value, Error> {
    let length = between.as_ref().map_or(0, |between| between.as_str().len());
    let count = parts.as_str().map_or_else(|| parts.len().unwrap_or(0), |it| it.chars().count());
    check_length(count.saturating_mul(length))?;
    filters::join(state, parts, between)
}

/// The filter `trim`, which takes time for each character that it strips.
fn trim(text: StringInput<'_>, stripped: Option<Cow<'_, str>>) -> Result<Value, Error> {
    check_stripped(stripped.as_deref())?;
    Ok(filters::trim(text, stripped))
}

/// Rejects too many characters to strip.
fn check_stripped(characters: Option<&str>) -> Result<(), Error> {
    if characters.is_some_and(|characters| characters.len() > MAX_STRIPPED_BYTES) {
        return Err(refusal("too many characters are stripped from a text"));
    }
    check_given_up()
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
            return join(state, parts, Some(StringInput::new(state, value)?));
        }
        ("format", Some(text), _) => check_format(text, arguments)?,
        ("strip" | "lstrip" | "rstrip", Some(_), _) => {
            check_stripped(arguments.first().and_then(Value::as_str))?;
        }
        // As in Python; the crate counts without end.
        ("count", Some(text), [part]) if part.as_str() == Some("") => {
            return Ok(Value::from(text.chars().count() + 1));
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Rejects a format whose widths, precisions or arguments make too long a text, or whose widths come from them.
fn check_format(text: &str, arguments: &[Value]) -> Result<(), Error> {
    let longest = arguments.iter().map(|argument| argument.to_string().len()).max().unwrap_or(0);
    check_length(text.matches('{').count().saturating_mul(longest))?;
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
pub(super) fn refusal(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Rejects a rendered text that is too long.
pub(super) fn check_text(text: &str) -> Result<(), Error> {
    if text.len() > MAX_TEXT_BYTES { Err(too_long_error("its text")) } else { Ok(()) }
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
    /// Returns the text, unless it was truncated or writing it has failed, which is an error of this kind.
    pub(super) fn finish<E: ToString>(
        self,
        written: Result<(), E>,
        kind: ErrorKind,
    ) -> Result<String, Error> {
        if self.is_full {
            return Err(too_long_error("its text"));
        }
        written.map_err(|error| Error::new(kind, error.to_string()))?;
        Ok(String::from_utf8(self.text).unwrap_or_default())
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
            assert!(check_format(text, &[]).is_err(), "{text}");
        }
        let long = Value::from("a".repeat(1 << 20));
        assert!(check_format(&"{0}".repeat(17), std::slice::from_ref(&long)).is_err());
        assert!(check_format("{0}{1}", &[Value::from(1), long]).is_ok());
        for text in ["", "{} and {:>10}", "{{{0:.3f}}} in 2026", "{a[key]}"] {
            assert!(check_format(text, &[]).is_ok(), "{text}");
        }
    }

    #[test]
    fn nothing_is_rendered_after_a_rendering_that_exceeded_a_limit() {
        let exceeded = OnceLock::new();
        let error = run(&exceeded, || Err(refusal("no"))).unwrap_err();
        assert!(error.contains("no"), "{error}");
        assert_eq!(run(&exceeded, || Ok("a".into())).as_deref(), Ok("a"));
        let error = run(&exceeded, || Err(ErrorKind::OutOfFuel.into())).unwrap_err();
        assert!(error.contains("out of fuel"), "{error}");
        assert_eq!(run(&exceeded, || Ok("a".into())), Err(error));
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
