//! Loss and derivatives for [`LANE_STEPS`] steps in SIMD lanes: the scalar functions of
//! [`objective`](crate::objective) in loops that vectorize.

use crate::learner::means::NUM_SUMS;
use crate::math::softmax::{
    MASKED_LOGIT, Normalizer, compute_normalizer, entropy_term, logprob, unnormalized_prob,
};
use crate::math::{at_least, exp};
use crate::model::LANES;
use crate::objective::kl::{estimate_kl, k3};
use crate::objective::{
    LossConfig, LossForm, LossParams, SequenceRatio, Step, StepLanes, TermLanes, d_logit, term,
};
use multiversion::multiversion;

/// Number of steps in a [`LaneBlock`]: two vectors, so that their operations overlap.
pub const LANE_STEPS: usize = 2 * LANES;

/// One number for each of [`LANE_STEPS`] steps, which are processed together.
pub type LaneBlock = [f32; LANE_STEPS];

/// The loss of a step, with its parameters at an iteration.
#[derive(Clone, Copy, Debug)]
pub struct StepLoss {
    pub form: LossForm,
    pub loss_params: LossParams,
}

/// Inputs of the loss by columns, padded to whole lane blocks. Steps that do not count have mask and weight 0.
#[derive(Clone, Debug, Default)]
pub struct LossColumns {
    pub actions: Vec<i32>,
    /// Log-probabilities under the behaviour policy.
    pub old_logprobs: Vec<f32>,
    /// Log-probabilities under the reference policy; 0 without one.
    pub reference_logprobs: Vec<f32>,
    pub advantages: Vec<f32>,
    /// 1 for steps that count, else 0.
    pub mask: Vec<f32>,
    /// Weights in the loss.
    pub weights: Vec<f32>,
    /// Ratio of each step's game, for losses with one ratio per game; else 0.
    pub sequence_ratios: Vec<SequenceRatio>,
    /// Action masks, bit 0 for action 0; empty if all actions are always legal.
    pub legal: Vec<u32>,
}

impl LossColumns {
    /// The inputs of a lane block.
    fn inputs(&self, block: usize) -> LossInputs<'_> {
        LossInputs {
            actions: lane_block(&self.actions, block),
            old_logprobs: lane_block(&self.old_logprobs, block),
            reference_logprobs: lane_block(&self.reference_logprobs, block),
            advantages: lane_block(&self.advantages, block),
            mask: lane_block(&self.mask, block),
            weights: lane_block(&self.weights, block),
            sequence_ratios: lane_block(&self.sequence_ratios, block),
            legal: self.legal(block),
        }
    }

    fn legal(&self, block: usize) -> Option<&[u32; LANE_STEPS]> {
        (!self.legal.is_empty()).then(|| lane_block(&self.legal, block))
    }
}

/// Inputs of the loss for a lane block.
struct LossInputs<'a> {
    actions: &'a [i32; LANE_STEPS],
    old_logprobs: &'a LaneBlock,
    reference_logprobs: &'a LaneBlock,
    advantages: &'a LaneBlock,
    mask: &'a LaneBlock,
    weights: &'a LaneBlock,
    sequence_ratios: &'a [SequenceRatio; LANE_STEPS],
    legal: Option<&'a [u32; LANE_STEPS]>,
}

/// The values of a lane block.
fn lane_block<T>(values: &[T], block: usize) -> &[T; LANE_STEPS] {
    &values.as_chunks().0[block]
}

/// Sums over steps, per lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneSums {
    /// Sums in the order of [`Loss::SUM_NAMES`](crate::objective::Loss::SUM_NAMES), then the loss.
    pub lanes: [LaneBlock; NUM_SUMS],
}

impl LaneSums {
    /// Adds up the lanes.
    pub fn totals(&self) -> [f64; NUM_SUMS] {
        self.lanes.each_ref().map(|lanes| lanes.iter().copied().map(f64::from).sum())
    }
}

impl StepLoss {
    /// Creates the loss for an entropy weight.
    pub fn new(config: &LossConfig, entropy_coef: f64) -> Self {
        let loss_params = LossParams::new(config, entropy_coef);
        Self { form: LossForm::new(config), loss_params }
    }

    /// Computes the ratio of a game from the sum of its log-ratios, and its derivative from the
    /// weight and advantages of its steps.
    pub fn sequence_ratio(
        &self,
        log_ratio: f32,
        weight: f32,
        advantages: impl ExactSizeIterator<Item = f32>,
    ) -> SequenceRatio {
        // Avoids division by zero; a game without steps is not used.
        let count = advantages.len().max(1) as f32;
        let ratio = exp(log_ratio / count);
        let d_logprobs = advantages.map(|advantage| {
            let step = Step { ratio, advantage, logprob: 0.0 };
            term(&step, &self.loss_params, self.form.loss_type).d_logprob
        });
        SequenceRatio { ratio, d_logprob: d_logprobs.sum::<f32>() * weight / count }
    }
}

/// Converts `logits`, a lane block per action, to log-probabilities and stores probabilities in
/// `probs`.
#[inline(always)]
fn log_softmax(logits: &mut [LaneBlock], probs: &mut [LaneBlock]) {
    let mut max = [f32::NEG_INFINITY; LANE_STEPS];
    for logits in logits.iter() {
        for (max, z) in max.iter_mut().zip(logits) {
            *max = at_least(*z, *max);
        }
    }
    let mut sums = [0.0f32; LANE_STEPS];
    for (logits, probs) in logits.iter().zip(&mut *probs) {
        for l in 0..LANE_STEPS {
            probs[l] = unnormalized_prob(logits[l], max[l]);
            sums[l] += probs[l];
        }
    }
    let mut log_sums = [0.0f32; LANE_STEPS];
    let mut inverse_sums = [0.0f32; LANE_STEPS];
    for l in 0..LANE_STEPS {
        Normalizer { log_sum: log_sums[l], inverse_sum: inverse_sums[l], .. } =
            compute_normalizer(max[l], sums[l]);
    }
    for (logits, probs) in logits.iter_mut().zip(probs) {
        for l in 0..LANE_STEPS {
            let normalizer =
                Normalizer { max: max[l], log_sum: log_sums[l], inverse_sum: inverse_sums[l] };
            logits[l] = logprob(logits[l], &normalizer);
            probs[l] *= normalizer.inverse_sum;
        }
    }
}

/// Replaces the values of illegal actions by `value`.
#[inline(always)]
fn mask_illegal(values: &mut [LaneBlock], legal: Option<&[u32; LANE_STEPS]>, value: f32) {
    let Some(legal) = legal else { return };
    for (a, values) in values.iter_mut().enumerate() {
        for l in 0..LANE_STEPS {
            values[l] = if legal[l] >> a & 1 == 1 { values[l] } else { value };
        }
    }
}

/// Selects the value of each lane's action.
#[inline(always)]
fn select_actions(values: &[LaneBlock], actions: &[i32; LANE_STEPS]) -> LaneBlock {
    let mut selected = [0.0f32; LANE_STEPS];
    for (a, values) in values.iter().enumerate() {
        // A copy, so that the load is unconditional and the loop vectorizes.
        let values = *values;
        for l in 0..LANE_STEPS {
            selected[l] = if actions[l] == a as i32 { values[l] } else { selected[l] };
        }
    }
    selected
}

/// Computes log-probabilities of the steps' actions. `logits` and `probs`, a lane block per action,
/// are replaced as by [`log_softmax`]; `legal` are the steps' action masks, if any.
#[inline(always)]
fn compute_logprobs(
    logits: &mut [LaneBlock],
    probs: &mut [LaneBlock],
    actions: &[i32; LANE_STEPS],
    legal: Option<&[u32; LANE_STEPS]>,
) -> LaneBlock {
    mask_illegal(logits, legal, MASKED_LOGIT);
    log_softmax(logits, probs);
    select_actions(logits, actions)
}

/// Computes log-probabilities of the actions of a lane block as [`compute_logprobs`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn compute_block_logprobs(
    columns: &LossColumns,
    block: usize,
    logits: &mut [LaneBlock],
    probs: &mut [LaneBlock],
) -> LaneBlock {
    compute_logprobs(logits, probs, lane_block(&columns.actions, block), columns.legal(block))
}

/// Entropies of the policy, from all its log-probabilities and probabilities.
#[inline(always)]
fn compute_entropies(logprobs: &[LaneBlock], probs: &[LaneBlock]) -> LaneBlock {
    let mut entropy = [0.0f32; LANE_STEPS];
    for (logprobs, probs) in logprobs.iter().zip(probs) {
        let (z, p) = (*logprobs, *probs);
        for l in 0..LANE_STEPS {
            entropy[l] += entropy_term(p[l], z[l]);
        }
    }
    entropy
}

impl StepLoss {
    /// Computes the policy terms of a lane block. Their derivatives with respect to the log-probabilities include
    /// the weights.
    #[inline(always)]
    fn compute_terms(
        &self,
        inputs: &LossInputs,
        ratios: &LaneBlock,
        logprobs: &LaneBlock,
    ) -> TermLanes<LANE_STEPS> {
        let loss_type = self.form.loss_type;
        let has_sequence_ratio = loss_type.has_sequence_ratio();
        let mut importance = *ratios;
        if has_sequence_ratio {
            importance
                .iter_mut()
                .zip(inputs.sequence_ratios)
                .for_each(|(ratio, sequence)| *ratio = sequence.ratio);
        }
        let steps = StepLanes { ratios: &importance, advantages: inputs.advantages, logprobs };
        let mut terms = loss_type.lane_terms(&steps, &self.loss_params);
        for (l, d_logprob) in terms.d_logprobs.iter_mut().enumerate() {
            *d_logprob = if has_sequence_ratio {
                inputs.sequence_ratios[l].d_logprob
            } else {
                *d_logprob * inputs.weights[l]
            };
        }
        terms
    }

    /// Smooths the labels: replaces a share of each term by the mean over all actions. Returns the derivative
    /// with respect to the log-probability of every action.
    #[inline(always)]
    fn smooth(
        &self,
        inputs: &LossInputs,
        logprobs: &[LaneBlock],
        terms: &mut TermLanes<LANE_STEPS>,
    ) -> LaneBlock {
        let mut d_every_logprob = [0.0f32; LANE_STEPS];
        if !self.form.has_label_smoothing {
            return d_every_logprob;
        }
        let (smoothing, uniform) = (self.loss_params.label_smoothing, 1.0 / logprobs.len() as f32);
        let mut mean = [0.0f32; LANE_STEPS];
        for logprobs in logprobs {
            for l in 0..LANE_STEPS {
                mean[l] += uniform * logprobs[l];
            }
        }
        for l in 0..LANE_STEPS {
            let smoothed_advantage = smoothing * inputs.advantages[l];
            terms.values[l] = (1.0 - smoothing) * terms.values[l] - smoothed_advantage * mean[l];
            terms.d_logprobs[l] *= 1.0 - smoothing;
            d_every_logprob[l] = -smoothed_advantage * inputs.weights[l];
        }
        d_every_logprob
    }

    /// Adds the penalty for leaving the reference policy to the terms, and returns the divergences.
    #[inline(always)]
    fn penalize(
        &self,
        inputs: &LossInputs,
        ratios: &LaneBlock,
        logprobs: &LaneBlock,
        terms: &mut TermLanes<LANE_STEPS>,
    ) -> LaneBlock {
        let mut reference_kl = [0.0f32; LANE_STEPS];
        let Some(estimator) = self.form.kl else { return reference_kl };
        for l in 0..LANE_STEPS {
            let to_reference = inputs.reference_logprobs[l] - logprobs[l];
            let kl = estimate_kl(to_reference, ratios[l], estimator, self.form.is_kl_corrected);
            reference_kl[l] = kl.value;
            terms.values[l] += self.loss_params.kl_coef * kl.value;
            terms.d_logprobs[l] += self.loss_params.kl_coef * kl.d_logprob * inputs.weights[l];
        }
        reference_kl
    }
}

/// Replaces the `logits` of some steps, a lane block per action, by the gradient of the loss and adds to the
/// sums. `probs` is a scratch buffer of the same size.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn differentiate(
    loss: &StepLoss,
    columns: &LossColumns,
    block: usize,
    logits: &mut [LaneBlock],
    probs: &mut [LaneBlock],
    sums: &mut LaneSums,
) {
    let inputs = columns.inputs(block);
    let logprobs = compute_logprobs(logits, probs, inputs.actions, inputs.legal);
    let entropy = compute_entropies(logits, probs);
    let mut approx_kl = [0.0f32; LANE_STEPS];
    let mut ratios = [0.0f32; LANE_STEPS];
    for l in 0..LANE_STEPS {
        let log_ratio = logprobs[l] - inputs.old_logprobs[l];
        ratios[l] = exp(log_ratio);
        approx_kl[l] = k3(ratios[l], log_ratio);
    }
    let mut terms = loss.compute_terms(&inputs, &ratios, &logprobs);
    let d_every_logprob = loss.smooth(&inputs, logits, &mut terms);
    let reference_kl = loss.penalize(&inputs, &ratios, &logprobs, &mut terms);

    let (uniform, entropy_coef) = (1.0 / logits.len() as f32, loss.loss_params.entropy_coef);
    for (a, (logits, probs)) in logits.iter_mut().zip(&*probs).enumerate() {
        let (z, p) = (*logits, *probs);
        let mut gradient = [0.0f32; LANE_STEPS];
        for l in 0..LANE_STEPS {
            let taken = f32::from(inputs.actions[l] == a as i32);
            let d_negative_entropy = entropy_coef * inputs.weights[l];
            gradient[l] =
                d_logit(terms.d_logprobs[l], d_negative_entropy, taken, p[l], z[l], entropy[l]);
        }
        if loss.form.has_label_smoothing {
            for l in 0..LANE_STEPS {
                gradient[l] += d_every_logprob[l] * (uniform - p[l]);
            }
        }
        *logits = gradient;
    }
    mask_illegal(logits, inputs.legal, 0.0);
    let [kls, clips, entropies, reference_kls, losses] = &mut sums.lanes;
    for l in 0..LANE_STEPS {
        kls[l] += inputs.mask[l] * approx_kl[l];
        clips[l] += inputs.mask[l] * terms.clipped[l];
        entropies[l] += inputs.mask[l] * entropy[l];
        reference_kls[l] += inputs.mask[l] * reference_kl[l];
        losses[l] += inputs.weights[l] * (terms.values[l] - entropy_coef * entropy[l]);
    }
}
