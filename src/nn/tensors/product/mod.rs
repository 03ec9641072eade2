//! Products of matrices on devices that run kernels: operands in single precision or rounded to half precision, sums in
//! single precision.
//!
//! Burn's own products are in TF32 on CUDA, where matrix units take operands of 11 significant bits, and on all devices
//! they use few units for products of few rows or columns, which are most of those of generation, and of the gradients of
//! small layers.

mod kernel;

use crate::nn::buffers::{argument, grid, uninit};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Cube, DType};
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::cubecl::prelude::{BufferArg, CubeDim, Float};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use kernel::*;

/// Cubes that keep a large device busy.
const BUSY: usize = 128;
/// Least inner steps of a cube where several divide the inner dimension.
const LEAST_SPAN: usize = 512;
/// Units per cube of [`add_spans_kernel`].
const UNITS: usize = 128;

/// The product of the matrices in the last two dimensions, `[.., rows, inner]` and `[.., inner, columns]`, plus a bias of
/// each column. The other dimensions are those of batches; they are equal, or 1 in one of the operands. Operands are
/// rounded to `rounded`; the product is contiguous and f32.
pub(super) fn product(
    a: CubeTensor,
    b: CubeTensor,
    bias: Option<&CubeTensor>,
    rounded: ElemType,
) -> CubeTensor {
    let dims = a.meta.shape().len();
    let batches: Vec<usize> =
        (0..dims - 2).map(|d| a.meta.shape()[d].max(b.meta.shape()[d])).collect();
    let (a, b) = (matrices(a, &batches), matrices(b, &batches));
    let (mut rows, inner) = (a.meta.shape()[dims - 2], a.meta.shape()[dims - 1]);
    let columns = b.meta.shape()[dims - 1];
    assert_eq!(inner, b.meta.shape()[dims - 2], "the inner dimensions of a product");
    let shape: Vec<usize> = batches.iter().copied().chain([rows, columns]).collect();
    let mut count: usize = batches.iter().product();
    let [mut left, right] =
        [Strides::of(&a, [dims - 2, dims - 1]), Strides::of(&b, [dims - 1, dims - 2])];
    if right.batch == 0 && (rows == 1 || left.batch == rows * left.outer) {
        // One matrix for all rows of all batches.
        if rows == 1 {
            left.outer = left.batch;
        }
        (rows, count) = (count * rows, 1);
    }

    // A dimension of one element has no neighbours, whatever its stride.
    let inner_first = [&left, &right].map(|x| x.inner == 1 && x.outer != 1 && inner > 1);
    let room = a.client.properties().hardware.max_shared_memory_size;
    let tiling = tiling([rows, columns], count, inner_first).within(room);
    let tiling = Tiling { has_bias: bias.is_some(), ..tiling };
    let (row_tiles, column_tiles) =
        (rows.div_ceil(tiling.rows()), columns.div_ceil(tiling.columns()));
    let spans = spans(count * row_tiles * column_tiles, inner);
    let span = inner.div_ceil(spans).next_multiple_of(tiling.depth * tiling.groups).max(1);
    let spans = inner.div_ceil(span).max(1);

    let product = uninit(&a, &shape, DType::F32);
    let shares = match spans {
        1 => product.clone(),
        _ => uninit(&a, &[count, spans, rows, columns], DType::F32),
    };
    // The kernel does not read this buffer if there is no bias.
    let bias = bias.unwrap_or(&a);
    let sizes = SizesLaunch::new(count, rows, columns, inner, span, spans, row_tiles, column_tiles);
    // SAFETY: accesses stay below the sizes, whose operands have these strides; all units of a cube reach its barriers.
    unsafe {
        product_kernel::launch_unchecked(
            &product.client,
            grid(&product, count * spans * row_tiles * column_tiles),
            CubeDim::new_1d(tiling.cube() as u32),
            operand(&a, &left),
            operand(&b, &right),
            argument(bias),
            argument(&shares),
            sizes,
            Tiling { has_bias: tiling.has_bias && spans == 1, ..tiling },
            element(&a),
            element(&b),
            rounded,
        );
    }
    if spans > 1 {
        let (numbers, all) = (rows * columns, count * rows * columns);
        // SAFETY: accesses stay below the number of shares and of results.
        unsafe {
            add_spans_kernel::launch_unchecked(
                &product.client,
                grid(&product, all.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(&shares),
                argument(bias),
                argument(&product),
                spans,
                numbers,
                all,
                columns,
                tiling.has_bias,
            );
        }
    }
    product
}

/// Whether a product has so few tiles that large ones would leave most of a device idle.
pub(super) fn is_narrow(rows: usize, columns: usize) -> bool {
    rows.div_ceil(64) * columns.div_ceil(64) < BUSY
}

/// Tiling of products of `[rows, columns]`.
fn tiling([rows, columns]: [usize; 2], batches: usize, inner_first: [bool; 2]) -> Tiling {
    let (part, units, groups) = match rows {
        _ if !is_narrow(batches * rows, columns) => ([8, 8], [8, 8], 1),
        0..=16 => ([2, 4], [8, 4], 4),
        17..=32 => ([4, 4], [8, 4], 4),
        _ => ([8, 4], [8, 4], 4),
    };
    Tiling { part, units, groups, depth: 16, inner_first, has_bias: false }
}

/// The number of cubes that divide an inner dimension, if so many tiles have it.
fn spans(tiles: usize, inner: usize) -> usize {
    (BUSY * 2 / tiles.max(1)).min(inner / LEAST_SPAN).max(1)
}

/// The tensor with batches that are one stride apart: a copy, unless it has one batch or those are so already.
fn matrices(tensor: CubeTensor, batches: &[usize]) -> CubeTensor {
    let shape = tensor.meta.shape();
    let count: usize = shape.iter().take(batches.len()).product();
    if count == 1 {
        return tensor;
    }
    if count == batches.iter().product::<usize>() {
        let even = batch_stride(&tensor, batches.len()).is_some();
        return if even { tensor } else { into_contiguous(tensor) };
    }
    // Some of the dimensions are repeated.
    let dims = shape.len();
    let all: Vec<usize> =
        batches.iter().copied().chain([shape[dims - 2], shape[dims - 1]]).collect();
    into_contiguous(Cube::float_expand(tensor, all.into()))
}

/// The distance between batches, 0 if there is only one; `None` if it is not the same everywhere. The stride of a
/// dimension of one element can be anything.
fn batch_stride(tensor: &CubeTensor, dims: usize) -> Option<usize> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let mut of = (0..dims).rev().filter(|d| shape[*d] > 1).map(|d| (strides[d], shape[d]));
    let Some((first, count)) = of.next() else { return Some(0) };
    let mut next = first * count;
    for (stride, count) in of {
        if stride != next {
            return None;
        }
        next = stride * count;
    }
    Some(first)
}

/// Distances between the numbers of an operand, as in [`Operand`].
struct Strides {
    batch: usize,
    outer: usize,
    inner: usize,
}

impl Strides {
    /// The strides of a tensor from [`matrices`], whose outer and inner dimensions are these axes.
    fn of(tensor: &CubeTensor, [outer, inner]: [usize; 2]) -> Self {
        let strides = tensor.meta.strides();
        let batch = batch_stride(tensor, strides.len() - 2).expect("even batches");
        Self { batch, outer: strides[outer], inner: strides[inner] }
    }
}

/// The argument of an operand.
fn operand<N: Float>(tensor: &CubeTensor, by: &Strides) -> OperandLaunch<N> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let last: usize = (0..shape.len()).map(|d| (shape[d] - 1) * strides[d]).sum();
    // SAFETY: the buffer holds all numbers up to the last.
    let numbers = unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), last + 1) };
    OperandLaunch::new(numbers, by.batch, by.outer, by.inner)
}

/// The type of a tensor's numbers.
fn element(tensor: &CubeTensor) -> ElemType {
    ElemType::Float(match tensor.dtype {
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => FloatKind::F32,
    })
}
