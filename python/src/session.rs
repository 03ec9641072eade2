//! Runs driven from Python: files, callback, signals and the final report.

use super::games::{Visitor, settings, visit_game};
use super::interrupts::Interrupts;
use super::{check_memory, value_error, warn};
use grove::data::OBS_MULTIPLE;
use grove::device::{self, ChosenDevice};
use grove::env::ConfigurableGame;
use grove::program::PolicyAtEnd;
use grove::run::{
    BestCheckpoint, GameRun, IterationReport, Run, RunError, RunFiles, RunFolder, RunMetadata,
    RunObserver, catch_device_panics, drive, finish,
};
use grove::settings::TrainConfig;
use grove::trainer::{GameTrainer, config_to_toml};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Interval at which signals are handled during work that can be interrupted.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The surroundings of a run.
pub struct Session {
    /// The folder; `None` for the next free one in `runs`.
    run_dir: Option<PathBuf>,
    /// A function that takes every iteration's record as JSON and may return `False` to stop the run.
    callback: Option<Py<PyAny>>,
    /// The spaces of Python environments, as JSON.
    pub spaces: Option<String>,
    /// The name of the environment of Python.
    pub environment: Option<String>,
    /// The device.
    pub chosen: ChosenDevice,
    /// Whether the device was chosen among those of the machine.
    is_auto: bool,
    interrupts: Interrupts,
}

impl Session {
    /// Starts a device for a run, and takes Ctrl-C over.
    ///
    /// # Errors
    /// If there is no such device, or a signal arrives.
    pub fn new(
        device: &str,
        run_dir: Option<PathBuf>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let chosen = device::start(device).map_err(value_error)?;
        let (is_auto, interrupts) = (device == "auto", Interrupts::new()?);
        let (spaces, environment) = (None, None);
        Ok(Self { run_dir, callback, spaces, environment, chosen, is_auto, interrupts })
    }

    /// Takes the CPU in place of a GPU that `auto` found, if a rollout of this game is faster there.
    fn rehearse<G: ConfigurableGame>(&mut self, game: G, config: &TrainConfig) -> PyResult<()> {
        // Beside a GPU, a CPU without the memory is no choice.
        if self.is_auto && check_rollout(game, config).is_ok() {
            self.chosen = device::choose_faster(self.chosen.clone(), |chosen| {
                PyResult::Ok(
                    GameTrainer::new(game, config, &chosen.device).measure_rollout_seconds(),
                )
            })?;
        }
        Ok(())
    }

    /// Trains a policy for a game, as [`train`](Self::train) does.
    ///
    /// # Errors
    /// If the device lacks the engine or the precision of the settings, and those of [`train`](Self::train).
    pub fn train_game<G: ConfigurableGame>(
        &self,
        trainer: GameTrainer<G>,
        name: &str,
    ) -> PyResult<String> {
        if let Some(missing) = trainer.unsupported_reason() {
            return Err(value_error(missing));
        }
        let (game, iterations) = (trainer.game(), trainer.config().iterations);
        let settings = config_to_toml(&game, trainer.config());
        self.train(&mut GameRun::new(trainer, iterations, game.action_names()), name, &settings)
    }

    /// Trains a run to its end or until it is stopped, and evaluates its best policy. Returns the report as JSON.
    /// `name` is the folder's name without its number, and `settings` are the run's settings as TOML.
    ///
    /// # Errors
    /// If the run fails, the callback raises, or a signal arrives; the run has been saved in the latter two cases.
    pub fn train(&self, run: &mut dyn Run, name: &str, settings: &str) -> PyResult<String> {
        let folder = match &self.run_dir {
            Some(folder) => folder.clone(),
            None => RunFolder::create(None, name).map_err(value_error)?.path().to_path_buf(),
        };
        // Environments and the callback may change the current folder.
        let place = std::path::absolute(&folder).map_err(value_error)?;
        let (mut files, lock) = RunFiles::create(Some(place), name, run, settings)
            .map_err(|error| not_created(error, &folder))?;
        let mut metadata = RunMetadata::new(run, &self.chosen.info);
        metadata.environment = self.environment.as_deref();
        files.write_metadata(&metadata).map_err(value_error)?;
        if let Some(spaces) = &self.spaces {
            files.write_spaces(spaces).map_err(value_error)?;
        }
        let mut listener = Listener::new(self.callback.as_ref(), &self.interrupts);
        listener.warn_all(lock.warning.as_slice())?;
        listener.warn_all(&run.warnings())?;
        let summary = drive(run, Some(&mut files), &mut listener);
        listener.raise()?;
        let summary = summary.map_err(runtime_error)?;
        let BestCheckpoint { checkpoint: best, warnings } =
            files.load_best(run).map_err(runtime_error)?;
        listener.warn_all(&warnings)?;
        let evaluation = finish(run, Some(&files), best.as_ref()).map_err(runtime_error)?;
        listener.warn_all(evaluation.warning().as_slice())?;
        let policy = PolicyAtEnd {
            env_steps: summary.env_steps,
            best: best.as_ref(),
            evaluation: Some(&evaluation),
        };
        let published = grove::program().publish_policy(run, &mut files, policy);
        listener
            .warn_all(&published.map_err(|error| PyRuntimeError::new_err(format!("{error:#}")))?)?;
        self.interrupts.check()?;
        let mut report =
            summary.into_report(run, &files, &self.chosen.info.name, best.as_ref(), evaluation);
        report.run = folder.display().to_string();
        Ok(serde_json::to_string(&report).expect("reports are plain data"))
    }
}

/// Runs `work` without the GIL; a panic becomes a `RuntimeError`.
pub fn detached<T: Send>(py: Python, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| catch_device_panics(work));
    outcome.unwrap_or_else(|panic| Err(PyRuntimeError::new_err(panic.to_string())))
}

/// Does work on another thread while this one handles signals, which Python does in its main thread alone. Once
/// the flag that `work` is given is true, its result no longer counts, and it should end.
///
/// # Errors
/// If the handler of a signal raises an exception, such as `KeyboardInterrupt`.
pub fn interruptible<T: Send>(work: impl FnOnce(&AtomicBool) -> T + Send) -> PyResult<T> {
    let is_interrupted = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (guard, ended) = mpsc::channel::<()>();
        let worker = scope.spawn(move || {
            // It is dropped with the end of the work, be it a panic.
            let _guard = guard;
            work(is_interrupted)
        });
        let mut signals = Ok(());
        while ended.recv_timeout(SIGNAL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if signals.is_ok() {
                signals = Python::attach(|py| py.check_signals());
                is_interrupted.store(signals.is_err(), Ordering::Relaxed);
            }
        }
        let result = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        signals.map(|()| result)
    })
}

/// A Python `ValueError` for a run that cannot begin in a folder, in the words of `train`'s arguments.
fn not_created(error: RunError, folder: &Path) -> PyErr {
    let folder = folder.display();
    match error {
        RunError::Exists(_) => {
            value_error(format!("the run directory {folder} exists; choose another `run_dir`"))
        }
        RunError::Occupied(_) => value_error(format!(
            "the folder {folder} is not empty and holds no run; choose another `run_dir`"
        )),
        RunError::Locked(_) => value_error(format!(
            "another process trains the run in {folder}; choose another `run_dir`"
        )),
        error => value_error(error),
    }
}

/// A Python `RuntimeError` for a run that failed.
fn runtime_error(error: RunError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// The observer that calls back to Python.
struct Listener<'a> {
    callback: Option<&'a Py<PyAny>>,
    interrupts: &'a Interrupts,
    error: RefCell<Option<PyErr>>,
    stops: Cell<bool>,
}

impl<'a> Listener<'a> {
    fn new(callback: Option<&'a Py<PyAny>>, interrupts: &'a Interrupts) -> Self {
        Self { callback, interrupts, error: RefCell::default(), stops: Cell::default() }
    }

    fn keep(&self, result: PyResult<()>) {
        if let Err(error) = result {
            self.error.borrow_mut().get_or_insert(error);
            self.stops.set(true);
        }
    }

    /// Raises the first error that was kept.
    fn raise(&self) -> PyResult<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Warns, and raises a warning that Python's filters turn into an error.
    fn warn_all(&mut self, warnings: &[String]) -> PyResult<()> {
        warnings.iter().for_each(|warning| self.on_warning(warning));
        self.raise()
    }

    fn call(&self, event: &Value) {
        let Some(callback) = self.callback else { return };
        let result = Python::attach(|py| {
            let answer = callback.call1(py, (event.to_string(),))?;
            self.stops.set(self.stops.get() || answer.extract::<bool>(py).is_ok_and(|go| !go));
            Ok(())
        });
        self.keep(result);
    }
}

impl RunObserver for Listener<'_> {
    fn wants_to_stop(&mut self) -> bool {
        self.keep(self.interrupts.check());
        self.stops.get()
    }

    fn on_iteration(&mut self, step: &IterationReport) {
        let mut event = serde_json::to_value(&step.record).expect("records are plain data");
        event["iterations"] = json!(step.iterations);
        event["seconds_left"] = json!(step.seconds_left);
        self.call(&event);
    }

    fn on_warning(&mut self, warning: &str) {
        self.keep(Python::attach(|py| warn(py, warning)));
    }
}

/// Checks that a run plays, rather than learns from a dataset.
pub fn check_plays(config: &TrainConfig) -> PyResult<()> {
    if config.data.is_on() {
        return Err(value_error("`grove fit` learns from datasets; `train` plays"));
    }
    Ok(())
}

/// Checks that a rollout on the CPU fits in memory.
fn check_rollout<G: ConfigurableGame>(game: G, config: &TrainConfig) -> PyResult<()> {
    let (envs, steps) = (config.rollout.num_envs(), config.rollout.num_steps);
    let features = game.num_features();
    // Besides the observation, four numbers of 32 bits: action, its probability, reward and advantage.
    let of_step = size_of::<f32>() * (features.next_multiple_of(OBS_MULTIPLE) + 4);
    let what = format_args!(
        "a rollout of {envs} games, {steps} steps and {features} numbers an observation"
    );
    let bytes = envs.saturating_mul(steps).saturating_mul(of_step);
    check_memory(bytes, what, "`num_steps`, `num_groups` or `group_size`")
}

struct TrainGame<'a> {
    settings: &'a str,
    session: Session,
}

impl Visitor for TrainGame<'_> {
    type Output = String;

    fn visit<G: ConfigurableGame>(self) -> PyResult<String> {
        let Self { settings: changes, mut session } = self;
        let (game, config) = settings::<G>(changes)?;
        check_plays(&config)?;
        if session.chosen.info.is_cpu() {
            check_rollout(game, &config)?;
        }
        session.rehearse(game, &config)?;
        let trainer = GameTrainer::new(game, &config, &session.chosen.device);
        session.train_game(trainer, G::NAME)
    }
}

/// Trains a policy for a built-in game. `settings` is a JSON object of changes to the defaults. Returns the report
/// as JSON.
#[pyfunction]
pub fn train(
    py: Python,
    game: &str,
    settings: &str,
    device: &str,
    run_dir: Option<PathBuf>,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    detached(py, || {
        let session = Session::new(device, run_dir, callback)?;
        visit_game(game, TrainGame { settings, session })
    })
}
