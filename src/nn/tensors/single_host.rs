//! Products in a build without kernels, or on WebAssembly, where a page leaves their kernel out for its size: Burn's.

use burn::tensor::{Device, FloatDType, Tensor};

/// Whether a device runs the kernel of products: none of this build does.
pub(super) fn runs_kernels(_device: &Device) -> bool {
    false
}

/// Whether Burn's own products of single-precision numbers are in TF32 on a device.
pub(super) fn has_tf32(_device: &Device) -> bool {
    false
}

/// The product `a b` of matrices, or of batches of them.
pub(crate) fn product<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    a.matmul(b)
}

/// The products `a b + bias` with several matrices without autodiff: never asked for, since no device of this build runs
/// their kernel.
pub(crate) fn linear<const D: usize, const N: usize>(
    _a: Tensor<D>,
    _matrices: [Tensor<D>; N],
    _biases: Option<[Tensor<1>; N]>,
    _half: Option<FloatDType>,
    _into: Option<Tensor<1>>,
) -> [Tensor<D>; N] {
    unreachable!("no device of this build runs the kernel of products")
}

/// Whether a device has matrix units for Grove's products: none does here.
pub(super) fn has_matrix_units(_: &Device, _: FloatDType) -> bool {
    false
}

/// Whether a product is better made without matrix units: never, since this build uses none.
pub(crate) fn is_narrow<const D: usize>(_a: &Tensor<D>, _b: &Tensor<D>) -> bool {
    false
}
