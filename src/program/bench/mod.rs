//! `grove bench`: measures the speed of simulation and training on a device.
//!
//! Five quantities are measured separately: the rules alone, rules with policy, whole iterations, the time
//! to a score, and the time to the first update. Rates are medians of repeats after a warm-up, each at
//! least 0.1 s long.

mod args;
mod peak;
mod report;
mod scaling;
mod sizes;
mod text;
mod work;

pub use args::BenchArgs;

use super::games::{ConfigurableGame, Games};
use super::models::Models;
use super::output::{print_json, print_result, write_file};
use super::ranks;
use super::validation::validate;
use crate::device;
use crate::env::Rules;
use crate::model::NativePolicy;
use crate::rng::Stream;
use crate::rollout::{ActionSelection, evaluate, play_at_random};
use crate::run::RunFolder;
use crate::settings::{ModelKind, RolloutConfig, TrainConfig};
use crate::task;
use crate::trainer::{GameTrainer, Trainer, config_to_toml, new_settings};
use anyhow::{Result, bail, ensure};
use burn::tensor::Device;
use report::{EVAL_EPISODES, EVAL_EVERY, Measurement, Report, ScoreRuns};
use serde::Serialize;
use sizes::benchmark_config;
use std::fmt::Display;
use std::time::Instant;
use work::StepWork;

/// Measures a game, or a task with its language model.
pub fn run(games: &Games, args: BenchArgs) -> Result<()> {
    args.out.as_deref().map_or(Ok(()), RunFolder::check_output)?;
    ranks::start_thread_pool(args.threads)?;
    let name = args.game.as_deref();
    if let Some(task) = name.filter(|name| args.model.is_some() || task::find(name).is_ok()) {
        return text::bench(task, &args);
    }
    ensure!(args.model.is_none(), "--model needs a task: grove bench TASK --model MODEL");
    (games.find_beside_tasks(name)?.bench)(&games.models, &args)
}

/// Measures all quantities for a game, with its default parameters and the changes in `args`.
pub fn bench<G: ConfigurableGame>(models: &Models, args: &BenchArgs) -> Result<()> {
    let (game, defaults) = new_settings::<G>(&toml::Table::new(), &args.set)?;
    let config = benchmark_config(args, &config_to_toml(&game, &defaults).parse()?, &defaults)?;
    validate(models, &game, &config)?;
    ensure!(!config.data.is_on(), "`grove bench` plays games: leave data.path out");
    if args.scaling {
        return scaling::bench(models, args, game, &config);
    }

    let started = Instant::now();
    let chosen = device::start(&args.device)?;
    let device = &chosen.device;
    let network = models.new_network(game, &config, device);
    let mut trainer = Trainer::with_model(game, network, &config, device);
    if let Some(missing) = trainer.unsupported_reason() {
        bail!(missing);
    }
    trainer.iterate()?;
    let seconds_to_first_update = started.elapsed().as_secs_f64();

    let (num_envs, num_steps) = (config.rollout.num_envs(), config.rollout.num_steps);
    let (trained_rate, peak_memory) = measure_training(&mut trainer, args.repeats)?;
    let policy_rate =
        Measurement::measure_rate(args.repeats, num_envs * num_steps, || Ok(trainer.rehearse()))?;
    let rules_rate = measure_rules(game, &config.rollout, args.repeats, device)?;
    let seconds_to_score = args
        .score
        .map(|score| measure_time_to_score(models, game, &defaults, args, score, device))
        .transpose()?;

    let is_builtin = !matches!(config.policy.kind, ModelKind::UserDefined(_));
    // The peak is measured last, because it takes much memory.
    let report = Report {
        env: G::NAME,
        device: &chosen.info,
        engine: trainer.describe_engine(),
        threads: rayon::current_num_threads(),
        num_envs,
        num_steps,
        learn_steps: config.rollout.learn_steps,
        num_features: game.num_features(),
        hidden: &config.policy.hidden,
        policy: format!("{} of {}", config.policy.kind, config.policy.describe_sizes()),
        update_epochs: config.update.update_epochs,
        optimizer_steps_per_iteration: config.update.update_epochs * config.update.num_minibatches,
        repeats: args.repeats,
        rules_steps_per_second: rules_rate,
        policy_steps_per_second: policy_rate,
        trained_steps_per_second: trained_rate,
        seconds_to_first_update,
        peak_memory_bytes: peak_memory,
        work_per_step: is_builtin.then(|| StepWork::new(game, &config)),
        seconds_to_score,
        device_peak: if args.no_peak { None } else { peak::measure(device, &chosen.info) },
    };
    publish(args, &report)
}

/// Measures the steps per second of whole iterations, and the memory that they reserve, bytes.
fn measure_training<G: Rules>(
    trainer: &mut GameTrainer<G>,
    repeats: usize,
) -> Result<(Measurement, Option<u64>)> {
    let rollout = &trainer.config().rollout;
    let steps = rollout.num_envs() * rollout.num_steps;
    let mut memory = None;
    let rate = Measurement::measure_rate(repeats, steps, || {
        let started = Instant::now();
        let record = trainer.iterate()?;
        let seconds = started.elapsed().as_secs_f64();
        memory = memory.max(record.memory.reserved);
        Ok(seconds)
    })?;
    Ok((rate, memory))
}

/// Measures the steps per second of a game's rules with random actions.
fn measure_rules<G: Rules>(
    game: G,
    rollout: &RolloutConfig,
    repeats: usize,
    device: &Device,
) -> Result<Measurement> {
    let (num_envs, num_steps) = (rollout.num_envs(), rollout.num_steps);
    let mut seed = 0;
    Measurement::measure_rate(repeats, num_envs * num_steps, || {
        seed += 1;
        let started = Instant::now();
        // Blocks until the device has finished.
        device::read(play_at_random(game, num_envs, num_steps, seed, device).sum());
        Ok(started.elapsed().as_secs_f64())
    })
}

/// Prints a report, and writes it to the requested file. If one of the two fails, the other is still done.
fn publish(args: &BenchArgs, report: &(impl Serialize + Display)) -> Result<()> {
    let printed =
        if args.json { print_json(report) } else { print_result(report.to_string().trim_end()) };
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(report)? + "\n";
        write_file(path, text.as_bytes())?;
    }
    printed
}

/// Evaluates the greedy policy: its mean score over the episodes that `grove eval` plays.
fn evaluate_greedy<G: Rules>(trainer: &GameTrainer<G>) -> f64 {
    let game = trainer.game();
    let policy = NativePolicy::new(&trainer.model(), game.num_features(), game.num_actions());
    let stream = Stream::Evaluation;
    evaluate(&policy, game, EVAL_EPISODES, stream, 0, ActionSelection::Greedy).mean_score
}

/// Measures the seconds until the greedy policy of the game's default run reaches `score`, for each seed.
fn measure_time_to_score<G: Rules>(
    models: &Models,
    game: G,
    defaults: &TrainConfig,
    args: &BenchArgs,
    score: f64,
    device: &Device,
) -> Result<ScoreRuns> {
    let runs = (0..args.score_repeats).map(|i| {
        let config = TrainConfig { seed: defaults.seed + i, ..defaults.clone() };
        let started = Instant::now();
        let network = models.new_network(game, &config, device);
        let mut trainer = Trainer::with_model(game, network, &config, device);
        while trainer.iterations_done() < config.iterations {
            trainer.iterate()?;
            let is_due = trainer.iterations_done().is_multiple_of(EVAL_EVERY)
                || trainer.iterations_done() == config.iterations;
            if is_due && evaluate_greedy(&trainer) >= score {
                return Ok(Some(started.elapsed().as_secs_f64()));
            }
        }
        Ok(None)
    });
    Ok(ScoreRuns::new(score, defaults.seed, runs.collect::<Result<_>>()?))
}
