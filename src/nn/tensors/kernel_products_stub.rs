//! Products in a build without kernels, or on WebAssembly, where a page leaves their kernel out for its size: Burn's.

use burn::tensor::{Device, FloatDType, Tensor};

/// Whether a device runs the kernel of products: none of this build does.
pub(super) fn has_kernels(_device: &Device) -> bool {
    false
}

/// Whether Grove's kernels compute a product: none does.
pub(super) fn uses_kernel<const D: usize>(
    _a: &Tensor<D>,
    _b: &Tensor<D>,
    _operand_dtype: Option<FloatDType>,
    _allows_tf32: bool,
) -> bool {
    false
}

/// The product `a b` of matrices, or of batches of them.
pub(crate) fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    a.matmul(b)
}

/// The products `a b + bias` with several matrices without autodiff: never called, since no device of this build runs
/// their kernel.
pub(crate) fn matmul_all<const D: usize, const N: usize>(
    _a: Tensor<D>,
    _matrices: [Tensor<D>; N],
    _biases: Option<[Tensor<1>; N]>,
    _operand_dtype: Option<FloatDType>,
    _into: Option<Tensor<1>>,
) -> [Tensor<D>; N] {
    unreachable!("no device of this build runs the kernel of products")
}
