//! A loss in tensors, for autodiff.
//!
//! A loss is a sum over the steps of part of a minibatch, with weights that refer to the whole
//! minibatch or rollout. The parts of a minibatch therefore add up to its loss and gradient.

use super::weights::{self, TensorStepDenominators};
use super::{LossConfig, kl};
use burn::tensor::Tensor;

/// Steps of `games` games, time-major: `[num_steps, games]` each.
#[derive(Clone, Debug)]
pub struct LossSteps {
    /// Log-probabilities of the actions under the current policy.
    pub logprobs: Tensor<2>,
    /// Entropies of the current policy in nats.
    pub entropy: Tensor<2>,
    /// Log-probabilities under the behaviour policy.
    pub old_logprobs: Tensor<2>,
    /// Log-probabilities under the reference policy; required if `kl_coef` is not 0.
    pub reference_logprobs: Option<Tensor<2>>,
    /// Log-probabilities averaged over all actions; required if `label_smoothing` is not 0.
    pub mean_logprobs: Option<Tensor<2>>,
    /// Advantages.
    pub advantages: Tensor<2>,
    /// 1 for steps that count, else 0.
    pub mask: Tensor<2>,
}

/// Inputs of the policy term: `[num_steps, games]` each.
#[derive(Clone, Debug)]
pub struct TensorSteps {
    /// Importance ratio of current to behaviour policy, per step or per game depending on the loss.
    pub ratio: Tensor<2>,
    /// Advantages.
    pub advantages: Tensor<2>,
    /// Log-probabilities of the actions under the current policy.
    pub logprobs: Tensor<2>,
}

/// Policy terms: `[num_steps, games]` each.
#[derive(Clone, Debug)]
pub struct TensorTerms {
    /// Values to minimize.
    pub values: Tensor<2>,
    /// 1 where clipping is active, else 0.
    pub clipped: Tensor<2>,
}

/// Loss and metrics of some steps.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Value to minimize, `[1]`.
    pub value: Tensor<1>,
    /// Detached sums over the steps that count, named and ordered by [`Loss::SUM_NAMES`].
    pub sums: Tensor<1>,
}

impl Loss {
    /// Names of [`Loss::sums`]: the estimate of KL(old || new), the number of steps with active
    /// clipping (for `cispo`, a capped weight), the entropy, and the estimate of KL(policy ||
    /// reference).
    pub const SUM_NAMES: [&str; 4] = ["approx_kl", "clip_fraction", "entropy", "reference_kl"];
}

/// Computes the loss of `steps` with entropy weight `entropy_coef`, divided by the `denominators` of its whole
/// minibatch or rollout.
///
/// # Panics
/// If `kl_coef` is not 0 and there are no reference log-probabilities, or `label_smoothing` is not
/// 0 and there are no mean log-probabilities.
pub fn loss(
    config: &LossConfig,
    entropy_coef: f64,
    steps: &LossSteps,
    denominators: &TensorStepDenominators,
) -> Loss {
    let loss_type = config.loss_type;
    let weights = weights::tensor_weights(loss_type.averaging(), &steps.mask, denominators);
    let log_ratio = steps.logprobs.clone() - steps.old_logprobs.clone();
    let step_ratio = kl::bounded_exp(log_ratio.clone());
    let ratio = if loss_type.has_sequence_ratio() {
        let lengths = steps.mask.clone().sum_dim(0).clamp_min(1.0);
        let mean = (log_ratio.clone() * steps.mask.clone()).sum_dim(0) / lengths;
        kl::bounded_exp(mean.expand(log_ratio.dims()))
    } else {
        step_ratio.clone()
    };
    let (advantages, logprobs) = (steps.advantages.clone(), steps.logprobs.clone());
    let terms = loss_type.tensor_terms(&TensorSteps { ratio, advantages, logprobs }, config);
    let mut policy_loss = terms.values;
    if config.label_smoothing > 0.0 {
        // Label smoothing (Szegedy et al. 2016): every action receives an equal share of the
        // target.
        let mean_logprobs = steps.mean_logprobs.clone().expect("label_smoothing needs the means");
        let share = config.label_smoothing;
        policy_loss =
            policy_loss * (1.0 - share) - steps.advantages.clone() * mean_logprobs * share;
    }
    let mut total = policy_loss - steps.entropy.clone() * entropy_coef;
    let reference_kl = steps.reference_logprobs.as_ref().map(|reference| {
        kl::tensor_estimate(config, steps.logprobs.clone(), reference.clone(), step_ratio.clone())
    });
    if config.kl_coef > 0.0 {
        let reference_kl = reference_kl.clone().expect("kl_coef needs a reference policy");
        total = total + reference_kl * config.kl_coef;
    }

    // The k3 estimator (Schulman 2020) with this ratio.
    let approx_kl = step_ratio.detach() - 1.0 - log_ratio.clone().detach();
    let reference_kl = reference_kl.map_or_else(|| approx_kl.zeros_like(), |kl| kl.detach());
    let sum = |values: Tensor<2>| (values * steps.mask.clone()).sum();
    let sums = [approx_kl, terms.clipped, steps.entropy.clone().detach(), reference_kl].map(sum);
    Loss { value: (total * weights).sum(), sums: Tensor::cat(sums.to_vec(), 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::{KlEstimator, LossParams, LossType, Step, term};
    use burn::tensor::Device;

    /// Steps that count, without entropy, of as many games as there are advantages.
    fn steps(logprobs: Tensor<2>, old_logprobs: Tensor<2>, advantages: Tensor<2>) -> LossSteps {
        LossSteps {
            logprobs,
            entropy: advantages.zeros_like(),
            old_logprobs,
            reference_logprobs: None,
            mean_logprobs: None,
            mask: advantages.ones_like(),
            advantages,
        }
    }

    /// Denominators of a rollout of one step in each of `games` games, learnt from as one minibatch.
    fn denominators(games: usize, device: &Device) -> TensorStepDenominators {
        let steps = Tensor::from_floats([games as f32], device);
        TensorStepDenominators {
            sequences: games,
            rollout_steps_per_minibatch: steps.clone(),
            steps,
        }
    }

    #[test]
    fn ratios_beyond_single_precision_have_the_gradients_of_other_engines() {
        let device = Device::flex();
        let one = |x: f32| Tensor::<2>::from_floats([[x]], &device);
        let config = LossConfig { kl_coef: 1.0, ..LossConfig::default() };
        let loss_params = LossParams::new(&config, 0.0);
        // The log-probabilities under the current, the behaviour and the reference policy, and the advantage.
        for [logprob, old, reference, advantage] in
            [[-100.0f32, -100.0, -0.5, 0.0], [-0.5, -120.0, -0.5, 1.0], [-0.5, -120.0, -0.5, -0.5]]
        {
            let leaf = one(logprob).autodiff().require_grad();
            let mut steps = steps(leaf.clone(), one(old), one(advantage));
            steps.reference_logprobs = Some(one(reference));
            let found = loss(&config, 0.0, &steps, &denominators(1, &device));
            let d_logprob = leaf.grad(&found.value.backward()).unwrap().into_scalar::<f32>();
            let ratio = crate::math::exp(logprob - old);
            let policy =
                term(&Step { ratio, advantage, logprob }, &loss_params, config.loss_type).d_logprob;
            let kl = kl::estimate_kl(reference - logprob, ratio, KlEstimator::K3, false).d_logprob;
            let want = policy + kl;
            assert!((d_logprob - want).abs() <= 1e-4 * want.abs(), "{d_logprob} instead of {want}");
            let sums = found.sums.into_data().try_into_vec::<f32>().unwrap();
            assert!(sums.iter().all(|sum| sum.is_finite()), "{sums:?}");
        }
    }

    #[test]
    fn label_smoothing_equals_pytorchs_cross_entropy() {
        let device = Device::flex();
        let row = |values: [f64; 2]| Tensor::<2>::from_data([values], &device);
        // Log-probabilities of two steps over three actions.
        let all = [[0.2f64, 0.3, 0.5], [0.7, 0.2, 0.1]].map(|p| p.map(f64::ln));
        let (taken, weights, smoothing) = ([0, 1], [1.0, 3.0], 0.3);
        let logprobs = row([all[0][taken[0]], all[1][taken[1]]]);
        let mut steps = steps(logprobs, row([0.0; 2]), row(weights));
        steps.mean_logprobs = Some(row(all.map(|l| l.iter().sum::<f64>() / 3.0)));
        let config = LossConfig {
            loss_type: LossType::Nll,
            label_smoothing: smoothing,
            ..LossConfig::default()
        };
        let found = loss(&config, 0.0, &steps, &denominators(2, &device));
        let found = found.value.into_scalar::<f32>();
        // The target is `smoothing / 3` for every action plus the rest for the action taken.
        let term = |i: usize| -> f64 {
            let target =
                |a: usize| smoothing / 3.0 + if a == taken[i] { 1.0 - smoothing } else { 0.0 };
            -weights[i] * (0..3).map(|a| target(a) * all[i][a]).sum::<f64>()
        };
        let expected = (term(0) + term(1)) / 2.0;
        assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
    }
}
