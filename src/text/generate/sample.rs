//! Sampling of tokens from logits.

use crate::math::softmax::{MIN_THRESHOLD, logprob};
use crate::text::{WeightSums, exclude_all_but, fill_weights, inverse_temperature};
use multiversion::multiversion;

/// Settings of sampling, with the names of Hugging Face's `GenerationConfig` and applied in its order: temperature,
/// top-k, top-p among the remaining tokens, min-p.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 selects the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens that can be drawn; 0 for all.
    pub top_k: usize,
    /// Nucleus sampling: draws from the smallest set of most likely tokens whose probabilities add up to this fraction,
    /// among those that `top_k` leaves; 1 for all.
    pub top_p: f32,
    /// Minimum probability of a token relative to the most likely one; 0 for none.
    pub min_p: f32,
    /// Maximum number of tokens of a completion.
    pub max_new_tokens: usize,
    /// Tokens that end a completion.
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

impl Sampling {
    /// Whether some tokens cannot be drawn.
    pub fn has_filter(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }
}

/// A sampled token, or the most likely one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: u32,
    /// Log-probability at the temperature, among the tokens that could be drawn.
    pub logprob: f32,
    /// Entropy of the distribution over these tokens, nats.
    pub entropy: f32,
    /// Tokens that could be drawn; empty for all.
    pub candidates: Vec<u32>,
}

/// Scratch buffers for the choices of one thread.
#[derive(Clone, Debug, Default)]
pub struct SamplingScratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    candidates: Vec<u32>,
}

/// Chooses a token from `logits`, `[vocabulary]`, by `u`, uniform in `[0, 1)`.
pub fn sample_token(
    logits: &[f32],
    sampling: &Sampling,
    u: f32,
    scratch: &mut SamplingScratch,
) -> SampledToken {
    let SamplingScratch { logits: scaled, weights, candidates } = scratch;
    let inverse_temperature = inverse_temperature(sampling.temperature);
    if inverse_temperature != 1.0 || sampling.has_filter() {
        scaled.clear();
        scaled.extend(logits.iter().map(|x| x * inverse_temperature));
    }
    let tempered = if inverse_temperature == 1.0 { logits } else { &scaled[..] };
    weights.resize(logits.len(), 0.0);
    let WeightSums { normalizer, entropy } = fill_weights(tempered, weights);
    candidates.clear();
    let token = if sampling.temperature == 0.0 {
        tempered.iter().position(|x| *x == normalizer.max).unwrap_or(0)
    } else if !sampling.has_filter() {
        invert_cdf(weights, u)
    } else {
        list_candidates(weights, sampling, candidates);
        let kept: Vec<f32> = candidates.iter().map(|i| weights[*i as usize]).collect();
        let token = candidates[invert_cdf(&kept, u)] as usize;
        if candidates.len() < logits.len() {
            exclude_all_but(scaled, candidates);
            let WeightSums { normalizer, entropy } = fill_weights(scaled, weights);
            let logprob = logprob(scaled[token], &normalizer);
            let candidates = candidates.clone();
            return SampledToken { token: token as u32, logprob, entropy, candidates };
        }
        token
    };
    let logprob = logprob(logits[token] * inverse_temperature, &normalizer);
    SampledToken { token: token as u32, logprob, entropy, candidates: Vec::new() }
}

/// The first index at which the cumulative sum of the weights exceeds the fraction `u` of their total. No weight is 0,
/// so for `u = 0` the sum must exceed [`MIN_THRESHOLD`].
fn invert_cdf(weights: &[f32], u: f32) -> usize {
    const PART_SIZE: usize = 256;
    let parts: Vec<f64> = weights.chunks(PART_SIZE).map(sum_weights).collect();
    let target = (f64::from(u) * parts.iter().sum::<f64>()).max(f64::from(MIN_THRESHOLD));
    let mut sum = 0.0;
    for (index, part) in parts.iter().enumerate() {
        if sum + part > target {
            for (i, x) in weights[index * PART_SIZE..].iter().take(PART_SIZE).enumerate() {
                sum += f64::from(*x);
                if sum > target {
                    return index * PART_SIZE + i;
                }
            }
        } else {
            sum += part;
        }
    }
    // Only reached through rounding.
    weights.iter().rposition(|x| *x > 0.0).unwrap_or(0)
}

/// Sums weights in double precision.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn sum_weights(weights: &[f32]) -> f64 {
    let (blocks, rest) = weights.as_chunks::<16>();
    let mut sums = [0.0f64; 16];
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    sums.iter().sum::<f64>() + rest.iter().map(|x| f64::from(*x)).sum::<f64>()
}

/// Lists the tokens that can be drawn, most likely first.
fn list_candidates(weights: &[f32], sampling: &Sampling, candidates: &mut Vec<u32>) {
    candidates.extend(0..weights.len() as u32);
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
    // The largest weight is 1, unless logits are NaN.
    let first = candidates[0];
    candidates.retain(|i| weights[*i as usize] >= sampling.min_p);
    if candidates.is_empty() {
        candidates.push(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let mut scratch = SamplingScratch::default();
        let mut counts = vec![0.0; logits.len()];
        let draws = 4000;
        for i in 0..draws {
            let u = (i as f32 + 0.5) / draws as f32;
            counts[sample_token(logits, sampling, u, &mut scratch).token as usize] +=
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
        assert_near(&frequencies(&all, &logits), &[0.1, 0.4, 0.2, 0.3]);
        let two = Sampling { top_k: 2, ..all.clone() };
        assert_near(&frequencies(&two, &logits), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        // The two likeliest have 0.7 together, so that a third is needed for 0.75.
        let nucleus = Sampling { top_p: 0.75, ..all.clone() };
        assert_near(&frequencies(&nucleus, &logits), &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
        let near = Sampling { min_p: 0.6, ..all.clone() };
        assert_near(&frequencies(&near, &logits), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        // Top-p is of the tokens that top-k leaves (0.4 of 0.7 is too little, 0.4 of 0.9 too), and of those that
        // min-p would not.
        let both = Sampling { top_k: 2, top_p: 0.57, ..all.clone() };
        assert_near(&frequencies(&both, &logits), &[0.0, 1.0, 0.0, 0.0]);
        let both = Sampling { min_p: 0.6, top_p: 0.45, ..all.clone() };
        assert_near(&frequencies(&both, &logits), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        let greedy = Sampling { temperature: 0.0, ..all.clone() };
        assert_near(&frequencies(&greedy, &logits), &[0.0, 1.0, 0.0, 0.0]);
        // Squares of the probabilities.
        let sharp = Sampling { temperature: 0.5, ..all };
        assert_near(
            &frequencies(&sharp, &logits),
            &[1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0],
        );
    }

    #[test]
    fn logits_that_are_no_numbers_give_a_token() {
        for (temperature, top_k) in [(0.0, 0), (1.0, 0), (1.0, 2)] {
            let sampling = Sampling { temperature, top_k, ..Sampling::default() };
            let chosen =
                sample_token(&[f32::NAN; 5], &sampling, 0.5, &mut SamplingScratch::default());
            assert!(chosen.token < 5, "{chosen:?}");
        }
    }

    #[test]
    fn logprobs_and_entropies_are_those_of_the_tokens_that_could_be_drawn() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut order: Vec<u32> = (0..1000).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        for (top_k, candidates) in [(0, &order[..0]), (5, &order[..5]), (2000, &order[..0])] {
            let sampling = Sampling { temperature: 0.7, top_k, ..Sampling::default() };
            let chosen = sample_token(&logits, &sampling, 0.3, &mut SamplingScratch::default());
            assert_eq!(chosen.candidates, candidates);
            let drawn = if candidates.is_empty() { &order } else { candidates };
            let scaled = |i: &u32| f64::from(logits[*i as usize]) / 0.7;
            let total = drawn.iter().map(|i| scaled(i).exp()).sum::<f64>().ln();
            let entropy: f64 =
                drawn.iter().map(|i| (total - scaled(i)) * (scaled(i) - total).exp()).sum();
            let want = scaled(&chosen.token) - total;
            assert!((f64::from(chosen.logprob) - want).abs() < 1e-5, "{chosen:?}");
            assert!((f64::from(chosen.entropy) - entropy).abs() < 1e-4, "{chosen:?}");
        }
    }

    #[test]
    fn the_least_draw_takes_no_token_without_probability() {
        let mut logits = vec![-200.0f32; 700];
        (logits[3], logits[600]) = (-60.0, 5.0);
        let draw = |logits: &[f32]| {
            sample_token(logits, &Sampling::default(), 0.0, &mut SamplingScratch::default()).token
        };
        assert_eq!(draw(&logits), 3);
        logits[3] = -70.0;
        assert_eq!(draw(&logits), 600, "a probability below 1e-30 counts as 0");
    }
}
