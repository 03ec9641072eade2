//! `grove train --dry-run`: what would be trained, for how long, and in how much memory.

use super::patience::patiently;
use super::progress::short;
use super::say::{tell, tell_json};
use crate::config::TrainConfig;
use crate::device::{self, Chosen, DeviceInfo};
use crate::env::Rules;
use crate::rollout::Player;
use crate::trainer::Trainer;
use anyhow::Result;
use burn::module::Module;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

/// How long iterations are measured, and how many at most.
const MEASURED: (Duration, u32) = (Duration::from_secs(2), 20);

/// A run that was tried and not kept.
#[derive(Serialize)]
struct Preview<'a> {
    env: &'a str,
    device: &'a DeviceInfo,
    engine: String,
    num_parameters: usize,
    num_envs: usize,
    env_steps: u64,
    seconds_to_first_update: f64,
    seconds_per_iteration: f64,
    seconds_per_evaluation: f64,
    seconds: f64,
    memory_bytes: Option<u64>,
    #[serde(skip)]
    config: &'a TrainConfig,
}

/// Tries some iterations and an evaluation of a run that was begun at `started`, and says what all of it
/// would take.
pub fn preview<G: Rules>(
    mut trainer: Trainer<G>,
    chosen: &Chosen,
    started: Instant,
    json: bool,
) -> Result<()> {
    let config = trainer.config().clone();
    let mut iterations = 0;
    let (first, seconds) = patiently("Trying some iterations.", || -> Result<(f64, f64)> {
        trainer.iterate()?;
        let first = started.elapsed().as_secs_f64();
        let measured = Instant::now();
        let left = MEASURED.1.min(config.iterations - 1);
        while iterations < left && measured.elapsed() < MEASURED.0 {
            trainer.iterate()?;
            iterations += 1;
        }
        Ok((first, measured.elapsed().as_secs_f64()))
    })?;
    let iteration = if iterations > 0 { seconds / f64::from(iterations) } else { 0.0 };
    let measured = Instant::now();
    let episodes = config.checkpoint.eval_episodes;
    patiently("Trying an evaluation.", || trainer.evaluate(episodes, Player::Greedy));
    let evaluation = measured.elapsed().as_secs_f64();
    let evaluations = config.iterations.div_ceil(config.checkpoint.eval_every);
    let rollout = &config.rollout;
    let preview = Preview {
        env: G::NAME,
        device: &chosen.info,
        engine: trainer.describe(),
        num_parameters: trainer.model().num_params(),
        num_envs: rollout.num_envs(),
        env_steps: (rollout.num_envs() * rollout.num_steps) as u64 * u64::from(config.iterations),
        seconds_to_first_update: first,
        seconds_per_iteration: iteration,
        seconds_per_evaluation: evaluation,
        seconds: first
            + iteration * f64::from(config.iterations - 1)
            + evaluation * f64::from(evaluations),
        memory_bytes: device::memory(&chosen.device).reserved,
        config: &config,
    };
    if json { tell_json(&preview) } else { tell(preview) }
}

impl Display for Preview<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let TrainConfig { policy, rollout, update, checkpoint, iterations, seed, .. } = self.config;
        let rows = [
            ("game", format!("{}, seed {seed}", self.env)),
            ("device", self.device.to_string()),
            ("engine", self.engine.clone()),
            (
                "policy",
                format!(
                    "{} of {}, {} parameters",
                    policy.kind,
                    policy.sizes(),
                    self.num_parameters
                ),
            ),
            (
                "iteration",
                format!(
                    "{} groups of {}, {} steps of which {} are learnt from",
                    rollout.num_groups, rollout.group_size, rollout.num_steps, rollout.learn_steps
                ),
            ),
            (
                "",
                format!(
                    "{} epochs of {} minibatches",
                    update.update_epochs, update.num_minibatches
                ),
            ),
            (
                "run",
                format!(
                    "{iterations} iterations, {} steps; evaluated each {}, saved each {}",
                    short(self.env_steps as f64),
                    checkpoint.eval_every,
                    checkpoint.save_every
                ),
            ),
            (
                "time",
                format!(
                    "about {}, {:.2} s of it to the first update",
                    span(self.seconds),
                    self.seconds_to_first_update
                ),
            ),
            (
                "",
                format!(
                    "{:.1} ms an iteration, {:.1} ms an evaluation",
                    1e3 * self.seconds_per_iteration,
                    1e3 * self.seconds_per_evaluation
                ),
            ),
            (
                "memory",
                self.memory_bytes.map_or("the device does not tell".to_string(), |bytes| {
                    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
                }),
            ),
        ];
        for (what, text) in rows {
            writeln!(f, "{what:10} {text}")?;
        }
        write!(f, "Nothing was kept.")
    }
}

/// A time as people say it.
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
