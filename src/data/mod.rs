//! Data exchanged between rollouts, datasets and learners.

#[cfg(not(target_family = "wasm"))]
mod dataset;
mod error;
mod manifest;
pub(crate) mod native;
mod recording;
mod shards;
mod steps;
#[cfg(not(target_family = "wasm"))]
mod table;
#[cfg(not(target_family = "wasm"))]
mod time;
#[cfg(feature = "kernels")]
mod window_recording;
mod windows;

#[cfg(not(target_family = "wasm"))]
pub use dataset::{Dataset, DatasetWriter};
pub use error::DatasetError;
pub use manifest::{MANIFEST_FILE, Manifest, Standardization};
pub use native::{GameSums, NativeTrajectory, OBS_MULTIPLE};
pub use recording::{
    ENDED, Recording, RecordingAdvantages, RecordingError, RecordingPart, TERMINATED, TRUNCATED,
    summary,
};
pub use shards::{ShardedSteps, deserialize_games, serialize_games};
pub use steps::{StepColumns, Steps, hold_out};
#[cfg(not(target_family = "wasm"))]
pub use table::{AnnotatedTable, TableOptions};
pub use windows::{WindowBatch, WindowOptions, WindowSet};

use burn::tensor::{Int, Tensor};

/// Steps of `num_envs` games, `num_steps` each, on one device. All tensors are time-major.
///
/// Group `g` consists of games `g * group_size..(g + 1) * group_size`.
#[derive(Clone, Debug)]
pub struct Trajectory {
    /// Observations before each step: `[num_steps, num_envs, num_features]`.
    pub obs: Tensor<3>,
    /// Actions: `[num_steps, num_envs]`.
    pub actions: Tensor<2, Int>,
    /// Log-probabilities of the actions under the behaviour policy: `[num_steps, num_envs]`.
    pub logprobs: Tensor<2>,
    /// Rewards: `[num_steps, num_envs]`.
    pub rewards: Tensor<2>,
    /// 1 if the game terminated with the step, else 0: `[num_steps, num_envs]`.
    pub terminated: Tensor<2>,
    /// 1 if the episode was truncated with the step, else 0: `[num_steps, num_envs]`. Exclusive
    /// with `terminated`.
    pub truncated: Tensor<2>,
    /// Score of the episode that ended with the step, else 0: `[num_steps, num_envs]`.
    pub scores: Tensor<2>,
    /// Memory of the policy before the first step, `[num_envs, memory_size]`; `None` for policies
    /// without memory.
    pub memory: Option<Tensor<2>>,
    /// Steps of the current episode that were played before the first step, `[num_envs]`; `None` if episodes begin with
    /// the first step.
    pub elapsed: Option<Tensor<1>>,
    /// Action masks, 1 if legal, else 0: `[num_steps, num_envs, num_actions]`; `None` if all
    /// actions are always legal.
    pub legal: Option<Tensor<3>>,
}

/// Episode status after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EpisodeStatus {
    /// The episode continues.
    #[default]
    Running = 0,
    /// The game ended by its own rules.
    Terminated = 1,
    /// The episode was cut off.
    Truncated = 2,
}

impl EpisodeStatus {
    /// Combines two flags; termination takes precedence.
    #[inline(always)]
    pub fn new(terminated: bool, truncated: bool) -> Self {
        match (terminated, truncated) {
            (true, _) => Self::Terminated,
            (false, true) => Self::Truncated,
            (false, false) => Self::Running,
        }
    }

    /// Whether the episode has ended, by termination or truncation.
    #[inline(always)]
    pub fn has_ended(self) -> bool {
        self != Self::Running
    }
}

impl Trajectory {
    /// `[num_steps, num_envs, num_features]`.
    ///
    /// # Panics
    /// If the shapes of the tensors with a row for each step are inconsistent.
    pub fn dims(&self) -> [usize; 3] {
        let [num_steps, num_envs, num_features] = self.obs.dims();
        let expected = [num_steps, num_envs];
        for (name, dims) in [
            ("actions", self.actions.dims()),
            ("logprobs", self.logprobs.dims()),
            ("rewards", self.rewards.dims()),
            ("terminated", self.terminated.dims()),
            ("truncated", self.truncated.dims()),
            ("scores", self.scores.dims()),
        ] {
            assert_eq!(dims, expected, "{name}: [num_steps, num_envs]");
        }
        if let Some(legal) = &self.legal {
            let [steps, envs, _] = legal.dims();
            assert_eq!([steps, envs], expected, "legal: [num_steps, num_envs, num_actions]");
        }
        [num_steps, num_envs, num_features]
    }

    /// 1 if the episode ended with the step, else 0: `[num_steps, num_envs]`.
    pub fn ends(&self) -> Tensor<2> {
        self.terminated.clone() + self.truncated.clone()
    }

    /// 1 for steps that count, else 0: `[num_steps, num_envs]`. With `auto_reset` all steps count;
    /// otherwise those up to and including the first end of an episode.
    pub fn mask(&self, auto_reset: bool) -> Tensor<2> {
        if auto_reset {
            return self.terminated.ones_like();
        }
        let ends = self.ends();
        let ended_before = ends.clone().cumsum(0) - ends;
        ended_before.lower_equal_elem(0.5).float()
    }

    /// Number of steps of the ended episodes of each game, including steps before the first recorded one; 0 if none
    /// ended: `[num_envs]`. Without `auto_reset` the first episode alone counts.
    pub fn ended_steps(&self, auto_reset: bool) -> Tensor<1> {
        let [num_steps, num_envs, _] = self.dims();
        let ends = self.ends() * self.mask(auto_reset);
        let numbers = Tensor::<1, Int>::arange(1..num_steps as i64 + 1, &ends.device());
        let last = (ends * numbers.float().reshape([num_steps, 1])).max_dim(0).reshape([num_envs]);
        match self.elapsed.clone() {
            None => last,
            Some(elapsed) => last.clone() + elapsed * last.greater_elem(0.5).float(),
        }
    }

    /// 1 if an episode begins with the step, so that the policy's memory is reset, else 0:
    /// `[num_steps, num_envs]`. The first step is 0, because it starts from [`Trajectory::memory`].
    pub fn starts(&self) -> Tensor<2> {
        let [num_steps, num_envs, _] = self.dims();
        let first = Tensor::zeros([1, num_envs], &self.obs.device());
        match num_steps {
            1 => first,
            _ => Tensor::cat(vec![first, self.ends().narrow(0, 0, num_steps - 1)], 0),
        }
    }

    /// The first `num_steps` steps.
    pub fn first_steps(&self, num_steps: usize) -> Self {
        let rows = |tensor: &Tensor<2>| tensor.clone().narrow(0, 0, num_steps);
        Self {
            obs: self.obs.clone().narrow(0, 0, num_steps),
            actions: self.actions.clone().narrow(0, 0, num_steps),
            logprobs: rows(&self.logprobs),
            rewards: rows(&self.rewards),
            terminated: rows(&self.terminated),
            truncated: rows(&self.truncated),
            scores: rows(&self.scores),
            memory: self.memory.clone(),
            elapsed: self.elapsed.clone(),
            legal: self.legal.as_ref().map(|legal| legal.clone().narrow(0, 0, num_steps)),
        }
    }
}
