//! The quality of a policy on held-out demonstrations.

use super::{GameEngine, GameTrainer};
use crate::data::{WindowBatch, WindowSet};
use crate::device;
use crate::env::Rules;
use crate::metrics::HeldOutMeans;
use crate::model::{Categorical, Network};
use crate::parallel::TeamError;
use burn::cubecl::future::block_on;
use burn::tensor::{Device, Tensor};

/// Approximate number of steps of a batch.
const BATCH_STEPS: usize = 1 << 15;

/// A confusion matrix of demonstrated and predicted actions, with the loss on the demonstrated ones.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfusionMatrix {
    /// Steps by the demonstrated action and by the model's most likely one, `[num_actions, num_actions]`.
    pub counts: Vec<Vec<u64>>,
    /// Sum of the negative log-likelihoods of the demonstrated actions, nats.
    pub loss_sum: f64,
}

impl ConfusionMatrix {
    /// Compares a model on `device` with the demonstrated steps in `window_set` that have a positive weight.
    pub async fn compute(
        model: &Network,
        window_set: &WindowSet,
        num_actions: usize,
        device: &Device,
    ) -> Self {
        let device = device.clone().without_autodiff();
        let mut counts = vec![vec![0; num_actions]; num_actions];
        let mut loss_sum = 0.0;
        let (num_windows, steps) = (window_set.len(), window_set.num_steps());
        let batch_windows = BATCH_STEPS.div_ceil(steps);
        let mut windows = WindowBatch::default();
        for first in (0..num_windows).step_by(batch_windows) {
            window_set.fill(first..num_windows.min(first + batch_windows), &mut windows);
            let trajectory = &windows.trajectory;
            let tensors = trajectory.to_tensors(&device);
            let memory = model.initial_memory(trajectory.num_envs, &device);
            let logits = model.sequence(tensors.obs.clone(), tensors.starts(), memory);
            let rows = steps * trajectory.num_envs;
            let logits = logits.reshape([rows, num_actions]);
            let distribution = Categorical::new(logits.clone());
            let logprobs = distribution.logprob(tensors.actions.reshape([rows]));
            let likeliest = logits.argmax(1).reshape([rows]).float();
            let values = device::read_async(Tensor::cat(vec![logprobs, likeliest], 0)).await;
            let (logprobs, likeliest) = values.split_at(rows);
            for window in 0..trajectory.num_envs {
                let has_weight = |t: &usize| windows.weights[window * steps + t] > 0.0;
                for t in (0..windows.counts[window]).filter(has_weight) {
                    let at = t * trajectory.num_envs + window;
                    let demonstrated = trajectory.actions[window * steps + t] as usize;
                    counts[demonstrated][likeliest[at] as usize] += 1;
                    loss_sum -= f64::from(logprobs[at]);
                }
            }
        }
        Self { counts, loss_sum }
    }

    /// Means over all steps.
    pub fn means(&self) -> HeldOutMeans {
        let steps = self.counts.iter().flatten().sum::<u64>() as f64;
        let correct: u64 = self.counts.iter().enumerate().map(|(action, row)| row[action]).sum();
        HeldOutMeans { loss: self.loss_sum / steps, accuracy: Some(correct as f64 / steps) }
    }
}

impl<G: Rules> GameTrainer<G> {
    /// Compares the policy with the held-out demonstrations; `None` for runs that play games.
    pub fn compute_confusion_matrix(&self) -> Option<ConfusionMatrix> {
        block_on(self.engine.compute_confusion_matrix())
    }
}

impl<G: Rules> GameEngine<G> {
    /// Compares the policy with the held-out demonstrations.
    pub(super) async fn compute_confusion_matrix(&self) -> Option<ConfusionMatrix> {
        let held_out = self.held_out.as_ref()?;
        let (model, actions) = (self.policy_engine.model(), self.game.num_actions());
        Some(ConfusionMatrix::compute(&model, held_out, actions, &self.device).await)
    }

    /// Means over the held-out demonstrations. Every rank returns those of rank 0: devices may round differently, but
    /// all ranks must agree on the best policy. All ranks must call this.
    pub(super) async fn compute_held_out_means(&self) -> Result<Option<HeldOutMeans>, TeamError> {
        let Some(confusion_matrix) = self.compute_confusion_matrix().await else { return Ok(None) };
        let HeldOutMeans { loss, accuracy } = confusion_matrix.means();
        let ours = [loss, accuracy.unwrap_or_default()];
        let first = self.part.team.all_gather_numbers(&ours)?.swap_remove(0);
        Ok(Some(HeldOutMeans { loss: first[0], accuracy: accuracy.map(|_| first[1]) }))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::env::{Catch, Env};
    use crate::parallel::tests::run_on_ranks;
    use crate::settings::{LossType, TrainConfig};
    use crate::trainer::Demonstrations;
    use crate::trainer::source::tests::window_set;

    #[test]
    fn ranks_whose_policies_differ_have_the_same_evaluation() {
        let game = Catch::default();
        let (features, actions) = (game.num_features(), game.num_actions());
        let window_set = window_set(400, 5, [features, actions]);
        let mut config = TrainConfig::with_defaults_of(&game).unwrap();
        config.loss.loss_type = LossType::Nll;
        config.checkpoint.eval_episodes = 4;
        (config.data.path, config.data.window) = ("somewhere".to_string(), 5);
        let ranks = run_on_ranks(2, |team| {
            let (device, key) = (Device::flex(), team.rank() as u32);
            let network = Network::new(features, actions, &config.policy, key, &device);
            let data = Demonstrations { train: window_set.clone(), validation: window_set.clone() };
            let trainer = GameTrainer::with_team(game, network, &config, &device, Some(data), team);
            let mut trainer = trainer.unwrap();
            (trainer.compute_confusion_matrix().unwrap().means(), trainer.validate().unwrap())
        });
        let [(first, evaluation), (second, other)] = [&ranks[0], &ranks[1]];
        assert_ne!(first, second);
        assert_eq!(evaluation, other);
        assert_eq!(evaluation.evaluation.held_out.as_ref(), Some(first));
    }
}
