//! Tiles of a product on matrix units (tensor cores, cooperative matrices), for operands in half precision.
//!
//! A plane keeps a part of a cube's tile in the fragments of its matrix units. Operands go through workgroup memory in
//! half precision, in the order in which they are read.

use super::operands::{Operand, RightOperands};
use super::sides::{Moved, Side, place_in};
use super::tiles::{FRAGMENT, Tiling, Work, add_groups, store};
use burn::cubecl;
use burn::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn::cubecl::prelude::*;

/// The order of a tile in workgroup memory.
fn layout(inner_first: bool, by_rows: bool) -> MatrixLayout {
    if inner_first == by_rows { MatrixLayout::RowMajor } else { MatrixLayout::ColMajor }
}

/// Loads a fragment of an operand from its place in workgroup memory on.
#[cube]
fn loaded<I: Float, V: Size>(
    from: &[Vector<I, V>],
    #[comptime] operand: MatrixIdent,
    #[comptime] order: MatrixLayout,
    #[comptime] side: Side,
) -> Matrix<I> {
    let size = comptime!(FRAGMENT);
    // SAFETY: it is loaded before it is read.
    let mut fragment = unsafe { Matrix::<I>::uninitialized(operand, size, size, size, order) };
    cmma::load(&mut fragment, from, comptime!(side.stride as u32));
    fragment
}

/// Computes a tile on the matrix units of planes, all of which have [`Tiling::workers`] units.
#[cube]
pub(super) fn by_matrix_units<A: Float, V: Size, B: Float, W: Size, I: Float>(
    a: &Operand<A, V>,
    rights: &RightOperands<B, W>,
    product: &mut [f32],
    work: &Work,
    rows: usize,
    #[comptime] tiling: Tiling,
) {
    let (part_rows, part_columns) = comptime!((tiling.part[0], tiling.part[1]));
    let (depth, groups) = comptime!((tiling.depth, tiling.groups));
    let (a_side, b_side) = comptime!((tiling.side(0), tiling.side(1)));
    let joined = comptime!(tiling.joined);
    let size = comptime!(FRAGMENT);
    let group = UNIT_POS as usize / comptime!(tiling.group());
    let unit = UNIT_POS as usize % comptime!(tiling.group());
    let plane = unit / comptime!(tiling.workers);
    let (a_vectors, b_vectors) = comptime!((a_side.vectors(), b_side.vectors()));
    let mut a_all =
        Shared::<[Vector<I, V>]>::new_aligned_slice(comptime!(groups * a_vectors), 32usize);
    let mut b_all =
        Shared::<[Vector<I, W>]>::new_aligned_slice(comptime!(groups * b_vectors), 32usize);
    let mut sums = Shared::<[f32]>::new_aligned_slice(comptime!(groups * tiling.sums()), 32usize);
    let (a_room, b_room) = (group * a_vectors, group * b_vectors);
    let from_row = plane / comptime!(tiling.parts[1]) * part_rows;
    let from_column = plane % comptime!(tiling.parts[1]) * part_columns;

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
    let a_tile = work.tile(a.batch_stride, work.row, rows, a_room, unit);
    // Several right operands have no batches.
    let b_batch = rights.first.operand.batch_stride;
    let b_tile = work.tile(b_batch, work.column, work.block.columns, b_room, unit);
    let mut a_moved = Moved::<A, V>::new(a_side);
    let mut b_moved = Moved::<B, W>::new(b_side);
    let (mut first, end) = (work.first, work.end);
    let from = first + group * depth;
    a_moved.read(a, &a_tile, from, a_side);
    b_moved.read_right(rights, work.block.number, &b_tile, from, b_side, joined);
    while first < end {
        sync_cube();
        a_moved.write_vectors::<I>(&mut a_all, &a_tile, a_side);
        b_moved.write_vectors::<I>(&mut b_all, &b_tile, b_side);
        sync_cube();
        first += comptime!(depth * groups);
        // Prefetches the next tiles while these are multiplied.
        let from = first + group * depth;
        a_moved.read(a, &a_tile, from, a_side);
        b_moved.read_right(rights, work.block.number, &b_tile, from, b_side, joined);
        #[unroll]
        for k in 0..comptime!(depth / FRAGMENT) {
            let step = comptime!(k * FRAGMENT);
            let mut rights_of = Sequence::<Matrix<I>>::new();
            #[unroll]
            for j in 0..fragment_columns {
                let at = b_room + place_in(from_column + comptime!(j * FRAGMENT), step, b_side);
                rights_of.push(loaded::<I, W>(
                    &b_all[at..b_all.len()],
                    MatrixIdent::B,
                    comptime!(layout(tiling.inner_first[1], false)),
                    b_side,
                ));
            }
            #[unroll]
            for i in 0..fragment_rows {
                let at = a_room + place_in(from_row + comptime!(i * FRAGMENT), step, a_side);
                let left = loaded::<I, V>(
                    &a_all[at..a_all.len()],
                    MatrixIdent::A,
                    comptime!(layout(tiling.inner_first[0], true)),
                    a_side,
                );
                #[unroll]
                for j in 0..fragment_columns {
                    let sum = fragments.index(comptime!(i * fragment_columns + j));
                    cmma::execute(&left, rights_of.index(j), sum, sum);
                }
            }
        }
    }

    #[unroll]
    for i in 0..fragment_rows {
        #[unroll]
        for j in 0..fragment_columns {
            let fragment = fragments.index(comptime!(i * fragment_columns + j));
            if comptime!(groups == 1) {
                // One fragment of each plane at a time.
                let own = plane * comptime!(FRAGMENT * FRAGMENT);
                cmma::store(
                    &mut sums[own..own + comptime!(FRAGMENT * FRAGMENT)],
                    fragment,
                    comptime!(FRAGMENT as u32),
                    MatrixLayout::RowMajor,
                );
                sync_cube();
                let of_plane = unit % comptime!(tiling.workers);
                #[unroll]
                for e in 0..comptime!(FRAGMENT * FRAGMENT / tiling.workers) {
                    let e = of_plane + comptime!(e * tiling.workers);
                    let r = work.row + from_row + comptime!(i * FRAGMENT) + e / size;
                    let c = work.column + from_column + comptime!(j * FRAGMENT) + e % size;
                    let sum = sums[own + e];
                    store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
                }
                sync_cube();
            } else {
                let row = from_row + comptime!(i * FRAGMENT);
                let column = from_column + comptime!(j * FRAGMENT);
                let own =
                    group * comptime!(tiling.sums()) + row * comptime!(tiling.columns()) + column;
                cmma::store(
                    &mut sums[own..comptime!(groups * tiling.sums())],
                    fragment,
                    comptime!(tiling.columns() as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }
    if comptime!(groups > 1) {
        sync_cube();
        add_groups::<B, W>(&sums, work, rights, product, rows, tiling);
    }
}
