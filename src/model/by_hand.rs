//! Built-in networks with a hand-written backward pass over sequences.

use super::registry::gru::GruSequences;
use super::{Decoder, Gru, Network};
use crate::nn::Precision;
use crate::nn::rows::{DecoderSequences, SequenceLearner, Sequences};

/// A network whose gradients over sequences take no autodiff, on the CPU.
#[derive(Clone, Debug)]
pub enum ByHand {
    /// A decoder over observations.
    Decoder(SequenceLearner<DecoderSequences>),
    /// A gated recurrent network.
    Gru(SequenceLearner<GruSequences>),
}

/// Evaluates `$run` with the learner of the variant.
macro_rules! call {
    ($by_hand:expr, $learner:ident => $run:expr) => {
        match $by_hand {
            ByHand::Decoder($learner) => $run,
            ByHand::Gru($learner) => $run,
        }
    };
}

impl ByHand {
    /// The learner for a network, without parameters yet; `None` if the network has no hand-written backward pass in this
    /// precision. See [`DecoderSequences::new`] for `checkpointing`.
    pub fn new(network: &Network, precision: Precision, checkpointing: bool) -> Option<Self> {
        if let Some(decoder) = network.get::<Decoder>() {
            let model = DecoderSequences::new(decoder.shape(), checkpointing);
            return Some(Self::Decoder(SequenceLearner::new(model)));
        }
        let gru = network.get::<Gru>().filter(|_| precision == Precision::F32)?;
        let model = GruSequences::new(&gru.widths(), gru.activation());
        Some(Self::Gru(SequenceLearner::new(model)))
    }

    /// Takes parameters; see [`SequenceLearner::set_params`].
    ///
    /// # Panics
    /// If their number is not that of the network.
    pub fn set_params(&mut self, params: Vec<f32>) {
        call!(self, learner => learner.set_params(params));
    }

    /// Logits of sequences; see [`SequenceLearner::logits`].
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn logits(&self, of: &Sequences) -> Vec<f32> {
        call!(self, learner => learner.logits(of))
    }

    /// The gradient of all parameters; see [`SequenceLearner::gradient`].
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn gradient(
        &self,
        of: &Sequences,
        partials: usize,
        slopes: impl FnOnce(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        call!(self, learner => learner.gradient(of, partials, slopes))
    }

    /// Takes back the memory of a gradient, for the next one.
    pub fn give_back(&self, gradient: Vec<f32>) {
        call!(self, learner => learner.give_back(gradient));
    }
}
