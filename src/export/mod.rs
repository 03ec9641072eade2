//! Policies in the formats of other tools.

mod decoder;
mod graph;
pub mod onnx;
