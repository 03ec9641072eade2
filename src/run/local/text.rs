//! A run of a language model.

use super::format::describe_update;
use super::{
    Algorithm, FinalEvaluation, HeldOutReport, Run, RunError, RunSizes, Scores, Stage, Subject,
    TrainerStatus,
};
use crate::checkpoint::Checkpoint;
use crate::metrics::IterationRecord;
use crate::settings::{FitConfig, GenerationConfig, LanguageConfig};
use crate::text::LanguageModel;
use crate::trainer::Validation;
use crate::trainer::text::{CollapseMonitor, CompletionRecord, LanguageTrainer, LongestPrompt};

/// Number of prompts of the final evaluation.
const FINAL_PROMPTS: usize = 1000;

/// A run of a language model on a task.
pub struct LanguageRun {
    trainer: LanguageTrainer,
    collapse_monitor: CollapseMonitor,
}

impl LanguageRun {
    /// Creates a run of this trainer.
    pub fn new(trainer: LanguageTrainer) -> Self {
        Self { collapse_monitor: CollapseMonitor::new(trainer.reward_parts()), trainer }
    }
}

/// Options that make the launches of a run smaller, if there are any.
fn smaller_launches(config: &LanguageConfig) -> Option<String> {
    let slots = config.generation.slots.div_ceil(4);
    let is_smaller = slots < config.generation.slots || !config.update.gradient_checkpointing;
    is_smaller
        .then(|| format!("--set generation.slots={slots} --set update.gradient_checkpointing=true"))
}

/// Warnings about settings in `fit` that have no effect.
fn unused_fit_settings(config: &LanguageConfig) -> Vec<String> {
    let FitConfig { iterations, learning_rate, epochs, patience } = config.fit.clone();
    let is_fit = config.is_sft_only();
    let mut warnings = Vec::new();
    if learning_rate != FitConfig::default().learning_rate && (is_fit || iterations == 0) {
        let reason = if is_fit {
            "SFT alone has optimizer.learning_rate"
        } else {
            "no iteration is SFT (fit.iterations)"
        };
        warnings.push(format!("fit.learning_rate has no effect: {reason}"));
    }
    let of_fit = [("fit.epochs", epochs), ("fit.patience", patience)];
    for (key, _) in of_fit.into_iter().filter(|(_, count)| *count > 0 && !is_fit) {
        warnings.push(format!("{key} has no effect: it is for SFT alone (`grove fit`)"));
    }
    warnings
}

impl Run for LanguageRun {
    fn subject(&self) -> Subject {
        Subject::Task(self.trainer.task().name().to_string())
    }

    fn seed(&self) -> u64 {
        self.trainer.config().seed
    }

    fn trainer(&self) -> &dyn TrainerStatus {
        &self.trainer
    }

    fn stages(&self) -> Vec<Stage> {
        let config = self.trainer.config();
        // A resumed run may have fewer iterations than the settings have of SFT.
        let sft = if config.is_sft_only() { u32::MAX } else { config.fit.iterations };
        let sft = sft.min(config.iterations);
        let stages = [
            Stage { algorithm: Algorithm::Sft, first: 1, last: sft },
            Stage { algorithm: Algorithm::Grpo, first: sft + 1, last: config.iterations },
        ];
        stages.into_iter().filter(|stage| stage.first <= stage.last).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let config = self.trainer.config();
        let (sft, all, path) = (config.fit.iterations, config.iterations, &config.model.path);
        let mut warnings = Vec::new();
        if sft >= all && !config.is_sft_only() {
            warnings.push(format!(
                "all iterations are SFT, and none is GRPO; for GRPO, fit.iterations must be less than iterations ({all})"
            ));
        }
        if self.trainer.model().stop_tokens.is_empty() {
            warnings.push(format!(
                "the model in {path} has no token that ends a text, and so cannot learn to end its answers; name one in \
                 its tokenizer (`eos_token`, in a GGUF file `tokenizer.ggml.eos_token_id`)"
            ));
        }
        if self.trainer.loses_roles() {
            warnings.push(format!(
                "the model {path} has no chat template: of a conversation it sees only the contents of the messages, \
                 separated by blank lines, without roles and tools; choose a model with a template, or give prompts as texts"
            ));
        }
        if let Some(LongestPrompt { start, num_tokens }) = self.trainer.limiting_prompt() {
            let (limit, context) =
                (config.generation.max_new_tokens, self.trainer.model().shape.context);
            warnings.push(format!(
                "all completions have at most {limit} tokens: the longest prompt (it begins with {start:?}) has \
                 {num_tokens} tokens, and the context {context}; leave out long prompts, or choose a model with a longer \
                 context"
            ));
        }
        warnings.extend(unused_fit_settings(config));
        warnings
    }

    fn sizes(&self) -> RunSizes {
        let config = self.trainer.config();
        let (generation, update) = (&config.generation, &config.update);
        let model = self.trainer.model();
        let num_params = model.shape.num_params();
        let learnt_part = match &model.adapters {
            Some(adapters) => format!(", {} of them learnt (LoRA)", adapters.params().len()),
            None => String::new(),
        };
        let prompts = generation.num_prompts;
        let (num_envs, batch) = if config.is_sft_only() {
            (prompts, format!("{prompts} solutions"))
        } else {
            let GenerationConfig { group_size, max_new_tokens, .. } = generation;
            let completions =
                format!("{group_size} completions of at most {max_new_tokens} tokens");
            (prompts * group_size, format!("{prompts} prompts of {completions}"))
        };
        RunSizes {
            num_params,
            policy_description: format!(
                "{}, {num_params} parameters{learnt_part}",
                config.model.path
            ),
            num_envs,
            env_steps: None,
            rollout_description: batch,
            update_description: describe_update(update),
        }
    }

    fn leak_check_interval(&self) -> u32 {
        self.trainer.config().checkpoint.eval_every
    }

    fn highest_score(&self) -> Option<f64> {
        Some(self.trainer.highest_score())
    }

    fn smaller_launches(&self) -> Option<String> {
        let config = self.trainer.config();
        self.trainer.device().and_then(|_| smaller_launches(config))
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
    fn evaluate_fresh(&mut self, max_episodes: usize) -> Result<FinalEvaluation, RunError> {
        self.trainer.broadcast_weights()?;
        let is_evaluated = self.trainer.config().checkpoint.eval_episodes > 0;
        let prompts = if is_evaluated { FINAL_PROMPTS.min(max_episodes) } else { 0 };
        let mut greedy = self.trainer.evaluate_fresh_greedy(prompts)?;
        let held_out = greedy.held_out.take().map(|means| HeldOutReport {
            means,
            confusion: Vec::new(),
            action_names: Vec::new(),
        });
        let seed = self.seed();
        let scores = Scores { greedy, sampled: None, seed, reference_scores: Vec::new() };
        Ok(FinalEvaluation { scores: is_evaluated.then_some(scores), held_out })
    }

    fn language_model(&self) -> Option<LanguageModel> {
        Some(self.trainer.model())
    }

    fn observe_record(&mut self, record: &IterationRecord) {
        self.collapse_monitor.observe(record);
    }

    fn skip_to(&mut self, iteration: u32) {
        self.trainer.skip_to(iteration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Precision;
    use crate::task::{self, DataTask};
    use crate::trainer::text::TINY;
    use std::sync::Arc;

    #[test]
    fn sft_alone_has_a_solution_for_each_prompt() {
        let sizes = |mut config: LanguageConfig| {
            let found = task::find("sort").unwrap();
            let task = (found.open)((found.defaults)()).unwrap();
            (config.generation.num_prompts, config.generation.group_size) = (6, 4);
            LanguageRun::new(LanguageTrainer::for_task(task, config, None).unwrap()).sizes()
        };
        let sft = sizes(LanguageConfig::for_sft(TINY, None, Precision::F32));
        let grpo = sizes(LanguageConfig::for_model(TINY));
        assert_eq!((sft.num_envs, grpo.num_envs), (6, 24));
        assert_eq!(sft.rollout_description, "6 solutions");
        assert!(
            grpo.rollout_description.starts_with("6 prompts of 4 completions"),
            "{}",
            grpo.rollout_description
        );
    }

    #[test]
    fn a_prompt_that_limits_all_completions_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("prompts.jsonl");
        let warnings = |length: usize, max_new_tokens: usize| {
            let line = |prompt: &str, split: &str| {
                format!(
                    "{{\"prompt\": \"{prompt}\", \"solution\": \"0123456789\", \"split\": \"{split}\"}}\n"
                )
            };
            let lines = line(&"1".repeat(length), "train") + &line("2+2=", "test");
            std::fs::write(&path, lines).unwrap();
            let task = Arc::new(DataTask::open(&path, None).unwrap());
            let mut config = LanguageConfig::for_model(TINY);
            config.model.tiny.context = 40;
            config.fit.iterations = 0;
            config.generation.max_new_tokens = max_new_tokens;
            LanguageRun::new(LanguageTrainer::for_task(task, config, None).unwrap()).warnings()
        };
        // The task's own limit is a token more than a solution has.
        assert_eq!(warnings(29, 0), [""; 0]);
        assert_eq!(warnings(29, 5), [""; 0]);
        let said = warnings(35, 0).join("\n");
        let named = "at most 5 tokens: the longest prompt (it begins with \"111";
        assert!(
            said.contains(named) && said.contains("has 35 tokens, and the context 40"),
            "{said}"
        );
    }

    #[test]
    fn settings_of_sft_without_an_effect_are_named() {
        let warnings = |mut config: LanguageConfig, change: &dyn Fn(&mut FitConfig)| {
            assert_eq!(unused_fit_settings(&config), [""; 0]);
            change(&mut config.fit);
            unused_fit_settings(&config).join("; ")
        };
        let fit = || LanguageConfig::for_sft(TINY, None, Precision::F32);
        let tiny = || LanguageConfig::for_model(TINY);
        let pretrained = || LanguageConfig::for_pretrained("model", 1 << 30, Precision::F32);
        let rate = |fit: &mut FitConfig| fit.learning_rate = 0.5;
        assert!(warnings(fit(), &rate).ends_with("SFT alone has optimizer.learning_rate"));
        assert!(warnings(pretrained(), &rate).contains("no iteration is SFT"));
        assert_eq!(warnings(tiny(), &rate), "");
        let of_fit = |fit: &mut FitConfig| (fit.epochs, fit.patience) = (2, 3);
        assert_eq!(warnings(fit(), &of_fit), "");
        let found = warnings(tiny(), &of_fit);
        assert!(
            found.contains("fit.epochs has no") && found.contains("fit.patience has no"),
            "{found}"
        );
    }

    #[test]
    fn the_smallest_launches_are_not_advised_to_a_run_that_has_them() {
        let options = |slots: usize, gradient_checkpointing: bool| {
            let mut config = LanguageConfig::for_model(TINY);
            config.generation.slots = slots;
            config.update.gradient_checkpointing = gradient_checkpointing;
            smaller_launches(&config)
        };
        let smallest =
            Some("--set generation.slots=1 --set update.gradient_checkpointing=true".to_string());
        assert_eq!([options(1, false), options(4, true)], [smallest.clone(), smallest]);
        assert_eq!(options(1, true), None);
    }
}
