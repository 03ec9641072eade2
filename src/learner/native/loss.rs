//! The losses of [`loss`](crate::learner::loss), with their derivatives by hand, for [`GROUP`] steps
//! side by side.
//!
//! With logits `z`, probabilities `p = softmax(z)`, `l = ln p` and the action `k` of a step, whose
//! weight in the loss is `w`, the loss is the sum over the steps of
//!
//! `w (policy term - entropy_coef H + kl_coef KL)`.
//!
//! Since `dl[k] / dz[a] = [a = k] - p[a]` and, for `H = -sum p l`, `dH / dz[a] = -p[a] (l[a] + H)`,
//!
//! `dloss / dz[a] = g ([a = k] - p[a]) + w entropy_coef p[a] (l[a] + H)`, `g = dloss / dl[k]`.
//!
//! What `g` is made of, with `r` the ratio and `A` the advantage:
//!
//! - Clipped surrogate (Schulman et al. 2017; dual clip with bound `c`: Ye et al. 2020):
//!   `-min(min(r, c) A, clip(r) A)` has the slope `-A r` in `ln r` where it is not clipped: up to
//!   `1 + clip_eps_high` for `A > 0`, from `1 - clip_eps_low` up to `c` for `A < 0`; else 0.
//! - gspo (Zheng et al. 2025): `ln r` is the mean of the log-ratios over the steps of a game that
//!   count, so that each of them gets the sum of the game's slopes divided by their number.
//! - cispo (MiniMax 2025): `-min(r, 1 + clip_eps_high) A l[k]`, the factor before `l[k]` a constant.
//! - KL with `x = ln(reference / policy)` (Schulman 2020): k1 `-x`, slope 1; k2 `x^2 / 2`, slope
//!   `-x`; k3 `e^x - 1 - x`, slope `1 - e^x`.

use crate::config::{KlEstimator, LossConfig, LossType};
use crate::model::{LANES, at_least, exp, ln};
use multiversion::multiversion;

/// Steps side by side: two vectors of them, so that one's operations go on while the other's wait.
pub const GROUP: usize = 2 * LANES;

/// One number for each of [`GROUP`] steps.
pub type Group = [f32; GROUP];

/// A loss with its coefficients at an iteration.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name.
    pub loss_type: LossType,
    low: f32,
    high: f32,
    dual_clip: f32,
    kl_coef: f32,
    kl_estimator: KlEstimator,
    entropy_coef: f32,
}

/// Steps side by side. Lanes whose `mask` is 0 do not count; their `weights` must be 0 too.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// What was done.
    pub actions: &'a [i32; GROUP],
    /// Log-probabilities of that under the policy that did it.
    pub old_logprobs: &'a Group,
    /// Log-probabilities under the reference policy; used where `kl_coef` is not 0.
    pub reference_logprobs: &'a Group,
    /// How good it was.
    pub advantages: &'a Group,
    /// 1 where a step counts, else 0.
    pub mask: &'a Group,
    /// Weights in the loss.
    pub weights: &'a Group,
    /// Of the step's game, used by gspo only.
    pub games: &'a [GameRatio; GROUP],
}

/// The ratio of a whole game, for gspo.
#[derive(Clone, Copy, Debug, Default)]
pub struct GameRatio {
    /// The geometric mean of the steps' ratios.
    pub ratio: f32,
    /// The derivative of the policy loss with respect to the log-probability of each step.
    pub slope: f32,
}

/// Sums over steps, lane by lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Of what [`Loss::SUMS`](crate::learner::loss::Loss::SUMS) names, in that order; then the loss.
    pub lanes: [Group; 5],
}

impl Rule {
    /// The loss of `config` with this weight of the entropy.
    pub fn new(config: &LossConfig, entropy_coef: f64) -> Self {
        Self {
            loss_type: config.loss_type,
            low: (1.0 - config.clip_eps_low) as f32,
            high: (1.0 + config.clip_eps_high) as f32,
            dual_clip: if config.dual_clip > 0.0 { config.dual_clip as f32 } else { f32::INFINITY },
            kl_coef: config.kl_coef as f32,
            kl_estimator: config.kl_estimator,
            entropy_coef: entropy_coef as f32,
        }
    }

    /// The clipped surrogate and its derivative with respect to the logarithm of the ratio.
    #[inline(always)]
    fn surrogate(&self, ratio: f32, advantage: f32) -> (f32, f32) {
        let bounded = ratio.min(self.dual_clip) * advantage;
        let clipped = ratio.max(self.low).min(self.high) * advantage;
        let up = (advantage > 0.0) & (ratio <= self.high);
        let down = (advantage < 0.0) & (ratio >= self.low) & (ratio <= self.dual_clip);
        let slope = if up | down { -ratio * advantage } else { 0.0 };
        (-bounded.min(clipped), slope)
    }

    /// What gspo needs of a game: from the sum of its log-ratios, and the weight and the advantages of
    /// its steps.
    pub fn game_ratio(
        &self,
        log_ratio: f32,
        weight: f32,
        advantages: impl ExactSizeIterator<Item = f32>,
    ) -> GameRatio {
        // A game without steps has no use for either.
        let count = advantages.len().max(1) as f32;
        let ratio = exp(log_ratio / count);
        let slopes = advantages.map(|advantage| self.surrogate(ratio, advantage).1);
        GameRatio { ratio, slope: slopes.sum::<f32>() * weight / count }
    }

    /// 1 where the ratio has left its range in the direction of the advantage, or is beyond the dual
    /// clip.
    #[inline(always)]
    fn clips(&self, ratio: f32, advantage: f32) -> f32 {
        let above = (ratio > self.high) & (advantage > 0.0);
        let outside = (ratio < self.low) | (ratio > self.dual_clip);
        f32::from(above | outside & (advantage < 0.0))
    }
}

/// Turns `logits`, one for each action, into log-probabilities, and fills `probs`, as many, with the
/// probabilities.
#[inline(always)]
fn log_softmax(logits: &mut [Group], probs: &mut [Group]) {
    let mut max = [f32::NEG_INFINITY; GROUP];
    for logits in logits.iter() {
        for (max, z) in max.iter_mut().zip(logits) {
            *max = at_least(*z, *max);
        }
    }
    let mut total = [0.0f32; GROUP];
    for (logits, probs) in logits.iter_mut().zip(&mut *probs) {
        for l in 0..GROUP {
            logits[l] -= max[l];
            probs[l] = exp(logits[l]);
            total[l] += probs[l];
        }
    }
    let mut share = [0.0f32; GROUP];
    for (share, total) in share.iter_mut().zip(&mut total) {
        *share = 1.0 / *total;
        *total = ln(*total);
    }
    for (logits, probs) in logits.iter_mut().zip(probs) {
        for l in 0..GROUP {
            logits[l] -= total[l];
            probs[l] *= share[l];
        }
    }
}

/// Of each lane the number that belongs to its action.
#[inline(always)]
fn chosen(values: &[Group], actions: &[i32; GROUP]) -> Group {
    let mut chosen = [0.0f32; GROUP];
    for (a, values) in values.iter().enumerate() {
        // A copy, so that it is read whether it is chosen or not.
        let values = *values;
        for l in 0..GROUP {
            chosen[l] = if actions[l] == a as i32 { values[l] } else { chosen[l] };
        }
    }
    chosen
}

/// Log-probabilities of the steps' actions, from `logits`, one for each action; these and `probs`, as
/// many, become what [`log_softmax`] makes of them.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn logprobs(logits: &mut [Group], probs: &mut [Group], actions: &[i32; GROUP]) -> Group {
    log_softmax(logits, probs);
    chosen(logits, actions)
}

/// Turns `logits`, one for each action, into the gradients of the loss with respect to them, and adds
/// to the sums. There is room for as many numbers in `probs`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn differentiate(
    rule: &Rule,
    steps: &Steps,
    logits: &mut [Group],
    probs: &mut [Group],
    sums: &mut Sums,
) {
    log_softmax(logits, probs);
    let logprobs = chosen(logits, steps.actions);
    let mut entropy = [0.0f32; GROUP];
    for (logits, probs) in logits.iter().zip(&*probs) {
        let (z, p) = (*logits, *probs);
        for l in 0..GROUP {
            entropy[l] -= p[l] * z[l];
        }
    }
    let mut approx_kl = [0.0f32; GROUP];
    let mut ratios = [0.0f32; GROUP];
    for l in 0..GROUP {
        let log_ratio = logprobs[l] - steps.old_logprobs[l];
        ratios[l] = exp(log_ratio);
        approx_kl[l] = ratios[l] - 1.0 - log_ratio;
    }

    // The policy term, its derivative with respect to the log-probability (weight included), and
    // whether clipping took that away.
    let mut terms = [0.0f32; GROUP];
    let mut slopes = [0.0f32; GROUP];
    let mut clipped = [0.0f32; GROUP];
    match rule.loss_type {
        LossType::Cispo => {
            for l in 0..GROUP {
                let factor = -ratios[l].min(rule.high) * steps.advantages[l];
                terms[l] = factor * logprobs[l];
                slopes[l] = factor * steps.weights[l];
                clipped[l] = f32::from(ratios[l] > rule.high);
            }
        }
        LossType::Gspo => {
            for l in 0..GROUP {
                let GameRatio { ratio, slope } = steps.games[l];
                (terms[l], _) = rule.surrogate(ratio, steps.advantages[l]);
                slopes[l] = slope;
                clipped[l] = rule.clips(ratio, steps.advantages[l]);
            }
        }
        LossType::Grpo | LossType::DrGrpo | LossType::Dapo | LossType::Bnpo => {
            for l in 0..GROUP {
                (terms[l], slopes[l]) = rule.surrogate(ratios[l], steps.advantages[l]);
                slopes[l] *= steps.weights[l];
                clipped[l] = rule.clips(ratios[l], steps.advantages[l]);
            }
        }
    }

    let mut reference_kl = [0.0f32; GROUP];
    if rule.kl_coef > 0.0 {
        for l in 0..GROUP {
            let x = steps.reference_logprobs[l] - logprobs[l];
            let (kl, slope) = match rule.kl_estimator {
                KlEstimator::K1 => (-x, 1.0),
                KlEstimator::K2 => (0.5 * x * x, -x),
                KlEstimator::K3 => (exp(x) - 1.0 - x, 1.0 - exp(x)),
            };
            reference_kl[l] = kl;
            terms[l] += rule.kl_coef * kl;
            slopes[l] += rule.kl_coef * slope * steps.weights[l];
        }
    }

    for (a, (logits, probs)) in logits.iter_mut().zip(probs).enumerate() {
        let (z, p) = (*logits, *probs);
        let mut gradient = [0.0f32; GROUP];
        for l in 0..GROUP {
            let chosen = f32::from(steps.actions[l] == a as i32);
            let by_entropy = rule.entropy_coef * steps.weights[l] * p[l] * (z[l] + entropy[l]);
            gradient[l] = slopes[l] * (chosen - p[l]) + by_entropy;
        }
        *logits = gradient;
    }
    let [kls, clips, entropies, reference_kls, losses] = &mut sums.lanes;
    for l in 0..GROUP {
        kls[l] += steps.mask[l] * approx_kl[l];
        clips[l] += steps.mask[l] * clipped[l];
        entropies[l] += steps.mask[l] * entropy[l];
        reference_kls[l] += steps.mask[l] * reference_kl[l];
        losses[l] += steps.weights[l] * (terms[l] - rule.entropy_coef * entropy[l]);
    }
}
