//! The losses, as functions of log-probabilities.
//!
//! Each is a sum over the steps of a part of a minibatch, every step with a weight that belongs to
//! the whole minibatch or rollout. Parts of a minibatch therefore add up to the same loss and
//! gradient as the minibatch at once.

use crate::config::{KlEstimator, LossConfig, LossType};
use burn::tensor::Tensor;

/// The steps of `games` games, time-major: `[num_steps, games]` each.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Log-probabilities of the actions under the policy that is trained.
    pub logprobs: Tensor<2>,
    /// Entropies of that policy, nats.
    pub entropy: Tensor<2>,
    /// Log-probabilities under the policy that took the actions.
    pub old_logprobs: Tensor<2>,
    /// Log-probabilities under the reference policy; needed where `kl_coef` is not 0.
    pub reference_logprobs: Option<Tensor<2>>,
    /// Advantages.
    pub advantages: Tensor<2>,
    /// 1 where a step counts, else 0.
    pub mask: Tensor<2>,
}

/// What the weights of the steps refer to.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Games of the minibatch.
    pub games: usize,
    /// Steps of the minibatch that count: `[1]`.
    pub steps: Tensor<1>,
    /// Steps of the rollout that count, divided by the number of minibatches: `[1]`.
    pub rollout_share: Tensor<1>,
}

/// The loss of some steps, `[1]`, and what is reported of it.
#[derive(Clone, Debug)]
pub struct Loss {
    /// What is minimised.
    pub loss: Tensor<1>,
    /// Sums over the steps that count, without gradient: of [`Loss::SUMS`], in that order.
    pub sums: Tensor<1>,
}

impl Loss {
    /// What [`Loss::sums`] holds: the estimate of KL(old || new), the number of steps at which
    /// clipping took the gradient away (for `cispo`: at which it capped the weight), the entropy, the
    /// estimate of KL(policy || reference).
    pub const SUMS: [&str; 4] = ["approx_kl", "clip_fraction", "entropy", "reference_kl"];
}

/// The loss of `steps` with this weight of the entropy.
///
/// # Panics
/// If `kl_coef` is not 0 and there are no reference log-probabilities.
pub fn loss(config: &LossConfig, entropy_coef: f64, steps: &Steps, totals: &Totals) -> Loss {
    let weights = weights(config.loss_type, &steps.mask, totals);
    let log_ratio = steps.logprobs.clone() - steps.old_logprobs.clone();
    let importance = match config.loss_type {
        LossType::Gspo => {
            let lengths = steps.mask.clone().sum_dim(0).clamp_min(1.0);
            let mean = (log_ratio.clone() * steps.mask.clone()).sum_dim(0) / lengths;
            mean.expand(log_ratio.dims())
        }
        _ => log_ratio.clone(),
    };
    let ratio = importance.exp();
    let (low, high) = (1.0 - config.clip_eps_low, 1.0 + config.clip_eps_high);
    let advantages = steps.advantages.clone();
    let policy_loss = if config.loss_type == LossType::Cispo {
        // MiniMax 2025, equations 4 and 5, with the upper bound alone, as they use it.
        let weight = ratio.clone().detach().clamp_max(high);
        -(weight * advantages.clone() * steps.logprobs.clone())
    } else {
        let bounded = if config.dual_clip > 0.0 {
            ratio.clone().clamp_max(config.dual_clip)
        } else {
            ratio.clone()
        };
        let clipped = ratio.clone().clamp(low, high);
        -(bounded * advantages.clone()).min_pair(clipped * advantages.clone())
    };
    let mut total = policy_loss - steps.entropy.clone() * entropy_coef;
    let reference_kl = steps
        .reference_logprobs
        .as_ref()
        .map(|reference| kl(config.kl_estimator, steps.logprobs.clone(), reference.clone()));
    if config.kl_coef > 0.0 {
        let reference_kl = reference_kl.clone().expect("kl_coef needs a reference policy");
        total = total + reference_kl * config.kl_coef;
    }

    // Clipping acts where the ratio has left its range in the direction of the advantage.
    let ratio = ratio.detach();
    let above = ratio.clone().greater_elem(high).float();
    let below = ratio.clone().lower_elem(low).float();
    let up = advantages.clone().greater_elem(0.0).float();
    let down = advantages.lower_elem(0.0).float();
    let clipped = match config.loss_type {
        LossType::Cispo => above,
        _ if config.dual_clip > 0.0 => {
            let beyond = ratio.greater_elem(config.dual_clip).float();
            above * up + (below + beyond) * down
        }
        _ => above * up + below * down,
    };
    let log_ratio = log_ratio.detach();
    // Schulman 2020, the third estimator: (r - 1) - log r.
    let approx_kl = log_ratio.clone().exp() - 1.0 - log_ratio.clone();
    let reference_kl = reference_kl.map_or_else(|| log_ratio.zeros_like(), |kl| kl.detach());
    let sum = |values: Tensor<2>| (values * steps.mask.clone()).sum();
    let sums = [approx_kl, clipped, steps.entropy.clone().detach(), reference_kl].map(sum);
    Loss { loss: (total * weights).sum(), sums: Tensor::cat(sums.to_vec(), 0) }
}

/// The weight of each step, `[num_steps, games]`.
fn weights(loss_type: LossType, mask: &Tensor<2>, totals: &Totals) -> Tensor<2> {
    let [num_steps, _] = mask.dims();
    let over = |total: &Tensor<1>| mask.clone() / total.clone().reshape([1, 1]);
    match loss_type {
        LossType::Grpo | LossType::Gspo => {
            let lengths = mask.clone().sum_dim(0).clamp_min(1.0);
            mask.clone() / lengths / totals.games as f32
        }
        LossType::DrGrpo => mask.clone() / (num_steps * totals.games) as f32,
        LossType::Bnpo => over(&totals.steps),
        LossType::Dapo | LossType::Cispo => over(&totals.rollout_share),
    }
}

/// KL(policy || reference) at each step, estimated from the action taken.
fn kl(estimator: KlEstimator, policy: Tensor<2>, reference: Tensor<2>) -> Tensor<2> {
    let log_ratio = reference - policy;
    match estimator {
        KlEstimator::K1 => log_ratio.neg(),
        KlEstimator::K2 => log_ratio.square() * 0.5,
        KlEstimator::K3 => log_ratio.clone().exp() - 1.0 - log_ratio,
    }
}
