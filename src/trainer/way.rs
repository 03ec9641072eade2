//! What a way through an iteration is, and what is saved of it.

use crate::learner::Moments;
use crate::model::Mlp;
use crate::rollout::SeatsError;

/// A way through an iteration: games, advantages and learner that fit each other.
pub(super) trait Way {
    /// What a rollout leaves.
    type Played;
    /// What is thought of it.
    type Judged;
    /// What an update leaves to be read.
    type Learnt;

    /// Plays the games of `iteration`.
    fn play(&mut self, iteration: u32) -> Self::Played;

    /// Judges every action by its group.
    fn judge(&mut self, played: &Self::Played) -> Self::Judged;

    /// Moves the policy towards the better ones.
    fn update(
        &mut self,
        played: &Self::Played,
        judged: &Self::Judged,
        iteration: u32,
    ) -> Self::Learnt;

    /// Waits for the numbers of the iteration. If it is said which is the `next`, its rollout may be
    /// begun before.
    async fn numbers(
        &mut self,
        played: Self::Played,
        judged: Self::Judged,
        learnt: Self::Learnt,
        next: Option<u32>,
    ) -> Numbers;

    /// Waits until the device is done with what it was given, where that is worth the wait: so that the
    /// phases can be measured.
    fn finish_phase(&self) -> bool;

    /// Plays the rollout of `iteration` to its end, and leaves the run as it was.
    fn rehearse(&mut self, iteration: u32);

    /// How is played and learnt, in words.
    fn describe(&self) -> String;

    /// The policy as it is.
    fn policy(&self) -> Mlp;

    /// Optimiser steps taken.
    fn steps(&self) -> u64;

    /// The state as it is. On a device this reads back.
    async fn export(&self) -> State;

    /// Goes on from a state.
    ///
    /// # Errors
    /// If the games do not fit.
    fn import(&mut self, state: &State) -> Result<(), SeatsError>;
}

/// The numbers of an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// The sum of the scores of the episodes that ended, and their number.
    pub score_sum: f64,
    pub episodes: f64,
    pub mean_reward: f64,
    /// The share of the groups whose members all got the same.
    pub zero_variance: f64,
    /// What [`crate::learner::UpdateStats`] holds, in its order.
    pub update: [f64; 6],
}

/// A run's games and learner in host memory, each vector `[num_params]`.
pub(super) struct State {
    pub params: Vec<f32>,
    pub moments: Moments,
    pub reference: Option<Vec<f32>>,
    /// Where the groups go on: `[seat_words, num_groups]`.
    pub games: Vec<u32>,
}
