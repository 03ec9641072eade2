//! The models that a program has besides Grove's own, whatever their types.

use crate::checkpoint::Checkpoint;
use crate::config::{ModelKind, PolicyConfig, TrainConfig};
use crate::env::Rules;
use crate::model::{NamedModel, NativePolicy, Network, OwnModel};
use crate::rng::Stream;
use crate::trainer::{SnapshotError, load_policy};
use burn::tensor::Device;

/// Makes a model for so many features and actions, by settings and a key.
type Make = fn(usize, usize, &PolicyConfig, u32, &Device) -> OwnModel;

/// The models that `policy.kind` may name besides Grove's own.
#[derive(Clone, Default)]
pub struct Models(Vec<(&'static str, Make)>);

impl Models {
    /// With another model, in place of one that has its name.
    ///
    /// # Panics
    /// If one of Grove's has its name.
    pub fn with<M: NamedModel>(mut self) -> Self {
        let name = M::KIND;
        assert!(
            !ModelKind::NAMES.contains(&name),
            "a model of one's own cannot be called `{name}`"
        );
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, OwnModel::new::<M>));
        self
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }

    /// The model that a run starts with. Its settings must have been validated.
    pub fn network<G: Rules>(&self, game: G, config: &TrainConfig, device: &Device) -> Network {
        let (features, actions) = (game.num_features(), game.num_actions());
        let (policy, key) = (&config.policy, Stream::Weights.key(config.seed));
        match self.own(config) {
            Some(make) => Network::Own(make(features, actions, policy, key, device)),
            None => Network::new(features, actions, policy, key, device),
        }
    }

    /// The policy in a checkpoint of these settings.
    ///
    /// # Errors
    /// If it holds no policy for this game.
    pub fn load_policy<G: Rules>(
        &self,
        checkpoint: &Checkpoint,
        game: G,
        config: &TrainConfig,
    ) -> Result<NativePolicy, SnapshotError> {
        match self.own(config) {
            Some(_) => self.network(game, config, &Device::flex()).policy_in(checkpoint),
            None => load_policy(checkpoint, game, config),
        }
    }

    /// What makes the model that settings name, if it is none of Grove's.
    fn own(&self, config: &TrainConfig) -> Option<Make> {
        let ModelKind::Own(wanted) = &config.policy.kind else { return None };
        self.0.iter().find(|(name, _)| name == wanted).map(|(_, make)| *make)
    }
}
