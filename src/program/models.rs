//! The user-defined models of a program, type-erased.

use crate::checkpoint::Checkpoint;
use crate::env::Rules;
use crate::model::{NamedModel, NativePolicy, Network};
use crate::rng::Stream;
use crate::settings::{ModelKind, PolicyConfig, TrainConfig};
use crate::trainer::{SnapshotError, load_policy, load_weights};
use burn::tensor::Device;

/// Creates a model from the numbers of features and actions, settings and a random key.
type Constructor = fn(usize, usize, &PolicyConfig, u32, &Device) -> Network;

/// The user-defined models that `policy.kind` may name.
#[derive(Clone, Default)]
pub struct Models(Vec<(&'static str, Constructor)>);

impl Models {
    /// Adds a model, or replaces the one of the same name.
    ///
    /// # Panics
    /// If a built-in model has the same name.
    pub fn add<M: NamedModel>(&mut self) {
        let name = M::KIND;
        assert!(!ModelKind::NAMES.contains(&name), "`{name}` is the name of a built-in model");
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, Network::user_defined::<M>));
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }

    /// Creates the initial model of a run, whose settings must have been validated.
    pub fn new_network<G: Rules>(&self, game: G, config: &TrainConfig, device: &Device) -> Network {
        let (features, actions) = (game.num_features(), game.num_actions());
        let policy = &config.policy;
        let key = Stream::Weights.key(config.seed);
        match self.find_user_defined(config) {
            Some(create) => create(features, actions, policy, key, device),
            None => Network::new(features, actions, policy, key, device),
        }
    }

    /// Loads the policy of a checkpoint that has these settings.
    pub fn load_policy<G: Rules>(
        &self,
        checkpoint: &Checkpoint,
        game: G,
        config: &TrainConfig,
    ) -> Result<NativePolicy, SnapshotError> {
        if self.find_user_defined(config).is_none() {
            return load_policy(checkpoint, game, config);
        }
        let network = self.new_network(game, config, &Device::flex());
        let network = load_weights(network, checkpoint)?;
        Ok(NativePolicy::new(&network, game.num_features(), game.num_actions()))
    }

    /// Finds the constructor of the model that the settings name, if it is user-defined.
    fn find_user_defined(&self, config: &TrainConfig) -> Option<Constructor> {
        let ModelKind::UserDefined(wanted) = &config.policy.kind else { return None };
        self.0.iter().find(|(name, _)| name == wanted).map(|(_, create)| *create)
    }
}
