//! Buffers for kernels ([`crate::nn::buffers`]), with the sizes and element types that a device allows.

use crate::settings::Precision;
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::tensor::Device;

pub(crate) use crate::nn::buffers::*;

/// Size from which a recording is cut into parts, bytes, unless the device has a lower limit. Devices with larger
/// buffers use the same size, since other parts would sum, and round, differently.
const MAX_PART_BYTES: u64 = 1 << 31;

/// Maximum size of a buffer of a part of a recording on this device, bytes. What cannot be cut may be larger, up to
/// [`max_addressable_bytes`](super::max_addressable_bytes).
pub(crate) fn max_part_bytes(device: &Device) -> u64 {
    largest_allocation_bytes(device).map_or(MAX_PART_BYTES, |largest| largest.min(MAX_PART_BYTES))
}

/// The kernel element type of a precision.
pub(crate) fn element_type(precision: Precision) -> ElemType {
    ElemType::Float(match precision {
        Precision::F32 => FloatKind::F32,
        Precision::Tf32 => FloatKind::TF32,
        Precision::F16 => FloatKind::F16,
        Precision::Bf16 => FloatKind::BF16,
    })
}
