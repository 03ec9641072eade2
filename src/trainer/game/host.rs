//! Training in environments on the host.

use super::GameTrainer;
use crate::env::{self, Env, HostEnvs, HostGame, Rules};
use crate::model::Network;
use crate::parallel::Team;
use crate::settings::{GroupStart, TrainConfig};
use crate::trainer::choose::new_network;
use crate::trainer::rank_part::EngineInputs;
use burn::tensor::Device;

/// Sizes of a batch of environments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Number of environments.
    pub envs: usize,
    /// Number of features of an observation.
    pub features: usize,
    /// Number of actions.
    pub actions: usize,
}

/// Mismatches between environments on the host and the settings of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostSetupError {
    /// A size of the game is out of range.
    #[error("{0}")]
    InvalidGame(String),
    /// A setting is out of range.
    #[error("{0}")]
    InvalidSettings(String),
    /// The sizes of the batch are not those of the settings.
    #[error(
        "the batch has {} environments of {} features and {} actions, but the settings ask for {} \
         (num_groups * group_size) of {} and {}",
        found.envs, found.features, found.actions, expected.envs, expected.features, expected.actions
    )]
    SizeMismatch { expected: BatchSizes, found: BatchSizes },
    /// The settings start groups in the middle of an episode.
    #[error(
        "rollout.start is branch, but environments on the host cannot be copied: set it to level"
    )]
    BranchStart,
    /// The settings name a network that only the user's program knows.
    #[error(
        "policy.kind is `{0}`, which is user-defined: give such a network to `with_envs_and_model`"
    )]
    UserDefinedModel(String),
}

impl GameTrainer<HostGame> {
    /// Creates a run in environments on the host, one for each of `config.rollout`'s games, with a new built-in network
    /// by `config.policy`. A saved run resumes by
    /// `GameTrainer::with_envs(...)?.with_checkpoint(&checkpoint)`.
    ///
    /// # Errors
    /// If a size of `game` is out of range or differs from the environments', if a setting is out of range, if there
    /// are not as many environments as games, if groups are to start in the middle of an episode, or if the network is
    /// user-defined.
    pub fn with_envs(
        game: HostGame,
        envs: HostEnvs,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, HostSetupError> {
        if let Some(name) = config.policy.kind.user_defined() {
            return Err(HostSetupError::UserDefinedModel(name.to_string()));
        }
        check(&game, &envs, config)?;
        let network = new_network(game, config, device);
        Self::with_envs_and_model(game, envs, network, config, device)
    }

    /// Creates a run of a model on `device` in environments on the host, like [`GameTrainer::with_envs`].
    ///
    /// # Errors
    /// The errors of [`GameTrainer::with_envs`], without that about a user-defined network.
    ///
    /// # Panics
    /// If the model's numbers of features and actions are not the game's.
    pub fn with_envs_and_model(
        game: HostGame,
        envs: HostEnvs,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, HostSetupError> {
        check(&game, &envs, config)?;
        let inputs = EngineInputs { game, model: model.into(), data: None, host: Some(envs) };
        let run = Self::from_inputs(inputs, None, config, device, &Team::alone());
        Ok(run.expect("one rank is never too many"))
    }
}

/// Checks that the environments fit the run.
fn check(game: &HostGame, envs: &HostEnvs, config: &TrainConfig) -> Result<(), HostSetupError> {
    env::validate(game).map_err(HostSetupError::InvalidGame)?;
    config
        .validate_for_any_model()
        .map_err(|error| HostSetupError::InvalidSettings(error.to_string()))?;
    let found = {
        let envs = envs.lock();
        let (features, actions) = (envs.num_features(), envs.num_actions());
        BatchSizes { envs: envs.num_envs(), features, actions }
    };
    let (features, actions) = (game.num_features(), game.num_actions());
    let expected = BatchSizes { envs: config.rollout.num_envs(), features, actions };
    if found != expected {
        return Err(HostSetupError::SizeMismatch { expected, found });
    }
    match config.rollout.start {
        GroupStart::Level => Ok(()),
        GroupStart::Branch => Err(HostSetupError::BranchStart),
    }
}

impl<G: Rules> GameTrainer<G> {
    /// Whether the run plays in environments on the host.
    pub fn is_on_host(&self) -> bool {
        self.engine.host.is_some()
    }
}
