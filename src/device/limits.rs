//! Limits of a device that the sizes of a run must fit.

use super::kernels::{max_addressable_bytes, workgroup_memory_bytes};
use burn::tensor::Device;

/// Checks that a device has a buffer of `bytes` bytes for `what`, a singular noun phrase. The CPU always has one.
///
/// # Errors
/// If the device has none, with a reason.
pub fn check_buffer_fits(device: &Device, what: &str, bytes: u64) -> Result<(), String> {
    max_addressable_bytes(device).map_or(Ok(()), |max_bytes| check_size(what, bytes, max_bytes))
}

/// Checks that the cubes of a device have the workgroup memory for `what`, a singular noun phrase, which needs `bytes`
/// bytes. On the CPU they always do.
///
/// # Errors
/// If they have too little, with a reason.
pub fn check_workgroup_memory(device: &Device, what: &str, bytes: usize) -> Result<(), String> {
    match workgroup_memory_bytes(device) {
        Some(max_bytes) if bytes > max_bytes => Err(format!(
            "{what} needs {bytes} bytes of workgroup memory, but the device has {max_bytes}"
        )),
        _ => Ok(()),
    }
}

/// Checks that a buffer has `max_bytes` bytes at most.
fn check_size(what: &str, bytes: u64, max_bytes: u64) -> Result<(), String> {
    if bytes <= max_bytes {
        return Ok(());
    }
    // Rounded up and down, so that the first is always the larger.
    let [needed, largest] =
        [bytes.div_ceil(TENTH_MEGABYTE), max_bytes / TENTH_MEGABYTE].map(format_megabytes);
    Err(format!("{what} takes {needed}, but a buffer of the device has {largest} at most"))
}

/// A tenth of a megabyte in bytes.
const TENTH_MEGABYTE: u64 = 100_000;

fn format_megabytes(tenths: u64) -> String {
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_rejected_with_its_size_and_the_largest_one() {
        let check = |bytes, max_bytes| check_size("a rollout", bytes, max_bytes);
        assert_eq!(check(1 << 27, 1 << 27), Ok(()));
        assert_eq!(
            check(160_000_000, 1 << 27).unwrap_err(),
            "a rollout takes 160.0 MB, but a buffer of the device has 134.2 MB at most"
        );
        // The two numbers differ even where the sizes hardly do.
        assert_eq!(
            check((1 << 27) + 1, 1 << 27).unwrap_err(),
            "a rollout takes 134.3 MB, but a buffer of the device has 134.2 MB at most"
        );
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_cpu_has_no_limits() {
        assert_eq!(check_buffer_fits(&Device::flex(), "a rollout", u64::MAX), Ok(()));
        assert_eq!(check_workgroup_memory(&Device::flex(), "attention", usize::MAX), Ok(()));
    }
}
