//! Trajectories in host memory, game by game: the output of CPU rollouts and the input of CPU
//! learners.

use super::{EpisodeStatus, Trajectory};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

/// Steps of `num_envs` games, `num_steps` each; the steps of a game are contiguous.
///
/// Group `g` consists of games `g * group_size..(g + 1) * group_size`. One value is reused over all
/// iterations of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTrajectory {
    /// Number of games.
    pub num_envs: usize,
    /// Steps per game.
    pub num_steps: usize,
    /// Features per observation.
    pub num_features: usize,
    /// Observations before each step: `[num_envs, num_steps, obs_stride]`, zero-padded.
    pub obs: Vec<f32>,
    /// Actions: `[num_envs, num_steps]`.
    pub actions: Vec<i32>,
    /// Log-probabilities of the actions under the behaviour policy: `[num_envs, num_steps]`.
    pub logprobs: Vec<f32>,
    /// Rewards: `[num_envs, num_steps]`.
    pub rewards: Vec<f32>,
    /// Episode status after each step: `[num_envs, num_steps]`.
    pub ends: Vec<EpisodeStatus>,
    /// Score of the episode that ended with the step, else 0: `[num_envs, num_steps]`. Empty unless
    /// enabled by [`HostTrajectory::keep_scores`], because learners do not use them.
    pub scores: Vec<f32>,
    /// Memory of the policy before the first step: `[num_envs, memory_size]`. Empty for policies
    /// without memory.
    pub memory: Vec<f32>,
    /// Steps of the current episode that were played before the first step: `[num_envs]`. Empty if episodes begin with the first
    /// step.
    pub elapsed: Vec<u32>,
    /// Number of actions with a mask, at most 32; 0 if all actions are always legal.
    pub masked_actions: usize,
    /// Legal actions of each step as a bit mask, bit 0 for action 0: `[num_envs, num_steps]`. Empty
    /// if all actions are always legal.
    pub legal: Vec<u32>,
}

/// Observations are padded to a multiple of this many features.
pub const OBS_MULTIPLE: usize = 4;

/// Sums over the steps of a game, or of some games.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GameSums {
    /// Scores of the episodes that ended.
    pub scores: f64,
    /// Number of the episodes that ended.
    pub episodes: f64,
    /// Number of their steps ([`HostTrajectory::ended_steps`]).
    pub ended_steps: f64,
    /// Rewards of the steps that count ([`HostTrajectory::length`]).
    pub rewards: f64,
    /// Number of the steps that count.
    pub steps: f64,
}

impl GameSums {
    /// The fields in order; [`GameSums::from`] is the inverse.
    pub(crate) fn numbers(&self) -> [f64; 5] {
        let Self { scores, episodes, ended_steps, rewards, steps } = *self;
        [scores, episodes, ended_steps, rewards, steps]
    }
}

impl From<[f64; 5]> for GameSums {
    fn from([scores, episodes, ended_steps, rewards, steps]: [f64; 5]) -> Self {
        Self { scores, episodes, ended_steps, rewards, steps }
    }
}

/// Number of steps of the episodes of a game that ended, by its status after each step; `elapsed` steps of the first one were
/// played before.
pub(crate) fn ended_steps(ends: &[EpisodeStatus], elapsed: u32) -> usize {
    let last = ends.iter().rposition(|end| end.ended());
    last.map_or(0, |last| elapsed as usize + last + 1)
}

impl HostTrajectory {
    /// Resizes the buffers. If a size changes, the previous contents become invalid.
    pub fn resize(&mut self, num_envs: usize, num_steps: usize, num_features: usize) {
        if (num_envs, num_steps, num_features) == (self.num_envs, self.num_steps, self.num_features)
        {
            return;
        }
        (self.num_envs, self.num_steps, self.num_features) = (num_envs, num_steps, num_features);
        let steps = num_envs * num_steps;
        // Zero-filled so that the padding, which is never written, is 0.
        self.obs.clear();
        self.obs.resize(steps * self.obs_stride(), 0.0);
        self.actions.resize(steps, 0);
        self.ends.resize(steps, EpisodeStatus::Running);
        self.logprobs.resize(steps, 0.0);
        self.rewards.resize(steps, 0.0);
        if !self.scores.is_empty() {
            self.keep_scores();
        }
        self.mask_actions(self.masked_actions);
    }

    /// Enables the recording of scores.
    pub fn keep_scores(&mut self) {
        self.scores.resize(self.num_envs * self.num_steps, 0.0);
    }

    /// Enables masks of `num_actions` actions; 0 disables them.
    ///
    /// # Panics
    /// If there are more than 32.
    pub fn mask_actions(&mut self, num_actions: usize) {
        assert!(num_actions <= 32, "an action mask has at most 32 actions");
        self.masked_actions = num_actions;
        let steps = if num_actions == 0 { 0 } else { self.num_envs * self.num_steps };
        self.legal.resize(steps, 0);
    }

    /// Distance between observations: the number of features rounded up to [`OBS_MULTIPLE`].
    pub fn obs_stride(&self) -> usize {
        self.num_features.next_multiple_of(OBS_MULTIPLE)
    }

    /// Number of steps of game `env` that count: all with `auto_reset`; otherwise up to and
    /// including the first end of an episode.
    pub fn length(&self, env: usize, auto_reset: bool) -> usize {
        let ends = &self.ends[env * self.num_steps..][..self.num_steps];
        if auto_reset {
            return self.num_steps;
        }
        ends.iter().position(|end| end.ended()).map_or(self.num_steps, |t| t + 1)
    }

    /// Number of steps of the ended episodes of game `env`, including steps before the first recorded one; 0 if none
    /// ended.
    pub fn ended_steps(&self, env: usize) -> usize {
        let ends = &self.ends[env * self.num_steps..][..self.num_steps];
        ended_steps(ends, self.elapsed.get(env).copied().unwrap_or(0))
    }

    /// Copies a trajectory from tensors on any device.
    ///
    /// # Panics
    /// If the shapes of the tensors are inconsistent.
    pub fn from_tensors(trajectory: &Trajectory) -> Self {
        let [steps, envs, features] = trajectory.dims();
        let mut host = Self::default();
        host.resize(envs, steps, features);
        let stride = host.obs_stride();
        let obs = floats(trajectory.obs.clone());
        for (slot, to) in host.obs.chunks_exact_mut(stride).enumerate() {
            let from = (slot % steps * envs + slot / steps) * features;
            to[..features].copy_from_slice(&obs[from..from + features]);
        }
        host.actions = transposed(&integers(trajectory.actions.clone()), steps);
        host.logprobs = game_major(&trajectory.logprobs);
        host.rewards = game_major(&trajectory.rewards);
        let terminated = game_major(&trajectory.terminated);
        let both = terminated.iter().zip(game_major(&trajectory.truncated));
        host.ends = both.map(|(end, cut)| EpisodeStatus::new(*end > 0.5, cut > 0.5)).collect();
        host.scores = game_major(&trajectory.scores);
        host.memory = trajectory.memory.clone().map_or_else(Vec::new, floats);
        let elapsed = trajectory.elapsed.clone().map_or_else(Vec::new, floats);
        host.elapsed = elapsed.into_iter().map(|steps| steps as u32).collect();
        if let Some(legal) = &trajectory.legal {
            let [_, _, actions] = legal.dims();
            host.mask_actions(actions);
            host.legal = transposed(&bit_masks(legal), steps);
        }
        host
    }

    /// Copies the trajectory to tensors on `device`.
    pub fn to_tensors(&self, device: &Device) -> Trajectory {
        let (steps, envs, features) = (self.num_steps, self.num_envs, self.num_features);
        let stride = self.obs_stride();
        let mut obs = vec![0.0f32; steps * envs * features];
        obs.par_chunks_mut(envs * features).enumerate().for_each(|(t, row)| {
            for (env, to) in row.chunks_exact_mut(features).enumerate() {
                let from = (env * steps + t) * stride;
                to.copy_from_slice(&self.obs[from..from + features]);
            }
        });
        let rows = |values: &[f32]| upload_time_major(values, envs, device);
        let ends = |kind: EpisodeStatus| {
            rows(&self.ends.iter().map(|end| f32::from(*end == kind)).collect::<Vec<_>>())
        };
        let legal = (self.masked_actions > 0).then(|| {
            let bit = |word: u32, a: usize| (word >> a & 1) as f32;
            let words = transposed(&self.legal, envs);
            let all = words.iter().flat_map(|word| (0..self.masked_actions).map(|a| bit(*word, a)));
            let shape = [steps, envs, self.masked_actions];
            Tensor::from_data(TensorData::new(all.collect::<Vec<f32>>(), shape), device)
        });
        let obs = TensorData::new(obs, [steps, envs, features]);
        let actions = TensorData::new(transposed(&self.actions, envs), [steps, envs]);
        Trajectory {
            obs: Tensor::from_data(staged(obs, device), device),
            actions: Tensor::<2, Int>::from_data(staged(actions, device), device),
            logprobs: rows(&self.logprobs),
            rewards: rows(&self.rewards),
            terminated: ends(EpisodeStatus::Terminated),
            truncated: ends(EpisodeStatus::Truncated),
            scores: if self.scores.is_empty() {
                Tensor::zeros([steps, envs], device)
            } else {
                rows(&self.scores)
            },
            memory: (!self.memory.is_empty()).then(|| {
                let shape = [envs, self.memory.len() / envs];
                Tensor::from_data(TensorData::new(self.memory.clone(), shape), device)
            }),
            elapsed: (!self.elapsed.is_empty()).then(|| {
                let steps: Vec<f32> = self.elapsed.iter().map(|steps| *steps as f32).collect();
                Tensor::from_floats(steps.as_slice(), device)
            }),
            legal,
        }
    }
}

/// Moves data to pinned memory if the runtime of `device` supports it, so that the upload does not
/// block; otherwise returns them unchanged.
pub(crate) fn staged(mut data: TensorData, device: &Device) -> TensorData {
    device.staging(std::iter::once(&mut data));
    data
}

/// Reads a tensor `[num_steps, num_envs]` as numbers `[num_envs, num_steps]`.
pub(crate) fn game_major(tensor: &Tensor<2>) -> Vec<f32> {
    let [steps, _] = tensor.dims();
    transposed(&floats(tensor.clone()), steps)
}

/// Uploads numbers `[num_envs, num_steps]` as a tensor `[num_steps, num_envs]`.
pub(crate) fn upload_time_major(values: &[f32], num_envs: usize, device: &Device) -> Tensor<2> {
    let shape = [values.len() / num_envs, num_envs];
    let data = TensorData::new(transposed(values, num_envs), shape);
    Tensor::from_data(staged(data, device), device)
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transposed<T: Copy + Default + Send + Sync>(values: &[T], rows: usize) -> Vec<T> {
    let columns = values.len() / rows;
    let mut result = vec![T::default(); values.len()];
    result.par_chunks_mut(rows).enumerate().for_each(|(column, to)| {
        for (row, to) in to.iter_mut().enumerate() {
            *to = values[row * columns + column];
        }
    });
    result
}

pub(crate) fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("all tensors are f32")
}

fn integers(tensor: Tensor<2, Int>) -> Vec<i32> {
    tensor.into_data().convert::<i32>().try_into_vec().expect("converted to i32")
}

/// Converts action masks, `[num_steps, games, num_actions]`, to a bit mask per step, bit 0 for action 0.
fn bit_masks(legal: &Tensor<3>) -> Vec<u32> {
    let [_, _, actions] = legal.dims();
    let bits = |row: &[f32]| row.iter().rev().fold(0u32, |bits, x| bits << 1 | u32::from(*x > 0.5));
    floats(legal.clone()).chunks_exact(actions).map(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 steps of 2 games with 5 features; the first game ends with its second step.
    fn tensors() -> Trajectory {
        let device = Device::flex();
        let rows = |values: [[f32; 2]; 3]| Tensor::<2>::from_floats(values, &device);
        let obs: Vec<f32> = (0..30).map(|i| i as f32).collect();
        Trajectory {
            obs: Tensor::from_data(TensorData::new(obs, [3, 2, 5]), &device),
            actions: Tensor::from_ints([[0, 1], [2, 3], [4, 5]], &device),
            logprobs: rows([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
            rewards: rows([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
            terminated: rows([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
            truncated: rows([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
            scores: rows([[0.0, 0.0], [4.0, 0.0], [0.0, 12.0]]),
            legal: Some(Tensor::from_floats(
                [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]],
                &device,
            )),
            memory: None,
            elapsed: Some(Tensor::from_floats([7.0, 4.0], &device)),
        }
    }

    #[test]
    fn tensors_go_to_the_host_and_back() {
        let tensors = tensors();
        let host = HostTrajectory::from_tensors(&tensors);
        // Game 1 before its step 2.
        assert_eq!(host.obs[5 * 8..6 * 8], [25.0, 26.0, 27.0, 28.0, 29.0, 0.0, 0.0, 0.0]);
        assert_eq!(host.actions, [0, 2, 4, 1, 3, 5]);
        assert_eq!(host.rewards, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        let (none, ended, cut) =
            (EpisodeStatus::Running, EpisodeStatus::Terminated, EpisodeStatus::Truncated);
        assert_eq!(host.ends, [none, ended, none, none, none, cut]);
        assert_eq!(host.legal, [0b01, 0b11, 0b10, 0b10, 0b01, 0b11]);
        let back = host.to_tensors(&Device::flex());
        for (got, want) in [
            (back.logprobs, tensors.logprobs),
            (back.rewards, tensors.rewards),
            (back.terminated, tensors.terminated),
            (back.truncated, tensors.truncated),
            (back.scores, tensors.scores),
        ] {
            assert_eq!(got.into_data(), want.into_data());
        }
        assert_eq!(back.obs.into_data(), tensors.obs.into_data());
        let legal = [back.legal, tensors.legal].map(|legal| legal.expect("masked").into_data());
        assert_eq!(legal[0], legal[1]);
        assert!(back.actions.into_data().iter::<i64>().eq([0, 1, 2, 3, 4, 5]));
        assert!(back.elapsed.expect("it continues").into_data().iter::<f32>().eq([7.0, 4.0]));
    }

    #[test]
    fn steps_of_ended_episodes_are_those_up_to_the_last_end() {
        let steps = |tensors: &Trajectory| {
            let host = HostTrajectory::from_tensors(tensors);
            let steps: Vec<f32> = (0..2).map(|env| host.ended_steps(env) as f32).collect();
            assert_eq!(floats(tensors.ended_steps()), steps);
            steps
        };
        let mut tensors = tensors();
        assert_eq!(steps(&tensors), [7.0 + 2.0, 4.0 + 3.0]);
        // Only the first end of the second game is left.
        tensors.truncated = tensors.truncated.zeros_like();
        assert_eq!(steps(&tensors), [7.0 + 2.0, 0.0]);
        tensors.elapsed = None;
        assert_eq!(steps(&tensors), [2.0, 0.0]);
    }

    #[test]
    fn a_game_counts_up_to_its_first_end() {
        let host = HostTrajectory::from_tensors(&tensors());
        assert_eq!([host.length(0, false), host.length(1, false), host.length(0, true)], [2, 3, 3]);
    }
}
