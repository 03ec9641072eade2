//! Trained policies.

use super::buffers::{slice, slice_mut};
use super::games::{Visitor, visit_game};
use super::{value_error, warn};
use grove::checkpoint::Checkpoint;
use grove::env::{ConfigurableGame, Env, HostGame};
use grove::model::{Actor, LANES, Lanes, NativePolicy};
use grove::run::{FoundCheckpoint, RunFolder};
use grove::trainer::{load_policy, policy_bytes, read_config, read_game_name, read_policy_file};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::path::PathBuf;

/// A policy on the CPU.
#[pyclass(module = "grove_rl._native")]
pub struct Policy {
    policy: NativePolicy,
    /// The content of a policy's file.
    file: Vec<u8>,
    /// The name of the game.
    #[pyo3(get)]
    game: String,
    /// The folder of the run or checkpoint, or the file, that the path has led to.
    #[pyo3(get)]
    path: PathBuf,
    /// The iteration of the run at which it was saved.
    #[pyo3(get)]
    iteration: u64,
    #[pyo3(get)]
    num_features: usize,
    #[pyo3(get)]
    num_actions: usize,
    /// The memory at the start of an episode, `[memory_size]`.
    #[pyo3(get)]
    initial_memory: Vec<f32>,
}

struct LoadPolicy<'a>(&'a Checkpoint);

impl Visitor for LoadPolicy<'_> {
    type Output = NativePolicy;

    fn visit<G: ConfigurableGame>(self) -> PyResult<NativePolicy> {
        let (game, config) = read_config::<G>(self.0).map_err(value_error)?;
        game.validate().map_err(value_error)?;
        config.validate().map_err(value_error)?;
        load_policy(self.0, game, &config).map_err(value_error)
    }
}

#[pymethods]
impl Policy {
    /// Loads the policy that a path names: a run, a checkpoint or a policy's file.
    #[new]
    fn new(py: Python, path: PathBuf) -> PyResult<Self> {
        let is_policy = path.is_file() || path.join("manifest.json").exists();
        let path = if is_policy {
            path
        } else {
            // It may be the name of a run in `runs` alone.
            RunFolder::find(&path).map_err(value_error)?.path().to_path_buf()
        };
        let FoundCheckpoint { checkpoint, warnings } =
            FoundCheckpoint::find(&path).map_err(value_error)?;
        for warning in warnings {
            warn(py, &warning)?;
        }
        Self::from_checkpoint(&checkpoint, path)
    }

    /// Loads the policy with this [`file`](Self::file), which `path` has led to.
    #[staticmethod]
    fn of_file(file: &[u8], path: PathBuf) -> PyResult<Self> {
        Self::from_checkpoint(&read_policy_file(file.to_vec()).map_err(value_error)?, path)
    }

    /// The content of a policy's file, for another process.
    fn file(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.file)
    }

    /// Writes logits, `[num_envs, num_actions]`, for observations, `[num_envs, num_features]`; updates `memory`,
    /// `[num_envs, memory_size]`.
    fn compute_logits(
        &self,
        py: Python,
        obs: PyBuffer<f32>,
        memory: PyBuffer<f32>,
        logits: PyBuffer<f32>,
    ) -> PyResult<()> {
        let (features, actions, size) =
            (self.num_features, self.num_actions, self.initial_memory.len());
        let envs = obs.item_count() / features;
        let obs = slice(&obs, envs * features, "obs")?;
        let memory = slice_mut(&memory, envs * size, "memory")?;
        let logits = slice_mut(&logits, envs * actions, "logits")?;
        py.detach(|| self.compute_logits_in_blocks(obs, memory, logits));
        Ok(())
    }
}

impl Policy {
    fn from_checkpoint(checkpoint: &Checkpoint, path: PathBuf) -> PyResult<Self> {
        let game = read_game_name(checkpoint).map_err(value_error)?;
        let policy = if game == HostGame::NAME {
            LoadPolicy(checkpoint).visit::<HostGame>()?
        } else {
            visit_game(&game, LoadPolicy(checkpoint))?
        };
        let file = policy_bytes(checkpoint).map_err(value_error)?.to_vec();
        let (num_features, num_actions) = (policy.num_features(), policy.num_actions());
        let initial_memory = policy.initial_memory();
        let iteration = checkpoint.iteration;
        Ok(Self { policy, file, game, path, iteration, num_features, num_actions, initial_memory })
    }

    fn compute_logits_in_blocks(&self, obs: &[f32], memory: &mut [f32], logits: &mut [f32]) {
        let (features, size) = (self.num_features, self.initial_memory.len());
        let mut scratch = self.policy.new_scratch();
        let mut lanes: Vec<Lanes> = vec![[0.0; LANES]; features];
        let mut remembered: Vec<Lanes> = vec![[0.0; LANES]; size];
        let mut rows = memory.chunks_mut((LANES * size).max(1));
        let blocks = obs.chunks(LANES * features);
        for (obs, logits) in blocks.zip(logits.chunks_mut(LANES * self.num_actions)) {
            let memory = rows.next().unwrap_or_default();
            to_lanes(obs, &mut lanes);
            to_lanes(memory, &mut remembered);
            let found = self.policy.compute_logits(&lanes, &mut remembered, &mut scratch);
            from_lanes(found, logits);
            from_lanes(&remembered, memory);
        }
    }
}

/// Transposes rows, `[envs, columns]`, to lanes, `[columns][LANES]`.
fn to_lanes(rows: &[f32], lanes: &mut [Lanes]) {
    for (lane, row) in rows.chunks_exact(lanes.len().max(1)).enumerate() {
        lanes.iter_mut().zip(row).for_each(|(lanes, x)| lanes[lane] = *x);
    }
}

/// Transposes lanes, `[columns][LANES]`, to rows, `[envs, columns]`.
fn from_lanes(lanes: &[Lanes], rows: &mut [f32]) {
    for (lane, row) in rows.chunks_exact_mut(lanes.len().max(1)).enumerate() {
        row.iter_mut().zip(lanes).for_each(|(x, lanes)| *x = lanes[lane]);
    }
}
