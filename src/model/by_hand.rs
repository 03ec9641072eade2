//! Built-in networks with a hand-written backward pass over sequences.

use super::registry::gru::GruSequences;
use super::{Decoder, Gru, Network};
use crate::nn::Precision;
use crate::nn::rows::{DecoderSequences, Gradients, SequenceGradients};

/// The gradients of a network over sequences on the CPU, without autodiff and without parameters yet; `None` if the network
/// has no hand-written backward pass in this precision. See [`DecoderSequences::new`] for `checkpointing`.
pub fn by_hand(
    network: &Network,
    precision: Precision,
    checkpointing: bool,
) -> Option<Box<dyn Gradients>> {
    if let Some(decoder) = network.get::<Decoder>() {
        let model = DecoderSequences::new(decoder.shape(), checkpointing);
        return Some(Box::new(SequenceGradients::new(model)));
    }
    let gru = network.get::<Gru>().filter(|_| precision == Precision::F32)?;
    let model = GruSequences::new(&gru.widths(), gru.activation());
    Some(Box::new(SequenceGradients::new(model)))
}
