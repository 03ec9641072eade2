//! The settings of a decoder: its sizes, and their limits.

use crate::model::limit;
use serde::{Deserialize, Serialize};

/// The sizes of a decoder, by Hugging Face's names; no other kind of network heeds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecoderConfig {
    /// Numbers of the stream that goes through the layers: a multiple of twice `num_heads`.
    pub hidden_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values, a divisor of `num_heads`: as many queries share one as it takes.
    pub num_kv_heads: usize,
    /// Units of a layer's gated network.
    pub intermediate_size: usize,
    /// Steps that attention sees: the present one and those before it.
    pub context: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self {
            hidden_size: 64,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            intermediate_size: 128,
            context: 32,
        }
    }
}

/// The settings with their ranges and meanings.
pub(super) const SETTINGS: &[[&str; 3]] = &[
    [
        "policy.hidden_size",
        "1 to 8192, a multiple of 2 * policy.num_heads",
        "Of a decoder: numbers of its stream.",
    ],
    ["policy.num_layers", "1 to 128", "Of a decoder: layers."],
    ["policy.num_heads", "1 to 128", "Of a decoder: heads of queries in a layer."],
    [
        "policy.num_kv_heads",
        "a divisor of policy.num_heads",
        "Of a decoder: heads of keys and values; some queries share one.",
    ],
    ["policy.intermediate_size", "1 to 32768", "Of a decoder: units of a layer's gated network."],
    [
        "policy.context",
        "1 to 8192",
        "Of a decoder: steps that attention sees, the present one included.",
    ],
];

impl DecoderConfig {
    /// The sizes in words.
    pub(super) fn sizes(&self) -> String {
        let Self { hidden_size, num_layers, num_heads, context, .. } = self;
        format!(
            "{num_layers} layers of {hidden_size}, {num_heads} heads, {context} steps of context"
        )
    }

    /// Checks the sizes and how they fit together.
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, value, most) in [
            ("policy.hidden_size", self.hidden_size, 8192),
            ("policy.num_layers", self.num_layers, 128),
            ("policy.num_heads", self.num_heads, 128),
            ("policy.intermediate_size", self.intermediate_size, 32_768),
            ("policy.context", self.context, 8192),
        ] {
            limit((1..=most).contains(&value), name, value, format!("1 to {most}"))?;
        }
        limit(
            self.hidden_size.is_multiple_of(2 * self.num_heads),
            "policy.hidden_size",
            self.hidden_size,
            format!(
                "a multiple of twice policy.num_heads ({}): the numbers of a head turn in pairs",
                self.num_heads
            ),
        )?;
        limit(
            self.num_kv_heads >= 1 && self.num_heads.is_multiple_of(self.num_kv_heads),
            "policy.num_kv_heads",
            self.num_kv_heads,
            format!("a divisor of policy.num_heads ({})", self.num_heads),
        )
    }
}
