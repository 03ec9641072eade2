//! The same on a device, as fused kernels write and read it.

use burn::tensor::{Int, Tensor};

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

/// The highest bit of an action's word: the episode ended with the step.
pub const ENDED: u32 = 1 << 31;

/// Some games of a [`Recording`], neighbours.
#[derive(Clone, Debug)]
pub struct Part {
    /// Words `[num_words + 1, num_steps, games]`, bit by bit: the state before each step, and last the
    /// action taken, with [`ENDED`] where the episode ended with the step.
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
