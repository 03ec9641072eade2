//! The execution of a decoder in Burn's tensors, on any device, with or without autodiff.

mod attention;
mod decoder;
mod products;
mod rope;
mod steps;
#[cfg(feature = "general")]
pub mod texts;
#[cfg(not(feature = "general"))]
#[path = "host_only.rs"]
pub mod texts;

pub use decoder::Decoder;
