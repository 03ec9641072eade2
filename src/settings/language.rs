//! Settings of a run that trains a language model, by TRL's names where it has them.

use super::{
    AdvantageScale, CheckpointConfig, ConfigError, DecoderConfig, LoraConfig, LossConfig, LossType,
    OptimizerConfig, Precision, StopConfig, TrackingConfig, UpdateConfig,
};
use crate::schema::range::{at_least, integer};
use crate::schema::{OutOfRange, Settings, ValueRange, ensure, ensure_all, names, settings};

/// The path of a model that begins with random weights.
pub const TINY: &str = "tiny";

settings! {
    /// A training run of a language model, but for the task's own parameters and the device.
    pub struct LanguageConfig {
        /// Seed of all random draws.
        seed: u64 = 1, in integer(0..=(1 << 63) - 1);
        /// Iterations of generation and update; schedules end with the last.
        iterations: u32 = 100, in integer(1..=u32::MAX as u64);
        /// Precision of the operands of matrix products: f32 or bf16 on the CPU, and what the device supports
        /// elsewhere. For a pretrained model of 2^24 parameters or more on a CPU with AMX the default is bf16, several
        /// times as fast there; otherwise f32.
        precision: Precision;
        /// The model.
        model: ModelConfig;
        /// Low-rank adapters, trained in place of the weights (LoRA).
        lora: LoraConfig;
        /// Supervised fine-tuning (SFT) on the task's solutions.
        fit: FitConfig;
        /// Generation of completions.
        generation: GenerationConfig;
        /// Rewards and advantages.
        reward: RewardConfig;
        /// The loss.
        loss: LossConfig;
        /// Passes over the completions of an iteration, and their minibatches.
        update: UpdateConfig = UpdateConfig {
            update_epochs: 1,
            num_minibatches: 1,
            num_shards: 0,
            ..UpdateConfig::default()
        };
        /// AdamW.
        optimizer: OptimizerConfig = OptimizerConfig {
            learning_rate: 1e-5,
            warmup_ratio: 0.02,
            adam_beta2: 0.99,
            weight_decay: 0.0,
            decay_norms_and_biases: false,
            ..OptimizerConfig::default()
        };
        /// Iterations at which the run is saved and evaluated.
        checkpoint: CheckpointConfig =
            CheckpointConfig { keep: 2, eval_episodes: 256, ..CheckpointConfig::default() };
        /// Reasons to end the run before its iterations are done.
        stop: StopConfig;
        /// Copies of the records for other tools.
        tracking: TrackingConfig;
        /// Completions on disk.
        completions: CompletionsConfig;
    }
    check = LanguageConfig::check_settings;
}

settings! {
    /// The model to train.
    pub struct ModelConfig {
        /// Hugging Face folder, GGUF file, or `tiny` for a new decoder over the task's characters (--model).
        path: String = TINY.to_string();
        /// Sizes of `tiny`.
        @flatten tiny: DecoderConfig = DecoderConfig {
            hidden_size: 128,
            num_layers: 4,
            intermediate_size: 384,
            context: 1024,
            ..DecoderConfig::default()
        };
    }
}

settings! {
    /// Generation of completions.
    pub struct GenerationConfig {
        /// Prompts per iteration.
        num_prompts: usize = 8, in integer(1..=1 << 20);
        /// Completions per prompt, whose mean reward is their baseline.
        group_size: usize = 8, in integer(2..=1 << 16), alias "num_generations";
        /// Longest completion in tokens; 0 for the task's own limit.
        max_new_tokens: usize = 0, in integer(0..=1 << 20), alias "max_completion_length";
        /// Sampling temperature.
        temperature: f32 = 1.0, in at_least(1e-6_f32 as f64);
        /// Number of most likely tokens to sample from; 0 for all. Training uses the same truncated
        /// distribution: log-probabilities, entropies and ratios are of the tokens that could be drawn.
        top_k: usize = 0, in integer(0..=u32::MAX as u64);
        /// Probability mass of the most likely tokens to sample from, among those that `top_k` leaves; 1 for all.
        top_p: f32 = 1.0, in above(0.0).at_most(1.0);
        /// Least probability of a sampled token, relative to the most likely one; applied last.
        min_p: f32 = 0.0, in at_least(0.0).below(1.0);
        /// Completions decoded at a time; the result does not depend on it.
        slots: usize = 256, in integer(1..=1 << 16);
        /// Rounds in which groups without reward variance are replaced by new prompts (DAPO's dynamic
        /// sampling); 0 for none.
        resample: u32 = 0, in integer(0..=1000);
        /// Strings that end a completion and are removed from it.
        stop: Vec<String>;
    }
    check = GenerationConfig::check_settings;
}

impl GenerationConfig {
    fn check_settings(&self) -> Result<(), OutOfRange> {
        let completions = self.num_prompts as u64 * self.group_size as u64;
        ensure(completions <= 1 << 24, "num_prompts * group_size", completions, "at most 2^24")
    }
}

settings! {
    /// Rewards and advantages of completions.
    pub struct RewardConfig {
        /// Advantages are divided by the standard deviation of the `group` or of the `batch`; `none`: not divided.
        scale_rewards: AdvantageScale = AdvantageScale::Group;
        /// Baseline of a token: its `group`'s mean reward, or that of completions with the same `prefix`.
        baseline: Baseline;
        /// Leave completions that were cut off out of the loss.
        mask_truncated_completions: bool = false;
        /// Share of tokens whose rewards are learnt from, those of highest entropy (Wang et al. 2025).
        ///
        /// The others have no part in the policy's loss and the entropy bonus, but in the KL divergence and the
        /// averages. Entropies are those of the policy that generated.
        top_entropy_quantile: f64 = 1.0, in above(0.0).at_most(1.0);
        /// Tokens before the length limit over which reward falls by 1 (DAPO's overlong shaping); 0 for none.
        overlong_buffer: usize = 0, in integer(0..=1 << 20);
        /// Weights of reward parts in place of the task's: `tests=0.9,types=0.1`.
        weights: String, alias "reward_weights";
    }
}

names! {
    /// The baseline of a token's reward.
    #[derive(Default)]
    pub enum Baseline {
        /// The mean of the group, the same for all tokens of a completion (GRPO).
        #[default]
        Group = "group",
        /// The mean over the completions of the group with the same tokens before. Only tokens at which completions
        /// diverge have an advantage, which is less noisy if completions have much in common.
        Prefix = "prefix",
    }
}

settings! {
    /// Supervised fine-tuning on the task's solutions: before GRPO, or alone where the loss is `nll`.
    pub struct FitConfig {
        /// SFT iterations on the task's solutions before GRPO starts; part of `iterations`.
        iterations: u32 = 0, in integer(0..=u32::MAX as u64);
        /// Constant learning rate of these iterations; that of `grove fit` is `optimizer.learning_rate`.
        learning_rate: f64 = 1e-3, in at_least(0.0);
        /// Passes of `grove fit` over the prompts: 40 for small models and 3 for large ones. They set `iterations`,
        /// unless `--iterations` or `--set` does, or a settings file without epochs.
        epochs: u32 = 0, in integer(0..=u32::MAX as u64);
        /// Evaluations without improvement before `grove fit` stops; 0 for never.
        patience: u32 = 0, in integer(0..=u32::MAX as u64);
    }
}

settings! {
    /// The file `completions.jsonl` of a run.
    pub struct CompletionsConfig: Eq {
        /// Megabytes of completions that a checkpoint leaves on disk, those of the newest iterations; 0 for no
        /// completions.
        keep: u32 = 16, in integer(0..=1 << 20);
    }
}

/// Number of parameters below which a model has the defaults of a new one.
const SMALL_MODEL_PARAMS: usize = 1 << 24;

impl LanguageConfig {
    /// Settings with a narrower range for language models than their sections declare; `check_settings` gives the
    /// reasons.
    pub const NARROWED_RANGES: &[(&str, ValueRange)] = &[
        ("update.gradient_accumulation_steps", integer(1..=1)),
        ("loss.label_smoothing", at_least(0.0).at_most(0.0)),
        ("loss.entropy_coef_final", at_least(0.0).at_most(0.0)),
    ];

    /// The defaults for a model: `tiny`, or else a large pretrained one.
    pub fn for_model(path: &str) -> Self {
        Self::for_size(path, path == TINY)
    }

    /// The defaults for a model and a task for which `tiny` takes `fit_iterations` SFT iterations before GRPO.
    pub fn for_task(path: &str, fit_iterations: u32) -> Self {
        let mut config = Self::for_model(path);
        if path == TINY {
            config.iterations = config.iterations - config.fit.iterations + fit_iterations;
            config.fit.iterations = fit_iterations;
        }
        config
    }

    /// The defaults for a pretrained model of `num_params` parameters, which needs no SFT first. A small model is
    /// trained in f32, any other in `precision`.
    pub fn for_pretrained(path: &str, num_params: usize, precision: Precision) -> Self {
        let is_small = num_params < SMALL_MODEL_PARAMS;
        let mut config = Self::for_size(path, is_small);
        config.precision = if is_small { Precision::F32 } else { precision };
        config.fit.iterations = 0;
        config
    }

    /// The defaults for SFT alone of a model of `num_params` parameters, which is `None` for `tiny`. A small model is
    /// trained in f32, any other in `precision`.
    pub fn for_sft(path: &str, num_params: Option<usize>, precision: Precision) -> Self {
        let is_small = num_params.is_none_or(|num_params| num_params < SMALL_MODEL_PARAMS);
        let mut config = Self::for_size(path, is_small);
        config.precision = if is_small { Precision::F32 } else { precision };
        config.loss.loss_type = LossType::Nll;
        config.iterations = 400;
        config.fit.iterations = 0;
        config.fit.epochs = if is_small { 40 } else { 3 };
        config.optimizer.learning_rate = if is_small { 1e-3 } else { 2e-5 };
        config.optimizer.warmup_ratio = 0.05;
        config.checkpoint.eval_every = 10;
        config.checkpoint.eval_episodes = if is_small { 64 } else { 0 };
        config
    }

    fn for_size(path: &str, is_small: bool) -> Self {
        let mut config = Self::default();
        config.model.path = path.to_string();
        if is_small {
            config.iterations = 400;
            config.fit.iterations = 100;
            config.generation.num_prompts = 32;
            config.optimizer.learning_rate = 2e-4;
        }
        config
    }

    /// Number of iterations in which SFT passes over `prompts` prompts `fit.epochs` times.
    pub fn iterations_for_epochs(&self, prompts: u64) -> u32 {
        let texts = prompts.saturating_mul(u64::from(self.fit.epochs));
        let iterations = texts.div_ceil(self.generation.num_prompts as u64);
        iterations.clamp(1, u32::MAX.into()) as u32
    }

    /// Whether the run is SFT alone, without rewards.
    pub fn is_sft_only(&self) -> bool {
        self.loss.loss_type == LossType::Nll
    }

    /// Number of evaluations without improvement after which the run ends; 0 for no limit, as of runs with rewards.
    pub fn patience(&self) -> u32 {
        if self.is_sft_only() { self.fit.patience } else { 0 }
    }

    /// Checks every setting and how they fit together.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first setting that is refused, with its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Ok(Settings::validate(self)?)
    }

    /// Checks settings of different sections beside each other.
    fn check_settings(&self) -> Result<(), OutOfRange> {
        let Self { fit, generation, loss, update, checkpoint, stop, .. } = self;
        let is_sft = self.is_sft_only();
        let is_corrected = loss.kl_coef > 0.0 && loss.use_bias_correction_kl;
        let prompts = format!("1 to generation.num_prompts ({})", generation.num_prompts);
        ensure_all!(self:
            loss.use_bias_correction_kl valid_if !is_sft || !is_corrected,
                "false where the loss is nll: solutions have no behaviour policy";
            loss.entropy_coef valid_if !is_sft || loss.entropy_coef == 0.0,
                "0 where the loss is nll: SFT has no entropy bonus";
            update.target_kl valid_if !is_sft || update.target_kl == 0.0,
                "0 where the loss is nll: solutions have no behaviour policy";
            stop.score valid_if !is_sft || stop.score == f64::INFINITY, "inf where the run has no rewards";
            update.num_minibatches valid_if update.num_minibatches <= generation.num_prompts, prompts;
            update.gradient_accumulation_steps valid_if update.gradient_accumulation_steps == 1,
                "1 for language models, whose gradient is accumulated group by group";
            loss.label_smoothing valid_if loss.label_smoothing == 0.0, "0 for language models";
            loss.entropy_coef_final valid_if loss.entropy_coef_final == 0.0,
                "0 for language models, whose entropy_coef stays as it is";
            checkpoint.eval_episodes valid_if checkpoint.eval_episodes > 0 || is_sft, "1 or more";
            fit.iterations valid_if fit.iterations == 0 || !is_sft, "0 where the loss is nll, which is SFT throughout";
        );
        let GenerationConfig { num_prompts, group_size, max_new_tokens, .. } = generation;
        let tokens: u64 =
            [num_prompts, group_size, max_new_tokens].map(|n| *n as u64).iter().product();
        let product = "generation.num_prompts * group_size * max_new_tokens";
        ensure(tokens <= 1 << 32, product, tokens, "at most 2^32")
    }
}
