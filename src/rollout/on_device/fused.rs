//! Rollouts of a perceptron on a CubeCL device, fused: rules, policy and draws in one kernel.
//!
//! One unit plays one game; between its steps a few words of a [`Recording`] are written, and nothing
//! else. More games than fit a buffer are played in parts.

use super::env_kernels::{download_envs, steps_per_launch, upload_envs};
use super::{EnvStatesError, RolloutKeys, env_state, env_words};
use crate::config::{Precision, RolloutConfig, Start};
use crate::data::{Part, Recording};
use crate::device::buffers::{cube_tensor, max_buffer_bytes, uninit};
use crate::env::{Rules, num_words};
use crate::model::FlatMlp;
use burn::backend::{Cube, DType};
use burn::cubecl::future::block_on;
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

pub use super::fused_kernels::PackedStates;

/// The games of a run on one CubeCL device.
#[derive(Clone, Debug)]
pub struct FusedRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    precision: Precision,
    steps_per_launch: usize,
    groups_per_part: usize,
    branches: Branches,
}

/// Where the groups go on in the next iteration, on the device; nowhere before the first, or where
/// games start at levels.
#[derive(Clone, Debug, Default)]
pub struct Branches(Option<Box<CubeTensor>>);

/// The buffers of a part of an iteration.
pub(super) struct Buffers<'a, G: Rules> {
    pub game: G,
    pub config: &'a RolloutConfig,
    pub games: Range<usize>,
    pub envs: CubeTensor,
    pub words: CubeTensor,
    pub values: CubeTensor,
    pub first_scores: CubeTensor,
    pub branches: &'a CubeTensor,
}

/// Rows of [`Part::values`] of a game.
fn values<G: Rules>() -> usize {
    if G::SCORE_IS_REWARD { 2 } else { 3 }
}

impl<G: Rules> FusedRollout<G> {
    /// No game is started before the first rollout.
    ///
    /// # Panics
    /// If the device is none of CubeCL's ([`crate::device::has_kernels`]).
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        assert!(crate::device::has_kernels(device), "the fused rollout needs a CubeCL device");
        let device = device.clone().without_autodiff();
        let limit = max_buffer_bytes(&device);
        let bytes = (num_words(game) + 1).max(values::<G>()) * config.num_steps * size_of::<u32>();
        let groups_per_part = (limit as usize / bytes / config.group_size).max(1);
        let steps_per_launch = steps_per_launch(config.num_envs());
        Self {
            game,
            config: config.clone(),
            keys,
            device,
            precision: Precision::F32,
            steps_per_launch,
            groups_per_part,
            branches: Branches::default(),
        }
    }

    /// The same with the network's inputs of another precision, which the device must have
    /// ([`crate::device::has_precision`]).
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same with so many steps of every game a launch, 1 or more; the result is the same too.
    pub fn with_steps_per_launch(self, steps_per_launch: usize) -> Self {
        assert!(steps_per_launch > 0, "a launch plays a step or more");
        Self { steps_per_launch, ..self }
    }

    /// The same with so many groups a part at most, 1 or more; the games are the same too.
    pub fn with_groups_per_part(self, groups_per_part: usize) -> Self {
        assert!(groups_per_part > 0, "a part has a group or more");
        let groups_per_part = groups_per_part.min(self.groups_per_part);
        Self { groups_per_part, ..self }
    }

    /// What tells the learner how to observe this rollout's recordings.
    pub fn observer(&self) -> PackedStates<G> {
        PackedStates(self.game)
    }

    /// Plays `num_steps` steps of every game. Nothing is read back.
    ///
    /// # Panics
    /// If the policy is of another game.
    pub fn collect(&mut self, policy: &FlatMlp, iteration: u32) -> Recording {
        let (recording, branches) = self.play(policy, iteration);
        self.go_on_from(branches);
        recording
    }

    /// What [`FusedRollout::collect`] does, but that it leaves this rollout where it was: with
    /// [`FusedRollout::go_on_from`] it goes on.
    pub fn play(&self, policy: &FlatMlp, iteration: u32) -> (Recording, Branches) {
        let (game, config) = (self.game, &self.config);
        assert_eq!(policy.shape.features, game.num_features(), "the policy's features");
        assert_eq!(policy.shape.actions, game.num_actions(), "the policy's actions");
        let keys = self.keys.at(iteration);
        let params = cube_tensor(policy.params.clone());
        let (steps, words, values) = (config.num_steps, env_words(game), values::<G>());
        let branches = uninit(&params, &[words, config.num_groups], DType::I32);
        let mut parts = Vec::new();
        for first in (0..config.num_groups).step_by(self.groups_per_part) {
            let end = config.num_groups.min(first + self.groups_per_part);
            let games = first * config.group_size..end * config.group_size;
            let count = games.len();
            let buffers = Buffers {
                game,
                config,
                games,
                envs: uninit(&params, &[words, count], DType::I32),
                words: uninit(&params, &[num_words(game) + 1, steps, count], DType::I32),
                values: uninit(&params, &[values, steps, count], DType::F32),
                first_scores: uninit(&params, &[count], DType::F32),
                branches: &branches,
            };
            let origins = self.branches.0.as_deref();
            let (launch, precision) = (self.steps_per_launch, self.precision);
            buffers.play(&params, policy.shape, origins, keys, launch, precision);
            parts.push(Part {
                words: Tensor::from_primitive::<Cube>(buffers.words),
                values: Tensor::from_primitive::<Cube>(buffers.values),
                first_scores: Tensor::from_primitive::<Cube>(buffers.first_scores),
            });
        }
        let branches = (config.start == Start::Branch).then(|| Box::new(branches));
        let num_envs = config.num_envs();
        (Recording { num_steps: steps, num_envs, parts }, Branches(branches))
    }

    /// Makes the next iteration start from there.
    pub fn go_on_from(&mut self, branches: Branches) {
        self.branches = branches;
    }

    /// Where the groups go on, `[env_words, num_groups]`; none where [`FusedRollout::export`] gives none.
    pub fn branches(&self) -> Option<Tensor<2, Int>> {
        self.branches.0.as_deref().map(|envs| Tensor::from_primitive::<Cube>(envs.clone()))
    }

    /// Where the groups go on, as words `[env_words, num_groups]`; none before the first iteration
    /// or where games start at levels. This reads back and waits.
    pub fn export(&self) -> Vec<u32> {
        block_on(self.export_async())
    }

    /// The asynchronous form of [`FusedRollout::export`], for where a thread must not block.
    pub async fn export_async(&self) -> Vec<u32> {
        download_envs(self.branches.0.as_deref()).await
    }

    /// Goes on with what [`FusedRollout::export`] gave.
    ///
    /// # Errors
    /// If the number of words does not fit.
    pub fn import(&mut self, words: &[u32]) -> Result<(), EnvStatesError> {
        let groups = self.config.num_groups;
        env_state::check_len(self.game, groups, words)?;
        let upload = || Box::new(upload_envs(words, groups, &self.device));
        self.branches = Branches((!words.is_empty()).then(upload));
        Ok(())
    }
}
