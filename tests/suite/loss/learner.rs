//! The learner: gradient accumulation, minibatches, and an initial ratio of 1.

use super::reference::{Network, reference, reference_gradient};
use super::{Batch, doubles, floats, perceptron};
use crate::shared::updates::loss_config;
use crate::support::{adapter, cpu};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use grove::advantage::compute_advantages;
use grove::data::Trajectory;
use grove::env::CartPole;
use grove::learner::AutodiffLearner;
use grove::model::{Categorical, Memoryless, Mlp, NativeMlp, flatten};
use grove::objective::Averaging;
use grove::rollout::{NativeRollout, RolloutKeys, StepwiseRollout};
use grove::settings::{GroupStart, KlEstimator, LossType, LrSchedule, RolloutConfig, TrainConfig};
use std::sync::{Arc, Mutex};

const GROUPS: usize = 8;
const MEMBERS: usize = 3;
const STEPS: usize = 40;

/// One iteration of CartPole without auto-reset, so that games have different lengths.
struct PlayedIteration {
    trajectory: Trajectory,
    advantages: Tensor<2>,
    mask: Tensor<2>,
}

fn train_config(loss_type: LossType) -> TrainConfig {
    let mut config = TrainConfig::for_game("cartpole");
    config.rollout = RolloutConfig {
        num_groups: GROUPS,
        group_size: MEMBERS,
        num_steps: STEPS,
        learn_steps: STEPS,
        start: GroupStart::Level,
        auto_reset: false,
    };
    config.loss = loss_config(loss_type, 3.0, KlEstimator::K3);
    config.optimizer.lr_scheduler_type = LrSchedule::Constant;
    config.optimizer.learning_rate = 3e-3;
    config
}

fn play(config: &TrainConfig, policy: &Mlp) -> PlayedIteration {
    let game = CartPole::default();
    let device = cpu();
    let mut rollout = NativeRollout::new(game, &config.rollout, RolloutKeys::new(4));
    let trajectory = rollout.collect(&NativeMlp::new(policy), 0, &device);
    let mask = trajectory.mask(false);
    let lengths = floats(mask.clone().sum_dim(0));
    let shortest = lengths.iter().copied().fold(f32::INFINITY, f32::min);
    let longest = lengths.iter().copied().fold(0.0, f32::max);
    assert!(longest - shortest > 5.0, "the mask is uneven: {lengths:?}");
    let advantages = compute_advantages(&trajectory, &mask, MEMBERS, STEPS, &config.advantage);
    PlayedIteration { trajectory, advantages: advantages.values, mask }
}

/// Parameters and means after one update.
fn updated(policy: &Mlp, config: &TrainConfig, played: &PlayedIteration) -> (Vec<f64>, Vec<f64>) {
    let mut learner = AutodiffLearner::new(policy.clone(), config);
    let stats = learner.update(&played.trajectory, &played.advantages, &played.mask, 0).unwrap();
    (doubles(learner.state.params().clone()), doubles(stats))
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn gradient_accumulation_does_not_change_the_update() {
    let policy = perceptron(4, &[8], 2, &cpu());
    let before = doubles(flatten(&policy));
    let zero = vec![0.0; before.len()];
    for &loss_type in LossType::ALL {
        let mut config = train_config(loss_type);
        config.update.update_epochs = 2;
        config.update.num_minibatches = 2;
        let played = play(&config, &policy);
        let (whole, whole_means) = updated(&policy, &config, &played);
        assert!(distance(&whole, &before) > 1e-3 * distance(&before, &zero));
        for parts in [2, 4, 8] {
            config.update.gradient_accumulation_steps = parts;
            config.validate().unwrap();
            let (params, means) = updated(&policy, &config, &played);
            let error = distance(&params, &whole);
            assert!(
                error < 1e-6 * distance(&whole, &zero),
                "{loss_type:?} in {parts} parts: {error} from the parameters' norm"
            );
            assert!(
                error < 1e-4 * distance(&whole, &before),
                "{loss_type:?} in {parts} parts: {error} from the change's norm"
            );
            for (got, want) in means.iter().zip(&whole_means) {
                assert!(
                    (got - want).abs() < 1e-5 * (1.0 + want.abs()),
                    "{loss_type:?} in {parts} parts: {means:?}, not {whole_means:?}"
                );
            }
        }
    }
}

/// A learning rate so small that every minibatch sees the same policy.
fn standing_still(mut config: TrainConfig) -> TrainConfig {
    config.optimizer.learning_rate = 1e-12;
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.gradient_accumulation_steps = 1;
    config
}

#[test]
fn the_learners_loss_is_the_references_for_any_number_of_minibatches() {
    let policy = perceptron(4, &[8], 2, &cpu());
    let network = Network::of(&policy);
    let params = doubles(flatten(&policy));
    for &loss_type in LossType::ALL {
        let mut config = standing_still(train_config(loss_type));
        let played = play(&config, &policy);
        let mask = floats(played.mask.clone());
        let counted: f32 = mask.iter().sum();
        let batch = Batch {
            num_steps: STEPS,
            games: GROUPS * MEMBERS,
            obs: floats(played.trajectory.obs.clone()),
            actions: played.trajectory.actions.clone().into_data().iter().collect(),
            old_logprobs: floats(played.trajectory.logprobs.clone()),
            reference_logprobs: floats(played.trajectory.logprobs.clone()),
            advantages: floats(played.advantages.clone()),
            mask,
            total_games: GROUPS * MEMBERS,
            total_steps: counted,
            rollout_steps_per_minibatch: counted,
        };
        let coef = config.loss.entropy_coef;
        let want = reference(&config.loss, coef, &network, &params, &params, &batch);
        let entropy = want.sums[2] / f64::from(counted);
        for minibatches in [1, 2, 6] {
            config.update.num_minibatches = minibatches;
            let (_, means) = updated(&policy, &config, &played);
            let context = format!("{loss_type:?} in {minibatches} minibatches");
            // Averages over minibatches of per-minibatch means depend on the split.
            if minibatches == 1 || loss_type.averaging() != Averaging::Minibatch {
                let error = (means[4] - want.loss).abs();
                assert!(
                    error < 1e-5 * (1.0 + want.loss.abs()),
                    "{context}: {}, not {}",
                    means[4],
                    want.loss
                );
            }
            assert!((means[2] - entropy).abs() < 1e-5, "{context}: entropy");
        }
        let gradient = reference_gradient(&config.loss, coef, &network, &params, &batch);
        config.update.num_minibatches = 1;
        let (_, means) = updated(&policy, &config, &played);
        let norm = distance(&gradient, &vec![0.0; gradient.len()]);
        assert!(
            (means[5] - norm).abs() < 1e-4 * norm,
            "{loss_type:?}: gradient norm {}, not {norm}",
            means[5]
        );
    }
}

/// Checks that the learner reproduces the behaviour policy: ratio 1.
fn assert_ratio_one(policy: &Mlp, trajectory: Trajectory, config: &TrainConfig) {
    let [steps, games, features] = trajectory.dims();
    let obs = trajectory.obs.clone().reshape([steps * games, features]);
    let actions = trajectory.actions.clone().reshape([steps * games]);
    let logprobs = Categorical::new(policy.logits(obs)).logprob(actions);
    let old = trajectory.logprobs.clone().reshape([steps * games]);
    for (new, old) in floats(logprobs).iter().zip(floats(old)) {
        assert!((new - old).abs() < 1e-5, "log-probability {new}, was {old}");
    }
    let mask = trajectory.mask(false);
    let advantages = trajectory.rewards.clone() - 0.3;
    let played = PlayedIteration { advantages, mask, trajectory };
    let (_, means) = updated(policy, config, &played);
    assert!(means[0].abs() < 1e-6, "approx_kl {}", means[0]);
    assert_eq!(means[1], 0.0, "clip_fraction");
    assert!(means[3].abs() < 1e-6, "reference_kl {}", means[3]);
    assert!(means[2] > 0.1 && means[5] > 0.0, "{means:?}");
}

#[test]
fn the_first_minibatch_has_ratio_one() {
    let game = CartPole::default();
    let mut config = standing_still(train_config(LossType::Dapo));
    config.rollout.num_steps = 12;
    config.rollout.learn_steps = 12;
    let keys = RolloutKeys::new(9);
    let policy = perceptron(4, &[16], 2, &cpu());
    let native = NativeRollout::new(game, &config.rollout, keys).collect(
        &NativeMlp::new(&policy),
        0,
        &cpu(),
    );
    assert_ratio_one(&policy, native, &config);
    let stepwise = StepwiseRollout::new(game, &config.rollout, keys, &cpu())
        .collect(&policy.clone().into(), 0);
    assert_ratio_one(&policy, stepwise, &config);
    let Some(device) = adapter() else { return };
    let policy = perceptron(4, &[16], 2, &device);
    let stepwise = StepwiseRollout::new(game, &config.rollout, keys, &device)
        .collect(&policy.clone().into(), 0);
    assert_ratio_one(&policy, stepwise, &config);
}

/// A policy that records the first feature of every observation it evaluates.
#[derive(Module, Debug)]
struct Spy {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    seen: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Memoryless for Spy {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let [batch, actions] = obs.dims();
        let first = floats(obs.clone().without_autodiff().slice([0..batch, 0..1]));
        let games = first.iter().map(|x| *x as usize).collect();
        self.seen.lock().unwrap().push(games);
        obs * self.weight.val().reshape([1, actions])
    }
}

#[test]
fn an_epoch_takes_every_game_once() {
    let device = cpu();
    let (steps, games) = (3, 30);
    let rows = || Tensor::<2>::zeros([steps, games], &device);
    // The first feature of an observation is the index of its game.
    let obs: Vec<f32> = (0..steps * games).flat_map(|i| [(i % games) as f32, 1.0]).collect();
    let trajectory = Trajectory {
        obs: Tensor::from_data(TensorData::new(obs, [steps, games, 2]), &device),
        actions: Tensor::zeros([steps, games], &device),
        logprobs: rows(),
        rewards: rows(),
        terminated: rows(),
        truncated: rows(),
        scores: rows(),
        memory: None,
        elapsed: None,
        legal: None,
    };
    let mut config = TrainConfig::for_game("any");
    for (minibatches, parts) in [(1, 1), (1, 4), (5, 1), (3, 2), (2, 7), (30, 1)] {
        config.update.update_epochs = 3;
        config.update.num_minibatches = minibatches;
        config.update.gradient_accumulation_steps = parts;
        let spy = Spy {
            weight: Param::from_data(TensorData::from([0.01f32, 0.1]), &device),
            seen: Arc::default(),
        };
        let seen = spy.seen.clone();
        let mut learner = AutodiffLearner::new(spy, &config);
        let mut orders = Vec::new();
        for iteration in 0..2 {
            learner.update(&trajectory, &rows(), &(rows() + 1.0), iteration).unwrap();
            let calls = std::mem::take(&mut *seen.lock().unwrap());
            assert_eq!(calls.len(), 3 * minibatches * parts);
            for epoch in calls.chunks(minibatches * parts) {
                let mut order = Vec::new();
                for minibatch in epoch.chunks(parts) {
                    let start = order.len();
                    for part in minibatch {
                        // All steps of a game are in the same part, in order.
                        let (first, rest) = part.split_at(part.len() / steps);
                        assert!(rest.chunks(first.len()).all(|row| row == first));
                        order.extend_from_slice(first);
                    }
                    assert_eq!(order.len() - start, games / minibatches);
                }
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..games).collect::<Vec<_>>());
                orders.push(order);
            }
        }
        // If the order matters, every epoch and iteration has a different one.
        if minibatches > 1 {
            orders.sort_unstable();
            orders.dedup();
            assert_eq!(orders.len(), 6, "{minibatches} minibatches, {parts} parts");
        }
    }
}
