//! Panics as errors: Burn and graphics drivers panic where a device is lost or its memory is full.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Maximum number of characters of the start of a message that are kept. Messages of drivers can be pages
/// long, with the root cause in the last line.
const MAX_START_CHARS: usize = 200;
/// Maximum number of characters of the end of a message that are kept.
const MAX_END_CHARS: usize = 400;

/// Text between an error and its cause in messages of drivers and CubeCL.
const CAUSE_MARK: &str = " Caused by: ";

/// Text before code locations in such messages.
const LOCATION_MARKS: [&str; 3] = [" Backtrace", " No backtrace available", " Asked at:"];

/// Text of a cause, with advice about it.
const ADVICE_BY_CAUSE: [(&str, &str); 3] = [
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

/// Prefixes of the names of CubeCL's device threads, which swallow panics of work that nothing waits for.
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];

/// Messages of the standard library before it aborts the process.
const ABORT_MESSAGES: [&str; 2] =
    ["panic in a destructor during cleanup", "panic in a function that cannot unwind"];

/// Panics of device threads.
static DEVICE_PANICS: Mutex<DevicePanics> = Mutex::new(DevicePanics::NONE);

/// Last panic that can unwind.
static LAST_PANIC: Mutex<Option<Panic>> = Mutex::new(None);

/// Panics of device threads. Each concerns all work on devices that is under way, whichever reports it first.
struct DevicePanics {
    count: u64,
    first_unreported: Option<Panic>,
    last_reported: Option<Panic>,
}

impl DevicePanics {
    const NONE: Self = Self { count: 0, first_unreported: None, last_reported: None };

    fn record(&mut self, panic: Panic) {
        self.count += 1;
        // An earlier panic is the cause of later ones.
        self.first_unreported.get_or_insert(panic);
    }

    /// Returns the panic to report for work that began after `num_earlier` panics: the first unreported one, even if it
    /// is older, or else the last reported one if the work was under way.
    fn report(&mut self, num_earlier: u64) -> Option<Panic> {
        let new = self.first_unreported.take();
        let concerns_work = new.is_some() || self.count > num_earlier;
        self.last_reported = new.or(self.last_reported.take());
        self.last_reported.clone().filter(|_| concerns_work)
    }
}

/// A caught panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panic(String);

impl Panic {
    /// Creates a panic from its payload: its message on one line.
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a message");
        let words: Vec<&str> = text.split_whitespace().collect();
        let line = shorten(&words.join(" "));
        let start = line.char_indices().nth(MAX_START_CHARS).map(|(at, _)| at);
        let end = line.char_indices().rev().nth(MAX_END_CHARS - 1).map(|(at, _)| at);
        match (start, end) {
            (Some(start), Some(end)) if start < end => {
                Self(format!("{} ... {}", &line[..start], &line[end..]))
            }
            _ => Self(line),
        }
    }
}

/// Shortens a message of a driver or CubeCL to the first error of a chain and the root cause, without code locations,
/// and adds advice if there is any.
fn shorten(line: &str) -> String {
    let without_locations = |part: &str| {
        let ends = LOCATION_MARKS.iter().filter_map(|words| part.find(words));
        part[..ends.min().unwrap_or(part.len())].trim_end_matches('.').to_string()
    };
    let links: Vec<String> = line.split(CAUSE_MARK).map(without_locations).collect();
    let known = links.iter().enumerate().find_map(|(at, link)| {
        let (_, advice) = ADVICE_BY_CAUSE.iter().find(|(words, _)| link.contains(words))?;
        Some((at, advice))
    });
    match known {
        Some((0, advice)) => format!("{}; {advice}", links[0]),
        Some((at, advice)) => format!("{}; {advice}", join_cause(&links[0], &links[at])),
        None if links.len() > 2 => join_cause(&links[0], &links[links.len() - 1]),
        None => links.join(CAUSE_MARK),
    }
}

/// Joins an error, up to its first colon, with its cause.
fn join_cause(error: &str, cause: &str) -> String {
    match error.split_once(": ") {
        Some((start, _)) => format!("{start}: {cause}"),
        None => cause.to_string(),
    }
}

/// Runs `work`; a panic becomes an error.
///
/// # Errors
/// If there was a panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panic::new(&*payload))
}

/// Runs `work` on devices. Like [`catch_panic`], but a panic of a device thread that no error has reported yet is also
/// an error, since the results of the device are then unreliable.
///
/// # Errors
/// If there was a panic.
pub fn catch_device_panics<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    DeviceWatch { num_earlier: u64::MAX }.catch_panic(work)
}

/// Watches the threads of devices during a run, so that the run ends if one of them panics. It ends even if another run
/// has already reported the panic, since a thread does not tell which run it serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceWatch {
    /// Number of panics before the watch.
    num_earlier: u64,
}

impl DeviceWatch {
    /// Starts the watch.
    pub fn start() -> Self {
        Self { num_earlier: lock(&DEVICE_PANICS).count }
    }

    /// Runs a part of the run's work. Like [`catch_panic`], but a panic of a device thread since the start is an error.
    ///
    /// # Errors
    /// If there was a panic.
    pub fn catch_panic<T>(self, work: impl FnOnce() -> T) -> Result<T, Panic> {
        let outcome = catch_panic(work);
        lock(&DEVICE_PANICS).report(self.num_earlier).map_or(outcome, Err)
    }
}

/// Keeps panics off stderr from now on, for a program that reports them as errors; the log has them with their
/// locations. If the process cannot continue after a panic, `report` reports it and the process exits with 1.
pub fn silence_panics(report: fn(&Panic)) {
    set_hook(Box::new(move |info| record_panic(info, report)));
}

fn record_panic(info: &PanicHookInfo, report: fn(&Panic)) {
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => tracing::debug!("{info}\n{trace}"),
        _ => tracing::debug!("{info}"),
    }
    let panic = Panic::new(info.payload());
    if ABORT_MESSAGES.contains(&panic.0.as_str()) {
        report(lock(&LAST_PANIC).as_ref().unwrap_or(&panic));
        std::process::exit(1);
    }
    *lock(&LAST_PANIC) = Some(panic.clone());
    let is_device_thread = |name: &str| DEVICE_THREADS.iter().any(|start| name.starts_with(start));
    if thread::current().name().is_some_and(is_device_thread) {
        lock(&DEVICE_PANICS).record(panic);
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
        let (start, end) = ("é".repeat(MAX_START_CHARS), "ü".repeat(MAX_END_CHARS));
        let whole = format!("{start}{end}");
        assert_eq!(Panic::new(&whole).to_string(), whole);
        let long = format!("{start}x{end}");
        assert_eq!(Panic::new(&long).to_string(), format!("{start} ... {end}"));
        assert_eq!(Panic::new(&7).to_string(), "a panic without a message");
    }

    #[test]
    fn a_chain_of_errors_is_reported_by_its_root_cause_with_advice() {
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
        assert_eq!(catch_panic(|| 3), Ok(3));
        assert_eq!(catch_panic(|| panic!("lost {}", 1)).unwrap_err().to_string(), "lost 1");
    }

    #[test]
    fn all_runs_under_way_report_a_panic_of_a_device() {
        let lost = |what: &str| Some(Panic::new(&what.to_string()));
        let mut panics = DevicePanics::NONE;
        assert_eq!(panics.report(0), None);
        ["first", "second"].into_iter().filter_map(lost).for_each(|panic| panics.record(panic));
        // Two runs, one of them twice, and the work around them.
        for _ in 0..3 {
            assert_eq!(panics.report(0), lost("first"));
        }
        assert_eq!(panics.report(u64::MAX), None);
        // A run that begins now is spared, unless there is another panic before its first step.
        let before = panics.count;
        assert_eq!(panics.report(before), None);
        panics.record(lost("third").unwrap());
        assert_eq!(panics.report(panics.count), lost("third"));
        assert_eq!((panics.report(before), panics.report(0)), (lost("third"), lost("third")));
        assert_eq!(panics.report(panics.count), None);
    }
}
