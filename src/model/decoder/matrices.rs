//! The matrices of a decoder as products read them, for learning on the CPU.

use super::layers::Slots;
use super::product::{Packed, Target, View, product, product_packed};
use rayon::prelude::*;
use std::ops::Range;

/// The matrices of a decoder, packed.
#[derive(Clone, Debug, Default)]
pub struct Matrices {
    pub input: Packed,
    pub layers: Vec<LayerMatrices>,
    pub head: Packed,
}

/// The matrices of a layer, packed.
#[derive(Clone, Debug, Default)]
pub struct LayerMatrices {
    /// The matrices that make queries, keys and values.
    pub projections: [Packed; 3],
    /// The matrix that what attention found goes through.
    pub found: Packed,
    pub gate: Packed,
    pub up: Packed,
    pub down: Packed,
}

impl Matrices {
    /// Packs all matrices, where `exchanged` with rows and columns exchanged.
    pub fn pack(&mut self, slots: &Slots, params: &[f32], exchanged: bool) {
        let pack = |slot: &Range<usize>, outputs: usize, packed: &mut Packed| {
            let (view, inputs) = (View::rows(&params[slot.clone()], outputs), slot.len() / outputs);
            match exchanged {
                true => packed.pack(view.transposed(), outputs, inputs),
                false => packed.pack(view, inputs, outputs),
            }
        };
        let size = slots.norm.len();
        self.layers.resize_with(slots.layers.len(), LayerMatrices::default);
        self.layers.par_iter_mut().zip(&slots.layers).for_each(|(to, layer)| {
            for (linear, to) in layer.projections.iter().zip(&mut to.projections) {
                pack(&linear.weight, linear.weight.len() / size, to);
            }
            pack(&layer.found, size, &mut to.found);
            pack(&layer.gate, layer.gate.len() / size, &mut to.gate);
            pack(&layer.up, layer.up.len() / size, &mut to.up);
            pack(&layer.down, size, &mut to.down);
        });
        pack(&slots.input.weight, size, &mut self.input);
        pack(&slots.head, slots.head.len() / size, &mut self.head);
    }
}

/// `y = x w`, rows without gaps.
pub fn apply(x: &[f32], weight: &Packed, y: &mut [f32], add: bool) {
    let target = Target { values: y, row: weight.columns(), add };
    product_packed(
        View::rows(x, weight.inner()),
        weight.strips(),
        target,
        x.len() / weight.inner(),
    );
}

/// `gradient += x^T dy`, that of a weight.
pub fn weigh(x: &[f32], dy: &[f32], inputs: usize, gradient: &mut [f32]) {
    let outputs = gradient.len() / inputs;
    let target = Target { values: gradient, row: outputs, add: true };
    let sizes = [inputs, x.len() / inputs, outputs];
    product(View::rows(x, inputs).transposed(), View::rows(dy, outputs), target, sizes);
}
