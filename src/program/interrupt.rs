//! Ctrl-C, and a polite request to end.

use super::say::say;
use anyhow::{Context, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Whether the user wants the program to end.
#[derive(Clone)]
pub struct Interrupt {
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    seen: bool,
    answer: Option<&'static str>,
}

impl Interrupt {
    /// Listens from now on. The first Ctrl-C is answered on stderr; the second ends the program. All who ask
    /// share what is heard, and the answer of the first.
    pub fn listen(answer: Option<&'static str>) -> Result<Self> {
        static ONE: Mutex<Option<Interrupt>> = Mutex::new(None);
        let mut one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        match &*one {
            Some(interrupt) => Ok(interrupt.clone()),
            None => Ok(one.insert(Self::new(answer)?).clone()),
        }
    }

    fn new(answer: Option<&'static str>) -> Result<Self> {
        let shared = Arc::new((Mutex::new(State { seen: false, answer }), Condvar::new()));
        let interrupt = Self { shared };
        let listener = interrupt.clone();
        ctrlc::set_handler(move || {
            let mut state = listener.state();
            if state.seen {
                std::process::exit(130);
            }
            state.seen = true;
            if let Some(answer) = state.answer {
                say!("\n{answer}");
            }
            listener.shared.1.notify_all();
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Whether there was one.
    pub fn seen(&self) -> bool {
        self.state().seen
    }

    /// Gives no answer any more: there is nothing left to finish.
    pub fn say_nothing(&self) {
        self.state().answer = None;
    }

    /// Returns once there was one.
    pub fn wait(&self) {
        let mut state = self.state();
        while !state.seen {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
