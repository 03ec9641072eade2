//! Training in Python environments.
//!
//! A batch of Python is an object with arrays and two methods: `reset()` and `step()` read `levels` or `actions`,
//! where -1 leaves an environment alone, and write `obs`, `rewards`, `terminated` and `truncated`.

use super::buffers::{slice, slice_mut};
use super::games::settings;
use super::session::{Session, check_plays, detached};
use super::value_error;
use grove::env::{HostEnvError, HostEnvs, HostGame, HostStepResult, HostVecEnv};
use grove::trainer::GameTrainer;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The first exception of a batch, to be raised when its run has stopped.
type FirstException = Arc<Mutex<Option<PyErr>>>;

/// A batch of Python environments.
struct PythonEnvs {
    object: Py<PyAny>,
    num_envs: usize,
    num_features: usize,
    num_actions: usize,
    levels: PyBuffer<i64>,
    actions: PyBuffer<i64>,
    obs: PyBuffer<f32>,
    rewards: PyBuffer<f32>,
    terminated: PyBuffer<u8>,
    truncated: PyBuffer<u8>,
    exception: FirstException,
}

impl PythonEnvs {
    fn new(object: &Bound<PyAny>, exception: FirstException) -> PyResult<Self> {
        let size = |name| object.getattr(name)?.extract::<usize>();
        Ok(Self {
            num_envs: size("num_envs")?,
            num_features: size("num_features")?,
            num_actions: size("num_actions")?,
            levels: object.getattr("levels")?.extract()?,
            actions: object.getattr("actions")?.extract()?,
            obs: object.getattr("obs")?.extract()?,
            rewards: object.getattr("rewards")?.extract()?,
            terminated: object.getattr("terminated")?.extract()?,
            truncated: object.getattr("truncated")?.extract()?,
            object: object.clone().unbind(),
            exception,
        })
    }

    /// Writes the numbers that a method reads, calls it and copies the observations.
    fn call(&self, method: &str, given: &[Option<u32>], obs: &mut [f32]) -> PyResult<()> {
        let array = if method == "reset" { &self.levels } else { &self.actions };
        let numbers = slice_mut(array, self.num_envs, method)?;
        numbers.iter_mut().zip(given).for_each(|(to, x)| *to = x.map_or(-1, i64::from));
        Python::attach(|py| self.object.call_method0(py, method))?;
        obs.copy_from_slice(slice(&self.obs, self.num_envs * self.num_features, "obs")?);
        Ok(())
    }

    /// Reads the results of a step.
    fn results(&self, results: &mut [HostStepResult]) -> PyResult<()> {
        let envs = self.num_envs;
        let rewards = slice(&self.rewards, envs, "rewards")?;
        let terminated = slice(&self.terminated, envs, "terminated")?;
        let truncated = slice(&self.truncated, envs, "truncated")?;
        for (env, result) in results.iter_mut().enumerate() {
            *result = HostStepResult {
                reward: rewards[env],
                terminated: terminated[env] != 0,
                truncated: truncated[env] != 0,
            };
        }
        Ok(())
    }

    /// Keeps an exception for the caller of the run.
    fn keep_exception(&self, error: PyErr) -> HostEnvError {
        let message = error.to_string();
        self.exception.lock().expect("no holder panics").get_or_insert(error);
        HostEnvError(message.into())
    }
}

impl HostVecEnv for PythonEnvs {
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn num_features(&self) -> usize {
        self.num_features
    }

    fn num_actions(&self) -> usize {
        self.num_actions
    }

    fn reset(&mut self, levels: &[Option<u32>], obs: &mut [f32]) -> Result<(), HostEnvError> {
        self.call("reset", levels, obs).map_err(|error| self.keep_exception(error))
    }

    fn step(
        &mut self,
        actions: &[Option<u32>],
        obs: &mut [f32],
        results: &mut [HostStepResult],
    ) -> Result<(), HostEnvError> {
        let stepped = self.call("step", actions, obs).and_then(|()| self.results(results));
        stepped.map_err(|error| self.keep_exception(error))
    }
}

/// Checks the settings of a run in Python environments, a JSON object of changes to the defaults.
#[pyfunction]
pub fn check_settings(changes: &str) -> PyResult<()> {
    check_plays(&settings::<HostGame>(changes)?.1)
}

/// Trains a policy in a batch of Python environments, whose name (`environment`) and `spaces`, which are JSON, the
/// run's folder keeps; `name` is that of the folder, and `changes` is a JSON object of changes to the defaults. Returns
/// the report as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python's half has gathered them")]
pub fn train_envs(
    envs: &Bound<PyAny>,
    name: &str,
    environment: String,
    spaces: String,
    changes: &str,
    device: &str,
    run_dir: Option<PathBuf>,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let exception = FirstException::default();
    let batch = PythonEnvs::new(envs, exception.clone())?;
    let result = detached(envs.py(), || {
        let (game, config) = settings::<HostGame>(changes)?;
        let mut session = Session::new(device, run_dir, callback)?;
        (session.environment, session.spaces) = (Some(environment), Some(spaces));
        let envs = HostEnvs::new(batch);
        let trainer = GameTrainer::with_envs(game, envs, &config, &session.chosen.device);
        session.train_game(trainer.map_err(value_error)?, name)
    });
    match exception.lock().expect("no holder panics").take() {
        Some(error) => Err(error),
        None => result,
    }
}
