//! Ctrl-C during a run.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The handling of Ctrl-C while it lives: the first ends the run after its iteration, and the second raises
/// `KeyboardInterrupt` as soon as Python code runs.
///
/// Environments and reward functions run on the thread that Python's own handler interrupts: it would raise in the
/// middle of a step, and the iteration would be lost. A run within a run, as in a callback, ends with the outer one.
pub struct Interrupts {
    /// Whether Ctrl-C has been pressed.
    is_interrupted: Arc<AtomicBool>,
    /// The handler that replaces Python's own, which is to return.
    handler: Option<Py<Handler>>,
}

/// The handler of Ctrl-C.
#[pyclass(frozen)]
struct Handler {
    is_interrupted: Arc<AtomicBool>,
    /// Whether its run goes on. If Python code saves the handler and puts it back later, it acts as Python's own.
    is_live: AtomicBool,
}

#[pymethods]
impl Handler {
    /// Called with the number of the signal and the frame that it interrupts.
    #[pyo3(signature = (*_arguments))]
    fn __call__(&self, _arguments: &Bound<PyTuple>) -> PyResult<()> {
        let is_second = self.is_interrupted.swap(true, Ordering::Relaxed);
        raise_if(is_second || !self.is_live.load(Ordering::Relaxed))
    }
}

impl Interrupts {
    /// Replaces Python's own handler. A handler of the user stays, and so does Python's on threads other than the main
    /// one, which it does not interrupt.
    ///
    /// # Errors
    /// If a signal arrives meanwhile.
    pub fn new() -> PyResult<Self> {
        Python::attach(|py| {
            let mut this = Self { is_interrupted: Arc::default(), handler: None };
            let threading = py.import("threading")?;
            let thread = threading.call_method0("current_thread")?;
            if !thread.is(&threading.call_method0("main_thread")?) {
                return Ok(this);
            }
            let present = handler_of_sigint(py)?;
            let of_grove = present.cast::<Handler>().ok().map(Bound::get);
            if let Some(outer) = of_grove.filter(|outer| outer.is_live.load(Ordering::Relaxed)) {
                this.is_interrupted = outer.is_interrupted.clone();
            } else if of_grove.is_some() || present.is(&default_handler(py)?) {
                let is_interrupted = this.is_interrupted.clone();
                let handler = Handler { is_interrupted, is_live: AtomicBool::new(true) };
                let handler = Bound::new(py, handler)?;
                set_handler(py, &handler)?;
                this.handler = Some(handler.unbind());
            }
            Ok(this)
        })
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
            handler.get().is_live.store(false, Ordering::Relaxed);
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
