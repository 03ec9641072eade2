//! A network and the losses in plain loops in double precision, following the papers and TRL.

use super::Batch;
use grove::model::{Mlp, named_parameters};
use grove::settings::{Activation, KlEstimator, LossConfig, LossType};

/// A perceptron on a flat parameter vector: for each layer weights `[inputs][outputs]`, then
/// biases.
pub struct Network {
    pub sizes: Vec<usize>,
    activation: Activation,
}

impl Network {
    pub fn of(mlp: &Mlp) -> Self {
        let mut expected = Vec::new();
        let mut sizes = vec![mlp.layers()[0].weight.dims()[0]];
        for (i, layer) in mlp.layers().iter().enumerate() {
            let [inputs, outputs] = layer.weight.dims();
            expected.push((format!("layers.{i}.weight"), vec![inputs, outputs]));
            expected.push((format!("layers.{i}.bias"), vec![outputs]));
            sizes.push(outputs);
        }
        let found: Vec<(String, Vec<usize>)> =
            named_parameters(mlp).into_iter().map(|p| (p.name, p.shape)).collect();
        assert_eq!(found, expected, "the order that the reference relies on");
        Self { sizes, activation: mlp.activation() }
    }

    /// Log-probability of every action.
    pub fn logprobs(&self, params: &[f64], obs: &[f64]) -> Vec<f64> {
        let mut x = obs.to_vec();
        let mut rest = params;
        for (i, size) in self.sizes.windows(2).enumerate() {
            let (inputs, outputs) = (size[0], size[1]);
            let (weight, after) = rest.split_at(inputs * outputs);
            let (bias, after) = after.split_at(outputs);
            rest = after;
            x = (0..outputs)
                .map(|j| {
                    let z =
                        bias[j] + (0..inputs).map(|k| weight[k * outputs + j] * x[k]).sum::<f64>();
                    let hidden = i + 2 < self.sizes.len();
                    if hidden { self.activate(z) } else { z }
                })
                .collect();
        }
        assert!(rest.is_empty());
        let total: f64 = x.iter().map(|z| z.exp()).sum();
        x.iter().map(|z| z - total.ln()).collect()
    }

    fn activate(&self, z: f64) -> f64 {
        match self.activation {
            Activation::Relu => z.max(0.0),
            Activation::Tanh => z.tanh(),
            Activation::Silu => z / (1.0 + (-z).exp()),
            Activation::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3));
                0.5 * z * (1.0 + inner.tanh())
            }
        }
    }
}

/// Results of the reference.
#[derive(Default)]
pub struct Reference {
    pub loss: f64,
    /// In the order of `Loss::SUM_NAMES`.
    pub sums: [f64; 4],
    /// Smallest distance of a ratio to a kink of the loss.
    pub kink_distance: f64,
    /// Number of steps with a ratio above the upper bound and A > 0; above and A < 0; below the
    /// lower bound and A > 0; below and A < 0; above the dual clip and A < 0.
    pub seen: [usize; 5],
}

/// The policy term of a step; CISPO weights it by `frozen_ratio`, which has no gradient.
fn policy_term(
    config: &LossConfig,
    (low, high): (f64, f64),
    (ratio, frozen_ratio): (f64, f64),
    advantage: f64,
    logprob: f64,
) -> f64 {
    match config.loss_type {
        LossType::Cispo => -frozen_ratio.min(high) * advantage * logprob,
        LossType::Sapo => {
            let temperature = if advantage > 0.0 {
                config.sapo_temperature_pos
            } else {
                config.sapo_temperature_neg
            };
            let gate = 1.0 / (1.0 + (-temperature * (ratio - 1.0)).exp());
            -gate * 4.0 / temperature * advantage
        }
        LossType::Nll => -advantage * logprob,
        LossType::Grpo | LossType::DrGrpo | LossType::Dapo | LossType::Bnpo | LossType::Gspo => {
            let unclipped =
                if config.dual_clip > 0.0 { ratio.min(config.dual_clip) } else { ratio };
            let clipped = ratio.max(low).min(high);
            -(unclipped * advantage).min(clipped * advantage)
        }
    }
}

/// Whether the ratio of a step is counted as clipped.
fn is_clipped(config: &LossConfig, (low, high): (f64, f64), ratio: f64, advantage: f64) -> bool {
    let (up, down) = (advantage > 0.0, advantage < 0.0);
    let beyond_dual = config.dual_clip > 0.0 && ratio > config.dual_clip && down;
    match config.loss_type {
        LossType::Cispo => ratio > high && advantage != 0.0,
        LossType::Sapo | LossType::Nll => false,
        LossType::Grpo | LossType::DrGrpo | LossType::Dapo | LossType::Bnpo | LossType::Gspo => {
            ratio > high && up || ratio < low && down || beyond_dual
        }
    }
}

/// The weight of a step of a game with `length` counted steps.
fn step_weight(loss_type: LossType, length: f64, batch: &Batch) -> f64 {
    match loss_type {
        LossType::Grpo | LossType::Gspo | LossType::Sapo => 1.0 / length / batch.total_games as f64,
        LossType::DrGrpo => 1.0 / (batch.num_steps * batch.total_games) as f64,
        LossType::Bnpo | LossType::Nll => 1.0 / f64::from(batch.total_steps),
        LossType::Dapo | LossType::Cispo => 1.0 / f64::from(batch.rollout_steps_per_minibatch),
    }
}

/// The estimate of the divergence at a step, with `log_ratio` to the behaviour policy and `log_r` to the reference.
fn kl_term(config: &LossConfig, log_ratio: f64, log_r: f64) -> f64 {
    let kl = match config.kl_estimator {
        KlEstimator::K1 => -log_r,
        KlEstimator::K2 => log_r.powi(2) / 2.0,
        KlEstimator::K3 => (log_r.exp() - 1.0) - log_r,
    };
    if config.use_bias_correction_kl { log_ratio.exp() * kl } else { kl }
}

/// Loss of `batch` following the papers and TRL (`GRPOTrainer._compute_loss`). `frozen` are the
/// parameters for terms that are detached: CISPO's weight.
pub fn reference(
    config: &LossConfig,
    entropy_coef: f64,
    network: &Network,
    params: &[f64],
    frozen: &[f64],
    batch: &Batch,
) -> Reference {
    // TRL clips CISPO's weight at `epsilon_high`, and all other ratios at `1 + epsilon_high`.
    let above = if config.loss_type == LossType::Cispo { 0.0 } else { 1.0 };
    let bounds @ (low, high) = (1.0 - config.clip_eps_low, above + config.clip_eps_high);
    let dual = config.dual_clip;
    let mut result = Reference { kink_distance: f64::INFINITY, ..Reference::default() };
    for game in 0..batch.games {
        let counted: Vec<usize> =
            (0..batch.num_steps).filter(|t| batch.mask[t * batch.games + game] == 1.0).collect();
        let length = counted.len() as f64;
        let log_ratio = |params: &[f64], t: usize| {
            let at = t * batch.games + game;
            let logprobs = network.logprobs(params, &batch.obs(t, game));
            logprobs[batch.actions[at] as usize] - f64::from(batch.old_logprobs[at])
        };
        let mean_log_ratio = counted.iter().map(|&t| log_ratio(params, t)).sum::<f64>() / length;
        for &t in &counted {
            let at = t * batch.games + game;
            let logprobs = network.logprobs(params, &batch.obs(t, game));
            let logprob = logprobs[batch.actions[at] as usize];
            let advantage = f64::from(batch.advantages[at]);
            let own = logprob - f64::from(batch.old_logprobs[at]);
            let ratio = match config.loss_type {
                LossType::Gspo => mean_log_ratio,
                LossType::Grpo
                | LossType::DrGrpo
                | LossType::Dapo
                | LossType::Bnpo
                | LossType::Cispo
                | LossType::Sapo
                | LossType::Nll => own,
            }
            .exp();
            let ratios = (ratio, log_ratio(frozen, t).exp());
            let policy = policy_term(config, bounds, ratios, advantage, logprob);
            let kl = kl_term(config, own, f64::from(batch.reference_logprobs[at]) - logprob);
            let entropy: f64 = logprobs.iter().map(|l| -l * l.exp()).sum();
            let weight = step_weight(config.loss_type, length, batch);
            result.loss += weight * (policy + config.kl_coef * kl - entropy_coef * entropy);

            let clipped = is_clipped(config, bounds, ratio, advantage);
            result.sums[0] += own.exp() - 1.0 - own;
            result.sums[1] += f64::from(clipped);
            result.sums[2] += entropy;
            result.sums[3] += kl;
            let (up, down) = (advantage > 0.0, advantage < 0.0);
            for (count, seen) in result.seen.iter_mut().zip([
                ratio > high && up,
                ratio > high && down,
                ratio < low && up,
                ratio < low && down,
                ratio > dual && down,
            ]) {
                *count += usize::from(seen);
            }
            for bound in [low, high, dual] {
                result.kink_distance = result.kink_distance.min((ratio - bound).abs());
            }
        }
    }
    result
}

/// Gradient of the reference loss by central differences, with an error below 1e-9 here.
pub fn reference_gradient(
    config: &LossConfig,
    entropy_coef: f64,
    network: &Network,
    params: &[f64],
    batch: &Batch,
) -> Vec<f64> {
    let h = 1e-5;
    (0..params.len())
        .map(|i| {
            let [up, down] = [h, -h].map(|h| {
                let mut moved = params.to_vec();
                moved[i] += h;
                reference(config, entropy_coef, network, &moved, params, batch).loss
            });
            (up - down) / (2.0 * h)
        })
        .collect()
}
