//! The native half of the Python package `grove_rl`.
//!
//! It takes and fills arrays through Python's buffer protocol and leaves everything that Gymnasium defines (spaces,
//! infos, registration) to the package's Python half. Whatever takes time releases the GIL.

mod buffers;
mod games;
mod host;
mod interrupts;
mod policy;
mod session;
mod text;

use grove::env::NAMES;
use grove::metrics::IterationRecord;
use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fmt::Display;

/// A Python `ValueError` with the message of an error of the library.
fn value_error(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Checks that memory of this many bytes can be reserved for `what`, since native code that runs out of it aborts the
/// whole process.
///
/// # Errors
/// If it cannot; the message ends with what to do about it, `remedy`.
fn check_memory(bytes: usize, what: impl Display, remedy: &str) -> PyResult<()> {
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(bytes);
    // Memory that nothing uses would not be reserved in the first place.
    std::hint::black_box(&mut room);
    reserved.map_err(|_| {
        let size = bytes as f64 / 1e9;
        value_error(format!(
            "{what} needs {size:.0} GB of memory, more than there is: lower {remedy}"
        ))
    })
}

/// Issues a Python `UserWarning`.
///
/// # Errors
/// If the user's filters turn it into an exception.
fn warn(py: Python, warning: &str) -> PyResult<()> {
    let text = CString::new(warning).map_err(value_error)?;
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)
}

/// The names of the built-in games.
#[pyfunction]
fn names() -> Vec<&'static str> {
    NAMES.to_vec()
}

/// The metrics of a record, a JSON object, by their names in trackers.
#[pyfunction]
fn scalars(record: &str) -> PyResult<HashMap<String, f64>> {
    let record: IterationRecord = serde_json::from_str(record).map_err(value_error)?;
    let all = grove::track::list_scalars(&record).into_iter();
    Ok(all.filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Runs the command-line program with these words, the first of which is its name, and returns its exit status. It is
/// started again, for runs side by side, by the words `started_by`.
#[pyfunction]
fn main(py: Python, argv: Vec<OsString>, started_by: Vec<OsString>) -> u8 {
    py.detach(|| grove::program().with_start_command(started_by).run_with(argv))
}

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    // They are Python's errors.
    grove::run::silence_panics(|panic| eprintln!("error: {panic}"));
    module.add_function(wrap_pyfunction!(names, module)?)?;
    module.add_function(wrap_pyfunction!(scalars, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(session::train, module)?)?;
    module.add_function(wrap_pyfunction!(host::check_settings, module)?)?;
    module.add_function(wrap_pyfunction!(host::train_envs, module)?)?;
    module.add_function(wrap_pyfunction!(text::train_text, module)?)?;
    module.add_class::<games::Games>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<text::LanguageModel>()?;
    Ok(())
}
