//! The decoder, a transformer that looks back: for training anywhere, and on the CPU's vector units.
//!
//! Pre-norm, with root-mean-square norms, rotary positions, grouped-query attention and SwiGLU: with
//! these, the shape of Llama and Qwen2. What enters is a linear layer of observations; all else
//! ([`Decoder::hidden`]) takes a stream of vectors, wherever they come from.

mod attention;
mod burn;
mod config;
mod cpu;
mod kind;
mod layers;
mod learn;
mod product;
mod rope;
mod shape;
#[cfg(test)]
mod tests;
mod tiles;

pub use self::burn::Decoder;
pub use config::DecoderConfig;
pub use cpu::NativeDecoder;
pub use learn::{SequenceLearner, Sequences};
pub use shape::DecoderShape;
