//! The gradient of an optimizer step over texts on the CPU.

use super::differentiation::{Differentiation, TokenGrads, TokenSums, split_into_parts};
use super::group::{Group, Sample, TokenIndex, deduplicate_texts};
use super::shard_sums::ShardSums;
use crate::math::softmax::{Normalizer, logprob, prob};
use crate::model::LANES;
use crate::objective::d_logit;
use crate::parallel::{LeafThreads, PartialSum, TeamError, left_siblings, sum_leaves};
use crate::text::{
    CompletionIndex, Retention, TextPass, TokenDecoder, exclude_all_but, find_normalizer,
    inverse_temperature, run_in_region,
};
use multiversion::multiversion;
use std::ops::Range;

/// Maximum number of tokens of a forward and backward pass, unless a single group has more: enough for efficient
/// products.
const MAX_PASS_TOKENS: usize = 2048;
/// The [`MAX_PASS_TOKENS`] of a large decoder, whose activations take more memory.
const LARGE_MAX_PASS_TOKENS: usize = 640;
/// Number of rows that pass through the head at a time.
const HEAD_ROWS: usize = 64;
/// The [`HEAD_ROWS`] of a large decoder: more, since each backward pass of the head adds to the whole gradient of its
/// matrix.
const LARGE_HEAD_ROWS: usize = 256;
/// Elements of a large gradient that one thread clears at a time.
const CLEAR_CHUNK_LEN: usize = 1 << 16;

/// The tokens that each row predicts.
struct NativeTargets<'a> {
    samples: Vec<&'a Sample>,
    /// The tokens, row by row.
    rows: Vec<Vec<TokenIndex>>,
}

/// The entropy of the distribution of a row, as it enters the loss.
#[derive(Default)]
struct RowEntropy {
    /// Sum over the counted tokens that the row predicts.
    sum: f32,
    /// The entropy bonus of these tokens.
    bonus: f32,
}

/// The hidden states whose logits the head of a decoder computes, at a temperature.
struct HeadPass<'a> {
    decoder: &'a TokenDecoder,
    hidden: &'a [f32],
    temperature: f32,
}

impl<'a> NativeTargets<'a> {
    /// Lists the tokens of all samples of some groups, which have these completions, after their forward pass.
    fn new(forward: &TextPass, groups: &[&'a Group], completions: &[CompletionIndex]) -> Self {
        let mut rows = Vec::new();
        let samples: Vec<&Sample> = groups.iter().flat_map(|group| &group.samples).collect();
        for (i, (sample, completion)) in samples.iter().zip(completions).enumerate() {
            for at in 0..sample.tokens.len() {
                let row = forward.prediction(*completion, at);
                if rows.len() <= row {
                    rows.resize_with(row + 1, Vec::new);
                }
                rows[row].push(TokenIndex { sample: i, token: at });
            }
        }
        Self { samples, rows }
    }

    /// The log-probability of each token of each sample.
    fn compute_logprobs(&self, head: &HeadPass, buffer: &mut Vec<f32>) -> Vec<Vec<f32>> {
        let mut sample_logprobs: Vec<Vec<f32>> =
            self.samples.iter().map(|sample| vec![0.0; sample.tokens.len()]).collect();
        let row_logprobs = |logits: &mut [f32], targets: &[TokenIndex]| -> Vec<f32> {
            let normalizer = find_normalizer(logits);
            let token =
                |index: &TokenIndex| self.samples[index.sample].tokens[index.token] as usize;
            targets.iter().map(|target| logprob(logits[token(target)], &normalizer)).collect()
        };
        let store = |first: usize, logprobs: Vec<Vec<f32>>, _: &[f32]| {
            let targets = self.rows[first..].iter().flatten();
            for (index, logprob) in targets.zip(logprobs.into_iter().flatten()) {
                sample_logprobs[index.sample][index.token] = logprob;
            }
        };
        self.visit(head, buffer, row_logprobs, store);
        sample_logprobs
    }

    /// Computes the logits of all rows, at the temperature and among the candidates, in parts, so that the logits of
    /// all rows never exist at once. `process_row` takes a row's logits, which it may overwrite, and its tokens;
    /// `process_part` takes the first row of a part, the results of `process_row` for the part, and the logits that
    /// `process_row` left.
    fn visit<T: Default + Send>(
        &self,
        &HeadPass { decoder, hidden, temperature }: &HeadPass,
        logits: &mut Vec<f32>,
        process_row: impl Fn(&mut [f32], &[TokenIndex]) -> T + Sync,
        mut process_part: impl FnMut(usize, Vec<T>, &[f32]),
    ) {
        let (size, vocabulary) = (decoder.shape().hidden_size, decoder.shape().vocab_size());
        let max_rows = if decoder.is_sequential() { HEAD_ROWS } else { LARGE_HEAD_ROWS };
        let restrict_and_process = |logits: &mut [f32], targets: &[TokenIndex]| {
            divide_by_temperature(logits, temperature);
            // Tokens that one row predicts come from one distribution.
            if let Some(first) = targets.first() {
                exclude_all_but(logits, self.samples[first.sample].candidates(first.token));
            }
            process_row(logits, targets)
        };
        let parts = self.rows.chunks(max_rows).zip(hidden.chunks(max_rows * size));
        for (i, (targets, hidden)) in parts.enumerate() {
            decoder.compute_logits(hidden, logits);
            let mut results: Vec<T> = Vec::new();
            results.resize_with(targets.len(), T::default);
            let outputs = logits.chunks_exact_mut(vocabulary).zip(&mut results);
            let mut rows: Vec<_> = outputs.zip(targets).collect();
            decoder.parallelism().each_mut(&mut rows, |_, ((logits, result), targets)| {
                **result = restrict_and_process(logits, targets);
            });
            process_part(i * max_rows, results, logits);
        }
    }
}

/// Divides logits by the temperature, as sampling does.
fn divide_by_temperature(logits: &mut [f32], temperature: f32) {
    let inverse_temperature = inverse_temperature(temperature);
    if inverse_temperature != 1.0 {
        logits.iter_mut().for_each(|x| *x *= inverse_temperature);
    }
}

/// Replaces logits by the derivatives of the loss, except for the terms of the drawn tokens. Returns the entropy, nats.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn differentiate_except_targets(
    logits: &mut [f32],
    normalizer: &Normalizer,
    d_logprob: f32,
    entropy_weight: f32,
) -> f32 {
    let mut sums = [0.0f32; LANES];
    for logits in logits.chunks(LANES) {
        for (z, sum) in logits.iter().zip(&mut sums) {
            *sum -= prob(*z, normalizer) * logprob(*z, normalizer);
        }
    }
    let entropy = sums.iter().sum();
    for z in logits {
        *z = d_logit(
            d_logprob,
            entropy_weight,
            0.0,
            prob(*z, normalizer),
            logprob(*z, normalizer),
            entropy,
        );
    }
    entropy
}

/// Log-probabilities of the tokens of a group on the CPU, by sample and token.
pub(super) fn compute_logprobs(
    decoder: &TokenDecoder,
    group: &Group,
    temperature: f32,
) -> Vec<Vec<f32>> {
    let mut forward = TextPass::default();
    let (texts, completions) = deduplicate_texts(&[group]);
    decoder.forward_texts(&texts, Retention::Nothing, &mut forward);
    let targets = NativeTargets::new(&forward, &[group], &completions);
    let head = HeadPass { decoder, hidden: forward.hidden(), temperature };
    targets.compute_logprobs(&head, &mut Vec::new())
}

impl Differentiation<'_> {
    /// Computes the gradient of a large decoder: ranks sum each layer's gradient while the backward pass of the last
    /// shard computes that of the layer below, so that communication overlaps with computation.
    pub(super) fn pipelined_gradient(
        &self,
        chosen: &[usize],
    ) -> Result<(Vec<f32>, TokenSums), TeamError> {
        let mut max_ratio_distance = 0.0f64;
        let pieces = self.team.all_reduce_pipelined(self.shards, |send| {
            let own = self.shards.own_nodes();
            let (last, others) = own.split_last().expect("every rank has a shard");
            let mut sum = |shards: Range<usize>| {
                self.partial_sum(chosen, shards).into_sum(&mut max_ratio_distance)
            };
            let mut sender = PieceSender {
                complete_sums: others.iter().cloned().map(&mut sum).collect(),
                left_sums: left_siblings(last).into_iter().map(&mut sum).collect(),
                last_shard: last.end - 1,
                starts: self.decoder.layer_starts(),
                end: self.decoder.num_trainable(),
                send,
            };
            let on_layer = |vector: &[f32], start: usize| {
                // The piece that begins at 0 takes the numbers along.
                if start > 0 {
                    sender.send_piece(vector, start, &[]);
                }
            };
            let shard = self.shard_sum(chosen, last.end - 1, on_layer);
            let shard = shard.into_sum(&mut max_ratio_distance);
            while let Some(start) = sender.starts.last().copied() {
                sender.send_piece(&shard.vector, start, &shard.numbers);
            }
        })?;
        // They come from the end of the gradient to its start, and the numbers with the last.
        let numbers = &pieces.last().expect("a layer or more").numbers;
        let vectors: Vec<&[f32]> = pieces.iter().rev().map(|piece| &piece.vector[..]).collect();
        Ok((vectors.concat(), TokenSums::from_additive(numbers, max_ratio_distance)))
    }

    /// Computes gradient and sums of the chosen groups in a node's shards.
    pub(super) fn partial_sum(&self, chosen: &[usize], shards: Range<usize>) -> ShardSums {
        let shard_sum = |at: usize| self.shard_sum(chosen, shards.start + at, |_, _| {});
        // A large decoder's products take all threads, and its gradients much memory.
        let threads =
            if self.decoder.is_sequential() { LeafThreads::All } else { LeafThreads::One };
        sum_leaves(shards.len(), threads, &shard_sum, &ShardSums::add_next)
    }

    /// Computes [`Differentiation::partial_sum`] of a single shard, and calls `on_layer` as
    /// [`TokenDecoder::backward_texts`] does, in the last backward pass.
    fn shard_sum(
        &self,
        chosen: &[usize],
        shard: usize,
        mut on_layer: impl FnMut(&[f32], usize),
    ) -> ShardSums {
        let chosen = self.select_shards(chosen, shard..shard + 1);
        let mut vector = self.buffers.gradients.take();
        vector.resize(self.decoder.num_trainable(), 0.0);
        let parallelism = self.decoder.parallelism();
        parallelism.each_chunk([(&mut vector[..], CLEAR_CHUNK_LEN)], |_, [part]| part.fill(0.0));
        let mut sums = TokenSums::default();
        let mut forward = self.buffers.passes.take();
        let max_tokens =
            if self.decoder.is_sequential() { MAX_PASS_TOKENS } else { LARGE_MAX_PASS_TOKENS };
        let parts = split_into_parts(self.groups, chosen, max_tokens);
        run_in_region(parallelism, || {
            for (i, part) in parts.iter().enumerate() {
                let is_last = i + 1 == parts.len();
                let on_layer = |gradient: &[f32], start: usize| {
                    if is_last {
                        on_layer(gradient, start);
                    }
                };
                self.add_gradient(part, &mut forward, &mut vector, &mut sums, on_layer);
            }
        });
        self.buffers.passes.put(forward);
        ShardSums::new(shard..shard + 1, vector, sums)
    }

    /// Adds the gradient of some groups, and calls `on_layer` as [`TokenDecoder::backward_texts`] does.
    fn add_gradient(
        &self,
        chosen: &[usize],
        forward: &mut TextPass,
        gradient: &mut [f32],
        sums: &mut TokenSums,
        on_layer: impl FnMut(&[f32], usize),
    ) {
        let groups: Vec<&Group> = chosen.iter().map(|i| &self.groups[*i]).collect();
        let (texts, completions) = deduplicate_texts(&groups);
        self.decoder.forward_texts(&texts, self.retention(), forward);
        let targets = NativeTargets::new(forward, &groups, &completions);
        let samples = &targets.samples;
        let references = self.select_references(chosen);
        let (decoder, temperature) = (self.decoder, self.settings.temperature);
        let mut logits = self.buffers.logits.take();
        let head = HeadPass { decoder, hidden: forward.hidden(), temperature };
        let logprobs = targets.compute_logprobs(&head, &mut logits);
        let grads = self.differentiate_samples(samples, &logprobs, references.as_deref(), sums);
        let size = decoder.shape().hidden_size;
        let mut d_hidden = vec![0.0; forward.hidden().len()];
        let process_row = |logits: &mut [f32], targets: &[TokenIndex]| {
            let entropy = differentiate_row(logits, targets, samples, &grads);
            divide_by_temperature(logits, temperature);
            entropy
        };
        let process_part = |first: usize, rows: Vec<RowEntropy>, d_logits: &[f32]| {
            for entropy in &rows {
                sums.entropy += f64::from(entropy.sum);
                sums.loss -= f64::from(entropy.bonus);
            }
            let range = first * size..(first + rows.len()) * size;
            let hidden = &forward.hidden()[range.clone()];
            decoder.backward_head(hidden, d_logits, &mut d_hidden[range], gradient);
        };
        targets.visit(&head, &mut logits, process_row, process_part);
        self.buffers.logits.put(logits);
        decoder.backward_texts(forward, &d_hidden, gradient, on_layer);
    }
}

/// Replaces a row's logits by their gradient, given the tokens that the row predicts and the gradient of each sample.
fn differentiate_row(
    logits: &mut [f32],
    targets: &[TokenIndex],
    samples: &[&Sample],
    grads: &[TokenGrads],
) -> RowEntropy {
    let normalizer = find_normalizer(logits);
    let (mut d_logprob, mut entropy_weight, mut counted) = (0.0, 0.0, 0.0);
    for TokenIndex { sample, token } in targets {
        if samples[*sample].mask[*token] {
            d_logprob += grads[*sample].d_logprobs[*token];
            entropy_weight += grads[*sample].entropy_weights[*token];
            counted += 1.0;
        }
    }
    // The terms of the drawn tokens are added below.
    let entropy = differentiate_except_targets(logits, &normalizer, d_logprob, entropy_weight);
    for TokenIndex { sample, token } in targets {
        if samples[*sample].mask[*token] {
            logits[samples[*sample].tokens[*token] as usize] += grads[*sample].d_logprobs[*token];
        }
    }
    RowEntropy { sum: counted * entropy, bonus: entropy_weight * entropy }
}

/// Sends the partial sums of a rank piece by piece, a layer each from the last to the first, while the gradient of the
/// rank's last shard is computed.
struct PieceSender<'a> {
    /// Partial sums without the last shard.
    complete_sums: Vec<PartialSum>,
    /// Partial sums to which the last shard is added, from the first to the last.
    left_sums: Vec<PartialSum>,
    last_shard: usize,
    /// Starts of the pieces that have not been sent, in ascending order.
    starts: Vec<usize>,
    /// End of the next piece.
    end: usize,
    send: &'a mut dyn FnMut(Vec<PartialSum>),
}

impl PieceSender<'_> {
    /// Sends the next piece, which begins at `start`, given the gradient of the last shard from there on; the numbers
    /// of the shard are sent with the last piece, which begins at 0.
    fn send_piece(&mut self, vector: &[f32], start: usize, numbers: &[f64]) {
        assert_eq!(self.starts.pop(), Some(start), "from the last layer to the first");
        let range = start..self.end;
        self.end = start;
        let piece = |shards: Range<usize>, vector: &[f32], numbers: &[f64]| PartialSum {
            shards,
            vector: vector[range.clone()].to_vec(),
            numbers: if start == 0 { numbers.to_vec() } else { Vec::new() },
        };
        let piece_of = |node: &PartialSum| piece(node.shards.clone(), &node.vector, &node.numbers);
        let last = piece(self.last_shard..self.last_shard + 1, vector, numbers);
        let sum = self.left_sums.iter().rev().fold(last, |sum, left| piece_of(left).add_next(sum));
        (self.send)(self.complete_sums.iter().map(piece_of).chain([sum]).collect());
    }
}
