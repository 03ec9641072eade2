//! Runs in environments on the host.

use super::super::TrainError;
use super::super::choose::first_network;
use super::GameTrainer;
use crate::env::{HostEnvs, HostGame, Rules};
use crate::parallel::Team;
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player};
use crate::settings::{Start, TrainConfig};
use burn::cubecl::future::block_on;
use burn::tensor::Device;

/// The reason why environments on the host do not fit a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostSetupError {
    /// The batch has other sizes than the settings.
    #[error(
        "the batch has {} environments of {} features and {} actions, but the settings ask for {} \
         (num_groups * group_size) of {} and {}",
        found[0], found[1], found[2], expected[0], expected[1], expected[2]
    )]
    Sizes {
        /// Environments, features and actions of the settings.
        expected: [usize; 3],
        /// Environments, features and actions of the batch.
        found: [usize; 3],
    },
    /// Groups are to start in the middle of an episode.
    #[error(
        "rollout.start is branch, but environments on the host cannot be copied: set it to level"
    )]
    Start,
}

impl GameTrainer<HostGame> {
    /// Creates a run in environments on the host, with a new network by `config.policy`. There is one environment
    /// for each of `config.rollout`'s games; `config` must have been validated.
    ///
    /// # Errors
    /// If the sizes of the environments differ from `game`'s, their number from that of the games, or groups are to
    /// start in the middle of an episode.
    pub fn with_envs(
        game: HostGame,
        envs: HostEnvs,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, HostSetupError> {
        let found = {
            let envs = envs.lock();
            [envs.num_envs(), envs.num_features(), envs.num_actions()]
        };
        let (features, actions) = (game.num_features as usize, game.num_actions as usize);
        let expected = [config.rollout.num_envs(), features, actions];
        if found != expected {
            return Err(HostSetupError::Sizes { expected, found });
        }
        if config.rollout.start != Start::Level {
            return Err(HostSetupError::Start);
        }
        let network = first_network(game, config, device);
        let run = Self::of(game, network, config, device, None, Some(envs), &Team::alone());
        Ok(run.expect("one rank is never too many"))
    }
}

impl<G: Rules> GameTrainer<G> {
    /// Whether the run plays in environments on the host.
    pub fn is_on_host(&self) -> bool {
        self.engine.host.is_some()
    }

    /// Plays `episodes` episodes of levels that neither training nor its evaluations use.
    ///
    /// # Errors
    /// If an environment on the host fails.
    pub fn evaluate_fresh(
        &self,
        episodes: usize,
        seed: u64,
        player: Player,
    ) -> Result<Evaluation, TrainError> {
        let draws = (Stream::Evaluation, seed);
        Ok(Evaluation::of(&block_on(self.engine.play(0..episodes, draws, player))?))
    }
}
