//! A run as read from its files: settings, records and status.

use super::games::{Games, ReferenceScores};
use super::output::eprint_line;
use super::settings::language_defaults;
use super::text::device::default_precision;
use crate::disk::input;
use crate::env::{Env, HostGame};
use crate::metrics::{EvaluationRecord, IterationRecord};
use crate::run::{CHECKPOINTS, CONFIG, METRICS, RunError, RunFolder, Schedule, pluralize};
use crate::schema::range::is_long;
use crate::settings::overlay::last_part;
use crate::settings::{
    IMITATION_DEFAULTS, LanguageConfig, LossType, PolicyConfig, RunKind, TINY, TrainConfig, overlay,
};
use crate::task::{self, TaskError};
use crate::trainer::BestEvaluation;
use crate::trainer::text::{join_language_settings, read_settings, split_language_settings};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Settings by full name, for instance `optimizer.learning_rate`.
pub type FlatSettings = BTreeMap<String, Value>;

/// The settings of `[update]` that multiply to the optimizer steps of an iteration.
const STEP_FACTORS: [&str; 2] = ["update_epochs", "num_minibatches"];

/// Message shown while runs are read.
pub const READING_RUNS: &str = "Reading the runs.";

/// A run as its directory records it.
#[derive(Default)]
pub struct RecordedRun {
    pub path: PathBuf,
    pub settings: Table,
    pub records: Vec<IterationRecord>,
    /// Number of records that cannot be read.
    num_damaged: usize,
    /// Name of another program's environment in which it trains.
    environment: Option<String>,
    /// Number of iterations that the epochs of its data take.
    iterations_for_epochs: Option<u32>,
    /// Names of the devices that trained it last.
    devices: Vec<String>,
    is_locked: bool,
    /// Whether there is a checkpoint of its last iteration.
    is_saved: bool,
}

/// Whether a run is in training, finished or interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// A process is training it.
    Running,
    /// Training ended according to the settings.
    Finished,
    /// Can be resumed.
    Interrupted,
}

impl RecordedRun {
    /// Reads a run.
    pub fn read(path: &Path) -> Result<Self> {
        let folder = RunFolder::find(path)?;
        let file = folder.config_path();
        let text = input::allow_missing(input::read_description(&file));
        let settings = match text.with_context(|| format!("cannot read {}", file.display()))? {
            Some(text) => overlay::parse(&file.display().to_string(), &text)?,
            None => read_settings(&folder.load_latest()?.checkpoint)?,
        };
        let (records, num_damaged) = folder.read_and_count_records()?;
        let last = records.last().map_or(0, |record| record.iteration);
        Ok(Self {
            is_locked: folder.is_locked(),
            is_saved: folder.has_checkpoint(last),
            path: folder.path().to_path_buf(),
            settings,
            records,
            num_damaged,
            environment: folder.environment(),
            iterations_for_epochs: folder.iterations_for_epochs(),
            devices: folder.devices(),
        })
    }

    /// Reads all runs in a folder and its subfolders, sorted by name, with a warning for each that cannot be read. If
    /// the folder is itself a run directory, reads that run.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        if is_run(folder) {
            let run = Self::read(folder)?;
            run.warn_of_damage();
            return Ok(vec![run]);
        }
        ensure!(folder.exists(), RunError::Missing(folder.to_path_buf()));
        let paths = list_paths(folder);
        let paths = paths.with_context(|| format!("cannot read {}", folder.display()))?;
        let runs = paths.into_iter().flat_map(|path| {
            if is_run(&path) { vec![path] } else { list_paths(&path).unwrap_or_default() }
        });
        let read = |path: PathBuf| match Self::read(&path) {
            Ok(run) => {
                run.warn_of_damage();
                Some(run)
            }
            Err(error) => {
                eprint_line!("warning: {}: {error:#}", path.display());
                None
            }
        };
        Ok(runs.filter(|path| is_run(path)).filter_map(read).collect())
    }

    /// Warns if records are missing, without which the run seems shorter.
    fn warn_of_damage(&self) {
        if self.num_damaged > 0 {
            let records = pluralize(self.num_damaged, "record");
            eprint_line!("warning: {}: {records} in {METRICS} cannot be read", self.path.display());
        }
    }

    /// Name of the game or task.
    pub fn subject(&self) -> &str {
        let name = |key: &str| self.settings.get(key)?.as_str();
        name("env").or_else(|| name("task")).unwrap_or("?")
    }

    /// A string setting, by its full name; empty if there is none.
    fn text_setting(&self, path: &str) -> &str {
        overlay::text_at(&self.settings, path)
    }

    /// Name of the other program's environment in which it trains, otherwise of the game or task.
    pub fn title(&self) -> &str {
        self.environment.as_deref().unwrap_or(self.subject())
    }

    /// Whether it trains a language model.
    pub fn has_language_model(&self) -> bool {
        RunKind::of(&self.settings) == Some(RunKind::Language)
    }

    /// Whether it learns from environments, or from prompts and reward functions, of a Python process, which this
    /// program does not have.
    pub fn needs_python(&self, games: &Games) -> bool {
        if self.has_language_model() {
            self.subject() == task::PYTHON
        } else {
            self.subject() == HostGame::NAME && games.find(HostGame::NAME).is_err()
        }
    }

    /// Whether it learns from data alone (`grove fit`).
    pub fn is_fit(&self) -> bool {
        let has_data = self.has_language_model() || !self.text_setting("data.path").is_empty();
        has_data && self.text_setting("loss.loss_type") == LossType::Nll.name()
    }

    /// The path of the base language model, or `tiny`; empty for games.
    pub fn model_path(&self) -> &Path {
        Path::new(self.text_setting("model.path"))
    }

    /// Describes its model: the network with its sizes, or the name of the base language model.
    pub fn describe_model(&self) -> String {
        if self.has_language_model() {
            let name = self.model_path().file_name();
            return name.unwrap_or_default().to_string_lossy().into_owned();
        }
        let policy = self.settings.get("policy").cloned();
        let policy = policy.and_then(|policy| policy.try_into::<PolicyConfig>().ok());
        policy.map_or("?".into(), |policy| format!("{} {}", policy.kind, policy.describe_sizes()))
    }

    /// Settings that differ from the defaults of the game or task, or of `grove fit` with it, whose epochs give the
    /// iterations; `None` if this program does not know its defaults.
    pub fn changes(&self, games: &Games) -> Option<FlatSettings> {
        let possible_defaults = if self.has_language_model() {
            self.language_defaults()
        } else {
            self.game_defaults(games).map(|defaults| vec![defaults])
        };
        let changed_from = |defaults: Table| {
            let (defaults, mut changes) = (flatten(&defaults), flatten(&self.settings));
            changes.retain(|key, value| defaults.get(key) != Some(value));
            changes
        };
        possible_defaults.ok()?.into_iter().map(changed_from).min_by_key(FlatSettings::len)
    }

    fn game_defaults(&self, games: &Games) -> Result<Table> {
        let defaults = (games.find_with_table(self.subject())?.defaults)()?;
        if !self.is_fit() {
            return Ok(defaults);
        }
        let mut defaults =
            overlay::merge(defaults, overlay::parse("the defaults of fit", IMITATION_DEFAULTS)?);
        self.set_iterations_for_epochs(&mut defaults);
        // Epochs that do not fill the last iteration shorten all (`TrainingData::fit_iterations_to_epochs`).
        let iterations = i64::from(self.planned_iterations());
        let steps = num_optimizer_steps(&self.settings).zip(num_optimizer_steps(&defaults));
        let is_shorter = steps.is_some_and(|(own, usual)| {
            own < usual && own * iterations > usual * (iterations - 1).max(0)
        });
        let Some(Value::Table(update)) = self.settings.get("update").filter(|_| is_shorter) else {
            return Ok(defaults);
        };
        let factors = update.iter().filter(|(key, _)| STEP_FACTORS.contains(&key.as_str()));
        let factors: Table = factors.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(overlay::merge(defaults, Table::from_iter([("update".to_string(), factors.into())])))
    }

    /// Defaults for a small and for a large model, since the settings do not tell the number of parameters. Their
    /// precision is the default of the devices that trained the run.
    fn language_defaults(&self) -> Result<Vec<Table>> {
        let subject = self.subject();
        let path = self.text_setting("model.path");
        let task_settings = match task::find(subject) {
            Err(TaskError::Python) => Table::new(),
            found => (found?.defaults)(),
        };
        let precision = default_precision(&self.devices.join(","));
        let for_size = |num_params: usize| {
            let num_params = (path != TINY).then_some(num_params);
            let mut config = if self.is_fit() {
                LanguageConfig::for_sft(path, num_params, precision)
            } else {
                language_defaults(subject, path, num_params, precision)?
            };
            // A run shorter than its SFT stage is SFT throughout.
            config.fit.iterations = config.fit.iterations.min(self.planned_iterations());
            let mut defaults = join_language_settings(subject, &task_settings, &config);
            if self.is_fit() {
                self.set_iterations_for_epochs(&mut defaults);
            }
            Ok(defaults)
        };
        [0, usize::MAX].into_iter().map(for_size).collect()
    }

    /// Sets the number of iterations in the defaults of `grove fit` to that of the epochs, if it is known.
    fn set_iterations_for_epochs(&self, defaults: &mut Table) {
        if let Some(iterations) = self.iterations_for_epochs {
            defaults.insert("iterations".to_string(), i64::from(iterations).into());
        }
    }

    fn schedule(&self) -> Result<Schedule> {
        let settings = self.settings.clone();
        Ok(if self.has_language_model() {
            Schedule::from(&split_language_settings(settings)?.config)
        } else {
            // The game may be unknown to this program.
            Schedule::from(&overlay::from_table::<TrainConfig>(settings)?)
        })
    }

    /// Number of iterations of the whole run; 0 if its settings cannot be read.
    pub fn planned_iterations(&self) -> u32 {
        self.schedule().map_or(0, |schedule| schedule.iterations)
    }

    /// Best evaluation and its iteration, by score or by loss on held-out demonstrations.
    pub fn best(&self) -> Option<(u32, &EvaluationRecord)> {
        let evaluations = self
            .records
            .iter()
            .filter_map(|record| Some((record.iteration, record.evaluation.as_ref()?)));
        // The first of equals, as in the trainer.
        evaluations.rev().max_by(|a, b| value_or_lowest(a.1).total_cmp(&value_or_lowest(b.1)))
    }

    /// Best score of an evaluation; `None` if none has a score.
    pub fn best_score(&self) -> Option<f64> {
        self.best()?.1.score()
    }

    /// Number of iterations done.
    pub fn iterations_done(&self) -> u32 {
        self.records.last().map_or(0, |record| record.iteration)
    }

    /// Environment steps of all episodes; tokens for language models.
    pub fn env_steps(&self) -> u64 {
        self.records.last().map_or(0, |record| record.env_steps)
    }

    /// Seconds of all iterations, without evaluations.
    pub fn seconds(&self) -> f64 {
        // The sum of no floats would be -0.
        self.records.iter().fold(0.0, |sum, record| sum + record.seconds.total)
    }

    /// Determines the status from the run's lock and schedule.
    pub fn status(&self) -> RunStatus {
        let best = self.best().map(|(iterations_done, evaluation)| BestEvaluation {
            value: value_or_lowest(evaluation),
            iterations_done,
        });
        let end_reason = self
            .schedule()
            .ok()
            .and_then(|schedule| schedule.end_reason(self.iterations_done(), best));
        match (self.is_locked, end_reason) {
            (true, _) => RunStatus::Running,
            (false, Some(_)) if self.is_saved => RunStatus::Finished,
            (false, _) => RunStatus::Interrupted,
        }
    }

    /// Mean scores of the game's reference players.
    pub fn reference_scores(&self, games: &Games) -> ReferenceScores {
        let game = games.find(self.subject());
        game.and_then(|game| (game.reference_scores)(self.settings.clone())).unwrap_or_default()
    }
}

/// Number of optimizer steps per iteration of a game's run, if the settings determine it.
fn num_optimizer_steps(settings: &Table) -> Option<i64> {
    let count = |key: &str| overlay::get(settings, &format!("update.{key}"))?.as_integer();
    STEP_FACTORS.iter().try_fold(1_i64, |steps, key| steps.checked_mul(count(key)?))
}

/// Value by which evaluations are compared; the lowest if nothing could be judged.
fn value_or_lowest(evaluation: &EvaluationRecord) -> f64 {
    evaluation.value().unwrap_or(f64::NEG_INFINITY)
}

/// Reads the runs that paths name, which are runs or folders of runs.
pub fn read_runs(paths: &[PathBuf]) -> Result<Vec<RecordedRun>> {
    let mut runs = Vec::new();
    for path in paths {
        if path.is_dir() {
            let found = RecordedRun::read_all(path)?;
            ensure!(!found.is_empty(), "{} is neither a run nor a folder of runs", path.display());
            runs.extend(found);
        } else {
            runs.push(RecordedRun::read(path)?);
        }
    }
    Ok(runs)
}

/// Whether a folder is a run directory, or cannot be inspected. A run without settings has records and checkpoints.
fn is_run(path: &Path) -> bool {
    let is_file = |name: &str| match path.join(name).metadata() {
        Ok(found) => found.is_file(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    is_file(CONFIG) || is_file(METRICS) && path.join(CHECKPOINTS).is_dir()
}

/// Lists the paths in a folder, sorted by name.
fn list_paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort_by_key(|path| natural_sort_key(path));
    Ok(paths)
}

/// Sort key that puts `fruit-2` before `fruit-10`.
fn natural_sort_key(path: &Path) -> (String, u64) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_string();
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem, number)
}

/// Flattens a table to settings by full name.
pub fn flatten(table: &Table) -> FlatSettings {
    overlay::flatten(table).map(|(path, value)| (path, value.clone())).collect()
}

/// Formats settings on one line, by the last part of their names where that is unique among `all`: `learning_rate=0.001
/// seed=2`. Paths are reduced to their last part; digests and the folders of verifiers are left out.
pub fn format_settings<'a>(
    settings: impl IntoIterator<Item = (&'a String, &'a Value)>,
    all: &FlatSettings,
) -> String {
    let assignment = |(key, value): (&String, &Value)| {
        let is_only = all.keys().filter(|other| last_part(other) == last_part(key)).count() < 2;
        let name = if is_only { last_part(key) } else { key.as_str() };
        let path = value.as_str().filter(|_| last_part(key) == "path");
        match (value, path.and_then(|path| Path::new(path).file_name())) {
            (_, Some(file)) => format!("{name}={}", file.to_string_lossy()),
            (Value::Float(x), _) if is_long(*x) => format!("{name}={x:e}"),
            _ => format!("{name}={}", value.to_string().trim_matches('"')),
        }
    };
    let is_shown = |key: &str| last_part(key) != "digest" && key != "data.folder";
    let settings = settings.into_iter().filter(|(key, _)| is_shown(key));
    settings.map(assignment).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Precision;
    use crate::text::fastest_precision;

    #[test]
    fn settings_are_named_by_the_shortest_unique_suffix() {
        let text =
            "iterations = 9\nseed = 2\n[fit]\niterations = 3\n[optimizer]\nlearning_rate = 1e-31";
        let all = flatten(&text.parse::<Table>().unwrap());
        let shown = format_settings(&all, &all);
        assert_eq!(shown, "fit.iterations=3 iterations=9 learning_rate=1e-31 seed=2");
        let text = "data = { path = '/home/me/steps', digest = '5f3a', folder = '/home/me' }";
        let all = flatten(&text.parse::<Table>().unwrap());
        assert_eq!(format_settings(&all, &all), "path=steps");
    }

    /// Names of the settings of a run, trained on a device, that are not the defaults.
    fn changes(settings: Table, device: &str) -> Vec<String> {
        let devices = vec![device.to_string()];
        let run = RecordedRun { settings, devices, ..RecordedRun::default() };
        run.changes(&crate::program::dispatch::builtin_games()).unwrap().into_keys().collect()
    }

    #[test]
    fn the_default_precision_of_a_processor_is_no_change_there() {
        let defaults = (task::find("sort").unwrap().defaults)();
        for device in ["cpu", "wgpu:0"] {
            let default = fastest_precision(device);
            for precision in [Precision::F32, Precision::Bf16] {
                let mut config = LanguageConfig::for_pretrained("models/one", 1 << 30, default);
                config.precision = precision;
                let found = changes(join_language_settings("sort", &defaults, &config), device);
                let is_default = precision == default;
                assert_eq!(found.is_empty(), is_default, "{precision} on {device}: {found:?}");
            }
        }
    }

    #[test]
    fn a_run_with_the_defaults_for_its_model_has_no_changes() {
        let path = "models/one";
        let task = task::find("sort").unwrap();
        let changes_of = |mut config: LanguageConfig| {
            config.iterations = 60;
            config.fit.iterations = config.fit.iterations.min(60);
            let settings = join_language_settings("sort", &(task.defaults)(), &config);
            changes(settings, "wgpu:0")
        };
        for num_params in [1000, 1 << 30] {
            let trained = LanguageConfig::for_pretrained(path, num_params, Precision::F32);
            assert_eq!(changes_of(trained), ["iterations"]);
        }
        assert_eq!(changes_of(LanguageConfig::for_task(TINY, task.fit_iterations)), ["iterations"]);
        let mut other = LanguageConfig::for_sft(TINY, None, Precision::F32);
        other.generation.num_prompts += 1;
        assert_eq!(changes_of(other), ["generation.num_prompts", "iterations"]);
    }

    #[test]
    fn an_iteration_that_a_small_dataset_shortens_is_no_change() {
        let games = crate::program::dispatch::builtin_games();
        let defaults = (games.find_with_table("catch").unwrap().defaults)().unwrap();
        let fit = overlay::merge(defaults, overlay::parse("", IMITATION_DEFAULTS).unwrap());
        let changes_of = |own: &str| {
            let settings = overlay::merge(fit.clone(), own.parse().unwrap());
            changes(settings, "cpu")
        };
        let update =
            |steps: u32| format!("[data]\npath = \"d\"\n[update]\nnum_minibatches = {steps}");
        for (iterations, steps) in [(1, 3), (2, 33), (3, 63)] {
            let own = format!("iterations = {iterations}\n{}", update(steps));
            assert_eq!(changes_of(&own), ["data.path", "iterations"]);
        }
        let both = ["data.path", "iterations", "update.num_minibatches"];
        assert_eq!(changes_of(&format!("iterations = 1\n{}", update(128))), both);
        assert_eq!(changes_of(&format!("iterations = 2\n{}", update(32))), both);
    }

    #[test]
    fn an_unreadable_run_does_not_hide_others() {
        let folder = tempfile::TempDir::new().unwrap();
        fs::create_dir(folder.path().join("study")).unwrap();
        for (name, text) in [("a-1", "env = 'catch'"), ("a-2", "env ="), ("a-10", "env = 'fruit'")]
        {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("config.toml"), text).unwrap();
        }
        let runs = RecordedRun::read_all(folder.path()).unwrap();
        let subjects: Vec<_> = runs.iter().map(RecordedRun::subject).collect();
        assert_eq!(subjects, ["catch", "fruit"]);
        fs::rename(folder.path().join("a-10"), folder.path().join("study/seed-1")).unwrap();
        let runs = RecordedRun::read_all(folder.path()).unwrap();
        assert!(runs.len() == 2 && runs[1].path.ends_with("study/seed-1"), "one level further in");
        assert_eq!(runs[0].seconds().to_string(), "0");
        assert!(RecordedRun::read_all(&folder.path().join("a-2")).is_err());
    }
}
