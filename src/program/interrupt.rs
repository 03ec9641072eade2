//! Handling of Ctrl-C and other termination signals: the first lets the program finish its work, the second ends it.

use super::output::eprint_line;
use anyhow::{Context, Result};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a second signal counts as a duplicate, since some launchers signal the process and its group.
const DUPLICATE_TIME: Duration = Duration::from_millis(500);

/// Exit status of a program ended by Ctrl-C, by shell convention: 128 + SIGINT.
pub const INTERRUPTED_STATUS: i32 = 130;

/// A listener for Ctrl-C.
#[derive(Clone)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

/// The state that the copies of a listener share.
struct Shared {
    state: Mutex<State>,
    /// Wakes the threads that wait for the first signal.
    arrived: Condvar,
}

struct State {
    /// Time of the first signal; `None` until it arrives.
    first_signal: Option<Instant>,
    answer: Option<&'static str>,
}

/// A signal, by those before it.
#[derive(Debug, PartialEq)]
enum Signal {
    First,
    /// A duplicate of the first.
    Duplicate,
    Second,
}

impl State {
    fn receive(&mut self, now: Instant) -> Signal {
        match self.first_signal {
            None => {
                self.first_signal = Some(now);
                Signal::First
            }
            Some(first) if now - first < DUPLICATE_TIME => Signal::Duplicate,
            Some(_) => Signal::Second,
        }
    }
}

impl Interrupt {
    /// Starts listening. The first Ctrl-C prints `answer` on stderr; the second ends the program. A process has one
    /// listener, with the answer of the first call.
    pub fn listen(answer: Option<&'static str>) -> Result<Self> {
        static LISTENER: Mutex<Option<Interrupt>> = Mutex::new(None);
        let mut first = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(interrupt) = &*first {
            return Ok(interrupt.clone());
        }
        let state = Mutex::new(State { first_signal: None, answer });
        let interrupt = Self { shared: Arc::new(Shared { state, arrived: Condvar::new() }) };
        let listener = interrupt.clone();
        #[cfg(unix)]
        let ignored = ignored_signals();
        ctrlc::set_handler(move || {
            let signal = listener.state().receive(Instant::now());
            match signal {
                Signal::First => listener.handle_first_signal(),
                Signal::Duplicate => {}
                Signal::Second => std::process::exit(INTERRUPTED_STATUS),
            }
        })
        .map_err(|error| match error {
            // Its own text hides the cause.
            ctrlc::Error::System(cause) => anyhow::Error::new(cause),
            error => error.into(),
        })
        .context("cannot listen for Ctrl-C")?;
        #[cfg(unix)]
        ignore_signals(&ignored);
        Ok(first.insert(interrupt).clone())
    }

    /// Treats the end of stdin as Ctrl-C, unless a signal has arrived already: the parent process asks for a stop, or
    /// was killed.
    pub fn follow_stdin(&self) -> Result<()> {
        let listener = self.clone();
        let follower = std::thread::Builder::new().spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::thread::sleep(DUPLICATE_TIME);
            let signal = listener.state().receive(Instant::now());
            if signal == Signal::First {
                listener.handle_first_signal();
            }
        });
        follower.map(drop).context("cannot listen to stdin")
    }

    /// Wakes the threads that wait for a signal, and prints the answer on a thread of its own: while nobody reads a
    /// full pipe, or Ctrl-S holds the terminal, printing takes for ever, and neither the run nor the next signal may
    /// wait for it.
    fn handle_first_signal(&self) {
        self.shared.arrived.notify_all();
        let Some(answer) = self.state().answer else { return };
        // Without a thread there is no answer.
        let _ = std::thread::Builder::new().spawn(move || eprint_line!("\n{answer}"));
    }

    /// Whether a signal has arrived.
    pub fn has_signal(&self) -> bool {
        self.state().first_signal.is_some()
    }

    /// Stops printing the answer, since there is nothing left to finish.
    pub fn silence(&self) {
        self.state().answer = None;
    }

    /// Blocks until a signal arrives.
    pub fn wait(&self) {
        let mut state = self.state();
        while state.first_signal.is_none() {
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals that this process was started to ignore, which must remain so: `nohup` ignores the end of a terminal, `&` in
/// a script ignores Ctrl-C.
#[cfg(unix)]
fn ignored_signals() -> Vec<libc::c_int> {
    let is_ignored = |signal: &libc::c_int| {
        // SAFETY: all bits 0 are a valid `sigaction`, and without a new action the call only reads.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(*signal, std::ptr::null(), &mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
        }
    };
    [libc::SIGHUP, libc::SIGINT, libc::SIGTERM].into_iter().filter(is_ignored).collect()
}

/// Ignores signals again.
#[cfg(unix)]
fn ignore_signals(signals: &[libc::c_int]) {
    for signal in signals {
        // SAFETY: ignoring a signal has no preconditions.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_delivered_twice_counts_once() {
        let mut state = State { first_signal: None, answer: None };
        let first = Instant::now();
        let received = [0, 0, 499, 500].map(|ms| state.receive(first + Duration::from_millis(ms)));
        assert_eq!(received, [Signal::First, Signal::Duplicate, Signal::Duplicate, Signal::Second]);
    }
}
