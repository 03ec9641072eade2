//! Updates of language models from groups of completions. Gradients are computed by hand-written backward passes, on
//! the CPU and in kernels, or by autodiff on a device without kernels.
//!
//! The groups are cut into shards, whose number follows from the settings. The gradients of the shards are summed in
//! one tree, so that the result has the same bytes for any number of threads and ranks.

#[cfg(text_kernels)]
mod device;
mod differentiation;
mod gradient;
mod group;
mod native;
mod optimizer;
mod shard_sums;
mod update;

pub use group::{Group, Sample};

use super::means::{UpdateMeans, UpdateSums};
use super::optimizer::{Moments, StepSettings, clip_and_step};
use super::order;
use super::update::take_steps;
use crate::device::release_freed_memory;
use crate::model::policy_file::ParameterValues;
use crate::objective::{LossConfig, LossParams};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::draw;
use crate::settings::{MomentPrecision, OptimizerConfig, UpdateConfig};
use crate::text::TokenDecoder;
#[cfg(text_kernels)]
use burn::tensor::Tensor;
use differentiation::{Differentiation, MinibatchLoss, PassBuffers};
use optimizer::AnyMoments;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;
use update::LanguageUpdate;

/// The settings of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageUpdateSettings {
    /// The loss to minimize.
    pub loss: LossConfig,
    /// Epochs, minibatches and clipping.
    pub update: UpdateConfig,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// The divisor of logits.
    pub temperature: f32,
    /// Maximum number of tokens of a completion.
    pub max_new_tokens: usize,
}

impl LanguageUpdateSettings {
    /// The parameters of the loss.
    pub(crate) fn loss_params(&self) -> LossParams {
        LossParams::new(&self.loss, self.loss.entropy_coef)
    }
}

/// Metrics of an update of a language model, whose steps are tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LanguageMeans {
    /// The means that every learner reports. `clip_fraction` and `entropy` are over
    /// [`counted_tokens`](Self::counted_tokens); those of skipped groups count with the entropy at which they were
    /// drawn. Divergences are over [`tokens`](Self::tokens).
    pub update: UpdateMeans,
    /// Tokens that the decoder evaluated and that count, over all epochs; groups without a gradient are skipped.
    pub tokens: f64,
    /// Tokens that count, over all epochs, those of skipped groups included.
    pub counted_tokens: f64,
    /// Largest distance of a ratio from 1 in the first optimizer step; `None` if it skipped all groups.
    pub first_ratio_distance: Option<f64>,
}

/// Counter that derives the key of the optimizer's draws from the learner's key.
const ROUNDING_COUNTER: u32 = u32::MAX;

/// A language model in training.
#[derive(Clone, Debug)]
pub struct LanguageLearner {
    /// The policy.
    pub decoder: TokenDecoder,
    optimizer: AnyMoments,
    /// The reference of the KL divergence: a frozen copy of the policy at the first update with a KL penalty.
    pub reference: Option<TokenDecoder>,
    key: u32,
    /// Ranks that share the run.
    team: Team,
    buffers: PassBuffers,
}

impl LanguageLearner {
    /// Trains `decoder` with moments of a precision in host memory; the order of the groups in an update follows `key`.
    pub fn new(decoder: TokenDecoder, key: u32, precision: MomentPrecision) -> Self {
        let optimizer = AnyMoments::new(precision, decoder.trainable_sizes());
        let (team, buffers) = (Team::alone(), PassBuffers::default());
        Self { decoder, optimizer, reference: None, key, team, buffers }
    }

    /// The optimizer's state in host memory and in f32; a copy if it is on a device or in another precision.
    pub fn read_moments(&self) -> Cow<'_, Moments> {
        self.optimizer.read_moments()
    }

    /// Calls `save` with the first and the second moment, in their precision in host memory, and returns the number of
    /// steps taken.
    pub fn save_moments(&self, save: impl FnOnce([ParameterValues; 2])) -> u64 {
        self.optimizer.save(save)
    }

    /// Restores a saved state of the optimizer, which host memory keeps in this precision.
    pub fn restore_moments(&mut self, moments: Moments, precision: MomentPrecision) {
        self.optimizer = AnyMoments::F32(moments);
        self.optimizer.convert_to(precision, || self.decoder.trainable_sizes());
    }

    /// Sets the reference of the KL divergence to a copy of the policy, adapters included; its trainable parameters
    /// are `trainable` if given.
    pub fn freeze_reference(&mut self, update: &UpdateConfig, trainable: Option<&[f32]>) {
        let mut reference = self.decoder.clone();
        if let Some(trainable) = trainable {
            reference.update(|params| params.copy_from_slice(trainable));
        }
        if update.gradient_checkpointing {
            reference.keep_packed_weights(false);
        }
        self.reference = Some(reference);
    }

    /// Shares the run with the other ranks of `team`: each differentiates the groups of its own shards.
    pub fn with_team(self, team: Team) -> Self {
        Self { team, ..self }
    }

    /// Performs one update: `update_epochs` passes over the groups of an iteration, in `num_minibatches` steps each.
    /// `rates` are the learning rates of the steps; a minibatch without counted tokens skips its step and its rate. All
    /// ranks pass all groups, and take the same steps.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn update(
        &mut self,
        settings: &LanguageUpdateSettings,
        groups: &[Group],
        iteration: u32,
        rates: &[f64],
    ) -> Result<LanguageMeans, TeamError> {
        if settings.loss.kl_coef > 0.0 && self.reference.is_none() {
            self.freeze_reference(&settings.update, None);
        }
        let counted: usize = groups.iter().map(Group::num_counted).sum();
        if counted == 0 {
            return Ok(LanguageMeans::default());
        }
        // With gradient checkpointing, packed copies of the weights are dropped during the update to save memory.
        if settings.update.gradient_checkpointing {
            self.decoder.keep_packed_weights(false);
            release_freed_memory();
        }
        let shards = self.team.cut_into_shards(groups.len(), settings.update.num_shards);
        let reference_logprobs = self.compute_reference_logprobs(settings, groups, &shards);
        let num_minibatches = settings.update.num_minibatches.min(groups.len());
        let (epochs, key) = (settings.update.update_epochs, draw(self.key, iteration));
        let minibatches = order::assign_groups(groups.len(), num_minibatches, epochs, key);
        let mut update = LanguageUpdate {
            learner: self,
            settings,
            groups,
            rates,
            shards,
            reference_logprobs,
            num_minibatches,
            rollout_steps_per_minibatch: counted as f32 / num_minibatches as f32,
            totals: UpdateSums::default(),
            tokens: 0.0,
            is_first_step: true,
            first_ratio_distance: None,
            norms: Vec::new(),
        };
        let taken = take_steps(&mut update, &minibatches, &settings.update)?;
        update.finish(&taken, &minibatches)
    }

    /// Steps the trainable parameters in host memory, and returns the norm of the gradient before clipping.
    fn step_on_host(
        &mut self,
        gradient: &[f32],
        learning_rate: f64,
        settings: &LanguageUpdateSettings,
    ) -> f32 {
        let config = &settings.optimizer;
        self.optimizer.convert_to(config.moments, || self.decoder.trainable_sizes());
        let undecayed =
            if config.decay_norms_and_biases { Vec::new() } else { vector_ranges(&self.decoder) };
        let key = draw(self.key, ROUNDING_COUNTER);
        let step_settings = StepSettings { learning_rate, config, undecayed: &undecayed, key };
        let Self { decoder, optimizer, .. } = self;
        clip_and_step(gradient, settings.update.max_grad_norm, |scale| {
            decoder.update(|params| optimizer.step(params, gradient, scale, &step_settings));
        })
    }

    /// Takes the step of [`LanguageLearner::step_on_host`] on the decoder's device, where its results stay. Returns the
    /// norm, `[1]`.
    #[cfg(text_kernels)]
    fn step_on_device(
        &mut self,
        gradient: device::DeviceGradient,
        learning_rate: f64,
        settings: &LanguageUpdateSettings,
    ) -> Tensor<1> {
        if !matches!(self.optimizer, AnyMoments::Device(_)) {
            let moments = device::DeviceMoments::upload(&self.read_moments(), &self.decoder);
            self.optimizer = AnyMoments::Device(Box::new(moments));
        }
        let AnyMoments::Device(moments) = &mut self.optimizer else { unreachable!("uploaded") };
        device::step(&mut self.decoder, moments, gradient, learning_rate, settings)
    }

    /// Log-probabilities under the reference, by group, sample and token; empty for groups of other ranks. `None`
    /// without a reference.
    fn compute_reference_logprobs(
        &self,
        settings: &LanguageUpdateSettings,
        groups: &[Group],
        shards: &Shards,
    ) -> Option<Vec<Vec<Vec<f32>>>> {
        let reference = self.reference.as_ref()?;
        let local = shards.own_items();
        let mut group_logprobs = vec![Vec::new(); local.start];
        group_logprobs.extend(compute_logprobs(reference, &groups[local], settings.temperature));
        group_logprobs.resize_with(groups.len(), Vec::new);
        Some(group_logprobs)
    }
}

/// Ranges of the trainable vectors, that is norms and biases, among the trainable parameters.
fn vector_ranges(decoder: &TokenDecoder) -> Vec<Range<usize>> {
    if decoder.has_adapters() {
        return Vec::new();
    }
    let parameters = decoder.shape().parameters().into_iter();
    let ranges = parameters.scan(0, |end, parameter| {
        let start = std::mem::replace(end, *end + parameter.num_elements());
        Some((start..*end, parameter.shape.len() == 1))
    });
    ranges.filter_map(|(range, is_vector)| is_vector.then_some(range)).collect()
}

/// Log-probabilities of all tokens at a temperature, by group, sample and token.
pub fn compute_logprobs(
    decoder: &TokenDecoder,
    groups: &[Group],
    temperature: f32,
) -> Vec<Vec<Vec<f32>>> {
    #[cfg(text_kernels)]
    if let Some(logprobs) = device::compute_logprobs(decoder, groups, temperature) {
        return logprobs;
    }
    let evaluate_group = |group: &Group| native::compute_logprobs(decoder, group, temperature);
    if decoder.is_sequential() {
        groups.par_iter().map(evaluate_group).collect()
    } else {
        groups.iter().map(evaluate_group).collect()
    }
}

/// Gradient of the loss of all groups as one minibatch, `[num_trainable]`. `reference_logprobs` are those under the
/// reference, by group, sample and token.
pub fn compute_gradient(
    decoder: &TokenDecoder,
    settings: &LanguageUpdateSettings,
    groups: &[Group],
    reference_logprobs: Option<&[Vec<Vec<f32>>]>,
) -> Vec<f32> {
    let counted = groups.iter().map(Group::num_counted).sum::<usize>() as f32;
    let indices: Vec<usize> = (0..groups.len()).collect();
    let differentiation = Differentiation {
        decoder,
        settings,
        groups,
        minibatch_loss: MinibatchLoss::new(settings, groups, &indices, counted),
        reference_logprobs,
        shards: &Shards::new(groups.len(), settings.update.num_shards),
        team: &Team::alone(),
        buffers: &PassBuffers::default(),
    };
    let (gradient, _) = differentiation.compute_gradient(&indices).expect("a single rank");
    gradient.into_vec(decoder.num_trainable())
}
