//! Neural networks: operators, decoder architectures as data, and the two executors that run them.
//!
//! [`ops`] holds the operators, forward and backward, on packed rows. [`arch`] describes a decoder: its sizes,
//! switches, parameter layout, initial weights and the names that files give it. [`cpu`] executes it on the CPU, for
//! texts and for games; [`tensors`] executes it in Burn's tensors on any device.

pub mod arch;
#[cfg(feature = "kernels")]
pub(crate) mod buffers;
pub mod cpu;
mod decoder_params;
pub mod ops;
pub(crate) mod orthogonal;
pub(crate) mod parameters;
mod precision;
pub mod tensors;
pub mod text;

pub use arch::{DecoderInput, DecoderShape, Parameter, RopeScaling};
pub use decoder_params::{DecoderParams, StoredParameter};
pub use parameters::{flatten, named_parameters, unflatten};
pub use precision::Precision;
