//! The operands of a product in the memory of a device, and the sizes that follow from them.

use super::is_narrow;
use super::operands::{MAX_RIGHT_OPERANDS, OperandLaunch};
use super::staging::TileLayout;
use super::tiles::Tiling;
use crate::nn::buffers::vector_size;
use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::cubecl::prelude::{BufferArg, Float, Size};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// The operands of a launch.
pub(super) struct OperandTensors<const N: usize> {
    pub left: OperandTensor,
    pub right: [OperandTensor; N],
    /// Leading dimensions of the results.
    batches: Vec<usize>,
    /// Rows of a result.
    result_rows: usize,
    /// Products with each right operand: the batches, or one if one matrix multiplies the rows of all of them.
    pub num_products: usize,
    /// Rows of each of these products.
    pub rows: usize,
    pub inner: usize,
    /// Columns of each right operand.
    pub columns: [usize; N],
}

impl<const N: usize> OperandTensors<N> {
    /// # Panics
    /// If the sizes do not match, or the right operands are more than [`MAX_RIGHT_OPERANDS`], or several with batches.
    pub fn new(a: CubeTensor, right: [CubeTensor; N]) -> Self {
        let dims = a.meta.shape().len();
        let batches: Vec<usize> =
            (0..dims - 2).map(|d| a.meta.shape()[d].max(right[0].meta.shape()[d])).collect();
        let mut left = OperandTensor::new(space_batches_evenly(a, &batches), [dims - 2, dims - 1]);
        let [result_rows, inner] = left.extents;
        let right = right
            .map(|b| OperandTensor::new(space_batches_evenly(b, &batches), [dims - 1, dims - 2]));
        let columns = right.each_ref().map(|b| {
            assert_eq!(inner, b.extents[1], "the inner dimensions of a product");
            b.extents[0]
        });
        let (mut rows, mut num_products) = (result_rows, batches.iter().product());
        let is_one = right.iter().all(|b| b.batch_stride == 0);
        if is_one && (rows == 1 || left.batch_stride == rows * left.outer_stride) {
            // One matrix for all rows of all batches.
            if rows == 1 {
                left.outer_stride = left.batch_stride;
            }
            (rows, num_products) = (num_products * rows, 1);
        }
        assert!(
            N == 1 || (N <= MAX_RIGHT_OPERANDS && num_products == 1),
            "several right operands have no batches"
        );
        left.extents[0] = rows;
        Self { left, right, batches, result_rows, num_products, rows, inner, columns }
    }

    /// Columns of all right operands.
    pub fn all_columns(&self) -> usize {
        self.columns.iter().sum()
    }

    /// Whether the products have so few tiles that large ones would leave most of a device idle.
    pub fn is_narrow(&self) -> bool {
        is_narrow(self.num_products * self.rows, self.all_columns())
    }

    /// Whether neighbours in memory differ in the inner index, for the left operand and the right ones.
    pub fn is_inner_near(&self) -> [bool; 2] {
        // A dimension of one element has no neighbours, whatever its stride.
        [&self.left, &self.right[0]]
            .map(|x| x.inner_stride == 1 && x.outer_stride != 1 && self.inner > 1)
    }

    /// Maximum number of elements that a unit can read at a time, of the left operand and of each right one.
    pub fn max_vector_sizes(&self, tiling: &Tiling) -> [usize; 2] {
        let right = self.right.iter().map(|b| b.max_vector_size(tiling.right_layout()));
        [self.left.max_vector_size(tiling.left_layout()), right.min().expect("a right operand")]
    }

    /// Shape of the product with a right operand.
    pub fn shape(&self, index: usize) -> Vec<usize> {
        let matrix = [self.result_rows, self.columns[index]];
        self.batches.iter().copied().chain(matrix).collect()
    }
}

/// An operand: matrices in batches one stride apart, and the strides of its dimensions.
pub(super) struct OperandTensor {
    pub tensor: CubeTensor,
    /// Extents of the outer and the inner dimension.
    extents: [usize; 2],
    batch_stride: usize,
    outer_stride: usize,
    inner_stride: usize,
}

impl OperandTensor {
    /// A tensor from [`space_batches_evenly`], whose outer and inner dimensions are these axes.
    fn new(tensor: CubeTensor, axes: [usize; 2]) -> Self {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let batch_stride = even_batch_stride(&tensor, strides.len() - 2).expect("even batches");
        let ([outer_stride, inner_stride], extents) =
            (axes.map(|axis| strides[axis]), axes.map(|axis| shape[axis]));
        Self { tensor, extents, batch_stride, outer_stride, inner_stride }
    }

    /// Distances along the near and the far dimension of a tile.
    fn near_and_far_strides(&self, layout: TileLayout) -> [usize; 2] {
        if layout.is_inner_near {
            [self.inner_stride, self.outer_stride]
        } else {
            [self.outer_stride, self.inner_stride]
        }
    }

    /// Maximum number of elements that a unit can read at a time: all in the matrix or none, and each vector in a place
    /// that is a multiple of its size.
    fn max_vector_size(&self, layout: TileLayout) -> usize {
        let [near, far] = self.near_and_far_strides(layout);
        let extent = self.extents[usize::from(layout.is_inner_near)];
        vector_size(&[&self.tensor], |vector| {
            near == 1
                && [extent, far, self.batch_stride].iter().all(|part| part.is_multiple_of(vector))
                && layout.can_move(vector)
        })
    }

    /// The argument of a kernel.
    pub fn argument<N: Float, V: Size>(&self, layout: TileLayout) -> OperandLaunch<N, V> {
        let (shape, strides) = (self.tensor.meta.shape(), self.tensor.meta.strides());
        let last: usize = (0..shape.len()).map(|d| (shape[d] - 1) * strides[d]).sum();
        // SAFETY: the buffer holds all elements up to the last.
        let elements = unsafe { BufferArg::from_raw_parts(self.tensor.handle.clone(), last + 1) };
        let ([near, far], vector) = (self.near_and_far_strides(layout), layout.vector_size);
        OperandLaunch::new(elements, self.batch_stride / vector, near, far / vector)
    }
}

/// Makes all batches of a tensor one stride apart: by a copy, unless there is one batch or they already are.
fn space_batches_evenly(tensor: CubeTensor, batches: &[usize]) -> CubeTensor {
    let shape = tensor.meta.shape();
    let count: usize = shape.iter().take(batches.len()).product();
    if count == 1 {
        return tensor;
    }
    if count == batches.iter().product::<usize>() {
        let is_even = even_batch_stride(&tensor, batches.len()).is_some();
        return if is_even { tensor } else { into_contiguous(tensor) };
    }
    // Some of the dimensions are repeated.
    let dims = shape.len();
    let shape: Vec<usize> =
        batches.iter().copied().chain([shape[dims - 2], shape[dims - 1]]).collect();
    into_contiguous(Cube::float_expand(tensor, shape.into()))
}

/// The distance between batches, 0 if there is only one; `None` if it is not the same everywhere. The stride of a
/// dimension of one element can be anything.
fn even_batch_stride(tensor: &CubeTensor, dims: usize) -> Option<usize> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let mut axes = (0..dims).rev().filter(|d| shape[*d] > 1).map(|d| (strides[d], shape[d]));
    let Some((first, count)) = axes.next() else { return Some(0) };
    let mut next = first * count;
    for (stride, count) in axes {
        if stride != next {
            return None;
        }
        next = stride * count;
    }
    Some(first)
}
