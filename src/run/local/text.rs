//! A run of a language model.

use super::game::passes;
use super::{
    FinalScores, HeldOutReport, Phase, Run, RunError, RunSizes, Scores, Subject, TrainerStatus,
};
use crate::checkpoint::Checkpoint;
use crate::metrics::IterationRecord;
use crate::text::LanguageModel;
use crate::trainer::Validation;
use crate::trainer::text::{CollapseMonitor, CompletionRecord, LanguageTrainer};

/// Number of prompts of the final evaluation.
const FINAL_PROMPTS: usize = 1000;

/// A run of a language model on a task.
pub struct TextRun {
    trainer: LanguageTrainer,
    collapse_monitor: CollapseMonitor,
}

impl TextRun {
    /// Creates a run of this trainer.
    pub fn new(trainer: LanguageTrainer) -> Self {
        Self { collapse_monitor: CollapseMonitor::new(trainer.parts()), trainer }
    }
}

impl Run for TextRun {
    fn subject(&self) -> Subject {
        Subject::Task(self.trainer.task().name().to_string())
    }

    fn seed(&self) -> u64 {
        self.trainer.config().seed
    }

    fn trainer(&self) -> &dyn TrainerStatus {
        &self.trainer
    }

    fn phases(&self) -> Vec<Phase> {
        let config = self.trainer.config();
        // A resumed run may have fewer iterations than the settings have of SFT.
        let sft = if config.is_sft_only() { u32::MAX } else { config.fit.iterations };
        let sft = sft.min(config.iterations);
        let phases = [
            Phase { name: "SFT", first: 1, last: sft },
            Phase { name: "GRPO", first: sft + 1, last: config.iterations },
        ];
        phases.into_iter().filter(|phase| phase.first <= phase.last).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let config = self.trainer.config();
        let (sft, all, path) = (config.fit.iterations, config.iterations, &config.model.path);
        let phases = (sft >= all && !config.is_sft_only()).then(|| {
            format!(
                "all iterations are SFT, and none is GRPO: raise iterations ({all}), or lower fit.iterations ({sft})"
            )
        });
        let end = self.trainer.model().stop_tokens.is_empty().then(|| {
            format!(
                "the model in {path} has no token that ends a text, and so cannot learn to end its answers; name one in \
                 its tokenizer (`eos_token`, in a GGUF file `tokenizer.ggml.eos_token_id`)"
            )
        });
        phases.into_iter().chain(end).collect()
    }

    fn sizes(&self) -> RunSizes {
        let config = self.trainer.config();
        let (generation, update) = (&config.generation, &config.update);
        let model = self.trainer.model();
        let num_parameters = model.shape.num_params();
        let learnt = match &model.adapters {
            Some(adapters) => format!(", {} of them learnt (LoRA)", adapters.params().len()),
            None => String::new(),
        };
        let batch = if config.is_sft_only() {
            format!("{} solutions", generation.num_prompts)
        } else {
            format!(
                "{} prompts of {} completions of at most {} tokens",
                generation.num_prompts, generation.group_size, generation.max_new_tokens
            )
        };
        RunSizes {
            num_parameters,
            policy: format!("{}, {num_parameters} parameters{learnt}", config.model.path),
            num_envs: generation.num_prompts * generation.group_size,
            env_steps: None,
            rollout: batch,
            update: passes(update),
        }
    }

    fn epoch_iterations(&self) -> u32 {
        self.trainer.config().checkpoint.eval_every
    }

    fn highest_score(&self) -> Option<f64> {
        Some(self.trainer.highest_score())
    }

    fn smaller_launches(&self) -> Option<String> {
        let slots = self.trainer.config().generation.slots.div_ceil(4);
        self.trainer.device().map(|_| {
            format!("--set generation.slots={slots} --set update.gradient_checkpointing=true")
        })
    }

    fn iterate(&mut self) -> Result<(IterationRecord, Vec<CompletionRecord>), RunError> {
        let mut record = self.trainer.iterate()?;
        let warning = self.collapse_monitor.observe(&record);
        if let Some(text) = &mut record.text {
            text.warning = warning;
        }
        Ok((record, self.trainer.take_completions()))
    }

    fn validate(&mut self) -> Result<Validation, RunError> {
        Ok(self.trainer.validate()?)
    }

    fn snapshot(&self) -> Result<Checkpoint, RunError> {
        Ok(self.trainer.snapshot()?)
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RunError> {
        Ok(self.trainer.restore(checkpoint)?)
    }

    /// All ranks take the first one's weights and evaluate together.
    fn finish(&mut self, max_episodes: usize) -> Result<FinalScores, RunError> {
        self.trainer.broadcast_weights()?;
        let is_evaluated = self.trainer.config().checkpoint.eval_episodes > 0;
        let prompts = if is_evaluated { FINAL_PROMPTS.min(max_episodes) } else { 0 };
        let mut greedy = self.trainer.evaluate_greedy(prompts)?;
        let held_out = greedy.held_out.take().map(|means| HeldOutReport {
            means,
            confusion: Vec::new(),
            actions: Vec::new(),
        });
        let seed = self.seed();
        let scores = Scores { greedy, sampled: None, seed, baselines: Vec::new() };
        Ok(FinalScores { scores: is_evaluated.then_some(scores), held_out })
    }

    fn model(&self) -> Option<LanguageModel> {
        Some(self.trainer.model())
    }

    fn replay(&mut self, record: &IterationRecord) {
        self.collapse_monitor.observe(record);
    }

    fn skip_to(&mut self, iteration: u32) {
        self.trainer.skip_to(iteration);
    }
}
