//! Tiles of a product on matrix units (tensor cores, cooperative matrices), for operands in half precision.
//!
//! A plane keeps a part of a cube's tile in the fragments of its matrix units. Operands go through workgroup memory in
//! half precision, in the order in which they are read.

use super::operands::{Operand, RightOperands};
use super::staging::{StagedVectors, TileLayout, vector_offset};
use super::tiles::{FRAGMENT, Tiling, Work, add_groups, store};
use burn::cubecl;
use burn::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn::cubecl::prelude::*;

/// The order of an operand's tile in workgroup memory.
fn matrix_order(is_inner_near: bool, operand: MatrixIdent) -> MatrixLayout {
    if is_inner_near == matches!(operand, MatrixIdent::A) {
        MatrixLayout::RowMajor
    } else {
        MatrixLayout::ColMajor
    }
}

/// Loads a fragment of an operand from its place in workgroup memory on.
#[cube]
fn load_fragment<I: Float, V: Size>(
    vectors: &[Vector<I, V>],
    #[comptime] operand: MatrixIdent,
    #[comptime] order: MatrixLayout,
    #[comptime] layout: TileLayout,
) -> Matrix<I> {
    let size = comptime!(FRAGMENT);
    // SAFETY: it is loaded before it is read.
    let mut fragment = unsafe { Matrix::<I>::uninitialized(operand, size, size, size, order) };
    cmma::load(&mut fragment, vectors, comptime!(layout.stride as u32));
    fragment
}

/// Computes a tile on the matrix units of planes, all of which have [`Tiling::units_per_part`] units.
#[cube]
pub(super) fn multiply_on_matrix_units<A: Float, V: Size, B: Float, W: Size, I: Float>(
    a: &Operand<A, V>,
    rights: &RightOperands<B, W>,
    product: &mut [f32],
    work: &Work,
    rows: usize,
    #[comptime] tiling: Tiling,
) {
    let (part_rows, part_columns) = comptime!((tiling.part_rows, tiling.part_columns));
    let (depth, num_groups) = comptime!((tiling.depth, tiling.num_groups));
    let (a_layout, b_layout) = comptime!((tiling.left_layout(), tiling.right_layout()));
    let num_rights = comptime!(tiling.num_rights);
    let size = comptime!(FRAGMENT);
    let group = UNIT_POS as usize / comptime!(tiling.units_per_group());
    let unit = UNIT_POS as usize % comptime!(tiling.units_per_group());
    let plane = unit / comptime!(tiling.units_per_part);
    let (a_vectors, b_vectors) = comptime!((a_layout.num_vectors(), b_layout.num_vectors()));
    let mut a_shared =
        Shared::<[Vector<I, V>]>::new_aligned_slice(comptime!(num_groups * a_vectors), 32usize);
    let mut b_shared =
        Shared::<[Vector<I, W>]>::new_aligned_slice(comptime!(num_groups * b_vectors), 32usize);
    let mut sums =
        Shared::<[f32]>::new_aligned_slice(comptime!(num_groups * tiling.num_sums()), 32usize);
    let (a_offset, b_offset) = (group * a_vectors, group * b_vectors);
    let first_row = plane / comptime!(tiling.num_column_parts) * part_rows;
    let first_column = plane % comptime!(tiling.num_column_parts) * part_columns;

    let (fragment_rows, fragment_columns) =
        comptime!((part_rows / FRAGMENT, part_columns / FRAGMENT));
    let mut fragments = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(fragment_rows * fragment_columns) {
        fragments.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            size,
            size,
            size,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    let a_tile = work.tile(a.batch_stride, work.row, rows, a_offset, unit);
    // Several right operands have no batches.
    let b_batch = rights.first.operand.batch_stride;
    let b_tile = work.tile(b_batch, work.column, work.block.columns, b_offset, unit);
    let mut a_staged = StagedVectors::<A, V>::new(a_layout);
    let mut b_staged = StagedVectors::<B, W>::new(b_layout);
    let (mut step, end_step) = (work.first_step, work.end_step);
    let first = step + group * depth;
    a_staged.read(a, &a_tile, first, a_layout);
    b_staged.read_right(rights, work.block.right_index, &b_tile, first, b_layout, num_rights);
    while step < end_step {
        sync_cube();
        a_staged.write_vectors::<I>(&mut a_shared, &a_tile, a_layout);
        b_staged.write_vectors::<I>(&mut b_shared, &b_tile, b_layout);
        sync_cube();
        step += comptime!(depth * num_groups);
        // Prefetches the next tiles while these are multiplied.
        let first = step + group * depth;
        a_staged.read(a, &a_tile, first, a_layout);
        b_staged.read_right(rights, work.block.right_index, &b_tile, first, b_layout, num_rights);
        #[unroll]
        for k in 0..comptime!(depth / FRAGMENT) {
            let inner = comptime!(k * FRAGMENT);
            let mut right_fragments = Sequence::<Matrix<I>>::new();
            #[unroll]
            for j in 0..fragment_columns {
                let at = b_offset
                    + vector_offset(first_column + comptime!(j * FRAGMENT), inner, b_layout);
                right_fragments.push(load_fragment::<I, W>(
                    &b_shared[at..b_shared.len()],
                    MatrixIdent::B,
                    comptime!(matrix_order(tiling.right.is_inner_near, MatrixIdent::B)),
                    b_layout,
                ));
            }
            #[unroll]
            for i in 0..fragment_rows {
                let at =
                    a_offset + vector_offset(first_row + comptime!(i * FRAGMENT), inner, a_layout);
                let left = load_fragment::<I, V>(
                    &a_shared[at..a_shared.len()],
                    MatrixIdent::A,
                    comptime!(matrix_order(tiling.left.is_inner_near, MatrixIdent::A)),
                    a_layout,
                );
                #[unroll]
                for j in 0..fragment_columns {
                    let sum = fragments.index(comptime!(i * fragment_columns + j));
                    cmma::execute(&left, right_fragments.index(j), sum, sum);
                }
            }
        }
    }

    #[unroll]
    for i in 0..fragment_rows {
        #[unroll]
        for j in 0..fragment_columns {
            let fragment = fragments.index(comptime!(i * fragment_columns + j));
            if comptime!(num_groups == 1) {
                // One fragment of each plane at a time.
                let start = plane * comptime!(FRAGMENT * FRAGMENT);
                cmma::store(
                    &mut sums[start..start + comptime!(FRAGMENT * FRAGMENT)],
                    fragment,
                    comptime!(FRAGMENT as u32),
                    MatrixLayout::RowMajor,
                );
                sync_cube();
                let plane_unit = unit % comptime!(tiling.units_per_part);
                #[unroll]
                for e in 0..comptime!(FRAGMENT * FRAGMENT / tiling.units_per_part) {
                    let e = plane_unit + comptime!(e * tiling.units_per_part);
                    let r = work.row + first_row + comptime!(i * FRAGMENT) + e / size;
                    let c = work.column + first_column + comptime!(j * FRAGMENT) + e % size;
                    let sum = sums[start + e];
                    store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
                }
                sync_cube();
            } else {
                let row = first_row + comptime!(i * FRAGMENT);
                let column = first_column + comptime!(j * FRAGMENT);
                let start = group * comptime!(tiling.num_sums())
                    + row * comptime!(tiling.columns())
                    + column;
                cmma::store(
                    &mut sums[start..comptime!(num_groups * tiling.num_sums())],
                    fragment,
                    comptime!(tiling.columns() as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }
    if comptime!(num_groups > 1) {
        sync_cube();
        add_groups::<B, W>(&sums, work, rights, product, rows, tiling);
    }
}
