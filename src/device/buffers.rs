//! Buffers for kernels ([`crate::nn::buffers`]), with the sizes and element types that a device allows.

use crate::settings::Precision;
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::tensor::Device;

pub(crate) use crate::nn::buffers::*;

/// Maximum size of a single buffer, bytes, unless the device has a lower limit.
const MAX_BUFFER_BYTES: u64 = 1 << 31;

/// The maximum size of a buffer for kernels on this device, bytes.
pub(crate) fn max_buffer_bytes(device: &Device) -> u64 {
    largest_allocation(device).min(MAX_BUFFER_BYTES)
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
