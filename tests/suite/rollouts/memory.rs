//! Policy memory in rollouts: it resets with each episode and follows branch points, so that
//! learners evaluate the policy exactly as it acted.

use super::starts::branch_point;
use super::{Host, assert_close, config};
use crate::support::{adapter, cpu, floats};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use grove::data::Trajectory;
use grove::env::{Catch, Env};
use grove::model::{Categorical, Gru, Model, flatten, unflatten};
use grove::rng::{draw, uniform};
use grove::rollout::{RolloutKeys, StepwiseRollout};
use grove::settings::{Activation, GroupStart, PolicyConfig};
use pollster::block_on;

/// A network whose output depends on memory.
fn gru(device: &Device) -> Gru {
    let game = Catch::default();
    let config = PolicyConfig::gru(&[7, 6], Activation::Tanh);
    let gru = Gru::new(game.num_features(), game.num_actions(), &config, 1, device);
    let count = flatten(&gru).dims()[0] as u32;
    let params: Vec<f32> = (0..count).map(|i| uniform(draw(43, i)) * 2.4 - 1.2).collect();
    unflatten(gru, &Tensor::from_floats(params.as_slice(), device))
}

/// Checks that the learner computes the log-probabilities of the rollout.
fn assert_learner_agrees<M: Model<Memory = Tensor<2>>>(policy: &M, trajectory: &Trajectory) {
    let memory = trajectory.memory.clone().unwrap();
    let logits = policy.sequence(trajectory.obs.clone(), trajectory.starts(), memory);
    let [steps, envs, actions] = logits.dims();
    let logits = logits.reshape([steps * envs, actions]);
    let taken = trajectory.actions.clone().reshape([steps * envs]);
    let logprobs = floats(Categorical::new(logits).logprob(taken));
    assert_close(&logprobs, &Host::of(trajectory).logprobs, 1e-5, "log-probabilities");
}

/// Memory of every game after each step, `[num_steps][num_envs * memory_size]`, recomputed from the
/// trajectory.
fn remembered(policy: &Gru, trajectory: &Trajectory, host: &Host) -> Vec<Vec<f32>> {
    let [steps, envs, _] = host.dims;
    let size = policy.memory_size();
    let device = trajectory.obs.device();
    let mut memory = trajectory.memory.clone().expect("it has a memory");
    let (mut all, ends) = (Vec::new(), host.ends());
    for t in 0..steps {
        let obs = trajectory.obs.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
        let mut values = floats(policy.step(obs, memory).1);
        for env in 0..envs {
            if ends[t * envs + env] > 0.5 {
                values[env * size..][..size].fill(0.0);
            }
        }
        memory = Tensor::from_data(TensorData::new(values.clone(), [envs, size]), &device);
        all.push(values);
    }
    all
}

fn assert_learning_sees_the_policy_that_acted(device: &Device) {
    let (game, policy) = (Catch::default(), gru(device));
    let size = policy.memory_size();
    for start in [GroupStart::Branch, GroupStart::Level] {
        let config = config(5, 3, 13, start);
        let seed = 21;
        let mut rollout = StepwiseRollout::new(game, &config, RolloutKeys::new(seed), device);
        let mut branches: Option<Vec<f32>> = None;
        for iteration in 0..3 {
            let trajectory = rollout.collect(&policy.clone().into(), iteration);
            let host = Host::of(&trajectory);
            assert!(host.ends().iter().any(|end| *end > 0.5), "episodes end on the way");
            // The initial memory is that of the branch point, or that of a new episode.
            let first = floats(trajectory.memory.clone().unwrap());
            let fresh = vec![0.0; config.num_groups * size];
            let want = branches.as_ref().unwrap_or(&fresh).chunks(size);
            let want: Vec<f32> = want.flat_map(|group| group.repeat(config.group_size)).collect();
            assert_close(&first, &want, 1e-5, "memory at the start");
            assert_learner_agrees(&policy, &trajectory);
            // Memory at the branch points.
            let exported = block_on(rollout.export_memory_async());
            if start == GroupStart::Level {
                assert!(exported.is_empty());
                continue;
            }
            let all = remembered(&policy, &trajectory, &host);
            let want = (0..config.num_groups).flat_map(|group| {
                let (step, member) = branch_point(&config, seed, iteration, group);
                let env = group * config.group_size + member;
                all[step - 1][env * size..][..size].to_vec()
            });
            let want: Vec<f32> = want.collect();
            assert_close(&exported, &want, 1e-5, "memory of the branches");
            assert!(want.iter().any(|x| x.abs() > 0.01));
            branches = Some(exported);
        }
    }
}

#[test]
fn on_the_cpu_learning_sees_the_policy_that_acted() {
    assert_learning_sees_the_policy_that_acted(&cpu());
}

#[test]
fn on_an_adapter_learning_sees_the_policy_that_acted() {
    let Some(device) = adapter() else { return };
    assert_learning_sees_the_policy_that_acted(&device);
}

/// A network that keeps the observation itself, not a copy of it, until the next step.
#[derive(Module, Debug)]
struct Last {
    weight: Param<Tensor<2>>,
}

impl Model for Last {
    type Memory = Tensor<2>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::zeros([batch, self.weight.dims()[0]], device)
    }

    fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        (memory.matmul(self.weight.val()), obs)
    }
}

fn assert_last_observation_is_kept(device: &Device) {
    let game = Catch::default();
    let shape = [game.num_features(), game.num_actions()];
    let weights: Vec<f32> =
        (0..shape[0] * shape[1]).map(|i| uniform(draw(47, i as u32)) * 4.0 - 2.0).collect();
    let policy = Last { weight: Param::from_data(TensorData::new(weights, shape), device) };
    let config = config(5, 3, 13, GroupStart::Level);
    let mut rollout = StepwiseRollout::new(game, &config, RolloutKeys::new(3), device);
    let trajectory = rollout.collect(&policy.clone().into(), 0);
    assert_learner_agrees(&policy, &trajectory);
}

#[test]
fn on_the_cpu_the_last_observation_is_kept() {
    assert_last_observation_is_kept(&cpu());
}

#[test]
fn on_an_adapter_the_last_observation_is_kept() {
    let Some(device) = adapter() else { return };
    assert_last_observation_is_kept(&device);
}
