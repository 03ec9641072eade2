//! Burn's tensors as the buffers of our own kernels.

use crate::config::Precision;
use burn::backend::{Cube, DType, Shape};
use burn::cubecl::calculate_cube_count_elemwise;
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// A buffer as a field of a struct that a kernel is launched with; [`argument`] gives what is bound to it.
pub(crate) type Buffer<T> = Box<[T]>;

/// The CubeCL tensor behind a Burn tensor, contiguous.
pub(crate) fn cube_tensor<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    contiguous(tensor.try_into_primitive::<Cube>())
}

/// The CubeCL tensor behind a Burn tensor of integers, contiguous.
pub(crate) fn cube_ints<const D: usize>(tensor: Tensor<D, Int>) -> CubeTensor {
    contiguous(tensor.try_into_primitive::<Cube>())
}

fn contiguous<E: std::fmt::Debug>(tensor: Result<CubeTensor, E>) -> CubeTensor {
    let tensor = tensor.unwrap_or_else(|e| panic!("the tensor is not on a CubeCL device: {e:?}"));
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// A new buffer for `shape`, with nothing in it, where `like` is.
pub(crate) fn room(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    let shape = Shape::from(shape.to_vec());
    let handle = like.client.empty(shape.num_elements() * size_of::<u32>());
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, dtype)
}

/// The whole of a contiguous tensor's buffer, for a kernel.
pub(crate) fn argument(tensor: &CubeTensor) -> BufferArg {
    let len = tensor.meta.num_elements();
    // SAFETY: what [`cube_tensor`] and `CubeTensor::new_contiguous` give is contiguous and holds
    // `len` elements of 4 bytes.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), len) }
}

/// A grid of so many cubes, or, where they are more than a row of a grid holds, of some more.
pub(crate) fn grid(like: &CubeTensor, cubes: usize) -> CubeCount {
    calculate_cube_count_elemwise(&like.client, cubes, CubeDim::new_1d(1))
}

/// Something small that lies on `device`, to ask for its client and to make buffers beside.
pub(crate) fn probe(device: &Device) -> CubeTensor {
    cube_tensor(Tensor::<1>::from_floats([0.0], device))
}

/// The largest buffer that is made of one piece, in bytes, where the device does not set a lower limit.
const PART_BYTES: u64 = 1 << 31;

/// The most bytes of a buffer that kernels of this device take.
pub(crate) fn largest(device: &Device) -> u64 {
    probe(device).client.properties().memory.max_page_size.min(PART_BYTES)
}

/// The type that a precision is inside a kernel.
pub(crate) fn element(precision: Precision) -> ElemType {
    ElemType::Float(match precision {
        Precision::F32 => FloatKind::F32,
        Precision::F16 => FloatKind::F16,
        Precision::Bf16 => FloatKind::BF16,
    })
}
