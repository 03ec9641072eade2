//! `--dry-run` of a language model: some iterations and an evaluation, measured and not kept.

use crate::model::language::LanguageModel;
use crate::program::patience::patiently;
use crate::program::say::{tell, tell_json};
use crate::task::Task;
use crate::trainer::language::{LanguageConfig, LanguageTrainer};
use anyhow::Result;
use burn::tensor::Device;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Iterations of each kind that are tried.
const TRIED: u32 = 2;

#[derive(Serialize)]
struct Preview<'a> {
    task: &'a str,
    num_parameters: usize,
    iterations: u32,
    /// Seconds of an iteration that imitates, and of one with rewards; none where the run has none.
    seconds_per_imitation: Option<f64>,
    seconds_per_iteration: Option<f64>,
    seconds_per_evaluation: f64,
    seconds: f64,
}

/// Says what a run would take.
pub fn preview(
    task: &Arc<dyn Task>,
    config: &LanguageConfig,
    model: Option<&LanguageModel>,
    device: Option<Device>,
    json: bool,
) -> Result<()> {
    let begin = |fit: u32| -> Result<LanguageTrainer> {
        let mut config = config.clone();
        config.fit.iterations = fit;
        Ok(LanguageTrainer::new(task.clone(), config, model.cloned())?.on(device.clone())?)
    };
    let try_out = |mut trainer: LanguageTrainer| -> Result<f64> {
        let started = Instant::now();
        for _ in 0..TRIED {
            trainer.iterate()?;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(TRIED))
    };
    let all = config.iterations;
    let shown = if config.imitates() { all } else { config.fit.iterations };
    let trainer = begin(config.fit.iterations)?;
    let num_parameters = trainer.model().shape.num_params();
    let preview = patiently("Trying some iterations.", || -> Result<Preview> {
        let of_shown = (shown > 0).then(|| try_out(begin(config.fit.iterations.min(shown))?));
        let of_rewards = (shown < all).then(|| try_out(begin(0)?));
        let (of_shown, of_rewards) = (of_shown.transpose()?, of_rewards.transpose()?);
        let mut trainer = trainer;
        let started = Instant::now();
        trainer.measure()?;
        let evaluation = started.elapsed().as_secs_f64();
        let evaluations = all.div_ceil(config.checkpoint.eval_every.max(1));
        Ok(Preview {
            task: task.name(),
            num_parameters,
            iterations: all,
            seconds_per_imitation: of_shown,
            seconds_per_iteration: of_rewards,
            seconds_per_evaluation: evaluation,
            seconds: of_shown.unwrap_or(0.0) * f64::from(shown)
                + of_rewards.unwrap_or(0.0) * f64::from(all - shown)
                + evaluation * f64::from(evaluations),
        })
    })?;
    if json {
        return tell_json(&preview);
    }
    let span = |seconds: Option<f64>| seconds.map_or("-".to_string(), |s| format!("{s:.2} s"));
    tell(format_args!(
        "task       {}\n\
         model      {}, {num_parameters} parameters\n\
         run        {shown} iterations of imitation, {} with rewards\n\
         time       about {:.0} s: {} and {} an iteration, {:.2} s an evaluation\n\
         Nothing was kept.",
        preview.task,
        config.model.path,
        all - shown,
        preview.seconds,
        span(preview.seconds_per_imitation),
        span(preview.seconds_per_iteration),
        preview.seconds_per_evaluation
    ))
}
