//! Products in single precision where a build has no kernels: Burn's are.

use burn::tensor::{Device, Tensor};

/// Whether Burn's own products of single-precision numbers are in TF32 on a device.
pub(super) fn has_tf32(_device: &Device) -> bool {
    false
}

/// The product `a b` of matrices, or of batches of them.
pub(crate) fn product<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    a.matmul(b)
}
