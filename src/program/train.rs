//! `grove train`: a run from its settings to its final table.

use super::interrupt::Interrupt;
use super::progress::{Progress, short};
use super::run_dir::RunDir;
use super::watch::{self, Port};
use super::{Playable, TrainArgs, check, check_engine, settings, with_game};
use crate::checkpoint::{self, Checkpoint};
use crate::config::overlay;
use crate::device::{self, Chosen, DeviceInfo};
use crate::env::Rules;
use crate::metrics::JsonLines;
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, evaluate};
use crate::trainer::{Trainer, config_toml, load_policy, saved_config, saved_game_name};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::time::Instant;

/// Episodes of the final evaluation.
const FINAL_EPISODES: usize = 10_000;

#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    run_dir: String,
    device: &'a str,
    seed: u64,
    iterations: u32,
    iteration: u32,
    env_steps: u64,
    interrupted: bool,
    seconds: f64,
    seconds_to_first_update: Option<f64>,
    best_iteration: u64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// What a run is trained with, for its directory.
#[derive(Serialize)]
struct Note<'a> {
    grove: &'a str,
    device: &'a DeviceInfo,
    engine: String,
}

pub fn run(args: TrainArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    if args.resume {
        let game = args.game.as_deref().unwrap_or("fruit");
        let dir = RunDir::open(args.run_dir.clone(), game)?;
        let checkpoint = dir.latest()?;
        let name = saved_game_name(&checkpoint)?;
        if args.game.as_deref().is_some_and(|game| game != name) {
            bail!("the run in {} is of `{name}`, not `{game}`", dir.path().display());
        }
        return with_game!(name.as_str(), resume(&args, dir, &checkpoint));
    }
    let file = match &args.config {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the settings file {}", path.display()))?;
            overlay::parse(&path.display().to_string(), &text)?
        }
        None => toml::Table::new(),
    };
    let name = game_name(args.game.as_deref(), &file)?;
    with_game!(name.as_str(), start(&args, file))
}

/// The game: the one on the command line, else the file's, else fruit.
fn game_name(asked: Option<&str>, file: &toml::Table) -> Result<String> {
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
        (None, None) => Ok("fruit".to_string()),
    }
}

fn start<G: Playable>(args: &TrainArgs, file: toml::Table) -> Result<()> {
    let (game, mut config) = settings::<G>(file, &args.set)?;
    config.engine = args.engine.unwrap_or(config.engine);
    config.precision = args.precision.unwrap_or(config.precision);
    config.seed = args.seed.unwrap_or(config.seed);
    config.iterations = args.iterations.unwrap_or(config.iterations);
    check(&game, &config)?;
    let chosen = device::choose(&args.device)?;
    let trainer = Trainer::new(game, &config, &chosen.device);
    check_engine(&trainer)?;
    let port = port(args)?;
    let dir = RunDir::create(args.run_dir.clone(), G::NAME)?;
    let path = dir.config();
    std::fs::write(&path, config_toml(&game, &config))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let metrics = JsonLines::create(&dir.metrics())?;
    announce("Training", &trainer, &chosen, &dir, port.as_ref())?;
    train(args, dir, trainer, metrics, &chosen, port)
}

fn resume<G: Playable>(args: &TrainArgs, dir: RunDir, checkpoint: &Checkpoint) -> Result<()> {
    let (game, mut config) = saved_config::<G>(checkpoint)?;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    check(&game, &config)?;
    if checkpoint.iteration >= u64::from(config.iterations) {
        bail!(
            "the run in {} has done all its {} iterations; --iterations with a larger number \
             goes on",
            dir.path().display(),
            config.iterations
        );
    }
    let chosen = device::choose(&args.device)?;
    let trainer = Trainer::resume(checkpoint, game, &config, &chosen.device)?;
    check_engine(&trainer)?;
    let port = port(args)?;
    let metrics = JsonLines::resume(&dir.metrics(), trainer.iteration())?;
    announce("Going on with", &trainer, &chosen, &dir, port.as_ref())?;
    train(args, dir, trainer, metrics, &chosen, port)
}

/// The port of the page, where there is to be one: taken before anything is written.
fn port(args: &TrainArgs) -> Result<Option<Port>> {
    let port = args.port.unwrap_or(watch::PORT);
    args.watch.then(|| Port::take(watch::HOST, port)).transpose()
}

/// Says what is about to be done and with what, also in the run directory for those who watch.
fn announce<G: Playable>(
    what: &str,
    trainer: &Trainer<G>,
    chosen: &Chosen,
    dir: &RunDir,
    port: Option<&Port>,
) -> Result<()> {
    let note =
        Note { grove: env!("CARGO_PKG_VERSION"), device: &chosen.info, engine: trainer.describe() };
    let path = dir.note();
    std::fs::write(&path, serde_json::to_string_pretty(&note)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("{what} {} on {}: {}.", G::NAME, chosen.info, chosen.reason);
    let obstacle = trainer.obstacle().map(|why| format!(": {why}")).unwrap_or_default();
    eprintln!("It has {}{obstacle}.", trainer.describe());
    eprintln!("Everything is kept in {}.", dir.path().display());
    eprintln!(
        "A loss near zero is normal, since advantages have mean zero: watch score and entropy."
    );
    if let Some(port) = port {
        eprintln!("Watch it at {}", port.url());
    }
    Ok(())
}

/// Iterates to the end or to Ctrl-C, saving and measuring on the way, then reports.
fn train<G: Playable>(
    args: &TrainArgs,
    dir: RunDir,
    mut trainer: Trainer<G>,
    mut metrics: JsonLines,
    chosen: &Chosen,
    port: Option<Port>,
) -> Result<()> {
    let interrupt =
        Interrupt::listen(Some("Finishing the iteration and saving; Ctrl-C again stops at once."))?;
    let server = port.map(|port| watch::start(port, dir.path())).transpose()?;
    let started = Instant::now();
    let config = trainer.config().clone();
    let every = &config.checkpoint;
    let mut progress = Progress::new(trainer.iteration(), config.iterations);
    let (mut env_steps, mut first_update) = (0, None);
    while trainer.iteration() < config.iterations {
        let mut record = trainer.iterate()?;
        first_update.get_or_insert_with(|| started.elapsed().as_secs_f64());
        let stop = interrupt.seen();
        let last = stop || record.iteration == config.iterations;
        if record.iteration.is_multiple_of(every.eval_every) || last && !stop {
            let (evaluation, best) = trainer.measure();
            record.evaluation = Some(evaluation);
            if best {
                checkpoint::save(&trainer.snapshot(), &dir.best())?;
            }
        }
        env_steps = record.env_steps;
        metrics.write(&record)?;
        if last || record.iteration.is_multiple_of(every.save_every) {
            dir.store().save(&trainer.snapshot())?;
            dir.store().prune(every.keep)?;
        }
        progress.show(&record);
        if stop {
            break;
        }
    }
    progress.finish();
    let seconds = started.elapsed().as_secs_f64();

    let stopped = trainer.iteration() < config.iterations;
    let best = match checkpoint::load(&dir.best()) {
        Ok(best) => best,
        Err(checkpoint::CheckpointError::NotFound { .. }) => trainer.snapshot(),
        Err(error) => {
            eprintln!("warning: {error}");
            eprintln!("warning: taking the last policy instead of the best");
            trainer.snapshot()
        }
    };
    let policy = load_policy(&best, trainer.game(), &config)?;
    let evaluation =
        evaluate(&policy, trainer.game(), FINAL_EPISODES, Stream::Evaluation, 0, Player::Greedy);
    if stopped {
        eprintln!(
            "Interrupted and saved after iteration {} of {}; --resume goes on.",
            trainer.iteration(),
            config.iterations
        );
    }
    if args.json {
        let report = Report {
            env: G::NAME,
            run_dir: dir.path().display().to_string(),
            device: &chosen.info.name,
            seed: config.seed,
            iterations: config.iterations,
            iteration: trainer.iteration(),
            env_steps,
            interrupted: stopped,
            seconds,
            seconds_to_first_update: first_update,
            best_iteration: best.iteration,
            evaluation,
        };
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} steps in {seconds:.1} s, {:.2} s of them up to the first update; the best policy is of \
             iteration {}.\n",
            short(env_steps as f64),
            first_update.unwrap_or(0.0),
            best.iteration
        );
        print_table(&trainer.game(), &evaluation);
    }
    if server.is_some() && !stopped {
        interrupt.say_nothing();
        eprintln!("The page stays until Ctrl-C.");
        interrupt.wait();
    }
    Ok(())
}

/// The score beside those of known players.
fn print_table<G: Rules>(game: &G, evaluation: &Evaluation) {
    let own = format!("this policy, greedy, {} fresh episodes", evaluation.episodes);
    let mut rows: Vec<(&str, f64, String)> =
        game.references().iter().map(|(player, score)| (*player, *score, String::new())).collect();
    let error = format!(" +- {:.3}", evaluation.std_error);
    let at = rows.iter().position(|(_, score, _)| *score >= evaluation.mean_score);
    rows.insert(at.unwrap_or(rows.len()), (&own, evaluation.mean_score, error));
    let width = rows.iter().map(|(player, _, _)| player.len()).max().unwrap_or(0);
    println!("{:width$}  {:>8}", "player", "score");
    for (player, score, error) in rows {
        println!("{player:width$}  {score:>8.3}{error}");
    }
}
