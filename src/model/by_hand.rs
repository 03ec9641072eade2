//! Built-in networks with a hand-written backward pass over sequences.

use super::registry::gru::GruSequences;
use super::{Decoder, Gru, Network};
use crate::nn::rows::{DecoderSequences, Gradients, SequenceGradients};
use crate::nn::{Precision, parameters};
use burn::cubecl::future::block_on;

/// Creates the gradients of a copy of a network over sequences on the CPU, without autodiff; `None` if the network has no
/// hand-written backward pass in this precision. See [`DecoderSequences::new`] for `checkpointing`.
pub fn by_hand(
    network: &Network,
    precision: Precision,
    checkpointing: bool,
) -> Option<Box<dyn Gradients>> {
    let params = || block_on(parameters::read(network.flatten()));
    if let Some(decoder) = network.get::<Decoder>() {
        let model = DecoderSequences::new(decoder.shape(), params(), checkpointing);
        return Some(Box::new(SequenceGradients::new(model)));
    }
    let gru = network.get::<Gru>().filter(|_| precision == Precision::F32)?;
    let model = GruSequences::new(&gru.widths(), gru.activation(), params());
    Some(Box::new(SequenceGradients::new(model)))
}
