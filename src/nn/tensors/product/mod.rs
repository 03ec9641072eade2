//! Products of matrices on devices that run kernels: operands in single precision or rounded to half precision, sums in
//! single precision.
//!
//! Burn's own products are in TF32 on CUDA, where matrix units take operands of 11 significant bits, and on all devices
//! they use few units for products of few rows or columns, which are most of those of generation, and of the gradients of
//! small layers.

mod kernel;
mod matrix_units;
mod operands;
mod sides;
mod tiles;

use crate::nn::buffers::{ALIGNMENT, argument, element_of, grid, uninit, vector_size, view};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Cube, DType};
use burn::cubecl::features::MmaConfig;
use burn::cubecl::ir::{DeviceProperties, ElemType, FloatKind};
use burn::cubecl::prelude::{BufferArg, CubeDim, Float, Size};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use kernel::*;
use operands::*;
use sides::Side;
use tiles::{FRAGMENT, SizesLaunch, Tiling};

/// Cubes that keep a large device busy.
const BUSY_CUBES: usize = 128;
/// Units per cube of [`add_spans_kernel`].
const UNITS: usize = 128;

/// Multiplies `a`, `[.., rows, inner]`, by each of the right operands, `[.., inner, columns]` of one type, and adds a bias
/// to each column, in one launch.
///
/// Leading dimensions are batches: equal in both operands or 1 in one of them, and 1 in each of several right operands.
/// Operands are rounded to `rounded`. The products are contiguous and f32. They lie in new memory or, if given, in `into`,
/// one after the other, each at a multiple of [`ALIGNMENT`], with unspecified values in between.
///
/// # Panics
/// If the right operands are more than [`MAX_JOINED`], or several with batches, or `into` has another size.
pub(super) fn products<const N: usize>(
    a: CubeTensor,
    right: [CubeTensor; N],
    biases: Option<&[CubeTensor; N]>,
    rounded: ElemType,
    into: Option<CubeTensor>,
) -> [CubeTensor; N] {
    let dims = a.meta.shape().len();
    let batches: Vec<usize> =
        (0..dims - 2).map(|d| a.meta.shape()[d].max(right[0].meta.shape()[d])).collect();
    let (a, right) = (matrices(a, &batches), right.map(|b| matrices(b, &batches)));
    let (mut rows, inner) = (a.meta.shape()[dims - 2], a.meta.shape()[dims - 1]);
    let columns = right.each_ref().map(|b| b.meta.shape()[dims - 1]);
    let mut count: usize = batches.iter().product();
    let mut left = Strides::of(&a, [dims - 2, dims - 1]);
    let strides = right.each_ref().map(|b| {
        assert_eq!(inner, b.meta.shape()[dims - 2], "the inner dimensions of a product");
        Strides::of(b, [dims - 1, dims - 2])
    });
    let is_one = strides.iter().all(|right| right.batch == 0);
    if is_one && (rows == 1 || left.batch == rows * left.outer) {
        // One matrix for all rows of all batches.
        if rows == 1 {
            left.outer = left.batch;
        }
        (rows, count) = (count * rows, 1);
    }
    assert!(N == 1 || (N <= MAX_JOINED && count == 1), "several right operands have no batches");

    // A dimension of one element has no neighbours, whatever its stride.
    let inner_first = [&left, &strides[0]].map(|x| x.inner == 1 && x.outer != 1 && inner > 1);
    let room = a.client.properties().hardware.max_shared_memory_size;
    let shape = [rows, columns.iter().sum()];
    let narrow = is_narrow(count * rows, shape[1]);
    let tiling = match matrix_units(a.client.properties(), rounded) {
        Some(plane) => matrix_tiling(rows, shape[1], plane),
        None => tiling(rows, narrow),
    };
    let tiling = Tiling { inner_first, has_bias: biases.is_some(), joined: N, ..tiling };
    let tiling = tiling.within(room);
    let left_vector = left.vector(&a, [rows, inner], tiling.side(0));
    let right_vector = right.iter().zip(&strides).zip(columns);
    let right_vector =
        right_vector.map(|((b, by), columns)| by.vector(b, [columns, inner], tiling.side(1)));
    let right_vector = right_vector.min().expect("a right operand");
    let tiling = Tiling { vectors: [left_vector, right_vector], ..tiling };
    let row_tiles = rows.div_ceil(tiling.rows());
    let column_tiles = columns.iter().map(|columns| columns.div_ceil(tiling.columns())).sum();
    let spans = spans(count * row_tiles * column_tiles, inner, narrow, &tiling);
    let span = inner.div_ceil(spans).next_multiple_of(tiling.depth * tiling.groups).max(1);
    let spans = inner.div_ceil(span).max(1);

    let (starts, elements) = blocks(rows, columns, tiling.columns());
    let product = into.unwrap_or_else(|| uninit(&a, &[count * elements], DType::F32));
    assert_eq!(product.meta.num_elements(), count * elements, "numbers of the products");
    let shares = match spans {
        1 => product.clone(),
        _ => uninit(&a, &[count * spans * elements], DType::F32),
    };
    let sizes =
        SizesLaunch::new(count, rows, elements, inner, span, spans, row_tiles, column_tiles);
    let launch = |number: usize| {
        let number = number.min(N - 1);
        let [tile, place] = starts[number];
        let operand = operand(&right[number], &strides[number], tiling.side(1));
        // The kernel does not read this buffer if there is no bias.
        let bias = biases.map_or(&a, |biases| &biases[number]);
        RightOperandLaunch::new(operand, columns[number], tile, place, argument(bias))
    };
    // SAFETY: accesses stay below the sizes, whose operands have these strides; all units of a cube reach its barriers.
    unsafe {
        product_kernel::launch_unchecked(
            &product.client,
            grid(&product, count * spans * row_tiles * column_tiles),
            CubeDim::new_1d(tiling.cube() as u32),
            operand(&a, &left, tiling.side(0)),
            RightOperandsLaunch::new(launch(0), launch(1), launch(2)),
            argument(&shares),
            sizes,
            tiling,
            element_of(&a),
            left_vector,
            element_of(&right[0]),
            right_vector,
            rounded,
        );
    }
    if spans > 1 {
        // SAFETY: accesses stay below the number of shares and of results.
        unsafe {
            add_spans_kernel::launch_unchecked(
                &product.client,
                grid(&product, (count * elements).div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(&shares),
                argument(&product),
                spans,
                elements,
                count * elements,
            );
        }
    }
    std::array::from_fn(|number| {
        let matrix = [a.meta.shape()[dims - 2], columns[number]];
        let shape: Vec<usize> = batches.iter().copied().chain(matrix).collect();
        view(&product, starts[number][1], shape.into())
    })
}

/// The first column tile and the place of each block of the results, one for each right operand, and the number of
/// elements of all blocks.
fn blocks<const N: usize>(
    rows: usize,
    columns: [usize; N],
    tile: usize,
) -> ([[usize; 2]; N], usize) {
    let mut next = [0usize; 2];
    let starts = columns.map(|columns| {
        // Devices bind buffers at such places.
        let start = [next[0], next[1].next_multiple_of(ALIGNMENT)];
        next = [start[0] + columns.div_ceil(tile), start[1] + rows * columns];
        start
    });
    (starts, next[1])
}

/// Whether a product has so few tiles that large ones would leave most of a device idle.
pub(super) fn is_narrow(rows: usize, columns: usize) -> bool {
    rows.div_ceil(64) * columns.div_ceil(64) < BUSY_CUBES
}

/// Tiling of products of `rows` rows.
fn tiling(rows: usize, is_narrow: bool) -> Tiling {
    let (part, parts, groups) = match rows {
        _ if !is_narrow => ([8, 8], [8, 8], 2),
        0..=16 => ([2, 4], [8, 4], 4),
        17..=32 => ([4, 4], [8, 4], 4),
        _ => ([8, 4], [8, 4], 4),
    };
    Tiling { part, parts, groups, depth: 16, ..Tiling::default() }
}

/// Rows of a product on matrix units that are few: groups divide the inner dimension, if columns do not fill the device.
const FEW_ROWS: usize = 128;

/// Tiling of products of `[rows, columns]` on the matrix units of planes of `plane` units.
fn matrix_tiling(rows: usize, columns: usize, plane: usize) -> Tiling {
    let is_few = rows <= FEW_ROWS && is_narrow(rows, columns);
    let (part, parts, groups, steps) = match rows {
        0..=16 if is_few => ([16, 16], [1, 1], 8, 2),
        17..=32 if is_few => ([16, 16], [2, 1], 4, 2),
        _ if is_few => ([32, 16], [2, 1], 4, 4),
        0..=64 => ([64, 32], [1, 4], 1, 4),
        _ => ([64, 32], [2, 2], 1, 4),
    };
    Tiling { part, parts, workers: plane, groups, depth: steps * FRAGMENT, ..Tiling::default() }
}

/// Units of a plane whose matrix units multiply numbers of this type, in fragments of [`FRAGMENT`] rows, columns and
/// steps, with sums in single precision; `None` where there are none.
pub(super) fn matrix_units(properties: &DeviceProperties, rounded: ElemType) -> Option<usize> {
    let hardware = &properties.hardware;
    let size = FRAGMENT as u32;
    let form = MmaConfig {
        a_type: rounded,
        b_type: rounded,
        cd_type: ElemType::Float(FloatKind::F32),
        m: size,
        n: size,
        k: size,
    };
    let plane = hardware.plane_size_max;
    let has_form = properties.features.matmul.cmma.contains(&form);
    (has_form && plane == hardware.plane_size_min).then_some(plane as usize)
}

/// The number of spans of the inner dimension: enough to occupy the device, but none shorter than `min_span`.
fn spans(tiles: usize, inner: usize, is_narrow: bool, tiling: &Tiling) -> usize {
    let (units, min_span) = match (is_narrow, tiling.has_matrix_units()) {
        (true, false) => (20 << 10, 192),
        (false, false) => (128 << 10, 512),
        (_, true) => (32 << 10, 512),
    };
    (units / (tiles * tiling.cube()).max(1)).min(inner / min_span).max(1)
}

/// Makes the batches of a tensor one stride apart: by a copy, unless there is one batch or they already are.
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

/// Distances between the elements of an operand, as in [`Operand`].
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

    /// Maximum number of elements of an operand that a unit can read at a time, whose outer and inner dimensions have
    /// these extents: all in the matrix or none, and each vector in a place that is a multiple of its size.
    fn vector(&self, tensor: &CubeTensor, [outer, inner]: [usize; 2], side: Side) -> usize {
        let (near, far, extent) = if side.inner_first {
            (self.inner, self.outer, inner)
        } else {
            (self.outer, self.inner, outer)
        };
        vector_size(&[tensor], |vector| {
            near == 1
                && [extent, far, self.batch].iter().all(|part| part.is_multiple_of(vector))
                && side.can_move(vector)
        })
    }
}

/// The argument of an operand.
fn operand<N: Float, V: Size>(
    tensor: &CubeTensor,
    distances: &Strides,
    side: Side,
) -> OperandLaunch<N, V> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let last: usize = (0..shape.len()).map(|d| (shape[d] - 1) * strides[d]).sum();
    // SAFETY: the buffer holds all elements up to the last.
    let elements = unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), last + 1) };
    let (near, far) = if side.inner_first {
        (distances.inner, distances.outer)
    } else {
        (distances.outer, distances.inner)
    };
    OperandLaunch::new(elements, distances.batch / side.vector, near, far / side.vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_begin_where_matrix_units_read_from() {
        for shape in [[5, 7], [30, 900], [64, 576], [64, 3072], [2056, 576], [2056, 1536]] {
            for inner_first in [[false, false], [true, false], [false, true], [true, true]] {
                let tiling = Tiling { inner_first, ..matrix_tiling(shape[0], shape[1], 32) };
                assert!(tiling.has_matrix_units() && tiling.part.iter().all(|x| x % FRAGMENT == 0));
                // 32 bytes, of operands in half precision and of sums.
                for side in [tiling.side(0), tiling.side(1)] {
                    assert_eq!((side.elements() % 16, side.stride % 8), (0, 0), "{tiling:?}");
                }
                assert_eq!(tiling.sums() % 8, 0, "{tiling:?}");
                // The smallest workgroup memory of devices with matrix units.
                assert!(tiling.within(32 << 10).groups >= 1);
            }
        }
    }

    #[test]
    fn several_cubes_divide_an_inner_dimension_where_tiles_are_few() {
        let narrow = matrix_tiling(64, 576, 32);
        assert_eq!(spans(36, 1536, true, &narrow), 3);
        assert_eq!(spans(36, 576, true, &narrow), 1);
        let wide = tiling(2056, false);
        assert_eq!(spans(81, 2056, false, &wide), 4);
        assert_eq!(spans(81, 100, false, &wide), 1);
        assert_eq!(spans(0, 0, false, &wide), 1);
    }
}
