//! A trajectory in the host's memory, game by game: what the CPU's threads write and learn from.

use super::{End, Trajectory};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

/// The steps of `num_envs` games, `num_steps` each, those of a game next to each other.
///
/// Game `i` is member `i % group_size` of group `i / group_size`. A buffer serves all iterations of
/// a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTrajectory {
    /// Games.
    pub num_envs: usize,
    /// Steps of each game.
    pub num_steps: usize,
    /// Features of an observation.
    pub num_features: usize,
    /// Observations before each step: `[num_envs, num_steps, obs_stride]`, zeros behind the features.
    pub obs: Vec<f32>,
    /// Actions taken: `[num_envs, num_steps]`.
    pub actions: Vec<i32>,
    /// Log-probabilities of the actions under the policy that took them: `[num_envs, num_steps]`.
    pub logprobs: Vec<f32>,
    /// Rewards of the steps: `[num_envs, num_steps]`.
    pub rewards: Vec<f32>,
    /// How the episode stands after each step: `[num_envs, num_steps]`.
    pub ends: Vec<End>,
    /// The score of the episode that ended with the step, else 0: `[num_envs, num_steps]`. Empty where
    /// nobody asked for them ([`HostTrajectory::keep_scores`]); nothing is learnt from them.
    pub scores: Vec<f32>,
    /// What the policy remembered of each game before the first step: `[num_envs, memory_size]`. Empty where
    /// it remembered nothing.
    pub memory: Vec<f32>,
    /// Actions whose legality is known of each step, at most 32; 0 where all are legal, always.
    pub masked_actions: usize,
    /// The actions that might have been taken in each step, bit by bit, the first action's the lowest:
    /// `[num_envs, num_steps]`. Empty where all may be, always.
    pub legal: Vec<u32>,
}

/// Numbers of an observation come in multiples of this.
pub const OBS_MULTIPLE: usize = 4;

/// Sums over the steps of a game: of the scores of the episodes that ended, of these episodes, of the rewards.
pub type GameSums = [f64; 3];

impl HostTrajectory {
    /// Makes room for so many games, steps and features. What was in the memory is of no use then.
    pub fn resize(&mut self, num_envs: usize, num_steps: usize, num_features: usize) {
        if (num_envs, num_steps, num_features) == (self.num_envs, self.num_steps, self.num_features)
        {
            return;
        }
        (self.num_envs, self.num_steps, self.num_features) = (num_envs, num_steps, num_features);
        let steps = num_envs * num_steps;
        // Zeros everywhere, hence also behind the features, where nobody writes.
        self.obs.clear();
        self.obs.resize(steps * self.obs_stride(), 0.0);
        self.actions.resize(steps, 0);
        self.ends.resize(steps, End::None);
        for values in [&mut self.logprobs, &mut self.rewards] {
            values.resize(steps, 0.0);
        }
        if !self.scores.is_empty() {
            self.keep_scores();
        }
        self.mask_actions(self.masked_actions);
    }

    /// Makes room for the scores of the episodes that end.
    pub fn keep_scores(&mut self) {
        self.scores.resize(self.num_envs * self.num_steps, 0.0);
    }

    /// Makes room for the legality of so many actions in each step; 0 where all are legal, always.
    ///
    /// # Panics
    /// If they are more than 32.
    pub fn mask_actions(&mut self, num_actions: usize) {
        assert!(num_actions <= 32, "legality is known of 32 actions at most");
        self.masked_actions = num_actions;
        let steps = if num_actions == 0 { 0 } else { self.num_envs * self.num_steps };
        self.legal.resize(steps, 0);
    }

    /// Numbers from observation to observation: the features, rounded up to [`OBS_MULTIPLE`].
    pub fn obs_stride(&self) -> usize {
        self.num_features.next_multiple_of(OBS_MULTIPLE)
    }

    /// Steps of game `env` that count: with `auto_reset` all do; otherwise those up to and including
    /// the first end of an episode.
    pub fn length(&self, env: usize, auto_reset: bool) -> usize {
        let ends = &self.ends[env * self.num_steps..][..self.num_steps];
        if auto_reset {
            return self.num_steps;
        }
        ends.iter().position(|end| end.ended()).map_or(self.num_steps, |t| t + 1)
    }

    /// From tensors, whatever device they are on.
    ///
    /// # Panics
    /// If the tensors' shapes do not belong together.
    pub fn from_tensors(trajectory: &Trajectory) -> Self {
        let [steps, envs, features] = trajectory.dims();
        let mut host = Self::default();
        host.resize(envs, steps, features);
        let stride = host.obs_stride();
        let obs = floats(trajectory.obs.clone().into_data());
        for (slot, to) in host.obs.chunks_exact_mut(stride).enumerate() {
            let from = (slot % steps * envs + slot / steps) * features;
            to[..features].copy_from_slice(&obs[from..from + features]);
        }
        let actions = trajectory.actions.clone().into_data().convert::<i32>();
        let actions = actions.try_into_vec::<i32>().expect("converted to i32");
        host.actions = transposed(&actions, steps);
        host.logprobs = by_game(&trajectory.logprobs);
        host.rewards = by_game(&trajectory.rewards);
        let terminated = by_game(&trajectory.terminated);
        let both = terminated.iter().zip(by_game(&trajectory.truncated));
        host.ends = both.map(|(end, cut)| End::new(*end > 0.5, cut > 0.5)).collect();
        host.scores = by_game(&trajectory.scores);
        if let Some(legal) = &trajectory.legal {
            let [_, _, actions] = legal.dims();
            host.mask_actions(actions);
            let bits = |row: &[f32]| {
                let bits = row.iter().enumerate().map(|(a, legal)| u32::from(*legal > 0.5) << a);
                bits.fold(0, |word, bit| word | bit)
            };
            let legal: Vec<u32> =
                floats(legal.clone().into_data()).chunks_exact(actions).map(bits).collect();
            host.legal = transposed(&legal, steps);
        }
        host
    }

    /// The trajectory as tensors on `device`.
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
        let rows = |values: &[f32]| by_time(values, envs, device);
        let ends = |kind: End| {
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
            terminated: ends(End::Terminated),
            truncated: ends(End::Truncated),
            scores: match self.scores.is_empty() {
                true => Tensor::zeros([steps, envs], device),
                false => rows(&self.scores),
            },
            memory: (!self.memory.is_empty()).then(|| {
                let shape = [envs, self.memory.len() / envs];
                Tensor::from_data(TensorData::new(self.memory.clone(), shape), device)
            }),
            legal,
        }
    }
}

/// Data on their way to a device: in memory that it reads by itself, page-locked, where its runtime has such, so
/// that nobody waits for the copy; elsewhere as they are.
pub(crate) fn staged(mut data: TensorData, device: &Device) -> TensorData {
    device.staging(std::iter::once(&mut data));
    data
}

/// A tensor `[num_steps, num_envs]` as numbers `[num_envs, num_steps]`.
pub(crate) fn by_game(tensor: &Tensor<2>) -> Vec<f32> {
    let [steps, _] = tensor.dims();
    transposed(&floats(tensor.clone().into_data()), steps)
}

/// Numbers of games one after the other, `[num_envs, num_steps]`, as a tensor on `device`: `[num_steps, num_envs]`.
pub(crate) fn by_time(values: &[f32], num_envs: usize, device: &Device) -> Tensor<2> {
    let shape = [values.len() / num_envs, num_envs];
    let data = TensorData::new(transposed(values, num_envs), shape);
    Tensor::from_data(staged(data, device), device)
}

/// Numbers `[rows, columns]` as `[columns, rows]`.
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

fn floats(data: TensorData) -> Vec<f32> {
    data.try_into_vec().expect("the library computes in f32")
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
        let (none, ended, cut) = (End::None, End::Terminated, End::Truncated);
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
    }

    #[test]
    fn a_game_counts_up_to_its_first_end() {
        let host = HostTrajectory::from_tensors(&tensors());
        assert_eq!([host.length(0, false), host.length(1, false), host.length(0, true)], [2, 3, 3]);
    }
}
