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
    let Sizes { batches, elements, spans, .. } = launch.sizes;
    let len = batches * elements;
    let product = into.unwrap_or_else(|| uninit(&operands.left.tensor, &[len], DType::F32));
    assert_eq!(product.meta.num_elements(), len, "elements of the products");
    if spans == 1 {
        multiply(&operands, &launch, biases, operand_type, &product);
    } else {
        let partials = uninit(&operands.left.tensor, &[spans * len], DType::F32);
        multiply(&operands, &launch, biases, operand_type, &partials);
        add_spans(&launch.sizes, &partials, &product);
    }
    std::array::from_fn(|index| {
        view(&product, launch.blocks[index].place, operands.shape(index).into())
    })
}

/// The start of the block of a right operand.
#[derive(Clone, Copy)]
struct BlockStart {
    /// First column tile.
    tile: usize,
    /// Place in the result of a span.
    place: usize,
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
        let &OperandTensors { count, rows, inner, columns, .. } = operands;
        let row_tiles = rows.div_ceil(tiling.rows());
        let column_tiles: usize = columns.iter().map(|n| n.div_ceil(tiling.columns())).sum();
        let tiles = count * row_tiles * column_tiles;
        let num_spans = choose_num_spans(tiles, inner, operands.is_narrow(), &tiling);
        let span_steps =
            inner.div_ceil(num_spans).next_multiple_of(tiling.depth * tiling.groups).max(1);
        let spans = inner.div_ceil(span_steps).max(1);
        let (blocks, elements) = place_blocks(rows, columns, tiling.columns());
        let sizes = Sizes {
            batches: count,
            rows,
            elements,
            inner,
            span_steps,
            spans,
            row_tiles,
            column_tiles,
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
    let ProductLaunch { tiling, blocks, .. } = *launch;
    let Sizes { batches, rows, elements, inner, span_steps, spans, row_tiles, column_tiles } =
        launch.sizes;
    let sizes = SizesLaunch::new(
        batches,
        rows,
        elements,
        inner,
        span_steps,
        spans,
        row_tiles,
        column_tiles,
    );
    // Those beyond the last are not read.
    let right_launch = |index: usize| {
        let index = index.min(N - 1);
        let BlockStart { tile, place } = blocks[index];
        let operand = right[index].argument(tiling.layout(1));
        // The kernel does not read this buffer if there is no bias.
        let bias = biases.map_or(&left.tensor, |biases| &biases[index]);
        RightOperandLaunch::new(operand, columns[index], tile, place, argument(bias))
    };
    // SAFETY: accesses stay below the sizes, whose operands have these strides; all units of a cube reach its barriers.
    unsafe {
        product_kernel::launch_unchecked(
            &partials.client,
            grid(partials, batches * spans * row_tiles * column_tiles),
            CubeDim::new_1d(tiling.cube_units() as u32),
            left.argument(tiling.layout(0)),
            RightOperandsLaunch::new(right_launch(0), right_launch(1), right_launch(2)),
            argument(partials),
            sizes,
            tiling,
            element_type_of(&left.tensor),
            tiling.vector_sizes[0],
            element_type_of(&right[0].tensor),
            tiling.vector_sizes[1],
            operand_type,
        );
    }
}

/// Adds up the products of the spans, `[batches, spans, elements]`: `[batches, elements]`.
fn add_spans(sizes: &Sizes, partials: &CubeTensor, product: &CubeTensor) {
    let len = sizes.batches * sizes.elements;
    // SAFETY: accesses stay below the numbers of partial products and of results.
    unsafe {
        add_spans_kernel::launch_unchecked(
            &product.client,
            grid(product, len.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            argument(partials),
            argument(product),
            sizes.spans,
            sizes.elements,
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
    let mut end = BlockStart { tile: 0, place: 0 };
    let starts = columns.map(|columns| {
        // Devices bind buffers at such places.
        let start = BlockStart { place: end.place.next_multiple_of(ALIGNMENT), ..end };
        end.tile = start.tile + columns.div_ceil(tile);
        end.place = start.place + rows * columns;
        start
    });
    (starts, end.place)
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
    let is_inner_near = operands.is_inner_near();
    let tiling = Tiling { is_inner_near, has_bias, num_rights: N, ..tiling };
    let tiling = tiling.within(properties.hardware.max_shared_memory_size);
    Tiling { vector_sizes: operands.max_vector_sizes(&tiling), ..tiling }
}

/// Tiling of products of `rows` rows without matrix units.
fn unit_tiling(rows: usize, is_narrow: bool) -> Tiling {
    let (part, parts, groups) = match rows {
        _ if !is_narrow => ([8, 8], [8, 8], 2),
        0..=16 => ([2, 4], [8, 4], 4),
        17..=32 => ([4, 4], [8, 4], 4),
        _ => ([8, 4], [8, 4], 4),
    };
    Tiling { part, parts, groups, depth: 16, ..Tiling::default() }
}

/// Rows of a product on matrix units that are few: groups divide the inner dimension, if columns do not fill the
/// device.
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
    Tiling {
        part,
        parts,
        units_per_part: plane,
        groups,
        depth: steps * FRAGMENT,
        ..Tiling::default()
    }
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

/// Chooses the number of spans of the inner dimension: enough to occupy the device, but none shorter than `min_span`.
fn choose_num_spans(tiles: usize, inner: usize, is_narrow: bool, tiling: &Tiling) -> usize {
    let (units, min_span) = match (is_narrow, tiling.has_matrix_units()) {
        (true, false) => (20 << 10, 192),
        (false, false) => (128 << 10, 512),
        (_, true) => (32 << 10, 512),
    };
    (units / (tiles * tiling.cube_units()).max(1)).min(inner / min_span).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_begin_where_matrix_units_read_from() {
        for shape in [[5, 7], [30, 900], [64, 576], [64, 3072], [2056, 576], [2056, 1536]] {
            for is_inner_near in [[false, false], [true, false], [false, true], [true, true]] {
                let tiling = Tiling { is_inner_near, ..matrix_tiling(shape[0], shape[1], 32) };
                assert!(tiling.has_matrix_units() && tiling.part.iter().all(|x| x % FRAGMENT == 0));
                // 32 bytes, of operands in half precision and of sums.
                for layout in [tiling.layout(0), tiling.layout(1)] {
                    assert_eq!((layout.elements() % 16, layout.stride % 8), (0, 0), "{tiling:?}");
                }
                assert_eq!(tiling.num_sums() % 8, 0, "{tiling:?}");
                // The smallest workgroup memory of devices with matrix units.
                assert!(tiling.within(32 << 10).groups >= 1);
            }
        }
    }

    #[test]
    fn several_cubes_divide_an_inner_dimension_where_tiles_are_few() {
        let narrow = matrix_tiling(64, 576, 32);
        assert_eq!(choose_num_spans(36, 1536, true, &narrow), 3);
        assert_eq!(choose_num_spans(36, 576, true, &narrow), 1);
        let wide = unit_tiling(2056, false);
        assert_eq!(choose_num_spans(81, 2056, false, &wide), 4);
        assert_eq!(choose_num_spans(81, 100, false, &wide), 1);
        assert_eq!(choose_num_spans(0, 0, false, &wide), 1);
    }
}
