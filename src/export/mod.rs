//! Policies in the formats of other tools.

pub mod onnx;
