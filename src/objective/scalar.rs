//! Inputs and outputs of a policy term on scalars, for one step and for `N` lanes.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Inputs of a policy term.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Step {
    /// Importance ratio of current to behaviour policy, per step or per game depending on the loss.
    pub ratio: f32,
    /// Group-relative advantage.
    pub advantage: f32,
    /// Log-probability of the action under the current policy.
    pub logprob: f32,
}

/// Policy term of a step.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Value to minimize.
    pub value: f32,
    /// Derivative with respect to the action's log-probability or, for per-game ratios, to the log of the ratio.
    pub d_logprob: f32,
    /// 1 if clipping is active, else 0.
    pub clipped: f32,
}

/// Ratio of a game, for losses with one ratio per game.
#[derive(CubeType, Clone, Copy, Debug, Default)]
pub struct SequenceRatio {
    /// Geometric mean of the ratios of its steps.
    pub ratio: f32,
    /// Derivative of the policy loss with respect to each log-probability of the game.
    pub d_logprob: f32,
}

/// Inputs of the policy terms of `N` steps, one per lane.
#[derive(Clone, Copy, Debug)]
pub struct StepLanes<'a, const N: usize> {
    /// [`Step::ratio`].
    pub ratios: &'a [f32; N],
    /// [`Step::advantage`].
    pub advantages: &'a [f32; N],
    /// [`Step::logprob`].
    pub logprobs: &'a [f32; N],
}

/// Policy terms of `N` steps, one per lane.
#[derive(Clone, Copy, Debug)]
pub struct TermLanes<const N: usize> {
    /// [`Term::value`].
    pub values: [f32; N],
    /// [`Term::d_logprob`].
    pub d_logprobs: [f32; N],
    /// [`Term::clipped`].
    pub clipped: [f32; N],
}

/// Evaluates `term` in every lane, in a loop that vectorizes.
#[inline(always)]
pub(super) fn evaluate_lanes<const N: usize>(
    steps: &StepLanes<N>,
    term: impl Fn(&Step) -> Term,
) -> TermLanes<N> {
    let StepLanes { ratios, advantages, logprobs } = *steps;
    let mut terms = TermLanes { values: [0.0; N], d_logprobs: [0.0; N], clipped: [0.0; N] };
    for l in 0..N {
        let step = Step { ratio: ratios[l], advantage: advantages[l], logprob: logprobs[l] };
        let Term { value, d_logprob, clipped } = term(&step);
        terms.values[l] = value;
        terms.d_logprobs[l] = d_logprob;
        terms.clipped[l] = clipped;
    }
    terms
}

/// Derivative of a step's loss with respect to one logit.
///
/// With logits `z`, `l = log softmax(z)` and `p = exp(l)`: `dl[k] / dz[a] = [a = k] - p[a]`, and
/// for the entropy `H = -sum p l`, `dH / dz[a] = -p[a] (l[a] + H)`. `d_logprob` is the derivative
/// with respect to the log-probability of the action taken, `d_negative_entropy` that with respect
/// to `-H`; `taken` is 1 for that action, else 0.
#[cube]
#[inline(always)]
pub fn d_logit(
    d_logprob: f32,
    d_negative_entropy: f32,
    taken: f32,
    prob: f32,
    logprob: f32,
    entropy: f32,
) -> f32 {
    d_logprob * (taken - prob) + d_negative_entropy * prob * (logprob + entropy)
}
