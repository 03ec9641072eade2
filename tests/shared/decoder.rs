//! The first update of a decoder: autodiff on a device against the hand-written backward pass on
//! the CPU.

use super::training::short_run;
use super::{cpu, doubles};
use burn::tensor::{Device, Tensor, TensorData};
use grove::data::{HostTrajectory, Trajectory};
use grove::learner::{AutodiffLearner, HostExperience, HostLearner, SequenceLearner};
use grove::model::{Decoder, flatten};
use grove::settings::{DecoderConfig, ModelKind, Start, TrainConfig};

/// A small decoder whose context is shorter than an episode of Catch.
pub fn decoder_run(start: Start) -> TrainConfig {
    let mut config = short_run(start);
    config.policy.kind = ModelKind::Decoder;
    config.policy.own.decoder = DecoderConfig {
        hidden_size: 8,
        num_layers: 2,
        num_heads: 2,
        num_kv_heads: 1,
        intermediate_size: 12,
        context: 5,
    };
    config
}

/// A policy with made-up steps of 6 games, some of which end, and their advantages.
fn steps_of_games(config: &TrainConfig, device: &Device) -> (Decoder, Trajectory, Tensor<2>) {
    let [steps, games, features, actions] = [11, 6, 7, 3];
    let wave = |count: usize, rate: f32| -> Vec<f32> {
        (0..count).map(|i| (i as f32 * rate).sin()).collect()
    };
    let rows = |v: Vec<f32>| Tensor::<2>::from_data(TensorData::new(v, [steps, games]), device);
    let zeros = || Tensor::<2>::zeros([steps, games], device);
    let ends = (0..steps * games).map(|i| f32::from(i % 17 == 5)).collect();
    let policy = Decoder::new(features, actions, &config.policy, 7, device);
    let taken: Vec<i32> = (0..steps * games).map(|i| (i * 7 % 5 % actions) as i32).collect();
    let obs = TensorData::new(wave(steps * games * features, 1.7), [steps, games, features]);
    // Initial memory with 0 to 7 previous steps.
    let size = policy.shape().memory_size();
    let mut memory = wave(games * size, 0.9);
    let counts = memory.iter_mut().step_by(size);
    counts.zip([0.0, 1.0, 3.0, 5.0, 6.0, 7.0]).for_each(|(count, steps)| *count = steps);
    let trajectory = Trajectory {
        obs: Tensor::from_data(obs, device),
        actions: Tensor::from_data(TensorData::new(taken, [steps, games]), device),
        logprobs: rows(wave(steps * games, 0.3).iter().map(|x| x * 0.3 - 1.1).collect()),
        rewards: zeros(),
        terminated: rows(ends),
        truncated: zeros(),
        scores: zeros(),
        memory: Some(Tensor::from_data(TensorData::new(memory, [games, size]), device)),
        elapsed: None,
        legal: None,
    };
    (policy, trajectory, rows(wave(steps * games, 2.3)))
}

/// Parameters before and after the first update by autodiff on `device`.
pub async fn first_update(config: &TrainConfig, device: &Device) -> [Vec<f64>; 2] {
    let (policy, trajectory, advantages) = steps_of_games(config, device);
    let before = doubles(flatten(&policy)).await;
    let mut learner = AutodiffLearner::new(policy, config);
    learner.update(&trajectory, &advantages, &trajectory.mask(true), 0).unwrap();
    [before, doubles(learner.weights.params().clone()).await]
}

/// Parameters before and after the first update in host memory.
pub fn first_host_update(config: &TrainConfig) -> [Vec<f64>; 2] {
    let (policy, trajectory, advantages) = steps_of_games(config, &cpu());
    let mut learner = SequenceLearner::new(&policy.into(), config).expect("a built-in network");
    let trajectory = HostTrajectory::from_tensors(&trajectory);
    let advantages: Vec<f32> = advantages.transpose().into_data().try_into_vec().unwrap();
    let counts = vec![trajectory.num_steps; trajectory.num_envs];
    let before = learner.params();
    let experience = HostExperience::new(&trajectory, &advantages, &counts, trajectory.num_steps);
    learner.update(&experience, 0).unwrap();
    [before, learner.params()].map(|params| params.into_iter().map(f64::from).collect())
}

/// A run whose first update is a single step in proportion to the gradient, so that the signs of
/// small gradients do not matter. `parts` is the number of accumulation steps.
pub fn one_step(parts: usize) -> TrainConfig {
    let mut config = decoder_run(Start::Level);
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.gradient_accumulation_steps = parts;
    config.optimizer.adam_epsilon = 1.0;
    config
}

/// Distance between two updates relative to the size of the second.
pub fn apart(got: &[Vec<f64>; 2], [before, want]: &[Vec<f64>; 2]) -> f64 {
    assert_eq!(&got[0], before);
    let distance =
        |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let change = distance(want, before);
    assert!(change > 1e-4, "{change}");
    distance(&got[1], want) / change
}

/// Checks the first update on `device` against the CPU; returns their relative distance.
pub async fn first_updates(device: &Device) -> f64 {
    let config = one_step(1);
    let want = first_host_update(&config);
    let off = apart(&first_update(&config, device).await, &want);
    assert!(off < 1e-4, "off by {off}");
    off
}
