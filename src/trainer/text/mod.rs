//! The engine of language models: GRPO on completions, and SFT on solutions.

mod advantages;
mod collapse_monitor;
mod device_limits;
mod exchange;
mod grpo;
mod prompts;
mod record;
mod rollout;
mod samples;
#[cfg(on_disk)]
mod saved_model;
mod scored;
mod settings;
mod sft;
mod snapshot;
mod start;
mod tally;
mod verification;

pub use collapse_monitor::CollapseMonitor;
pub use prompts::LongestPrompt;
pub use record::CompletionRecord;
pub use samples::SampleCompletion;
#[cfg(on_disk)]
pub use saved_model::{check_base, load_language_model};
pub use settings::{
    LanguageSettings, TrainingStage, join_language_settings, read_settings, split_language_settings,
};

pub use crate::settings::{
    Baseline, FitConfig, GenerationConfig, LanguageConfig, ModelConfig, RewardConfig, TINY,
};

use super::{TrainError, Trainer};
use crate::learner::text::LanguageLearner;
use crate::metrics::{EvaluationRecord, HeldOutMeans};
use crate::parallel::{Team, TeamError};
use crate::rng::Stream;
use crate::task::{Prompt, RewardPart, Split, Task, TaskError, reweight_parts};
use crate::text::generate::Sampling;
use crate::text::{Arithmetic, DecoderParams, LanguageError, LanguageModel};
use burn::tensor::Device;
use device_limits::{TokenLimits, check_device};
use start::{
    check_ranks, check_settings, check_sizes, default_max_new_tokens, default_shards, new_model,
    set_up_adapters,
};
use std::ops::Range;
use std::sync::Arc;
use tally::EvaluationTally;
use toml::Table;

/// Maximum number of completions in memory during an evaluation.
const MAX_EVALUATED_COMPLETIONS: usize = 1 << 13;

/// A language model in training on a task.
pub struct LanguageEngine {
    task: Arc<dyn Task>,
    /// Parts of a reward, with the weights of this run.
    reward_parts: Vec<RewardPart>,
    config: LanguageConfig,
    /// Settings saved with every checkpoint.
    settings: Table,
    /// Vocabulary and files of the model; the decoder has its parameters.
    model: LanguageModel,
    learner: LanguageLearner,
    /// SHA-256 of the weights that the adapters are trained with, once computed.
    #[cfg(on_disk)]
    base_digest: std::sync::OnceLock<String>,
    /// Device of generation and learning; `None` for the CPU.
    device: Option<Device>,
    /// Maximum lengths of texts on the device.
    limits: TokenLimits,
    /// Ranks that share the run.
    team: Team,
    /// Index of the next prompt.
    next_prompt: u64,
    /// Largest number of held-out prompts of a validation before the run was resumed.
    past_validation_prompts: u64,
    /// Number of tokens generated, and learnt from by SFT.
    env_steps: u64,
    /// Completions of the last iteration.
    completions: Vec<CompletionRecord>,
}

/// A part of the held-out prompts. The two are disjoint if there is more than one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldOutPart {
    /// The first prompts, at most half, which select the best policy.
    Validation,
    /// The other prompts, for final scores.
    Final,
}

/// Training of a language model on a task.
pub type LanguageTrainer = Trainer<LanguageEngine>;

/// Errors that end the training of a language model.
#[derive(Debug, thiserror::Error)]
pub enum LanguageTrainError {
    /// The task provides no prompt or no rewards.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The model cannot process a text.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// A metric is not finite.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Another rank fails, does not respond, or has other settings or weights.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A prompt leaves no room for its completions.
    #[error(
        "a prompt of {prompt} tokens (it begins with {start:?}) and completions of {completion} are \
         more than the model's context of {context}; {}",
        length_advice(prompt, context)
    )]
    TooLong {
        /// Beginning of the prompt.
        start: String,
        prompt: usize,
        completion: usize,
        context: usize,
    },
    /// A prompt leaves no room for its solution.
    #[error(
        "a prompt of {prompt} tokens (it begins with {start:?}) and its solution of {solution} are more than the model's \
         context of {context}; leave such prompts out"
    )]
    LongSolution {
        /// Beginning of the prompt.
        start: String,
        prompt: usize,
        solution: usize,
        context: usize,
    },
    /// A new model needs a task that lists its characters.
    #[error(
        "`tiny` has the characters of prompts and solutions for tokens, but the task {0} does not list \
         them: give every prompt a solution, or choose another model"
    )]
    NoAlphabet(String),
    /// A prompt has no solution for SFT.
    #[error(
        "the task {0} has a prompt without a solution, which SFT needs; `grove train` with \
         fit.iterations=0 learns from rewards alone"
    )]
    NoSolution(String),
    /// A setting is out of range.
    #[error("{0}")]
    Settings(String),
}

/// Advice about a prompt that does not fit in the context together with its completions.
fn length_advice(prompt: &usize, context: &usize) -> &'static str {
    if prompt < context {
        "lower generation.max_new_tokens, or, for a `tiny` model, raise model.context"
    } else {
        "leave such prompts out"
    }
}

impl LanguageTrainError {
    /// Whether the error is about another rank, which reports it in more detail itself.
    pub fn is_about_another_rank(&self) -> bool {
        matches!(self, Self::Team(_) | Self::Train(TrainError::Team(_)))
    }
}

impl LanguageTrainer {
    /// Creates a run that trains `model` on a task, or, if `model` is `None`, a small new model.
    ///
    /// # Errors
    /// If a setting is out of range, `model` is `None` although `config.model.path` names one, a completion may have no
    /// tokens, a new model is to learn a task without an alphabet, or the model cannot process the task's prompts, all
    /// of which are checked if the task lists them.
    pub fn for_task(
        task: Arc<dyn Task>,
        config: LanguageConfig,
        model: Option<LanguageModel>,
    ) -> Result<Self, LanguageTrainError> {
        Self::for_task_of_team(task, config, model, Team::alone())
    }

    /// Creates this rank's part of a run that the ranks of `team` share: each completes some of the prompts and
    /// differentiates some of the groups, and all arrive at the same weights. All ranks must call the methods that
    /// iterate, evaluate or measure. Ranks of a process need a thread each, as those of
    /// [`GameTrainer::with_team`](crate::trainer::GameTrainer::with_team).
    ///
    /// # Errors
    /// The errors of [`LanguageTrainer::for_task`], and one if there are more ranks than shards (`update.num_shards`,
    /// of whole groups).
    pub fn for_task_of_team(
        task: Arc<dyn Task>,
        mut config: LanguageConfig,
        model: Option<LanguageModel>,
        team: Team,
    ) -> Result<Self, LanguageTrainError> {
        check_settings(&config, model.as_ref())?;
        let reward_parts = reweight_parts(&*task, &config.reward.weights)?;
        let mut model = model.map_or_else(|| new_model(&*task, &config), Ok)?;
        check_sizes(&config, &model)?;
        if config.generation.max_new_tokens == 0 {
            config.generation.max_new_tokens = default_max_new_tokens(&*task, &model)?;
        }
        set_up_adapters(&mut model, &mut config)?;
        let decoder =
            model.new_decoder().with_arithmetic(Arithmetic::for_precision(config.precision));
        // From now on the decoder owns them.
        model.params = DecoderParams::default();
        if config.update.num_shards == 0 {
            config.update.num_shards = default_shards(&decoder);
        }
        check_ranks(&team, &config)?;
        let key = Stream::Shuffle.key(config.seed);
        let learner = LanguageLearner::new(decoder, key, config.optimizer.moments);
        let learner = learner.with_team(team.clone());
        let engine = LanguageEngine {
            task,
            reward_parts,
            config,
            settings: Table::new(),
            model,
            learner,
            #[cfg(on_disk)]
            base_digest: std::sync::OnceLock::new(),
            device: None,
            limits: TokenLimits::UNLIMITED,
            team,
            next_prompt: 0,
            past_validation_prompts: 0,
            env_steps: 0,
            completions: Vec::new(),
        };
        engine.check_prompts()?;
        Ok(Self::from_engine(engine))
    }

    /// Saves these settings with every checkpoint ([`join_language_settings`]).
    pub fn with_settings(mut self, settings: Table) -> Self {
        self.engine.settings = settings;
        self
    }

    /// Moves generation and learning to a device; `None` keeps them on the CPU. Unless ranks share the run, weights and
    /// the optimizer's state stay there until a checkpoint or a saved model takes a copy.
    ///
    /// # Errors
    /// If a setting is only for the CPU, or the device lacks the precision or the room for the model or its prompts.
    pub fn with_device(mut self, device: Option<Device>) -> Result<Self, LanguageTrainError> {
        let LanguageEngine { config, learner, .. } = &self.engine;
        check_device(config, &learner.decoder, device.as_ref())
            .map_err(LanguageTrainError::Settings)?;
        let Some(device) = device else { return Ok(self) };
        #[cfg(text_kernels)]
        {
            let precision = self.engine.config.precision;
            self.engine.learner = self.engine.learner.with_device(device.clone(), precision);
            self.engine.limits = TokenLimits::new(&device, &self.engine.model.shape);
        }
        self.engine.device = Some(device);
        let TokenLimits { prompt, group } = self.engine.limits;
        // No text is longer than the context.
        if prompt.min(group) < self.engine.model.shape.context {
            self.engine.check_prompts()?;
        }
        Ok(self)
    }

    /// Scores `completions_per_prompt` completions of each of up to `num_prompts` held-out prompts, none of
    /// which was used to select the best policy.
    ///
    /// # Errors
    /// If the task fails, or another rank fails or does not respond.
    ///
    /// # Panics
    /// If `completions_per_prompt` is 0.
    pub fn evaluate_fresh(
        &self,
        num_prompts: usize,
        completions_per_prompt: usize,
        sampling: &Sampling,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        assert!(completions_per_prompt > 0, "an evaluation needs a completion of each prompt");
        self.engine.evaluate(HeldOutPart::Final, num_prompts, completions_per_prompt, sampling)
    }

    /// Evaluates the greedy policy on `num_prompts` held-out prompts that were not used to select the best policy (0
    /// skips this); in a run of SFT alone, also on the held-out solutions of such prompts.
    ///
    /// # Errors
    /// If the task fails, or another rank fails or does not respond.
    pub fn evaluate_fresh_greedy(
        &self,
        num_prompts: usize,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        self.engine.evaluate_part(HeldOutPart::Final, num_prompts)
    }

    /// Takes the completions of the last iteration; none after SFT.
    pub fn take_completions(&mut self) -> Vec<CompletionRecord> {
        std::mem::take(&mut self.engine.completions)
    }

    /// Broadcasts the first rank's weights to all ranks, for instance those of the best policy. All ranks must call
    /// this.
    ///
    /// # Errors
    /// If another rank fails or does not respond.
    pub fn broadcast_weights(&mut self) -> Result<(), TeamError> {
        let LanguageEngine { team, learner, .. } = &mut self.engine;
        if team.size() > 1 {
            let ours = bytemuck::cast_slice(learner.decoder.trainable());
            let first: Vec<f32> = bytemuck::pod_collect_to_vec(&team.broadcast(ours)?);
            learner.decoder.update(|trained| trained.copy_from_slice(&first));
        }
        Ok(())
    }

    /// Sampling settings of training.
    pub fn sampling(&self) -> Sampling {
        self.engine.sampling()
    }

    /// Tokenizes a prompt, and checks that it leaves room for a completion of `completion` tokens.
    ///
    /// # Errors
    /// If the prompt and the completion exceed the context, or the prompt cannot be tokenized.
    pub fn tokenize_prompt(
        &self,
        prompt: &Prompt,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        self.engine.tokenize_prompt(prompt, completion)
    }

    /// The current model.
    pub fn model(&self) -> LanguageModel {
        let LanguageEngine { model, learner, .. } = &self.engine;
        let mut model = model.clone();
        model.params = learner.decoder.params().clone();
        model.adapters = learner.decoder.adapters().cloned();
        model
    }

    /// Skips to a later iteration without training the iterations in between, for a dry run, which measures one stage
    /// at a time.
    pub fn skip_to(&mut self, iteration: u32) {
        self.iterations_done = iteration;
    }

    /// The task.
    pub fn task(&self) -> &dyn Task {
        &*self.engine.task
    }

    /// Parts of a reward, with the weights of this run.
    pub fn reward_parts(&self) -> &[RewardPart] {
        &self.engine.reward_parts
    }

    /// Highest possible score of a completion.
    pub fn highest_score(&self) -> f64 {
        RewardPart::highest_score(self.reward_parts())
    }
}

impl LanguageEngine {
    /// Sampling settings of training.
    fn sampling(&self) -> Sampling {
        self.config.sampling(&self.model.stop_tokens)
    }

    /// The number of held-out prompts that evaluations may have used to select the best policy, also those before the
    /// run was resumed with other settings.
    fn validation_prompts(&self) -> u64 {
        let solutions = if self.config.is_sft_only() { self.max_held_out_solutions() } else { 0 };
        solutions.max(self.config.checkpoint.eval_episodes as u64).max(self.past_validation_prompts)
    }

    /// Indices of `count` held-out prompts of a part, or of as many as it has. Validation takes as many as it
    /// evaluates, at most half of all; if prompts are unlimited, the final part is unlimited too.
    fn held_out_prompts(&self, part: HeldOutPart, count: u64) -> Range<u64> {
        let end = self.task.num_prompts(Split::Test).unwrap_or(u64::MAX);
        let final_start = self.validation_prompts().min(end.div_ceil(2));
        match part {
            HeldOutPart::Final if final_start < end => {
                final_start..final_start.saturating_add(count).min(end)
            }
            HeldOutPart::Validation | HeldOutPart::Final => 0..count.min(final_start),
        }
    }

    /// Generates and scores `completions` completions of each of some held-out prompts.
    fn evaluate(
        &self,
        part: HeldOutPart,
        count: usize,
        completions: usize,
        sampling: &Sampling,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        let mut tally = EvaluationTally::new(&self.reward_parts);
        let prompts = self.held_out_prompts(part, count as u64);
        // This number is the same on all ranks.
        let prompts_at_a_time = (MAX_EVALUATED_COMPLETIONS / completions).max(1);
        for first in prompts.clone().step_by(prompts_at_a_time) {
            let end = first.saturating_add(prompts_at_a_time as u64).min(prompts.end);
            let indices: Vec<u64> = (first..end).collect();
            tally.add(&self.complete_and_score(Split::Test, &indices, completions, sampling)?);
        }
        Ok(tally.into_record())
    }

    /// Evaluates the greedy policy on `count` held-out prompts of a part, and if the run is SFT alone, also on the
    /// held-out solutions.
    fn evaluate_part(
        &self,
        part: HeldOutPart,
        count: usize,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        let greedy = Sampling { temperature: 0.0, ..self.sampling() };
        let mut evaluation = match count {
            0 => EvaluationRecord::default(),
            count => self.evaluate(part, count, 1, &greedy)?,
        };
        if self.config.is_sft_only() {
            evaluation.held_out =
                Some(HeldOutMeans { loss: self.compute_held_out_loss(part)?, accuracy: None });
        }
        Ok(evaluation)
    }
}
