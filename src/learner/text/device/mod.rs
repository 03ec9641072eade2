//! The gradient of an optimiser step over texts on a device.
//!
//! Texts go through the layers once, and so does their gradient. Between the two the head takes some tokens at a time,
//! twice: for their log-probabilities, from which the loss computes slopes in host memory, and for the gradient of these.
//! So the logits of all tokens never exist at once.

mod optimizer;
#[cfg(feature = "kernels")]
mod optimizer_kernels;

use super::differentiation::{Differentiation, Sums, parts};
use super::{Group, LanguageLearner, Sample, texts};
use crate::device;
use crate::model::Categorical;
use crate::parallel::Node;
use crate::settings::Precision;
use crate::text::{
    DeviceDecoder, EXCLUDED, HiddenStates, TokenDecoder, integers, on_device, sharpness,
};
use burn::tensor::{Device, Int, Tensor};
pub(super) use optimizer::{DeviceMoments, norms, step};
use std::ops::Range;

/// Numbers of a table of logits at most.
const LOGITS: usize = 1 << 24;
/// Tokens that go forward and back together at most, unless a single group has more.
const TOKENS: usize = 8192;

/// The tokens to learn from, of a pass of texts.
struct LossTokens<'a> {
    samples: Vec<&'a Sample>,
    /// The sample of each token, and the token's number in it.
    places: Vec<[usize; 2]>,
    /// The row of the hidden streams that predicts each token: `[count]`.
    rows: Tensor<1, Int>,
    /// The tokens themselves: `[count]`.
    tokens: Tensor<1, Int>,
}

impl<'a> LossTokens<'a> {
    /// The tokens of all samples, or if `counted` those that the masks select.
    fn new(
        groups: &[&'a Group],
        (states, completions): (&HiddenStates, &[[usize; 2]]),
        counted: bool,
        on: &DeviceDecoder,
    ) -> Self {
        let (mut places, mut rows, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        let samples: Vec<&Sample> = groups.iter().flat_map(|group| &group.samples).collect();
        for (number, (sample, completion)) in samples.iter().zip(completions).enumerate() {
            for (at, token) in sample.tokens.iter().enumerate() {
                if !counted || sample.mask[at] {
                    places.push([number, at]);
                    rows.push(states.prediction(*completion, at) as i32);
                    tokens.push(*token as i32);
                }
            }
        }
        let count = places.len();
        let upload = |values: &[i32]| integers(values, [count, 1], on.device()).reshape([count]);
        Self { samples, rows: upload(&rows), tokens: upload(&tokens), places }
    }

    /// The policy of a piece of the tokens among their candidates, from normed streams `[len, hidden_size]`.
    fn policy(
        &self,
        on: &DeviceDecoder,
        hidden: Tensor<2>,
        [start, len]: [usize; 2],
        temperature: f32,
    ) -> Categorical {
        let logits = on.logits(hidden) * sharpness(temperature);
        let places = &self.places[start..start + len];
        let candidates = places.iter().map(|[sample, at]| self.samples[*sample].candidates(*at));
        if candidates.clone().all(<[u32]>::is_empty) {
            return Categorical::new(logits);
        }
        let vocabulary = on.vocabulary();
        let mut offsets = vec![0.0; len * vocabulary];
        for (row, candidates) in offsets.chunks_exact_mut(vocabulary).zip(candidates) {
            if !candidates.is_empty() {
                row.fill(-EXCLUDED);
                candidates.iter().for_each(|token| row[*token as usize] = 0.0);
            }
        }
        let offsets = device::upload(offsets, on.device()).reshape([len, vocabulary]);
        Categorical::new(logits + offsets)
    }

    /// Pieces of the tokens that go through the head together: where each begins, and how many it has.
    fn parts(&self, vocabulary: usize) -> impl Iterator<Item = [usize; 2]> + use<> {
        let (all, most) = (self.places.len(), (LOGITS / vocabulary).max(1));
        (0..all).step_by(most).map(move |start| [start, most.min(all - start)])
    }
}

/// Log-probabilities and entropies of tokens, from the streams that predict them.
fn evaluate(
    on: &DeviceDecoder,
    learnt: &LossTokens,
    hidden: &Tensor<2>,
    temperature: f32,
) -> [Vec<f32>; 2] {
    let count = learnt.places.len();
    let parts = learnt.parts(on.vocabulary()).map(|[start, len]| {
        let part = hidden.clone().narrow(0, start, len);
        let policy = learnt.policy(on, part, [start, len], temperature);
        [policy.logprob(learnt.tokens.clone().narrow(0, start, len)), policy.entropy()]
    });
    let (logprobs, entropies): (Vec<_>, Vec<_>) = parts.map(|[a, b]| (a, b)).unzip();
    let mut logprobs = device::fetch(Tensor::cat([logprobs, entropies].concat(), 0));
    let entropies = logprobs.split_off(count);
    [logprobs, entropies]
}

/// The log-probability of each token of the samples of each group; `None` if the decoder is on the CPU.
pub(super) fn logprobs(
    decoder: &TokenDecoder,
    groups: &[Group],
    temperature: f32,
) -> Option<Vec<Vec<Vec<f32>>>> {
    let on = on_device(decoder)?;
    let chosen: Vec<usize> = (0..groups.len()).collect();
    let parts = parts(groups, &chosen, TOKENS).into_iter();
    let some = |part: &[usize]| part.iter().map(|i| &groups[*i]).collect::<Vec<_>>();
    Some(parts.flat_map(|part| part_logprobs(&on, &some(part), temperature)).collect())
}

/// The log-probability of each token of the samples of groups that go through together.
fn part_logprobs(on: &DeviceDecoder, groups: &[&Group], temperature: f32) -> Vec<Vec<Vec<f32>>> {
    let (texts, completions) = texts(groups);
    let states = on.forward_texts(&texts);
    let learnt = LossTokens::new(groups, (&states, &completions), false, on);
    let hidden = states.hidden.select(0, learnt.rows.clone());
    let [all, _] = evaluate(on, &learnt, &hidden, temperature);
    let mut all = all.into_iter();
    let mut of = |sample: &Sample| all.by_ref().take(sample.tokens.len()).collect();
    groups.iter().map(|group| group.samples.iter().map(&mut of).collect()).collect()
}

/// Gradients of the learnt parameters; `None` for a parameter that no loss has reached yet.
#[derive(Debug, Default)]
pub(super) struct Gradient(Vec<Option<Tensor<1>>>);

impl Gradient {
    /// Adds more of them, which are too large by the factor `scale`.
    fn add(&mut self, more: Vec<Option<Tensor<1>>>, scale: f32) {
        self.0.resize(more.len(), None);
        let right = |x: Tensor<1>| if scale == 1.0 { x } else { x / scale };
        for (sum, more) in self.0.iter_mut().zip(more) {
            let more = more.map(right);
            *sum = match (sum.take(), more) {
                (Some(sum), Some(more)) => Some(sum + more),
                (sum, more) => sum.or(more),
            };
        }
    }

    /// Downloads the gradient of all learnt parameters, whose numbers of elements are `sizes`.
    pub fn fetch(self, sizes: &[usize]) -> Vec<f32> {
        let is_there: Vec<bool> = self.0.iter().map(Option::is_some).collect();
        let parts: Vec<Tensor<1>> = self.0.into_iter().flatten().collect();
        let mut found = match parts.is_empty() {
            true => Vec::new(),
            false => device::fetch(Tensor::cat(parts, 0)),
        }
        .into_iter();
        let mut all = Vec::with_capacity(sizes.iter().sum());
        for (number, size) in sizes.iter().enumerate() {
            match is_there.get(number) {
                Some(true) => all.extend(found.by_ref().take(*size)),
                _ => all.resize(all.len() + size, 0.0),
            }
        }
        all
    }
}

/// The gradient and the sums of the chosen groups in several shards at once, and the largest distance of a ratio from 1;
/// `None` if the decoder is on the CPU.
pub(super) fn node(
    of: &Differentiation,
    groups: &[Group],
    chosen: &[usize],
    shards: &Range<usize>,
) -> Option<(Node, f64)> {
    let (gradient, sums) = gradient(of, groups, of.of_shards(chosen, shards.clone()))?;
    let vector = gradient.fetch(&of.decoder.sizes());
    Some((Node { shards: shards.clone(), vector, numbers: sums.added() }, sums.ratio))
}

/// The gradient of the chosen groups, which stays on the device, and their sums; `None` if the decoder is on the CPU.
pub(super) fn gradient(
    of: &Differentiation,
    groups: &[Group],
    chosen: &[usize],
) -> Option<(Gradient, Sums)> {
    let on = on_device(of.decoder)?;
    let (mut gradient, mut sums) = (Gradient::default(), Sums::default());
    for part in parts(groups, chosen, TOKENS) {
        of.add_device_gradient(&on, groups, part, &mut gradient, &mut sums);
    }
    Some((gradient, sums))
}

impl LanguageLearner {
    /// Generates and learns on a device, with products in this precision. Unless other ranks share the run, whose
    /// gradients meet in host memory, weights and moments stay there.
    pub fn on(self, device: Device, precision: Precision) -> Self {
        let on = |decoder: TokenDecoder| decoder.with_device(Some(device.clone()), precision);
        Self { decoder: on(self.decoder), reference: self.reference.map(on), ..self }
    }
}

impl Differentiation<'_> {
    /// Adds the gradient of the `chosen` groups, and their sums.
    fn add_device_gradient(
        &self,
        on: &DeviceDecoder,
        groups: &[Group],
        chosen: &[usize],
        gradient: &mut Gradient,
        sums: &mut Sums,
    ) {
        let temperature = self.rule.temperature;
        let some: Vec<&Group> = chosen.iter().map(|i| &groups[*i]).collect();
        let (texts, completions) = texts(&some);
        let leaves = on.trainable();
        let states = leaves.forward_texts(&texts);
        let learnt = LossTokens::new(&some, (&states, &completions), true, on);
        let hidden = states.hidden.select(0, learnt.rows.clone());
        let fixed = hidden.clone().without_autodiff();
        let [logprobs, entropies] = evaluate(on, &learnt, &fixed, temperature);

        let samples: Vec<&Sample> = some.iter().flat_map(|group| &group.samples).collect();
        let mut now: Vec<Vec<f32>> =
            samples.iter().map(|one| vec![0.0; one.tokens.len()]).collect();
        for ([sample, at], logprob) in learnt.places.iter().zip(logprobs) {
            now[*sample][*at] = logprob;
        }
        let references = self.references_of(chosen);
        let slopes = self.all_slopes((&samples, &now), references.as_deref(), sums);
        let at = |which: usize| -> Vec<f32> {
            learnt.places.iter().map(|[sample, at]| slopes[*sample][which][*at]).collect()
        };
        let [mut slopes, mut weights] = [at(0), at(1)];
        for (entropy, weight) in entropies.iter().zip(&weights) {
            sums.entropy += f64::from(*entropy);
            sums.loss -= f64::from(weight * entropy);
        }

        // Scaled into the range of half precision, by a power of two, which rounds nothing.
        let scale = on.scale(slopes.iter().chain(&weights));
        slopes.iter_mut().chain(&mut weights).for_each(|x| *x *= scale);
        let [slopes, weights] = [slopes, weights].map(|x| device::upload(x, on.device()));
        let of_hidden = learnt.parts(on.vocabulary()).map(|[start, len]| {
            let part = |x: &Tensor<1>| x.clone().narrow(0, start, len);
            let hidden = fixed.clone().narrow(0, start, len).autodiff().require_grad();
            let policy = learnt.policy(&leaves, hidden.clone(), [start, len], temperature);
            let logprobs = policy.logprob(learnt.tokens.clone().narrow(0, start, len));
            let loss = logprobs * part(&slopes) - policy.entropy() * part(&weights);
            let mut found = loss.sum().backward();
            let of_hidden = hidden.grad_remove(&mut found).expect("tokens follow from it");
            gradient.add(leaves.gradients(&mut found), scale);
            of_hidden
        });
        let of_hidden = Tensor::cat(of_hidden.collect(), 0);
        let mut found = (hidden * of_hidden).sum().backward();
        gradient.add(leaves.gradients(&mut found), scale);
    }
}
