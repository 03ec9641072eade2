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
pub struct NativeTrajectory {
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
    pub statuses: Vec<EpisodeStatus>,
    /// Score of the episode that ended with the step, else 0: `[num_envs, num_steps]`. Empty unless
    /// enabled by [`NativeTrajectory::enable_scores`], because learners do not use them.
    pub scores: Vec<f32>,
    /// Memory of the policy before the first step: `[num_envs, memory_size]`. Empty for policies
    /// without memory.
    pub memory: Vec<f32>,
    /// Steps of the current episode that were played before the first step: `[num_envs]`. Empty if episodes begin with
    /// the first step.
    pub elapsed: Vec<u32>,
    /// Number of actions with a mask, at most 32; 0 if all actions are always legal.
    pub num_masked_actions: usize,
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
    /// Number of their steps ([`NativeTrajectory::ended_steps`]).
    pub ended_steps: f64,
    /// Rewards of the steps that count ([`NativeTrajectory::counted_steps`]).
    pub rewards: f64,
    /// Number of the steps that count.
    pub steps: f64,
}

impl GameSums {
    /// The fields in order; the inverse of [`GameSums::from`].
    pub(crate) fn to_array(self) -> [f64; 5] {
        let Self { scores, episodes, ended_steps, rewards, steps } = self;
        [scores, episodes, ended_steps, rewards, steps]
    }
}

impl From<[f64; 5]> for GameSums {
    fn from([scores, episodes, ended_steps, rewards, steps]: [f64; 5]) -> Self {
        Self { scores, episodes, ended_steps, rewards, steps }
    }
}

/// Number of steps of the episodes of a game that ended, by its status after each step; `elapsed` steps of the first
/// one were played before. Without `auto_reset` the first episode alone counts.
pub(crate) fn ended_steps(statuses: &[EpisodeStatus], elapsed: u32, auto_reset: bool) -> usize {
    let mut statuses = statuses.iter();
    let last = match auto_reset {
        true => statuses.rposition(|status| status.has_ended()),
        false => statuses.position(|status| status.has_ended()),
    };
    last.map_or(0, |last| elapsed as usize + last + 1)
}

impl NativeTrajectory {
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
        self.statuses.resize(steps, EpisodeStatus::Running);
        self.logprobs.resize(steps, 0.0);
        self.rewards.resize(steps, 0.0);
        if !self.scores.is_empty() {
            self.enable_scores();
        }
        self.enable_masks(self.num_masked_actions);
    }

    /// Enables the recording of scores.
    pub fn enable_scores(&mut self) {
        self.scores.resize(self.num_envs * self.num_steps, 0.0);
    }

    /// Enables masks of `num_actions` actions; 0 disables them.
    ///
    /// # Panics
    /// If there are more than 32.
    pub fn enable_masks(&mut self, num_actions: usize) {
        assert!(num_actions <= 32, "an action mask has at most 32 actions");
        self.num_masked_actions = num_actions;
        let steps = if num_actions == 0 { 0 } else { self.num_envs * self.num_steps };
        self.legal.resize(steps, 0);
    }

    /// Distance between observations: the number of features rounded up to [`OBS_MULTIPLE`].
    pub fn obs_stride(&self) -> usize {
        self.num_features.next_multiple_of(OBS_MULTIPLE)
    }

    /// Number of steps of game `env` that count: all with `auto_reset`; otherwise up to and
    /// including the first end of an episode.
    pub fn counted_steps(&self, env: usize, auto_reset: bool) -> usize {
        let statuses = &self.statuses[env * self.num_steps..][..self.num_steps];
        if auto_reset {
            return self.num_steps;
        }
        statuses.iter().position(|status| status.has_ended()).map_or(self.num_steps, |t| t + 1)
    }

    /// Number of steps of the ended episodes of game `env`, including steps before the first recorded one; 0 if none
    /// ended. Without `auto_reset` the first episode alone counts.
    pub fn ended_steps(&self, env: usize, auto_reset: bool) -> usize {
        let statuses = &self.statuses[env * self.num_steps..][..self.num_steps];
        ended_steps(statuses, self.elapsed.get(env).copied().unwrap_or(0), auto_reset)
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
        let flags = |kind: EpisodeStatus| {
            rows(&self.statuses.iter().map(|status| f32::from(*status == kind)).collect::<Vec<_>>())
        };
        let legal = (self.num_masked_actions > 0).then(|| {
            let bit = |word: u32, a: usize| (word >> a & 1) as f32;
            let words = transpose(&self.legal, envs);
            let bits =
                words.iter().flat_map(|word| (0..self.num_masked_actions).map(|a| bit(*word, a)));
            let shape = [steps, envs, self.num_masked_actions];
            Tensor::from_data(TensorData::new(bits.collect::<Vec<f32>>(), shape), device)
        });
        let obs = TensorData::new(obs, [steps, envs, features]);
        let actions = TensorData::new(transpose(&self.actions, envs), [steps, envs]);
        Trajectory {
            obs: Tensor::from_data(stage(obs, device), device),
            actions: Tensor::<2, Int>::from_data(stage(actions, device), device),
            logprobs: rows(&self.logprobs),
            rewards: rows(&self.rewards),
            terminated: flags(EpisodeStatus::Terminated),
            truncated: flags(EpisodeStatus::Truncated),
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
/// block; otherwise returns it unchanged.
pub(crate) fn stage(mut data: TensorData, device: &Device) -> TensorData {
    device.staging(std::iter::once(&mut data));
    data
}

/// Uploads values `[num_envs, num_steps]` as a tensor `[num_steps, num_envs]`.
pub(crate) fn upload_time_major(values: &[f32], num_envs: usize, device: &Device) -> Tensor<2> {
    let shape = [values.len() / num_envs, num_envs];
    let data = TensorData::new(transpose(values, num_envs), shape);
    Tensor::from_data(stage(data, device), device)
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transpose<T: Copy + Default + Send + Sync>(values: &[T], rows: usize) -> Vec<T> {
    let columns = values.len() / rows;
    let mut result = vec![T::default(); values.len()];
    result.par_chunks_mut(rows).enumerate().for_each(|(column, to)| {
        for (row, to) in to.iter_mut().enumerate() {
            *to = values[row * columns + column];
        }
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter().collect()
    }

    /// 3 steps of 2 games with 5 features; the first game ends with its second step.
    fn games() -> NativeTrajectory {
        let mut games = NativeTrajectory::default();
        games.resize(2, 3, 5);
        for (slot, obs) in games.obs.chunks_exact_mut(8).enumerate() {
            let first = (slot % 3 * 2 + slot / 3) * 5;
            (0..5).for_each(|i| obs[i] = (first + i) as f32);
        }
        let (none, ended, cut) =
            (EpisodeStatus::Running, EpisodeStatus::Terminated, EpisodeStatus::Truncated);
        NativeTrajectory {
            actions: vec![0, 2, 4, 1, 3, 5],
            logprobs: vec![0.1, 0.3, 0.5, 0.2, 0.4, 0.6],
            rewards: vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0],
            statuses: vec![none, ended, none, none, none, cut],
            scores: vec![0.0, 4.0, 0.0, 0.0, 0.0, 12.0],
            elapsed: vec![7, 4],
            num_masked_actions: 2,
            legal: vec![0b01, 0b11, 0b10, 0b10, 0b01, 0b11],
            ..games
        }
    }

    #[test]
    fn a_trajectory_goes_to_tensors() {
        let tensors = games().to_tensors(&Device::flex());
        assert_eq!(tensors.dims(), [3, 2, 5]);
        assert!(floats(tensors.obs).into_iter().eq((0..30).map(|i| i as f32)));
        for (got, want) in [
            (tensors.logprobs, [[0.1f32, 0.2], [0.3, 0.4], [0.5, 0.6]]),
            (tensors.rewards, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
            (tensors.terminated, [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
            (tensors.truncated, [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),
            (tensors.scores, [[0.0, 0.0], [4.0, 0.0], [0.0, 12.0]]),
        ] {
            assert_eq!(got.into_data(), TensorData::from(want));
        }
        let legal =
            [[[1.0f32, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]];
        assert_eq!(tensors.legal.expect("masked").into_data(), TensorData::from(legal));
        assert!(tensors.actions.into_data().iter::<i64>().eq([0, 1, 2, 3, 4, 5]));
        assert_eq!(floats(tensors.elapsed.expect("it continues")), [7.0, 4.0]);
    }

    #[test]
    fn steps_of_ended_episodes_are_those_up_to_the_last_end_that_counts() {
        let steps_up_to = |games: &NativeTrajectory, auto_reset| {
            let steps = (0..2).map(|env| games.ended_steps(env, auto_reset) as f32);
            let steps: Vec<f32> = steps.collect();
            let tensors = games.to_tensors(&Device::flex());
            assert_eq!(floats(tensors.ended_steps(auto_reset)), steps);
            steps
        };
        let ended_steps = |games: &NativeTrajectory| steps_up_to(games, true);
        let mut games = games();
        assert_eq!(ended_steps(&games), [7.0 + 2.0, 4.0 + 3.0]);
        // Only the first end of the second game is left.
        games.statuses[5] = EpisodeStatus::Running;
        assert_eq!(ended_steps(&games), [7.0 + 2.0, 0.0]);
        games.elapsed.clear();
        assert_eq!(ended_steps(&games), [2.0, 0.0]);
        games.statuses = vec![EpisodeStatus::Terminated; 6];
        assert_eq!((ended_steps(&games), steps_up_to(&games, false)), (vec![3.0; 2], vec![1.0; 2]));
    }

    #[test]
    fn a_game_counts_up_to_its_first_end() {
        let counted = |env, auto_reset| games().counted_steps(env, auto_reset);
        assert_eq!([counted(0, false), counted(1, false), counted(0, true)], [2, 3, 3]);
    }
}
