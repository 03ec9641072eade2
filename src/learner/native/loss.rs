//! The losses of [`loss`](crate::learner::loss), with their derivatives by hand, for [`LANES`] steps
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
use crate::policy::{LANES, Lanes, exp, ln};
use multiversion::multiversion;

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
    pub actions: &'a [i32; LANES],
    /// Log-probabilities of that under the policy that did it.
    pub old_logprobs: &'a Lanes,
    /// Log-probabilities under the reference policy; used where `kl_coef` is not 0.
    pub reference_logprobs: &'a Lanes,
    /// How good it was.
    pub advantages: &'a Lanes,
    /// 1 where a step counts, else 0.
    pub mask: &'a Lanes,
    /// Weights in the loss.
    pub weights: &'a Lanes,
    /// Of the step's game, used by gspo only.
    pub games: &'a [GameRatio; LANES],
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
    pub lanes: [Lanes; 5],
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

/// Log-probabilities of the steps' actions, from `logits`, one for each action, which become
/// log-probabilities.
#[inline(always)]
fn log_softmax(logits: &mut [Lanes], actions: &[i32; LANES]) -> Lanes {
    let mut max = [f32::NEG_INFINITY; LANES];
    for logits in logits.iter() {
        for (max, z) in max.iter_mut().zip(logits) {
            *max = max.max(*z);
        }
    }
    let mut total = [0.0f32; LANES];
    for logits in logits.iter_mut() {
        for ((z, max), total) in logits.iter_mut().zip(&max).zip(&mut total) {
            *z -= max;
            *total += exp(*z);
        }
    }
    for total in &mut total {
        *total = ln(*total);
    }
    let mut chosen = [0.0f32; LANES];
    for (a, logits) in logits.iter_mut().enumerate() {
        for l in 0..LANES {
            logits[l] -= total[l];
            chosen[l] = if actions[l] == a as i32 { logits[l] } else { chosen[l] };
        }
    }
    chosen
}

/// Log-probabilities of the steps' actions; see [`log_softmax`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn logprobs(logits: &mut [Lanes], actions: &[i32; LANES]) -> Lanes {
    log_softmax(logits, actions)
}

/// Turns `logits`, one for each action, into the gradients of the loss with respect to them, and adds
/// to the sums.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn differentiate(rule: &Rule, steps: &Steps, logits: &mut [Lanes], sums: &mut Sums) {
    let logprobs = log_softmax(logits, steps.actions);
    let mut entropy = [0.0f32; LANES];
    for l in logits.iter() {
        for (entropy, l) in entropy.iter_mut().zip(l) {
            *entropy -= exp(*l) * l;
        }
    }
    let mut approx_kl = [0.0f32; LANES];
    let mut ratios = [0.0f32; LANES];
    for l in 0..LANES {
        let log_ratio = logprobs[l] - steps.old_logprobs[l];
        ratios[l] = exp(log_ratio);
        approx_kl[l] = ratios[l] - 1.0 - log_ratio;
    }

    // The policy term, its derivative with respect to the log-probability (weight included), and
    // whether clipping took that away.
    let mut terms = [0.0f32; LANES];
    let mut slopes = [0.0f32; LANES];
    let mut clipped = [0.0f32; LANES];
    match rule.loss_type {
        LossType::Cispo => {
            for l in 0..LANES {
                let factor = -ratios[l].min(rule.high) * steps.advantages[l];
                terms[l] = factor * logprobs[l];
                slopes[l] = factor * steps.weights[l];
                clipped[l] = f32::from(ratios[l] > rule.high);
            }
        }
        LossType::Gspo => {
            for l in 0..LANES {
                let GameRatio { ratio, slope } = steps.games[l];
                (terms[l], _) = rule.surrogate(ratio, steps.advantages[l]);
                slopes[l] = slope;
                clipped[l] = rule.clips(ratio, steps.advantages[l]);
            }
        }
        LossType::Grpo | LossType::DrGrpo | LossType::Dapo | LossType::Bnpo => {
            for l in 0..LANES {
                (terms[l], slopes[l]) = rule.surrogate(ratios[l], steps.advantages[l]);
                slopes[l] *= steps.weights[l];
                clipped[l] = rule.clips(ratios[l], steps.advantages[l]);
            }
        }
    }

    let mut reference_kl = [0.0f32; LANES];
    if rule.kl_coef > 0.0 {
        for l in 0..LANES {
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

    for (a, z) in logits.iter_mut().enumerate() {
        for l in 0..LANES {
            let p = exp(z[l]);
            let chosen = f32::from(steps.actions[l] == a as i32);
            let by_entropy = rule.entropy_coef * steps.weights[l] * p * (z[l] + entropy[l]);
            z[l] = slopes[l] * (chosen - p) + by_entropy;
        }
    }
    let [kls, clips, entropies, reference_kls, losses] = &mut sums.lanes;
    for l in 0..LANES {
        kls[l] += steps.mask[l] * approx_kl[l];
        clips[l] += steps.mask[l] * clipped[l];
        entropies[l] += steps.mask[l] * entropy[l];
        reference_kls[l] += steps.mask[l] * reference_kl[l];
        losses[l] += steps.weights[l] * (terms[l] - rule.entropy_coef * entropy[l]);
    }
}
