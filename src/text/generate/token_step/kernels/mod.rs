//! Kernels of a token step. Sums are in an order that depends on sizes alone.

pub(crate) mod attend;
pub(crate) mod choose;
pub(crate) mod heads;
pub(crate) mod rows;

/// Units of a cube.
pub(crate) const UNITS: usize = 64;
