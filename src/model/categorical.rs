//! The distribution over actions: a softmax of logits.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// A categorical distribution for each row of a batch, held as log-probabilities
/// `[batch, num_actions]`.
#[derive(Clone, Debug)]
pub struct Categorical {
    logprobs: Tensor<2>,
}

impl Categorical {
    /// From logits `[batch, num_actions]`.
    pub fn new(logits: Tensor<2>) -> Self {
        Self { logprobs: log_softmax(logits, 1) }
    }

    /// Log-probabilities `[batch]` of the `actions` `[batch]`.
    pub fn logprob(&self, actions: Tensor<1, Int>) -> Tensor<1> {
        let batch = actions.dims()[0];
        self.logprobs.clone().gather(1, actions.reshape([batch, 1])).reshape([batch])
    }

    /// Entropies `[batch]` in nats.
    pub fn entropy(&self) -> Tensor<1> {
        let batch = self.logprobs.dims()[0];
        -(self.logprobs.clone() * self.logprobs.clone().exp()).sum_dim(1).reshape([batch])
    }
}

/// An action drawn from a categorical distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The action.
    pub action: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// Draws an action by inversion of the distribution function: the first action at which the sum of
/// the probabilities exceeds `u`, uniform in `[0, 1)`.
///
/// The rollouts' kernels do the same operations in the same order.
pub fn sample(logits: impl Iterator<Item = f32> + Clone, u: f32) -> Sampled {
    let max = logits.clone().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.clone().fold(0.0, |sum, logit| sum + (logit - max).exp());
    let threshold = u * total;
    let (mut below, mut sum) = (0, 0.0);
    let mut last = 0;
    for logit in logits.clone() {
        sum += (logit - max).exp();
        below += u32::from(sum <= threshold);
        last += 1;
    }
    let action = below.min(last - 1);
    let logit = logits.clone().nth(action as usize).unwrap_or(max);
    Sampled { action, logprob: logit - max - total.ln() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversion_hits_every_action_in_proportion() {
        let logits = [0.3f32, -1.2, 2.0, 0.0];
        let total: f32 = logits.iter().map(|l| l.exp()).sum();
        let n = 100_000;
        let mut counts = [0u32; 4];
        for i in 0..n {
            let sampled = sample(logits.iter().copied(), (i as f32 + 0.5) / n as f32);
            counts[sampled.action as usize] += 1;
            let p = logits[sampled.action as usize].exp() / total;
            assert!((sampled.logprob - p.ln()).abs() < 1e-6);
        }
        for (count, logit) in counts.iter().zip(logits) {
            let p = logit.exp() / total;
            assert!((*count as f32 / n as f32 - p).abs() < 1e-4, "{count} for {p}");
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_are_safe() {
        let largest = 1.0 - f32::EPSILON / 2.0;
        assert_eq!(sample([5.0, -80.0].into_iter(), largest).action, 0);
        assert_eq!(sample([-80.0, 5.0].into_iter(), 0.0).action, 0);
        assert_eq!(sample([-200.0, 5.0].into_iter(), 0.0).action, 1);
        assert_eq!(sample([0.0, 0.0, 0.0].into_iter(), largest).action, 2);
    }
}
