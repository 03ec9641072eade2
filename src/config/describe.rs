//! What every setting of a run is, in a line for people: its range, and what it does.
//!
//! The limits themselves are in `check.rs`; a test sees that no setting is missing here. Settings that
//! one kind of network alone heeds are described in its folder.

use crate::model::ModelKind;
use std::borrow::Cow;

/// A setting in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its full name, for instance `optimizer.learning_rate`.
    pub path: &'static str,
    /// What it may be.
    pub range: Cow<'static, str>,
    /// What it does.
    pub meaning: &'static str,
}

/// The description of the setting of this full name; none of a game's own.
pub fn describe(path: &str) -> Option<Description> {
    descriptions().find(|description| description.path == path)
}

/// All settings of a run.
pub fn descriptions() -> impl Iterator<Item = Description> {
    let own = ModelKind::SETTINGS.iter().copied().flatten();
    COMMON.iter().chain(own).map(|[path, range, meaning]| {
        let range = match *path {
            "policy.kind" => format!("{}, {range}", ModelKind::NAMES.join(", ")).into(),
            _ => Cow::Borrowed(*range),
        };
        Description { path, range, meaning }
    })
}

macro_rules! descriptions {
    ($($path:literal: $range:literal, $meaning:literal;)*) => {
        /// The settings that every run heeds: path, range and meaning.
        const COMMON: &[[&str; 3]] = &[$([$path, $range, $meaning]),*];
    };
}

descriptions! {
    "seed": "0 to 2^63 - 1", "The seed of every draw of the run.";
    "iterations": "1 or more", "Iterations of rollout and update; the schedules end with the last.";
    "engine": "auto, fused, general", "What plays and learns: auto takes the fast engine where there is one.";
    "precision": "f32, f16, bf16", "What products are computed with, where the device has it.";
    "policy.kind": "or a model of your own", "Which network; a gru and a decoder remember what they saw of an episode.";
    "policy.hidden": "one to eight numbers of 1 to 4096", "Units of the hidden layers of an mlp or a gru, whose last is the recurrent one.";
    "policy.activation": "relu, tanh, silu, gelu", "What follows a hidden layer.";
    "rollout.num_groups": "1 or more", "Groups that play at a time; the members of one share a level.";
    "rollout.group_size": "2 or more", "Members of a group (TRL: num_generations).";
    "rollout.num_steps": "1 or more", "Steps that each game is played in an iteration.";
    "rollout.learn_steps": "1 to rollout.num_steps", "Steps, from the first, that are learnt from; the rest shows what they led to.";
    "rollout.start": "level, branch", "Where a group starts: at a level's start, or in the middle of a game.";
    "rollout.auto_reset": "true, false", "Whether a game whose episode has ended goes on with the next level.";
    "advantage.estimator": "return, reward_to_go", "What an action is credited with: all of its episode's rewards, or those after it.";
    "advantage.discount": "above 0, at most 1", "Discount of later rewards a step (TRL: gamma).";
    "advantage.scale_rewards": "group, batch, none", "Whose standard deviation advantages are divided by.";
    "loss.loss_type": "grpo, dr_grpo, dapo, bnpo, gspo, cispo, sapo, nll", "The loss, and how its terms are averaged.";
    "loss.clip_eps_low": "0 to 1", "The ratio is clipped below 1 - this (TRL: epsilon sets both bounds).";
    "loss.clip_eps_high": "0 or more", "The ratio is clipped above 1 + this (TRL: epsilon_high).";
    "loss.dual_clip": "0 (off), or more than 1 + loss.clip_eps_high", "Largest ratio that counts where the advantage is negative (TRL: delta).";
    "loss.sapo_temperature_pos": "above 0", "How soon the gate of sapo closes where the advantage is positive.";
    "loss.sapo_temperature_neg": "above 0", "The same where it is not positive.";
    "loss.kl_coef": "0 or more", "Weight of the divergence from the first policy (TRL: beta); 0 keeps no copy of it.";
    "loss.kl_estimator": "k1, k2, k3", "The estimator of that divergence.";
    "loss.use_bias_correction_kl": "true, false", "Whether the estimate is multiplied by the ratio, which makes its gradient right.";
    "loss.entropy_coef": "0 or more", "Weight of the policy's entropy at the first iteration.";
    "loss.entropy_coef_final": "0 or more", "Its weight at the last iteration; it changes linearly.";
    "loss.label_smoothing": "0 to below 1; above 0 only where the run learns from data", "Share of what is right that all actions have alike (as in PyTorch).";
    "update.update_epochs": "1 or more", "Passes over the data of an iteration (TRL: num_iterations).";
    "update.num_minibatches": "a divisor of the games played at a time", "Optimiser steps a pass; each takes its share of the games.";
    "update.gradient_accumulation_steps": "1 to the games of a minibatch", "Parts that a minibatch is worked off in, to save memory; the update is the same.";
    "update.num_shards": "1 to 4096", "Parts of a batch at most; threads, devices and processes share them.";
    "update.gradient_checkpointing": "true, false", "Of a decoder on the CPU: layers are computed anew on the way back, to save memory.";
    "update.max_grad_norm": "0 (off) or more", "Largest norm of the gradient of all parameters together.";
    "optimizer.learning_rate": "above 0", "The highest learning rate of the run.";
    "optimizer.lr_scheduler_type": "constant, linear, cosine", "How it goes down, to 0 at the end of the run unless it is constant.";
    "optimizer.warmup_ratio": "0 to 1", "Share of the run over which it rises from 0 at first.";
    "optimizer.adam_beta1": "0 to below 1", "Decay of AdamW's first moment.";
    "optimizer.adam_beta2": "0 to below 1", "Decay of its second moment.";
    "optimizer.adam_epsilon": "above 0", "What is added to the root of the second moment.";
    "optimizer.weight_decay": "0 or more", "Decoupled weight decay.";
    "checkpoint.save_every": "1 or more", "Iterations between two checkpoints; the last one is always saved.";
    "checkpoint.keep": "1 or more", "Checkpoints that are kept, beside the best policy.";
    "checkpoint.eval_every": "1 or more", "Iterations between two evaluations of the policy's most likely actions.";
    "checkpoint.eval_episodes": "1 or more", "Episodes of such an evaluation.";
    "data.path": "a folder, or empty", "The dataset that is learnt from instead of games (`grove fit`).";
    "data.window": "1 to 65536", "Steps of a piece of an episode; what a model remembers starts anew with it.";
    "data.history": "0 to 65536", "Steps seen before a window and not learnt from, as far as the episode has them.";
    "data.batch_size": "1 or more", "Windows of an optimiser step.";
    "data.resident_mb": "0 (half of what is free) or more", "MiB up to which data stay in memory; more are read as they are needed.";
    "data.validation": "above 0, at most 0.5", "Share of the episodes that are held out to measure what is learnt.";
    "data.epochs": "1 or more", "Passes over the data; `iterations` follows from it where --iterations does not set it.";
    "data.class_weights": "none, balanced", "How much each action weighs: as often as it comes, or all the same.";
    "data.patience": "0 (never) or more", "Evaluations without a better one after which the run ends.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TrainConfig, overlay};
    use toml::Value;

    #[test]
    fn every_setting_is_described() {
        let mut paths = Vec::new();
        for (key, value) in overlay::to_table(&TrainConfig::for_game("any")) {
            match value {
                Value::Table(section) => paths.extend(section.keys().map(|k| format!("{key}.{k}"))),
                _ => paths.push(key),
            }
        }
        let mut described: Vec<&str> = descriptions().map(|d| d.path).collect();
        assert_eq!(described.len(), paths.len());
        described.sort_unstable();
        paths.sort_unstable();
        assert_eq!(described, paths, "what is missing or too much in describe.rs");
    }

    #[test]
    fn lists_of_names_have_every_name_and_no_other() {
        for Description { path, range, .. } in descriptions() {
            let names: Vec<&str> = range.split(", ").collect();
            let is_list =
                names.len() > 1 && names.iter().all(|n| n.chars().all(|c| !c.is_whitespace()));
            if !is_list || range == "true, false" {
                continue;
            }
            let set = |name: &str| {
                let mut table = overlay::to_table(&TrainConfig::for_game("any"));
                overlay::apply(&mut table, &[format!("{path}={name}")]).unwrap();
                overlay::from_table::<TrainConfig>(table)
            };
            for name in &names {
                assert!(set(name).is_ok(), "{path} cannot be {name}");
            }
            // The parser lists those that there are.
            let said = set("no-such-name").unwrap_err().to_string();
            assert_eq!(said.matches('`').count() / 2, names.len() + 2, "{path}: {said}");
        }
    }
}
