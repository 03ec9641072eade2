//! What an engine is, and what is saved of it.

use super::stream::Stream;
use crate::config::TrainConfig;
use crate::data::{Pieces, Windows};
use crate::device;
use crate::learner::{Batches, Moments};
use crate::parallel::{Shards, TeamError};
use crate::rollout::EnvStatesError;

/// Rollouts, advantages and updates that fit each other, of a model.
pub(super) trait Engine {
    /// The model that it trains.
    type Model;
    /// What a rollout leaves.
    type Trajectory;
    /// What its actions are worth.
    type Advantages;
    /// What an update leaves to be read.
    type Stats;

    /// Plays the games of `iteration`.
    fn rollout(&mut self, iteration: u32) -> Self::Trajectory;

    /// Compares every action with its group.
    ///
    /// # Errors
    /// If another member of the run is gone or silent.
    fn advantages(&mut self, trajectory: &Self::Trajectory) -> Result<Self::Advantages, TeamError>;

    /// Moves the policy towards the better actions.
    ///
    /// # Errors
    /// As [`Engine::advantages`].
    fn update(
        &mut self,
        trajectory: &Self::Trajectory,
        advantages: &Self::Advantages,
        iteration: u32,
    ) -> Result<Self::Stats, TeamError>;

    /// Waits for the totals of the iteration. If it is said which is the `next`, its rollout may be
    /// begun before.
    ///
    /// # Errors
    /// As [`Engine::advantages`].
    async fn totals(
        &mut self,
        trajectory: Self::Trajectory,
        advantages: Self::Advantages,
        stats: Self::Stats,
        next: Option<u32>,
    ) -> Result<Totals, TeamError>;

    /// Waits until the device is done with what it was given, where that is worth the wait: so that the
    /// phases can be measured.
    fn finish_phase(&self) -> bool;

    /// Plays the rollout of `iteration` to its end, and leaves the run as it was.
    fn rehearse(&mut self, iteration: u32);

    /// How is played and learnt, in words.
    fn describe(&self) -> String;

    /// The model as it is.
    fn model(&self) -> Self::Model;

    /// The groups of games, or the windows of a dataset, in shards, of which some are ours.
    fn shards(&self) -> &Shards;

    /// Optimiser steps taken.
    fn steps(&self) -> u64;

    /// The state as it is, with our part of the games. On a device this reads back.
    async fn export(&self) -> State;

    /// Goes on from a state.
    ///
    /// # Errors
    /// If the games do not fit.
    fn import(&mut self, state: &State) -> Result<(), EnvStatesError>;
}

/// A dataset that stays and is no larger is read before the run begins; of a larger one batches are streamed until it
/// has been read.
const AT_ONCE: u64 = 1 << 20;

/// Where the steps come from that an engine learns from.
#[derive(Debug)]
pub(super) enum Source<R, D> {
    /// Games that it plays.
    Games(R),
    /// A dataset, which stays where it is: nothing of it is copied in an iteration.
    Resident(D),
    /// A dataset that is read from its files as it is needed.
    Streamed(Box<Stream>),
}

impl<R, D> Source<R, D> {
    /// A dataset in these shards: as `keep` makes it where it can stay, otherwise streamed in batches.
    pub fn of_data(
        pieces: Pieces,
        config: &TrainConfig,
        shards: &Shards,
        keep: impl FnOnce(Windows) -> D,
    ) -> Self {
        let stays = is_resident(&pieces, config);
        if stays && (cfg!(target_family = "wasm") || pieces.bytes() <= AT_ONCE) {
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

    /// From now on a dataset stays that is to and has been read meanwhile, as `keep` makes it.
    pub fn settle(&mut self, keep: impl FnOnce(Windows) -> D) {
        let Self::Streamed(stream) = self else { return };
        let Some(windows) = stream.all() else { return };
        *self = Self::kept(windows, keep);
    }

    /// What is said of a dataset, by where it is; `None` of games.
    pub fn data(&self) -> Option<&'static str> {
        match self {
            Self::Games(_) => None,
            Self::Streamed(stream) if !stream.reads_all() => Some("a dataset read as it is needed"),
            _ => Some("a dataset in memory"),
        }
    }

    /// Whether it is read batch by batch, in the order in which it is learnt from.
    pub fn is_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    /// Seconds that were waited for data since this was last called.
    pub fn take_waited(&mut self) -> f64 {
        match self {
            Self::Streamed(stream) => stream.take_waited(),
            _ => 0.0,
        }
    }
}

/// Whether a dataset is to stay where it is learnt from: where it takes no more than the settings say, or
/// where they say nothing, than half of the memory that is free.
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
    /// The sum of the scores of the episodes that ended, and their number.
    pub score_sum: f64,
    pub episodes: f64,
    pub mean_reward: f64,
    /// Seconds that were waited for data.
    pub waited: f64,
    /// The share of the groups whose members are credited alike.
    pub zero_variance: f64,
    /// What [`crate::learner::UpdateStats`] holds, in its order.
    pub update: [f64; 6],
}

/// A run's games and learner in host memory, each vector `[num_params]`.
pub(super) struct State {
    pub params: Vec<f32>,
    pub moments: Moments,
    pub reference: Option<Vec<f32>>,
    /// Where the groups go on: `[env_words, num_groups]`; of an engine, of those that are ours.
    pub games: Vec<u32>,
    /// What the model remembers of the games there, `[num_groups, memory_size]`; none where it has no
    /// memory.
    pub memory: Vec<f32>,
}
