//! Dry runs: measures some iterations and an evaluation, and saves nothing.

use super::format::{format_duration, format_with_prefix};
use super::{Run, RunError, RunSizes, Stage, Subject, pluralize};
use crate::device::DeviceInfo;
use crate::run::Schedule;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

/// Time after which no further iteration of a stage is measured.
const TRIAL_TIME: Duration = Duration::from_secs(2);
/// Maximum number of measured iterations of a stage, after the first.
const TRIAL_ITERATIONS: u32 = 20;

/// Expected cost of a run.
#[derive(Debug, Serialize)]
pub struct Preview<'a> {
    #[serde(flatten)]
    subject: Subject,
    seed: u64,
    device: &'a DeviceInfo,
    engine: String,
    #[serde(flatten)]
    sizes: RunSizes,
    iterations: u32,
    stages: Vec<StagePreview>,
    seconds_to_first_update: f64,
    /// Mean over all iterations.
    seconds_per_iteration: f64,
    seconds_per_evaluation: f64,
    /// Seconds of the whole run.
    seconds: f64,
    memory_bytes: Option<u64>,
    #[serde(skip)]
    schedule: Schedule,
}

/// Expected cost of a stage.
#[derive(Debug, Serialize)]
struct StagePreview {
    #[serde(flatten)]
    stage: Stage,
    seconds_per_iteration: f64,
}

/// Costs of the iterations tried so far.
struct PreviewCosts {
    /// Start of the run's preparation.
    started: Instant,
    seconds_to_first_update: Option<f64>,
    memory_bytes: Option<u64>,
}

impl PreviewCosts {
    /// Trains an iteration and returns its seconds.
    fn iterate(&mut self, run: &mut dyn Run) -> Result<f64, RunError> {
        let began = Instant::now();
        let (record, _) = run.iterate()?;
        self.memory_bytes = self.memory_bytes.max(record.memory.reserved);
        self.seconds_to_first_update.get_or_insert_with(|| self.started.elapsed().as_secs_f64());
        Ok(began.elapsed().as_secs_f64())
    }

    /// Measures some iterations of a stage.
    fn measure_stage(&mut self, run: &mut dyn Run, stage: Stage) -> Result<StagePreview, RunError> {
        run.skip_to(stage.first - 1);
        // The first iteration compiles kernels and fills caches.
        let first = self.iterate(run)?;
        let began = Instant::now();
        let max_iterations = TRIAL_ITERATIONS.min(stage.last - stage.first);
        let mut count = 0;
        while count < max_iterations && began.elapsed() < TRIAL_TIME {
            self.iterate(run)?;
            count += 1;
        }
        let mean = began.elapsed().as_secs_f64() / f64::from(count);
        Ok(StagePreview { stage, seconds_per_iteration: if count > 0 { mean } else { first } })
    }
}

/// Trains some iterations of every stage of a run, an evaluation, and the final evaluation on one episode. `started` is
/// the start of the run's preparation.
///
/// # Errors
/// If numbers run out of range, an environment or a task fails, or another rank fails or does not respond.
pub fn preview<'a>(
    run: &mut dyn Run,
    device: &'a DeviceInfo,
    started: Instant,
) -> Result<Preview<'a>, RunError> {
    let schedule = run.trainer().schedule();
    let mut costs = PreviewCosts { started, seconds_to_first_update: None, memory_bytes: None };
    let stages = run.stages().into_iter().map(|stage| costs.measure_stage(run, stage));
    let stages: Vec<StagePreview> = stages.collect::<Result<_, _>>()?;
    let began = Instant::now();
    run.validate()?;
    let seconds_per_evaluation = began.elapsed().as_secs_f64();
    // Otherwise an error in it would only show at the end of the run.
    run.evaluate_fresh(1)?;
    let stage_seconds = |StagePreview { stage, seconds_per_iteration }: &StagePreview| {
        f64::from(stage.last - stage.first + 1) * seconds_per_iteration
    };
    let total: f64 = stages.iter().map(stage_seconds).sum();
    let iterations = schedule.iterations;
    let seconds_per_iteration = total / f64::from(iterations);
    let evaluations = iterations.div_ceil(schedule.eval_every);
    let seconds_to_first_update = costs.seconds_to_first_update.unwrap_or(0.0);
    Ok(Preview {
        subject: run.subject(),
        seed: run.seed(),
        device,
        engine: run.trainer().describe_engine(),
        sizes: run.sizes(),
        iterations,
        stages,
        seconds_to_first_update,
        seconds_per_iteration,
        seconds_per_evaluation,
        seconds: seconds_to_first_update
            + seconds_per_iteration * f64::from(iterations - 1)
            + seconds_per_evaluation * f64::from(evaluations),
        memory_bytes: costs.memory_bytes,
        schedule,
    })
}

impl Display for Preview<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RunSizes {
            policy_description, rollout_description, update_description, env_steps, ..
        } = &self.sizes;
        let Schedule { eval_every, save_every, .. } = self.schedule;
        let [subject, product] = match &self.subject {
            Subject::Env(_) => ["game", "policy"],
            Subject::Task(_) => ["task", "model"],
        };
        let steps = env_steps.map(|steps| format!(", {} steps", format_with_prefix(steps as f64)));
        let stages: Vec<_> = self.stages.iter().map(|preview| preview.stage.to_string()).collect();
        let times: Vec<_> = self
            .stages
            .iter()
            .map(|StagePreview { stage, seconds_per_iteration }| {
                format!("{} {:.1} ms", stage.algorithm.name(), 1e3 * seconds_per_iteration)
            })
            .collect();
        let memory = self.memory_bytes.map_or("not reported by the device".to_string(), |bytes| {
            format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
        });
        let rows = [
            (subject, format!("{}, seed {}", self.subject.name(), self.seed)),
            ("device", self.device.to_string()),
            ("engine", self.engine.clone()),
            (product, policy_description.clone()),
            ("iteration", rollout_description.clone()),
            ("", update_description.clone()),
            ("run", pluralize(self.iterations as usize, "iteration") + &steps.unwrap_or_default()),
            ("", stages.join(", ")),
            ("", format!("evaluated every {eval_every}, saved every {save_every}")),
            (
                "time",
                format!(
                    "about {} (first update after {:.2} s)",
                    format_duration(self.seconds),
                    self.seconds_to_first_update
                ),
            ),
            ("", format!("{} per iteration", times.join(", "))),
            ("", format!("{:.1} ms per evaluation", 1e3 * self.seconds_per_evaluation)),
            ("memory", memory),
        ];
        for (name, text) in rows {
            writeln!(f, "{name:10} {text}")?;
        }
        write!(f, "Dry run: nothing saved.")
    }
}
