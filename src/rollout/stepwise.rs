//! Rollouts on any device, step by step: the policy as any Burn module, the rules as a kernel.
//!
//! On a CubeCL device nothing is read back: state, observations and trajectory stay where they are.
//! On Burn's CPU backends, which have no kernels, the same rules run natively between the steps.

#[cfg(feature = "kernels")]
use super::kernels::{self, Buffers, Deal};
use super::native::observe;
use super::seats::{self, Seat};
use super::{RolloutKeys, SeatsError, action_uniform};
use crate::config::RolloutConfig;
#[cfg(feature = "kernels")]
use crate::config::Start;
use crate::env::Rules;
use crate::policy::{LANES, Policy, sample};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// The games of a run on one device.
#[derive(Debug)]
pub struct StepwiseRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    seats: Seats<G>,
}

/// The games between two iterations.
#[derive(Debug)]
enum Seats<G: Rules> {
    Host(Vec<Seat<G>>),
    #[cfg(feature = "kernels")]
    Device(Option<burn_cubecl::tensor::CubeTensor>),
}

impl<G: Rules> StepwiseRollout<G> {
    /// No game is started before the first rollout.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        #[cfg(feature = "kernels")]
        let seats = if crate::device::has_kernels(&device) {
            Seats::Device(None)
        } else {
            Seats::Host(Vec::new())
        };
        #[cfg(not(feature = "kernels"))]
        let seats = Seats::Host(Vec::new());
        Self {
            game,
            config: config.clone(),
            keys,
            device,
            seats,
        }
    }

    /// Plays `num_steps` steps of every game.
    pub fn collect<P: Policy>(&mut self, policy: &P, iteration: u32) -> Trajectory {
        match &self.seats {
            Seats::Host(last) => {
                let last = seats::deal(self.game, &self.config, &self.keys, iteration, last);
                let (trajectory, seats) = self.collect_on_host(policy, iteration, last);
                self.seats = Seats::Host(seats);
                trajectory
            }
            #[cfg(feature = "kernels")]
            Seats::Device(last) => {
                let (trajectory, seats) = self.collect_on_device(policy, iteration, last.as_ref());
                self.seats = Seats::Device(Some(seats));
                trajectory
            }
        }
    }

    /// The games between two iterations, as words `[seat_words, num_envs]`; none before the first.
    /// On a device this reads back.
    pub fn export(&self) -> Vec<u32> {
        match &self.seats {
            Seats::Host(seats) => seats::export(self.game, seats),
            #[cfg(feature = "kernels")]
            Seats::Device(seats) => seats
                .as_ref()
                .map(kernels::download_seats)
                .unwrap_or_default(),
        }
    }

    /// Goes on with the games that [`StepwiseRollout::export`] gave.
    ///
    /// # Errors
    /// If their number does not fit.
    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        let num_envs = self.config.num_envs();
        if !words.is_empty() {
            seats::check_len(self.game, num_envs, words)?;
        }
        match &mut self.seats {
            Seats::Host(seats) if words.is_empty() => seats.clear(),
            Seats::Host(seats) => *seats = seats::import(self.game, num_envs, words)?,
            #[cfg(feature = "kernels")]
            Seats::Device(seats) => {
                *seats = (!words.is_empty())
                    .then(|| kernels::upload_seats(words, num_envs, &self.device));
            }
        }
        Ok(())
    }

    #[cfg(feature = "kernels")]
    fn collect_on_device<P: Policy>(
        &self,
        policy: &P,
        iteration: u32,
        last: Option<&burn_cubecl::tensor::CubeTensor>,
    ) -> (Trajectory, burn_cubecl::tensor::CubeTensor) {
        let RolloutConfig {
            group_size,
            num_steps,
            start,
            ..
        } = self.config;
        let num_envs = self.config.num_envs();
        let keys = self.keys.at(iteration);
        let deal = match (start, last) {
            (Start::Level, _) => Deal::Level,
            (Start::Branch, None) => Deal::Staggered,
            (Start::Branch, Some(_)) => Deal::Branch,
        };
        let buffers = Buffers::new(self.game, num_envs, num_steps, &self.device);
        buffers.deal(deal, last, keys.level, keys.branch, group_size);
        for t in 0..num_steps {
            buffers.step(policy.logits(buffers.obs()), t, keys.action);
        }
        let (obs, actions, quantities, seats) = buffers.finish();
        let quantity = |i: usize| {
            quantities
                .clone()
                .slice([i..i + 1, 0..num_steps, 0..num_envs])
                .squeeze_dim::<2>(0)
        };
        let trajectory = Trajectory {
            obs,
            actions,
            logprobs: quantity(0),
            rewards: quantity(1),
            ends: quantity(2),
            scores: quantity(3),
        };
        (trajectory, seats)
    }

    fn collect_on_host<P: Policy>(
        &self,
        policy: &P,
        iteration: u32,
        mut seats: Vec<Seat<G>>,
    ) -> (Trajectory, Vec<Seat<G>>) {
        let (steps, envs) = (self.config.num_steps, self.config.num_envs());
        let features = self.game.num_features();
        let action_key = self.keys.at(iteration).action;
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
                let u = action_uniform(action_key, env as u32, t as u32);
                let sampled = sample(row.iter().copied(), u);
                let played = seat.play(sampled.action, self.game);
                actions.push(sampled.action as i32);
                logprobs.push(sampled.logprob);
                rewards.push(played.reward);
                ends.push(f32::from(played.ended));
                scores.push(played.score);
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
        (trajectory, seats)
    }
}

/// The numbers of a tensor that lies in host memory.
fn host_floats(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("logits are f32")
}
