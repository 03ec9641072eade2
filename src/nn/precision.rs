//! The precision of a network's products.

use serde::{Deserialize, Serialize};

/// The numbers that enter the products of a network: features, weights and activations. Sums, gradients, parameters
/// and the optimiser's state are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// IEEE half precision, on devices that have it.
    F16,
    /// The upper half of a single precision number, on devices that have it.
    Bf16,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}
