//! `grove train`: a run from its settings to its final table.

use super::dry::preview;
use super::interrupt::Interrupt;
use super::members::{self, Member};
use super::patience::patiently;
use super::progress::{Progress, short};
use super::report::{Note, Report, Told, table};
use super::run_dir::{Lock, RunDir, find_checkpoint};
use super::say::{say, tell, tell_json};
use super::score::Scores;
use super::settings::commented;
use super::source::{action_names, demonstrations, epoch, iterations};
use super::watch::{self, Port};
use super::{Games, Playable, RunArgs, TrainArgs, check_engine, saved, validate};
use crate::checkpoint::{self, Checkpoint};
use crate::config::{CheckpointConfig, TrainConfig, describe, overlay};
use crate::data::Dataset;
use crate::device::Chosen;
use crate::metrics::{Growth, IterationRecord, JsonLines};
use crate::model::Network;
use crate::parallel::{TIMEOUT, Team};
use crate::trainer::{
    TrainError, Trainer, config_toml, is_finite, new_settings, saved_config, saved_game_name,
};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Instant;

/// What Ctrl-C is answered.
const FINISHING: &str = "Finishing the iteration and saving; Ctrl-C again stops at once.";

/// Episodes of the final evaluation.
const FINAL_EPISODES: usize = 10_000;

/// What a run has that starts from a policy: AdamW's first steps are of full size, however small the
/// gradient, and would undo much of what the policy knows.
const FROM_DEFAULTS: &str = "optimizer.warmup_ratio = 0.1";

/// How a new run starts.
pub struct Start<'a> {
    /// What the command line says.
    pub run: &'a RunArgs,
    /// Settings, laid over the game's defaults.
    pub file: toml::Table,
    /// The policy that it starts from, if not from fresh weights.
    pub from: Option<&'a Path>,
}

pub fn run(games: &Games, args: TrainArgs) -> Result<()> {
    let TrainArgs { game, from, run, .. } = args;
    super::use_threads(run.threads)?;
    if run.resume {
        let dir = RunDir::open(run.run_dir.clone(), game.as_deref())?;
        let _lock = members::is_first().then(|| dir.lock()).transpose()?;
        let checkpoint = dir.latest()?;
        let name = saved_game_name(&checkpoint)?;
        if let Some(game) = game.as_deref().filter(|game| *game != name) {
            bail!("the run in {} is of `{name}`, not `{game}`", dir.path().display());
        }
        return games.source(&name)?.resume(games, &run, &dir, &checkpoint);
    }
    let file = settings_file(&run)?;
    let name = game_name(games, game.as_deref(), &file)?;
    let file = match from {
        Some(_) => overlay::merged(overlay::parse("the defaults of --from", FROM_DEFAULTS)?, file),
        None => file,
    };
    games.find(&name)?.train(games, &Start { run: &run, file, from: from.as_deref() })
}

/// The settings in the file that the command line names.
pub fn settings_file(args: &RunArgs) -> Result<toml::Table> {
    let Some(path) = &args.config else { return Ok(toml::Table::new()) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings file {}", path.display()))?;
    Ok(overlay::parse(&path.display().to_string(), &text)?)
}

/// The game: the one on the command line, else the file's, else the first.
fn game_name(games: &Games, asked: Option<&str>, file: &toml::Table) -> Result<String> {
    let in_file = match file.get("env") {
        Some(toml::Value::String(name)) => Some(name.as_str()),
        Some(other) => bail!("`env` cannot be {other}: the name of a game is wanted here"),
        None => None,
    };
    match (asked, in_file) {
        (Some(asked), Some(in_file)) if asked != in_file => {
            bail!("the settings file is for `{in_file}`, not `{asked}`")
        }
        (Some(name), _) | (None, Some(name)) => Ok(name.to_string()),
        (None, None) => Ok(games.default_name()?.to_string()),
    }
}

/// Trains a new run.
pub fn start<G: Playable>(games: &Games, start: &Start) -> Result<()> {
    members::run(start.run, TIMEOUT, |member| begin::<G>(games, start, member))
}

/// One member's part in a new run.
fn begin<G: Playable>(games: &Games, start: &Start, member: Member) -> Result<()> {
    let started = Instant::now();
    let Start { run: args, file, from } = start;
    let (game, mut config) = new_settings::<G>(file, &args.set)?;
    config.engine = args.engine.unwrap_or(config.engine);
    config.precision = args.precision.unwrap_or(config.precision);
    config.seed = args.seed.unwrap_or(config.seed);
    validate(games.models(), &game, &config)?;
    let data = demonstrations(game, &config)?;
    if let Some(data) = &data {
        config.iterations = iterations(&config, data.learnt.len(), config.data.epochs);
    }
    config.iterations = args.iterations.unwrap_or(config.iterations);
    validate(games.models(), &game, &config)?;
    let (chosen, team) = member.choose()?;
    let network = patiently("Making the policy's first weights.", || {
        games.models().network(game, &config, &chosen.device)
    });
    let network = match from {
        Some(run) => first_policy::<G>(network, run)
            .with_context(|| format!("cannot start from the policy in {}", run.display()))?,
        None => network,
    };
    let (epoch, settings) = (epoch(&config, data.as_ref()), config_toml(&game, &config));
    same_run(&team, &settings, &config)?;
    let trainer = members::trainer(game, network, &config, &chosen, data, team)?;
    check_engine(&trainer)?;
    if args.dry_run {
        return preview(trainer, &chosen, started, args.json);
    }
    let (port, kept) = match trainer.team().is_root() {
        true => {
            let port = port(args)?;
            let dir = RunDir::create(args.run_dir.clone(), G::NAME)?;
            let lock = dir.lock()?;
            dir.write_config(&commented(&settings, describe))?;
            let metrics = JsonLines::create(&dir.metrics())?;
            (port, Some(Kept { dir, metrics, _lock: Some(lock) }))
        }
        false => (None, None),
    };
    let run = Run { args, kept, trainer, epoch, chosen };
    run.announce("Training", port.as_ref())?;
    run.train(games, port)
}

/// Checks that all members are to train the same.
fn same_run(team: &Team, settings: &str, config: &TrainConfig) -> Result<()> {
    team.agree("setting", settings)?;
    if config.data.is_on() {
        let dataset = Dataset::open(Path::new(&config.data.path))?;
        members::same_data(team, &dataset.files())?;
    }
    Ok(())
}

/// The network with the weights of the best policy of a run of the same game and network.
fn first_policy<G: Playable>(network: Network, run: &Path) -> Result<Network> {
    let checkpoint = find_checkpoint(run)?;
    saved_config::<G>(&checkpoint)?;
    Ok(network.with_weights_of(&checkpoint)?)
}

/// Goes on with a run, which nobody else trains, from a checkpoint.
pub fn resume<G: Playable>(
    games: &Games,
    args: &RunArgs,
    dir: &RunDir,
    checkpoint: &Checkpoint,
) -> Result<()> {
    members::run(args, TIMEOUT, |member| go_on::<G>(games, args, dir, checkpoint, member))
}

/// One member's part in a run that goes on.
fn go_on<G: Playable>(
    games: &Games,
    args: &RunArgs,
    dir: &RunDir,
    checkpoint: &Checkpoint,
    member: Member,
) -> Result<()> {
    let (game, mut config) = saved::<G>(games.models(), checkpoint)?;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    validate(games.models(), &game, &config)?;
    if checkpoint.iteration >= u64::from(config.iterations) {
        bail!(
            "the run in {} has done all its {} iterations; --iterations with a larger number \
             goes on",
            dir.path().display(),
            config.iterations
        );
    }
    let data = demonstrations(game, &config)?;
    let (chosen, team) = member.choose()?;
    let network = games.models().network(game, &config, &chosen.device);
    let (epoch, settings) = (epoch(&config, data.as_ref()), config_toml(&game, &config));
    same_run(&team, &settings, &config)?;
    team.agree("iteration in its last checkpoint", &checkpoint.iteration.to_string())?;
    let trainer = members::trainer(game, network, &config, &chosen, data, team)?;
    let trainer = trainer.restored(checkpoint)?;
    check_engine(&trainer)?;
    let (port, kept) = match trainer.team().is_root() {
        true => {
            let port = port(args)?;
            // It may be longer than it was to be.
            dir.write_config(&commented(&settings, describe))?;
            let metrics = JsonLines::resume(&dir.metrics(), trainer.iteration())?;
            (port, Some(Kept { dir: dir.clone(), metrics, _lock: None }))
        }
        false => (None, None),
    };
    let run = Run { args, kept, trainer, epoch, chosen };
    run.announce("Going on with", port.as_ref())?;
    run.train(games, port)
}

/// The port of the page, where there is to be one: taken before anything is written.
pub(super) fn port(args: &RunArgs) -> Result<Option<Port>> {
    let port = args.port.unwrap_or(watch::PORT);
    args.watch.then(|| Port::take(watch::HOST, port)).transpose()
}

/// What is due after an iteration, besides its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    /// An evaluation of the policy.
    evaluation: bool,
    /// A checkpoint.
    save: bool,
    /// The end: of the run, or since the user wants it.
    end: bool,
}

impl Due {
    /// After `iteration` of `iterations`, where the user may have asked to stop. The run's last iteration
    /// is evaluated in any case: nothing will go on after it.
    fn after(iteration: u32, iterations: u32, stop: bool, every: &CheckpointConfig) -> Self {
        let done = iteration == iterations;
        Self {
            evaluation: done || iteration.is_multiple_of(every.eval_every),
            save: done || stop || iteration.is_multiple_of(every.save_every),
            end: done || stop,
        }
    }
}

/// A run under way: what is trained, with what, and where it is kept.
struct Run<'a, G: Playable> {
    args: &'a RunArgs,
    /// Where it is kept: by the first member, who also speaks.
    kept: Option<Kept>,
    trainer: Trainer<G>,
    /// Iterations of an epoch.
    epoch: u32,
    chosen: Chosen,
}

/// Where a run is kept.
struct Kept {
    dir: RunDir,
    metrics: JsonLines,
    /// What keeps other processes from training it, unless somebody else holds it.
    _lock: Option<Lock>,
}

/// How long it took.
struct Times {
    seconds: f64,
    first_update: Option<f64>,
}

impl<G: Playable> Run<'_, G> {
    /// Says what is about to be done and with what, also in the run directory for those who watch.
    fn announce(&self, what: &str, port: Option<&Port>) -> Result<()> {
        let Self { kept: Some(Kept { dir, .. }), trainer, chosen, .. } = self else {
            return Ok(());
        };
        let note = Note::of(trainer, &chosen.info);
        let path = dir.note();
        std::fs::write(&path, serde_json::to_string_pretty(&note)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        say!("{what} {} on {}: {}.", G::NAME, chosen.info, chosen.reason);
        if trainer.team().size() > 1 {
            say!("{} members share it, this one for {}.", trainer.team().size(), share(trainer));
        }
        let obstacle = trainer.obstacle().map(|why| format!(": {why}")).unwrap_or_default();
        say!("It has {}{obstacle}.", trainer.describe());
        say!("Everything is kept in {}.", dir.path().display());
        if let Some(port) = port {
            say!("Watch it at {}", port.url());
        }
        Ok(())
    }

    /// Trains to the end or to Ctrl-C, then evaluates and reports.
    fn train(mut self, games: &Games, port: Option<Port>) -> Result<()> {
        let interrupt = Interrupt::listen(Some(FINISHING))?;
        let dir = self.kept.as_ref().map(|kept| kept.dir.clone());
        let server = match (port, &dir) {
            (Some(port), Some(dir)) => Some(watch::start(games, port, dir.path())?),
            _ => None,
        };
        let times = self.iterate(&interrupt)?;
        let is_done = self.is_done();
        let last = self.snapshot()?;
        let Some(dir) = dir else { return Ok(()) };
        self.report(games, &times, &dir, last)?;
        if server.is_some() && is_done {
            interrupt.say_nothing();
            say!("The page stays until Ctrl-C.");
            interrupt.wait();
        }
        Ok(())
    }

    /// Iterates, saving and measuring on the way.
    fn iterate(&mut self, interrupt: &Interrupt) -> Result<Times> {
        let started = Instant::now();
        let config = self.trainer.config().clone();
        let mut progress = Progress::new(self.trainer.iteration(), config.iterations);
        let mut first_update = None;
        let mut growth = Growth::default();
        while !self.is_done() {
            let mut record = self.trainer.iterate()?;
            first_update.get_or_insert_with(|| started.elapsed().as_secs_f64());
            let stop = self.trainer.team().any(interrupt.seen())?;
            let due = Due::after(record.iteration, config.iterations, stop, &config.checkpoint);
            self.keep(&mut record, due)?;
            if self.kept.is_some() {
                progress.show(&record);
            }
            let in_use =
                record.memory.in_use.filter(|_| record.iteration.is_multiple_of(self.epoch));
            if let Some(warning) = in_use.and_then(|in_use| growth.epoch(in_use)) {
                say!("warning: {warning}");
            }
            if due.end || self.is_patience_out() {
                break;
            }
        }
        progress.finish();
        Ok(Times { seconds: started.elapsed().as_secs_f64(), first_update })
    }

    /// Evaluates and saves what is due, and writes the record.
    fn keep(&mut self, record: &mut IterationRecord, due: Due) -> Result<()> {
        let improved = due.evaluation && {
            let (evaluation, best) = self.trainer.measure()?;
            record.evaluation = Some(evaluation);
            best
        };
        let snapshot = (improved || due.save).then(|| self.snapshot()).transpose()?;
        let Some(Kept { dir, metrics, .. }) = &mut self.kept else { return Ok(()) };
        if let Some(snapshot) = snapshot.as_ref().filter(|_| improved) {
            checkpoint::save(snapshot, &dir.best())?;
        }
        metrics.write(record)?;
        if let Some(snapshot) = snapshot.filter(|_| due.save) {
            dir.store().save(&snapshot)?;
            dir.store().prune(self.trainer.config().checkpoint.keep)?;
        }
        Ok(())
    }

    /// What is saved: only what the run can go on from.
    fn snapshot(&self) -> Result<Checkpoint, TrainError> {
        let snapshot = self.trainer.snapshot()?;
        match is_finite(&snapshot) {
            true => Ok(snapshot),
            false => Err(TrainError::NotFinite {
                what: "new policy or its optimiser's state",
                iteration: self.trainer.iteration(),
            }),
        }
    }

    fn is_done(&self) -> bool {
        self.trainer.iteration() >= self.trainer.config().iterations || self.is_patience_out()
    }

    /// Whether so many evaluations have found nothing better that the run is to end.
    fn is_patience_out(&self) -> bool {
        let config = self.trainer.config();
        let evaluations = u64::from(config.data.patience);
        let wait = evaluations * u64::from(config.checkpoint.eval_every);
        let best = self.trainer.best().map_or(0, |(_, iteration)| iteration);
        config.data.is_on() && wait > 0 && u64::from(self.trainer.iteration() - best) >= wait
    }

    /// The best policy, or the last where there is no best one.
    fn best(dir: &RunDir, last: Checkpoint) -> Result<Checkpoint> {
        match checkpoint::load(&dir.best()) {
            Ok(best) => return Ok(best),
            Err(checkpoint::CheckpointError::NotFound { .. }) => {}
            Err(error) => {
                say!("warning: {error}");
                say!("warning: taking the last policy instead of the best");
            }
        }
        Ok(last)
    }

    /// Evaluates the best policy, and prints the result.
    fn report(self, games: &Games, times: &Times, dir: &RunDir, last: Checkpoint) -> Result<()> {
        let best = Self::best(dir, last)?;
        let is_done = self.is_done();
        let Self { trainer, args, chosen, .. } = self;
        let (game, config) = (trainer.game(), trainer.config().clone());
        let policy = games.models().load_policy(&best, game, &config)?;
        let scores = G::PLAYABLE.then(|| Scores::of(&policy, game, FINAL_EPISODES, 0));
        let Times { seconds, first_update } = *times;
        let iteration = trainer.iteration();
        if !is_done {
            let all = config.iterations;
            say!("Interrupted and saved after iteration {iteration} of {all}; --resume goes on.");
        }
        let confusion = match config.data.is_on() {
            true => trainer.restored(&best)?.confusion(),
            false => None,
        };
        let report = Report {
            env: G::NAME,
            run_dir: dir.path().display().to_string(),
            device: &chosen.info.name,
            seed: config.seed,
            iterations: config.iterations,
            iteration,
            env_steps: config.steps_per_iteration() * u64::from(iteration),
            interrupted: !is_done,
            seconds,
            seconds_to_first_update: first_update,
            best_iteration: best.iteration,
            scores,
            held_out: confusion
                .as_ref()
                .map(|confusion| Told { means: confusion.means(), confusion: &confusion.counts }),
        };
        if args.json {
            return tell_json(&report);
        }
        let names = action_names(game, &config);
        let told = confusion.as_ref().map(|confusion| table(confusion, &names)).unwrap_or_default();
        let scores = scores.map(|scores| scores.table(game.references())).unwrap_or_default();
        let all = told + &scores;
        tell(format_args!(
            "{} steps in {seconds:.1} s, {:.2} s of them up to the first update;\n\
             the best policy is of iteration {}.\n\n{}",
            short(report.env_steps as f64),
            first_update.unwrap_or(0.0),
            best.iteration,
            all.trim_end()
        ))
    }
}

/// A member's part of the work, in words.
fn share<G: Playable>(trainer: &Trainer<G>) -> String {
    let shards = trainer.shards();
    format!("{} of the {} shards of a batch", shards.own().len(), shards.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    #[test]
    fn ctrl_c_in_the_last_iteration_leaves_a_run_that_is_evaluated() {
        let every = &TrainConfig::for_game("any").checkpoint;
        let (end, all) = (every.eval_every * 2 + 1, every.eval_every * 2 + 1);
        for stop in [false, true] {
            let due = Due::after(end, all, stop, every);
            assert_eq!(due, Due { evaluation: true, save: true, end: true });
        }
        // Before it, the evaluation is left to the run that goes on.
        let due = Due::after(end, all + 1, true, every);
        assert_eq!(due, Due { evaluation: false, save: true, end: true });
        let due = Due::after(end, all + 1, false, every);
        assert_eq!(due, Due { evaluation: false, save: false, end: false });
    }
}
