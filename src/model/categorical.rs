//! The distribution over actions: a softmax of logits.

use crate::math::softmax::{MASKED_LOGIT, SampledAction, sample_action};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// A categorical distribution for each row of a batch, stored as log-probabilities
/// `[batch, num_actions]`.
#[derive(Clone, Debug)]
pub struct Categorical {
    logprobs: Tensor<2>,
}

impl Categorical {
    /// The distribution with these logits, `[batch, num_actions]`.
    pub fn new(logits: Tensor<2>) -> Self {
        Self { logprobs: log_softmax(logits, 1) }
    }

    /// The distribution over legal actions: `legal`, `[batch, num_actions]`, is 1 for a legal action, else 0. An
    /// illegal action has probability 0.
    pub fn with_mask(logits: Tensor<2>, legal: Option<Tensor<2>>) -> Self {
        match legal {
            Some(legal) => Self::new(logits.mask_fill(legal.lower_elem(0.5), MASKED_LOGIT)),
            None => Self::new(logits),
        }
    }

    /// Probabilities `[batch, num_actions]`.
    pub fn probabilities(&self) -> Tensor<2> {
        self.logprobs.clone().exp()
    }

    /// Log-probabilities `[batch]` of the `actions` `[batch]`.
    pub fn logprob(&self, actions: Tensor<1, Int>) -> Tensor<1> {
        let batch = actions.dims()[0];
        self.logprobs.clone().gather(1, actions.reshape([batch, 1])).reshape([batch])
    }

    /// The mean log-probability over all actions, `[batch]`.
    pub fn mean_logprob(&self) -> Tensor<1> {
        let batch = self.logprobs.dims()[0];
        self.logprobs.clone().mean_dim(1).reshape([batch])
    }

    /// Entropies `[batch]` in nats.
    pub fn entropy(&self) -> Tensor<1> {
        let batch = self.logprobs.dims()[0];
        -(self.logprobs.clone() * self.probabilities()).sum_dim(1).reshape([batch])
    }
}

/// Samples an action by inversion of the distribution function, with `u` uniform in `[0, 1)`: the host's form of
/// [`sample_action()`] in kernels.
pub fn sample(logits: &[f32], u: f32) -> SampledAction {
    sample_action(logits, 0, u, logits.len())
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
            let sampled = sample(&logits, (i as f32 + 0.5) / n as f32);
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
        assert_eq!(sample(&[5.0, -80.0], largest).action, 0);
        assert_eq!(sample(&[-60.0, 5.0], 0.0).action, 0);
        // A probability below 1e-30 counts as 0.
        assert_eq!(sample(&[-80.0, 5.0], 0.0).action, 1);
        assert_eq!(sample(&[-200.0, 5.0], 0.0).action, 1);
        assert_eq!(sample(&[0.0, 0.0, 0.0], largest).action, 2);
    }
}
