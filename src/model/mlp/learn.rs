//! The multi-layer perceptron's backward pass on the CPU by products of packed rows, a row for each step of a game.
//!
//! Learning in f32 has passes of its own, which need no packing and skip zeros (`learner/host/perceptron/`). Products
//! in bf16 are of packed rows, and pay where layers are wide.

use crate::math::{Activation, Lanes};
use crate::model::layers::{HiddenLayers, HiddenRecord, Layer};
use crate::nn::ops::linear::Arithmetic;
use crate::nn::rows::{PolicySizes, SequenceModel, Sequences};
use std::ops::Range;

/// The weights of an [`Mlp`](super::Mlp), packed for products in both directions.
#[derive(Clone, Debug)]
pub struct MlpSequenceModel {
    params: Vec<f32>,
    hidden: HiddenLayers,
    head: Layer,
}

/// Observations of some steps, `[steps, num_features]`, and the activations of the hidden layers.
#[derive(Debug, Default)]
pub struct Record {
    obs: Vec<f32>,
    hidden: HiddenRecord,
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
        let (mut end, hidden) = (0, &widths[..widths.len() - 1]);
        let hidden = HiddenLayers::take(&mut end, hidden, activation, arithmetic);
        let head = Layer::take(&mut end, *inputs, *actions, arithmetic);
        assert_eq!(params.len(), end, "params: [num_params]");
        let mut network = Self { params, hidden, head };
        network.repack();
        network
    }

    /// Computes the logits of the steps in `record`.
    fn logits(&self, Record { obs, hidden }: &mut Record, logits: &mut [f32]) {
        self.hidden.forward(&self.params, obs, hidden);
        self.head.forward(&self.params, hidden.results(obs), logits);
    }
}

impl SequenceModel for MlpSequenceModel {
    type Record = Record;

    fn sizes(&self) -> PolicySizes {
        let features = self.hidden.first().unwrap_or(&self.head).inputs;
        PolicySizes { features, actions: self.head.outputs, memory: 0 }
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

    fn act(&self, obs: &[f32], _memory: &mut [Lanes], record: &mut Record, logits: &mut [f32]) {
        obs.clone_into(&mut record.obs);
        self.logits(record, logits);
    }

    fn forward(
        &self,
        sequences: &Sequences,
        games: Range<usize>,
        record: &mut Record,
        logits: &mut [f32],
    ) {
        sequences.rows(&sequences.obs, games, &mut record.obs);
        self.logits(record, logits);
    }

    fn backward(&self, record: &mut Record, d_logits: &[f32], gradient: &mut [f32]) {
        let Record { obs, hidden } = record;
        self.head.param_grads(hidden.results(obs), d_logits, gradient);
        self.hidden.backward(obs, (&self.head, d_logits), hidden, gradient);
    }
}
