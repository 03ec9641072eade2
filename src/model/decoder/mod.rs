//! The decoder, a transformer that looks back: for training anywhere, and on the CPU's vector units.
//!
//! Pre-norm, with root-mean-square norms, rotary positions, grouped-query attention and SwiGLU: with
//! these, the shape of Llama and Qwen. What enters is a linear layer of observations or the vectors of
//! tokens; all else ([`Decoder::hidden`]) takes a stream of vectors, wherever they come from.

pub(crate) mod attention;
pub(crate) mod burn;
mod config;
mod cpu;
mod kind;
pub(crate) mod layers;
mod learn;
mod matrices;
pub(crate) mod product;
pub(crate) mod products;
pub(crate) mod rope;
mod rotary;
mod shape;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
mod tiles;

pub use self::burn::Decoder;
pub use config::DecoderConfig;
pub use cpu::NativeDecoder;
pub use learn::{SequenceLearner, Sequences};
pub use shape::{DecoderShape, RopeScaling};
