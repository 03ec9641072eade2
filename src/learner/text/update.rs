//! An update of a language model: its state between the steps, and the steps.

use super::differentiation::{Differentiation, MinibatchLoss, PassBuffers, TokenSums};
use super::gradient::Gradient;
use super::{Group, LanguageLearner, LanguageMeans, LanguageUpdateSettings};
use crate::device::{read, release_freed_memory};
use crate::learner::means::UpdateSums;
use crate::learner::update::{StepsTaken, UpdateSteps};
use crate::parallel::{Shards, TeamError};
use burn::tensor::Tensor;

/// An update of a language model.
pub(super) struct LanguageUpdate<'a> {
    pub learner: &'a mut LanguageLearner,
    pub settings: &'a LanguageUpdateSettings,
    pub groups: &'a [Group],
    /// Learning rates: `[update_epochs, num_minibatches]` of the settings.
    pub rates: &'a [f64],
    /// Shards of the groups.
    pub shards: Shards,
    /// Log-probabilities under the reference, by group, sample and token.
    pub reference_logprobs: Option<Vec<Vec<Vec<f32>>>>,
    /// Number of minibatches of an epoch, no more than there are groups.
    pub num_minibatches: usize,
    /// Counted tokens of an epoch, divided by its minibatches.
    pub rollout_steps_per_minibatch: f32,
    pub totals: UpdateSums,
    /// Counted tokens that the decoder evaluated.
    pub tokens: f64,
    /// Whether the next step is the first.
    pub is_first_step: bool,
    /// Largest distance of a ratio from 1 in the first step, if it learnt from any group.
    pub first_ratio_distance: Option<f64>,
    /// Norms of the steps on a device, which are read back together.
    pub norms: Vec<Tensor<1>>,
}

impl LanguageUpdate<'_> {
    /// Ends the update after its last step: returns its metrics, and frees memory that only updates need. The
    /// `minibatches` are those of the update.
    pub fn finish(
        self,
        taken: &StepsTaken,
        minibatches: &[Vec<usize>],
    ) -> Result<LanguageMeans, TeamError> {
        let skipped = self.sum_skipped(&minibatches[..taken.count]);
        let Self { learner, mut totals, tokens, first_ratio_distance, norms, .. } = self;
        if !norms.is_empty() {
            totals.add_norms(&read(Tensor::cat(norms, 0)));
        }
        if self.settings.update.gradient_checkpointing {
            learner.buffers = PassBuffers::default();
            learner.decoder.keep_packed_weights(true);
            release_freed_memory();
        }
        // A maximum is the same in any order. The count of tokens is already that of all ranks.
        let distances = learner.team.all_gather_numbers(&[first_ratio_distance.unwrap_or(0.0)])?;
        let largest = distances.concat().into_iter().fold(0.0, f64::max);
        let first_ratio_distance = first_ratio_distance.map(|_| largest);
        let mut update = totals.means(tokens);
        if skipped.tokens > 0.0 {
            update.clip_fraction *= tokens / (tokens + skipped.tokens);
            let known = (tokens + skipped.known_entropies).max(1.0);
            update.entropy = (update.entropy * tokens + skipped.entropy) / known;
        }
        taken.write_ending_kl(&mut update.approx_kl);
        let counted_tokens = tokens + skipped.tokens;
        Ok(LanguageMeans { update, tokens, counted_tokens, first_ratio_distance })
    }

    /// Sums over the groups of some minibatches that were skipped. The policy term of their tokens is 0, so none is
    /// clipped; their entropies are those with which they were drawn.
    fn sum_skipped(&self, minibatches: &[Vec<usize>]) -> SkippedSums {
        let loss_params = self.settings.loss_params();
        let groups = minibatches.iter().flatten().map(|i| &self.groups[*i]);
        let mut sums = SkippedSums::default();
        for group in groups.filter(|group| !group.has_gradient(&loss_params)) {
            let (count, entropy) = group.sum_entropies();
            sums.tokens += group.num_counted() as f64;
            sums.known_entropies += count;
            sums.entropy += entropy;
        }
        sums
    }
}

/// Sums over the counted tokens of skipped groups.
#[derive(Default)]
struct SkippedSums {
    tokens: f64,
    /// Number of tokens whose entropy is known.
    known_entropies: f64,
    entropy: f64,
}

impl UpdateSteps for LanguageUpdate<'_> {
    /// Indices of groups, in ascending order.
    type Minibatch = Vec<usize>;
    type Gradient = (Gradient, TokenSums);

    fn compute_gradient(
        &mut self,
        _index: usize,
        minibatch: &Vec<usize>,
    ) -> Result<Option<(Gradient, TokenSums)>, TeamError> {
        let Self { settings, groups, rollout_steps_per_minibatch, .. } = *self;
        let LanguageLearner { decoder, team, buffers, .. } = &*self.learner;
        let differentiation = Differentiation {
            decoder,
            settings,
            groups,
            minibatch_loss: MinibatchLoss::new(
                settings,
                groups,
                minibatch,
                rollout_steps_per_minibatch,
            ),
            reference_logprobs: self.reference_logprobs.as_deref(),
            shards: &self.shards,
            team,
            buffers,
        };
        if differentiation.minibatch_loss.denominators.steps == 0.0 {
            return Ok(None);
        }
        differentiation.compute_gradient(minibatch).map(Some)
    }

    fn approx_kl(&self, _index: usize, (_, sums): &(Gradient, TokenSums)) -> f64 {
        sums.approx_kl / sums.tokens.max(1.0)
    }

    /// Steps the decoder in host memory or on its device, wherever the gradient is.
    fn step(
        &mut self,
        index: usize,
        (gradient, sums): (Gradient, TokenSums),
    ) -> Result<(), TeamError> {
        let settings = self.settings;
        let (epoch, minibatch) = (index / self.num_minibatches, index % self.num_minibatches);
        let rate = self.rates[epoch * settings.update.num_minibatches + minibatch];
        let norm = match gradient {
            Gradient::Host(gradient) => {
                let norm = self.learner.step_on_host(&gradient, rate, settings);
                self.learner.buffers.gradients.put(gradient);
                norm
            }
            #[cfg(text_kernels)]
            Gradient::Device(gradient) => {
                self.norms.push(self.learner.step_on_device(gradient, rate, settings));
                0.0
            }
        };
        self.totals.add(&sums.to_additive(), norm);
        self.tokens += sums.tokens;
        if std::mem::take(&mut self.is_first_step) {
            self.first_ratio_distance = (sums.tokens > 0.0).then_some(sums.max_ratio_distance);
        }
        Ok(())
    }
}
