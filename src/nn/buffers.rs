//! Access to the buffers behind Burn tensors, for kernels written in CubeCL.

use burn::backend::{Cube, DType, DispatchDevice, Shape};
use burn::cubecl::calculate_cube_count_elemwise;
use burn::cubecl::ir::{DeviceProperties, ElemType, FloatKind};
use burn::cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Alignment of a view's offset, in elements: 128 numbers in half precision are 256 bytes, an offset that every device
/// can bind.
pub(crate) const ALIGNMENT: usize = 128;

/// Whether Grove's CubeCL kernels can run on a device.
pub fn has_kernels(device: &Device) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_))
}

/// A small tensor on `device`, which gives access to the device's client.
pub(crate) fn probe(device: &Device) -> CubeTensor {
    cube_tensor(Tensor::<1>::from_floats([0.0], device))
}

/// The result of `read` for the properties of a device; `None` if no kernels run there.
pub(crate) fn read_properties<T>(
    device: &Device,
    read: impl FnOnce(&DeviceProperties) -> T,
) -> Option<T> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(read(device.client().properties())),
        _ => None,
    }
}

/// The size of the largest buffer of a device, bytes; `None` if no kernels run there.
pub(crate) fn largest_allocation_bytes(device: &Device) -> Option<u64> {
    // Memory is given out in multiples of the alignment.
    read_properties(device, |properties| {
        let memory = &properties.memory;
        memory.max_page_size / memory.alignment * memory.alignment
    })
}

/// Maximum number of units of a plane (subgroup, warp) of a device; 0 if no kernels run there.
pub(crate) fn max_plane_units(device: &Device) -> usize {
    read_properties(device, |properties| properties.hardware.plane_size_max as usize).unwrap_or(0)
}

/// A buffer field in a kernel's argument struct; [`argument`] creates its binding.
pub(crate) type Buffer<T> = Box<[T]>;

/// Converts a Burn tensor to a contiguous CubeCL tensor.
pub(crate) fn cube_tensor<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    unwrap_contiguous(tensor.try_into_primitive::<Cube>())
}

/// Converts an integer Burn tensor to a contiguous CubeCL tensor.
pub(crate) fn cube_ints<const D: usize>(tensor: Tensor<D, Int>) -> CubeTensor {
    unwrap_contiguous(tensor.try_into_primitive::<Cube>())
}

fn unwrap_contiguous<E: std::fmt::Debug>(tensor: Result<CubeTensor, E>) -> CubeTensor {
    let tensor = tensor.unwrap_or_else(|e| panic!("the tensor is not on a CubeCL device: {e:?}"));
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// Allocates an uninitialized tensor on the device of `like`.
pub(crate) fn uninit(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    let shape = Shape::from(shape.to_vec());
    let handle = like.client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, dtype)
}

/// A contiguous tensor of this shape in the memory of `tensor`, from element `start` on.
///
/// # Panics
/// If it ends beyond the tensor: kernels are launched unchecked.
pub(crate) fn view(tensor: &CubeTensor, start: usize, shape: Shape) -> CubeTensor {
    let (end, len) = (start + shape.num_elements(), tensor.meta.num_elements());
    assert!(end <= len, "a view ends at {end} of {len} elements");
    let size = tensor.dtype.size();
    let handle = tensor.handle.clone();
    let handle = handle.offset_start((start * size) as u64).offset_end(((len - end) * size) as u64);
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    CubeTensor::new_contiguous(client, device, shape, handle, tensor.dtype)
}

/// Binds the whole buffer of a tensor to a kernel argument. A tensor that the kernel reads must be contiguous, such as
/// those of [`cube_tensor`], [`uninit`] and [`view`].
pub(crate) fn argument(tensor: &CubeTensor) -> BufferArg {
    let len = tensor.meta.num_elements();
    // SAFETY: a contiguous tensor holds `len` elements, one after the other; others are not read.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), len) }
}

/// The type of a float tensor's elements in kernels.
pub(crate) fn element_type_of(tensor: &CubeTensor) -> ElemType {
    float_element_type(tensor.dtype)
}

/// A type of floats in kernels.
pub(crate) fn float_element_type(dtype: DType) -> ElemType {
    ElemType::Float(match dtype {
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        DType::F32 => FloatKind::F32,
        other => unreachable!("kernels have no floats of type {other:?}"),
    })
}

/// The widest vectors, in elements, that a kernel can read from all these tensors and that `fits` accepts.
pub(crate) fn vector_size(tensors: &[&CubeTensor], fits: impl Fn(usize) -> bool) -> usize {
    let smallest = tensors.iter().map(|tensor| tensor.dtype.size()).min().expect("a tensor");
    let is_aligned = |tensor: &&CubeTensor, count: usize| {
        let start = tensor.handle.offset_start.unwrap_or(0) as usize;
        start.is_multiple_of(count * tensor.dtype.size())
    };
    let mut sizes = tensors[0].client.io_optimized_vector_sizes(smallest);
    let fits_all =
        |count: &usize| fits(*count) && tensors.iter().all(|tensor| is_aligned(tensor, *count));
    sizes.find(fits_all).unwrap_or(1)
}

/// A launch grid of at least `cubes` cubes; rounded up if they exceed one row of the grid.
pub(crate) fn grid(like: &CubeTensor, cubes: usize) -> CubeCount {
    calculate_cube_count_elemwise(&like.client, cubes, CubeDim::new_1d(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::adapters;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_view_ends_within_its_tensor() {
        for device in adapters() {
            let tensor = cube_tensor(Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device));
            let is_view = |start| {
                let pair = || view(&tensor, start, Shape::from(vec![2]));
                catch_unwind(AssertUnwindSafe(pair)).is_ok()
            };
            assert_eq!([0, 1, 2, 3].map(is_view), [true, true, false, false]);
        }
    }
}
