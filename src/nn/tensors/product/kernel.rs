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
    if work.is_some {
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
    let (part_rows, part_columns) = comptime!((tiling.part[0], tiling.part[1]));
    let (depth, groups) = comptime!((tiling.depth, tiling.groups));
    let (a_layout, b_layout) = comptime!((tiling.layout(0), tiling.layout(1)));
    let num_rights = comptime!(tiling.num_rights);
    let group = UNIT_POS as usize / comptime!(tiling.group_units());
    let unit = UNIT_POS as usize % comptime!(tiling.group_units());
    let staged = comptime!(tiling.staged_elements().max(tiling.num_sums()));
    let mut shared = Shared::<[f32]>::new_aligned_slice(comptime!(groups * staged), 16usize);
    let a_offset = group * comptime!(tiling.staged_elements());
    let b_offset = a_offset + comptime!(a_layout.elements());
    let from_row = unit / comptime!(tiling.parts[1]) * part_rows;
    let from_column = unit % comptime!(tiling.parts[1]) * part_columns;

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

    let (mut first, end) = (work.first, work.end);
    let from = first + group * depth;
    a_staged.read(a, &a_tile, from, a_layout);
    b_staged.read_right(rights, work.block.right_index, &b_tile, from, b_layout, num_rights);
    while first < end {
        sync_cube();
        a_staged.write::<I>(&mut shared, &a_tile, a_layout);
        b_staged.write::<I>(&mut shared, &b_tile, b_layout);
        sync_cube();
        first += comptime!(depth * groups);
        // Prefetches the next tiles while these are multiplied.
        let from = first + group * depth;
        a_staged.read(a, &a_tile, from, a_layout);
        b_staged.read_right(rights, work.block.right_index, &b_tile, from, b_layout, num_rights);
        #[unroll]
        for k in 0..depth {
            let a_at = a_offset + from_row + comptime!(k * a_layout.stride);
            let b_at = b_offset + from_column + comptime!(k * b_layout.stride);
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

    if comptime!(groups == 1) {
        #[unroll]
        for i in 0..part_rows {
            #[unroll]
            for j in 0..part_columns {
                let (r, c) = (work.row + from_row + i, work.column + from_column + j);
                let sum = sums[comptime!(i * part_columns + j)];
                store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
            }
        }
    } else {
        let tile = comptime!(tile_rows * tile_columns);
        sync_cube();
        let start = group * tile + from_row * tile_columns + from_column;
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
    spans: usize,
    elements: usize,
    all: usize,
) {
    let at = ABSOLUTE_POS;
    if at < all {
        let first = at / elements * spans * elements + at % elements;
        let mut sum = partials[first];
        for span in 1..spans {
            sum += partials[first + span * elements];
        }
        product[at] = sum;
    }
}
