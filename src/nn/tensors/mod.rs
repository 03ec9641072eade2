//! The execution of a decoder in Burn's tensors, on any device, with or without autodiff.

mod attention;
mod decoder;
mod products;
mod rope;
mod steps;
#[cfg(feature = "general")]
mod texts;

pub use decoder::Decoder;
#[cfg(feature = "general")]
pub use texts::{Completions, DeviceDecoder, Prompts, Read, integers};
