//! A loss and its derivatives for [`GROUP`] steps side by side: the scalar functions of
//! [`objective`](crate::objective) in loops that become vectors.

use crate::math::softmax::{ILLEGAL, Normalizer, entropy_of, logprob, normalizer, unnormalized};
use crate::math::{at_least, exp};
use crate::model::LANES;
use crate::objective::kl::{divergence, third};
use crate::objective::{
    Coefficients, Form, LossConfig, Step, StepLanes, TermLanes, by_logit, term,
};
use multiversion::multiversion;

/// Steps side by side: two vectors of them, so that one's operations go on while the other's wait.
pub const GROUP: usize = 2 * LANES;

/// One number for each of [`GROUP`] steps.
pub type Group = [f32; GROUP];

/// A loss at an iteration.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What it is made of.
    pub form: Form,
    /// Its numbers.
    pub by: Coefficients,
}

/// Steps side by side. Lanes whose `mask` is 0 do not count; their `weights` must be 0 too.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// The actions taken.
    pub actions: &'a [i32; GROUP],
    /// Log-probabilities of them under the policy that took them.
    pub old_logprobs: &'a Group,
    /// Log-probabilities under the reference policy; used where `kl_coef` is not 0.
    pub reference_logprobs: &'a Group,
    /// Advantages.
    pub advantages: &'a Group,
    /// 1 where a step counts, else 0.
    pub mask: &'a Group,
    /// Weights in the loss.
    pub weights: &'a Group,
    /// The ratio of each step's game, where the loss has one ratio a game.
    pub games: &'a [GameRatio; GROUP],
    /// The actions that may be taken, bit by bit, the first action's the lowest; none where all may be,
    /// always.
    pub legal: Option<&'a [u32; GROUP]>,
}

/// The ratio of a whole game, for losses that have one.
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
    /// The sums that [`Loss::SUMS`](crate::objective::Loss::SUMS) names, in that order; then the loss.
    pub lanes: [Group; 5],
}

impl Rule {
    /// The loss of `config` with this weight of the entropy.
    pub fn new(config: &LossConfig, entropy_coef: f64) -> Self {
        let by = Coefficients::new(config, entropy_coef);
        Self { form: Form::of(config), by }
    }

    /// The ratio of a game and what follows from it, from the sum of its log-ratios, and the weight and
    /// the advantages of its steps.
    pub fn game_ratio(
        &self,
        log_ratio: f32,
        weight: f32,
        advantages: impl ExactSizeIterator<Item = f32>,
    ) -> GameRatio {
        // A game without steps has no use for either.
        let count = advantages.len().max(1) as f32;
        let ratio = exp(log_ratio / count);
        let slopes = advantages.map(|advantage| {
            let step = Step { ratio, advantage, logprob: 0.0 };
            term(&step, &self.by, self.form.loss_type).slope
        });
        GameRatio { ratio, slope: slopes.sum::<f32>() * weight / count }
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
    for (logits, probs) in logits.iter().zip(&mut *probs) {
        for l in 0..GROUP {
            probs[l] = unnormalized(logits[l], max[l]);
            total[l] += probs[l];
        }
    }
    let mut log_total = [0.0f32; GROUP];
    let mut share = [0.0f32; GROUP];
    for l in 0..GROUP {
        Normalizer { log_total: log_total[l], share: share[l], .. } = normalizer(max[l], total[l]);
    }
    for (logits, probs) in logits.iter_mut().zip(probs) {
        for l in 0..GROUP {
            let by = Normalizer { max: max[l], log_total: log_total[l], share: share[l] };
            logits[l] = logprob(logits[l], &by);
            probs[l] *= by.share;
        }
    }
}

/// Puts `value` in place of the numbers that belong to actions that may not be taken.
#[inline(always)]
fn mask(values: &mut [Group], legal: Option<&[u32; GROUP]>, value: f32) {
    let Some(legal) = legal else { return };
    for (a, values) in values.iter_mut().enumerate() {
        for l in 0..GROUP {
            values[l] = if legal[l] >> a & 1 == 1 { values[l] } else { value };
        }
    }
}

/// The value that belongs to each lane's action.
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

/// Log-probabilities of the steps' actions, from `logits`, one for each action, of which `legal` are
/// taken ([`Steps::legal`]); these and `probs`, as many, become what [`log_softmax`] makes of them.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn logprobs(
    logits: &mut [Group],
    probs: &mut [Group],
    actions: &[i32; GROUP],
    legal: Option<&[u32; GROUP]>,
) -> Group {
    mask(logits, legal, ILLEGAL);
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
    mask(logits, steps.legal, ILLEGAL);
    log_softmax(logits, probs);
    let logprobs = chosen(logits, steps.actions);
    let mut entropy = [0.0f32; GROUP];
    for (logits, probs) in logits.iter().zip(&*probs) {
        let (z, p) = (*logits, *probs);
        for l in 0..GROUP {
            entropy[l] += entropy_of(p[l], z[l]);
        }
    }
    let mut approx_kl = [0.0f32; GROUP];
    let mut ratios = [0.0f32; GROUP];
    for l in 0..GROUP {
        let log_ratio = logprobs[l] - steps.old_logprobs[l];
        ratios[l] = exp(log_ratio);
        approx_kl[l] = third(ratios[l], log_ratio);
    }

    // The policy term, its derivative with respect to the log-probability (weight included), and
    // whether a bound acts.
    let Rule { form, by } = rule;
    let of_game = form.loss_type.ratio_of_game();
    let mut importance = ratios;
    if of_game {
        importance.iter_mut().zip(steps.games).for_each(|(ratio, game)| *ratio = game.ratio);
    }
    let policy =
        StepLanes { ratios: &importance, advantages: steps.advantages, logprobs: &logprobs };
    let TermLanes { values: mut terms, mut slopes, clipped } = form.loss_type.terms(&policy, by);
    for (l, slope) in slopes.iter_mut().enumerate() {
        *slope = if of_game { steps.games[l].slope } else { *slope * steps.weights[l] };
    }

    // The share that all actions have alike: its derivative by the log-probability of each.
    let mut shared = [0.0f32; GROUP];
    let each = 1.0 / logits.len() as f32;
    if form.smoothed {
        let mut mean = [0.0f32; GROUP];
        for logprobs in logits.iter() {
            for l in 0..GROUP {
                mean[l] += each * logprobs[l];
            }
        }
        for l in 0..GROUP {
            let share = by.smoothing * steps.advantages[l];
            terms[l] = (1.0 - by.smoothing) * terms[l] - share * mean[l];
            slopes[l] *= 1.0 - by.smoothing;
            shared[l] = -share * steps.weights[l];
        }
    }

    let mut reference_kl = [0.0f32; GROUP];
    if let Some(estimator) = form.kl {
        for l in 0..GROUP {
            let to_reference = steps.reference_logprobs[l] - logprobs[l];
            let kl = divergence(to_reference, ratios[l], estimator, form.corrected);
            reference_kl[l] = kl.value;
            terms[l] += by.kl * kl.value;
            slopes[l] += by.kl * kl.slope * steps.weights[l];
        }
    }

    for (a, (logits, probs)) in logits.iter_mut().zip(&*probs).enumerate() {
        let (z, p) = (*logits, *probs);
        let mut gradient = [0.0f32; GROUP];
        for l in 0..GROUP {
            let taken = f32::from(steps.actions[l] == a as i32);
            let by_entropy = by.entropy * steps.weights[l];
            gradient[l] = by_logit(slopes[l], by_entropy, taken, p[l], z[l], entropy[l]);
        }
        if form.smoothed {
            for l in 0..GROUP {
                gradient[l] += shared[l] * (each - p[l]);
            }
        }
        *logits = gradient;
    }
    mask(logits, steps.legal, 0.0);
    let [kls, clips, entropies, reference_kls, losses] = &mut sums.lanes;
    for l in 0..GROUP {
        kls[l] += steps.mask[l] * approx_kl[l];
        clips[l] += steps.mask[l] * clipped[l];
        entropies[l] += steps.mask[l] * entropy[l];
        reference_kls[l] += steps.mask[l] * reference_kl[l];
        losses[l] += steps.weights[l] * (terms[l] - by.entropy * entropy[l]);
    }
}
