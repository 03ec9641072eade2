//! The first update of a decoder: autodiff on a device against the hand-written backward pass on
//! the CPU.

use super::training::short_run;
use super::{cpu, doubles};
use burn::tensor::{Device, Tensor, TensorData};
use grove::data::{EpisodeStatus, NativeTrajectory};
use grove::learner::{AutodiffLearner, NativeExperience, NativeLearner, SequenceLearner};
use grove::model::{Decoder, flatten};
use grove::settings::{DecoderConfig, GroupStart, ModelKind, TrainConfig};

/// A small decoder whose context is shorter than an episode of Catch.
pub fn decoder_run(start: GroupStart) -> TrainConfig {
    let mut config = short_run(start);
    config.policy.kind = ModelKind::Decoder;
    config.policy.kind_settings.decoder = DecoderConfig {
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
fn steps_of_games(config: &TrainConfig, device: &Device) -> (Decoder, NativeTrajectory, Vec<f32>) {
    let [steps, games, features, actions] = [11, 6, 7, 3];
    let wave = |i: usize, rate: f32| (i as f32 * rate).sin();
    let policy = Decoder::new(features, actions, &config.policy, 7, device);
    let mut trajectory = NativeTrajectory::default();
    trajectory.resize(games, steps, features);
    let stride = trajectory.obs_stride();
    let mut advantages = Vec::new();
    for slot in 0..steps * games {
        let i = slot % steps * games + slot / steps;
        for feature in 0..features {
            trajectory.obs[slot * stride + feature] = wave(i * features + feature, 1.7);
        }
        trajectory.actions[slot] = (i * 7 % 5 % actions) as i32;
        trajectory.logprobs[slot] = wave(i, 0.3) * 0.3 - 1.1;
        trajectory.statuses[slot] = EpisodeStatus::new(i % 17 == 5, false);
        advantages.push(wave(i, 2.3));
    }
    // Initial memory with 0 to 7 previous steps.
    let size = policy.shape().memory_size();
    trajectory.memory = (0..games * size).map(|i| wave(i, 0.9)).collect();
    let counts = trajectory.memory.iter_mut().step_by(size);
    counts.zip([0.0, 1.0, 3.0, 5.0, 6.0, 7.0]).for_each(|(count, steps)| *count = steps);
    (policy, trajectory, advantages)
}

/// Parameters before and after the first update by autodiff on `device`.
pub async fn first_update(config: &TrainConfig, device: &Device) -> [Vec<f64>; 2] {
    let (policy, trajectory, advantages) = steps_of_games(config, device);
    let shape = [trajectory.num_envs, trajectory.num_steps];
    let advantages = Tensor::<2>::from_data(TensorData::new(advantages, shape), device).transpose();
    let trajectory = trajectory.to_tensors(device);
    let before = doubles(flatten(&policy)).await;
    let mut learner = AutodiffLearner::new(policy, config);
    learner.update(&trajectory, &advantages, &trajectory.mask(true), 0).unwrap();
    [before, doubles(learner.state.params().clone()).await]
}

/// Parameters before and after the first update in host memory.
pub fn first_native_update(config: &TrainConfig) -> [Vec<f64>; 2] {
    let (policy, trajectory, advantages) = steps_of_games(config, &cpu());
    let mut learner = SequenceLearner::new(&policy.into(), config).expect("a built-in network");
    let counts = vec![trajectory.num_steps; trajectory.num_envs];
    let before = learner.params();
    let experience = NativeExperience::new(&trajectory, &advantages, &counts, trajectory.num_steps);
    learner.update(&experience, 0).unwrap();
    [before, learner.params()].map(|params| params.into_iter().map(f64::from).collect())
}

/// A run whose first update is a single step in proportion to the gradient, so that the signs of
/// small gradients do not matter. `parts` is the number of accumulation steps.
pub fn one_step(parts: usize) -> TrainConfig {
    let mut config = decoder_run(GroupStart::Level);
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.gradient_accumulation_steps = parts;
    config.optimizer.adam_epsilon = 1.0;
    config
}

/// Distance between two updates relative to the size of the second.
pub fn relative_distance(got: &[Vec<f64>; 2], [before, want]: &[Vec<f64>; 2]) -> f64 {
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
    let want = first_native_update(&config);
    let off = relative_distance(&first_update(&config, device).await, &want);
    assert!(off < 1e-4, "off by {off}");
    off
}
