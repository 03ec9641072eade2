//! The multi-layer perceptron's backward pass on the CPU by products of packed rows, a row for each step of a game.
//!
//! Learning in f32 has passes of its own, which need no packing and skip zeros (`learner/native/perceptron/`). Products
//! in bf16 are of packed rows, and pay where layers are wide.

use crate::math::{Activation, Lanes};
use crate::model::layers::{HiddenLayers, HiddenTape, PackedLinear};
use crate::nn::cpu::{PolicySizes, SequenceModel, Sequences};
use crate::nn::ops::linear::Arithmetic;
use std::ops::Range;

/// The weights of an [`Mlp`](super::Mlp), packed for products in both directions.
#[derive(Clone, Debug)]
pub struct MlpSequenceModel {
    params: Vec<f32>,
    hidden: HiddenLayers,
    head: PackedLinear,
}

/// Observations of some steps, `[steps, num_features]`, and the activations of the hidden layers.
#[derive(Debug, Default)]
pub struct MlpTape {
    obs: Vec<f32>,
    hidden: HiddenTape,
}

impl MlpSequenceModel {
    /// Creates the network of these widths, features and actions included, with products in this arithmetic.
    ///
    /// # Panics
    /// If there are fewer than two widths, or the number of parameters differs.
    pub fn new(
        widths: &[usize],
        activation: Activation,
        params: Vec<f32>,
        arithmetic: Arithmetic,
    ) -> Self {
        let [.., inputs, actions] = widths else { panic!("widths: of features and actions") };
        let (mut offset, hidden) = (0, &widths[..widths.len() - 1]);
        let hidden = HiddenLayers::take(&mut offset, hidden, activation, arithmetic);
        let head = PackedLinear::take(&mut offset, *inputs, *actions, arithmetic);
        assert_eq!(params.len(), offset, "params: [num_params]");
        let mut network = Self { params, hidden, head };
        network.repack();
        network
    }

    /// Computes the logits of the steps in `tape`.
    fn run_layers(&self, MlpTape { obs, hidden }: &mut MlpTape, logits: &mut [f32]) {
        self.hidden.forward(&self.params, obs, hidden);
        self.head.forward(&self.params, hidden.results(obs), logits);
    }
}

impl SequenceModel for MlpSequenceModel {
    type Tape = MlpTape;

    fn sizes(&self) -> PolicySizes {
        let num_features = self.hidden.first().unwrap_or(&self.head).inputs;
        PolicySizes { num_features, num_actions: self.head.outputs, memory_size: 0 }
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn repack(&mut self) {
        self.hidden.repack(&self.params);
        self.head.repack(&self.params);
    }

    fn compute_logits(
        &self,
        obs: &[f32],
        _memory: &mut [Lanes],
        tape: &mut MlpTape,
        logits: &mut [f32],
    ) {
        obs.clone_into(&mut tape.obs);
        self.run_layers(tape, logits);
    }

    fn forward(
        &self,
        sequences: &Sequences,
        games: Range<usize>,
        tape: &mut MlpTape,
        logits: &mut [f32],
    ) {
        sequences.copy_rows(&sequences.obs, games, &mut tape.obs);
        self.run_layers(tape, logits);
    }

    fn backward(&self, tape: &mut MlpTape, d_logits: &[f32], gradient: &mut [f32]) {
        let MlpTape { obs, hidden } = tape;
        self.head.add_param_grads(hidden.results(obs), d_logits, gradient);
        self.hidden.backward(obs, &self.head, d_logits, hidden, gradient);
    }
}
