//! The kernel of a product of matrices.
//!
//! A cube computes a tile of the product from tiles of the operands in workgroup memory. Each unit keeps a part of the
//! tile in registers, and the units of a cube may form groups that divide the inner dimension among them: a product of
//! few rows has few tiles, and only so many units keep the device busy. The order of all sums depends on sizes alone.

use super::matrix_units::multiply_on_matrix_units;
use super::operands::{Operand, RightOperands};
use super::staging::StagedVectors;
use super::tiles::{Sizes, Tiling, Work, add_groups, store};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Computes `a b + bias` of each right operand `b`, or for each span of the inner dimension its partial
/// product, `[batches, spans, elements]`: the blocks of the right operands, `[rows, columns]`, one after the other.
///
/// Buffers: those of the operands; the product. Workgroup memory: the operands' tiles of each group, which their sums
/// replace; on matrix units those are beside them.
///
/// `A` and `B` are the element types of the operands, `V` and `W` the sizes of the vectors in which they are read, and
/// `I` is the type that they are rounded to.
#[cube(launch_unchecked)]
pub(super) fn product_kernel<A: Float, V: Size, B: Float, W: Size, I: Float>(
    a: &Operand<A, V>,
    rights: &RightOperands<B, W>,
    product: &mut [f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[define(A)] _left: ElemType,
    #[define(V)] _left_vector: usize,
    #[define(B)] _right: ElemType,
    #[define(W)] _right_vector: usize,
    #[define(I)] _operand_type: ElemType,
) {
    let work = Work::of_cube::<B, W>(rights, &sizes, tiling);
    if work.exists {
        if comptime!(tiling.has_matrix_units()) {
            multiply_on_matrix_units::<A, V, B, W, I>(
                a, rights, product, &work, sizes.rows, tiling,
            );
        } else {
            multiply_on_units::<A, V, B, W, I>(a, rights, product, &work, sizes.rows, tiling);
        }
    }
}

/// Computes a tile by multiplications and additions of each unit.
#[cube]
fn multiply_on_units<A: Float, V: Size, B: Float, W: Size, I: Float>(
    a: &Operand<A, V>,
    rights: &RightOperands<B, W>,
    product: &mut [f32],
    work: &Work,
    rows: usize,
    #[comptime] tiling: Tiling,
) {
    let (tile_rows, tile_columns) = comptime!((tiling.rows(), tiling.columns()));
    let (part_rows, part_columns) = comptime!((tiling.part_rows, tiling.part_columns));
    let (depth, num_groups) = comptime!((tiling.depth, tiling.num_groups));
    let (a_layout, b_layout) = comptime!((tiling.left_layout(), tiling.right_layout()));
    let num_rights = comptime!(tiling.num_rights);
    let group = UNIT_POS as usize / comptime!(tiling.units_per_group());
    let unit = UNIT_POS as usize % comptime!(tiling.units_per_group());
    let staged = comptime!(tiling.num_staged().max(tiling.num_sums()));
    let mut shared = Shared::<[f32]>::new_aligned_slice(comptime!(num_groups * staged), 16usize);
    let a_offset = group * comptime!(tiling.num_staged());
    let b_offset = a_offset + comptime!(a_layout.num_elements());
    let first_row = unit / comptime!(tiling.num_column_parts) * part_rows;
    let first_column = unit % comptime!(tiling.num_column_parts) * part_columns;

    let mut sums = Array::<f32>::new(comptime!(part_rows * part_columns));
    #[unroll]
    for i in 0..comptime!(part_rows * part_columns) {
        sums[i] = 0.0f32;
    }
    let a_tile = work.tile(a.batch_stride, work.row, rows, a_offset, unit);
    // Several right operands have no batches.
    let b_batch = rights.first.operand.batch_stride;
    let b_tile = work.tile(b_batch, work.column, work.block.columns, b_offset, unit);
    let mut a_staged = StagedVectors::<A, V>::new(a_layout);
    let mut b_staged = StagedVectors::<B, W>::new(b_layout);
    let mut a_values = Array::<f32>::new(part_rows);

    let (mut step, end_step) = (work.first_step, work.end_step);
    let first = step + group * depth;
    a_staged.read(a, &a_tile, first, a_layout);
    b_staged.read_right(rights, work.block.right_index, &b_tile, first, b_layout, num_rights);
    while step < end_step {
        sync_cube();
        a_staged.write::<I>(&mut shared, &a_tile, a_layout);
        b_staged.write::<I>(&mut shared, &b_tile, b_layout);
        sync_cube();
        step += comptime!(depth * num_groups);
        // Prefetches the next tiles while these are multiplied.
        let first = step + group * depth;
        a_staged.read(a, &a_tile, first, a_layout);
        b_staged.read_right(rights, work.block.right_index, &b_tile, first, b_layout, num_rights);
        #[unroll]
        for k in 0..depth {
            let a_at = a_offset + first_row + comptime!(k * a_layout.stride);
            let b_at = b_offset + first_column + comptime!(k * b_layout.stride);
            #[unroll]
            for i in 0..part_rows {
                a_values[i] = shared[a_at + i];
            }
            #[unroll]
            for j in 0..part_columns {
                let value = shared[b_at + j];
                #[unroll]
                for i in 0..part_rows {
                    sums[comptime!(i * part_columns + j)] += a_values[i] * value;
                }
            }
        }
    }

    if comptime!(num_groups == 1) {
        #[unroll]
        for i in 0..part_rows {
            #[unroll]
            for j in 0..part_columns {
                let (r, c) = (work.row + first_row + i, work.column + first_column + j);
                let sum = sums[comptime!(i * part_columns + j)];
                store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
            }
        }
    } else {
        let tile_len = comptime!(tile_rows * tile_columns);
        sync_cube();
        let start = group * tile_len + first_row * tile_columns + first_column;
        #[unroll]
        for i in 0..part_rows {
            #[unroll]
            for j in 0..part_columns {
                shared[start + comptime!(i * tile_columns + j)] =
                    sums[comptime!(i * part_columns + j)];
            }
        }
        sync_cube();
        add_groups::<B, W>(&shared, work, rights, product, rows, tiling);
    }
}

/// Sums the spans of each batch, in order: from `[batches, spans, elements]` to `[batches, elements]`, one unit per
/// element.
#[cube(launch_unchecked)]
pub(super) fn add_spans_kernel(
    partials: &[f32],
    product: &mut [f32],
    num_spans: usize,
    num_elements: usize,
    num_results: usize,
) {
    let index = ABSOLUTE_POS;
    if index < num_results {
        let first = index / num_elements * num_spans * num_elements + index % num_elements;
        let mut sum = partials[first];
        for span in 1..num_spans {
            sum += partials[first + span * num_elements];
        }
        product[index] = sum;
    }
}
