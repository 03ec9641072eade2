//! The loss of an optimizer step over texts, differentiated with respect to the log-probability of each token.

use super::{Group, LanguageUpdateSettings, Sample};
use crate::math::exp;
use crate::objective::kl::{estimate_kl, k3};
use crate::objective::weights::{StepDenominators, weight};
use crate::objective::{LossConfig, LossForm, LossParams, Step, term};
use crate::parallel::{Shards, Team};
use crate::text::{Pool, Retention, TextPass, TokenDecoder};
use std::ops::Range;

/// Sums over counted tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenSums {
    pub approx_kl: f64,
    pub clipped: f64,
    pub entropy: f64,
    pub reference_kl: f64,
    pub loss: f64,
    /// Number of counted tokens, without those of skipped groups.
    pub tokens: f64,
    /// The largest distance of a ratio from 1.
    pub max_ratio_distance: f64,
}

impl TokenSums {
    /// Number of sums that are added up over shards.
    pub const NUM_ADDITIVE: usize = 6;

    /// The sums that are added up over shards, `[NUM_ADDITIVE]`: all but the maximum.
    pub fn to_additive(self) -> Vec<f64> {
        vec![self.approx_kl, self.clipped, self.entropy, self.reference_kl, self.loss, self.tokens]
    }

    /// Creates the sums from the additive ones, `[NUM_ADDITIVE]`, and the maximum.
    pub fn from_additive(additive: &[f64], max_ratio_distance: f64) -> Self {
        let [approx_kl, clipped, entropy, reference_kl, loss, tokens] =
            std::array::from_fn(|i| additive[i]);
        Self { approx_kl, clipped, entropy, reference_kl, loss, tokens, max_ratio_distance }
    }
}

/// Splits the chosen groups into parts of at most `max_tokens` tokens; a larger group is one part.
pub(super) fn split_into_parts<'a>(
    groups: &[Group],
    chosen: &'a [usize],
    max_tokens: usize,
) -> Vec<&'a [usize]> {
    let (mut parts, mut start, mut tokens) = (Vec::new(), 0, 0);
    for (at, i) in chosen.iter().enumerate() {
        let count = groups[*i].num_forward_tokens();
        if at > start && tokens + count > max_tokens {
            parts.push(&chosen[start..at]);
            (start, tokens) = (at, 0);
        }
        tokens += count;
    }
    if start < chosen.len() {
        parts.push(&chosen[start..]);
    }
    parts
}

/// The gradient of the loss for some tokens.
#[derive(Clone, Debug, Default)]
pub(in crate::learner::text) struct TokenGrads {
    /// Derivatives with respect to the log-probabilities.
    pub d_logprobs: Vec<f32>,
    /// Weights of the entropies; the derivatives with respect to them are the negated weights.
    pub entropy_weights: Vec<f32>,
}

/// Parameters and denominators of the loss of a minibatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinibatchLoss {
    pub loss_params: LossParams,
    /// Weight of the entropy of a selected token: the bonus is their mean, whatever the loss's averaging, as
    /// in TRL.
    pub entropy_weight: f32,
    pub denominators: StepDenominators,
}

impl MinibatchLoss {
    /// The loss of the `chosen` groups. `rollout_steps_per_minibatch` is an epoch's counted tokens, divided by its
    /// minibatches.
    pub fn new(
        settings: &LanguageUpdateSettings,
        groups: &[Group],
        chosen: &[usize],
        rollout_steps_per_minibatch: f32,
    ) -> Self {
        let count = |tokens_of: fn(&Group) -> usize| {
            chosen.iter().map(|i| tokens_of(&groups[*i])).sum::<usize>()
        };
        let loss_params = settings.loss_params();
        let denominators = StepDenominators {
            sequences: count(|group| group.samples.len()) as f32,
            learn_steps: settings.max_new_tokens as f32,
            steps: count(Group::num_counted) as f32,
            rollout_steps_per_minibatch,
        };
        let entropy_weight = loss_params.entropy_coef / count(Group::num_selected).max(1) as f32;
        Self { loss_params, entropy_weight, denominators }
    }
}

/// Buffers of passes on the CPU, which keep their memory between updates.
#[derive(Clone, Debug, Default)]
pub(super) struct PassBuffers {
    /// Gradients of all trainable parameters.
    pub gradients: Pool<Vec<f32>>,
    /// Forward passes.
    pub passes: Pool<TextPass>,
    /// Logits of some rows.
    pub logits: Pool<Vec<f32>>,
}

/// Inputs of the gradient of one optimizer step.
pub(super) struct Differentiation<'a> {
    pub decoder: &'a TokenDecoder,
    pub settings: &'a LanguageUpdateSettings,
    /// The groups of the iteration; methods take the chosen ones by index.
    pub groups: &'a [Group],
    pub minibatch_loss: MinibatchLoss,
    /// Log-probabilities under the reference, by group, sample and token; at least of this rank's groups.
    pub reference_logprobs: Option<&'a [Vec<Vec<f32>>]>,
    /// Shards of the groups of the iteration.
    pub shards: &'a Shards,
    pub team: &'a Team,
    pub buffers: &'a PassBuffers,
}

impl Differentiation<'_> {
    /// The activations that a forward pass keeps.
    pub(super) fn retention(&self) -> Retention {
        if self.settings.update.gradient_checkpointing { Retention::Inputs } else { Retention::All }
    }

    /// Selects the groups that [have a gradient](Group::has_gradient).
    pub(super) fn select_effective(&self, chosen: &[usize]) -> Vec<usize> {
        let loss_params = &self.minibatch_loss.loss_params;
        let has_gradient = |i: &usize| self.groups[*i].has_gradient(loss_params);
        chosen.iter().copied().filter(has_gradient).collect()
    }

    /// Selects the chosen groups, which are in ascending order, of a range of shards.
    pub(super) fn select_shards<'b>(
        &self,
        chosen: &'b [usize],
        shards: Range<usize>,
    ) -> &'b [usize] {
        let items = self.shards.items_of(shards);
        let position = |item: usize| chosen.partition_point(|i| *i < item);
        &chosen[position(items.start)..position(items.end)]
    }

    /// Log-probabilities of the samples of chosen groups under the reference, if there is one.
    pub(super) fn select_references(&self, chosen: &[usize]) -> Option<Vec<&Vec<f32>>> {
        self.reference_logprobs
            .map(|reference_logprobs| chosen.iter().flat_map(|i| &reference_logprobs[*i]).collect())
    }

    /// Computes the gradient of each sample from the current log-probabilities of its tokens, `logprobs`, and those
    /// under the reference, and adds to the sums.
    pub(super) fn differentiate_samples(
        &self,
        samples: &[&Sample],
        logprobs: &[Vec<f32>],
        reference_logprobs: Option<&[&Vec<f32>]>,
        sums: &mut TokenSums,
    ) -> Vec<TokenGrads> {
        let differentiate = |(i, sample): (usize, &&Sample)| {
            let weight =
                |at| if sample.is_selected(at) { self.minibatch_loss.entropy_weight } else { 0.0 };
            let reference = reference_logprobs.map(|all| &all[i][..]);
            TokenGrads {
                d_logprobs: self.differentiate_sample(sample, &logprobs[i], reference, sums),
                entropy_weights: (0..sample.tokens.len()).map(weight).collect(),
            }
        };
        samples.iter().enumerate().map(differentiate).collect()
    }

    /// Computes the derivative of the loss with respect to the log-probability of each token of a sample, and adds to
    /// the sums.
    fn differentiate_sample(
        &self,
        sample: &Sample,
        logprobs: &[f32],
        reference: Option<&[f32]>,
        sums: &mut TokenSums,
    ) -> Vec<f32> {
        let LossConfig { loss_type, .. } = self.settings.loss;
        let MinibatchLoss { loss_params, denominators, .. } = &self.minibatch_loss;
        let form = LossForm::new(&self.settings.loss);
        let count = sample.mask.iter().filter(|m| **m).count() as f32;
        let weight = weight(count, denominators, loss_type.averaging());
        let log_ratios: Vec<f32> =
            logprobs.iter().zip(&sample.logprobs).map(|(a, b)| a - b).collect();
        let counted = || sample.mask.iter().enumerate().filter(|(_, m)| **m).map(|(at, _)| at);
        let mean = counted().map(|at| log_ratios[at]).sum::<f32>() / count.max(1.0);
        let has_sequence_ratio = loss_type.has_sequence_ratio();
        let mut d_logprobs = vec![0.0; logprobs.len()];
        let mut d_ratio = 0.0;
        for at in counted() {
            let token_ratio = exp(log_ratios[at]);
            let ratio = if has_sequence_ratio { exp(mean) } else { token_ratio };
            let advantage = if sample.is_selected(at) { sample.advantages[at] } else { 0.0 };
            let step = Step { ratio, advantage, logprob: logprobs[at] };
            let policy = term(&step, loss_params, loss_type);
            let mut value = policy.value;
            if has_sequence_ratio {
                d_ratio += policy.d_logprob * weight / count;
            } else {
                d_logprobs[at] += policy.d_logprob * weight;
            }
            if let (Some(estimator), Some(reference)) = (form.kl, reference) {
                let kl = estimate_kl(
                    reference[at] - logprobs[at],
                    token_ratio,
                    estimator,
                    form.is_kl_corrected,
                );
                d_logprobs[at] += loss_params.kl_coef * kl.d_logprob * weight;
                value += loss_params.kl_coef * kl.value;
                sums.reference_kl += f64::from(kl.value);
            }
            sums.approx_kl += f64::from(k3(token_ratio, log_ratios[at]));
            sums.clipped += f64::from(policy.clipped);
            sums.loss += f64::from(weight * value);
            sums.tokens += 1.0;
            let distance = f64::from((token_ratio - 1.0).abs());
            sums.max_ratio_distance = sums.max_ratio_distance.max(distance);
        }
        counted().for_each(|at| d_logprobs[at] += d_ratio);
        d_logprobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::text::LanguageUpdateSettings;
    use crate::model::DecoderShape;
    use crate::settings::{OptimizerConfig, UpdateConfig};
    use crate::text::LanguageModel;

    #[test]
    fn ratios_of_texts_are_clamped_like_those_of_games() {
        let loss = LossConfig::default();
        let settings = LanguageUpdateSettings {
            update: UpdateConfig::default(),
            optimizer: OptimizerConfig::default(),
            temperature: 1.0,
            max_new_tokens: 2,
            loss,
        };
        let decoder =
            LanguageModel::with_fresh_weights(&DecoderShape::default(), "ab", 1).new_decoder();
        let sample = Sample {
            tokens: vec![0, 1],
            logprobs: vec![-120.0, -0.5],
            advantages: vec![-1.0, -1.0],
            mask: vec![true; 2],
            ..Sample::default()
        };
        let groups = [Group { prompt: vec![0], samples: vec![sample.clone()] }];
        let differentiation = Differentiation {
            decoder: &decoder,
            settings: &settings,
            groups: &groups,
            minibatch_loss: MinibatchLoss::new(&settings, &groups, &[0], 2.0),
            reference_logprobs: None,
            shards: &Shards::new(1, 1),
            team: &Team::alone(),
            buffers: &PassBuffers::default(),
        };
        let mut sums = TokenSums::default();
        // The first ratio is exp(119.9), which is more than a number of 32 bits holds; games clamp the exponent to 88.
        let d_logprobs =
            differentiation.differentiate_sample(&sample, &[-0.1, -0.5], None, &mut sums);
        assert!(d_logprobs.iter().all(|x| x.is_finite()), "{d_logprobs:?}");
        let distance = sums.max_ratio_distance;
        assert!((distance / 88f64.exp() - 1.0).abs() < 1e-5, "{distance}");
        assert!(sums.loss.is_finite() && sums.approx_kl.is_finite());
    }
}
