//! Panics as errors: Burn and graphics drivers panic where a device is lost or its memory is full.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Characters of a message's start and end that are kept: those of drivers can be pages, the last line of which is the
/// cause of the others.
const KEPT: [usize; 2] = [200, 400];

/// The words between a failure and its cause in the message of a driver or of CubeCL.
const CAUSE: &str = " Caused by: ";

/// The words before places in the code in such a message.
const PLACES: [&str; 3] = [" Backtrace", " No backtrace available", " Asked at:"];

/// Words of a cause, and advice about it.
const ADVICE: [(&str, &str); 3] = [
    (
        "can't allocate buffer of size",
        "a buffer of the device is smaller: use fewer games or completions at a time, a smaller model, or the CPU",
    ),
    (
        "out of device memory",
        "use fewer games or completions at a time, a smaller model, or another device",
    ),
    ("Too much shared memory requested", "use a model with smaller heads, or the CPU"),
];

/// The start of the names of CubeCL's threads, each of which works for a device. They swallow panics of work that
/// nothing waits for.
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];

/// The messages of the standard library before it aborts the process.
const LAST_WORDS: [&str; 2] =
    ["panic in a destructor during cleanup", "panic in a function that cannot unwind"];

/// The first panic of a device's thread that no error tells of yet.
static UNTOLD: Mutex<Option<Panic>> = Mutex::new(None);

/// The last panic that can unwind.
static LAST: Mutex<Option<Panic>> = Mutex::new(None);

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panic(String);

impl Panic {
    /// The panic with this payload: its message in one line.
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => text,
            (None, Some(text)) => text.as_str(),
            (None, None) => "a panic without a message",
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let line = concise(&words.join(" "));
        let start = line.char_indices().nth(KEPT[0]).map(|(at, _)| at);
        let end = line.char_indices().rev().nth(KEPT[1] - 1).map(|(at, _)| at);
        match (start, end) {
            (Some(start), Some(end)) if start < end => {
                Self(format!("{} ... {}", &line[..start], &line[end..]))
            }
            _ => Self(line),
        }
    }
}

/// Shortens the message of a driver or of CubeCL to the first failure of a chain and the cause of all, without places,
/// and adds advice if there is any.
fn concise(line: &str) -> String {
    let without_places = |part: &str| {
        let ends = PLACES.iter().filter_map(|words| part.find(words));
        part[..ends.min().unwrap_or(part.len())].trim_end_matches('.').to_string()
    };
    let links: Vec<String> = line.split(CAUSE).map(without_places).collect();
    let known = links.iter().enumerate().find_map(|(at, link)| {
        let (_, advice) = ADVICE.iter().find(|(words, _)| link.contains(words))?;
        Some((at, advice))
    });
    match known {
        Some((0, advice)) => format!("{}; {advice}", links[0]),
        Some((at, advice)) => format!("{}; {advice}", joined(&links[0], &links[at])),
        None if links.len() > 2 => joined(&links[0], &links[links.len() - 1]),
        None => links.join(CAUSE),
    }
}

/// Joins a failure, up to its first colon, with its cause.
fn joined(what: &str, cause: &str) -> String {
    match what.split_once(": ") {
        Some((what, _)) => format!("{what}: {cause}"),
        None => cause.to_string(),
    }
}

/// Does some work. A panic becomes an error.
///
/// # Errors
/// If there was a panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panic::new(&*payload))
}

/// Does some work on devices. As [`caught`], but a panic of a device's thread meanwhile is an error too, as the results
/// of the device cannot be relied on then.
///
/// # Errors
/// If there was a panic.
pub fn caught_on_devices<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    let outcome = caught(work);
    // It is the cause of later ones.
    let untold = lock(&UNTOLD).take();
    untold.map_or(outcome, Err)
}

/// Keeps panics off stderr from now on, for a program that reports them as errors; the log has them, with their places.
/// Where the process cannot go on after one, `fail` reports it, and the process exits with 1.
pub fn keep_silent(fail: fn(&Panic)) {
    set_hook(Box::new(move |info| heed(info, fail)));
}

fn heed(info: &PanicHookInfo, fail: fn(&Panic)) {
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => tracing::debug!("{info}\n{trace}"),
        _ => tracing::debug!("{info}"),
    }
    let panic = Panic::new(info.payload());
    if LAST_WORDS.contains(&panic.0.as_str()) {
        fail(lock(&LAST).as_ref().unwrap_or(&panic));
        std::process::exit(1);
    }
    *lock(&LAST) = Some(panic.clone());
    let is_of_a_device = |name: &str| DEVICE_THREADS.iter().any(|start| name.starts_with(start));
    if thread::current().name().is_some_and(is_of_a_device) {
        lock(&UNTOLD).get_or_insert(panic);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        let lines = "wgpu error: Validation Error\n\nCaused by:\n    Not enough memory left.\nBacktrace:\n  0: main\n";
        let found = Panic::new(&lines.to_string());
        assert_eq!(
            found.to_string(),
            "wgpu error: Validation Error Caused by: Not enough memory left"
        );
        let (start, end) = ("é".repeat(KEPT[0]), "ü".repeat(KEPT[1]));
        let whole = format!("{start}{end}");
        assert_eq!(Panic::new(&whole).to_string(), whole);
        let long = format!("{start}x{end}");
        assert_eq!(Panic::new(&long).to_string(), format!("{start} ... {end}"));
        assert_eq!(Panic::new(&7).to_string(), "a panic without a message");
    }

    #[test]
    fn a_chain_of_failures_is_told_by_its_cause_with_advice() {
        let text = |message: &str| Panic::new(&message.to_string()).to_string();
        let chain = |cause: &str| {
            format!(
                "the device failed: Several failures at once\n\nCaused by:\n  The bytes were never written\n  \
                 skipped `SummaryKernel`: it needed memory\n\nCaused by:\n  An IO error happened\n\nCaused by:\n  \
                 {cause}\nNo backtrace available\nAsked at:\nNo backtrace available"
            )
        };
        for (cause, expected) in [
            ("the queue is gone", "the device failed: the queue is gone"),
            (
                "can't allocate buffer of size: 160000000",
                "the device failed: can't allocate buffer of size: 160000000; a buffer of the device is smaller: use \
                 fewer games or completions at a time, a smaller model, or the CPU",
            ),
            (
                "Too much shared memory requested.\nRequested 33104 bytes, maximum 32768 bytes available.\nBacktrace",
                "the device failed: Too much shared memory requested. Requested 33104 bytes, maximum 32768 bytes \
                 available; use a model with smaller heads, or the CPU",
            ),
        ] {
            assert_eq!(text(&chain(cause)), expected);
        }
        let alone = text("out of device memory allocating 7 bytes\nNo backtrace available");
        assert!(alone.starts_with("out of device memory allocating 7 bytes; use fewer"), "{alone}");
    }

    #[test]
    fn work_that_panics_is_an_error() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| panic!("lost {}", 1)).unwrap_err().to_string(), "lost 1");
    }
}
