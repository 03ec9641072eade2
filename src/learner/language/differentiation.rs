//! The gradient of an optimiser step over texts.

use super::{Group, LanguageRule, Sample};
use crate::math::softmax::{Normalizer, logprob, prob};
use crate::model::LANES;
use crate::model::language::{Keep, Reading, Text, TokenDecoder, normalize, sharpness};
use crate::objective::kl::{divergence, third};
use crate::objective::weights::{Sizes, weight};
use crate::objective::{Coefficients, Form, LossConfig, Step, by_logit, term};
use multiversion::multiversion;
use rayon::prelude::*;

/// Partial gradients of a decoder that is small enough for several.
const SHARDS: usize = 16;
/// Tokens that go forward and back together at most, unless a single group has more: enough to fill the
/// products, and of a large decoder no more, since all that is kept of them takes memory.
const TOKENS: usize = 2048;
const TOKENS_OF_LARGE: usize = 512;
/// Rows that go through the head at a time.
const HEAD_ROWS: usize = 64;

/// Which tokens are predicted from which row.
pub(super) struct Targets {
    /// The sample and the number of each token in it, row by row.
    rows: Vec<Vec<[usize; 2]>>,
}

impl Targets {
    pub fn new(reading: &Reading, groups: &[&Group]) -> Self {
        let mut rows = Vec::new();
        let samples = groups.iter().flat_map(|group| &group.samples);
        for (number, sample) in samples.enumerate() {
            for at in 0..sample.tokens.len() {
                let row = reading.prediction(number, at);
                if rows.len() <= row {
                    rows.resize_with(row + 1, Vec::new);
                }
                rows[row].push([number, at]);
            }
        }
        Self { rows }
    }

    /// Shows every row's number, its logits at the temperature, and what is predicted from it; of many rows
    /// some at a time, so that the vocabulary is never there for all.
    pub fn visit(
        &self,
        decoder: &TokenDecoder,
        hidden: &[f32],
        temperature: f32,
        mut show: impl FnMut(usize, &mut [f32], &[[usize; 2]]),
    ) {
        let size = decoder.shape().hidden_size;
        let mut logits = Vec::new();
        let parts = self.rows.chunks(HEAD_ROWS).zip(hidden.chunks(HEAD_ROWS * size));
        for (part, (targets, hidden)) in parts.enumerate() {
            decoder.logits(hidden, &mut logits);
            let rows = logits.chunks_exact_mut(decoder.shape().num_actions);
            for (i, (logits, targets)) in rows.zip(targets).enumerate() {
                sharpen(logits, temperature);
                show(part * HEAD_ROWS + i, logits, targets);
            }
        }
    }
}

/// Logits at a temperature, as tokens are drawn from them.
fn sharpen(logits: &mut [f32], temperature: f32) {
    let sharpness = sharpness(temperature);
    logits.iter_mut().for_each(|x| *x *= sharpness);
}

/// The gradient of logits none of which is taken; gives the entropy.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn untaken(logits: &[f32], by: &Normalizer, slope: f32, entropies: f32, of: &mut [f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (logits, of) in logits.chunks(LANES).zip(of.chunks_mut(LANES)) {
        for ((z, of), sum) in logits.iter().zip(of).zip(&mut sums) {
            *of = prob(*z, by);
            *sum -= *of * logprob(*z, by);
        }
    }
    let entropy = sums.iter().sum();
    for (z, of) in logits.iter().zip(of) {
        *of = by_logit(slope, entropies, 0.0, *of, logprob(*z, by), entropy);
    }
    entropy
}

/// Sums over tokens that count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub approx_kl: f64,
    pub clipped: f64,
    pub entropy: f64,
    pub reference_kl: f64,
    pub loss: f64,
    /// The largest distance of a ratio from 1.
    pub ratio: f64,
}

/// One optimiser step's gradient.
pub(super) struct Differentiation<'a> {
    pub decoder: &'a TokenDecoder,
    pub rule: &'a LanguageRule,
    pub by: Coefficients,
    pub sizes: Sizes,
    pub references: Option<&'a [Vec<Vec<f32>>]>,
}

impl Differentiation<'_> {
    /// The gradient of the loss of the `chosen` groups.
    pub fn gradient(&self, groups: &[Group], chosen: &[usize]) -> (Vec<f32>, Sums) {
        // From groups whose members are all alike nothing is learnt, unless the loss has other terms.
        let others = self.by.entropy != 0.0 || self.by.kl != 0.0;
        let counts = |i: &&usize| {
            let group = &groups[**i];
            group.count() > 0 && (others || group.samples.iter().any(|one| one.advantage != 0.0))
        };
        let chosen: Vec<usize> = chosen.iter().filter(counts).copied().collect();
        let shards = if self.decoder.is_small() { SHARDS } else { 1 };
        let share = chosen.len().div_ceil(shards).max(1);
        let shard = |chosen: &[usize]| {
            let mut gradient = vec![0.0; self.decoder.trained().len()];
            let mut sums = Sums::default();
            let mut reading = Reading::default();
            for part in self.parts(groups, chosen) {
                self.learn(groups, part, &mut reading, &mut gradient, &mut sums);
            }
            (gradient, sums)
        };
        let mut all: Vec<(Vec<f32>, Sums)> = match self.decoder.is_small() {
            true => chosen.par_chunks(share).map(shard).collect(),
            false => chosen.chunks(share).map(shard).collect(),
        };
        if all.is_empty() {
            return (vec![0.0; self.decoder.trained().len()], Sums::default());
        }
        let (mut gradient, mut sums) = all.remove(0);
        for (_, more) in &all {
            sums.approx_kl += more.approx_kl;
            sums.clipped += more.clipped;
            sums.entropy += more.entropy;
            sums.reference_kl += more.reference_kl;
            sums.loss += more.loss;
            sums.ratio = sums.ratio.max(more.ratio);
        }
        gradient.par_chunks_mut(1 << 12).enumerate().for_each(|(i, sum)| {
            for (more, _) in &all {
                let part = &more[i << 12..][..sum.len()];
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        });
        (gradient, sums)
    }

    /// The groups that go through together.
    fn parts<'b>(&self, groups: &[Group], chosen: &'b [usize]) -> Vec<&'b [usize]> {
        let most = if self.decoder.is_small() { TOKENS } else { TOKENS_OF_LARGE };
        let (mut parts, mut start, mut tokens) = (Vec::new(), 0, 0);
        for (at, i) in chosen.iter().enumerate() {
            let group = &groups[*i];
            let count = group.samples.iter().map(|sample| sample.tokens.len()).sum::<usize>();
            if at > start && tokens + count + group.prompt.len() > most {
                parts.push(&chosen[start..at]);
                (start, tokens) = (at, 0);
            }
            tokens += count + group.prompt.len();
        }
        parts.push(&chosen[start..]);
        parts
    }

    /// Adds the gradient of some groups.
    fn learn(
        &self,
        groups: &[Group],
        chosen: &[usize],
        reading: &mut Reading,
        gradient: &mut [f32],
        sums: &mut Sums,
    ) {
        let keep = if self.rule.update.gradient_checkpointing { Keep::Inputs } else { Keep::All };
        let some: Vec<&Group> = chosen.iter().map(|i| &groups[*i]).collect();
        let texts: Vec<Text> = some.iter().map(|group| group.text()).collect();
        self.decoder.read(&texts, keep, reading);
        let targets = Targets::new(reading, &some);
        let samples: Vec<&Sample> = some.iter().flat_map(|group| &group.samples).collect();
        let references: Option<Vec<&Vec<f32>>> =
            self.references.map(|references| chosen.iter().flat_map(|i| &references[*i]).collect());
        let mut now: Vec<Vec<f32>> =
            samples.iter().map(|one| vec![0.0; one.tokens.len()]).collect();
        let (decoder, temperature) = (self.decoder, self.rule.temperature);
        targets.visit(decoder, reading.hidden(), temperature, |_, logits, targets| {
            let by = normalize(logits);
            for [sample, at] in targets {
                let token = samples[*sample].tokens[*at] as usize;
                now[*sample][*at] = logprob(logits[token], &by);
            }
        });
        let slopes: Vec<Vec<f32>> = samples
            .iter()
            .enumerate()
            .map(|(i, sample)| {
                self.slopes(sample, &now[i], references.as_ref().map(|all| &all[i][..]), sums)
            })
            .collect();
        let size = decoder.shape().hidden_size;
        let vocabulary = decoder.shape().num_actions;
        let mut of_hidden = vec![0.0; reading.hidden().len()];
        let mut of_logits = Vec::new();
        let rows = targets.rows.len();
        targets.visit(decoder, reading.hidden(), temperature, |row, logits, targets| {
            let by = normalize(logits);
            let first = row / HEAD_ROWS * HEAD_ROWS;
            let last = (first + HEAD_ROWS).min(rows);
            of_logits.resize((last - first) * vocabulary, 0.0);
            let of = &mut of_logits[(row - first) * vocabulary..][..vocabulary];
            self.of_row(logits, &by, (targets, &samples, &slopes), of, sums);
            sharpen(of, temperature);
            if row + 1 == last {
                let hidden = &reading.hidden()[first * size..last * size];
                let of_hidden = &mut of_hidden[first * size..last * size];
                decoder.learn_logits(hidden, &of_logits, of_hidden, gradient);
            }
        });
        decoder.learn(reading, &of_hidden, gradient);
    }

    /// The gradient of a row's logits.
    fn of_row(
        &self,
        logits: &[f32],
        by: &Normalizer,
        (targets, samples, slopes): (&[[usize; 2]], &[&Sample], &[Vec<f32>]),
        of: &mut [f32],
        sums: &mut Sums,
    ) {
        let averaging = self.rule.loss.loss_type.averaging();
        let (mut slope, mut entropies, mut counted) = (0.0, 0.0, 0.0);
        for [sample, at] in targets {
            let one = samples[*sample];
            if one.mask[*at] {
                let length = one.mask.iter().filter(|m| **m).count() as f32;
                slope += slopes[*sample][*at];
                entropies += self.by.entropy * weight(length, &self.sizes, averaging);
                counted += 1.0;
            }
        }
        // As if none was taken: what the taken ones add follows.
        let entropy = untaken(logits, by, slope, entropies, of);
        sums.entropy += f64::from(counted * entropy);
        sums.loss -= f64::from(entropies * entropy);
        for [sample, at] in targets {
            if samples[*sample].mask[*at] {
                of[samples[*sample].tokens[*at] as usize] += slopes[*sample][*at];
            }
        }
    }

    /// The derivative of the loss by the log-probability of each token of a sample.
    fn slopes(
        &self,
        sample: &Sample,
        now: &[f32],
        reference: Option<&[f32]>,
        sums: &mut Sums,
    ) -> Vec<f32> {
        let LossConfig { loss_type, .. } = self.rule.loss;
        let form = Form::of(&self.rule.loss);
        let count = sample.mask.iter().filter(|m| **m).count() as f32;
        let weight = weight(count, &self.sizes, loss_type.averaging());
        let log_ratios: Vec<f32> = now.iter().zip(&sample.logprobs).map(|(a, b)| a - b).collect();
        let counted = || sample.mask.iter().enumerate().filter(|(_, m)| **m).map(|(at, _)| at);
        let mean = counted().map(|at| log_ratios[at]).sum::<f32>() / count.max(1.0);
        let of_game = loss_type.ratio_of_game();
        let mut slopes = vec![0.0; now.len()];
        let mut of_ratio = 0.0;
        for at in counted() {
            let own = log_ratios[at].exp();
            let ratio = if of_game { mean.exp() } else { own };
            let step = Step { ratio, advantage: sample.advantage, logprob: now[at] };
            let policy = term(&step, &self.by, loss_type);
            let mut value = policy.value;
            if of_game {
                of_ratio += policy.slope * weight / count;
            } else {
                slopes[at] += policy.slope * weight;
            }
            if let (Some(estimator), Some(reference)) = (form.kl, reference) {
                let kl = divergence(reference[at] - now[at], own, estimator, form.corrected);
                slopes[at] += self.by.kl * kl.slope * weight;
                value += self.by.kl * kl.value;
                sums.reference_kl += f64::from(kl.value);
            }
            sums.approx_kl += f64::from(third(own, log_ratios[at]));
            sums.clipped += f64::from(policy.clipped);
            sums.loss += f64::from(weight * value);
            sums.ratio = sums.ratio.max(f64::from((own - 1.0).abs()));
        }
        counted().for_each(|at| slopes[at] += of_ratio);
        slopes
    }
}
