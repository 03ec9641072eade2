//! `grove bench TASK --model MODEL`: measures how fast a language model generates and learns.
//!
//! Rewards are random, and completions end at their maximum length only. All tokens are thus generated and
//! learnt from, so that the results do not depend on the weights.

use super::args::BenchArgs;
use super::publish;
use super::report::{Measurement, write_memory, write_table};
use crate::device;
use crate::program::settings::language_defaults;
use crate::program::text::device::{default_precision, device_name};
use crate::program::text::{
    ENGINE_ERROR, load_initial_model, open_task, resolve_model_path, resolve_settings,
};
use crate::rng::{draw, uniform};
use crate::run::pluralize;
use crate::settings::{EngineChoice, Precision};
use crate::task::{Completion, Prompt, RewardPart, Rewards, Split, Task, TaskError};
use crate::trainer::text::{LanguageConfig, LanguageSettings, LanguageTrainer};
use anyhow::{Result, bail, ensure};
use burn::tensor::Device;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Instant;
use toml::Table;

/// A task with random rewards.
struct RandomRewards {
    task: Arc<dyn Task>,
    parts: [RewardPart; 1],
}

impl Task for RandomRewards {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        self.task.num_prompts(split)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        self.task.prompt(split, index)
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        let reward = |index: u32| Rewards::new(vec![f64::from(uniform(draw(0, index)))]);
        Ok((0..completions.len() as u32).map(reward).collect())
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        self.task.solution(prompt)
    }

    fn alphabet(&self) -> Option<String> {
        self.task.alphabet()
    }

    fn max_new_tokens(&self) -> usize {
        self.task.max_new_tokens()
    }

    fn max_new_tokens_of_pretrained(&self) -> usize {
        self.task.max_new_tokens_of_pretrained()
    }
}

/// All results of a benchmark.
#[derive(Serialize)]
struct Report<'a> {
    task: &'a str,
    model: &'a str,
    num_params: usize,
    num_prompts: usize,
    group_size: usize,
    /// Mean number of tokens of a prompt.
    prompt_tokens: f64,
    completion_tokens: usize,
    device: &'a str,
    precision: Precision,
    threads: usize,
    repeats: usize,
    /// Completion tokens per second of generation.
    generated_per_second: Measurement,
    /// Completion tokens per second of the update.
    learnt_per_second: Measurement,
    /// Completion tokens per second of whole iterations.
    trained_per_second: Measurement,
    peak_memory_bytes: Option<u64>,
}

/// Measures generation, learning and whole iterations.
pub fn bench(task: &str, args: &BenchArgs) -> Result<()> {
    check_options(args)?;
    let file = Table::new();
    let path = resolve_model_path(task, args.model.as_deref(), &file, &args.set)?;
    let model = load_initial_model(&path)?;
    let num_params = model.as_ref().map(|model| model.shape.num_params());
    let precision = default_precision(&args.device);
    let precision = language_defaults(task, &path, num_params, precision)?.precision;
    let defaults = LanguageConfig { precision, ..LanguageConfig::for_model(&path) };
    let LanguageSettings { task_settings, mut config, .. } =
        resolve_settings(task, Table::new(), defaults, file, &args.set)?;
    config.precision = args.precision.unwrap_or(config.precision);
    config.fit.iterations = 0;
    // Long enough that no schedule ends during the measurement.
    config.iterations = 1_000_000;
    let parts = [RewardPart::new("random", 1.0)];
    let rewards = RandomRewards { task: open_task(task, task_settings)?, parts };
    let rewards: Arc<dyn Task> = Arc::new(rewards);
    let mut model = match model {
        Some(model) => model,
        None => LanguageTrainer::for_task(rewards.clone(), config.clone(), None)?.model(),
    };
    model.stop_tokens.clear();
    let num_params = model.params.len();
    let precision = config.precision;
    let chosen = device::start(device_name(&args.device))?;
    let mut trainer = LanguageTrainer::for_task(rewards, config, Some(model))?
        .with_device(chosen.language_device())?;
    let generation = trainer.config().generation.clone();
    let prompt_tokens = measure_prompt_tokens(&trainer)?;
    let ([generated, learnt, trained], peak_memory_bytes) =
        measure(&mut trainer, &chosen.device, args.repeats)?;
    let report = Report {
        task,
        model: &path,
        num_params,
        num_prompts: generation.num_prompts,
        group_size: generation.group_size,
        prompt_tokens,
        completion_tokens: generation.max_new_tokens,
        device: &chosen.info.name,
        precision,
        threads: rayon::current_num_threads(),
        repeats: args.repeats,
        generated_per_second: generated,
        learnt_per_second: learnt,
        trained_per_second: trained,
        peak_memory_bytes,
    };
    publish(args, &report)
}

/// Rejects options that are for games alone.
fn check_options(args: &BenchArgs) -> Result<()> {
    ensure!(args.engine.is_none_or(|engine| engine == EngineChoice::Auto), ENGINE_ERROR);
    if let Some(option) = args.game_only_option() {
        bail!(
            "{option} is for games; --set has the sizes of a language model's benchmark, for instance \
             generation.num_prompts"
        );
    }
    Ok(())
}

/// Measures the mean number of tokens of the prompts of an iteration.
fn measure_prompt_tokens(trainer: &LanguageTrainer) -> Result<f64> {
    let generation = &trainer.config().generation;
    let mut mean = 0.0;
    for index in 0..generation.num_prompts as u64 {
        let prompt = trainer.task().prompt(Split::Train, index)?;
        let tokens = trainer.tokenize_prompt(&prompt, generation.max_new_tokens)?;
        mean += tokens.len() as f64 / generation.num_prompts as f64;
    }
    Ok(mean)
}

/// Trains for as many iterations as a measurement needs. Returns the completion tokens per second of generation, of the
/// update, and of whole iterations, and the peak of memory, bytes.
fn measure(
    trainer: &mut LanguageTrainer,
    device: &Device,
    repeats: usize,
) -> Result<([Measurement; 3], Option<u64>)> {
    let generation = &trainer.config().generation;
    let tokens = generation.num_prompts * generation.group_size * generation.max_new_tokens;
    let (mut rollout_seconds, mut update_seconds, mut peak_memory) = (Vec::new(), Vec::new(), None);
    let mut train_once = || {
        let started = Instant::now();
        let record = trainer.iterate()?;
        let phases = record.seconds.phases.unwrap_or_default();
        rollout_seconds.push(phases.rollout);
        update_seconds.push(phases.update);
        let memory = device::measure_memory(device);
        peak_memory = peak_memory.max(memory.peak).max(memory.reserved);
        Ok(started.elapsed().as_secs_f64())
    };
    let iteration = Measurement::measure_rate(repeats, tokens, &mut train_once)?;
    let rate = |seconds: &[f64]| {
        let measured = &seconds[seconds.len().saturating_sub(repeats)..];
        Measurement::from_values(measured.iter().map(|seconds| tokens as f64 / seconds).collect())
    };
    Ok(([rate(&rollout_seconds), rate(&update_seconds), iteration], peak_memory))
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { model, num_params, precision, device, .. } = self;
        let Self { num_prompts, prompt_tokens, group_size, completion_tokens, .. } = self;
        let threads = pluralize(self.threads, "thread");
        writeln!(
            f,
            "{model} of {num_params} parameters in {precision} on {device}, {threads}: {num_prompts} prompts of \
             {prompt_tokens:.1} tokens x {group_size} completions of {completion_tokens}\n"
        )?;
        let rows = [
            ("generation", self.generated_per_second),
            ("update", self.learnt_per_second),
            ("whole iterations", self.trained_per_second),
        ];
        write_table(f, "completion tokens per second", self.repeats, rows)?;
        writeln!(f)?;
        write_memory(f, self.peak_memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task with room for reasoning.
    struct Reasoned;

    impl Task for Reasoned {
        fn name(&self) -> &str {
            "reasoned"
        }

        fn prompt(&self, _split: Split, _index: u64) -> Result<Prompt, TaskError> {
            Ok(Prompt::default())
        }

        fn reward_parts(&self) -> &[RewardPart] {
            &[]
        }

        fn verify(&self, _completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
            Ok(Vec::new())
        }

        fn max_new_tokens(&self) -> usize {
            2
        }

        fn max_new_tokens_of_pretrained(&self) -> usize {
            256
        }
    }

    #[test]
    fn completions_are_as_long_as_those_of_a_run() {
        let parts = [RewardPart::new("random", 1.0)];
        let random = RandomRewards { task: Arc::new(Reasoned), parts };
        assert_eq!((random.max_new_tokens(), random.max_new_tokens_of_pretrained()), (2, 256));
    }
}
