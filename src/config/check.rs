//! The limits of every setting, and of settings beside each other.

use super::{ConfigError, LossType, ModelKind, TrainConfig};
use crate::model::limit;

fn out_of_range(message: String) -> ConfigError {
    ConfigError::OutOfRange(message)
}

/// `Ok` if `ok`, else "`name` is `value`, but must be `range`".
fn check(
    ok: bool,
    name: &str,
    value: impl std::fmt::Display,
    range: &str,
) -> Result<(), ConfigError> {
    limit(ok, name, value, range).map_err(out_of_range)
}

impl TrainConfig {
    /// Checks every setting and how they fit together.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first that does not, with its value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_with(&[])
    }

    /// Checks that every value is within its limits, where `policy.kind` may also be one of `models`,
    /// which somebody has brought along.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] for the first that is not, with its value and what is allowed.
    pub fn validate_with(&self, models: &[&str]) -> Result<(), ConfigError> {
        if let ModelKind::UserDefined(name) = &self.policy.kind {
            let known = [ModelKind::NAMES, models].concat().join(", ");
            check(
                models.contains(&&**name),
                "policy.kind",
                format!("`{name}`"),
                &format!("one of: {known}"),
            )?;
        }
        check(self.iterations >= 1, "iterations", self.iterations, "1 or more")?;

        let hidden = &self.policy.hidden;
        check(
            (1..=8).contains(&hidden.len()) && hidden.iter().all(|h| (1..=4096).contains(h)),
            "policy.hidden",
            format!("{hidden:?}"),
            "one to eight numbers of 1 to 4096",
        )?;

        self.policy.check().map_err(out_of_range)?;

        let rollout = &self.rollout;
        let games = rollout.num_envs();
        check(rollout.num_groups >= 1, "rollout.num_groups", rollout.num_groups, "1 or more")?;
        check(
            rollout.group_size >= 2,
            "rollout.group_size",
            rollout.group_size,
            "2 or more: an advantage is relative to the group",
        )?;
        check(rollout.num_steps >= 1, "rollout.num_steps", rollout.num_steps, "1 or more")?;
        check(
            (1..=rollout.num_steps).contains(&rollout.learn_steps),
            "rollout.learn_steps",
            rollout.learn_steps,
            &format!("1 to rollout.num_steps ({})", rollout.num_steps),
        )?;
        let steps = rollout
            .num_groups
            .checked_mul(rollout.group_size)
            .and_then(|n| n.checked_mul(rollout.num_steps));
        check(
            steps.is_some_and(|n| n <= 1 << 30),
            "num_groups * group_size * num_steps",
            steps.map_or("more than a machine word".to_string(), |n| n.to_string()),
            "at most 2^30 steps an iteration",
        )?;

        let data = &self.data;
        check((1..=1 << 16).contains(&data.window), "data.window", data.window, "1 to 65536")?;
        check((0..=1 << 16).contains(&data.history), "data.history", data.history, "0 to 65536")?;
        check(
            (1..=1 << 24).contains(&data.batch_size),
            "data.batch_size",
            data.batch_size,
            "1 to 16777216",
        )?;
        check(
            data.resident_mb <= 1 << 40,
            "data.resident_mb",
            data.resident_mb,
            "0 to 1099511627776",
        )?;
        check(
            data.validation > 0.0 && data.validation <= 0.5,
            "data.validation",
            data.validation,
            "above 0 and at most 0.5",
        )?;
        check(data.epochs >= 1, "data.epochs", data.epochs, "1 or more")?;
        check(
            !data.is_on() || self.loss.loss_type == LossType::Nll,
            "loss.loss_type",
            self.loss.loss_type,
            "nll where the run learns from data",
        )?;

        let discount = self.advantage.discount;
        check(
            discount > 0.0 && discount <= 1.0,
            "advantage.discount",
            discount,
            "above 0 and at most 1",
        )?;

        let loss = &self.loss;
        check(
            (0.0..=1.0).contains(&loss.clip_eps_low),
            "loss.clip_eps_low",
            loss.clip_eps_low,
            "0 to 1",
        )?;
        check(
            (0.0..1.0).contains(&loss.label_smoothing)
                && (loss.label_smoothing == 0.0 || data.is_on()),
            "loss.label_smoothing",
            loss.label_smoothing,
            if data.is_on() { "0 to below 1" } else { "0 where the run plays games" },
        )?;
        for (name, value) in [
            ("loss.clip_eps_high", loss.clip_eps_high),
            ("loss.dual_clip", loss.dual_clip),
            ("loss.kl_coef", loss.kl_coef),
            ("loss.entropy_coef", loss.entropy_coef),
            ("loss.entropy_coef_final", loss.entropy_coef_final),
            ("update.max_grad_norm", self.update.max_grad_norm),
            ("optimizer.weight_decay", self.optimizer.weight_decay),
        ] {
            check(value >= 0.0 && value.is_finite(), name, value, "0 or more")?;
        }
        for (name, value) in [
            ("loss.sapo_temperature_pos", loss.sapo_temperature_pos),
            ("loss.sapo_temperature_neg", loss.sapo_temperature_neg),
        ] {
            check(value > 0.0 && value.is_finite(), name, value, "above 0")?;
        }
        check(
            loss.dual_clip == 0.0 || loss.dual_clip > 1.0 + loss.clip_eps_high,
            "loss.dual_clip",
            loss.dual_clip,
            "0 (off) or more than 1 + loss.clip_eps_high",
        )?;

        let update = &self.update;
        check(
            update.update_epochs >= 1,
            "update.update_epochs",
            update.update_epochs,
            "1 or more",
        )?;
        check(
            update.num_minibatches >= 1 && (data.is_on() || update.num_minibatches <= games),
            "update.num_minibatches",
            update.num_minibatches,
            &format!("1 to the number of games ({games} = num_groups * group_size)"),
        )?;
        check(
            data.is_on() || games.is_multiple_of(update.num_minibatches),
            "update.num_minibatches",
            update.num_minibatches,
            &format!("a divisor of the number of games ({games} = num_groups * group_size)"),
        )?;
        let minibatch = if data.is_on() { data.batch_size } else { games / update.num_minibatches };
        check(
            (1..=minibatch).contains(&update.gradient_accumulation_steps),
            "update.gradient_accumulation_steps",
            update.gradient_accumulation_steps,
            &format!("1 to the games of a minibatch ({minibatch})"),
        )?;
        let shards = update.num_shards;
        check((1..=4096).contains(&shards), "update.num_shards", shards, "1 to 4096")?;

        let optimizer = &self.optimizer;
        let rate = optimizer.learning_rate;
        check(rate > 0.0 && rate.is_finite(), "optimizer.learning_rate", rate, "above 0")?;
        check(
            (0.0..=1.0).contains(&optimizer.warmup_ratio),
            "optimizer.warmup_ratio",
            optimizer.warmup_ratio,
            "0 to 1",
        )?;
        for (name, beta) in [
            ("optimizer.adam_beta1", optimizer.adam_beta1),
            ("optimizer.adam_beta2", optimizer.adam_beta2),
        ] {
            check((0.0..1.0).contains(&beta), name, beta, "0 to below 1")?;
        }
        let epsilon = optimizer.adam_epsilon;
        check(epsilon > 0.0 && epsilon.is_finite(), "optimizer.adam_epsilon", epsilon, "above 0")?;

        let checkpoint = &self.checkpoint;
        check(
            checkpoint.save_every >= 1,
            "checkpoint.save_every",
            checkpoint.save_every,
            "1 or more",
        )?;
        check(checkpoint.keep >= 1, "checkpoint.keep", checkpoint.keep, "1 or more")?;
        check(
            checkpoint.eval_every >= 1,
            "checkpoint.eval_every",
            checkpoint.eval_every,
            "1 or more",
        )?;
        check(
            checkpoint.eval_episodes >= 1,
            "checkpoint.eval_episodes",
            checkpoint.eval_episodes,
            "1 or more",
        )
    }
}
