//! GRPO of a language model: prompts, completions, rewards, advantages, an update.

mod advantages;
mod exchange;
mod fit;
mod health;
mod record;
mod rollout;
mod settings;
mod show;
mod snapshot;

pub use health::Health;
pub use record::CompletionRecord;
pub use show::Answer;
pub use snapshot::{language_settings, load_language_settings, saved_language_settings};

pub use crate::config::{
    Baseline, FitConfig, GenerationConfig, LanguageConfig, ModelConfig, RewardConfig, TINY,
};

use super::{TrainError, reduction};
use crate::device;
use crate::learner::language::{Group, LanguageLearner, LanguageMeans};
use crate::learner::{entropy_at, learning_rate};
use crate::metrics::{EvaluationRecord, HeldOut, IterationRecord, Phases, Seconds};
use crate::model::language::{Adapters, LanguageError, LanguageModel};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::rollout::generate::Sampling;
use crate::task::{Prompt, Split, Task, TaskError, weighted};
use burn::tensor::Device;
use rollout::RolloutSeconds;
use std::sync::Arc;
use web_time::Instant;

/// The default number of shards of an iteration's groups.
const SHARDS: usize = 16;

/// A run of a language model in memory.
pub struct LanguageTrainer {
    task: Arc<dyn Task>,
    config: LanguageConfig,
    /// The vocabulary and the files; the decoder has the parameters.
    model: LanguageModel,
    learner: LanguageLearner,
    /// The device that the texts are on; `None` for the CPU.
    device: Option<Device>,
    /// The ranks that share the run.
    team: Team,
    /// Iterations done.
    iteration: u32,
    /// The number of the next prompt.
    next_prompt: u64,
    /// Tokens generated so far, and learnt from by SFT.
    steps: u64,
    /// Value and iteration of the best evaluation so far: the mean score, or, if the run is SFT alone, the
    /// held-out log-likelihood.
    best: Option<(f64, u32)>,
}

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
         more than the model's context of {context}; generation.max_new_tokens can be less"
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
    /// If the settings are out of range, a fresh model is to learn a task without an alphabet, or the model
    /// cannot take the task's prompts, all of which are checked if they are listed.
    pub fn new(
        task: Arc<dyn Task>,
        config: LanguageConfig,
        model: Option<LanguageModel>,
    ) -> Result<Self, LanguageTrainError> {
        Self::with_team(task, config, model, Team::alone())
    }

    /// This rank's part in a run that the ranks of `team` share: each completes some of the prompts and
    /// differentiates some of the groups, and all arrive at the same weights. All of them must call the methods
    /// that iterate, evaluate or measure.
    ///
    /// # Errors
    /// As [`LanguageTrainer::new`], and if there are more ranks than shards (`update.num_shards`, of whole
    /// groups).
    pub fn with_team(
        task: Arc<dyn Task>,
        mut config: LanguageConfig,
        model: Option<LanguageModel>,
        team: Team,
    ) -> Result<Self, LanguageTrainError> {
        config.validate().map_err(LanguageTrainError::Settings)?;
        let task = weighted(task, &config.reward.weights)?;
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
            config.generation.max_new_tokens =
                task.max_new_tokens().min(room.unwrap_or(usize::MAX));
        }
        adapt(&mut model, &mut config)?;
        let decoder = model.decoder();
        // From now on the decoder has them.
        model.params = Arc::default();
        if config.update.num_shards == 0 {
            // The gradient of each takes as much memory as the weights.
            let is_large = !decoder.is_small() && decoder.adapters().is_none();
            config.update.num_shards = if is_large { 1 } else { SHARDS };
        }
        let (ranks, groups) = (team.size(), config.generation.num_prompts);
        let shards = Shards::new(groups, config.update.num_shards).count();
        if ranks > shards {
            return Err(TeamError::TooMany { ranks, shards }.into());
        }
        let key = Stream::Shuffle.key(config.seed);
        let learner = LanguageLearner::new(decoder, &config.rule(false), key).sharing(team.clone());
        let run = Self {
            task,
            config,
            model,
            learner,
            device: None,
            team,
            iteration: 0,
            next_prompt: 0,
            steps: 0,
            best: None,
        };
        run.check_prompts()?;
        Ok(run)
    }

    /// Moves generation and learning to a device; `None` keeps them on the CPU. The optimiser's state stays in
    /// the host's memory.
    ///
    /// # Errors
    /// If a setting is only for the CPU, or the device does not have the precision.
    #[cfg(feature = "general")]
    pub fn on(self, device: Option<Device>) -> Result<Self, LanguageTrainError> {
        let precision = self.config.precision;
        if let Some(obstacle) = crate::device::precision_obstacle(device.as_ref(), precision) {
            return Err(LanguageTrainError::Settings(obstacle));
        }
        let Some(device) = device else { return Ok(self) };
        if self.config.update.gradient_checkpointing {
            let what = "update.gradient_checkpointing is for language models on the CPU alone";
            return Err(LanguageTrainError::Settings(what.to_string()));
        }
        let learner = self.learner.on(device.clone(), precision);
        Ok(Self { learner, device: Some(device), ..self })
    }

    /// Checks that the model can take the prompts: all of them if they are listed, else one of each split.
    fn check_prompts(&self) -> Result<(), LanguageTrainError> {
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
    /// policy moves towards the better ones. The first iterations may be SFT on the task's solutions instead.
    ///
    /// # Errors
    /// If the task fails, a prompt is too long, numbers run out of range, or another rank of the run is
    /// gone or silent.
    pub fn iterate(
        &mut self,
    ) -> Result<(IterationRecord, Vec<CompletionRecord>), LanguageTrainError> {
        device::take_transfers();
        self.team.take_traffic();
        let started = Instant::now();
        let fit = self.config.imitates() || self.iteration < self.config.fit.iterations;
        let mut rollout = RolloutSeconds::default();
        let (groups, mut record, completions) = if fit {
            (self.demonstrations()?, record::sft(), Vec::new())
        } else {
            let answers = self.rollout(&mut rollout)?;
            let config = &self.config.reward;
            let advantages = advantages::advantages(&answers.totals, config.scale_rewards);
            let groups = advantages::groups(&answers, &advantages, config);
            let parts = (self.task.parts(), &self.model);
            let completions =
                CompletionRecord::all(&answers, &advantages, parts, self.iteration + 1);
            (groups, record::grpo(&answers, self.task.parts()), completions)
        };
        let learning = Instant::now();
        let means = self.learn(&groups, fit)?;
        let update = learning.elapsed().as_secs_f64();
        self.iteration += 1;
        for (what, value) in [("loss", means.loss), ("gradient", means.grad_norm)] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { what, iteration: self.iteration }.into());
            }
        }
        record::add_means(&mut record, &means);
        let learnt = record::tokens(&groups);
        let text = record.text.get_or_insert_default();
        let steps = if fit { learnt } else { text.tokens };
        text.generated_per_second = text.tokens as f64 / rollout.generate.max(1e-9);
        text.learnt_per_second = learnt as f64 / update.max(1e-9);
        let total = started.elapsed().as_secs_f64();
        let advantage = (total - update - rollout.generate - rollout.verify).max(0.0);
        let RolloutSeconds { generate: rollout, verify } = rollout;
        let phases = Phases { rollout, advantage, update, verify: Some(verify) };
        self.steps += steps;
        record.iteration = self.iteration;
        record.env_steps = self.steps;
        record.learning_rate = self.rate(self.learner.moments.steps.saturating_sub(1));
        record.steps_per_second = steps as f64 / total.max(1e-9);
        record.seconds = Seconds { total, waiting_for_data: 0.0, phases: Some(phases) };
        let transfers = device::take_transfers();
        record.read_backs = transfers.read_backs;
        record.downloaded_bytes = transfers.downloaded;
        record.uploaded_bytes = transfers.uploaded;
        record.memory = device::memory(self.device.as_ref());
        record.load = device::load(self.device.as_ref());
        record.reduction = reduction::reduction(&self.team, total)?;
        let is_due = reduction::is_compared(self.iteration, self.config.iterations);
        if record.reduction.is_some() && is_due {
            reduction::compare(&self.team, self.learner.decoder.trained())?;
        }
        Ok((record, completions))
    }

    /// The update of an iteration.
    fn learn(&mut self, groups: &[Group], fit: bool) -> Result<LanguageMeans, TeamError> {
        let config = &self.config;
        let entropy = entropy_at(&config.loss, self.iteration, config.iterations);
        let entropy = if fit { 0.0 } else { entropy };
        let rates: Vec<f64> = (0..config.updates() as u64)
            .map(|update| self.rate(self.learner.moments.steps + update))
            .collect();
        self.learner.update(&config.rule(fit), groups, self.iteration, entropy, &rates)
    }

    /// The learning rate of an optimiser step: that of SFT, or after it the schedule's.
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

    /// The tokens of a prompt, if they leave room for a completion of so many.
    ///
    /// # Errors
    /// If they do not, or the prompt cannot be tokenized.
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

    /// Scores `completions` of each of `count` held-out prompts.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn evaluate(
        &self,
        count: usize,
        completions: usize,
        sampling: &Sampling,
    ) -> Result<EvaluationRecord, LanguageTrainError> {
        let all = self.task.num_prompts(Split::Test);
        let count = all.map_or(count as u64, |all| all.min(count as u64));
        let numbers: Vec<u64> = (0..count).collect();
        let mut seconds = RolloutSeconds::default();
        let answers = self.answer((Split::Test, &numbers), completions, sampling, &mut seconds)?;
        Ok(record::evaluation(&answers, self.task.parts()))
    }

    /// Evaluates the greedy policy on `count` held-out prompts, none if it is 0; if the run is SFT alone, also
    /// on the held-out solutions.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn evaluate_greedy(&self, count: usize) -> Result<EvaluationRecord, LanguageTrainError> {
        let greedy = Sampling { temperature: 0.0, ..self.sampling() };
        let mut evaluation = match count {
            0 => EvaluationRecord::default(),
            count => self.evaluate(count, 1, &greedy)?,
        };
        if self.config.imitates() {
            evaluation.held_out = Some(HeldOut { loss: self.held_out()?, accuracy: None });
        }
        Ok(evaluation)
    }

    /// Evaluates the greedy policy, and returns whether it is the best so far: by its mean score, or, if the run
    /// is SFT alone, by the held-out loss.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn measure(&mut self) -> Result<(EvaluationRecord, bool), LanguageTrainError> {
        let evaluation = self.evaluate_greedy(self.config.checkpoint.eval_episodes)?;
        let value = evaluation.held_out.map_or(evaluation.mean_score, |held_out| -held_out.loss);
        let improved = self.best.is_none_or(|(best, _)| value > best);
        if improved {
            self.best = Some((value, self.iteration));
        }
        Ok((evaluation, improved))
    }

    /// Copies the first rank's weights to all ranks, for instance those of the best policy. All ranks must call
    /// this.
    ///
    /// # Errors
    /// If another rank of the run is gone or silent.
    pub fn follow_first(&mut self) -> Result<(), TeamError> {
        if self.team.size() > 1 {
            let ours = bytemuck::cast_slice(self.learner.decoder.trained());
            let first: Vec<f32> = bytemuck::pod_collect_to_vec(&self.team.broadcast(ours)?);
            self.learner.decoder.update(|trained| trained.copy_from_slice(&first));
        }
        Ok(())
    }

    /// The ranks that share the run.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// The sampling of tokens in training.
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

    /// A description of the engine, for people.
    pub fn describe(&self) -> String {
        match &self.device {
            None => "native generation, native updates".to_string(),
            Some(_) => {
                format!(
                    "generation by tensor operations, updates by autodiff, {}",
                    self.config.precision
                )
            }
        }
    }

    /// The shards of an iteration's groups, and which of them are this rank's.
    pub fn shards(&self) -> Shards {
        self.team.shards(self.config.generation.num_prompts, self.config.update.num_shards)
    }

    /// Continues at a later iteration without training the ones before it: for a dry run, which measures a phase.
    pub fn skip_to(&mut self, iteration: u32) {
        self.iteration = iteration;
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

    /// Value and iteration of the best evaluation so far.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best
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
