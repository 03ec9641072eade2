//! Built-in networks with a hand-written backward pass over sequences.

use super::gru::GruSequences;
use super::{Decoder, Gru, Network};
use crate::nn::Precision;
use crate::nn::rows::{DecoderSequences, SequenceGradients, Sequences};

/// A network whose gradients over sequences take no autodiff, on the CPU.
#[derive(Clone, Debug)]
pub enum ByHand {
    /// A decoder over observations.
    Decoder(SequenceGradients<DecoderSequences>),
    /// A gated recurrent network.
    Gru(SequenceGradients<GruSequences>),
}

/// Evaluates `$run` with the gradients of the variant.
macro_rules! call {
    ($by_hand:expr, $gradients:ident => $run:expr) => {
        match $by_hand {
            ByHand::Decoder($gradients) => $run,
            ByHand::Gru($gradients) => $run,
        }
    };
}

impl ByHand {
    /// The gradients of a network, without parameters yet; `None` if the network has no hand-written backward pass in this
    /// precision. See [`DecoderSequences::new`] for `checkpointing`.
    pub fn new(network: &Network, precision: Precision, checkpointing: bool) -> Option<Self> {
        if let Some(decoder) = network.get::<Decoder>() {
            let model = DecoderSequences::new(decoder.shape(), checkpointing);
            return Some(Self::Decoder(SequenceGradients::new(model)));
        }
        let gru = network.get::<Gru>().filter(|_| precision == Precision::F32)?;
        let model = GruSequences::new(&gru.widths(), gru.activation());
        Some(Self::Gru(SequenceGradients::new(model)))
    }

    /// Takes parameters; see [`SequenceGradients::set_params`].
    ///
    /// # Panics
    /// If their number is not that of the network.
    pub fn set_params(&mut self, params: Vec<f32>) {
        call!(self, gradients => gradients.set_params(params));
    }

    /// Logits of sequences; see [`SequenceGradients::logits`].
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn logits(&self, of: &Sequences) -> Vec<f32> {
        call!(self, gradients => gradients.logits(of))
    }

    /// The gradient of all parameters; see [`SequenceGradients::gradient`].
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn gradient(
        &self,
        of: &Sequences,
        partials: usize,
        slopes: impl FnOnce(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        call!(self, gradients => gradients.gradient(of, partials, slopes))
    }

    /// Takes back the memory of a gradient, for the next one.
    pub fn give_back(&self, gradient: Vec<f32>) {
        call!(self, gradients => gradients.give_back(gradient));
    }
}
