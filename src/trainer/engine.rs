//! The interface of engines, and the state that is saved of them.

use super::TrainError;
use super::stream::Stream;
use crate::data::{Pieces, Windows};
use crate::device;
use crate::learner::{Batches, Moments, UpdateMeans};
use crate::metrics::{EvaluationRecord, IterationRecord};
use crate::model::Network;
use crate::parallel::{Shards, Team, TeamError};
use crate::rollout::EnvStatesError;
use crate::settings::TrainConfig;
use burn::tensor::Device;
use std::borrow::Cow;

/// The half of a [`Trainer`](super::Trainer) that knows what is learnt: a policy for a game
/// ([`GameEngine`](super::GameEngine)), or a language model for a task
/// ([`TextEngine`](super::text::TextEngine)). Their constructors alone make trainers; the trait is for code that takes
/// a trainer of either.
///
/// All ranks that share a run must call its methods together.
#[allow(async_fn_in_trait, reason = "futures stay on the thread that made them")]
pub trait Engine: Send {
    /// The settings.
    type Config;
    /// The reasons for which it stops.
    type Error: From<TrainError> + From<TeamError> + Send;

    /// The settings.
    fn config(&self) -> &Self::Config;

    /// Iterations of the whole run.
    fn iterations(&self) -> u32;

    /// Environment steps since the start of the run; of a language model, tokens.
    fn env_steps(&self) -> u64;

    /// The ranks that share the run.
    fn team(&self) -> &Team;

    /// The shards of a batch, and which of them are this rank's.
    fn shards(&self) -> Shards;

    /// The device; `None` for the CPU without a tensor library.
    fn device(&self) -> Option<&Device>;

    /// A description, for people.
    fn describe(&self) -> String;

    /// Whether iterations run on a thread of the rayon pool, which saves waking the caller after each phase. False on
    /// devices, as CubeCL has a queue per thread, and where an iteration calls the user's environments or verifiers,
    /// which may belong to the caller's thread.
    fn runs_in_pool(&self) -> bool;

    /// Trains the iteration of this number, from 0. The rollout of the `next` one may be started before. The record
    /// that it returns lacks what the trainer measures.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank is gone or silent.
    async fn iterate(
        &mut self,
        iteration: u32,
        next: Option<u32>,
    ) -> Result<Iteration, Self::Error>;

    /// Evaluates the greedy policy, on held-out demonstrations too if there are any.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank is gone or silent.
    async fn evaluate_greedy(&self) -> Result<EvaluationRecord, Self::Error>;

    /// The learnt parameters, `[num_params]`, by which ranks compare their policies.
    async fn params(&self) -> Cow<'_, [f32]>;
}

/// An iteration of an engine.
#[derive(Clone, Debug)]
pub struct Iteration {
    /// Metrics, without those that the trainer measures.
    pub record: IterationRecord,
    /// Environment steps, or tokens of texts.
    pub steps: u64,
}

/// The verbs of GRPO, which `iterate` of [`trainer`](super) puts in order. They fail if an environment or a task does, or
/// another rank of the run is gone or silent.
pub(super) trait Grpo {
    /// The result of a rollout.
    type Trajectory;
    /// The advantages of its actions.
    type Advantages;
    /// The result of an update, still to be read.
    type Stats;
    /// Sums and means over an iteration.
    type Totals;
    /// The reasons for which it stops.
    type Error;

    /// Plays the games, or completes the prompts, of `iteration`.
    fn rollout(&mut self, iteration: u32) -> Result<Self::Trajectory, Self::Error>;

    /// Compares every action with its group.
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

    /// Waits for the totals of the iteration. The rollout of the `next` one may be started before.
    async fn totals(
        &mut self,
        trajectory: Self::Trajectory,
        advantages: Self::Advantages,
        stats: Self::Stats,
        next: Option<u32>,
    ) -> Result<Self::Totals, Self::Error>;

    /// Waits for the device, if that is cheap enough to time the phases. Returns whether it did.
    fn finish_phase(&self) -> bool;
}

/// An engine of policies: rollouts, advantages and updates that fit each other.
pub(super) trait PolicyEngine: Grpo<Totals = Totals, Error = TrainError> {
    /// Plays the rollout of `iteration` to its end, and leaves the run unchanged.
    fn rehearse(&mut self, iteration: u32);

    /// A description, for people.
    fn describe(&self) -> String;

    /// The reason why the device has no room for a rollout, with the settings that make it smaller; `None` if it has.
    fn size_obstacle(&self) -> Option<String> {
        None
    }

    /// The model.
    fn model(&self) -> Network;

    /// The state, with this rank's part of the games. On a device this reads back.
    async fn export(&self) -> State;

    /// Continues from a state.
    ///
    /// # Errors
    /// If the games do not fit.
    fn import(&mut self, state: &State) -> Result<(), EnvStatesError>;
}

/// Bytes up to which a resident dataset is loaded before the run begins; a larger one is streamed until it has been
/// loaded in the background.
const AT_ONCE: u64 = 1 << 20;

/// The source of the steps that an engine learns from.
#[derive(Debug)]
pub(super) enum Source<R, D> {
    /// Games played by the policy.
    Games(R),
    /// A dataset in the memory of the device: nothing of it is copied in an iteration.
    Resident(D),
    /// A dataset that is read from its files batch by batch.
    Streamed(Box<Stream>),
}

impl<R, D> Source<R, D> {
    /// A dataset in these shards: resident, as converted by `keep`, if it fits, otherwise streamed. A resident one of more
    /// than `most` bytes, the size of a buffer, is not streamed first: its sums have another order, and the time at which
    /// it is loaded must not show.
    pub fn of_data(
        pieces: Pieces,
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
        let stream = Stream::new(pieces, batches);
        Self::Streamed(Box::new(if stays { stream.reading_all() } else { stream }))
    }

    fn kept(windows: Windows, keep: impl FnOnce(Windows) -> D) -> Self {
        device::count_upload(windows.bytes());
        Self::Resident(keep(windows))
    }

    /// Makes a dataset resident, converted by `keep`, once it has been read in the background.
    pub fn settle(&mut self, keep: impl FnOnce(Windows) -> D) {
        let Self::Streamed(stream) = self else { return };
        let Some(windows) = stream.all() else { return };
        *self = Self::kept(windows, keep);
    }

    /// A description of the dataset's place; `None` for games.
    pub fn data(&self) -> Option<&'static str> {
        match self {
            Self::Games(_) => None,
            Self::Streamed(stream) if !stream.reads_all() => Some("a dataset read as it is needed"),
            _ => Some("a dataset in memory"),
        }
    }

    /// Whether windows come batch by batch, in the order of learning.
    pub fn is_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    /// Takes the seconds spent waiting for data since the last call.
    pub fn take_waited(&mut self) -> f64 {
        match self {
            Self::Streamed(stream) => stream.take_waited(),
            _ => 0.0,
        }
    }
}

impl<R, T: Clone, A: Clone> Source<R, Box<(T, A)>> {
    /// The windows that an iteration learns from, as converted by `convert`, with their weights as advantages; `None` for
    /// games.
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

/// Whether a dataset is to be resident: if it takes no more than `data.resident_mb`, or, if that is 0, than half of
/// the free memory.
fn is_resident(pieces: &Pieces, config: &TrainConfig) -> bool {
    let most = match config.data.resident_mb {
        0 => device::data_budget(),
        megabytes => Some(megabytes << 20),
    };
    most.is_none_or(|most| pieces.bytes() <= most)
}

/// Sums and means over an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// The sum of the scores of the episodes that ended.
    pub score_sum: f64,
    /// Episodes that ended.
    pub episodes: f64,
    /// Mean reward of a step.
    pub mean_reward: f64,
    /// Steps played, or those of a dataset.
    pub steps: u64,
    /// Seconds spent waiting for data.
    pub waited: f64,
    /// The share of the groups without variance.
    pub zero_variance: f64,
    /// The metrics of the update.
    pub update: UpdateMeans,
}

/// Puts the metrics of an update into the record of its iteration.
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
    /// The optimiser's moments.
    pub moments: Moments,
    /// Parameters of the reference policy, `[num_params]`.
    pub reference: Option<Vec<f32>>,
    /// Game states from which the groups continue, `[env_words, num_groups]`; of an engine, those of its groups.
    pub games: Vec<u32>,
    /// The model's memory of these games, `[num_groups, memory_size]`; empty for models without memory.
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
        let pieces = Pieces::new(Arc::new(columns), &episodes, Cut::plain(1, 1));
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
