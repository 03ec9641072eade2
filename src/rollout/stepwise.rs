//! Rollouts on any device, step by step: the policy as any Burn module, the rules as a kernel.
//!
//! On a CubeCL device nothing is read back: state, observations and trajectory stay where they are.
//! On Burn's CPU backends, which have no kernels, the same rules run natively between the steps.

#[cfg(feature = "kernels")]
use super::kernels::Buffers;
use super::native::observe;
#[cfg(feature = "kernels")]
use super::seat_kernels::{download_seats, upload_seats};
use super::seats::{self, Seat};
use super::{RolloutKeys, SeatsError, action_key, action_uniform};
use crate::config::RolloutConfig;
#[cfg(feature = "kernels")]
use crate::config::Start;
use crate::data::Trajectory;
use crate::env::Rules;
use crate::model::{LANES, Policy, sample};
use burn::cubecl::future::block_on;
use burn::tensor::{Device, Int, Tensor, TensorData};
#[cfg(feature = "kernels")]
use burn_cubecl::tensor::CubeTensor;

/// The games of a run on one device.
#[derive(Clone, Debug)]
pub struct StepwiseRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    branches: Branches<G>,
}

/// Where the groups go on in the next iteration.
#[derive(Clone, Debug)]
enum Branches<G: Rules> {
    Host(Vec<Seat<G>>),
    #[cfg(feature = "kernels")]
    Device(Option<Box<CubeTensor>>),
}

impl<G: Rules> StepwiseRollout<G> {
    /// No game is started before the first rollout.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        #[cfg(feature = "kernels")]
        let branches = if crate::device::has_kernels(&device) {
            Branches::Device(None)
        } else {
            Branches::Host(Vec::new())
        };
        #[cfg(not(feature = "kernels"))]
        let branches = Branches::Host(Vec::new());
        Self { game, config: config.clone(), keys, device, branches }
    }

    /// Plays `num_steps` steps of every game.
    pub fn collect<P: Policy>(&mut self, policy: &P, iteration: u32) -> Trajectory {
        let keys = self.keys.at(iteration);
        match &self.branches {
            Branches::Host(branches) => {
                let (trajectory, branches) = self.collect_on_host(policy, keys, branches);
                self.branches = Branches::Host(branches);
                trajectory
            }
            #[cfg(feature = "kernels")]
            Branches::Device(branches) => {
                let (trajectory, branches) =
                    self.collect_on_device(policy, keys, branches.as_deref());
                self.branches = Branches::Device(branches.map(Box::new));
                trajectory
            }
        }
    }

    /// Where the groups go on, as words `[seat_words, num_groups]`; none before the first iteration
    /// or where games start at levels. On a device this reads back and waits.
    pub fn export(&self) -> Vec<u32> {
        block_on(self.export_async())
    }

    /// As [`StepwiseRollout::export`], where nothing can be waited for.
    pub async fn export_async(&self) -> Vec<u32> {
        match &self.branches {
            Branches::Host(seats) => seats::export(self.game, seats),
            #[cfg(feature = "kernels")]
            Branches::Device(seats) => download_seats(seats.as_deref()).await,
        }
    }

    /// Goes on with what [`StepwiseRollout::export`] gave.
    ///
    /// # Errors
    /// If the number of words does not fit.
    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        let groups = self.config.num_groups;
        seats::check_len(self.game, groups, words)?;
        match &mut self.branches {
            Branches::Host(seats) => *seats = seats::import(self.game, groups, words)?,
            #[cfg(feature = "kernels")]
            Branches::Device(seats) => {
                *seats = (!words.is_empty())
                    .then(|| Box::new(upload_seats(words, groups, &self.device)));
            }
        }
        Ok(())
    }

    #[cfg(feature = "kernels")]
    fn collect_on_device<P: Policy>(
        &self,
        policy: &P,
        keys: RolloutKeys,
        branches: Option<&CubeTensor>,
    ) -> (Trajectory, Option<CubeTensor>) {
        let buffers = Buffers::new(self.game, &self.config, &self.device);
        buffers.deal(branches, keys.level);
        for t in 0..self.config.num_steps {
            buffers.step(policy.logits(buffers.obs()), t, keys.action, keys.branch);
        }
        let (trajectory, branches) = buffers.finish();
        (trajectory, (self.config.start == Start::Branch).then_some(branches))
    }

    fn collect_on_host<P: Policy>(
        &self,
        policy: &P,
        keys: RolloutKeys,
        branches: &[Seat<G>],
    ) -> (Trajectory, Vec<Seat<G>>) {
        let mut seats = seats::deal(self.game, &self.config, keys.level, branches);
        let points = seats::branch_points(&self.config, keys.branch);
        let mut branches: Vec<_> = points.iter().map(|point| seats[point.env]).collect();
        let (steps, envs) = (self.config.num_steps, self.config.num_envs());
        let features = self.game.num_features();
        let mut history = Vec::with_capacity(steps * envs * features);
        let mut actions = Vec::with_capacity(steps * envs);
        let [mut logprobs, mut rewards, mut ends, mut scores] =
            std::array::from_fn(|_| Vec::with_capacity(steps * envs));
        let mut lanes = vec![[0.0; LANES]; features];
        for t in 0..steps {
            let start = history.len();
            for block in seats.chunks(LANES) {
                observe(self.game, block, &mut lanes);
                for lane in 0..block.len() {
                    history.extend(lanes.iter().map(|feature| feature[lane]));
                }
            }
            let obs = TensorData::new(history[start..].to_vec(), [envs, features]);
            let logits = host_floats(policy.logits(Tensor::from_data(obs, &self.device)));
            let rows = logits.chunks_exact(self.game.num_actions());
            for (env, (seat, row)) in seats.iter_mut().zip(rows).enumerate() {
                let u = action_uniform(action_key(keys.action, env as u32), t as u32);
                let sampled = sample(row.iter().copied(), u);
                let played = seat.play(sampled.action, self.game);
                actions.push(sampled.action as i32);
                logprobs.push(sampled.logprob);
                rewards.push(played.reward);
                ends.push(f32::from(played.ended));
                scores.push(played.score);
            }
            for (branch, point) in branches.iter_mut().zip(&points) {
                if point.step == t + 1 {
                    *branch = seats[point.env];
                }
            }
        }
        let device = &self.device;
        let rows = |v: Vec<f32>| Tensor::<2>::from_data(TensorData::new(v, [steps, envs]), device);
        let obs = TensorData::new(history, [steps, envs, features]);
        let trajectory = Trajectory {
            obs: Tensor::from_data(obs, device),
            actions: Tensor::<2, Int>::from_data(TensorData::new(actions, [steps, envs]), device),
            logprobs: rows(logprobs),
            rewards: rows(rewards),
            ends: rows(ends),
            scores: rows(scores),
        };
        (trajectory, branches)
    }
}

/// The numbers of a tensor that lies in host memory.
fn host_floats(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("logits are f32")
}
