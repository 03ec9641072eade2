//! GRPO of a language model: prompts, completions, rewards, advantages, an update.

mod advantages;
mod describe;
mod exchange;
mod fit;
mod health;
mod record;
mod rollout;
mod settings;
mod show;
mod snapshot;

pub use describe::describe;
pub use health::Health;
pub use record::{CompletionRecord, LanguageEvaluation, LanguageRecord, LanguageSeconds};
pub use settings::{
    Baseline, FitConfig, GenerationConfig, LanguageConfig, ModelConfig, RewardConfig, TINY,
};
pub use show::Answer;
pub use snapshot::{language_settings, load_language_settings, saved_language_settings};

use super::{TrainError, reduction};
use crate::learner::language::{Group, LanguageLearner, LanguageMeans};
use crate::learner::{entropy_at, learning_rate};
use crate::model::language::{Adapters, LanguageError, LanguageModel};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::rollout::generate::Sampling;
use crate::task::{Prompt, Split, Task, TaskError, weighted};
#[cfg(feature = "general")]
use burn::tensor::Device;
use std::sync::Arc;
use web_time::Instant;

/// Shards of an iteration's groups where the settings say nothing else.
const SHARDS: usize = 16;

/// A run of a language model in memory.
pub struct LanguageTrainer {
    task: Arc<dyn Task>,
    config: LanguageConfig,
    /// The vocabulary and the files; its parameters are those that the run began with.
    model: LanguageModel,
    learner: LanguageLearner,
    /// The members that share the run.
    team: Team,
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
    /// Another member of the run is gone, cannot go on, or does not fit.
    #[error(transparent)]
    Team(#[from] TeamError),
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
        config: LanguageConfig,
        model: Option<LanguageModel>,
    ) -> Result<Self, LanguageTrainError> {
        Self::with_team(task, config, model, Team::alone())
    }

    /// The part of this member in a run that the members of `team` share: each answers some of the prompts and
    /// differentiates some of the groups, and all come to the same weights. What iterates, evaluates or
    /// measures must be asked of all of them.
    ///
    /// # Errors
    /// As [`LanguageTrainer::new`], and if there are more members than shards (`update.num_shards`, of whole
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
        // The decoder's change from now on.
        model.params = Arc::default();
        if config.update.num_shards == 0 {
            // The gradient of each takes as much memory as what is learnt.
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
        let (iteration, next_prompt, best) = (0, 0, None);
        let run = Self { task, config, model, learner, team, iteration, next_prompt, best };
        run.look_through()?;
        Ok(run)
    }

    /// The run with its texts on a device; on the CPU where there is none. The optimiser's state stays in the host's
    /// memory.
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
        Ok(Self { learner: self.learner.on(device, precision), ..self })
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
    /// If the task fails, a prompt is too long, numbers run out of range, or another member of the run is
    /// gone or silent.
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
        let means = self.learn(&groups, fit)?;
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
        record.reduction = reduction::reduction(&self.team, record.seconds.total)?;
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

    /// Takes over what the first member has learnt, for instance of its best policy: all of them must ask.
    ///
    /// # Errors
    /// If another member of the run is gone or silent.
    pub fn follow_first(&mut self) -> Result<(), TeamError> {
        if self.team.size() > 1 {
            let ours = bytemuck::cast_slice(self.learner.decoder.trained());
            let first: Vec<f32> = bytemuck::pod_collect_to_vec(&self.team.broadcast(ours)?);
            self.learner.decoder.update(|trained| trained.copy_from_slice(&first));
        }
        Ok(())
    }

    /// The members that share the run.
    pub fn team(&self) -> &Team {
        &self.team
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

/// Gives a model the adapters that the settings want, or the settings those that it has.
fn adapt(model: &mut LanguageModel, config: &mut LanguageConfig) -> Result<(), LanguageTrainError> {
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
