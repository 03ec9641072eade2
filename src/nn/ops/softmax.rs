//! Softmax over a vocabulary, for losses and for sampling.

use super::maximum;
use crate::math::LANES;
use crate::math::softmax::{Normalizer, compute_normalizer, unnormalized_prob};
use multiversion::multiversion;

/// The factor of logits at a temperature, for sampling and for learning; temperature 0 leaves them unchanged.
pub fn inverse_temperature(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { 1.0 / temperature }
}

/// The amount by which logits of excluded tokens are lowered: beyond the lower clamp of the exponential, yet so small
/// that its product with their probabilities is negligible.
pub const EXCLUSION_OFFSET: f32 = 1e4;

/// Excludes all tokens but the `candidates` from the distribution by lowering their logits; an empty list excludes no
/// token.
pub fn exclude_all_but(logits: &mut [f32], candidates: &[u32]) {
    if candidates.is_empty() {
        return;
    }
    let kept: Vec<f32> = candidates.iter().map(|token| logits[*token as usize]).collect();
    logits.iter_mut().for_each(|x| *x -= EXCLUSION_OFFSET);
    for (token, logit) in candidates.iter().zip(kept) {
        logits[*token as usize] = logit;
    }
}

/// Elements summed in single precision before their sum is added in double precision.
const PART: usize = 64 * LANES;

/// The normalizer that turns a row of logits into probabilities.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn find_normalizer(logits: &[f32]) -> Normalizer {
    let max = maximum(logits);
    let mut total = 0.0f64;
    for part in logits.chunks(PART) {
        let mut sums = [0.0f32; LANES];
        for block in part.chunks(LANES) {
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += unnormalized_prob(*x, max));
        }
        total += f64::from(sums.iter().sum::<f32>());
    }
    compute_normalizer(max, total as f32)
}

/// Results of [`fill_weights`] for a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct WeightSums {
    /// The normalizer, that of [`find_normalizer`].
    pub normalizer: Normalizer,
    /// The entropy, nats.
    pub entropy: f32,
}

/// Fills `weights` with the unnormalized probabilities of a row of logits, the largest of which is 1.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn fill_weights(logits: &[f32], weights: &mut [f32]) -> WeightSums {
    let max = maximum(logits);
    let (mut total, mut mean) = (0.0f64, 0.0f64);
    for (logits, weights) in logits.chunks(PART).zip(weights.chunks_mut(PART)) {
        let [mut sums, mut means] = [[0.0f32; LANES]; 2];
        for (logits, weights) in logits.chunks(LANES).zip(weights.chunks_mut(LANES)) {
            let lanes = logits.iter().zip(weights).zip(sums.iter_mut().zip(&mut means));
            for ((logit, weight), (sum, mean)) in lanes {
                *weight = unnormalized_prob(*logit, max);
                *sum += *weight;
                *mean += *weight * (logit - max);
            }
        }
        total += f64::from(sums.iter().sum::<f32>());
        mean += f64::from(means.iter().sum::<f32>());
    }
    let normalizer = compute_normalizer(max, total as f32);
    let entropy = normalizer.log_sum - mean as f32 * normalizer.inverse_sum;
    WeightSums { normalizer, entropy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::softmax::prob;
    use crate::nn::ops::check::Draws;

    #[test]
    fn the_candidates_share_the_probability() {
        let mut draws = Draws::new(7);
        let mut logits: Vec<f32> = draws.next_numbers(3001).iter().map(|x| 8.0 * x).collect();
        let (all, candidates) = (logits.clone(), [7, 2999, 1234]);
        exclude_all_but(&mut logits, &candidates);
        let normalizer = find_normalizer(&logits);
        let total: f64 = candidates.iter().map(|i| f64::from(all[*i as usize]).exp()).sum();
        for i in candidates {
            let want = f64::from(all[i as usize]).exp() / total;
            assert!((f64::from(prob(logits[i as usize], &normalizer)) - want).abs() < 1e-6, "{i}");
        }
        let rest = (0..3001).filter(|i| !candidates.contains(i));
        assert!(rest.map(|i| prob(logits[i as usize], &normalizer)).sum::<f32>() < 1e-30);
        exclude_all_but(&mut logits.clone(), &[]);
    }

    #[test]
    fn weights_have_the_normalizer_and_the_entropy_of_their_logits() {
        let mut draws = Draws::new(8);
        for count in [1, 15, 1024, 3001] {
            let logits: Vec<f32> = draws.next_numbers(count).iter().map(|x| 4.0 * x).collect();
            let mut weights = vec![0.0; count];
            let WeightSums { normalizer, entropy } = fill_weights(&logits, &mut weights);
            let want = find_normalizer(&logits);
            assert_eq!(
                [normalizer.max, normalizer.log_sum, normalizer.inverse_sum],
                [want.max, want.log_sum, want.inverse_sum]
            );
            let probs = || logits.iter().map(|x| f64::from(prob(*x, &normalizer)));
            assert!(
                weights.iter().zip(probs()).all(|(w, p)| *w * normalizer.inverse_sum == p as f32)
            );
            assert!((probs().sum::<f64>() - 1.0).abs() < 1e-5, "{count}");
            let sum: f64 = probs().map(|p| -p * p.max(1e-300).ln()).sum();
            assert!((f64::from(entropy) - sum).abs() < 1e-4, "{count}: {entropy}, not {sum}");
        }
    }
}
