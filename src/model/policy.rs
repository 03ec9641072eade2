//! The settings of a policy: which network, and how large.

use super::registry::OwnSettings;
use crate::math::Activation;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

pub use super::registry::ModelKind;

/// A network from features to action logits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyConfig {
    /// Which network.
    #[serde(default)]
    pub kind: ModelKind,
    /// Units of each hidden layer: one to eight numbers, 1 to 4096 each. Of a `gru` the last layer is
    /// the recurrent one.
    pub hidden: Vec<usize>,
    /// What follows each hidden layer but a recurrent one.
    pub activation: Activation,
    /// What only one kind of network heeds.
    #[serde(flatten)]
    pub own: OwnSettings,
}

impl PolicyConfig {
    /// A network of this kind with these hidden layers. What other settings it has are as by default.
    pub fn new(kind: ModelKind, hidden: &[usize], activation: Activation) -> Self {
        Self { kind, hidden: hidden.to_vec(), activation, own: OwnSettings::default() }
    }

    /// The hidden layers in words.
    pub(super) fn hidden_sizes(&self) -> String {
        format!("hidden {:?}", self.hidden)
    }

    /// The widths of the layers of a network with hidden layers, from its features to its actions.
    pub(super) fn widths(&self, num_features: usize, num_actions: usize) -> Vec<usize> {
        let hidden = self.hidden.iter().copied();
        std::iter::once(num_features).chain(hidden).chain([num_actions]).collect()
    }
}

/// `Ok` if `ok`, else "`name` is `value`, but must be `range`".
pub(crate) fn limit(
    ok: bool,
    name: &str,
    value: impl Display,
    range: impl Display,
) -> Result<(), String> {
    if ok { Ok(()) } else { Err(format!("{name} is {value}, but must be {range}")) }
}
