//! Updates of language models from groups of completions. Gradients are computed by hand-written backward passes, on the CPU
//! and in kernels, or by autodiff on a device without kernels.
//!
//! The groups are cut into shards, whose number follows from the settings. The gradients of the shards are summed in one
//! tree, so that the result has the same bytes for any number of threads and ranks.

#[cfg(text_kernels)]
mod device;
mod differentiation;
mod gradient;
mod host;
mod optimizer;

use super::means::{UpdateMeans, UpdateSums};
use super::optimizer::{Moments, StepSettings, clipped_step};
use super::order;
use super::update::{UpdateSteps, take_steps};
use crate::device::{fetch, release_freed_memory};
use crate::model::saved::Numbers;
use crate::objective::LossConfig;
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::draw;
use crate::settings::{MomentPrecision, OptimizerConfig, UpdateConfig};
use crate::text::{Text, TokenDecoder};
use burn::tensor::Tensor;
use differentiation::{Buffers, Differentiation, Scales, Sums};
use gradient::Gradient;
use optimizer::Optimizer;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// A completion to learn from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The tokens of the completion, at least one.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the behaviour policy.
    pub logprobs: Vec<f32>,
    /// Advantage of each token.
    pub advantages: Vec<f32>,
    /// Whether each token counts in the loss.
    pub mask: Vec<bool>,
    /// Whether the policy's term and the entropy bonus act on each token; the KL divergence acts on all. Empty for all.
    pub selected: Vec<bool>,
    /// The tokens that each token was drawn from, over which its probability is normalized. An empty or missing list
    /// stands for the whole vocabulary.
    pub candidates: Vec<Vec<u32>>,
}

impl Sample {
    /// Whether the policy's term and the entropy bonus act on token number `at`.
    fn is_selected(&self, at: usize) -> bool {
        self.mask[at] && self.selected.get(at).is_none_or(|selected| *selected)
    }

    /// The tokens that token number `at` was drawn from; empty for all.
    fn candidates(&self, at: usize) -> &[u32] {
        self.candidates.get(at).map_or(&[], |candidates| candidates)
    }
}

/// A prompt with the completions to learn from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The completions of the prompt.
    pub samples: Vec<Sample>,
}

impl Group {
    /// Number of tokens that count in the loss.
    fn count(&self) -> usize {
        let count = |sample: &Sample| sample.mask.iter().filter(|m| **m).count();
        self.samples.iter().map(count).sum()
    }

    /// Number of tokens that the entropy bonus acts on.
    fn count_selected(&self) -> usize {
        let count = |one: &Sample| (0..one.tokens.len()).filter(|at| one.is_selected(*at)).count();
        self.samples.iter().map(count).sum()
    }

    /// Returns the prompt with its distinct completions, and the index of each sample's completion. Equal samples pass
    /// through the decoder once; their gradients are summed.
    fn text(&self) -> (Text<'_>, Vec<usize>) {
        let (first, indices) = deduplicate(self.samples.iter().map(|sample| &sample.tokens));
        let completions = first.into_iter().map(|i| &self.samples[i].tokens[..]).collect();
        (Text { prompt: &self.prompt, completions }, indices)
    }

    /// Number of tokens that pass through the decoder.
    pub(crate) fn len(&self) -> usize {
        let (text, _) = self.text();
        text.prompt.len() + text.completions.iter().map(|tokens| tokens.len()).sum::<usize>()
    }
}

/// Returns the indices of the distinct items, and for each item its position among them.
pub fn deduplicate<T: Eq + Hash>(all: impl IntoIterator<Item = T>) -> (Vec<usize>, Vec<usize>) {
    let (mut first, mut found) = (Vec::new(), HashMap::new());
    let places = all.into_iter().enumerate().map(|(i, one)| {
        *found.entry(one).or_insert_with(|| {
            first.push(i);
            first.len() - 1
        })
    });
    let places = places.collect();
    (first, places)
}

/// The texts of some groups, and for each sample the indices of its group and of its completion in the group's text.
fn texts<'a>(groups: &[&'a Group]) -> (Vec<Text<'a>>, Vec<[usize; 2]>) {
    let (mut texts, mut places) = (Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        let (text, completions) = group.text();
        texts.push(text);
        places.extend(completions.into_iter().map(|completion| [number, completion]));
    }
    (texts, places)
}

/// The settings of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSettings {
    /// The loss to minimize.
    pub loss: LossConfig,
    /// Epochs, minibatches and clipping.
    pub update: UpdateConfig,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// The divisor of logits.
    pub temperature: f32,
    /// The most tokens that a completion can have.
    pub max_new_tokens: usize,
}

/// Metrics of an update of a language model, whose steps are tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LanguageMeans {
    /// The means that every learner reports, over [`tokens`](Self::tokens).
    pub update: UpdateMeans,
    /// Tokens that the decoder evaluated and that count, over all epochs; groups without a gradient are skipped.
    pub tokens: f64,
    /// Largest distance of a ratio from 1 in the first optimizer step; `None` if it skipped all groups.
    pub first_ratio: Option<f64>,
}

/// Counter that derives the key of the optimizer's draws from that of the learner.
const ROUNDING: u32 = u32::MAX;

/// A language model in training.
#[derive(Clone, Debug)]
pub struct LanguageLearner {
    /// The policy.
    pub decoder: TokenDecoder,
    optimizer: Optimizer,
    /// The reference of the KL divergence: a frozen copy of the policy at the first update whose loss has one.
    pub reference: Option<TokenDecoder>,
    key: u32,
    /// Ranks that share the run.
    team: Team,
    buffers: Buffers,
}

impl LanguageLearner {
    /// Trains `decoder` with moments in a precision in host memory; the order of the groups in an update follows `key`.
    pub fn new(decoder: TokenDecoder, key: u32, moments: MomentPrecision) -> Self {
        let optimizer = Optimizer::new(moments, decoder.sizes());
        let (team, buffers) = (Team::alone(), Buffers::default());
        Self { decoder, optimizer, reference: None, key, team, buffers }
    }

    /// The optimizer's state in host memory and in f32; a copy if it is on a device or in another precision.
    pub fn moments(&self) -> Cow<'_, Moments> {
        self.optimizer.moments()
    }

    /// Calls `save` with the first and the second moment, in their precision in host memory, and returns the number of steps
    /// taken.
    pub fn save_moments(&self, save: impl FnOnce([Numbers; 2])) -> u64 {
        self.optimizer.save(save)
    }

    /// Restores a saved state of the optimizer, which host memory keeps in this precision.
    pub fn restore_moments(&mut self, moments: Moments, precision: MomentPrecision) {
        self.optimizer = Optimizer::Host(moments);
        self.optimizer.keep(precision, || self.decoder.sizes());
    }

    /// Sets the reference of the KL divergence to a copy of the policy, adapters included; its learnt parameters are
    /// `trained` if given.
    pub fn freeze_reference(&mut self, update: &UpdateConfig, trained: Option<&[f32]>) {
        let mut reference = self.decoder.clone();
        if let Some(trained) = trained {
            reference.update(|params| params.copy_from_slice(trained));
        }
        if update.gradient_checkpointing {
            reference.keep_packed_weights(false);
        }
        self.reference = Some(reference);
    }

    /// Shares the run with the other ranks of `team`: each differentiates the groups of its own shards.
    pub fn sharing(self, team: Team) -> Self {
        Self { team, ..self }
    }

    /// Performs one update: `update_epochs` passes over the groups of an iteration, in `num_minibatches` steps each. `rates`
    /// are the learning rates of the steps; a minibatch without counted tokens skips its step and its rate. All ranks pass
    /// all groups, and take the same steps.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn update(
        &mut self,
        rule: &UpdateSettings,
        groups: &[Group],
        iteration: u32,
        entropy_coef: f64,
        rates: &[f64],
    ) -> Result<LanguageMeans, TeamError> {
        if rule.loss.kl_coef > 0.0 && self.reference.is_none() {
            self.freeze_reference(&rule.update, None);
        }
        let counted: usize = groups.iter().map(Group::count).sum();
        if counted == 0 {
            return Ok(LanguageMeans::default());
        }
        // With gradient checkpointing, packed copies of the weights are dropped during the update to save memory.
        let saves = rule.update.gradient_checkpointing;
        if saves {
            self.decoder.keep_packed_weights(false);
            release_freed_memory();
        }
        let shards = self.team.shards(groups.len(), rule.update.num_shards);
        let references = self.reference_logprobs(rule, groups, &shards);
        let count = rule.update.num_minibatches.min(groups.len());
        let key = draw(self.key, iteration);
        let minibatches = order::groups(key, rule.update.update_epochs, count, groups.len());
        let mut update = TextUpdate {
            learner: self,
            rule,
            groups,
            entropy_coef,
            rates,
            shards,
            references,
            minibatches: count,
            rollout_share: counted as f32 / count as f32,
            totals: UpdateSums::default(),
            tokens: 0.0,
            first_ratio: None,
            norms: Vec::new(),
        };
        take_steps(&mut update, &minibatches, &rule.update)?;
        let TextUpdate { mut totals, tokens, first_ratio, norms, .. } = update;
        if !norms.is_empty() {
            totals.add_norms(&fetch(Tensor::cat(norms, 0)));
        }
        if saves {
            self.buffers = Buffers::default();
            self.decoder.keep_packed_weights(true);
            release_freed_memory();
        }
        // A maximum is the same in any order. The count of tokens is already that of all ranks.
        let first_ratio = first_ratio.flatten();
        let ratios = self.team.all_gather_numbers(&[first_ratio.unwrap_or(0.0)])?;
        let largest = ratios.concat().into_iter().fold(0.0, f64::max);
        let first_ratio = first_ratio.map(|_| largest);
        Ok(LanguageMeans { update: totals.means(tokens), tokens, first_ratio })
    }

    /// Steps the learnt parameters in host memory with a gradient clipped to a norm, at a learning rate, and returns
    /// the norm before clipping.
    fn host_step(
        &mut self,
        gradient: &[f32],
        (max_norm, rate): (f64, f64),
        config: &OptimizerConfig,
    ) -> f32 {
        self.optimizer.keep(config.moments, || self.decoder.sizes());
        let spared = match config.decay_norms_and_biases {
            true => Vec::new(),
            false => vectors(&self.decoder),
        };
        let key = draw(self.key, ROUNDING);
        let by = StepSettings { learning_rate: rate, config, spared: &spared, key };
        let Self { decoder, optimizer, .. } = self;
        clipped_step(gradient, max_norm, |scale| {
            decoder.update(|params| optimizer.step(params, gradient, scale, &by));
        })
    }

    /// Takes the step of [`LanguageLearner::host_step`] on the decoder's device, where its results stay. Returns the norm,
    /// `[1]`.
    #[cfg(text_kernels)]
    fn device_step(
        &mut self,
        gradient: device::Gradient,
        clip_and_rate: (f64, f64),
        config: &OptimizerConfig,
    ) -> Tensor<1> {
        if !matches!(self.optimizer, Optimizer::Device(_)) {
            let moments = device::DeviceMoments::upload(&self.moments(), &self.decoder);
            self.optimizer = Optimizer::Device(Box::new(moments));
        }
        let Optimizer::Device(moments) = &mut self.optimizer else { unreachable!("uploaded") };
        device::step(&mut self.decoder, moments, gradient, clip_and_rate, config)
    }

    /// Log-probabilities under the reference, by group, sample and token; empty for groups of other ranks. `None` without a
    /// reference.
    fn reference_logprobs(
        &self,
        rule: &UpdateSettings,
        groups: &[Group],
        shards: &Shards,
    ) -> Option<Vec<Vec<Vec<f32>>>> {
        let reference = self.reference.as_ref()?;
        let own = shards.own_items();
        let ours = logprobs(reference, &groups[own.clone()], rule.temperature);
        let mut all = vec![Vec::new(); own.start];
        all.extend(ours);
        all.resize_with(groups.len(), Vec::new);
        Some(all)
    }
}

/// An update of a language model.
struct TextUpdate<'a> {
    learner: &'a mut LanguageLearner,
    rule: &'a UpdateSettings,
    groups: &'a [Group],
    entropy_coef: f64,
    /// Learning rates: `[update_epochs, num_minibatches]` of the settings.
    rates: &'a [f64],
    /// Shards of the groups.
    shards: Shards,
    /// Log-probabilities under the reference, by group, sample and token.
    references: Option<Vec<Vec<Vec<f32>>>>,
    /// Minibatches of an epoch: no more than there are groups.
    minibatches: usize,
    /// Counted tokens of an epoch, divided by its minibatches.
    rollout_share: f32,
    totals: UpdateSums,
    /// Counted tokens that the decoder evaluated.
    tokens: f64,
    /// Largest distance of a ratio from 1 in the first step; `None` before it, and in it if it skipped all groups.
    first_ratio: Option<Option<f64>>,
    /// Norms of the steps on a device, which are read back together.
    norms: Vec<Tensor<1>>,
}

impl UpdateSteps for TextUpdate<'_> {
    /// Groups, in order.
    type Minibatch = Vec<usize>;
    type Gradient = (Gradient, Sums);

    fn gradient(
        &mut self,
        _number: usize,
        of: &Vec<usize>,
    ) -> Result<Option<(Gradient, Sums)>, TeamError> {
        let LanguageLearner { decoder, team, buffers, .. } = &*self.learner;
        let pass = Differentiation {
            decoder,
            rule: self.rule,
            groups: self.groups,
            scales: Scales::new(self.rule, self.entropy_coef, self.groups, of, self.rollout_share),
            references: self.references.as_deref(),
            shards: &self.shards,
            team,
            buffers,
        };
        if pass.scales.sizes.steps == 0.0 {
            return Ok(None);
        }
        pass.gradient(of).map(Some)
    }

    fn approx_kl(&self, _number: usize, (_, sums): &(Gradient, Sums)) -> f64 {
        sums.approx_kl / sums.tokens.max(1.0)
    }

    fn step(&mut self, number: usize, (gradient, sums): (Gradient, Sums)) -> Result<(), TeamError> {
        let UpdateSettings { update, optimizer, .. } = self.rule;
        let (epoch, part) = (number / self.minibatches, number % self.minibatches);
        let rate = self.rates[epoch * update.num_minibatches + part];
        let clip_and_rate = (update.max_grad_norm, rate);
        let norm = match gradient {
            Gradient::Host(gradient) => {
                let norm = self.learner.host_step(&gradient, clip_and_rate, optimizer);
                self.learner.buffers.gradients.put(gradient);
                norm
            }
            #[cfg(text_kernels)]
            Gradient::Device(gradient) => {
                self.norms.push(self.learner.device_step(gradient, clip_and_rate, optimizer));
                0.0
            }
        };
        self.totals.add(&sums.added(), norm);
        self.tokens += sums.tokens;
        self.first_ratio.get_or_insert((sums.tokens > 0.0).then_some(sums.ratio));
        Ok(())
    }
}

/// Ranges of the learnt vectors, that is norms and biases, among the learnt parameters.
fn vectors(decoder: &TokenDecoder) -> Vec<Range<usize>> {
    if decoder.has_adapters() {
        return Vec::new();
    }
    let parameters = decoder.shape().parameters().into_iter();
    let places = parameters.scan(0, |end, parameter| {
        let start = std::mem::replace(end, *end + parameter.count());
        Some((start..*end, parameter.shape.len() == 1))
    });
    places.filter_map(|(place, is_vector)| is_vector.then_some(place)).collect()
}

/// Log-probabilities of all tokens at a temperature, by group, sample and token.
pub fn logprobs(decoder: &TokenDecoder, groups: &[Group], temperature: f32) -> Vec<Vec<Vec<f32>>> {
    #[cfg(text_kernels)]
    if let Some(all) = device::logprobs(decoder, groups, temperature) {
        return all;
    }
    let of = |group: &Group| host::logprobs(decoder, group, temperature);
    match decoder.is_small() {
        true => groups.par_iter().map(of).collect(),
        false => groups.iter().map(of).collect(),
    }
}

/// Gradient of the loss of all groups as one minibatch, `[num_trained]`. `references` are the log-probabilities under the
/// reference, by group, sample and token.
pub fn gradient(
    decoder: &TokenDecoder,
    rule: &UpdateSettings,
    groups: &[Group],
    references: Option<&[Vec<Vec<f32>>]>,
    entropy_coef: f64,
) -> Vec<f32> {
    let count = groups.iter().map(Group::count).sum::<usize>() as f32;
    let all: Vec<usize> = (0..groups.len()).collect();
    let pass = Differentiation {
        decoder,
        rule,
        groups,
        scales: Scales::new(rule, entropy_coef, groups, &all, count),
        references,
        shards: &Shards::new(groups.len(), rule.update.num_shards),
        team: &Team::alone(),
        buffers: &Buffers::default(),
    };
    let (gradient, _) = pass.gradient(&all).expect("a single rank");
    gradient.into_host(&decoder.sizes())
}
