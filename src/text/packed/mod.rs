//! Whole texts on a device in kernels of our own, forward and backward: learning, and the prefill of prompts.
//!
//! Rows are packed: a prompt goes through once, whatever the number of its completions, which see its keys and values, and
//! nothing is padded. Attention recomputes its probabilities backward, so that memory is linear in the length of texts.
//! Gradients are added up in an order that depends on the texts alone. Products are those of
//! [`Products`](crate::nn::tensors::products::Products).

mod backward;
mod forward;
mod gradients;
mod head;
mod layout;

pub(crate) use forward::{PackedPass, prefill};
pub(crate) use gradients::Gradients;
pub(crate) use head::{Targets, scattered};
