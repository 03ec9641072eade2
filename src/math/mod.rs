//! Scalar formulas, each written once as a `#[cube]` function for the CPU's lanes and for kernels.
//!
//! A `#[cube]` function has a native side, which loops over lanes compile to vectors, and a kernel side.
//! Where a device has an instruction of its own (the exponential, the logarithm), the native side is a
//! polynomial that vectorises, and the kernel side the device's own function.

pub mod activation;
pub mod adamw;
mod elementary;
#[cfg(target_family = "wasm")]
pub(crate) mod quads;
pub mod softmax;

/// Numbers of a vector: games that go through a network side by side, or columns of a matrix.
pub const LANES: usize = 16;

/// A vector of [`LANES`] numbers.
pub type Lanes = [f32; LANES];

pub use activation::Activation;
pub(crate) use elementary::{any, mul_add};
pub use elementary::{at_least, at_most, exp, ln, sigmoid, tanh};
