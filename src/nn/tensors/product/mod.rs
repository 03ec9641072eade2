//! Products of matrices on devices that run kernels: operands in single precision or rounded to half precision, sums in
//! single precision.
//!
//! Burn's own products are in TF32 on CUDA, where matrix units take operands of 11 significant bits, and on all devices
//! they use few units for products of few rows or columns, which are most of those of generation, and of the gradients
//! of small layers.

mod kernel;
mod matrix_units;
mod operand_tensors;
mod operands;
mod staging;
mod tiles;

use crate::nn::buffers::{ALIGNMENT, argument, element_type_of, grid, uninit, view};
use burn::backend::DType;
use burn::cubecl::features::MmaConfig;
use burn::cubecl::ir::{DeviceProperties, ElemType, FloatKind};
use burn::cubecl::prelude::CubeDim;
use burn_cubecl::tensor::CubeTensor;
use kernel::*;
use operand_tensors::OperandTensors;
use operands::*;
use tiles::{FRAGMENT, Sizes, SizesLaunch, Tiling};

/// Cubes that keep a large device busy.
const BUSY_CUBES: usize = 128;
/// Units per cube of [`add_spans_kernel`].
const UNITS: usize = 128;

/// Multiplies `a`, `[.., rows, inner]`, by each of the right operands, `[.., inner, columns]` of one type, and adds a
/// bias to each column, in one launch.
///
/// Leading dimensions are batches: equal in both operands or 1 in one of them, and 1 in each of several right operands.
/// Operands are rounded to `operand_type`. The products are contiguous and f32. They lie in new memory or, if given, in
/// `into`, one after the other, each at a multiple of [`ALIGNMENT`], with unspecified values in between.
///
/// # Panics
/// If the right operands are more than [`MAX_RIGHT_OPERANDS`], or several with batches, or `into` has another size.
pub(super) fn matmul_all<const N: usize>(
    a: CubeTensor,
    right: [CubeTensor; N],
    biases: Option<&[CubeTensor; N]>,
    operand_type: ElemType,
    into: Option<CubeTensor>,
) -> [CubeTensor; N] {
    let operands = OperandTensors::new(a, right);
    let launch = ProductLaunch::new(&operands, operand_type, biases.is_some());
    let Sizes { num_batches, num_elements, num_spans, .. } = launch.sizes;
    let len = num_batches * num_elements;
    let product = into.unwrap_or_else(|| uninit(&operands.left.tensor, &[len], DType::F32));
    assert_eq!(product.meta.num_elements(), len, "elements of the products");
    if num_spans == 1 {
        multiply(&operands, &launch, biases, operand_type, &product);
    } else {
        let partials = uninit(&operands.left.tensor, &[num_spans * len], DType::F32);
        multiply(&operands, &launch, biases, operand_type, &partials);
        add_spans(&launch.sizes, &partials, &product);
    }
    std::array::from_fn(|index| {
        view(&product, launch.blocks[index].offset, operands.shape(index).into())
    })
}

/// The start of the block of a right operand.
#[derive(Clone, Copy)]
struct BlockStart {
    /// First column tile.
    tile: usize,
    /// First element in the result of a span.
    offset: usize,
}

/// Division of a launch's products among its cubes.
struct ProductLaunch<const N: usize> {
    tiling: Tiling,
    sizes: Sizes,
    /// The blocks of the right operands.
    blocks: [BlockStart; N],
}

impl<const N: usize> ProductLaunch<N> {
    fn new(operands: &OperandTensors<N>, operand_type: ElemType, has_bias: bool) -> Self {
        let tiling = choose_tiling(operands, operand_type, has_bias);
        let &OperandTensors { num_products, rows, inner, columns, .. } = operands;
        let num_row_tiles = rows.div_ceil(tiling.rows());
        let num_column_tiles: usize = columns.iter().map(|n| n.div_ceil(tiling.columns())).sum();
        let num_tiles = num_products * num_row_tiles * num_column_tiles;
        let max_spans = choose_max_spans(num_tiles, inner, operands.is_narrow(), &tiling);
        let span_steps =
            inner.div_ceil(max_spans).next_multiple_of(tiling.depth * tiling.num_groups).max(1);
        let num_spans = inner.div_ceil(span_steps).max(1);
        let (blocks, num_elements) = place_blocks(rows, columns, tiling.columns());
        let sizes = Sizes {
            num_batches: num_products,
            rows,
            num_elements,
            inner,
            span_steps,
            num_spans,
            num_row_tiles,
            num_column_tiles,
        };
        Self { tiling, sizes, blocks }
    }
}

/// Multiplies: the products of each span of the inner dimension, `[batches, spans, elements]`.
fn multiply<const N: usize>(
    operands: &OperandTensors<N>,
    launch: &ProductLaunch<N>,
    biases: Option<&[CubeTensor; N]>,
    operand_type: ElemType,
    partials: &CubeTensor,
) {
    let OperandTensors { left, right, columns, .. } = operands;
    let ProductLaunch { tiling, sizes, blocks } = *launch;
    let num_cubes =
        sizes.num_batches * sizes.num_spans * sizes.num_row_tiles * sizes.num_column_tiles;
    let sizes = SizesLaunch::new(
        sizes.num_batches,
        sizes.rows,
        sizes.num_elements,
        sizes.inner,
        sizes.span_steps,
        sizes.num_spans,
        sizes.num_row_tiles,
        sizes.num_column_tiles,
    );
    // Those beyond the last are not read.
    let right_launch = |index: usize| {
        let index = index.min(N - 1);
        let BlockStart { tile, offset } = blocks[index];
        let operand = right[index].argument(tiling.right_layout());
        // The kernel does not read this buffer if there is no bias.
        let bias = biases.map_or(&left.tensor, |biases| &biases[index]);
        RightOperandLaunch::new(operand, columns[index], tile, offset, argument(bias))
    };
    // SAFETY: accesses stay below the sizes, whose operands have these strides; all units of a cube reach its barriers.
    unsafe {
        product_kernel::launch_unchecked(
            &partials.client,
            grid(partials, num_cubes),
            CubeDim::new_1d(tiling.units_per_cube() as u32),
            left.argument(tiling.left_layout()),
            RightOperandsLaunch::new(right_launch(0), right_launch(1), right_launch(2)),
            argument(partials),
            sizes,
            tiling,
            element_type_of(&left.tensor),
            tiling.left.vector_size,
            element_type_of(&right[0].tensor),
            tiling.right.vector_size,
            operand_type,
        );
    }
}

/// Adds up the products of the spans, `[batches, spans, elements]`: `[batches, elements]`.
fn add_spans(sizes: &Sizes, partials: &CubeTensor, product: &CubeTensor) {
    let len = sizes.num_batches * sizes.num_elements;
    // SAFETY: accesses stay below the numbers of partial products and of results.
    unsafe {
        add_spans_kernel::launch_unchecked(
            &product.client,
            grid(product, len.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            argument(partials),
            argument(product),
            sizes.num_spans,
            sizes.num_elements,
            len,
        );
    }
}

/// Places the blocks of the results, one for each right operand; also returns the number of elements of all blocks.
fn place_blocks<const N: usize>(
    rows: usize,
    columns: [usize; N],
    tile: usize,
) -> ([BlockStart; N], usize) {
    let mut end = BlockStart { tile: 0, offset: 0 };
    let starts = columns.map(|columns| {
        // Devices bind buffers at such offsets.
        let start = BlockStart { offset: end.offset.next_multiple_of(ALIGNMENT), ..end };
        end.tile = start.tile + columns.div_ceil(tile);
        end.offset = start.offset + rows * columns;
        start
    });
    (starts, end.offset)
}

/// Whether a product has so few tiles that large ones would leave most of a device idle.
pub(super) fn is_narrow(rows: usize, columns: usize) -> bool {
    rows.div_ceil(64) * columns.div_ceil(64) < BUSY_CUBES
}

/// The tiling for these operands: as many groups as have room, and the largest vectors that they can be read in.
fn choose_tiling<const N: usize>(
    operands: &OperandTensors<N>,
    operand_type: ElemType,
    has_bias: bool,
) -> Tiling {
    let properties = operands.left.tensor.client.properties();
    let tiling = match matrix_plane_units(properties, operand_type) {
        Some(plane) => matrix_tiling(operands.rows, operands.all_columns(), plane),
        None => unit_tiling(operands.rows, operands.is_narrow()),
    };
    let mut tiling = Tiling { has_bias, num_rights: N, ..tiling };
    [tiling.left.is_inner_near, tiling.right.is_inner_near] = operands.is_inner_near();
    let mut tiling = tiling.within(properties.hardware.max_shared_memory_size);
    [tiling.left.vector_size, tiling.right.vector_size] = operands.max_vector_sizes(&tiling);
    tiling
}

/// Tiling of products of `rows` rows without matrix units.
fn unit_tiling(rows: usize, is_narrow: bool) -> Tiling {
    let (part, num_parts, num_groups) = match rows {
        _ if !is_narrow => ([8, 8], [8, 8], 2),
        0..=16 => ([2, 4], [8, 4], 4),
        17..=32 => ([4, 4], [8, 4], 4),
        _ => ([8, 4], [8, 4], 4),
    };
    Tiling { num_groups, depth: 16, ..Tiling::new(part, num_parts) }
}

/// Rows of a product on matrix units that are few: groups divide the inner dimension, if columns do not fill the
/// device.
const FEW_ROWS: usize = 128;

/// Tiling of products of `[rows, columns]` on the matrix units of planes of `plane` units.
fn matrix_tiling(rows: usize, columns: usize, plane: usize) -> Tiling {
    let is_few = rows <= FEW_ROWS && is_narrow(rows, columns);
    let (part, num_parts, num_groups, steps) = match rows {
        0..=16 if is_few => ([16, 16], [1, 1], 8, 2),
        17..=32 if is_few => ([16, 16], [2, 1], 4, 2),
        _ if is_few => ([32, 16], [2, 1], 4, 4),
        0..=64 => ([64, 32], [1, 4], 1, 4),
        _ => ([64, 32], [2, 2], 1, 4),
    };
    let (units_per_part, depth) = (plane, steps * FRAGMENT);
    Tiling { units_per_part, num_groups, depth, ..Tiling::new(part, num_parts) }
}

/// Units of a plane whose matrix units multiply numbers of this type, in fragments of [`FRAGMENT`] rows, columns and
/// steps, with sums in single precision; `None` where there are none.
pub(super) fn matrix_plane_units(
    properties: &DeviceProperties,
    operand_type: ElemType,
) -> Option<usize> {
    let hardware = &properties.hardware;
    let size = FRAGMENT as u32;
    let form = MmaConfig {
        a_type: operand_type,
        b_type: operand_type,
        cd_type: ElemType::Float(FloatKind::F32),
        m: size,
        n: size,
        k: size,
    };
    let plane = hardware.plane_size_max;
    let has_form = properties.features.matmul.cmma.contains(&form);
    (has_form && plane == hardware.plane_size_min).then_some(plane as usize)
}

/// Chooses the maximum number of spans of the inner dimension: enough to occupy the device, but none shorter than
/// `min_span`.
fn choose_max_spans(num_tiles: usize, inner: usize, is_narrow: bool, tiling: &Tiling) -> usize {
    let (units, min_span) = match (is_narrow, tiling.has_matrix_units()) {
        (true, false) => (20 << 10, 192),
        (false, false) => (128 << 10, 512),
        (_, true) => (32 << 10, 512),
    };
    (units / (num_tiles * tiling.units_per_cube()).max(1)).min(inner / min_span).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_begin_where_matrix_units_read_from() {
        for shape in [[5, 7], [30, 900], [64, 576], [64, 3072], [2056, 576], [2056, 1536]] {
            for [left, right] in [[false, false], [true, false], [false, true], [true, true]] {
                let mut tiling = matrix_tiling(shape[0], shape[1], 32);
                [tiling.left.is_inner_near, tiling.right.is_inner_near] = [left, right];
                let part = [tiling.part_rows, tiling.part_columns];
                assert!(tiling.has_matrix_units() && part.iter().all(|x| x % FRAGMENT == 0));
                // 32 bytes, of operands in half precision and of sums.
                for layout in [tiling.left_layout(), tiling.right_layout()] {
                    let remainders = [layout.num_elements() % 16, layout.stride % 8];
                    assert_eq!(remainders, [0; 2], "{tiling:?}");
                }
                assert_eq!(tiling.num_sums() % 8, 0, "{tiling:?}");
                // The smallest workgroup memory of devices with matrix units.
                assert!(tiling.within(32 << 10).num_groups >= 1);
            }
        }
    }

    #[test]
    fn several_cubes_divide_an_inner_dimension_where_tiles_are_few() {
        let narrow = matrix_tiling(64, 576, 32);
        assert_eq!(choose_max_spans(36, 1536, true, &narrow), 3);
        assert_eq!(choose_max_spans(36, 576, true, &narrow), 1);
        let wide = unit_tiling(2056, false);
        assert_eq!(choose_max_spans(81, 2056, false, &wide), 4);
        assert_eq!(choose_max_spans(81, 100, false, &wide), 1);
        assert_eq!(choose_max_spans(0, 0, false, &wide), 1);
    }
}
