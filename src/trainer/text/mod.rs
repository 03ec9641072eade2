//! GRPO of a language model: the fourth engine.

mod advantages;
mod answers;
mod exchange;
mod fit;
mod grpo;
mod health;
mod obstacle;
mod prompts;
mod record;
mod rollout;
#[cfg(on_disk)]
mod saved_model;
mod settings;
mod show;
mod snapshot;
mod tally;

pub use health::Health;
pub use record::CompletionRecord;
#[cfg(on_disk)]
pub use saved_model::{check_base, saved_language_model};
pub use show::Answer;
pub use snapshot::{language_settings, load_language_settings, saved_language_settings};

pub use crate::settings::{
    Baseline, FitConfig, GenerationConfig, LanguageConfig, ModelConfig, RewardConfig, TINY,
};

use super::{TrainError, Trainer};
use crate::learner::text::LanguageLearner;
use crate::metrics::{EvaluationRecord, HeldOut};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::task::{Part, Prompt, Split, Task, TaskError, weighted};
use crate::text::generate::Sampling;
use crate::text::{Adapters, Arithmetic, DecoderParams, LanguageError, LanguageModel};
use burn::tensor::Device;
use obstacle::{Room, obstacle};
use prompts::longest_prompt;
use rollout::RolloutSeconds;
use std::ops::Range;
use std::sync::Arc;
use tally::Tally;
use toml::Table;

/// The default number of shards of an iteration's groups.
const SHARDS: usize = 16;
/// Completions of an evaluation that are in memory at a time.
const EVALUATED: usize = 1 << 13;

/// A language model in training for a task.
pub struct TextEngine {
    task: Arc<dyn Task>,
    /// The parts of a reward, with the weights of this run.
    parts: Vec<Part>,
    config: LanguageConfig,
    /// The settings that are saved with every checkpoint.
    settings: Table,
    /// The vocabulary and the files; the decoder has the parameters.
    model: LanguageModel,
    learner: LanguageLearner,
    /// The digest of the weights that adapters are for, once it is known.
    #[cfg(on_disk)]
    base_digest: std::sync::OnceLock<String>,
    /// The device that the texts are on; `None` for the CPU.
    device: Option<Device>,
    /// The room for texts on the device.
    room: Room,
    /// The ranks that share the run.
    team: Team,
    /// The number of the next prompt.
    next_prompt: u64,
    /// Tokens generated so far, and learnt from by SFT.
    steps: u64,
    /// The completions of the last iteration.
    completions: Vec<CompletionRecord>,
}

/// A part of the held-out prompts. The two have no prompt in common where there is more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldOutPart {
    /// The first ones, at most half, which choose the best policy.
    Validation,
    /// The others, for final scores.
    Final,
}

/// A run of a language model for a task.
pub type LanguageTrainer = Trainer<TextEngine>;

/// The reasons for which a run of a language model stops.
#[derive(Debug, thiserror::Error)]
pub enum LanguageTrainError {
    /// The task gave no prompt or no rewards.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The model cannot take a text.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// Numbers ran out of range.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Another rank of the run is gone, has failed, or does not fit.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A prompt that leaves no room for its completions.
    #[error(
        "a prompt of {prompt} tokens (it begins with {start:?}) and completions of {completion} are \
         more than the model's context of {context}; {}",
        way_out(prompt, context)
    )]
    TooLong {
        /// The beginning of the prompt.
        start: String,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of a completion at most.
        completion: usize,
        /// Tokens that the model can see.
        context: usize,
    },
    /// A solution that has no room after its prompt.
    #[error(
        "a prompt of {prompt} tokens (it begins with {start:?}) and its solution of {solution} are more than the model's \
         context of {context}; leave such prompts out"
    )]
    LongSolution {
        /// The beginning of the prompt.
        start: String,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the solution.
        solution: usize,
        /// Tokens that the model can see.
        context: usize,
    },
    /// A fresh model needs to know its characters.
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
    /// A setting out of range.
    #[error("{0}")]
    Settings(String),
}

/// Advice where a prompt and its completions are more than the context.
fn way_out(prompt: &usize, context: &usize) -> &'static str {
    match prompt < context {
        true => "generation.max_new_tokens can be less",
        false => "leave such prompts out",
    }
}

impl LanguageTrainError {
    /// Whether the error is about another rank, which says more itself.
    pub fn is_about_another_rank(&self) -> bool {
        matches!(self, Self::Team(_) | Self::Train(TrainError::Team(_)))
    }
}

impl LanguageTrainer {
    /// A run at its start, of a model or of a fresh one.
    ///
    /// # Errors
    /// If the settings are out of range, `config.model.path` names a model and there is none, the task leaves completions
    /// no tokens, a fresh model is to learn a task without an alphabet, or the model cannot take the task's prompts, all
    /// of which are checked if they are listed.
    pub fn for_task(
        task: Arc<dyn Task>,
        config: LanguageConfig,
        model: Option<LanguageModel>,
    ) -> Result<Self, LanguageTrainError> {
        Self::for_task_of_team(task, config, model, Team::alone())
    }

    /// This rank's part in a run that the ranks of `team` share: each completes some of the prompts and
    /// differentiates some of the groups, and all arrive at the same weights. All of them must call the methods
    /// that iterate, evaluate or measure.
    ///
    /// # Errors
    /// As [`LanguageTrainer::for_task`], and if there are more ranks than shards (`update.num_shards`, of whole
    /// groups).
    pub fn for_task_of_team(
        task: Arc<dyn Task>,
        mut config: LanguageConfig,
        model: Option<LanguageModel>,
        team: Team,
    ) -> Result<Self, LanguageTrainError> {
        config.validate().map_err(|error| LanguageTrainError::Settings(error.to_string()))?;
        let path = &config.model.path;
        if model.is_none() && path != TINY {
            return Err(LanguageTrainError::Settings(format!(
                "model.path is {path}, whose model must be given (`LanguageModel::load`); without one it must be `{TINY}`"
            )));
        }
        let parts = weighted(&*task, &config.reward.weights)?;
        let mut model = match (model, task.alphabet()) {
            (Some(model), _) => model,
            (None, Some(alphabet)) => {
                let key = Stream::Weights.key(config.seed);
                LanguageModel::tiny(&config.tiny_shape(), &alphabet, key)
            }
            (None, None) => return Err(LanguageTrainError::NoAlphabet(task.name().to_string())),
        };
        if config.generation.max_new_tokens == 0 {
            let longest = longest_prompt(&*task, &model)?;
            let room = longest.map(|tokens| model.shape.context.saturating_sub(tokens).max(1));
            let limit = task.max_new_tokens();
            if limit == 0 {
                return Err(LanguageTrainError::Settings(format!(
                    "the task {} has a max_new_tokens of 0, but a completion has a token or more; set \
                     generation.max_new_tokens",
                    task.name()
                )));
            }
            config.generation.max_new_tokens = limit.min(room.unwrap_or(usize::MAX));
        }
        adapt(&mut model, &mut config)?;
        let decoder = model.decoder().with_arithmetic(Arithmetic::of(config.precision));
        // From now on the decoder has them.
        model.params = DecoderParams::default();
        if config.update.num_shards == 0 {
            // The gradient of each takes as much memory as the weights.
            let is_large = !decoder.is_small() && !decoder.has_adapters();
            config.update.num_shards = if is_large { 1 } else { SHARDS };
        }
        let (ranks, groups) = (team.size(), config.generation.num_prompts);
        let shards = Shards::new(groups, config.update.num_shards).count();
        if ranks > shards {
            return Err(TeamError::TooMany { ranks, shards }.into());
        }
        let key = Stream::Shuffle.key(config.seed);
        let learner = LanguageLearner::new(decoder, key, config.optimizer.moments);
        let learner = learner.sharing(team.clone());
        let engine = TextEngine {
            task,
            parts,
            config,
            settings: Table::new(),
            model,
            learner,
            #[cfg(on_disk)]
            base_digest: std::sync::OnceLock::new(),
            device: None,
            room: Room::UNLIMITED,
            team,
            next_prompt: 0,
            steps: 0,
            completions: Vec::new(),
        };
        engine.check_prompts()?;
        Ok(Self::start(engine))
    }

    /// Saves these settings with every checkpoint ([`language_settings`]).
    pub fn with_settings(mut self, settings: Table) -> Self {
        self.engine.settings = settings;
        self
    }

    /// Moves generation and learning to a device; `None` keeps them on the CPU. Unless ranks share the run, weights and
    /// the optimiser's state stay there until a checkpoint or a saved model takes a copy.
    ///
    /// # Errors
    /// If a setting is only for the CPU, or the device lacks the precision or the room for the model or its prompts.
    pub fn on(mut self, device: Option<Device>) -> Result<Self, LanguageTrainError> {
        let TextEngine { config, learner, .. } = &self.engine;
        if let Some(obstacle) = obstacle(config, &learner.decoder, device.as_ref()) {
            return Err(LanguageTrainError::Settings(obstacle));
        }
        let Some(device) = device else { return Ok(self) };
        #[cfg(text_kernels)]
        {
            let precision = self.engine.config.precision;
            self.engine.learner = self.engine.learner.on(device.clone(), precision);
        }
        let room = Room::of(&device, &self.engine.model.shape);
        (self.engine.device, self.engine.room) = (Some(device), room);
        // No text is longer than the context.
        if room.prompt.min(room.group) < self.engine.model.shape.context {
            self.engine.check_prompts()?;
        }
        Ok(self)
    }

    /// Scores `completions` of each of `count` held-out prompts, or of as many as there are, none of which chose the
    /// best policy.
    ///
    /// # Errors
    /// If the task fails, or another rank of the run is gone or silent.
    ///
    /// # Panics
    /// If `completions` is 0.
    pub fn evaluate(
        &self,
        count: usize,
        completions: usize,
        sampling: &Sampling,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        assert!(completions > 0, "an evaluation needs a completion of each prompt");
        self.engine.evaluate((HeldOutPart::Final, count), completions, sampling)
    }

    /// Evaluates the greedy policy on `count` held-out prompts, none if it is 0, and none that chose the best policy;
    /// if the run is SFT alone, also on the held-out solutions of such prompts.
    ///
    /// # Errors
    /// If the task fails, or another rank of the run is gone or silent.
    pub fn evaluate_greedy(&self, count: usize) -> Result<EvaluationRecord, LanguageTrainError> {
        self.engine.evaluate_on(HeldOutPart::Final, count)
    }

    /// Takes the completions of the last iteration; none after SFT.
    pub fn take_completions(&mut self) -> Vec<CompletionRecord> {
        std::mem::take(&mut self.engine.completions)
    }

    /// Copies the first rank's weights to all ranks, for instance those of the best policy. All ranks must call
    /// this.
    ///
    /// # Errors
    /// If another rank of the run is gone or silent.
    pub fn follow_first(&mut self) -> Result<(), TeamError> {
        let TextEngine { team, learner, .. } = &mut self.engine;
        if team.size() > 1 {
            let ours = bytemuck::cast_slice(learner.decoder.trained());
            let first: Vec<f32> = bytemuck::pod_collect_to_vec(&team.broadcast(ours)?);
            learner.decoder.update(|trained| trained.copy_from_slice(&first));
        }
        Ok(())
    }

    /// The sampling of tokens in training.
    pub fn sampling(&self) -> Sampling {
        self.engine.sampling()
    }

    /// The tokens of a prompt, if they leave room for a completion of so many.
    ///
    /// # Errors
    /// If they do not, or the prompt cannot be tokenized.
    pub fn tokens(
        &self,
        prompt: &Prompt,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        self.engine.tokens(prompt, completion)
    }

    /// The model.
    pub fn model(&self) -> LanguageModel {
        let TextEngine { model, learner, .. } = &self.engine;
        let mut model = model.clone();
        model.params = learner.decoder.params().clone();
        model.adapters = learner.decoder.adapters().cloned();
        model
    }

    /// Continues at a later iteration without training the ones before it: for a dry run, which measures a phase.
    pub fn skip_to(&mut self, iteration: u32) {
        self.iteration = iteration;
    }

    /// The task.
    pub fn task(&self) -> &dyn Task {
        &*self.engine.task
    }

    /// The parts of a reward, with the weights of this run.
    pub fn parts(&self) -> &[Part] {
        &self.engine.parts
    }

    /// The highest score of a completion.
    pub fn highest_score(&self) -> f64 {
        Part::highest_score(self.parts())
    }
}

impl TextEngine {
    /// The sampling of tokens in training.
    fn sampling(&self) -> Sampling {
        self.config.sampling(&self.model.stop_tokens)
    }

    /// The numbers of `count` held-out prompts of a part, or of as many as it has. Validation takes as many as it
    /// evaluates, and at most half of them all; of endless ones the others have no end.
    fn held_out_prompts(&self, part: HeldOutPart, count: u64) -> Range<u64> {
        let all = self.task.num_prompts(Split::Test);
        let solutions = if self.config.imitates() { self.held_out_solutions() } else { 0 };
        let validation = solutions.max(self.config.checkpoint.eval_episodes as u64);
        let end = all.unwrap_or(u64::MAX);
        let border = validation.min(end.div_ceil(2));
        match part {
            HeldOutPart::Final if border < end => border..border.saturating_add(count).min(end),
            HeldOutPart::Validation | HeldOutPart::Final => 0..count.min(border),
        }
    }

    /// Scores `completions` of each of some held-out prompts.
    fn evaluate(
        &self,
        (part, count): (HeldOutPart, usize),
        completions: usize,
        sampling: &Sampling,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        let (mut tally, mut seconds) = (Tally::new(&self.parts), RolloutSeconds::default());
        let prompts = self.held_out_prompts(part, count as u64);
        // The same on all ranks.
        let at_a_time = (EVALUATED / completions).max(1);
        for first in prompts.clone().step_by(at_a_time) {
            let end = first.saturating_add(at_a_time as u64).min(prompts.end);
            let numbers: Vec<u64> = (first..end).collect();
            let split = (Split::Test, &numbers[..]);
            tally.add(&self.answer(split, completions, sampling, &mut seconds)?);
        }
        Ok(tally.record())
    }

    /// Evaluates the greedy policy on `count` held-out prompts and, if the run is SFT alone, the held-out solutions.
    fn evaluate_on(
        &self,
        part: HeldOutPart,
        count: usize,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        let greedy = Sampling { temperature: 0.0, ..self.sampling() };
        let mut evaluation = match count {
            0 => EvaluationRecord::default(),
            count => self.evaluate((part, count), 1, &greedy)?,
        };
        if self.config.imitates() {
            evaluation.held_out = Some(HeldOut { loss: self.held_out(part)?, accuracy: None });
        }
        Ok(evaluation)
    }
}

/// Adds the adapters of the settings to a model, or those of the model to the settings.
fn adapt(model: &mut LanguageModel, config: &mut LanguageConfig) -> Result<(), LanguageTrainError> {
    match &model.adapters {
        Some(adapters) => config.lora = adapters.config().clone(),
        None if config.lora.r > 0 && model.is_fresh() => {
            let what = "lora.r needs a pretrained model; all weights of `tiny` are learnt";
            return Err(LanguageTrainError::Settings(what.to_string()));
        }
        None if config.lora.r > 0 => {
            let key = Stream::Weights.key(config.seed);
            model.adapters = Some(Adapters::fresh(&model.shape, &config.lora, key));
        }
        None => {}
    }
    Ok(())
}
