//! Limits of a device that the sizes of a run must fit.

use super::kernels::{max_addressable_bytes, workgroup_memory};
use burn::tensor::Device;

/// The reason why a device has no buffer of `bytes` bytes for `what`, a singular noun phrase; `None` if it has one, as
/// the CPU always does.
pub fn buffer_size_reason(device: &Device, what: &str, bytes: u64) -> Option<String> {
    max_addressable_bytes(device).and_then(|max_bytes| too_large_reason(what, bytes, max_bytes))
}

/// The reason why the cubes of a device have too little workgroup memory for `what`, a singular noun phrase, which
/// needs `bytes` bytes; `None` if they have enough, and on the CPU.
pub fn workgroup_memory_reason(device: &Device, what: &str, bytes: usize) -> Option<String> {
    let max_bytes = workgroup_memory(device).filter(|max_bytes| bytes > *max_bytes)?;
    Some(format!("{what} needs {bytes} bytes of workgroup memory, but the device has {max_bytes}"))
}

/// The reason why a buffer is too large, if it is over `max_bytes`.
fn too_large_reason(what: &str, bytes: u64, max_bytes: u64) -> Option<String> {
    // Rounded up and down, so that the first is always the larger.
    let [needed, largest] =
        [bytes.div_ceil(TENTH_MEGABYTE), max_bytes / TENTH_MEGABYTE].map(format_megabytes);
    let sentence =
        format!("{what} takes {needed}, but a buffer of the device has {largest} at most");
    (bytes > max_bytes).then_some(sentence)
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
        let refusal = |bytes, max_bytes| too_large_reason("a rollout", bytes, max_bytes);
        assert_eq!(refusal(1 << 27, 1 << 27), None);
        assert_eq!(
            refusal(160_000_000, 1 << 27).unwrap(),
            "a rollout takes 160.0 MB, but a buffer of the device has 134.2 MB at most"
        );
        // The two numbers differ even where the sizes hardly do.
        assert_eq!(
            refusal((1 << 27) + 1, 1 << 27).unwrap(),
            "a rollout takes 134.3 MB, but a buffer of the device has 134.2 MB at most"
        );
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_cpu_has_no_limits() {
        assert_eq!(buffer_size_reason(&Device::flex(), "a rollout", u64::MAX), None);
        assert_eq!(workgroup_memory_reason(&Device::flex(), "attention", usize::MAX), None);
    }
}
