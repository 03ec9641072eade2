//! The interface of engines, and their saved state.

use super::TrainError;
use super::prefetch::WindowPrefetcher;
use crate::data::{GameSums, WindowSet, Windows};
use crate::device;
use crate::learner::{Batches, Moments, UpdateMeans};
use crate::metrics::{EvaluationRecord, IterationRecord};
use crate::model::Network;
use crate::parallel::{Shards, Team, TeamError};
use crate::rollout::EnvStatesError;
use crate::settings::TrainConfig;
use burn::tensor::Device;
use std::borrow::Cow;

/// The part of a [`Trainer`](super::Trainer) that differs between policies for games
/// ([`GameEngine`](super::GameEngine)) and language models ([`TextEngine`](super::text::TextEngine)). Only the
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

    /// Trains iteration number `iteration`, counted from 0; the rollout of iteration `next` may be started early. The
    /// returned record lacks the metrics that the trainer measures.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    async fn iterate(
        &mut self,
        iteration: u32,
        next: Option<u32>,
    ) -> Result<Iteration, Self::Error>;

    /// Evaluates the greedy policy, including on held-out demonstrations if there are any.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    async fn evaluate_greedy(&self) -> Result<EvaluationRecord, Self::Error>;

    /// Learnt parameters, `[num_params]`, by which ranks compare their policies.
    async fn params(&self) -> Cow<'_, [f32]>;
}

/// Result of one iteration of an engine.
#[derive(Clone, Debug)]
pub struct Iteration {
    /// Metrics, without those that the trainer measures.
    pub record: IterationRecord,
    /// Environment steps, or tokens for a language model.
    pub steps: u64,
}

/// The phases of GRPO, which `iterate` of [`trainer`](super) calls in order. Each fails if an environment or a task
/// fails, or another rank of the run fails or does not respond.
pub(super) trait Grpo {
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
    fn rollout(&mut self, iteration: u32) -> Result<Self::Trajectory, Self::Error>;

    /// Compares every action with those of its group.
    fn advantages(
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

    /// Waits for the totals of the iteration; the rollout of iteration `next` may be started meanwhile.
    async fn totals(
        &mut self,
        trajectory: Self::Trajectory,
        advantages: Self::Advantages,
        stats: Self::Stats,
        next: Option<u32>,
    ) -> Result<Self::Totals, Self::Error>;

    /// Waits for the device if that is cheap enough to time the phases separately. Returns whether it waited.
    fn finish_phase(&self) -> bool;
}

/// An engine for policies: rollouts, advantages and updates in matching formats.
pub(super) trait PolicyEngine: Grpo<Totals = Totals, Error = TrainError> {
    /// Plays the rollout of `iteration` and discards it; the run is unchanged.
    fn rehearse(&mut self, iteration: u32);

    /// Human-readable description of the engine.
    fn describe(&self) -> String;

    /// The reason why a rollout does not fit on the device, and which settings reduce its size; `None` if it fits.
    fn size_limit(&self) -> Option<String> {
        None
    }

    /// The current model.
    fn model(&self) -> Network;

    /// Exports the state, with this rank's part of the games. On a device this reads back.
    async fn export(&self) -> State;

    /// Restores a state.
    ///
    /// # Errors
    /// If the games do not fit.
    fn import(&mut self, state: &State) -> Result<(), EnvStatesError>;
}

/// Bytes up to which a resident dataset is loaded before the run begins; larger ones are streamed until they have been
/// loaded in the background.
const AT_ONCE: u64 = 1 << 20;

/// The source of the steps that an engine learns from.
#[derive(Debug)]
pub(super) enum Source<R, D> {
    /// Games played by the policy.
    Games(R),
    /// A dataset in the memory of the device, from which an iteration copies nothing.
    Resident(D),
    /// A dataset read from its files batch by batch.
    Streamed(Box<WindowPrefetcher>),
}

impl<R, D> Source<R, D> {
    /// Opens the dataset of these shards: resident and converted by `keep` if it fits in memory, otherwise streamed. A
    /// resident dataset of more than `most` bytes, the size of a buffer, is loaded at once rather than streamed first:
    /// it is summed in another order, and results must not depend on when loading finishes.
    pub fn of_data(
        pieces: WindowSet,
        config: &TrainConfig,
        shards: &Shards,
        most: u64,
        keep: impl FnOnce(Windows) -> D,
    ) -> Self {
        let stays = is_resident(&pieces, config);
        let at_once =
            cfg!(target_family = "wasm") || !(AT_ONCE + 1..=most).contains(&pieces.bytes());
        if stays && at_once {
            return Self::kept(pieces.all(), keep);
        }
        let batches = Batches::of_shards(config, shards.clone());
        let stream = WindowPrefetcher::new(pieces, batches);
        Self::Streamed(Box::new(if stays { stream.reading_all() } else { stream }))
    }

    fn kept(windows: Windows, keep: impl FnOnce(Windows) -> D) -> Self {
        device::count_upload(windows.bytes());
        Self::Resident(keep(windows))
    }

    /// Makes a streamed dataset resident, converted by `keep`, once it has been loaded in the background.
    pub fn settle(&mut self, keep: impl FnOnce(Windows) -> D) {
        let Self::Streamed(stream) = self else { return };
        let Some(windows) = stream.all() else { return };
        *self = Self::kept(windows, keep);
    }

    /// Human-readable location of the dataset; `None` for games.
    pub fn data(&self) -> Option<&'static str> {
        match self {
            Self::Games(_) => None,
            Self::Streamed(stream) if !stream.reads_all() => Some("a dataset read as it is needed"),
            _ => Some("a dataset in memory"),
        }
    }

    /// Whether windows arrive batch by batch, in the order of learning.
    pub fn is_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    /// Returns the seconds spent waiting for data since the last call.
    pub fn take_waited(&mut self) -> f64 {
        match self {
            Self::Streamed(stream) => stream.take_waited(),
            _ => 0.0,
        }
    }
}

impl<R, T: Clone, A: Clone> Source<R, Box<(T, A)>> {
    /// The windows of an iteration, converted by `convert`, with their weights as advantages; `None` for games.
    pub fn take(&mut self, iteration: u32, convert: impl Fn(&Windows) -> (T, A)) -> Option<(T, A)> {
        self.settle(|windows| Box::new(convert(&windows)));
        match self {
            Self::Games(_) => None,
            Self::Resident(data) => Some((**data).clone()),
            Self::Streamed(stream) => {
                let windows = stream.take(iteration);
                let converted = convert(&windows);
                stream.give_back(windows);
                Some(converted)
            }
        }
    }
}

/// Whether a dataset is kept in memory: if it needs at most `data.resident_mb`, or, where that is 0, half of the free
/// memory.
fn is_resident(pieces: &WindowSet, config: &TrainConfig) -> bool {
    let most = match config.data.resident_mb {
        0 => device::data_budget(),
        megabytes => Some(megabytes << 20),
    };
    most.is_none_or(|most| pieces.bytes() <= most)
}

/// Sums and means over an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// Sums over the games of all ranks; zeros for a dataset.
    pub games: GameSums,
    /// Seconds spent waiting for data.
    pub waited: f64,
    /// Fraction of groups without variance.
    pub zero_variance: f64,
    /// Metrics of the update.
    pub update: UpdateMeans,
}

/// Copies the metrics of an update into the record of its iteration.
pub(super) fn record_means(record: &mut IterationRecord, update: UpdateMeans) {
    UpdateMeans {
        approx_kl: record.approx_kl,
        clip_fraction: record.clip_fraction,
        entropy: record.entropy,
        reference_kl: record.reference_kl,
        loss: record.loss,
        grad_norm: record.grad_norm,
    } = update;
}

/// The state of a run's games and learner in host memory.
pub(super) struct State {
    /// Parameters, `[num_params]`.
    pub params: Vec<f32>,
    /// Moments of the optimizer.
    pub moments: Moments,
    /// Parameters of the reference policy, `[num_params]`.
    pub reference: Option<Vec<f32>>,
    /// Game states from which the groups continue, `[env_words, num_groups]`; the groups are all those of the run, or,
    /// in an engine, this rank's.
    pub games: Vec<u32>,
    /// Memory of the model at these states, `[num_groups, memory_size]`; empty for models without memory.
    pub memory: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Columns, Cut, End, Steps};
    use std::sync::Arc;

    #[test]
    fn data_in_several_buffers_are_resident_from_the_first_iteration() {
        let steps = 40_000;
        let columns = Columns {
            num_features: 8,
            obs: vec![0.0; 8 * steps],
            actions: vec![0; steps],
            weights: vec![1.0; steps],
            ends: (0..steps).map(|step| End::new(step % 100 == 99, false)).collect(),
        };
        let episodes = columns.episodes();
        let pieces = WindowSet::new(Arc::new(columns), &episodes, Cut::plain(1, 1));
        let mut config = TrainConfig::for_game("any");
        (config.data.path, config.data.resident_mb) = ("somewhere".to_string(), 64);
        let shards = Shards::new(pieces.len(), 1);
        let is_streamed = |config: &TrainConfig, most: u64| {
            Source::<(), usize>::of_data(pieces.clone(), config, &shards, most, |all| all.len())
                .is_streamed()
        };
        assert!(is_streamed(&config, u64::MAX) && !is_streamed(&config, AT_ONCE));
        config.data.resident_mb = 1;
        assert!(is_streamed(&config, AT_ONCE), "too large to be resident");
    }
}
