//! What a rollout gives and an update takes.

use burn::tensor::{Int, Tensor};

/// The steps of `num_envs` games, `num_steps` each, on one device.
///
/// Game `i` is member `i % group_size` of group `i / group_size`. All tensors are time-major.
#[derive(Clone, Debug)]
pub struct Trajectory {
    /// Observations before each step: `[num_steps, num_envs, num_features]`.
    pub obs: Tensor<3>,
    /// Actions taken: `[num_steps, num_envs]`.
    pub actions: Tensor<2, Int>,
    /// Log-probabilities of the actions under the policy that took them: `[num_steps, num_envs]`.
    pub logprobs: Tensor<2>,
    /// Rewards of the steps: `[num_steps, num_envs]`.
    pub rewards: Tensor<2>,
    /// 1 where the episode ended with the step, else 0: `[num_steps, num_envs]`.
    pub ends: Tensor<2>,
    /// The score of the episode that ended with the step, else 0: `[num_steps, num_envs]`.
    pub scores: Tensor<2>,
}

impl Trajectory {
    /// `[num_steps, num_envs, num_features]`.
    ///
    /// # Panics
    /// If the tensors' shapes do not belong together.
    pub fn dims(&self) -> [usize; 3] {
        let [num_steps, num_envs, num_features] = self.obs.dims();
        let expected = [num_steps, num_envs];
        assert_eq!(self.actions.dims(), expected, "actions: [num_steps, num_envs]");
        assert_eq!(self.logprobs.dims(), expected, "logprobs: [num_steps, num_envs]");
        assert_eq!(self.rewards.dims(), expected, "rewards: [num_steps, num_envs]");
        assert_eq!(self.ends.dims(), expected, "ends: [num_steps, num_envs]");
        assert_eq!(self.scores.dims(), expected, "scores: [num_steps, num_envs]");
        [num_steps, num_envs, num_features]
    }

    /// 1 where a step counts, else 0: `[num_steps, num_envs]`. With `auto_reset` all do; otherwise
    /// those up to and including the first end of an episode.
    pub fn mask(&self, auto_reset: bool) -> Tensor<2> {
        if auto_reset {
            return self.ends.ones_like();
        }
        let ended_before = self.ends.clone().cumsum(0) - self.ends.clone();
        ended_before.lower_equal_elem(0.5).float()
    }

    /// The first `num_steps` steps.
    pub fn first_steps(&self, num_steps: usize) -> Self {
        let [_, num_envs, num_features] = self.dims();
        let rows = |tensor: &Tensor<2>| tensor.clone().slice([0..num_steps, 0..num_envs]);
        Self {
            obs: self.obs.clone().slice([0..num_steps, 0..num_envs, 0..num_features]),
            actions: self.actions.clone().slice([0..num_steps, 0..num_envs]),
            logprobs: rows(&self.logprobs),
            rewards: rows(&self.rewards),
            ends: rows(&self.ends),
            scores: rows(&self.scores),
        }
    }
}

/// A trajectory as the fused kernels write and read it: packed states instead of observations, a few
/// words a step, in parts that a device can bind as a buffer.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Steps of each game.
    pub num_steps: usize,
    /// Games of all parts.
    pub num_envs: usize,
    /// The parts, which hold the games in order.
    pub parts: Vec<Part>,
}

/// Some games of a [`Recording`], neighbours.
#[derive(Clone, Debug)]
pub struct Part {
    /// Words `[num_words + 1, num_steps, games]`, bit by bit: the state before each step, and last the
    /// action taken, with its highest bit set where the episode ended with the step.
    pub words: Tensor<3, Int>,
    /// Numbers `[2, num_steps, games]`: the action's log-probability, the reward.
    pub numbers: Tensor<3>,
    /// The score at the first step of the episode then under way: `[games]`.
    pub first_scores: Tensor<1>,
}

impl Part {
    /// The rows of [`Part::words`].
    pub fn num_words(&self) -> usize {
        self.words.dims()[0]
    }

    /// The number of its games.
    pub fn num_envs(&self) -> usize {
        self.first_scores.dims()[0]
    }
}

/// The advantages of a [`Recording`].
#[derive(Clone, Debug)]
pub struct Judged {
    /// Steps that are learnt from.
    pub learn_steps: usize,
    /// Of each part `[learn_steps + 2, games]`: the advantages, before they are multiplied by the
    /// scale; the number of these steps that count, which are the first ones; the game's return.
    pub parts: Vec<Tensor<2>>,
    /// [`FACTS`] numbers of all games.
    pub facts: Tensor<1>,
}

/// The numbers of [`Judged::facts`]: the steps of all games that count, and what the advantages are to
/// be multiplied by; then the sum of the scores of the episodes that ended, their number, the sum of all
/// rewards, and the groups whose members all got the same.
pub const FACTS: usize = 6;
