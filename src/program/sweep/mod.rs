//! `grove sweep`: trains runs with many settings to find the best ones.

mod check;
mod folder;
mod report;
mod results;
mod search;
mod space;

use super::args::{self, Seeds, SweepArgs};
use super::games::Games;
use super::interrupt::Interrupt;
use super::jobs::{Concurrency, JobReport, JobRunner, option_argument};
use super::output::eprint_line;
use super::progress::RunBoard;
use super::recorded_run::format_settings;
use super::settings::language_defaults;
use super::{ranks, text};
use crate::disk::{self, input};
use crate::plot::statistics::mean;
use crate::run::pluralize;
use crate::settings::{Precision, overlay};
use crate::task;
use crate::trainer::text::{TINY, join_language_settings};
use anyhow::{Context, Result, anyhow, bail, ensure};
use folder::{claim, is_resumable, lock_runs, output_folder};
use report::Report;
use results::{
    RESULTS_FILE, Results, RunKey, RunResult, forget_failures, is_lost_batch, read_results,
};
use search::{Search, Trial};
use serde::Deserialize;
use space::Space;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use toml::Table;

/// Answer to Ctrl-C.
const INTERRUPT_ANSWER: &str = "Waiting for the running processes to finish their iteration and save; the same \
                                command continues the sweep.";
/// Maximum number of trials of a sweep: far more than anyone trains, and few enough to list.
const MAX_TRIALS: usize = 1_000_000;

/// Keys of a sweep's file that only some searches use.
const SEARCH_KEYS: [(&str, &[Search]); 5] = [
    ("trials", &[Search::Random, Search::Halving, Search::Tpe]),
    ("steps", &[Search::Grid]),
    ("eta", &[Search::Halving]),
    ("rounds", &[Search::Halving]),
    ("batch", &[Search::Tpe]),
];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SweepConfig {
    game: String,
    search: Search,
    /// Total number of trials; a grid has as many as it has points.
    trials: usize,
    /// Seeds of each trial, in the format of `--seeds`.
    #[serde(deserialize_with = "check::read_seeds")]
    seeds: String,
    /// Grid steps per range of numbers.
    steps: usize,
    /// Factor between the iterations of successive rounds of halving.
    eta: u32,
    rounds: u32,
    /// Number of TPE trials chosen at once.
    batch: usize,
    /// Seed of the search itself.
    seed: u32,
    settings: Table,
    #[serde(deserialize_with = "space::read_space")]
    space: Space,
}

impl Default for SweepConfig {
    fn default() -> Self {
        Self {
            game: String::new(),
            search: Search::default(),
            trials: 32,
            seeds: "1".to_string(),
            steps: 4,
            eta: 3,
            rounds: 3,
            batch: 8,
            seed: 1,
            settings: Table::new(),
            space: Space::new(),
        }
    }
}

/// A sweep in progress.
struct Sweep<'a> {
    config: SweepConfig,
    /// Whether it searches the settings of a task, rather than a game.
    is_task: bool,
    args: &'a SweepArgs,
    /// Command line that starts this program again.
    start_command: &'a [OsString],
    folder: PathBuf,
    seeds: Vec<u64>,
    /// Number of iterations of a whole run.
    iterations: u32,
    results: Results,
}

/// Trains the runs of a sweep that have no result yet, and prints its report.
pub fn run(games: &Games, args: SweepArgs) -> Result<()> {
    ensure!(ranks::are_threads(), "`grove sweep` starts processes by itself, and does without MPI");
    let name = args.file.display().to_string();
    let text =
        input::read_description(&args.file).with_context(|| format!("cannot read {name}"))?;
    let config: SweepConfig = toml::from_str(&text).with_context(|| format!("in {name}"))?;
    let keys: Table = toml::from_str(&text).with_context(|| format!("in {name}"))?;
    for (key, searches) in SEARCH_KEYS {
        ensure!(
            searches.contains(&config.search) || !keys.contains_key(key),
            "in {name}: `{key}` does not apply to this search; leave it out, or set `search`"
        );
    }
    let mut sweep = Sweep::new(games, config, &args).with_context(|| format!("in {name}"))?;
    let _lock = claim(&sweep.folder, &text)?;
    let _runs_lock = lock_runs(&sweep.folder)?;
    // Another process may have been writing them.
    sweep.load_results()?;
    sweep.search()
}

impl SweepConfig {
    /// Whether TPE chooses another batch after the one of this round.
    fn has_batch_after(&self, round: u32) -> bool {
        let chosen = (round as usize + 1).saturating_mul(self.batch);
        self.search == Search::Tpe && chosen < self.trials
    }

    /// Number of iterations of a run in a round of halving whose last round has `iterations`.
    fn iterations_in_round(&self, iterations: u32, round: u32) -> u32 {
        (iterations / self.eta.saturating_pow(self.rounds - 1 - round)).max(1)
    }
}

impl<'a> Sweep<'a> {
    /// Creates a sweep from its file, after checking it.
    fn new(games: &'a Games, mut config: SweepConfig, args: &'a SweepArgs) -> Result<Self> {
        check_config(&config)?;
        let is_task = task::find(&config.game).is_ok();
        let mut settings = default_settings(games, &config, is_task)?;
        overlay::lay_over(&mut settings, config.settings.clone())?;
        if is_task {
            check::check_code_is_approved(&config, &settings, args)?;
        }
        check::allow_fractions(&mut config.space, &settings);
        check::check_values(&config, |assignments| {
            if is_task {
                text::validate(&config.game, assignments)
            } else {
                (games.find(&config.game)?.validate)(&games.models, assignments)
            }
        })?;
        let middle = space::settings_at(&config.space, &vec![0.5; config.space.len()]);
        overlay::lay_over(&mut settings, middle.into_iter().collect())?;
        // The defaults of a task depend on its model.
        let known_settings = if is_task { &config.settings } else { &settings };
        let iterations = read_iterations(known_settings, config.search)?;
        // Trials with other models, or other numbers of SFT iterations, differ in this.
        let may_differ = check::is_any_searched(&config, &["fit.iterations", "model.path"]);
        if config.search == Search::Halving && !may_differ {
            check::check_first_round(&settings, config.iterations_in_round(iterations, 0))?;
        }
        if let Some(note) = search::limit_trials(&mut config) {
            eprint_line!("{note}");
        }
        let Seeds(seeds) = args::parse_seeds(&config.seeds).map_err(anyhow::Error::msg)?;
        let folder = output_folder(args)?;
        let results = Results::default();
        let start_command = &games.start_command;
        Ok(Self { config, is_task, args, start_command, folder, seeds, iterations, results })
    }

    /// Reads the results so far, except for failures that are tried again.
    fn load_results(&mut self) -> Result<()> {
        let path = self.folder.join(RESULTS_FILE);
        let results = read_results(&path);
        self.results = results.with_context(|| format!("cannot read {}", path.display()))?;
        forget_failures(&mut self.results, &self.config, self.seeds.len());
        Ok(())
    }

    /// Searches round by round, and reports.
    fn search(&mut self) -> Result<()> {
        let mut trials = Vec::new();
        let mut first_scores = BTreeMap::new();
        let interrupt = Interrupt::listen(Some(INTERRUPT_ANSWER))?;
        for round in 0.. {
            let indices = search::select_trials(&self.config, &mut trials, round);
            if indices.is_empty() {
                break;
            }
            self.train(&trials, &indices, round, &interrupt)?;
            // A run that something else has stopped has no result, either.
            if interrupt.has_signal() || !self.pending_runs(&indices, round).is_empty() {
                let folder = self.folder.display();
                bail!("interrupted; the same command continues the sweep in {folder}");
            }
            for index in indices {
                let scores = self.results.scores(index, round, &self.seeds);
                let score = scores.map(|scores| mean(&scores));
                trials[index].score = score;
                first_scores.entry(index).or_insert(score);
            }
            let results = self.results.latest_results.values();
            let error = results
                .filter(|result| result.run.round == round)
                .find_map(|it| it.error.as_deref());
            let error = error.unwrap_or("they have no score");
            if self.config.has_batch_after(round) && is_lost_batch(&self.results, round) {
                let batch = round + 1;
                bail!(
                    "all runs of batch {batch} failed: {error}; the same command tries them again"
                );
            }
            if trials.iter().all(|trial: &Trial| trial.score.is_none()) {
                bail!("all runs failed: {error}");
            }
        }
        let first_scores = first_scores.into_values().collect();
        let report = Report::new(self, &trials, first_scores);
        report.write_best_settings(self)?;
        report.print(self)
    }

    /// Trains the runs of a round that have no result yet; `indices` are those of its trials.
    fn train(
        &mut self,
        trials: &[Trial],
        indices: &[usize],
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let runs = self.pending_runs(indices, round);
        let commands = runs.iter().map(|run| self.prepare_run(run, &trials[run.trial]));
        let jobs = commands.collect::<Result<Vec<_>>>()?;
        let SweepArgs { device, threads, .. } = self.args;
        let concurrency = Concurrency::new(device, *threads, self.is_task, runs.len())?;
        self.announce(round, runs.len(), concurrency);
        let path = self.folder.join(RESULTS_FILE);
        let file = disk::open_append(&path);
        let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let (mut num_ended, num_runs) = match self.config.search {
            // Batches are too small to be counted separately.
            Search::Tpe => {
                (self.results.latest_results.len(), self.config.trials * self.seeds.len())
            }
            _ => (0, runs.len()),
        };
        let board = RunBoard::new(false, num_ended, num_runs);
        let start_command = self.start_command;
        let runner = JobRunner { start_command, concurrency, interrupt, board: &board };
        runner.run(&jobs, |job, report| {
            let report = match report {
                Ok(None) => return Ok(()),
                Ok(Some(report)) if report.interrupted => return Ok(()),
                Err(_) if interrupt.has_signal() => return Ok(()),
                Ok(Some(report)) => Ok(report),
                Err(error) => Err(error),
            };
            num_ended += 1;
            let run = runs[job];
            let line = self.record_result(run, &trials[run.trial], report, &mut file)?;
            board.print_ended(&format!("{num_ended}/{num_runs}  {line}"), || {
                report::format_leaders(&self.config, trials, &self.results, &self.seeds, round)
            });
            Ok(())
        })
    }

    /// Writes the result of a run of a trial to the file of results. Returns a line about it.
    fn record_result(
        &mut self,
        run: RunKey,
        trial: &Trial,
        report: Result<JobReport>,
        file: &mut File,
    ) -> Result<String> {
        let score = report.as_ref().ok().and_then(|report| report.mean_score);
        let error = report.err().map(|error| format!("{error:#}"));
        let settings = space::settings_at(&self.config.space, &trial.point);
        let settings = format_settings(&settings, &settings);
        let outcome = score.map_or_else(
            || format!("failed: {}", error.as_deref().unwrap_or("it has no score")),
            |score| format!("{score:.3}"),
        );
        let result = RunResult { run, score, error };
        let line = serde_json::to_string(&result)? + "\n";
        disk::write(file, line.as_bytes()).map_err(|error| {
            let path = self.folder.join(RESULTS_FILE);
            anyhow!(
                "cannot write {}: {error}; the same command continues the sweep",
                path.display()
            )
        })?;
        self.results.insert(result);
        Ok(format!("trial {} seed {}: {outcome}  ({settings})", run.trial, run.seed))
    }

    /// The runs of these trials in a round that have no result yet.
    fn pending_runs(&self, indices: &[usize], round: u32) -> Vec<RunKey> {
        let runs_of = |&trial: &usize| {
            self.seeds.iter().map(move |seed| RunKey { trial, round, seed: *seed })
        };
        let is_pending = |run: &RunKey| !self.results.latest_results.contains_key(run);
        indices.iter().flat_map(runs_of).filter(is_pending).collect()
    }

    /// Prints how many runs the round starts and how they share the machine.
    fn announce(&self, round: u32, num_runs: usize, concurrency: Concurrency) {
        if num_runs == 0 {
            return;
        }
        let round = match self.config.search {
            Search::Halving => format!("Round {}: ", round + 1),
            Search::Tpe => format!("Batch {}: ", round + 1),
            Search::Grid | Search::Random => String::new(),
        };
        eprint_line!("{round}{}, {}.", pluralize(num_runs, "run"), concurrency.describe());
    }

    fn run_folder(&self, run: &RunKey) -> PathBuf {
        let RunKey { trial, round, seed } = run;
        let rounds = if self.config.search == Search::Halving {
            format!("-round-{round}")
        } else {
            String::new()
        };
        self.folder.join(format!("trial-{trial}{rounds}-seed-{seed}"))
    }

    /// Returns the command line of a run, which resumes it if it was interrupted. Otherwise it starts the run afresh,
    /// and what is left of an earlier start is removed.
    fn prepare_run(&self, run: &RunKey, trial: &Trial) -> Result<Vec<OsString>> {
        let folder = self.run_folder(run);
        let mut argv = vec!["train".into(), option_argument("device", &self.args.device)];
        argv.push(option_argument("run-dir", &folder));
        if is_resumable(&folder)? {
            argv.push("--resume".into());
            return Ok(argv);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        argv.insert(1, self.config.game.clone().into());
        argv.push(option_argument("seed", run.seed.to_string()));
        let settings =
            self.complete_settings(space::settings_at(&self.config.space, &trial.point), run.round);
        let assignments = check::format_assignments(&settings).into_iter();
        argv.extend(assignments.map(|assignment| option_argument("set", assignment)));
        Ok(argv)
    }

    /// Completes the searched settings with those common to all trials and with the iterations of the round. Keys are
    /// full names.
    fn complete_settings(&self, searched: BTreeMap<String, toml::Value>, round: u32) -> Table {
        let mut settings = check::complete_settings(&self.config, searched);
        if self.config.search == Search::Halving {
            let iterations = self.config.iterations_in_round(self.iterations, round);
            settings.insert("iterations".to_string(), i64::from(iterations).into());
        }
        settings
    }
}

/// Checks what a sweep's file says by itself: which settings are searched, and how.
fn check_config(config: &SweepConfig) -> Result<()> {
    if config.game.is_empty() {
        bail!("`game` is missing: the game, or the language task, whose settings are searched");
    }
    ensure!(!config.space.is_empty(), "[space] is empty");
    if config.space.contains_key("seed") || config.settings.contains_key("seed") {
        bail!("`seed` is not a setting of a sweep; `seeds` lists the seeds of each trial");
    }
    if config.search == Search::Halving && config.space.contains_key("iterations") {
        bail!("halving sets `iterations` itself; leave it out of [space]");
    }
    check::check_names(config)?;
    config.space.iter().try_for_each(|(name, range)| range.check(name))?;
    let counts = [config.trials, config.steps, config.batch, config.rounds as usize];
    if counts.contains(&0) || config.eta < 2 {
        bail!("trials, steps, batch and rounds must be 1 or more, and eta 2 or more");
    }
    let trials = match config.search {
        Search::Grid => space::grid_size(&config.space, config.steps),
        _ => Some(config.trials),
    };
    if trials.is_none_or(|trials| trials > MAX_TRIALS) {
        bail!("the sweep has more than {MAX_TRIALS} trials");
    }
    Ok(())
}

/// Default settings of a sweep's game, or of its task with its model.
fn default_settings(games: &Games, config: &SweepConfig, is_task: bool) -> Result<Table> {
    let name = &config.game;
    if !is_task {
        return (games.find_beside_tasks(Some(name))?.defaults)();
    }
    let task_settings = (task::find(name)?.defaults)();
    let path = text::resolve_model_path(name, None, &config.settings, &[])?;
    let num_params = (path != TINY).then_some(usize::MAX);
    let config = language_defaults(name, &path, num_params, Precision::F32)?;
    Ok(join_language_settings(name, &task_settings, &config))
}

/// Number of iterations of a whole run with these settings; 1 if they do not have it, which only halving needs.
fn read_iterations(settings: &Table, search: Search) -> Result<u32> {
    match settings.get("iterations").and_then(toml::Value::as_integer) {
        Some(requested) => {
            let count = u32::try_from(requested).ok().filter(|count| *count > 0);
            count.with_context(|| format!("iterations = {requested} is not 1 to 2^32 - 1"))
        }
        None if search == Search::Halving => {
            bail!("halving a task's runs needs settings.iterations")
        }
        None => Ok(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_sections_are_those_by_their_full_names() {
        let read = |space: &str| toml::from_str::<SweepConfig>(&format!("game = 'catch'\n{space}"));
        let quoted =
            "[space]\n'loss.entropy_coef' = { linear = [0, 1] }\niterations = { linear = [1, 9] }";
        let dotted = quoted.replace('\'', "");
        let section =
            "[space.loss]\nentropy_coef.linear = [0, 1]\n[space.iterations]\nlinear = [1, 9]";
        let space = read(quoted).unwrap().space;
        for text in [&*dotted, section] {
            assert_eq!(read(text).unwrap().space, space, "{text}");
        }
        let twice = format!("{quoted}\n[space.loss]\nentropy_coef.log = [1, 2]");
        let error = read(&twice).unwrap_err().to_string();
        assert!(error.contains("`loss.entropy_coef` is listed twice"), "{error}");
        assert!(read("[space.loss]\nentropy_coef.normal = [0, 1]").is_err());
    }
}
