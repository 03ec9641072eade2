//! The gradient of an optimizer step over texts on the CPU.

use super::differentiation::{Differentiation, Sums, TokenGrads, parts};
use super::{Group, Sample, texts};
use crate::math::softmax::{Normalizer, logprob, prob};
use crate::model::LANES;
use crate::objective::by_logit;
use crate::parallel::{PartialSum, TeamError, left_siblings, sum_leaves, tree_nodes};
use crate::text::{Retention, TextPass, TokenDecoder, normalize, region, restrict, sharpness};
use multiversion::multiversion;
use std::ops::Range;

/// Maximum number of tokens of a forward and backward pass, unless a single group has more: enough for efficient products,
/// and fewer for a large decoder, whose activations take more memory.
const TOKENS: usize = 2048;
const TOKENS_OF_LARGE: usize = 640;
/// Rows that pass through the head at a time: more for a large decoder, since each time its backward pass adds to the whole
/// gradient of the head.
const HEAD_ROWS: usize = 64;
const HEAD_ROWS_OF_LARGE: usize = 256;
/// Numbers of a large gradient that one thread clears at a time.
const PORTION: usize = 1 << 16;

/// The tokens predicted from each row.
struct Targets<'a> {
    samples: Vec<&'a Sample>,
    /// The sample and the number of each token in it, row by row.
    rows: Vec<Vec<[usize; 2]>>,
}

impl<'a> Targets<'a> {
    /// Lists the tokens of all samples of some groups after their forward pass; `places` are the indices of each sample's
    /// group and completion.
    fn new(forward: &TextPass, groups: &[&'a Group], places: &[[usize; 2]]) -> Self {
        let mut rows = Vec::new();
        let samples: Vec<&Sample> = groups.iter().flat_map(|group| &group.samples).collect();
        for (number, (sample, place)) in samples.iter().zip(places).enumerate() {
            for at in 0..sample.tokens.len() {
                let row = forward.prediction(*place, at);
                if rows.len() <= row {
                    rows.resize_with(row + 1, Vec::new);
                }
                rows[row].push([number, at]);
            }
        }
        Self { samples, rows }
    }

    /// The log-probability of each token of each sample.
    fn logprobs(
        &self,
        decoder: &TokenDecoder,
        hidden: &[f32],
        temperature: f32,
        buffer: &mut Vec<f32>,
    ) -> Vec<Vec<f32>> {
        let mut all: Vec<Vec<f32>> =
            self.samples.iter().map(|sample| vec![0.0; sample.tokens.len()]).collect();
        let of_row = |logits: &mut [f32], targets: &[[usize; 2]]| -> Vec<f32> {
            let by = normalize(logits);
            let token = |[sample, at]: &[usize; 2]| self.samples[*sample].tokens[*at] as usize;
            targets.iter().map(|target| logprob(logits[token(target)], &by)).collect()
        };
        let by = (temperature, buffer);
        self.visit(decoder, hidden, by, of_row, |first, logprobs, _| {
            let targets = self.rows[first..].iter().flatten();
            for ([sample, at], logprob) in targets.zip(logprobs.into_iter().flatten()) {
                all[*sample][*at] = logprob;
            }
        });
        all
    }

    /// Computes the logits of all rows, at the temperature and among the candidates, in parts, so that the logits of all rows
    /// never exist at once. `of_row` takes a row's logits, which it may overwrite, and its tokens; `of_part` takes the first
    /// row of a part, the results of `of_row` for the part, and the logits that `of_row` left.
    fn visit<T: Default + Send>(
        &self,
        decoder: &TokenDecoder,
        hidden: &[f32],
        (temperature, logits): (f32, &mut Vec<f32>),
        of_row: impl Fn(&mut [f32], &[[usize; 2]]) -> T + Sync,
        mut of_part: impl FnMut(usize, Vec<T>, &[f32]),
    ) {
        let (size, vocabulary) = (decoder.shape().hidden_size, decoder.shape().num_actions);
        let most = if decoder.is_small() { HEAD_ROWS } else { HEAD_ROWS_OF_LARGE };
        let row = |logits: &mut [f32], targets: &[[usize; 2]]| {
            sharpen(logits, temperature);
            // Tokens that one row predicts come from one distribution.
            if let Some([sample, at]) = targets.first() {
                restrict(logits, self.samples[*sample].candidates(*at));
            }
            of_row(logits, targets)
        };
        let parts = self.rows.chunks(most).zip(hidden.chunks(most * size));
        for (part, (targets, hidden)) in parts.enumerate() {
            decoder.logits(hidden, logits);
            let mut results: Vec<T> = Vec::new();
            results.resize_with(targets.len(), T::default);
            let places = logits.chunks_exact_mut(vocabulary).zip(&mut results);
            let mut rows: Vec<_> = places.zip(targets).collect();
            decoder.parallelism().each_mut(&mut rows, |_, ((logits, result), targets)| {
                **result = row(logits, targets);
            });
            of_part(part * most, results, logits);
        }
    }
}

/// Divides logits by the temperature, as sampling does.
fn sharpen(logits: &mut [f32], temperature: f32) {
    let sharpness = sharpness(temperature);
    if sharpness != 1.0 {
        logits.iter_mut().for_each(|x| *x *= sharpness);
    }
}

/// Replaces logits by the derivatives of the loss, without the terms of the drawn tokens. Returns the entropy, nats.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn untaken(logits: &mut [f32], by: &Normalizer, d_logprob: f32, entropy_weight: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for logits in logits.chunks(LANES) {
        for (z, sum) in logits.iter().zip(&mut sums) {
            *sum -= prob(*z, by) * logprob(*z, by);
        }
    }
    let entropy = sums.iter().sum();
    for z in logits {
        *z = by_logit(d_logprob, entropy_weight, 0.0, prob(*z, by), logprob(*z, by), entropy);
    }
    entropy
}

/// Log-probabilities of the tokens of a group on the CPU, by sample and token.
pub(super) fn logprobs(decoder: &TokenDecoder, group: &Group, temperature: f32) -> Vec<Vec<f32>> {
    let mut forward = TextPass::default();
    let (texts, places) = texts(&[group]);
    decoder.forward_texts(&texts, Retention::Nothing, &mut forward);
    let targets = Targets::new(&forward, &[group], &places);
    targets.logprobs(decoder, forward.hidden(), temperature, &mut Vec::new())
}

impl Differentiation<'_> {
    /// Computes the gradient of a large decoder: ranks sum each layer's gradient while the backward pass of the last shard
    /// computes that of the layer below, so that communication overlaps with computation.
    pub(super) fn in_pieces(&self, chosen: &[usize]) -> Result<(Vec<f32>, Sums), TeamError> {
        let mut ratio = 0.0f64;
        let sums = self.team.all_reduce_pipelined(self.shards, |give| {
            let own = tree_nodes(self.shards.count(), &self.shards.own());
            let (last, whole) = own.split_last().expect("every rank has a shard");
            let mut sum = |shards: Range<usize>| {
                let (sum, largest) = self.node(chosen, shards);
                ratio = ratio.max(largest);
                sum
            };
            let whole: Vec<PartialSum> = whole.iter().cloned().map(&mut sum).collect();
            let lefts: Vec<PartialSum> = left_siblings(last).into_iter().map(&mut sum).collect();
            let (mut starts, mut end) = (self.decoder.starts(), self.decoder.num_trained());
            let mut piece = |start: usize, vector: &[f32], numbers: &[f64]| {
                let range = start..end;
                end = start;
                let of = |node: &PartialSum| PartialSum {
                    shards: node.shards.clone(),
                    vector: node.vector[range.clone()].to_vec(),
                    // The numbers are sent with the last piece.
                    numbers: if start == 0 { node.numbers.clone() } else { Vec::new() },
                };
                let (shards, vector) = (last.end - 1..last.end, vector[range.clone()].to_vec());
                let leaf = PartialSum { shards, vector, numbers: numbers.to_vec() };
                let sum = lefts.iter().rev().fold(leaf, |sum, left| of(left).add_next(sum));
                give(whole.iter().map(of).chain([sum]).collect());
            };
            let done = |vector: &[f32], start: usize| {
                if start > 0 {
                    assert_eq!(starts.pop(), Some(start), "from the last layer to the first");
                    piece(start, vector, &[]);
                }
            };
            let (leaf, largest) = self.leaf(chosen, last.end - 1, done);
            while let Some(start) = starts.pop() {
                piece(start, &leaf.vector, if start == 0 { &leaf.numbers } else { &[] });
            }
            ratio = ratio.max(largest);
        })?;
        let mut end = self.decoder.num_trained();
        let (mut gradient, mut numbers) = (vec![0.0; end], Vec::new());
        for sum in sums {
            let start = end - sum.vector.len();
            gradient[start..end].copy_from_slice(&sum.vector);
            (end, numbers) = (start, sum.numbers);
        }
        Ok((gradient, Sums::of(&numbers, ratio)))
    }

    /// Computes gradient and sums of the chosen groups in a node's shards, and the largest distance of a ratio from 1.
    pub(super) fn node(&self, chosen: &[usize], shards: Range<usize>) -> (PartialSum, f64) {
        let leaf = |at: usize| self.leaf(chosen, shards.start + at, |_, _| {});
        let add = |(sum, ratio): (PartialSum, f64), (more, other): (PartialSum, f64)| {
            (sum.add_next(more), ratio.max(other))
        };
        // A large decoder's products take all threads, and its gradients much memory.
        sum_leaves(shards.len(), self.decoder.is_small(), &leaf, &add)
    }

    /// Computes [`Differentiation::node`] of a single shard; `done` is called in the last backward pass as by
    /// [`TokenDecoder::backward_texts`].
    fn leaf(
        &self,
        chosen: &[usize],
        shard: usize,
        mut done: impl FnMut(&[f32], usize),
    ) -> (PartialSum, f64) {
        let chosen = self.of_shards(chosen, shard..shard + 1);
        let mut vector = self.buffers.gradients.take();
        vector.resize(self.decoder.num_trained(), 0.0);
        let parallelism = self.decoder.parallelism();
        parallelism.each_chunk([(&mut vector[..], PORTION)], |_, [part]| part.fill(0.0));
        let mut sums = Sums::default();
        let mut forward = self.buffers.passes.take();
        let most = if self.decoder.is_small() { TOKENS } else { TOKENS_OF_LARGE };
        let parts = parts(self.groups, chosen, most);
        region(parallelism, || {
            for (number, part) in parts.iter().enumerate() {
                let is_last = number + 1 == parts.len();
                let done = |gradient: &[f32], start: usize| {
                    if is_last {
                        done(gradient, start);
                    }
                };
                self.add_gradient(part, &mut forward, &mut vector, &mut sums, done);
            }
        });
        self.buffers.passes.put(forward);
        (PartialSum { shards: shard..shard + 1, vector, numbers: sums.added() }, sums.ratio)
    }

    /// Adds the gradient of some groups; `done` is called as by [`TokenDecoder::backward_texts`].
    fn add_gradient(
        &self,
        chosen: &[usize],
        forward: &mut TextPass,
        gradient: &mut [f32],
        sums: &mut Sums,
        done: impl FnMut(&[f32], usize),
    ) {
        let some: Vec<&Group> = chosen.iter().map(|i| &self.groups[*i]).collect();
        let (texts, places) = texts(&some);
        self.decoder.forward_texts(&texts, self.retention(), forward);
        let targets = Targets::new(forward, &some, &places);
        let samples = &targets.samples;
        let references = self.references_of(chosen);
        let (decoder, temperature) = (self.decoder, self.rule.temperature);
        let mut logits = self.buffers.logits.take();
        let now = targets.logprobs(decoder, forward.hidden(), temperature, &mut logits);
        let grads = self.token_grads((samples, &now), references.as_deref(), sums);
        let size = decoder.shape().hidden_size;
        let mut d_hidden = vec![0.0; forward.hidden().len()];
        let of_row = |logits: &mut [f32], targets: &[[usize; 2]]| {
            let sums = self.of_row(logits, (targets, samples, &grads));
            sharpen(logits, temperature);
            sums
        };
        let of_part = |first: usize, rows: Vec<[f32; 2]>, d_logits: &[f32]| {
            for [entropy, loss] in &rows {
                sums.entropy += f64::from(*entropy);
                sums.loss -= f64::from(*loss);
            }
            let place = first * size..(first + rows.len()) * size;
            let hidden = &forward.hidden()[place.clone()];
            decoder.backward_head(hidden, d_logits, &mut d_hidden[place], gradient);
        };
        let by = (temperature, &mut logits);
        targets.visit(decoder, forward.hidden(), by, of_row, of_part);
        self.buffers.logits.put(logits);
        decoder.backward_texts(forward, &d_hidden, gradient, done);
    }

    /// Replaces a row's logits by their gradient. Returns the sum of the entropies of the row's counted tokens, and their
    /// entropy bonus.
    fn of_row(
        &self,
        logits: &mut [f32],
        (targets, samples, grads): (&[[usize; 2]], &[&Sample], &[TokenGrads]),
    ) -> [f32; 2] {
        let by = normalize(logits);
        let (mut d_logprob, mut entropy_weight, mut counted) = (0.0, 0.0, 0.0);
        for [sample, at] in targets {
            if samples[*sample].mask[*at] {
                d_logprob += grads[*sample].d_logprobs[*at];
                entropy_weight += grads[*sample].entropy_weights[*at];
                counted += 1.0;
            }
        }
        // The terms of the drawn tokens are added below.
        let entropy = untaken(logits, &by, d_logprob, entropy_weight);
        for [sample, at] in targets {
            if samples[*sample].mask[*at] {
                logits[samples[*sample].tokens[*at] as usize] += grads[*sample].d_logprobs[*at];
            }
        }
        [counted * entropy, entropy_weight * entropy]
    }
}
