//! `grove bench`: how fast a device plays and trains, in five separate figures.

use super::{BenchArgs, Playable, check, settings, with_game};
use anyhow::{Context, Result};
use grove::config::{Start, TrainConfig};
use grove::device::{self, Chosen};
use grove::env::Rules;
use grove::rollout::{Player, play_at_random};
use grove::trainer::Trainer;
use serde::Serialize;
use std::time::Instant;

/// A figure: the median of several runs, and their spread.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    device: &'a str,
    engine: String,
    threads: usize,
    num_envs: usize,
    num_steps: usize,
    hidden: &'a [usize],
    updates_per_iteration: usize,
    repeats: usize,
    rules_steps_per_second: Figure,
    policy_steps_per_second: Figure,
    trained_steps_per_second: Figure,
    seconds_to_first_update: f64,
    score_wanted: Option<f64>,
    seconds_to_score: Option<f64>,
    peak_memory_bytes: Option<u64>,
}

impl Figure {
    /// Of some runs' values.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self { median: values[values.len() / 2], min: values[0], max: values[last] }
    }
}

pub fn run(args: BenchArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    let name = args.env.clone();
    with_game!(name.as_str(), bench(&args))
}

fn bench<G: Playable>(args: &BenchArgs) -> Result<()> {
    let (game, mut config) = settings::<G>(toml::Table::new(), &args.set)?;
    let defaults = config.clone();
    config.engine = args.engine;
    config.policy.hidden.clone_from(&args.hidden);
    config.rollout.group_size = args.group_size;
    config.rollout.num_groups = args.num_envs / args.group_size;
    config.rollout.num_steps = args.num_steps;
    config.rollout.learn_steps = args.num_steps;
    config.rollout.start = Start::Level;
    config.update.update_epochs = args.update_epochs;
    config.update.num_minibatches = args.num_minibatches;
    // Long enough that no schedule ends within the measurement.
    config.iterations = 1_000_000;
    check(&game, &config)?;

    let started = Instant::now();
    let chosen = device::choose(&args.device)?;
    let mut trainer = Trainer::new(game, &config, &chosen.device);
    trainer.iterate()?;
    let seconds_to_first_update = started.elapsed().as_secs_f64();
    let steps = (config.rollout.num_envs() * config.rollout.num_steps) as f64;

    // Two more iterations warm up; then each counts. Rollouts are measured within them.
    let (mut policy, mut trained) = (Vec::new(), Vec::new());
    let mut peak = None;
    for i in 0..args.repeats + 2 {
        let record = trainer.iterate()?;
        peak = peak.max(record.memory.reserved);
        if i >= 2 {
            policy.push(steps / record.seconds.rollout);
            trained.push(record.steps_per_second);
        }
    }
    let run = |seed| {
        let started = Instant::now();
        let (games, length) = (config.rollout.num_envs(), config.rollout.num_steps);
        device::read(play_at_random(game, games, length, seed, &chosen.device).sum());
        steps / started.elapsed().as_secs_f64()
    };
    run(0);
    let rules = Figure::of((1..=args.repeats as u64).map(run).collect());
    let seconds_to_score =
        args.score.map(|score| time_to_score(game, &defaults, &chosen, score)).transpose()?;
    let report = Report {
        env: G::NAME,
        device: &chosen.info.name,
        engine: trainer.describe(),
        threads: rayon::current_num_threads(),
        num_envs: config.rollout.num_envs(),
        num_steps: config.rollout.num_steps,
        hidden: &config.policy.hidden,
        updates_per_iteration: args.update_epochs * args.num_minibatches,
        repeats: args.repeats,
        rules_steps_per_second: rules,
        policy_steps_per_second: Figure::of(policy),
        trained_steps_per_second: Figure::of(trained),
        seconds_to_first_update,
        score_wanted: args.score,
        seconds_to_score,
        peak_memory_bytes: peak,
    };
    if let Some(path) = &args.json {
        let mut text = serde_json::to_string_pretty(&report)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&report, &chosen);
    Ok(())
}

/// Seconds of the game's default run, from nothing, until its greedy policy reaches `score`.
fn time_to_score<G: Rules>(
    game: G,
    config: &TrainConfig,
    chosen: &Chosen,
    score: f64,
) -> Result<f64> {
    let started = Instant::now();
    let mut trainer = Trainer::new(game, config, &chosen.device);
    for _ in 0..config.iterations {
        trainer.iterate()?;
        if trainer.iteration().is_multiple_of(5)
            && trainer.evaluate(10_000, Player::Greedy).mean_score >= score
        {
            return Ok(started.elapsed().as_secs_f64());
        }
    }
    anyhow::bail!("the default run of {} does not reach a score of {score}", G::NAME)
}

fn print(report: &Report, chosen: &Chosen) {
    println!(
        "{} on {}, {}: {} games x {} steps, hidden {:?}, {} updates an iteration, {} threads",
        report.env,
        chosen.info,
        report.engine,
        report.num_envs,
        report.num_steps,
        report.hidden,
        report.updates_per_iteration,
        report.threads
    );
    println!("{:28}  {:>12}  {:>25}", "steps a second", "median", "lowest to highest");
    let row = |what: &str, figure: &Figure| {
        let Figure { median, min, max } = figure;
        println!("{what:28}  {median:>12.3e}  {min:>11.3e} to {max:.3e}");
    };
    row("rules only, random actions", &report.rules_steps_per_second);
    row("rules and policy", &report.policy_steps_per_second);
    row("trained", &report.trained_steps_per_second);
    println!("time to the first update: {:.2} s", report.seconds_to_first_update);
    if let (Some(score), Some(seconds)) = (report.score_wanted, report.seconds_to_score) {
        println!("time to a greedy score of {score}, from nothing: {seconds:.2} s");
    }
    if let Some(bytes) = report.peak_memory_bytes {
        println!("peak memory: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    }
}
