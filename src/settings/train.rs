//! Settings of a run that trains a policy for games: the sections together, their defaults and rules.

use super::{
    AdvantageConfig, CheckpointConfig, ConfigError, DataConfig, LossConfig, LossType, ModelKind,
    MomentPrecision, OptimizerConfig, PolicyConfig, Precision, RolloutConfig, StopConfig,
    TrackingConfig, UpdateConfig,
};
use crate::schema::range::integer;
use crate::schema::{OutOfRange, Settings, ValueRange, ensure, ensure_all, names, settings};

settings! {
    /// A training run, but for the game's own parameters and the device.
    pub struct TrainConfig {
        /// Seed of all random draws.
        seed: u64 = 1, in integer(0..=(1 << 63) - 1);
        /// Iterations of rollout and update; schedules end with the last.
        iterations: u32 = 300, in integer(1..=u32::MAX as u64);
        /// Engine that plays and learns: `auto` is the fastest that supports the settings, native on the CPU and
        /// fused on a device.
        engine: EngineChoice = EngineChoice::Auto;
        /// Precision of matrix products on devices that support it; on the CPU f32, or bf16 for built-in networks.
        precision: Precision;
        /// Share of the usual size of a kernel's launches, less where a driver resets the device during long ones. The
        /// result does not depend on it.
        launch_size: f64 = 1.0, in above(0.0).at_most(1.0);
        /// The network.
        policy: PolicyConfig;
        /// Data collection.
        rollout: RolloutConfig;
        /// Group-relative advantages.
        advantage: AdvantageConfig;
        /// The loss.
        loss: LossConfig = LossConfig { entropy_coef: 0.02, ..LossConfig::default() };
        /// Passes over the data of an iteration, and their minibatches.
        update: UpdateConfig;
        /// AdamW.
        optimizer: OptimizerConfig;
        /// Iterations at which the run is saved and evaluated.
        checkpoint: CheckpointConfig;
        /// Learning from a dataset instead of from games.
        data: DataConfig;
        /// Reasons to end the run before its iterations are done.
        stop: StopConfig;
        /// Copies of the records for other tools.
        tracking: TrackingConfig;
    }
    check = TrainConfig::check_settings;
}

impl TrainConfig {
    /// Settings with a narrower range for games and datasets than their sections declare; `check_settings` gives the
    /// reasons.
    pub const NARROWED_RANGES: &[(&str, ValueRange)] = &[
        ("update.num_shards", integer(1..=4096)),
        ("checkpoint.eval_episodes", integer(1..=1 << 24)),
        ("optimizer.moments", ValueRange::Name(&["f32"])),
    ];

    /// Checks every setting and how they fit together.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first setting that is refused, with its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_with(&[])
    }

    /// Checks every setting as [`validate`](Self::validate), where `policy.kind` may also be one of the
    /// user-defined `models`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first setting that is refused, with its value and what is allowed.
    pub fn validate_with(&self, models: &[&str]) -> Result<(), ConfigError> {
        if let ModelKind::UserDefined(name) = &self.policy.kind {
            let known = [ModelKind::NAMES, models].concat().join(", ");
            let (value, allowed) = (format!("`{name}`"), format!("one of: {known}"));
            ensure(models.contains(&&**name), "policy.kind", value, allowed)?;
        }
        Ok(Settings::validate(self)?)
    }

    /// Checks every setting as [`validate`](Self::validate), where `policy.kind` may also be any user-defined model.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first setting that is refused, with its value and what is allowed.
    pub fn validate_for_any_model(&self) -> Result<(), ConfigError> {
        self.validate_with(self.policy.kind.user_defined().as_slice())
    }

    /// Checks settings of different sections beside each other.
    fn check_settings(&self) -> Result<(), OutOfRange> {
        let Self { loss, data, update, rollout, .. } = self;
        let (is_data, games, minibatch) = (data.is_on(), rollout.num_envs(), self.minibatch_size());
        let (is_nll, has_no_target_score) =
            (loss.loss_type == LossType::Nll, self.stop.score == f64::INFINITY);
        let is_corrected = loss.kl_coef > 0.0 && loss.use_bias_correction_kl;
        let is_divisor = games.is_multiple_of(update.num_minibatches);
        let divisor =
            format!("a divisor of the number of games ({games} = num_groups * group_size)");
        let samples = format!("1 to the samples of a minibatch ({minibatch})");
        ensure_all!(self:
            loss.loss_type valid_if !is_data || is_nll, "nll where the run learns from data";
            loss.label_smoothing valid_if is_data || loss.label_smoothing == 0.0, "0 where the run plays games";
            stop.score valid_if !is_data || has_no_target_score, "inf where the run learns from data";
            loss.use_bias_correction_kl valid_if !is_data || !is_corrected,
                "false where the run learns from data, which have no behaviour policy";
            update.target_kl valid_if !is_data || update.target_kl == 0.0, "0 where the run learns from data";
            optimizer.decay_norms_and_biases valid_if self.optimizer.decay_norms_and_biases,
                "true where the run plays games or learns from their data";
            optimizer.moments valid_if self.optimizer.moments == MomentPrecision::F32,
                "f32 where the run plays games or learns from their data";
            update.num_shards valid_if update.num_shards >= 1, "1 to 4096";
            checkpoint.eval_episodes valid_if self.checkpoint.eval_episodes >= 1, "1 or more";
            update.num_minibatches valid_if is_data || is_divisor, divisor;
            update.gradient_accumulation_steps valid_if update.gradient_accumulation_steps <= minibatch, samples;
        );
        let factors = [update.num_minibatches, data.batch_size, data.window];
        let steps: u128 = factors.map(|n| n as u128).iter().product();
        let product = "update.num_minibatches * data.batch_size * data.window";
        ensure(!is_data || steps <= 1 << 40, product, steps, "at most 2^40")
    }

    /// Number of evaluations without improvement after which the run ends; 0 for no limit, as of games.
    pub fn patience(&self) -> u32 {
        if self.data.is_on() { self.data.patience } else { 0 }
    }

    /// Samples of a minibatch: games, or windows of a dataset.
    pub fn minibatch_size(&self) -> usize {
        if self.data.is_on() {
            self.data.batch_size
        } else {
            self.rollout.num_envs() / self.update.num_minibatches
        }
    }

    /// Partitions `items` groups of games or windows of a dataset. There are `update.num_shards` strata, or fewer if a
    /// minibatch has too few games to give each one; as many shards, or fewer if a shard would have under
    /// `min_shard_steps` steps of a minibatch.
    pub fn shard_counts(&self, items: usize, min_shard_steps: usize) -> ShardCounts {
        let (minibatch_size, steps) = if self.data.is_on() {
            (self.data.batch_size.min(items), self.data.window)
        } else {
            let games = items * self.rollout.group_size;
            (games / self.update.num_minibatches, self.rollout.learn_steps)
        };
        let max_strata = self.update.num_shards.clamp(1, items);
        let has_enough = |strata: &usize| items / strata * minibatch_size >= items;
        let strata = (1..=max_strata).rev().find(has_enough).unwrap_or(1);
        ShardCounts { shards: (minibatch_size * steps / min_shard_steps).clamp(1, strata), strata }
    }

    /// Whether the games of an iteration play all of its steps. With `rollout.auto_reset` off they need not.
    pub fn plays_all_steps(&self) -> bool {
        self.data.is_on() || self.rollout.auto_reset
    }

    /// Maximum number of steps of an iteration with `items` groups of games or windows of a dataset: the steps of all
    /// games ([`plays_all_steps`](Self::plays_all_steps)), or of the batches of windows, one for each optimizer step. A
    /// batch has no more windows than the dataset.
    pub fn steps_per_iteration(&self, items: usize) -> u64 {
        let (update, data, rollout) = (&self.update, &self.data, &self.rollout);
        let steps = if data.is_on() {
            let batch = data.batch_size.min(items);
            update.num_minibatches * batch * data.window * update.update_epochs
        } else {
            items * rollout.group_size * rollout.num_steps
        };
        steps as u64
    }
}

/// Numbers of shards and of strata of a run ([`TrainConfig::shard_counts`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCounts {
    /// Number of shards, which the ranks divide among themselves.
    pub shards: usize,
    /// Number of strata; a shard consists of whole strata.
    pub strata: usize,
}

names! {
    /// The engine that plays and learns. All do the same; rounding differs.
    pub enum EngineChoice {
        /// The fused engine where there is one for the device and the policy, else the general one.
        Auto = "auto",
        /// The fused engine: native code on the CPU, fused kernels elsewhere.
        Fused = "fused",
        /// The general engine: Burn's operations and autodiff, on any device.
        General = "general",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env;

    #[test]
    fn every_game_has_valid_defaults() {
        for name in env::NAMES {
            let config = TrainConfig::for_game(name);
            config.validate().unwrap();
            assert!(
                config != TrainConfig::default() || env::training_defaults(name).is_empty(),
                "{name}"
            );
        }
        assert_eq!(TrainConfig::for_game("a game of a user"), TrainConfig::default());
    }
}
