//! Comparison of the two forward passes of a user-defined model, which acts by one and learns by the other.

use super::Network;
use super::memory::take_steps;
use crate::nn::parameters::to_vec;
use crate::rng::{draw, uniform};
use burn::tensor::{Tensor, TensorData};

/// Steps and games of the comparison.
const STEPS: usize = 4;
const GAMES: usize = 8;

/// Largest accepted distance of two logits, relative to the largest logit: far above rounding.
const TOLERANCE: f32 = 1e-3;

impl Network {
    /// Checks that logits of whole sequences under autodiff, by which the network learns, agree with those of single
    /// steps, by which it acts. Importance ratios would otherwise compare two different policies.
    ///
    /// # Errors
    /// If they differ, with a sentence.
    pub(crate) fn check_passes_agree(&self, num_features: usize) -> Result<(), String> {
        let (acting, learning) = self.both_logits(num_features);
        let largest = acting.iter().fold(1.0, |largest: f32, x| largest.max(x.abs()));
        let differences = acting.iter().zip(&learning).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0, f32::max);
        // Numbers that are not finite are reported when the first iteration has them.
        if difference > TOLERANCE * largest && difference.is_finite() {
            return Err(format!(
                "the model's logits of whole sequences, from which it learns, differ by {difference} from those of the single \
                 steps by which it acts: `Model::sequence` must agree with `Model::step`, and layers that act differently \
                 while they learn, such as dropout and batch normalization, cannot be used"
            ));
        }
        Ok(())
    }

    /// Logits `[STEPS, GAMES, num_actions]` of random observations, by single steps and by whole sequences under
    /// autodiff. Every other game starts a new episode halfway.
    fn both_logits(&self, num_features: usize) -> (Vec<f32>, Vec<f32>) {
        let device = self.device().without_autodiff();
        let tensor = |numbers: Vec<f32>, shape: [usize; 3]| {
            Tensor::<3>::from_data(TensorData::new(numbers, shape), &device)
        };
        let count = (STEPS * GAMES * num_features) as u32;
        let numbers = (0..count).map(|i| 2.0 * uniform(draw(0, i)) - 1.0).collect();
        let obs = tensor(numbers, [STEPS, GAMES, num_features]);
        let starts = (0..STEPS * GAMES)
            .map(|i| if i / GAMES == STEPS / 2 && i % 2 == 0 { 1.0 } else { 0.0 })
            .collect();
        let starts = tensor(starts, [STEPS, GAMES, 1]).squeeze_dim::<2>(2);
        let initial = self.initial_memory(GAMES, &device);

        let step = |obs, before| self.step(obs, before);
        let acting = take_steps(&obs, &starts, initial.as_ref(), initial.clone(), step);
        let acting = acting.into_iter().flat_map(to_vec).collect();
        let learner = self.unflatten(&self.flatten().without_autodiff().autodiff().require_grad());
        let learning =
            learner.sequence(obs.autodiff(), starts.autodiff(), initial.map(Tensor::autodiff));
        (acting, to_vec(learning.without_autodiff()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Memoryless, Model};
    use super::*;
    use burn::module::Module;
    use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Plain {
        head: Linear,
    }

    impl Memoryless for Plain {
        fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
            self.head.forward(obs)
        }
    }

    #[derive(Module, Debug)]
    struct Dropping {
        head: Linear,
        dropout: Dropout,
    }

    impl Memoryless for Dropping {
        fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
            self.head.forward(self.dropout.forward(obs))
        }
    }

    #[derive(Module, Debug)]
    struct Normalizing {
        head: Linear,
        norm: BatchNorm,
    }

    impl Memoryless for Normalizing {
        fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
            self.head.forward(self.norm.forward(obs * 3.0))
        }
    }

    /// Remembers the sum of its observations; without `resets`, whole sequences go on over the ends of episodes.
    #[derive(Module, Debug)]
    struct Summing {
        head: Linear,
        resets: bool,
    }

    impl Model for Summing {
        type Memory = Tensor<2>;

        fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
            Tensor::ones([batch, 3], device)
        }

        fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
            let sum = memory + obs;
            (self.head.forward(sum.clone()), sum)
        }

        fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Tensor<2>) -> Tensor<3> {
            let initial = self.initial_memory(obs.dims()[1], &obs.device());
            let starts = if self.resets { starts } else { starts.zeros_like() };
            let step = |obs, before: Option<_>| {
                let (logits, after) = self.step(obs, before.expect("there is a memory"));
                (logits, Some(after))
            };
            Tensor::stack(take_steps(&obs, &starts, Some(&initial), Some(memory), step), 0)
        }
    }

    fn head() -> Linear {
        LinearConfig::new(3, 2).init(&Device::flex())
    }

    #[test]
    fn models_that_learn_by_other_logits_than_they_act_by_are_found() {
        let device = Device::flex();
        let check = |network: Network| network.check_passes_agree(3);
        assert_eq!(check(Plain { head: head() }.into()), Ok(()));
        assert_eq!(check(Summing { head: head(), resets: true }.into()), Ok(()));
        let dropout = DropoutConfig::new(0.5).init();
        let norm = BatchNormConfig::new(3).init(&device);
        let wrong: [Network; 3] = [
            Dropping { head: head(), dropout }.into(),
            Normalizing { head: head(), norm }.into(),
            Summing { head: head(), resets: false }.into(),
        ];
        for network in wrong {
            let checked = check(network.clone());
            assert!(checked.is_err_and(|reason| reason.contains("Model::step")), "{network:?}");
        }
    }
}
