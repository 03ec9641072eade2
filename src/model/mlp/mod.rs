//! The multi-layer perceptron, for training on any device, on the CPU's vector units, and inside kernels.

mod burn;
mod cpu;
#[cfg(feature = "kernels")]
pub(crate) mod kernel;
mod kind;
mod learn;

pub use self::burn::Mlp;
pub(in crate::model) use self::burn::{HEAD_GAIN, HIDDEN_GAIN, forward_hidden};
pub use cpu::NativeMlp;
