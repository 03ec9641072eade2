//! Inputs of an update as tensors, and the gradient computed from them.

use super::train_state::TrainState;
use crate::model::{Categorical, Network};
use crate::objective::{Loss, LossSteps};
use burn::tensor::{Int, Tensor};

/// Steps of some games, time-major: `[num_steps, games]` each, observations `[num_steps, games,
/// num_features]`.
pub(super) struct TensorExperience {
    pub obs: Tensor<3>,
    pub starts: Tensor<2>,
    /// Memory of the policy before the first step, `[games, memory_size]`; `None` for the initial memory, which is not
    /// stored because datasets have many games and KV caches are large.
    pub memory: Option<Tensor<2>>,
    /// The network with its initial weights, which defines the initial memory.
    pub network: Network,
    pub actions: Tensor<2, Int>,
    pub old_logprobs: Tensor<2>,
    pub reference_logprobs: Option<Tensor<2>>,
    pub advantages: Tensor<2>,
    pub mask: Tensor<2>,
    pub legal: Option<Tensor<3>>,
    /// Whether label smoothing is active.
    pub smooths_labels: bool,
}

impl TensorExperience {
    /// Selects games by index.
    pub fn select_games(&self, indices: Tensor<1, Int>) -> Self {
        let select = |tensor: &Tensor<2>| tensor.clone().select(1, indices.clone());
        Self {
            obs: self.obs.clone().select(1, indices.clone()),
            starts: select(&self.starts),
            memory: self.memory.as_ref().map(|rows| rows.clone().select(0, indices.clone())),
            network: self.network.clone(),
            actions: self.actions.clone().select(1, indices.clone()),
            old_logprobs: select(&self.old_logprobs),
            reference_logprobs: self.reference_logprobs.as_ref().map(select),
            advantages: select(&self.advantages),
            mask: select(&self.mask),
            legal: self.legal.as_ref().map(|legal| legal.clone().select(1, indices.clone())),
            smooths_labels: self.smooths_labels,
        }
    }

    /// Computes the loss and its gradient with respect to all parameters. The backward pass is
    /// scaled by `scale`.
    pub fn compute_gradient(
        &self,
        state: &TrainState,
        scale: f32,
        loss: impl Fn(LossSteps) -> Loss,
    ) -> (Loss, Tensor<1>) {
        let leaf = state.params.clone().autodiff().require_grad();
        let loss = loss(self.evaluate(&state.network.unflatten(&leaf)));
        let multiply = |x: Tensor<1>, factor: f32| if scale == 1.0 { x } else { x * factor };
        let mut gradients = multiply(loss.value.clone(), scale).backward();
        let gradient = leaf.grad_remove(&mut gradients).expect("the loss has parameters");
        (loss, multiply(gradient, 1.0 / scale))
    }

    /// Evaluates `policy` on the steps.
    pub fn evaluate(&self, policy: &Network) -> LossSteps {
        let initial = || self.network.initial_memory(self.obs.dims()[1], &self.obs.device());
        let memory = self.memory.clone().or_else(initial);
        let logits = policy.sequence(self.obs.clone(), self.starts.clone(), memory);
        let [num_steps, games, num_actions] = logits.dims();
        let actions = self.actions.clone().reshape([num_steps * games]);
        let legal = self.legal.clone();
        let legal = legal.map(|legal| legal.reshape([num_steps * games, num_actions]));
        let logits = logits.reshape([num_steps * games, num_actions]);
        let distribution = Categorical::with_mask(logits, legal);
        LossSteps {
            logprobs: distribution.logprob(actions).reshape([num_steps, games]),
            entropy: distribution.entropy().reshape([num_steps, games]),
            old_logprobs: self.old_logprobs.clone(),
            reference_logprobs: self.reference_logprobs.clone(),
            mean_logprobs: self
                .smooths_labels
                .then(|| distribution.mean_logprob().reshape([num_steps, games])),
            advantages: self.advantages.clone(),
            mask: self.mask.clone(),
        }
    }
}
