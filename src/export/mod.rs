//! Export of policies to the formats of other tools.

mod decoder;
mod graph;
pub mod onnx;
