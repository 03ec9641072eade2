//! What every setting of a language model's run is, in a line for people. What means the same in a game's run is
//! described there.

use crate::config::{self, Description};
use std::borrow::Cow;

/// The description of the setting of this full name; none of a task's own.
pub fn describe(path: &str) -> Option<Description> {
    let own = OWN.iter().find(|[own, ..]| *own == path);
    let own = own.map(|[path, range, meaning]| Description {
        path,
        range: Cow::Borrowed(*range),
        meaning,
    });
    own.or_else(|| config::describe(path).filter(|about| !about.path.starts_with("policy.")))
}

macro_rules! own {
    ($($path:literal: $range:literal, $meaning:literal;)*) => {
        /// Those of texts alone, or with another meaning there: path, range and meaning.
        const OWN: &[[&str; 3]] = &[$([$path, $range, $meaning]),*];
    };
}

own! {
    "iterations": "1 or more", "Iterations of answers and update; the schedules end with the last.";
    "model.path": "tiny, a folder, a GGUF file", "The model (--model); tiny is a fresh decoder of the sizes below.";
    "model.hidden_size": "1 or more, a multiple of 2 * num_heads", "Of tiny: numbers of its stream.";
    "model.num_layers": "1 or more", "Of tiny: layers.";
    "model.num_heads": "1 or more, a multiple of num_kv_heads", "Of tiny: heads of queries in a layer.";
    "model.num_kv_heads": "1 or more", "Of tiny: heads of keys and values.";
    "model.intermediate_size": "1 or more", "Of tiny: units of a layer's perceptron.";
    "model.context": "1 or more", "Of tiny: tokens of a prompt and its completion at most.";
    "lora.r": "0 (off) or more", "Rank of the adapters that are learnt in place of the weights (LoRA).";
    "lora.lora_alpha": "above 0", "Over r, what an adapter's result is multiplied by.";
    "lora.target_modules": "names of matrices", "The matrices of a layer that are adapted.";
    "fit.iterations": "0 or more", "Iterations of imitation of solutions before there are rewards.";
    "fit.learning_rate": "0 or more", "The learning rate of that imitation.";
    "fit.epochs": "0 or more", "Of `grove fit`: passes over the texts, where iterations are not told.";
    "fit.patience": "0 (never) or more", "Evaluations without a better one after which `grove fit` ends.";
    "generation.num_prompts": "1 or more", "Prompts of an iteration.";
    "generation.group_size": "2 or more", "Completions of a prompt (TRL: num_generations).";
    "generation.max_new_tokens": "0 (the task's) or more", "Tokens of a completion at most (TRL: max_completion_length).";
    "generation.temperature": "above 0", "What logits are divided by.";
    "generation.top_k": "0 (all) or more", "How many of the likeliest tokens can be drawn.";
    "generation.top_p": "above 0, at most 1", "The share of the probability, of the likeliest tokens, that is drawn from.";
    "generation.min_p": "0 to below 1", "Tokens below this share of the likeliest one's are not drawn.";
    "generation.slots": "1 or more", "Completions under way at a time; the result is the same.";
    "generation.resample": "0 (off) or more", "Times that groups without variance are replaced (DAPO).";
    "generation.stop": "a list of texts", "Texts that end a completion and are no part of it.";
    "reward.scale_rewards": "group, batch, none", "Whose standard deviation advantages are divided by.";
    "reward.baseline": "group, prefix", "Whose mean a token's reward is compared with: its group's, or that of those alike so far.";
    "reward.mask_truncated_completions": "true, false", "Whether nothing is learnt from what was cut off.";
    "reward.top_entropy_quantile": "above 0, at most 1", "Share of the tokens, of highest entropy, that is learnt from.";
    "reward.overlong_buffer": "0 (off) or more", "Tokens before the longest completion where length begins to cost.";
    "reward.weights": "empty, or name=weight, ...", "Weights of parts of the reward, in place of the task's.";
    "loss.label_smoothing": "0", "For datasets of games.";
    "update.update_epochs": "1 or more", "Passes over the completions of an iteration (TRL: num_iterations).";
    "update.num_minibatches": "1 or more", "Optimiser steps a pass; each takes its share of the groups.";
    "update.gradient_accumulation_steps": "1", "For games: texts are learnt from a group at a time anyhow.";
    "update.num_shards": "0 (by the model's size) to 4096", "Parts of a batch at most; devices and processes share them.";
    "update.gradient_checkpointing": "true, false", "Whether layers are computed anew on the way back and matrices copied anew for each product, to save memory.";
    "checkpoint.keep": "1 or more", "Checkpoints that are kept, beside the best model.";
    "checkpoint.eval_every": "1 or more", "Iterations between two evaluations on prompts not trained on.";
    "checkpoint.eval_episodes": "1 or more; of `grove fit` 0 or more", "Prompts of such an evaluation.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::overlay;
    use crate::trainer::language::{LanguageConfig, TINY};
    use toml::Value;

    #[test]
    fn every_setting_is_described_and_nothing_else() {
        let mut paths = Vec::new();
        for (key, value) in overlay::to_table(&LanguageConfig::for_model(TINY)) {
            match value {
                Value::Table(section) => paths.extend(section.keys().map(|k| format!("{key}.{k}"))),
                _ => paths.push(key),
            }
        }
        for path in &paths {
            assert!(describe(path).is_some(), "{path} is not described");
        }
        for [path, ..] in OWN {
            assert!(paths.iter().any(|known| known == path), "there is no {path}");
        }
        assert_eq!(describe("policy.hidden"), None);
    }
}
