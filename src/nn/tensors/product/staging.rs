//! Tiles of operands, and how units stage them in workgroup memory.

// Keeps compile-time conditions separate from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Operand, RightOperands};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The layout of an operand's tile in workgroup memory; a compile-time value. Units read vectors of neighbours in
/// memory, along the near dimension; the other one is the far dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TileLayout {
    /// Rows of the left operand's tile, or columns of the right one's.
    pub width: usize,
    pub depth: usize,
    /// Units that move it.
    pub num_units: usize,
    /// Whether the inner dimension is the near one.
    pub is_inner_near: bool,
    /// Elements of a vector.
    pub vector_size: usize,
    /// Whether it is in the order of memory, `[far, stride]`, instead of `[depth, stride]`.
    pub keeps_order: bool,
    /// Elements of a row of the tile.
    pub stride: usize,
}

impl TileLayout {
    /// Vectors along the near dimension, and elements along the far one.
    fn extents(&self) -> [usize; 2] {
        let [near, far] =
            if self.is_inner_near { [self.depth, self.width] } else { [self.width, self.depth] };
        [near / self.vector_size, far]
    }

    /// Vectors that each unit moves.
    pub fn vectors_per_unit(&self) -> usize {
        self.extents().iter().product::<usize>() / self.num_units
    }

    /// Whether the units can move it in vectors of `vector_size` elements.
    pub fn can_move(self, vector_size: usize) -> bool {
        let [near, far] = Self { vector_size: 1, ..self }.extents();
        let layout = Self { vector_size, ..self };
        near.is_multiple_of(vector_size)
            && layout.vectors_per_unit() * self.num_units * vector_size == near * far
    }

    /// Units along the near dimension.
    fn near_units(&self) -> usize {
        self.num_units.min(self.extents()[0])
    }

    /// Place of vector `i` of a unit, from its first one on: vectors along the near dimension, elements along the far
    /// one.
    fn place(&self, i: usize) -> (usize, usize) {
        let near_units = self.near_units();
        let along = self.extents()[0] / near_units;
        (i % along * near_units, i / along * (self.num_units / near_units))
    }

    /// Distances in workgroup memory between neighbours along the near and the far dimension.
    fn strides(&self) -> [usize; 2] {
        if self.is_inner_near && !self.keeps_order { [self.stride, 1] } else { [1, self.stride] }
    }

    /// Distance in workgroup memory from a unit's first element to element `j` of its vector `i`.
    fn element_offset(&self, i: usize, j: usize) -> usize {
        let ((near, far), [by_near, by_far]) = (self.place(i), self.strides());
        (near * self.vector_size + j) * by_near + far * by_far
    }

    /// Elements of the tile, with the padding of its rows.
    pub fn num_elements(&self) -> usize {
        let rows = if self.keeps_order { self.extents()[1] } else { self.depth };
        self.stride * rows
    }

    /// Vectors of the tile, with the padding of its rows.
    pub fn num_vectors(&self) -> usize {
        self.num_elements() / self.vector_size
    }
}

/// Place of an operand's tile, and the unit that moves a part of it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Tile {
    /// First vector of the batch's matrix in the buffer.
    pub matrix_offset: usize,
    /// First row or column.
    pub outer: usize,
    /// End of the matrix's rows or columns.
    pub outer_end: usize,
    /// End of the inner steps.
    pub inner_end: usize,
    /// First element or vector in workgroup memory.
    pub offset: usize,
    pub unit: usize,
}

/// The elements of a tile that a unit moves to workgroup memory. They are as in the operand until they are written, so
/// that nothing waits for them before.
#[derive(CubeType)]
pub(super) struct StagedVectors<N: Float, V: Size> {
    vectors: Array<Vector<N, V>>,
}

#[cube]
impl<N: Float, V: Size> StagedVectors<N, V> {
    pub fn new(#[comptime] layout: TileLayout) -> StagedVectors<N, V> {
        StagedVectors::<N, V> {
            vectors: Array::<Vector<N, V>>::new(comptime!(layout.vectors_per_unit())),
        }
    }

    /// Reads a unit's elements of a tile from inner step `first_step` on; those past the ends are 0.
    pub fn read(
        &mut self,
        operand: &Operand<N, V>,
        tile: &Tile,
        first_step: usize,
        #[comptime] layout: TileLayout,
    ) {
        let vector = comptime!(layout.vector_size);
        let mut near = first_near(tile.unit, layout) * vector;
        let mut far = first_far(tile.unit, layout);
        let mut near_end = tile.outer_end;
        let mut far_end = tile.inner_end;
        if comptime!(layout.is_inner_near) {
            near += first_step;
            far += tile.outer;
            near_end = tile.inner_end;
            far_end = tile.outer_end;
        } else {
            near += tile.outer;
            far += first_step;
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
            by_near = operand.near_stride;
        }
        let first = tile.matrix_offset + near / vector * by_near + far * operand.far_stride;
        #[unroll]
        for i in 0..comptime!(layout.vectors_per_unit()) {
            let (near, far) = comptime!(layout.place(i));
            let mut elements = Vector::<N, V>::new(N::from_int(0));
            if near < near_left && far < far_left {
                elements = operand.elements[first + near * by_near + far * operand.far_stride];
            }
            self.vectors[i] = elements;
        }
    }

    /// Reads a unit's elements of a tile of the right operand with this index.
    pub fn read_right(
        &mut self,
        rights: &RightOperands<N, V>,
        right_index: usize,
        tile: &Tile,
        first_step: usize,
        #[comptime] layout: TileLayout,
        #[comptime] num_rights: usize,
    ) {
        if right_index == 0 {
            self.read(&rights.first.operand, tile, first_step, layout);
        }
        if comptime!(num_rights > 1) {
            if right_index == 1 {
                self.read(&rights.second.operand, tile, first_step, layout);
            }
        }
        if comptime!(num_rights > 2) {
            if right_index == 2 {
                self.read(&rights.third.operand, tile, first_step, layout);
            }
        }
    }

    /// Writes them to workgroup memory element by element, rounded to `I`.
    pub fn write<I: Float>(&self, shared: &mut [f32], tile: &Tile, #[comptime] layout: TileLayout) {
        let [by_near, by_far] = comptime!(layout.strides());
        let first = first_near(tile.unit, layout) * comptime!(layout.vector_size * by_near);
        let first = tile.offset + first + first_far(tile.unit, layout) * by_far;
        #[unroll]
        for i in 0..comptime!(layout.vectors_per_unit()) {
            let elements = Vector::<f32, V>::cast_from(Vector::<I, V>::cast_from(self.vectors[i]));
            #[unroll]
            for j in 0..comptime!(layout.vector_size) {
                shared[first + comptime!(layout.element_offset(i, j))] = elements.extract(j);
            }
        }
    }

    /// Writes them to workgroup memory in the order of memory, rounded to `I`.
    pub fn write_vectors<I: Float>(
        &self,
        shared: &mut [Vector<I, V>],
        tile: &Tile,
        #[comptime] layout: TileLayout,
    ) {
        let far = first_far(tile.unit, layout) * comptime!(layout.stride / layout.vector_size);
        let first = tile.offset + first_near(tile.unit, layout) + far;
        #[unroll]
        for i in 0..comptime!(layout.vectors_per_unit()) {
            let elements = Vector::<I, V>::cast_from(self.vectors[i]);
            shared[first + comptime!(layout.element_offset(i, 0) / layout.vector_size)] = elements;
        }
    }
}

/// The place of a unit's first vector in a tile along the near dimension, in vectors.
#[cube]
fn first_near(unit: usize, #[comptime] layout: TileLayout) -> usize {
    unit % comptime!(layout.near_units())
}

/// The place of a unit's first vector in a tile along the far dimension.
#[cube]
fn first_far(unit: usize, #[comptime] layout: TileLayout) -> usize {
    unit / comptime!(layout.near_units())
}

/// The place of the vector that begins with an element of a tile in workgroup memory, in the order of memory.
#[cube]
pub(super) fn vector_offset(outer: usize, inner: usize, #[comptime] layout: TileLayout) -> usize {
    let mut offset = inner * layout.stride + outer;
    if comptime!(layout.is_inner_near) {
        offset = outer * layout.stride + inner;
    }
    offset / layout.vector_size
}

#[cfg(test)]
mod tests {
    use super::super::tiles::{OperandTiling, Tiling};
    use std::collections::HashSet;

    #[test]
    fn the_units_of_a_group_move_each_element_of_a_tile_once() {
        let plain = [([8, 8], [8, 8], 1, 16), ([2, 4], [8, 4], 1, 16), ([8, 4], [8, 4], 1, 16)];
        let on_matrix_units =
            [([32, 32], [2, 4], 32, 32), ([16, 16], [1, 1], 32, 32), ([16, 32], [4, 1], 64, 32)];
        for (part, num_parts, units_per_part, depth) in plain.into_iter().chain(on_matrix_units) {
            for (is_inner_near, vector) in
                [false, true].into_iter().flat_map(|x| [1, 2, 4, 8].map(|v| (x, v)))
            {
                let operand = OperandTiling { is_inner_near, vector_size: vector };
                let tiling = Tiling::new(part, num_parts);
                let (left, right) = (operand, operand);
                let tiling = Tiling { units_per_part, depth, left, right, ..tiling };
                for layout in [tiling.left_layout(), tiling.right_layout()] {
                    if !layout.can_move(vector) {
                        continue;
                    }
                    let (mut seen, mut offsets) = (HashSet::new(), HashSet::new());
                    let [by_near, by_far] = layout.strides();
                    for unit in 0..layout.num_units {
                        let [near, far] = [unit % layout.near_units(), unit / layout.near_units()];
                        let first = near * vector * by_near + far * by_far;
                        for (i, j) in (0..layout.vectors_per_unit())
                            .flat_map(|i| (0..vector).map(move |j| (i, j)))
                        {
                            let (more_near, more_far) = layout.place(i);
                            let element = [(near + more_near) * vector + j, far + more_far];
                            let [near_end, far_end] = layout.extents();
                            assert!(element[0] < near_end * vector && element[1] < far_end);
                            assert!(seen.insert(element), "{layout:?}: {element:?} twice");
                            let offset = first + layout.element_offset(i, j);
                            assert!(
                                offset < layout.num_elements() && offsets.insert(offset),
                                "{layout:?}"
                            );
                        }
                    }
                    assert_eq!(seen.len(), layout.width * layout.depth, "{layout:?}");
                }
            }
        }
    }
}
