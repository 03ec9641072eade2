//! The weights of steps: how the terms of a loss are averaged.
//!
//! A weight belongs to the whole minibatch or rollout, so that parts of a minibatch add up to the same
//! loss and gradient as the minibatch at once.

use super::Totals;
use crate::math::at_least;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

/// How terms are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Averaging {
    /// Over the steps of a game, then over the games.
    Game,
    /// The sum over all steps, divided by the most that there could be: a constant.
    Constant,
    /// Over all steps of the minibatch.
    Minibatch,
    /// Over all steps of the rollout, whichever minibatch they are in.
    Rollout,
}

/// What the weights refer to.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Sizes {
    /// Games of the minibatch.
    pub games: f32,
    /// The most steps of a game that are learnt from.
    pub learn_steps: f32,
    /// Steps of the minibatch that count.
    pub steps: f32,
    /// Steps of the rollout that count, divided by the number of minibatches.
    pub rollout_share: f32,
}

/// The weight of a step that counts, in a game with so many of them.
#[cube]
#[inline(always)]
pub fn weight(length: f32, sizes: &Sizes, #[comptime] averaging: Averaging) -> f32 {
    match comptime!(averaging) {
        Averaging::Game => 1.0f32 / sizes.games / at_least(1.0f32, length),
        Averaging::Constant => 1.0f32 / (sizes.learn_steps * sizes.games),
        Averaging::Minibatch => 1.0f32 / sizes.steps,
        Averaging::Rollout => 1.0f32 / sizes.rollout_share,
    }
}

/// The weight of each step, `[num_steps, games]`; `mask` is 1 where a step counts, else 0.
pub(super) fn host(averaging: Averaging, mask: &Tensor<2>, totals: &Totals) -> Tensor<2> {
    let [learn_steps, _] = mask.dims();
    let over = |total: &Tensor<1>| mask.clone() / total.clone().reshape([1, 1]);
    match averaging {
        Averaging::Game => {
            let lengths = mask.clone().sum_dim(0).clamp_min(1.0);
            mask.clone() / lengths / totals.games as f32
        }
        Averaging::Constant => mask.clone() / (learn_steps * totals.games) as f32,
        Averaging::Minibatch => over(&totals.steps),
        Averaging::Rollout => over(&totals.rollout_share),
    }
}
