//! Arrays of Python as slices, without copies.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The numbers of a contiguous array of `len` elements.
///
/// # Errors
/// If the array has another size or is not contiguous.
pub fn slice<'a, T: Element>(array: &'a PyBuffer<T>, len: usize, name: &str) -> PyResult<&'a [T]> {
    check(array, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the array is contiguous and has `len` elements of type `T`, which `PyBuffer` has checked. It stays
    // allocated as long as the buffer is borrowed, and the package's Python half writes to no array that it has
    // passed to a call before that call returns.
    Ok(unsafe { std::slice::from_raw_parts(array.buf_ptr().cast(), len) })
}

/// The numbers of a contiguous, writable array of `len` elements.
///
/// # Errors
/// If the array has another size, is not contiguous or not writable.
#[allow(clippy::mut_from_ref, reason = "the array is Python's, and a buffer is a reference to it")]
pub fn slice_mut<'a, T: Element>(
    array: &'a PyBuffer<T>,
    len: usize,
    name: &str,
) -> PyResult<&'a mut [T]> {
    check(array, len, name)?;
    if array.readonly() {
        return Err(PyValueError::new_err(format!("the array `{name}` is not writable")));
    }
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `slice`; and the Python half passes each array once per call.
    Ok(unsafe { std::slice::from_raw_parts_mut(array.buf_ptr().cast(), len) })
}

fn check<T: Element>(array: &PyBuffer<T>, len: usize, name: &str) -> PyResult<()> {
    let found = array.item_count();
    if found != len || !array.is_c_contiguous() {
        let message =
            format!("the array `{name}` has {found} elements, but must have {len} in order");
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}
