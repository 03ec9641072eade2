//! One token out of a vocabulary: drawn by its probability, or the most likely one.

use crate::math::softmax::{Normalizer, logprob, unnormalized};
use crate::text::{normalize, sharpness};
use multiversion::multiversion;

/// The settings of sampling, by the names of Hugging Face's `GenerationConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// The number of the likeliest tokens that can be drawn; 0 for all.
    pub top_k: usize,
    /// The likeliest tokens that have this share of the probability together can be drawn; 1 for all.
    pub top_p: f32,
    /// Tokens of less than this share of the likeliest one's probability cannot be drawn; 0 for none.
    pub min_p: f32,
    /// Tokens of a completion at most.
    pub max_new_tokens: usize,
    /// The tokens with which a completion ends.
    pub stop_tokens: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            max_new_tokens: 256,
            stop_tokens: Vec::new(),
        }
    }
}

/// A token that was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// The log-probability at the temperature, among all tokens, whether they could be drawn or not.
    pub logprob: f32,
    /// The entropy of all tokens' probabilities, nats.
    pub entropy: f32,
}

/// Scratch buffers for the choices of one thread.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    candidates: Vec<u32>,
}

/// Chooses a token by `u`, uniform in `[0, 1)`.
pub fn choose(logits: &[f32], sampling: &Sampling, u: f32, scratch: &mut Scratch) -> Chosen {
    let Scratch { logits: scaled, weights, candidates } = scratch;
    let sharpness = sharpness(sampling.temperature);
    scaled.clear();
    scaled.extend(logits.iter().map(|x| x * sharpness));
    let by = normalize(scaled);
    weights.resize(scaled.len(), 0.0);
    let entropy = softmax_weights(scaled, &by, weights);
    let token = if sampling.temperature == 0.0 {
        scaled.iter().position(|x| *x == by.max).unwrap_or(0)
    } else if sampling.top_k == 0 && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        invert(weights, u)
    } else {
        narrow(weights, sampling, candidates);
        let kept: Vec<f32> = candidates.iter().map(|i| weights[*i as usize]).collect();
        candidates[invert(&kept, u)] as usize
    };
    Chosen { token: token as u32, logprob: logprob(scaled[token], &by), entropy }
}

/// Writes unnormalised softmax weights, the largest of which is 1; returns the entropy, nats.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn softmax_weights(logits: &[f32], by: &Normalizer, weights: &mut [f32]) -> f32 {
    let mut mean = 0.0f64;
    for (logits, weights) in logits.chunks(16).zip(weights.chunks_mut(16)) {
        let mut sums = [0.0f32; 16];
        for ((logit, weight), sum) in logits.iter().zip(weights).zip(&mut sums) {
            *weight = unnormalized(*logit, by.max);
            *sum = *weight * (logit - by.max);
        }
        mean += f64::from(sums.iter().sum::<f32>());
    }
    by.log_total - mean as f32 * by.share
}

/// The first index at which the sum of the weights exceeds the share `u` of their total.
fn invert(weights: &[f32], u: f32) -> usize {
    let part = |weights: &[f32]| weights.iter().map(|x| f64::from(*x)).sum::<f64>();
    let parts: Vec<f64> = weights.chunks(256).map(part).collect();
    let target = f64::from(u) * parts.iter().sum::<f64>();
    let mut sum = 0.0;
    for (number, part) in parts.iter().enumerate() {
        if sum + part > target {
            for (i, x) in weights[number * 256..].iter().take(256).enumerate() {
                sum += f64::from(*x);
                if sum > target {
                    return number * 256 + i;
                }
            }
        } else {
            sum += part;
        }
    }
    // Rounding alone leads here.
    weights.iter().rposition(|x| *x > 0.0).unwrap_or(0)
}

/// The tokens that can be drawn, the likeliest first.
fn narrow(weights: &[f32], sampling: &Sampling, candidates: &mut Vec<u32>) {
    candidates.clear();
    let all = 0..weights.len() as u32;
    candidates.extend(all.filter(|i| weights[*i as usize] >= sampling.min_p));
    let order = |a: &u32, b: &u32| {
        let (x, y) = (weights[*a as usize], weights[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    if sampling.top_k > 0 && sampling.top_k < candidates.len() {
        candidates.select_nth_unstable_by(sampling.top_k - 1, order);
        candidates.truncate(sampling.top_k);
    }
    candidates.sort_unstable_by(order);
    if sampling.top_p < 1.0 {
        let weight = |i: &u32| f64::from(weights[*i as usize]);
        let limit = f64::from(sampling.top_p) * candidates.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        let within = candidates.iter().take_while(|i| {
            let is_within = sum < limit;
            sum += weight(i);
            is_within
        });
        let count = within.count().max(1);
        candidates.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let mut scratch = Scratch::default();
        let mut counts = vec![0.0; logits.len()];
        let draws = 4000;
        for i in 0..draws {
            let u = (i as f32 + 0.5) / draws as f32;
            counts[choose(logits, sampling, u, &mut scratch).token as usize] +=
                1.0 / f64::from(draws);
        }
        counts
    }

    fn assert_near(got: &[f64], want: &[f64]) {
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(got.len() == want.len() && off < 1e-3, "{got:?} instead of {want:?}");
    }

    #[test]
    fn tokens_are_drawn_by_their_probabilities_among_those_that_are_left() {
        // Probabilities 0.1, 0.4, 0.2, 0.3.
        let logits = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln);
        let all = Sampling::default();
        assert_near(&shares(&all, &logits), &[0.1, 0.4, 0.2, 0.3]);
        let two = Sampling { top_k: 2, ..all.clone() };
        assert_near(&shares(&two, &logits), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        // The two likeliest have 0.7 together, so that a third is needed for 0.75.
        let nucleus = Sampling { top_p: 0.75, ..all.clone() };
        assert_near(&shares(&nucleus, &logits), &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
        let near = Sampling { min_p: 0.6, ..all.clone() };
        assert_near(&shares(&near, &logits), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        let greedy = Sampling { temperature: 0.0, ..all.clone() };
        assert_near(&shares(&greedy, &logits), &[0.0, 1.0, 0.0, 0.0]);
        // Squares of the probabilities.
        let sharp = Sampling { temperature: 0.5, ..all };
        assert_near(&shares(&sharp, &logits), &[1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0]);
    }

    #[test]
    fn logprobs_and_entropies_are_those_of_all_tokens() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let sampling = Sampling { temperature: 0.7, top_k: 5, ..Sampling::default() };
        let chosen = choose(&logits, &sampling, 0.3, &mut Scratch::default());
        let scaled: Vec<f64> = logits.iter().map(|x| f64::from(*x) / 0.7).collect();
        let total = scaled.iter().map(|x| x.exp()).sum::<f64>().ln();
        let logprobs: Vec<f64> = scaled.iter().map(|x| x - total).collect();
        let entropy = -logprobs.iter().map(|l| l * l.exp()).sum::<f64>();
        let want = logprobs[chosen.token as usize];
        assert!((f64::from(chosen.logprob) - want).abs() < 1e-5, "{chosen:?}");
        assert!((f64::from(chosen.entropy) - entropy).abs() < 1e-4, "{chosen:?}");
    }
}
