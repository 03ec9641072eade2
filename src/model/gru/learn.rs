//! The gated recurrent network's hand-written backward pass on the CPU, a packed row for each step of a game.
//!
//! Only the products with the memory run step by step. The encoder, the gates' products with the input, the head and
//! all gradients of weights process the rows of all steps at once.

use crate::math::{Activation, LANES, Lanes, sigmoid, tanh};
use crate::model::layers::{HiddenLayers, HiddenTape, PackedLinear};
use crate::nn::cpu::{PolicySizes, SequenceModel, Sequences, to_lanes, to_rows};
use crate::nn::ops::WriteMode;
use crate::nn::ops::linear::Arithmetic;
use multiversion::multiversion;
use std::ops::Range;

/// The weights of a [`Gru`](super::Gru), packed for products in both directions.
#[derive(Clone, Debug)]
pub struct GruSequenceModel {
    params: Vec<f32>,
    encoder: HiddenLayers,
    input_gates: PackedLinear,
    memory_gates: PackedLinear,
    head: PackedLinear,
}

/// Activations of some games, `[num_steps, games, width]` each, which the backward pass overwrites with gradients.
#[derive(Debug, Default)]
pub struct GruTape {
    num_games: usize,
    obs: Vec<f32>,
    /// 1 where an episode starts: `[num_steps, games]`.
    starts: Vec<f32>,
    hidden: HiddenTape,
    /// The gates `r`, `z` and `n`.
    gates: Vec<f32>,
    /// The memory's products with the gates' weights.
    memory_products: Vec<f32>,
    /// The memory before and after each step.
    before: Vec<f32>,
    after: Vec<f32>,
    /// Gradient of the memory after each step: `[num_steps, games, memory_size]`.
    d_after: Vec<f32>,
    /// Gradient of the memory before a step: `[games, memory_size]`.
    d_before: Vec<f32>,
}

impl GruSequenceModel {
    /// Creates the network of these widths, features and actions included, with products in this arithmetic.
    ///
    /// # Panics
    /// If there is no hidden layer, or the number of parameters differs.
    pub fn new(
        widths: &[usize],
        activation: Activation,
        params: Vec<f32>,
        arithmetic: Arithmetic,
    ) -> Self {
        let [.., inputs, size, actions] = widths else {
            panic!("widths: of a hidden layer or more")
        };
        let (mut offset, encoder) = (0, &widths[..widths.len() - 2]);
        let encoder = HiddenLayers::take(&mut offset, encoder, activation, arithmetic);
        let mut layer =
            |inputs, outputs| PackedLinear::take(&mut offset, inputs, outputs, arithmetic);
        let mut network = Self {
            params,
            encoder,
            input_gates: layer(*inputs, 3 * size),
            memory_gates: layer(*size, 3 * size),
            head: layer(*size, *actions),
        };
        assert_eq!(network.params.len(), offset, "params: [num_params]");
        network.repack();
        network
    }

    /// Computes the hidden layers and the gates' products with the input for all steps.
    fn encode(&self, tape: &mut GruTape) {
        let (params, size) = (&self.params[..], self.head.inputs);
        let GruTape { obs, starts, hidden, gates, memory_products, before, after, .. } = tape;
        let rows = starts.len();
        self.encoder.forward(params, obs, hidden);
        for (buffer, width) in
            [(&mut *gates, 3 * size), (memory_products, 3 * size), (before, size), (after, size)]
        {
            buffer.resize(rows * width, 0.0);
        }
        self.input_gates.forward(params, hidden.results(obs), gates);
    }

    /// Runs step `t`; `memory`, `[games, size]` or empty for zeros, is the memory before the first step.
    fn step(&self, t: usize, memory: &[f32], tape: &mut GruTape) {
        let GruTape { num_games, starts, gates, memory_products, before, after, .. } = tape;
        let (size, games) = (self.head.inputs, *num_games);
        let (step, wide) = (games * size, 3 * games * size);
        let (earlier, after) = after.split_at_mut(t * step);
        let remembered = if t == 0 { memory } else { &earlier[(t - 1) * step..] };
        let before = &mut before[t * step..][..step];
        if remembered.is_empty() {
            before.fill(0.0)
        } else {
            before.copy_from_slice(remembered)
        }
        clear_starting_rows(before, &starts[t * games..][..games], size);
        let memory_products = &mut memory_products[t * wide..][..wide];
        self.memory_gates.forward(&self.params, before, memory_products);
        remember(&mut gates[t * wide..][..wide], memory_products, before, &mut after[..step], size);
    }
}

/// Clears the rows, `[games, size]`, of games that start.
fn clear_starting_rows(rows: &mut [f32], starts: &[f32], size: usize) {
    for (row, start) in rows.chunks_exact_mut(size).zip(starts) {
        if *start != 0.0 {
            row.fill(0.0);
        }
    }
}

impl SequenceModel for GruSequenceModel {
    type Tape = GruTape;

    fn sizes(&self) -> PolicySizes {
        let num_features = self.encoder.first().unwrap_or(&self.input_gates).inputs;
        PolicySizes { num_features, num_actions: self.head.outputs, memory_size: self.head.inputs }
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn repack(&mut self) {
        let Self { params, encoder, input_gates, memory_gates, head } = self;
        encoder.repack(params);
        for layer in [input_gates, memory_gates, head] {
            layer.repack(params);
        }
    }

    fn compute_logits(
        &self,
        obs: &[f32],
        memory: &mut [Lanes],
        tape: &mut GruTape,
        logits: &mut [f32],
    ) {
        let starts = vec![0.0; LANES];
        let sequences =
            Sequences { num_games: LANES, obs: obs.to_vec(), starts, memory: to_rows(memory) };
        self.forward(&sequences, 0..LANES, tape, logits);
        to_lanes(&tape.after, memory);
    }

    fn forward(
        &self,
        sequences: &Sequences,
        games: Range<usize>,
        tape: &mut GruTape,
        logits: &mut [f32],
    ) {
        let size = self.head.inputs;
        assert!(
            sequences.memory.is_empty() || sequences.memory.len() == sequences.num_games * size,
            "memory: [games, memory_size], or nothing"
        );
        tape.num_games = games.len();
        sequences.copy_rows(&sequences.obs, games.clone(), &mut tape.obs);
        sequences.copy_rows(&sequences.starts, games.clone(), &mut tape.starts);
        self.encode(tape);
        let memory = sequences.memory.get(games.start * size..games.end * size).unwrap_or_default();
        (0..sequences.num_steps()).for_each(|t| self.step(t, memory, tape));
        self.head.forward(&self.params, &tape.after, logits);
    }

    fn backward(&self, tape: &mut GruTape, d_logits: &[f32], gradient: &mut [f32]) {
        let size = self.head.inputs;
        let GruTape {
            num_games, obs, starts, hidden, gates, memory_products, before, after, ..
        } = tape;
        let (d_after, d_before) = (&mut tape.d_after, &mut tape.d_before);
        d_after.resize(after.len(), 0.0);
        self.head.compute_input_grad(d_logits, d_after, WriteMode::Overwrite);
        self.head.add_param_grads(after, d_logits, gradient);
        d_before.clear();
        d_before.resize(*num_games * size, 0.0);
        let (step, wide) = (*num_games * size, 3 * *num_games * size);
        for (t, starts) in starts.chunks_exact(*num_games).enumerate().rev() {
            let d_after = &d_after[t * step..][..step];
            let [gates, memory_products] =
                [&mut *gates, &mut *memory_products].map(|buffer| &mut buffer[t * wide..][..wide]);
            remember_backward(
                gates,
                memory_products,
                &before[t * step..][..step],
                d_after,
                d_before,
                size,
            );
            self.memory_gates.compute_input_grad(memory_products, d_before, WriteMode::Accumulate);
            clear_starting_rows(d_before, starts, size);
        }
        self.memory_gates.add_param_grads(before, memory_products, gradient);
        self.input_gates.add_param_grads(hidden.results(obs), gates, gradient);
        self.encoder.backward(obs, &self.input_gates, gates, hidden, gradient);
    }
}

/// The blocks of three gates in a row from neuron `$j` of `$size` on. A macro, since `array::map` would not be compiled
/// for the instruction set of its caller.
macro_rules! load_blocks {
    ($row:expr, $size:expr, $j:expr) => {
        [
            load_block(&$row[..$size], $j),
            load_block(&$row[$size..2 * $size], $j),
            load_block(&$row[2 * $size..3 * $size], $j),
        ]
    };
}

/// Computes the memory after a step of some games and overwrites the gates' products with the input, `gates`, with the
/// activated gates (see [`Gru`](super::Gru)).
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn remember(
    gates: &mut [f32],
    memory_products: &[f32],
    before: &[f32],
    after: &mut [f32],
    size: usize,
) {
    for (row, before) in before.chunks_exact(size).enumerate() {
        let gates = &mut gates[3 * size * row..][..3 * size];
        let memory_products = &memory_products[3 * size * row..][..3 * size];
        let after = &mut after[size * row..][..size];
        for j in (0..size).step_by(LANES) {
            let [memory_reset, memory_update, memory_new] = load_blocks!(memory_products, size, j);
            let [reset, update, new] = load_blocks!(gates, size, j);
            let before = load_block(before, j);
            let mut cells = [[0.0; LANES]; 4];
            for i in 0..LANES {
                let gates = [reset[i] + memory_reset[i], update[i] + memory_update[i], new[i]];
                let lane = step_cell(gates, memory_new[i], before[i]);
                (cells[0][i], cells[1][i], cells[2][i], cells[3][i]) =
                    (lane[0], lane[1], lane[2], lane[3]);
            }
            for (gate, lanes) in gates.chunks_exact_mut(size).zip(&cells[..3]) {
                store_block(lanes, gate, j);
            }
            store_block(&cells[3], after, j);
        }
    }
}

/// A block of a row from position `at` on; zeros beyond its end.
#[inline(always)]
fn load_block(row: &[f32], at: usize) -> Lanes {
    row[at..].first_chunk().copied().unwrap_or_else(|| {
        let mut lanes = [0.0; LANES];
        lanes[..row.len() - at].copy_from_slice(&row[at..]);
        lanes
    })
}

/// Writes a block to a row from position `at` on, up to its end.
#[inline(always)]
fn store_block(lanes: &Lanes, row: &mut [f32], at: usize) {
    let count = LANES.min(row.len() - at);
    match row[at..].first_chunk_mut() {
        Some(to) => *to = *lanes,
        None => row[at..].copy_from_slice(&lanes[..count]),
    }
}

/// The gates `r`, `z` and `n` of a neuron and its memory after a step. `r` and `z` are given as sums of their products
/// with input and memory, `n` as its product with the input alone and `memory_new`, that with the memory.
#[inline(always)]
pub(super) fn step_cell([reset, update, new]: [f32; 3], memory_new: f32, before: f32) -> [f32; 4] {
    let (reset, update) = (sigmoid(reset), sigmoid(update));
    let new = tanh(new + reset * memory_new);
    [reset, update, new, (before - new) * update + new]
}

/// The backward pass of [`remember`] for one step. On entry `d_before` is the gradient with respect to the memory after
/// this step that comes from later ones; on exit it is that with respect to the memory before this step, without the
/// path through the gates. The gradients with respect to the gates' products with input and memory overwrite `gates`
/// and `memory_products`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn remember_backward(
    gates: &mut [f32],
    memory_products: &mut [f32],
    before: &[f32],
    d_after: &[f32],
    d_before: &mut [f32],
    size: usize,
) {
    for (row, before) in before.chunks_exact(size).enumerate() {
        let gates = &mut gates[3 * size * row..][..3 * size];
        let memory_products = &mut memory_products[3 * size * row..][..3 * size];
        let d_after = &d_after[size * row..][..size];
        let d_before = &mut d_before[size * row..][..size];
        for j in (0..size).step_by(LANES) {
            let [reset, update, new] = load_blocks!(gates, size, j);
            let (memory_new, before) =
                (load_block(&memory_products[2 * size..], j), load_block(before, j));
            let (after, later) = (load_block(d_after, j), load_block(d_before, j));
            let mut gradients = [[0.0; LANES]; 5];
            for i in 0..LANES {
                let lane = [reset[i], update[i], new[i]];
                let d = step_cell_backward(lane, memory_new[i], before[i], after[i] + later[i]);
                (
                    gradients[0][i],
                    gradients[1][i],
                    gradients[2][i],
                    gradients[3][i],
                    gradients[4][i],
                ) = (d[0], d[1], d[2], d[3], d[4]);
            }
            for (gate, lanes) in gates.chunks_exact_mut(size).zip(&gradients[..3]) {
                store_block(lanes, gate, j);
            }
            for (gate, lanes) in memory_products.chunks_exact_mut(size).zip([
                &gradients[0],
                &gradients[1],
                &gradients[3],
            ]) {
                store_block(lanes, gate, j);
            }
            store_block(&gradients[4], d_before, j);
        }
    }
}

/// The backward pass of [`step_cell`], from the gradient `d` with respect to the memory after the step: the gradients
/// with respect to the arguments of `r`, `z` and `n`, to `memory_new`, and to the memory before the step without the
/// path through the gates.
#[inline(always)]
fn step_cell_backward([r, z, n]: [f32; 3], memory_new: f32, before: f32, d: f32) -> [f32; 5] {
    let d_new = d * (1.0 - z) * (1.0 - n * n);
    let d_update = d * (before - n) * (z * (1.0 - z));
    let d_reset = d_new * memory_new * (r * (1.0 - r));
    [d_reset, d_update, d_new, d_new * r, d * z]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sequence_model::tests::assert_agrees_with_autodiff;
    use crate::model::{Network, PolicyConfig};
    use crate::nn::ops::check::wave;
    use burn::tensor::{Device, Tensor, TensorData};

    const STEPS: usize = 9;
    const GAMES: usize = 7;

    #[test]
    fn gradients_are_those_of_autodiff() {
        let device = Device::flex();
        let cases = [
            (&[17][..], Activation::Relu, 0),
            (&[7, 5][..], Activation::Tanh, 5),
            (&[9, 21, 33][..], Activation::Gelu, 33),
        ];
        for (hidden, activation, remembered) in cases {
            let network = Network::new(3, 4, &PolicyConfig::gru(hidden, activation), 1, &device);
            let count = network.num_params();
            let params: Vec<f32> = wave(count, 0.731).iter().map(|x| x * 0.7).collect();
            let params = Tensor::from_data(TensorData::new(params, [count]), &device);
            let starts = (0..STEPS * GAMES).map(|i| f32::from(u8::from(i % 11 == 0)));
            let sequences = Sequences {
                num_games: GAMES,
                obs: wave(STEPS * GAMES * 3, 1.3),
                starts: starts.collect(),
                memory: wave(GAMES * remembered, 0.9),
            };
            assert_agrees_with_autodiff(&network.unflatten(&params), &sequences, &[1, 3, 16], 1e-5);
        }
    }
}
