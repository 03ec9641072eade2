//! Training in environments on the host.

use super::GameTrainer;
use crate::env::{Env, HostEnvs, HostGame, Rules};
use crate::model::Network;
use crate::parallel::Team;
use crate::rng::Stream;
use crate::rollout::{ActionSelection, EpisodeKeys, Evaluation};
use crate::settings::{GroupStart, ModelKind, TrainConfig};
use crate::trainer::TrainError;
use crate::trainer::choose::initial_network;
use crate::trainer::rank_part::EngineInputs;
use burn::cubecl::future::block_on;
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
    Game(String),
    /// The sizes of the batch are not those of the settings.
    #[error(
        "the batch has {} environments of {} features and {} actions, but the settings ask for {} \
         (num_groups * group_size) of {} and {}",
        found.envs, found.features, found.actions, expected.envs, expected.features, expected.actions
    )]
    Sizes {
        /// Sizes by the settings.
        expected: BatchSizes,
        /// Sizes of the batch.
        found: BatchSizes,
    },
    /// The settings start groups in the middle of an episode.
    #[error(
        "rollout.start is branch, but environments on the host cannot be copied: set it to level"
    )]
    Start,
    /// The settings name a network that only the user's program knows.
    #[error(
        "policy.kind is `{0}`, which is user-defined: give such a network to `with_envs_and_model`"
    )]
    Model(String),
}

impl GameTrainer<HostGame> {
    /// Creates a run in environments on the host, one for each of `config.rollout`'s games, with a new built-in network
    /// by `config.policy`. `config` must have been validated. A saved run resumes by
    /// `GameTrainer::with_envs(...)?.restored(&checkpoint)`.
    ///
    /// # Errors
    /// If a size of `game` is out of range or differs from the environments', if there are not as many environments as
    /// games, if groups are to start in the middle of an episode, or if the network is user-defined.
    pub fn with_envs(
        game: HostGame,
        envs: HostEnvs,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, HostSetupError> {
        if let ModelKind::UserDefined(name) = &config.policy.kind {
            return Err(HostSetupError::Model(name.clone()));
        }
        check(&game, &envs, config)?;
        let network = initial_network(game, config, device);
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
    game.validate().map_err(HostSetupError::Game)?;
    let found = {
        let envs = envs.lock();
        let (features, actions) = (envs.num_features(), envs.num_actions());
        BatchSizes { envs: envs.num_envs(), features, actions }
    };
    let (features, actions) = (game.num_features(), game.num_actions());
    let expected = BatchSizes { envs: config.rollout.num_envs(), features, actions };
    if found != expected {
        return Err(HostSetupError::Sizes { expected, found });
    }
    match config.rollout.start {
        GroupStart::Level => Ok(()),
        GroupStart::Branch => Err(HostSetupError::Start),
    }
}

impl<G: Rules> GameTrainer<G> {
    /// Whether the run plays in environments on the host.
    pub fn is_on_host(&self) -> bool {
        self.engine.host.is_some()
    }

    /// Evaluates the policy on `episodes` episodes of levels that neither training nor its evaluations use. The levels
    /// follow from `seed`, as those of `grove eval --seed` do.
    ///
    /// # Errors
    /// If an environment on the host fails.
    ///
    /// # Panics
    /// If `episodes` is 0.
    pub fn evaluate_fresh(
        &self,
        episodes: usize,
        seed: u64,
        selection: ActionSelection,
    ) -> Result<Evaluation, TrainError> {
        let keys = EpisodeKeys::new(Stream::Evaluation, seed);
        Ok(Evaluation::of(&block_on(self.engine.play(0..episodes, keys, selection))?))
    }
}
