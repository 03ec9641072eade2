//! GRPO of a language model: prompts, completions, rewards, advantages, an update.

mod advantages;
mod fit;
mod health;
mod record;
mod rollout;
mod settings;
mod show;
mod snapshot;

pub use health::Health;
pub use record::{CompletionRecord, LanguageEvaluation, LanguageRecord, LanguageSeconds};
pub use settings::{FitConfig, GenerationConfig, LanguageConfig, ModelConfig, RewardConfig, TINY};
pub use show::Answer;
pub use snapshot::{language_settings, load_language_settings, saved_language_settings};

use super::TrainError;
use crate::learner::language::{Group, LanguageLearner, LanguageMeans};
use crate::learner::{entropy_at, learning_rate};
use crate::model::language::{Adapters, LanguageError, LanguageModel};
use crate::rng::{Stream, draw};
use crate::rollout::generate::{Completion, Generator, Prompt as Asked, Sampling, stop};
use crate::task::{self, Prompt, Rewards, Split, Task, TaskError};
use rollout::Answers;
use std::sync::Arc;
use web_time::Instant;

/// A run of a language model in memory.
pub struct LanguageTrainer {
    task: Arc<dyn Task>,
    config: LanguageConfig,
    /// The vocabulary and the files; its parameters are those that the run began with.
    model: LanguageModel,
    learner: LanguageLearner,
    /// Iterations done.
    iteration: u32,
    /// The number of the next prompt.
    next_prompt: u64,
    /// How good the best evaluation so far was, and its iteration: by the reward, or, where the run
    /// imitates, by the log-likelihood of what is held out.
    best: Option<(f64, u32)>,
}

/// Why a run of a language model stopped.
#[derive(Debug, thiserror::Error)]
pub enum LanguageTrainError {
    /// The task gave no prompt or no rewards.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A text cannot be put to the model.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// Numbers ran out of range.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A prompt that leaves no room for its completions.
    #[error(
        "a prompt of {prompt} tokens (it begins with {start:?}) and completions of {completion} are \
         more than the model's context of {context}; generation.max_new_tokens can be less"
    )]
    TooLong {
        /// How the prompt begins.
        start: String,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of a completion at most.
        completion: usize,
        /// Tokens that the model can see.
        context: usize,
    },
    /// A model that begins from nothing needs to know its characters.
    #[error(
        "`tiny` has the characters of prompts and solutions for tokens, but the task {0} does not say \
         which those are: give every prompt a solution, or take another model"
    )]
    NoAlphabet(String),
    /// There is nothing to imitate.
    #[error(
        "the task {0} has a prompt without a solution to imitate; it can be learnt by rewards alone \
         (`grove train` with fit.iterations=0)"
    )]
    NoSolution(String),
    /// A setting out of range.
    #[error("{0}")]
    Settings(String),
}

impl LanguageTrainer {
    /// A run at its start, of a model or of a fresh one.
    ///
    /// # Errors
    /// If the settings are out of range, a fresh model is to learn a task of any characters, or the task's
    /// prompts, of which all are looked at where they are listed, cannot be put to the model.
    pub fn new(
        task: Arc<dyn Task>,
        mut config: LanguageConfig,
        model: Option<LanguageModel>,
    ) -> Result<Self, LanguageTrainError> {
        config.validate().map_err(LanguageTrainError::Settings)?;
        let model = match (model, task.alphabet()) {
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
            config.generation.max_new_tokens =
                task.max_new_tokens().min(room.unwrap_or(usize::MAX));
        }
        let mut model = model;
        match &model.adapters {
            Some(adapters) => config.lora = adapters.config().clone(),
            None if config.lora.r > 0 && model.is_fresh() => {
                let what = "lora.r is for models that are there; all weights of `tiny` are learnt";
                return Err(LanguageTrainError::Settings(what.to_string()));
            }
            None if config.lora.r > 0 => {
                let key = Stream::Weights.key(config.seed);
                model.adapters = Some(Adapters::fresh(&model.shape, &config.lora, key));
            }
            None => {}
        }
        let decoder = model.decoder();
        // The decoder's change from now on.
        model.params = Arc::default();
        let key = Stream::Shuffle.key(config.seed);
        let learner = LanguageLearner::new(decoder, &config.rule(false), key);
        let run = Self { task, config, model, learner, iteration: 0, next_prompt: 0, best: None };
        run.look_through()?;
        Ok(run)
    }

    /// Looks at the prompts before anything is done with them: at all where they are listed, else at one of
    /// each split.
    fn look_through(&self) -> Result<(), LanguageTrainError> {
        let LanguageConfig { fit, generation, checkpoint, .. } = &self.config;
        let imitates = self.config.imitates();
        for split in [Split::Train, Split::Test] {
            for number in 0..self.task.num_prompts(split).unwrap_or(1).max(1) {
                let prompt = self.task.prompt(split, number)?;
                if !imitates || checkpoint.eval_episodes > 0 {
                    self.tokens(&prompt, generation.max_new_tokens)?;
                }
                if imitates || (split == Split::Train && fit.iterations > 0) {
                    self.text(&prompt)?;
                }
            }
        }
        Ok(())
    }

    /// One iteration: every prompt gets a group of completions, each is compared with its group, and the
    /// policy moves towards the better ones. The first ones may imitate the task's solutions instead.
    ///
    /// # Errors
    /// If the task fails, a prompt is too long, or numbers run out of range.
    pub fn iterate(
        &mut self,
    ) -> Result<(LanguageRecord, Vec<CompletionRecord>), LanguageTrainError> {
        let started = Instant::now();
        let fit = self.config.imitates() || self.iteration < self.config.fit.iterations;
        let (groups, mut record, completions) = if fit {
            (self.shown()?, LanguageRecord { fit, ..LanguageRecord::default() }, Vec::new())
        } else {
            let (answers, seconds) = self.rollout()?;
            let config = &self.config.reward;
            let advantages = advantages::advantages(&answers.totals, config.scale_rewards);
            let groups = advantages::groups(&answers, &advantages, config);
            let record = LanguageRecord::of(&answers, self.task.parts(), seconds);
            let of = (self.task.parts(), &self.model);
            let made = CompletionRecord::all(&answers, &advantages, of, self.iteration + 1);
            (groups, record, made)
        };
        let learning = Instant::now();
        let means = self.learn(&groups, fit);
        record.seconds.learn = learning.elapsed().as_secs_f64();
        self.iteration += 1;
        record.learnt(&groups, self.iteration, &means);
        record.learning_rate = self.rate(self.learner.moments.steps.saturating_sub(1));
        record.seconds.total = started.elapsed().as_secs_f64();
        for (what, value) in [("loss", means.loss), ("gradient", means.grad_norm)] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { what, iteration: self.iteration }.into());
            }
        }
        Ok((record, completions))
    }

    /// The update of an iteration.
    fn learn(&mut self, groups: &[Group], fit: bool) -> LanguageMeans {
        let config = &self.config;
        let entropy = entropy_at(&config.loss, self.iteration, config.iterations);
        let entropy = if fit { 0.0 } else { entropy };
        let rates: Vec<f64> = (0..config.updates() as u64)
            .map(|update| self.rate(self.learner.moments.steps + update))
            .collect();
        self.learner.update(&config.rule(fit), groups, self.iteration, entropy, &rates)
    }

    /// The learning rate of an optimiser step: that of imitation, or after it the schedule's.
    fn rate(&self, update: u64) -> f64 {
        let LanguageConfig { fit, iterations, .. } = &self.config;
        let updates = self.config.updates() as u64;
        let shown = u64::from(fit.iterations) * updates;
        if update < shown {
            return fit.learning_rate;
        }
        let total = (u64::from(*iterations) * updates).saturating_sub(shown);
        learning_rate(&self.config.optimizer, update - shown, total)
    }

    /// Completions of the next prompts, and what they are worth.
    fn rollout(&mut self) -> Result<(Answers, LanguageSeconds), LanguageTrainError> {
        let mut seconds = LanguageSeconds::default();
        let mut all = Answers::default();
        let GenerationConfig { num_prompts, group_size, resample, .. } = self.config.generation;
        let sampling = self.config.sampling(&self.model.stop_tokens);
        for round in 0..=resample {
            let missing = num_prompts - all.prompts.len();
            let numbers: Vec<u64> = (self.next_prompt..).take(missing).collect();
            self.next_prompt += missing as u64;
            let mut some =
                self.answer((Split::Train, &numbers), group_size, &sampling, &mut seconds)?;
            if round < resample {
                some.keep(|totals| !advantages::is_even(totals));
            }
            all.append(some);
            if all.prompts.len() == num_prompts {
                break;
            }
        }
        Ok((all, seconds))
    }

    /// Completions of the prompts of these numbers, and what they are worth.
    fn answer(
        &self,
        (split, numbers): (Split, &[u64]),
        members: usize,
        sampling: &Sampling,
        seconds: &mut LanguageSeconds,
    ) -> Result<Answers, LanguageTrainError> {
        let started = Instant::now();
        let prompts: Result<Vec<Prompt>, TaskError> =
            numbers.iter().map(|number| self.task.prompt(split, *number)).collect();
        let prompts = prompts?;
        let stream = if split == Split::Train { Stream::TrainAction } else { Stream::Validation };
        let key = stream.key(self.config.seed);
        let stops = &self.config.generation.stop;
        let mut asked = Vec::with_capacity(prompts.len());
        for (prompt, number) in prompts.iter().zip(numbers) {
            let tokens = self.tokens(prompt, sampling.max_new_tokens)?;
            let key = draw(draw(key, *number as u32), (*number >> 32) as u32);
            asked.push(Asked { tokens, completions: members, key });
        }
        let is_over = |tokens: &[u32]| stop::before(&self.model.text(tokens), stops).is_some();
        let generator = Generator {
            decoder: &self.learner.decoder,
            sampling,
            slots: self.config.generation.slots,
            stop: if stops.is_empty() { None } else { Some(&is_over) },
            listener: None,
        };
        let completions = generator.generate(&asked);
        seconds.generate += started.elapsed().as_secs_f64();
        let verifying = Instant::now();
        let text = |one: &Completion| {
            let text = self.model.text(&one.tokens);
            stop::before(&text, stops).map(str::to_string).unwrap_or(text)
        };
        let texts: Vec<Vec<String>> =
            completions.iter().map(|group| group.iter().map(text).collect()).collect();
        let mut answers = Vec::new();
        for ((prompt, group), texts) in prompts.iter().zip(&completions).zip(&texts) {
            for (one, text) in group.iter().zip(texts) {
                let (num_tokens, truncated) = (one.tokens.len(), !one.ended);
                answers.push(task::Completion { prompt, text, num_tokens, truncated });
            }
        }
        let mut verified = self.task.verify(&answers)?.into_iter();
        let rewards: Vec<Vec<Rewards>> =
            completions.iter().map(|group| verified.by_ref().take(group.len()).collect()).collect();
        seconds.verify += verifying.elapsed().as_secs_f64();
        let buffer = self.config.reward.overlong_buffer;
        let total = |(one, rewards): (&Completion, &Rewards)| {
            let length = one.tokens.len();
            rewards.total(self.task.parts())
                - advantages::overlong(length, sampling.max_new_tokens, buffer)
        };
        let totals = completions.iter().zip(&rewards);
        let totals = totals.map(|(group, rewards)| group.iter().zip(rewards).map(total).collect());
        let totals = totals.collect();
        let tokens = asked.into_iter().map(|prompt| prompt.tokens).collect();
        Ok(Answers { prompts, tokens, completions, texts, rewards, totals, dropped: (0, 0) })
    }

    /// The tokens of a prompt, if they leave room for a completion of so many.
    ///
    /// # Errors
    /// If they do not, or the prompt cannot be made of tokens.
    pub fn tokens(
        &self,
        prompt: &Prompt,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        let tokens = self.model.prompt(&prompt.text, &prompt.messages)?;
        let context = self.model.shape.context;
        if tokens.is_empty() || tokens.len() + completion > context {
            let start = prompt.text.chars().take(40).collect();
            let prompt = tokens.len();
            return Err(LanguageTrainError::TooLong { start, prompt, completion, context });
        }
        Ok(tokens)
    }

    /// Puts `count` prompts that are never trained on to the policy, which answers each `members` times as
    /// `sampling` says.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn evaluate(
        &self,
        count: usize,
        members: usize,
        sampling: &Sampling,
    ) -> Result<LanguageEvaluation, LanguageTrainError> {
        let all = self.task.num_prompts(Split::Test);
        let count = all.map_or(count as u64, |all| all.min(count as u64));
        let numbers: Vec<u64> = (0..count).collect();
        let mut seconds = LanguageSeconds::default();
        let answers = self.answer((Split::Test, &numbers), members, sampling, &mut seconds)?;
        Ok(LanguageEvaluation::of(&answers, self.task.parts()))
    }

    /// Evaluates the greedy policy, and says whether it is the best so far. Of a run that imitates, what counts
    /// is how likely it finds what is held out; it may be asked nothing.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn measure(&mut self) -> Result<(LanguageEvaluation, bool), LanguageTrainError> {
        let greedy = Sampling { temperature: 0.0, ..self.sampling() };
        let mut evaluation = match self.config.checkpoint.eval_episodes {
            0 => LanguageEvaluation::default(),
            count => self.evaluate(count, 1, &greedy)?,
        };
        if self.config.imitates() {
            evaluation.nll = Some(self.held_out()?);
        }
        let value = evaluation.nll.map_or(evaluation.reward, |nll| -nll);
        let improved = self.best.is_none_or(|(best, _)| value > best);
        if improved {
            self.best = Some((value, self.iteration));
        }
        Ok((evaluation, improved))
    }

    /// How tokens are chosen in training.
    pub fn sampling(&self) -> Sampling {
        self.config.sampling(&self.model.stop_tokens)
    }

    /// The model as it is.
    pub fn model(&self) -> LanguageModel {
        let mut model = self.model.clone();
        model.params = self.learner.decoder.params().clone();
        model.adapters = self.learner.decoder.adapters().cloned();
        model
    }

    /// The settings.
    pub fn config(&self) -> &LanguageConfig {
        &self.config
    }

    /// The task.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }

    /// Iterations done.
    pub fn iteration(&self) -> u32 {
        self.iteration
    }

    /// How good the best evaluation so far was, and its iteration.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best
    }
}

/// The tokens of the longest prompt of a task that lists them.
fn longest_prompt(
    task: &dyn Task,
    model: &LanguageModel,
) -> Result<Option<usize>, LanguageTrainError> {
    let mut longest = None;
    for split in [Split::Train, Split::Test] {
        for number in 0..task.num_prompts(split).unwrap_or(0) {
            let prompt = task.prompt(split, number)?;
            longest = longest.max(Some(model.prompt(&prompt.text, &prompt.messages)?.len()));
        }
    }
    Ok(longest)
}
