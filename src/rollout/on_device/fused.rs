//! Fused rollouts on CubeCL devices: rules, perceptron and action sampling in one kernel.
//!
//! One unit plays one game and writes only a few words of a [`Recording`] per step. If the games
//! exceed the maximum buffer size, they are played in parts.

use super::branches::DeviceBranches;
use super::fused_kernels::{LaunchLimits, PackedStates, PartRollout};
use super::{EnvStatesError, RolloutKeys, env_words};
use crate::data::{Recording, RecordingPart};
use crate::device::buffers::{cube_tensor, max_part_bytes, uninit};
use crate::env::{Rules, num_words};
use crate::model::FlatMlp;
use crate::settings::{Precision, RolloutConfig};
use burn::backend::{Cube, DType};
use burn::tensor::{Device, Int, Tensor};

/// Rollouts of a run's games on one CubeCL device.
#[derive(Clone, Debug)]
pub struct FusedRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    precision: Precision,
    limits: LaunchLimits,
    groups_per_part: usize,
    branches: DeviceBranches,
}

/// Number of rows of [`RecordingPart::values`] for a game.
fn num_value_rows<G: Rules>() -> usize {
    if G::SCORE_IS_REWARD { 2 } else { 3 }
}

/// Number of elements per game of the largest buffer that a rollout fills: words, values or environments.
fn rollout_elements<G: Rules>(game: G, config: &RolloutConfig) -> usize {
    let per_step = (num_words(game) + 1).max(num_value_rows::<G>());
    (per_step * config.num_steps).max(env_words(game))
}

/// Number of elements per game of the largest buffer of a part: one that a rollout fills, or advantages followed by
/// log-probabilities under a reference policy.
fn largest_buffer_elements<G: Rules>(game: G, config: &RolloutConfig) -> usize {
    rollout_elements(game, config).max(2 * config.learn_steps + 2)
}

impl<G: Rules> FusedRollout<G> {
    /// Creates a rollout; games start with the first iteration.
    ///
    /// # Panics
    /// If the device does not run CubeCL kernels ([`crate::device::has_kernels`]).
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        assert!(crate::device::has_kernels(device), "the fused rollout needs a CubeCL device");
        let device = device.clone().without_autodiff();
        let limit = max_part_bytes(&device);
        let bytes = largest_buffer_elements(game, config) * size_of::<u32>();
        let groups_per_part = (limit as usize / bytes / config.group_size).max(1);
        Self {
            game,
            config: config.clone(),
            keys,
            device,
            precision: Precision::F32,
            limits: LaunchLimits { scale: 1.0, max_steps: usize::MAX },
            groups_per_part,
            branches: DeviceBranches::default(),
        }
    }

    /// The size of the largest buffer that a group is played into, bytes: a group cannot be divided.
    pub fn group_bytes(&self) -> u64 {
        let elements =
            rollout_elements(self.game, &self.config) as u64 * self.config.group_size as u64;
        elements * size_of::<u32>() as u64
    }

    /// Sets the precision of the network's inputs, which the device must support
    /// ([`crate::device::has_precision`]).
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Limits the number of steps per launch, at least 1; it does not affect the result.
    pub fn with_steps_per_launch(self, max_steps: usize) -> Self {
        assert!(max_steps > 0, "a launch plays a step or more");
        Self { limits: LaunchLimits { max_steps, ..self.limits }, ..self }
    }

    /// Scales the size of launches; it does not affect the result.
    pub fn with_launch_size(self, scale: f64) -> Self {
        Self { limits: LaunchLimits { scale, ..self.limits }, ..self }
    }

    /// Limits the number of groups per part, at least 1; it does not affect the games.
    pub fn with_groups_per_part(self, groups_per_part: usize) -> Self {
        assert!(groups_per_part > 0, "a part has a group or more");
        let groups_per_part = groups_per_part.min(self.groups_per_part);
        Self { groups_per_part, ..self }
    }

    /// Returns the observer with which the learner computes features from this rollout's
    /// recordings.
    pub fn observer(&self) -> PackedStates<G> {
        PackedStates(self.game)
    }

    /// Plays `num_steps` steps of every game. Nothing is read back.
    ///
    /// # Panics
    /// If the policy does not match the game.
    pub fn collect(&mut self, policy: &FlatMlp, iteration: u32) -> Recording {
        let (recording, branches) = self.play(policy, iteration);
        self.continue_from(branches);
        recording
    }

    /// Plays an iteration like [`FusedRollout::collect`] without changing the rollout. To continue
    /// from it, pass the branches to [`FusedRollout::continue_from`].
    pub fn play(&self, policy: &FlatMlp, iteration: u32) -> (Recording, DeviceBranches) {
        let (game, config) = (self.game, &self.config);
        assert_eq!(policy.shape.num_features, game.num_features(), "the policy's features");
        assert_eq!(policy.shape.num_actions, game.num_actions(), "the policy's actions");
        let keys = self.keys.for_iteration(iteration);
        let params = cube_tensor(policy.params.clone());
        let (steps, words, values) = (config.num_steps, env_words(game), num_value_rows::<G>());
        let branches = uninit(&params, &[words, config.num_groups], DType::I32);
        let mut parts = Vec::new();
        for first in (0..config.num_groups).step_by(self.groups_per_part) {
            let end = config.num_groups.min(first + self.groups_per_part);
            let games = first * config.group_size..end * config.group_size;
            let count = games.len();
            let part = PartRollout {
                game,
                config,
                games,
                envs: uninit(&params, &[words, count], DType::I32),
                words: uninit(&params, &[num_words(game) + 1, steps, count], DType::I32),
                values: uninit(&params, &[values, steps, count], DType::F32),
                initial_episodes: uninit(&params, &[2, count], DType::F32),
                branches: &branches,
            };
            let previous_branches = self.branches.envs();
            let (limits, precision) = (self.limits, self.precision);
            part.play(&params, policy.shape, previous_branches, keys, limits, precision);
            parts.push(RecordingPart {
                words: Tensor::from_primitive::<Cube>(part.words),
                values: Tensor::from_primitive::<Cube>(part.values),
                initial_episodes: Tensor::from_primitive::<Cube>(part.initial_episodes),
            });
        }
        let recording = Recording { num_steps: steps, num_envs: config.num_envs(), parts };
        (recording, DeviceBranches::new(config, branches))
    }

    /// Sets the branch points from which the next iteration starts.
    pub fn continue_from(&mut self, branches: DeviceBranches) {
        self.branches = branches;
    }

    /// Branch points, `[env_words, num_groups]`; `None` if [`FusedRollout::export_branches_async`] is empty.
    pub fn branches(&self) -> Option<Tensor<2, Int>> {
        self.branches.envs().map(|envs| Tensor::from_primitive::<Cube>(envs.clone()))
    }

    /// Exports the branch points as words `[env_words, num_groups]`; empty before the first
    /// iteration or if games start at levels. It reads back.
    pub async fn export_branches_async(&self) -> Vec<u32> {
        self.branches.download().await
    }

    /// Restores branch points from [`FusedRollout::export_branches_async`].
    ///
    /// # Errors
    /// If the number of words is wrong.
    pub fn import_branches(&mut self, words: &[u32]) -> Result<(), EnvStatesError> {
        let groups = self.config.num_groups;
        self.branches = DeviceBranches::upload(self.game, groups, words, &self.device)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Breakout, Catch};

    #[test]
    fn parts_have_room_for_advantages_beside_a_reference() {
        let config = RolloutConfig { num_steps: 9, learn_steps: 9, ..RolloutConfig::default() };
        assert_eq!((num_words(Catch::default()), num_value_rows::<Catch>()), (1, 2));
        assert_eq!(rollout_elements(Catch::default(), &config), 2 * 9);
        assert_eq!(largest_buffer_elements(Catch::default(), &config), 2 * 9 + 2);
        let config = RolloutConfig { learn_steps: 5, ..config };
        assert_eq!(largest_buffer_elements(Catch::default(), &config), 2 * 9);
    }

    #[test]
    fn parts_have_room_for_the_environments() {
        let config = RolloutConfig { num_steps: 1, learn_steps: 1, ..RolloutConfig::default() };
        assert_eq!(largest_buffer_elements(Breakout::default(), &config), 5);
    }
}
