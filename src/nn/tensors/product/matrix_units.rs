//! Tiles of a product on matrix units (tensor cores, cooperative matrices), for operands in half precision.
//!
//! A plane keeps a part of a cube's tile in the fragments of its matrix units. Operands go through workgroup memory in
//! half precision, in the order in which they are read.

use super::operands::{Operand, Rights};
use super::tiles::{FRAGMENT, Moved, Side, Tiling, Work, add_groups, place_in, store};
use burn::cubecl;
use burn::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn::cubecl::prelude::*;

/// The order of a tile in workgroup memory.
fn layout(side: Side, by_rows: bool) -> MatrixLayout {
    if side.keeps_order == by_rows { MatrixLayout::RowMajor } else { MatrixLayout::ColMajor }
}

/// Computes a tile on the matrix units of planes, all of which have [`Tiling::workers`] units.
#[cube]
pub(super) fn by_matrix_units<A: Float, B: Float, I: Float>(
    a: &Operand<A>,
    rights: &Rights<B>,
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
    let mut room = Shared::<[I]>::new_aligned_slice(comptime!(groups * tiling.staged()), 32usize);
    let mut sums = Shared::<[f32]>::new_aligned_slice(comptime!(groups * tiling.sums()), 32usize);
    let a_room = group * comptime!(tiling.staged());
    let b_room = a_room + comptime!(a_side.numbers());
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
    let a_tile = work.left::<A>(a, rows, a_room, unit);
    let b_tile = work.right::<B>(rights, b_room, unit);
    let mut a_moved = Moved::<A>::new(a_side);
    let mut b_moved = Moved::<B>::new(b_side);
    let (mut first, end) = (work.first, work.end);
    let from = first + group * depth;
    a_moved.read(a, &a_tile, from, a_side);
    b_moved.read_right(rights, work.block.number, &b_tile, from, b_side, joined);
    while first < end {
        sync_cube();
        a_moved.write::<I, I>(&mut room, &a_tile, a_side);
        b_moved.write::<I, I>(&mut room, &b_tile, b_side);
        sync_cube();
        first += comptime!(depth * groups);
        // The next tiles are on their way while these are multiplied.
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
                rights_of.push(Matrix::<I>::from_slice(
                    MatrixIdent::B,
                    size,
                    size,
                    size,
                    comptime!(layout(b_side, false)),
                    &room[at..room.len()],
                    comptime!(b_side.stride as u32),
                ));
            }
            #[unroll]
            for i in 0..fragment_rows {
                let at = a_room + place_in(from_row + comptime!(i * FRAGMENT), step, a_side);
                let left = Matrix::<I>::from_slice(
                    MatrixIdent::A,
                    size,
                    size,
                    size,
                    comptime!(layout(a_side, true)),
                    &room[at..room.len()],
                    comptime!(a_side.stride as u32),
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
                    store::<B>(product, work, rights, rows, r, c, sum, tiling);
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
        add_groups::<B>(&sums, work, rights, product, rows, tiling);
    }
}
