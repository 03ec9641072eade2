//! Ctrl-C during a run.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The handling of Ctrl-C while it lives: the first ends the run after its iteration, and the second raises
/// `KeyboardInterrupt` as soon as Python code runs.
///
/// Environments and reward functions run on the thread that Python's own handler interrupts: it would raise in the middle
/// of a step, and the iteration would be lost.
pub struct Interrupts {
    /// Whether Ctrl-C has been pressed.
    is_interrupted: Arc<AtomicBool>,
    /// The handler that replaces Python's own, which is to return.
    handler: Option<Py<PyAny>>,
}

impl Interrupts {
    /// Replaces Python's own handler. A handler of the user stays, and so does Python's on threads other than the main
    /// one, which it does not interrupt.
    ///
    /// # Errors
    /// If a signal arrives meanwhile.
    pub fn new() -> PyResult<Self> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let handler = Python::attach(|py| {
            let threading = py.import("threading")?;
            let thread = threading.call_method0("current_thread")?;
            if !thread.is(&threading.call_method0("main_thread")?) {
                return PyResult::Ok(None);
            }
            if !handler_of_sigint(py)?.is(&default_handler(py)?) {
                return Ok(None);
            }
            let is_interrupted = is_interrupted.clone();
            let handler = move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
                raise_if(is_interrupted.swap(true, Ordering::Relaxed))
            };
            let handler = PyCFunction::new_closure(py, None, None, handler)?.into_any();
            set_handler(py, &handler)?;
            Ok(Some(handler.unbind()))
        })?;
        Ok(Self { is_interrupted, handler })
    }

    /// Executes the handlers of signals that have arrived.
    ///
    /// # Errors
    /// `KeyboardInterrupt` from the first Ctrl-C on, and what the handlers raise.
    pub fn check(&self) -> PyResult<()> {
        Python::attach(|py| py.check_signals())?;
        raise_if(self.is_interrupted.load(Ordering::Relaxed))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        if let Some(handler) = &self.handler {
            Python::attach(|py| {
                let restore = || {
                    // An environment or a callback may have set another one.
                    if !handler_of_sigint(py)?.is(handler) {
                        return Ok(());
                    }
                    set_handler(py, &default_handler(py)?)
                };
                // A Ctrl-C at this moment is an error of the first attempt.
                if let Err(error) = restore().or_else(|_| restore()) {
                    error.write_unraisable(py, None);
                }
            });
        }
    }
}

/// Raises `KeyboardInterrupt` if `is_raised`.
fn raise_if(is_raised: bool) -> PyResult<()> {
    if is_raised { Err(PyKeyboardInterrupt::new_err(())) } else { Ok(()) }
}

fn handler_of_sigint(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let signal = py.import("signal")?;
    signal.call_method1("getsignal", (signal.getattr("SIGINT")?,))
}

/// Python's own handler of Ctrl-C.
fn default_handler(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("signal")?.getattr("default_int_handler")
}

fn set_handler<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<()> {
    let signal = py.import("signal")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, handler)).map(drop)
}
