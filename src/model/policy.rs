//! The settings of a policy: which network, and how large.

use super::registry::KindSettings;
use crate::math::Activation;
use crate::schema::settings;

pub use super::registry::ModelKind;

/// Widths of the layers of a network with hidden layers, features and actions included, and its activation.
pub(super) type HiddenShape = (Vec<usize>, Activation);

settings! {
    /// A network from features to action logits.
    pub struct PolicyConfig: Eq {
        /// Network; `gru` and `decoder` have memory.
        kind: ModelKind;
        /// Units of each hidden layer of an `mlp` or `gru`, whose last layer is the recurrent one.
        hidden: Vec<usize> = vec![64, 64], in integers(1..=8, 1..=4096);
        /// Activation after each hidden layer but a recurrent one.
        activation: Activation = Activation::Relu;
        /// Settings of one kind of network alone.
        @flatten kind_settings: KindSettings;
    }
}

impl PolicyConfig {
    /// A network of this kind with these hidden layers, and defaults for the other settings.
    pub fn new(kind: ModelKind, hidden: &[usize], activation: Activation) -> Self {
        Self { kind, hidden: hidden.to_vec(), activation, kind_settings: KindSettings::default() }
    }

    /// The hidden layers in words.
    pub(super) fn describe_hidden(&self) -> String {
        format!("hidden {:?}", self.hidden)
    }

    /// The widths of the layers of a network with hidden layers, from its features to its actions.
    pub(super) fn widths(&self, num_features: usize, num_actions: usize) -> Vec<usize> {
        let hidden = self.hidden.iter().copied();
        std::iter::once(num_features).chain(hidden).chain([num_actions]).collect()
    }
}
