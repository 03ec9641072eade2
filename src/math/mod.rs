//! Scalar formulas, each a single `#[cube]` function shared by CPU lanes and kernels.
//!
//! The native side of a `#[cube]` function vectorizes when called in a loop over lanes. Functions
//! with a device intrinsic (exponential, logarithm) use a vectorizable polynomial natively and the
//! intrinsic in kernels.
//!
//! [`block_quantized`] is not a formula but a number format.

pub mod activation;
pub mod adamw;
pub mod block_quantized;
mod elementary;
#[cfg(target_family = "wasm")]
pub(crate) mod quads;
#[cfg(feature = "kernels")]
pub(crate) mod reduction;
mod rotation;
pub mod softmax;

/// Width of a vector in numbers: games that a network processes side by side, or columns of a matrix.
pub const LANES: usize = 16;

/// A vector of [`LANES`] numbers.
pub type Lanes = [f32; LANES];

pub use activation::Activation;
pub(crate) use elementary::{MAX_EXPONENT, has_nonzero, mul_add};
pub use elementary::{at_least, at_most, exp, ln, sigmoid, tanh};
pub(crate) use rotation::rotate_pair;
#[cfg(text_kernels)]
pub(crate) use rotation::unrotate_pair;

/// Applies a function to each element, always inlined. The compiler often makes a call of [`array::map`], which costs
/// more than the function and lacks the vector instructions that its caller is compiled for.
#[inline(always)]
pub(crate) fn map_array<T: Copy, U, const N: usize>(from: [T; N], f: impl Fn(T) -> U) -> [U; N] {
    std::array::from_fn(
        #[inline(always)]
        |i| f(from[i]),
    )
}
