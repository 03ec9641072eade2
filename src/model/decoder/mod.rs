//! The decoder as a policy: a transformer that looks back at the last steps of an episode.
//!
//! `nn` holds the network itself; this folder makes a model of games of it: settings, memory, and acting on the CPU's
//! vector units.

mod burn;
mod config;
mod cpu;
mod kind;
#[cfg(test)]
mod tests;

pub use crate::nn::tensors::Decoder;
pub use config::DecoderConfig;
pub use cpu::NativeDecoder;
