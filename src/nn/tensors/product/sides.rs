//! Tiles of operands, and how units stage them in workgroup memory.

// Keeps compile-time conditions separate from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Operand, RightOperands};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// A tile of an operand in workgroup memory; a compile-time value. Units read vectors of neighbours in memory, along
/// the near dimension; the other one is the far dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Rows of the left operand's tile, or columns of the right one's.
    pub width: usize,
    pub depth: usize,
    /// Units that move it.
    pub group: usize,
    /// Whether the inner dimension is the near one.
    pub inner_first: bool,
    /// Elements of a vector.
    pub vector: usize,
    /// Whether it is in the order of memory, `[far, stride]`, instead of `[depth, stride]`.
    pub keeps_order: bool,
    /// Elements of a row of the tile.
    pub stride: usize,
}

impl Side {
    /// Vectors along the near dimension, and elements along the far one.
    fn extents(&self) -> [usize; 2] {
        let [near, far] =
            if self.inner_first { [self.depth, self.width] } else { [self.width, self.depth] };
        [near / self.vector, far]
    }

    /// Vectors that each unit moves.
    pub fn moved(&self) -> usize {
        self.extents().iter().product::<usize>() / self.group
    }

    /// Whether the units can move it in vectors of `vector` numbers.
    pub fn can_move(self, vector: usize) -> bool {
        let [near, far] = Self { vector: 1, ..self }.extents();
        let side = Self { vector, ..self };
        near.is_multiple_of(vector) && side.moved() * self.group * vector == near * far
    }

    /// Units along the near dimension.
    fn across(&self) -> usize {
        self.group.min(self.extents()[0])
    }

    /// Place of vector `i` of a unit, from its first one on: vectors along the near dimension, elements along the far
    /// one.
    fn place(&self, i: usize) -> (usize, usize) {
        let across = self.across();
        let along = self.extents()[0] / across;
        (i % along * across, i / along * (self.group / across))
    }

    /// Distances in workgroup memory between neighbours along the near and the far dimension.
    fn steps(&self) -> [usize; 2] {
        if self.inner_first && !self.keeps_order { [self.stride, 1] } else { [1, self.stride] }
    }

    /// Distance in workgroup memory from a unit's first number to number `j` of its vector `i`.
    fn step(&self, i: usize, j: usize) -> usize {
        let ((near, far), [by_near, by_far]) = (self.place(i), self.steps());
        (near * self.vector + j) * by_near + far * by_far
    }

    /// Elements of the tile, with the padding of its rows.
    pub fn elements(&self) -> usize {
        let rows = if self.keeps_order { self.extents()[1] } else { self.depth };
        self.stride * rows
    }

    /// Vectors of the tile, with the padding of its rows.
    pub fn vectors(&self) -> usize {
        self.elements() / self.vector
    }
}

/// Place of an operand's tile, and the unit that moves a part of it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Tile {
    /// Place of the batch's matrix in the buffer, in vectors.
    pub matrix: usize,
    /// First row or column.
    pub outer: usize,
    /// End of the matrix's rows or columns.
    pub outer_end: usize,
    /// End of the inner steps.
    pub inner_end: usize,
    /// Place in workgroup memory.
    pub room: usize,
    pub unit: usize,
}

/// The elements of a tile that a unit moves to workgroup memory. They are as in the operand until they are written, so
/// that nothing waits for them before.
#[derive(CubeType)]
pub(super) struct Moved<N: Float, V: Size> {
    vectors: Array<Vector<N, V>>,
}

#[cube]
impl<N: Float, V: Size> Moved<N, V> {
    pub fn new(#[comptime] side: Side) -> Moved<N, V> {
        Moved::<N, V> { vectors: Array::<Vector<N, V>>::new(comptime!(side.moved())) }
    }

    /// Reads a unit's elements of a tile from inner step `at` on; those past the ends are 0.
    pub fn read(&mut self, from: &Operand<N, V>, tile: &Tile, at: usize, #[comptime] side: Side) {
        let vector = comptime!(side.vector);
        let mut near = side_near(tile.unit, side) * vector;
        let mut far = side_far(tile.unit, side);
        let mut near_end = tile.outer_end;
        let mut far_end = tile.inner_end;
        if comptime!(side.inner_first) {
            near += at;
            far += tile.outer;
            near_end = tile.inner_end;
            far_end = tile.outer_end;
        } else {
            near += tile.outer;
            far += at;
        }
        // A vector is past the end as a whole, or not at all.
        let mut near_left = 0usize.runtime();
        if near < near_end {
            near_left = (near_end - near).div_ceil(vector);
        }
        let mut far_left = 0usize.runtime();
        if far < far_end {
            far_left = far_end - far;
        }
        let mut by_near = 1usize.runtime();
        if comptime!(vector == 1) {
            by_near = from.near_stride;
        }
        let place = tile.matrix + near / vector * by_near + far * from.far_stride;
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let (near, far) = comptime!(side.place(i));
            let mut elements = Vector::<N, V>::new(N::from_int(0));
            if near < near_left && far < far_left {
                elements = from.elements[place + near * by_near + far * from.far_stride];
            }
            self.vectors[i] = elements;
        }
    }

    /// Reads a unit's elements of a tile of right operand `number`.
    pub fn read_right(
        &mut self,
        rights: &RightOperands<N, V>,
        number: usize,
        tile: &Tile,
        at: usize,
        #[comptime] side: Side,
        #[comptime] joined: usize,
    ) {
        if number == 0 {
            self.read(&rights.first.operand, tile, at, side);
        }
        if comptime!(joined > 1) {
            if number == 1 {
                self.read(&rights.second.operand, tile, at, side);
            }
        }
        if comptime!(joined > 2) {
            if number == 2 {
                self.read(&rights.third.operand, tile, at, side);
            }
        }
    }

    /// Writes them to workgroup memory element by element, rounded to `I`.
    pub fn write<I: Float>(&self, room: &mut [f32], tile: &Tile, #[comptime] side: Side) {
        let [by_near, by_far] = comptime!(side.steps());
        let first = side_near(tile.unit, side) * comptime!(side.vector * by_near);
        let to = tile.room + first + side_far(tile.unit, side) * by_far;
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let elements = Vector::<f32, V>::cast_from(Vector::<I, V>::cast_from(self.vectors[i]));
            #[unroll]
            for j in 0..comptime!(side.vector) {
                room[to + comptime!(side.step(i, j))] = elements.extract(j);
            }
        }
    }

    /// Writes them to workgroup memory in the order of memory, rounded to `I`.
    pub fn write_vectors<I: Float>(
        &self,
        room: &mut [Vector<I, V>],
        tile: &Tile,
        #[comptime] side: Side,
    ) {
        let far = side_far(tile.unit, side) * comptime!(side.stride / side.vector);
        let to = tile.room + side_near(tile.unit, side) + far;
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let elements = Vector::<I, V>::cast_from(self.vectors[i]);
            room[to + comptime!(side.step(i, 0) / side.vector)] = elements;
        }
    }
}

/// The place of a unit's first vector in a tile along the near dimension, in vectors.
#[cube]
fn side_near(unit: usize, #[comptime] side: Side) -> usize {
    unit % comptime!(side.across())
}

/// The place of a unit's first vector in a tile along the far dimension.
#[cube]
fn side_far(unit: usize, #[comptime] side: Side) -> usize {
    unit / comptime!(side.across())
}

/// The place of the vector with a number of a tile in workgroup memory, in the order of memory.
#[cube]
pub(super) fn place_in(outer: usize, inner: usize, #[comptime] side: Side) -> usize {
    let mut place = inner * side.stride + outer;
    if comptime!(side.inner_first) {
        place = outer * side.stride + inner;
    }
    place / side.vector
}

#[cfg(test)]
mod tests {
    use super::super::tiles::Tiling;
    use std::collections::HashSet;

    #[test]
    fn the_units_of_a_group_move_each_number_of_a_tile_once() {
        let plain = [([8, 8], [8, 8], 1, 16), ([2, 4], [8, 4], 1, 16), ([8, 4], [8, 4], 1, 16)];
        let on_matrix_units =
            [([32, 32], [2, 4], 32, 32), ([16, 16], [1, 1], 32, 32), ([16, 32], [4, 1], 64, 32)];
        for (part, parts, workers, depth) in plain.into_iter().chain(on_matrix_units) {
            for (inner_first, vector) in
                [false, true].into_iter().flat_map(|x| [1, 2, 4, 8].map(|v| (x, v)))
            {
                let (inner_first, vectors) = ([inner_first; 2], [vector; 2]);
                let tiling = Tiling {
                    part,
                    parts,
                    workers,
                    depth,
                    inner_first,
                    vectors,
                    ..Tiling::default()
                };
                for side in [tiling.side(0), tiling.side(1)] {
                    if !side.can_move(vector) {
                        continue;
                    }
                    let (mut seen, mut places) = (HashSet::new(), HashSet::new());
                    let [by_near, by_far] = side.steps();
                    for unit in 0..side.group {
                        let [near, far] = [unit % side.across(), unit / side.across()];
                        let first = near * vector * by_near + far * by_far;
                        for (i, j) in
                            (0..side.moved()).flat_map(|i| (0..vector).map(move |j| (i, j)))
                        {
                            let (more_near, more_far) = side.place(i);
                            let number = [(near + more_near) * vector + j, far + more_far];
                            let [near_end, far_end] = side.extents();
                            assert!(number[0] < near_end * vector && number[1] < far_end);
                            assert!(seen.insert(number), "{side:?}: {number:?} twice");
                            let place = first + side.step(i, j);
                            assert!(place < side.elements() && places.insert(place), "{side:?}");
                        }
                    }
                    assert_eq!(seen.len(), side.width * side.depth, "{side:?}");
                }
            }
        }
    }
}
