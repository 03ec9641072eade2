//! Forward and backward passes of whole texts on a device, in kernels: for learning, and for the prefill of prompts.
//!
//! Rows are packed without padding: a prompt passes through once, and all its completions attend to its keys and
//! values. The backward pass of attention recomputes probabilities, so that memory is linear in the length of texts.
//! Gradients are summed in an order that depends on the texts alone. Products are those of
//! [`ProductPrecision`](crate::nn::tensors::products::ProductPrecision).

mod attention_backward;
mod backward;
mod forward;
mod gradients;
mod head;
mod layout;
#[cfg(test)]
mod tests;

pub(crate) use backward::backward_bytes;
pub(crate) use forward::{PackedPass, attention_bytes, forward_bytes, prefill};
pub(crate) use gradients::Gradients;
pub(crate) use head::{Targets, scatter_add_parts};
