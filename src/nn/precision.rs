//! The precision of a network's products.

use serde::{Deserialize, Serialize};

/// The type of the operands of a network's matrix products: features, weights and activations. Sums, gradients,
/// parameters and the optimiser's state are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// IEEE half precision, on devices that support it.
    F16,
    /// bfloat16, the upper half of a single precision number, on devices that support it.
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
