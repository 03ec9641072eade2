//! The interface of engines, and their saved state.

use super::TrainError;
use crate::data::GameSums;
use crate::learner::{Moments, UpdateMeans};
use crate::metrics::{EvaluationRecord, IterationRecord};
use crate::model::Network;
use crate::parallel::{Shards, Team, TeamError};
use crate::rollout::EnvStatesError;
use burn::tensor::Device;
use std::borrow::Cow;

/// The part of a [`Trainer`](super::Trainer) that differs between policies for games
/// ([`GameEngine`](super::GameEngine)) and language models ([`LanguageEngine`](super::text::LanguageEngine)). Only the
/// constructors of these two create trainers; the trait serves code that is generic over both.
///
/// All ranks that share a run must call its methods together.
#[allow(async_fn_in_trait, reason = "futures stay on the thread that made them")]
pub trait Engine: Send {
    /// Settings of the run.
    type Config;
    /// Errors that end training.
    type Error: From<TrainError> + From<TeamError> + Send;

    /// Settings of the run.
    fn config(&self) -> &Self::Config;

    /// Number of iterations of the whole run.
    fn iterations(&self) -> u32;

    /// Environment steps since the start of the run; tokens for a language model.
    fn env_steps(&self) -> u64;

    /// Ranks that share the run.
    fn team(&self) -> &Team;

    /// Shards of a batch, and this rank's range of them.
    fn shards(&self) -> Shards;

    /// The device; `None` for the CPU without a tensor library.
    fn device(&self) -> Option<&Device>;

    /// Human-readable description of the engine.
    fn describe(&self) -> String;

    /// Whether iterations run on a thread of the rayon pool, which saves waking the calling thread after each phase.
    /// False on devices, since CubeCL has a queue per thread, and where an iteration calls the user's environments or
    /// verifiers, which may be bound to the calling thread.
    fn runs_in_pool(&self) -> bool;

    /// Trains iteration `iteration`, counted from 0; the rollout of iteration `next_iteration` may be started early.
    /// The returned record lacks the metrics that the trainer measures.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    async fn train_iteration(
        &mut self,
        iteration: u32,
        next_iteration: Option<u32>,
    ) -> Result<IterationRecord, Self::Error>;

    /// Evaluates the greedy policy on the episodes, prompts or demonstrations that select the best one.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    async fn evaluate_on_validation(&self) -> Result<EvaluationRecord, Self::Error>;

    /// Learnt parameters, `[num_params]`, by which ranks compare their policies.
    async fn params(&self) -> Cow<'_, [f32]>;
}

/// The phases of GRPO, which `run_phases` of [`trainer`](super) calls in order. Each fails if an environment or a task
/// fails, or another rank of the run fails or does not respond.
pub(super) trait IterationPhases {
    /// Result of a rollout.
    type Trajectory;
    /// Advantages of the rollout's actions.
    type Advantages;
    /// Metrics of an update, not yet read back.
    type Stats;
    /// Sums and means over an iteration.
    type Totals;
    /// Errors that end training.
    type Error;

    /// Plays the games, or completes the prompts, of iteration `iteration`.
    fn roll_out(&mut self, iteration: u32) -> Result<Self::Trajectory, Self::Error>;

    /// Compares every action with those of its group.
    fn compute_advantages(
        &mut self,
        trajectory: &Self::Trajectory,
    ) -> Result<Self::Advantages, Self::Error>;

    /// Moves the policy towards the better actions.
    fn update(
        &mut self,
        trajectory: &Self::Trajectory,
        advantages: &Self::Advantages,
        iteration: u32,
    ) -> Result<Self::Stats, Self::Error>;

    /// Waits for the totals of the iteration; the rollout of iteration `next_iteration` may be started meanwhile.
    async fn read_totals(
        &mut self,
        trajectory: Self::Trajectory,
        advantages: Self::Advantages,
        stats: Self::Stats,
        next_iteration: Option<u32>,
    ) -> Result<Self::Totals, Self::Error>;

    /// Waits for the device if that is cheap enough to time the phases separately. Returns false if it does not wait.
    fn finish_phase(&self) -> bool {
        true
    }
}

/// An engine for policies of games: rollouts, advantages and updates in matching formats.
pub(super) trait PolicyEngine:
    IterationPhases<Totals = GameTotals, Error = TrainError>
{
    /// Plays the rollout of `iteration` and discards it; the run is unchanged.
    fn rehearse(&mut self, iteration: u32);

    /// Human-readable description of the engine.
    fn describe(&self) -> String;

    /// Checks that a rollout fits on the device.
    ///
    /// # Errors
    /// If it does not fit, with the reason and the settings that reduce its size.
    fn check_size(&self) -> Result<(), String> {
        Ok(())
    }

    /// The current model.
    fn model(&self) -> Network;

    /// Exports the state, with this rank's part of the games. On a device this reads back.
    async fn export_state(&self) -> PolicyState;

    /// Restores a state.
    ///
    /// # Errors
    /// If the games do not fit.
    fn import_state(&mut self, state: &PolicyState) -> Result<(), EnvStatesError>;
}

/// Sums and means over an iteration of games or of a dataset.
#[derive(Clone, Copy, Debug)]
pub(super) struct GameTotals {
    /// Sums over the games of all ranks; zeros for a dataset.
    pub games: GameSums,
    /// Seconds spent waiting for data.
    pub waiting_seconds: f64,
    /// Fraction of groups without variance.
    pub zero_variance_fraction: f64,
    /// Metrics of the update.
    pub update: UpdateMeans,
}

/// Writes the means of an update to the record of its iteration.
pub(super) fn write_means(record: &mut IterationRecord, update: UpdateMeans) {
    UpdateMeans {
        approx_kl: record.approx_kl,
        clip_fraction: record.clip_fraction,
        entropy: record.entropy,
        reference_kl: record.reference_kl,
        loss: record.loss,
        grad_norm: record.grad_norm,
    } = update;
}

/// The state of a run's games and learner, in host memory.
pub(super) struct PolicyState {
    /// Parameters, `[num_params]`.
    pub params: Vec<f32>,
    /// Moments of the optimizer.
    pub moments: Moments,
    /// Parameters of the reference policy, `[num_params]`.
    pub reference: Option<Vec<f32>>,
    /// Game states from which the groups continue, `[env_words, num_groups]`; the groups are all those of the run, or,
    /// in an engine, this rank's.
    pub branches: Vec<u32>,
    /// Memory of the model at these states, `[num_groups, memory_size]`; empty for models without memory.
    pub memory: Vec<f32>,
}
