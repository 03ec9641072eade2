//! What the scalar form of a loss takes and gives, for one step and for steps side by side.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// What the policy term of a step depends on.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Step {
    /// The probability of its action now, divided by that under the policy that took it; of losses with
    /// one ratio a game, that of the game.
    pub ratio: f32,
    /// How much better than its group it was.
    pub advantage: f32,
    /// The action's log-probability now.
    pub logprob: f32,
}

/// The policy term of a step.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Its value, to be minimised.
    pub value: f32,
    /// Its derivative by the action's log-probability, or where the ratio is that of a game, by the
    /// ratio's logarithm.
    pub slope: f32,
    /// 1 where a bound of the ratio acts, else 0.
    pub clipped: f32,
}

/// Steps side by side, each number in a lane of its own.
#[derive(Clone, Copy, Debug)]
pub struct StepLanes<'a, const N: usize> {
    /// [`Step::ratio`].
    pub ratios: &'a [f32; N],
    /// [`Step::advantage`].
    pub advantages: &'a [f32; N],
    /// [`Step::logprob`].
    pub logprobs: &'a [f32; N],
}

/// The policy terms of steps side by side.
#[derive(Clone, Copy, Debug)]
pub struct TermLanes<const N: usize> {
    /// [`Term::value`].
    pub values: [f32; N],
    /// [`Term::slope`].
    pub slopes: [f32; N],
    /// [`Term::clipped`].
    pub clipped: [f32; N],
}

/// Runs through the lanes, in a loop that becomes vectors.
#[inline(always)]
pub(super) fn term_lanes<const N: usize>(
    steps: &StepLanes<N>,
    term: impl Fn(&Step) -> Term,
) -> TermLanes<N> {
    let StepLanes { ratios, advantages, logprobs } = *steps;
    let mut terms = TermLanes { values: [0.0; N], slopes: [0.0; N], clipped: [0.0; N] };
    for l in 0..N {
        let step = Step { ratio: ratios[l], advantage: advantages[l], logprob: logprobs[l] };
        let Term { value, slope, clipped } = term(&step);
        terms.values[l] = value;
        terms.slopes[l] = slope;
        terms.clipped[l] = clipped;
    }
    terms
}

/// The derivative of a step's loss by one of its logits.
///
/// With logits `z`, `l = log softmax(z)` and `p = exp(l)`: `dl[k] / dz[a] = [a = k] - p[a]`, and for the
/// entropy `H = -sum p l`, `dH / dz[a] = -p[a] (l[a] + H)`. `by_logprob` is the derivative by the
/// log-probability of the action taken, `by_entropy` that by `-H`, `taken` is 1 for that action.
#[cube]
#[inline(always)]
pub fn by_logit(
    by_logprob: f32,
    by_entropy: f32,
    taken: f32,
    prob: f32,
    logprob: f32,
    entropy: f32,
) -> f32 {
    by_logprob * (taken - prob) + by_entropy * prob * (logprob + entropy)
}
