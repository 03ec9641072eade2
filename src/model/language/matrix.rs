//! The matrices of a decoder over tokens, and their products with rows, forward and back; large ones are
//! spread over the threads.
//!
//! However a product is cut up, each number of the result is the same sum in the same order.

use super::adapters::{AdapterSlot, Adapters};
#[cfg(feature = "general")]
use super::device::DeviceDecoder;
use super::rows::TokenDecoder;
use crate::model::DecoderShape;
use crate::model::decoder::layers::Slots;
use crate::model::decoder::product::{Packed, STRIP_COLUMNS, Strips, Target, View, product_packed};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a product that are many, and of a part of it at most.
const ROWS: usize = 128;
/// Rows that are worked off together.
const TILE: usize = 8;
/// Strips of columns of a part of a product of few rows at most.
const STRIPS: usize = 4;
/// Rows of a part of a weight's gradient.
const INPUTS: usize = 64;
/// Rows that are summed up at a time for a weight's gradient: as many as the caches hold.
const DEPTH: usize = 512;
/// Outputs of a large matrix that are summed up at a time for the gradient of what went in.
const DEPTH_BACK: usize = 2048;
/// Numbers of a block of a large matrix.
const BLOCK: usize = 1 << 20;

/// A matrix, `[inputs, outputs]`.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    /// Where the matrix lies among the decoder's parameters.
    pub weight: Range<usize>,
    pub inputs: usize,
    pub outputs: usize,
    /// Whether it lies there as `[outputs, inputs]`.
    pub turned: bool,
    /// The number of the matrix among the decoder's, by which copies and adapters are found.
    number: usize,
}

/// The matrices of a decoder.
#[derive(Clone, Debug)]
pub(super) struct Matrices {
    /// Those of each layer, in the order of [`Kind`].
    pub layers: Vec<[Matrix; 7]>,
    pub head: Matrix,
}

/// Which matrix of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Query,
    Key,
    Value,
    Found,
    Gate,
    Up,
    Down,
}

impl Matrices {
    /// Those of a shape.
    pub fn new(shape: &DecoderShape, slots: &Slots) -> Self {
        let mut number = 0;
        let mut matrix = |weight: &Range<usize>, inputs: usize| {
            number += 1;
            let outputs = weight.len() / inputs;
            let weight = weight.clone();
            Matrix { weight, inputs, outputs, turned: false, number: number - 1 }
        };
        let size = shape.hidden_size;
        let layers = slots.layers.iter().map(|slot| {
            let [queries, keys, values] = &slot.projections;
            [
                matrix(&queries.weight, size),
                matrix(&keys.weight, size),
                matrix(&values.weight, size),
                matrix(&slot.found, shape.query_size()),
                matrix(&slot.gate, size),
                matrix(&slot.up, size),
                matrix(&slot.down, shape.intermediate_size),
            ]
        });
        let layers = layers.collect();
        let head = match shape.tie_word_embeddings {
            true => Matrix { turned: true, ..matrix(&slots.input.weight, size) },
            false => matrix(&slots.head, size),
        };
        Self { layers, head }
    }

    /// A matrix of a layer.
    pub fn of(&self, layer: usize, kind: Kind) -> &Matrix {
        &self.layers[layer][kind as usize]
    }

    fn count(&self) -> usize {
        7 * self.layers.len() + 1
    }
}

impl Matrix {
    fn view<'a>(&self, params: &'a [f32]) -> View<'a> {
        let params = &params[self.weight.clone()];
        match self.turned {
            true => View::rows(params, self.inputs).transposed(),
            false => View::rows(params, self.outputs),
        }
    }
}

/// Copies of the matrices in the order in which products read them, made when they are first needed: for the way forward,
/// and of small decoders with rows and columns exchanged for the way back; and of all weights on a device.
#[derive(Debug)]
pub(super) struct Copies {
    /// Whether large decoders have any; else theirs are made anew for each product, a block at a time.
    pub(super) kept: bool,
    forward: Vec<OnceLock<Packed>>,
    back: Vec<OnceLock<Packed>>,
    #[cfg(feature = "general")]
    on_device: OnceLock<DeviceDecoder>,
}

impl Copies {
    /// None yet.
    pub fn none(of: &Matrices, kept: bool) -> Self {
        let none = || (0..of.count()).map(|_| OnceLock::new()).collect();
        Self {
            kept,
            forward: none(),
            back: none(),
            #[cfg(feature = "general")]
            on_device: OnceLock::new(),
        }
    }
}

thread_local! {
    /// The memory of an operand, for the next one.
    static OPERAND: RefCell<Packed> = RefCell::default();
    /// Likewise, of results before they are put together.
    static PARTS: RefCell<Vec<f32>> = RefCell::default();
}

/// Rows times a matrix, `y = x b`, or `y += x b`, without gaps.
pub(super) fn multiply(wide: bool, x: &[f32], b: &Packed, y: &mut [f32], add: bool) {
    let (inner, columns) = (b.inner(), b.columns());
    let rows = x.len() / inner;
    let part = |x: &[f32], b: Strips, y: &mut [f32], add: bool| {
        let row = b.columns();
        let target = Target { values: y, row, add };
        product_packed(View::rows(x, inner), b, target, x.len() / inner);
    };
    if !wide {
        part(x, b.strips(), y, add);
    } else if rows >= ROWS {
        let rows = rows_of_part(rows);
        let parts = y.par_chunks_mut(rows * columns).zip(x.par_chunks(rows * inner));
        parts.for_each(|(y, x)| part(x, b.strips(), y, add));
    } else {
        let mut room = PARTS.take();
        room.resize(room.len().max(rows * columns), 0.0);
        let mut rest = &mut room[..rows * columns];
        let mut parts = Vec::new();
        let (all, threads) = (columns.div_ceil(STRIP_COLUMNS), rayon::current_num_threads());
        let few = all.div_ceil(threads * all.div_ceil(threads * STRIPS));
        for strips in b.strips().parts(few) {
            let (y, after) = rest.split_at_mut(rows * strips.columns());
            parts.push((strips, y));
            rest = after;
        }
        parts.par_iter_mut().for_each(|(strips, y)| part(x, *strips, y, false));
        for (row, mut y) in y.chunks_exact_mut(columns).enumerate() {
            for (strips, part) in &parts {
                let (to, after) = y.split_at_mut(strips.columns());
                let part = &part[row * to.len()..][..to.len()];
                match add {
                    true => to.iter_mut().zip(part).for_each(|(y, x)| *y += x),
                    false => to.copy_from_slice(part),
                }
                y = after;
            }
        }
        PARTS.set(room);
    }
}

/// Rows of a part of many: all threads have as many parts, and these fill tiles.
fn rows_of_part(rows: usize) -> usize {
    let threads = rayon::current_num_threads();
    let parts = threads * rows.div_ceil(threads * ROWS);
    rows.div_ceil(parts).next_multiple_of(TILE)
}

/// Many rows times a matrix that lies anywhere, `[inner, columns]`, without gaps: `y = x b`, or `y += x b`, by all
/// threads. Blocks of the matrix are copied one after the other, and so many inner numbers are summed up at a time.
fn multiply_in_blocks(
    x: &[f32],
    b: View,
    [inner, columns, depth]: [usize; 3],
    y: &mut [f32],
    add: bool,
) {
    let rows = rows_of_part(x.len() / inner);
    let width = (BLOCK / depth.min(inner)).max(1).next_multiple_of(STRIP_COLUMNS);
    let mut block = OPERAND.take();
    for k in (0..inner).step_by(depth) {
        for j in (0..columns).step_by(width) {
            let values = &b.values[k * b.row + j * b.column..];
            block.pack_wide(View { values, ..b }, depth.min(inner - k), width.min(columns - j));
            let parts = y.par_chunks_mut(rows * columns).zip(x.par_chunks(rows * inner));
            parts.for_each(|(y, x)| {
                let x = View::rows(x, inner);
                let rows = x.values.len() / inner;
                let x = View { values: &x.values[k..], ..x };
                let target = Target { values: &mut y[j..], row: columns, add: add || k > 0 };
                product_packed(x, block.strips(), target, rows);
            });
        }
    }
    OPERAND.set(block);
}

/// Adds `x^T dy`, the gradient of a matrix from what went in and the gradient of what came out.
pub(super) fn weigh(wide: bool, [x, dy]: [&[f32]; 2], inputs: usize, gradient: &mut [f32]) {
    let outputs = gradient.len() / inputs;
    let mut packed = OPERAND.take();
    for (x, dy) in x.chunks(DEPTH * inputs).zip(dy.chunks(DEPTH * outputs)) {
        packed.pack(View::rows(dy, outputs), dy.len() / outputs, outputs);
        let part = |(number, gradient): (usize, &mut [f32])| {
            let x = View::rows(&x[number * INPUTS..], inputs).transposed();
            let rows = gradient.len() / outputs;
            let target = Target { values: gradient, row: outputs, add: true };
            product_packed(x, packed.strips(), target, rows);
        };
        match wide {
            true => gradient.par_chunks_mut(INPUTS * outputs).enumerate().for_each(part),
            false => gradient.chunks_mut(INPUTS * outputs).enumerate().for_each(part),
        }
    }
    OPERAND.set(packed);
}

/// A copy of a matrix as products read it.
fn packed(wide: bool, view: View, inner: usize, columns: usize) -> Packed {
    let mut packed = Packed::default();
    match wide {
        true => packed.pack_wide(view, inner, columns),
        false => packed.pack(view, inner, columns),
    }
    packed
}

impl TokenDecoder {
    /// The decoder in the tensors of its device, if it has one ([`TokenDecoder::with_device`]): made anew when the
    /// weights have changed.
    #[cfg(feature = "general")]
    pub fn on_device(&self) -> Option<DeviceDecoder> {
        let device = self.device.as_ref()?;
        let new = || DeviceDecoder::new(self.shape(), self.params(), device, self.precision);
        let decoder = self.copies.on_device.get_or_init(new).clone();
        Some(decoder.with_adapters(self.adapters()))
    }

    /// `y = x w`, or `y += x w`: `x` is `[rows, inputs]`.
    pub(super) fn apply(&self, matrix: &Matrix, x: &[f32], y: &mut [f32], add: bool) {
        if x.is_empty() {
            return;
        }
        let wide = !self.is_small();
        let Matrix { inputs, outputs, number, .. } = *matrix;
        let (view, copied) = (matrix.view(self.params()), &self.copies.forward[number]);
        if wide && !self.copies.kept {
            multiply_in_blocks(x, view, [inputs, outputs, inputs], y, add);
        } else {
            multiply(wide, x, copied.get_or_init(|| packed(wide, view, inputs, outputs)), y, add);
        }
        if let Some((slot, adapters)) = self.adapter(matrix) {
            let inner = adapters.inner(wide, slot, matrix, x);
            multiply(wide, &inner, &adapters.second(slot, matrix, false), y, true);
        }
    }

    /// Adds to the gradient of a matrix and to that of what went into it, from that of what came out;
    /// `dx` may be left out.
    pub(super) fn back(
        &self,
        matrix: &Matrix,
        [x, dy]: [&[f32]; 2],
        (dx, add): (&mut [f32], bool),
        gradient: &mut [f32],
    ) {
        let wide = !self.is_small();
        let Matrix { inputs, outputs, number, .. } = *matrix;
        let (view, copied) = (matrix.view(self.params()).transposed(), &self.copies.back[number]);
        if wide {
            multiply_in_blocks(dy, view, [outputs, inputs, DEPTH_BACK], dx, add);
        } else {
            let copy = copied.get_or_init(|| packed(wide, view, outputs, inputs));
            multiply(wide, dy, copy, dx, add);
        }
        match (&self.adapters, self.adapter(matrix)) {
            (Some(_), Some((slot, adapters))) => {
                adapters.back(wide, (slot, matrix), [x, dy], dx, gradient);
            }
            (Some(_), None) => {}
            (None, _) => {
                let gradient = &mut gradient[matrix.weight.clone()];
                match matrix.turned {
                    true => weigh(wide, [dy, x], matrix.outputs, gradient),
                    false => weigh(wide, [x, dy], matrix.inputs, gradient),
                }
            }
        }
    }

    /// What is added to a matrix, if anything is.
    fn adapter(&self, matrix: &Matrix) -> Option<(&AdapterSlot, &Adapters)> {
        let adapters = self.adapters.as_ref()?;
        Some((adapters.slot(matrix.number)?, adapters))
    }
}
