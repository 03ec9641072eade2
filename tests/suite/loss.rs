//! Losses and gradients against a plain reference in double precision.

mod fused;
mod learner;
mod reference;

use crate::shared::noise;
use crate::shared::updates::loss_config;
use crate::support::{adapter, cpu, floats};
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::model::{Categorical, Memoryless, Mlp, flatten, unflatten};
use grove::objective::{LossSteps, TensorStepDenominators, loss};
use grove::rng::draw;
use grove::settings::{Activation, KlEstimator, LossConfig, LossType, PolicyConfig};
use reference::{Network, reference, reference_gradient};

fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    floats(tensor).into_iter().map(f64::from).collect()
}

/// Steps of part of a minibatch, time-major, with the denominators of their weights.
struct Batch {
    num_steps: usize,
    games: usize,
    obs: Vec<f32>,
    actions: Vec<i32>,
    old_logprobs: Vec<f32>,
    reference_logprobs: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<f32>,
    total_games: usize,
    total_steps: f32,
    rollout_steps_per_minibatch: f32,
}

impl Batch {
    fn obs(&self, t: usize, game: usize) -> Vec<f64> {
        let features = self.obs.len() / (self.num_steps * self.games);
        let at = (t * self.games + game) * features;
        self.obs[at..at + features].iter().map(|x| f64::from(*x)).collect()
    }
}

/// A perceptron with weights and biases uniform in [-0.8, 0.8).
fn perceptron(features: usize, hidden: &[usize], actions: usize, device: &Device) -> Mlp {
    let activation = if hidden.len() == 1 { Activation::Tanh } else { Activation::Gelu };
    let config = PolicyConfig::mlp(hidden, activation);
    let mlp = Mlp::new(features, actions, &config, 1, device);
    let count = flatten(&mlp).dims()[0];
    let params: Vec<f32> = noise(17, count).iter().map(|x| x * 0.8).collect();
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

/// Games of different lengths with ratios on both sides of every bound. Masked steps hold large
/// values that must not contribute.
fn batch(network: &Network, params: &[f64], loss_type: LossType) -> Batch {
    let lengths = [6, 1, 3, 6, 2, 5, 4, 6, 3];
    let ratios = [0.5, 4.0, 0.9, 1.5, 1.05, 0.65, 5.0, 2.0, 0.97];
    let (num_steps, games) = (6, lengths.len());
    let (features, actions) = (network.sizes[0], *network.sizes.last().unwrap());
    let count = num_steps * games;
    let jitter = noise(23, count);
    let mut batch = Batch {
        num_steps,
        games,
        obs: noise(19, count * features),
        actions: (0..count as u32).map(|i| (draw(20, i) % actions as u32) as i32).collect(),
        old_logprobs: vec![0.0; count],
        reference_logprobs: vec![0.0; count],
        advantages: noise(21, count).iter().map(|a| a * 2.0 + 0.1 * a.signum()).collect(),
        mask: vec![0.0; count],
        // A part of the minibatch, which is a part of the rollout.
        total_games: 13,
        total_steps: 50.0,
        rollout_steps_per_minibatch: 43.5,
    };
    for t in 0..num_steps {
        for (game, &length) in lengths.iter().enumerate() {
            let at = t * games + game;
            let logprobs = network.logprobs(params, &batch.obs(t, game));
            let logprob = logprobs[batch.actions[at] as usize];
            // GSPO has one ratio per game, the other losses one per step.
            let target: f64 = match loss_type {
                LossType::Gspo => ratios[game],
                _ => ratios[(draw(22, at as u32) % ratios.len() as u32) as usize],
            };
            let log_ratio = target.ln() + 0.04 * f64::from(jitter[at]);
            batch.old_logprobs[at] = (logprob - log_ratio) as f32;
            batch.reference_logprobs[at] = (logprob + 0.7 * f64::from(jitter[at])) as f32;
            if t < length {
                batch.mask[at] = 1.0;
            } else {
                batch.old_logprobs[at] = 3.0;
                batch.advantages[at] = -20.0;
            }
        }
    }
    batch
}

/// Loss, sums and gradient computed by the library.
fn library(
    config: &LossConfig,
    entropy_coef: f64,
    mlp: &Mlp,
    batch: &Batch,
    device: &Device,
) -> (f64, Vec<f64>, Vec<f64>) {
    let (steps, games) = (batch.num_steps, batch.games);
    let rows =
        |v: &[f32]| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [steps, games]), device);
    let leaf = flatten(mlp).autodiff().require_grad();
    let policy = unflatten(mlp.clone(), &leaf);
    let features = batch.obs.len() / (steps * games);
    let obs = TensorData::new(batch.obs.clone(), [steps * games, features]);
    let actions = TensorData::new(batch.actions.clone(), [steps * games]);
    let actions = Tensor::<1, Int>::from_data(actions, device);
    let distribution = Categorical::new(policy.logits(Tensor::from_data(obs, device)));
    let steps = LossSteps {
        logprobs: distribution.logprob(actions).reshape([steps, games]),
        entropy: distribution.entropy().reshape([steps, games]),
        old_logprobs: rows(&batch.old_logprobs),
        reference_logprobs: Some(rows(&batch.reference_logprobs)),
        mean_logprobs: None,
        advantages: rows(&batch.advantages),
        mask: rows(&batch.mask),
    };
    let denominators = TensorStepDenominators {
        sequences: batch.total_games,
        steps: Tensor::from_floats([batch.total_steps], device),
        rollout_steps_per_minibatch: Tensor::from_floats(
            [batch.rollout_steps_per_minibatch],
            device,
        ),
    };
    let loss = loss(config, entropy_coef, &steps, &denominators);
    let gradients = loss.value.backward();
    let gradient = leaf.grad(&gradients).expect("the loss has parameters");
    (
        doubles(loss.value.without_autodiff())[0],
        doubles(loss.sums.without_autodiff()),
        doubles(gradient),
    )
}

/// Compares one setting. Tolerances are relative to the loss (or the sums) and to the gradient's
/// largest component.
fn compare(config: &LossConfig, hidden: &[usize], device: &Device, tolerances: (f64, f64)) {
    let coef = config.entropy_coef;
    let mlp = perceptron(3, hidden, 4, device);
    let network = Network::of(&mlp);
    let params = doubles(flatten(&mlp));
    let batch = batch(&network, &params, config.loss_type);
    let (got, sums, gradient) = library(config, coef, &mlp, &batch, device);
    let want = reference(config, coef, &network, &params, &params, &batch);
    let context = format!("{config:?} {hidden:?}");

    assert!(want.kink_distance > 0.01, "{context}: too close to a kink");
    assert!(want.seen.iter().all(|&n| n > 0), "{:?}", want.seen);
    // A small loss is a difference of larger terms, with the rounding of these.
    let error = (got - want.loss).abs() / want.loss.abs().max(0.01);
    assert!(
        error < tolerances.0,
        "{context}: loss {got}, not {}, relative error {error}",
        want.loss
    );
    for (got, want) in sums.iter().zip(want.sums) {
        let error = (got - want).abs();
        assert!(
            error < tolerances.0 * (1.0 + want.abs()),
            "{context}: sums {sums:?}, {got} should be {want}"
        );
    }
    let expected = reference_gradient(config, coef, &network, &params, &batch);
    assert_eq!(gradient.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |m, g| m.max(g.abs()));
    for (i, (got, want)) in gradient.iter().zip(&expected).enumerate() {
        let error = (got - want).abs() / largest;
        assert!(
            error < tolerances.1,
            "{context}: gradient {i} is {got}, not {want}, relative error {error}"
        );
    }
}

#[test]
fn every_loss_and_its_gradient_equal_the_reference() {
    for &loss_type in LossType::ALL {
        for (dual_clip, corrected) in [(0.0, false), (3.0, false), (3.0, true)] {
            for &kl_estimator in KlEstimator::ALL {
                for hidden in [&[5][..], &[6, 4]] {
                    let mut config = loss_config(loss_type, dual_clip, kl_estimator);
                    config.use_bias_correction_kl = corrected;
                    compare(&config, hidden, &cpu(), (1e-5, 3e-6));
                }
            }
        }
    }
}

#[test]
fn every_loss_and_its_gradient_equal_the_reference_on_an_adapter() {
    let Some(device) = adapter() else { return };
    for (i, &loss_type) in LossType::ALL.iter().enumerate() {
        let config = loss_config(loss_type, 3.0, KlEstimator::ALL[i % 3]);
        compare(&config, &[6, 4], &device, (2e-5, 1e-5));
    }
}

#[test]
fn a_game_without_a_step_adds_nothing() {
    let device = cpu();
    let mlp = perceptron(3, &[5], 4, &device);
    let network = Network::of(&mlp);
    let params = doubles(flatten(&mlp));
    for &loss_type in LossType::ALL {
        let config = loss_config(loss_type, 3.0, KlEstimator::K3);
        let mut batch = batch(&network, &params, loss_type);
        for t in 0..batch.num_steps {
            batch.mask[t * batch.games + 2] = 0.0;
        }
        let (got, _, gradient) = library(&config, 0.03, &mlp, &batch, &device);
        let want = reference(&config, 0.03, &network, &params, &params, &batch).loss;
        assert!((got - want).abs() < 1e-5 * want.abs(), "{loss_type:?}");
        assert!(gradient.iter().all(|g| g.is_finite()), "{loss_type:?}");
    }
}
