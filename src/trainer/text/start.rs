//! Start of a new run: its model, and the settings that follow from its task and its model.

use super::prompts::{find_longest_prompt, max_new_tokens_of};
use super::{LanguageConfig, LanguageTrainError, ModelConfig, TINY};
use crate::model::DecoderConfig;
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::task::Task;
use crate::text::{Adapters, LanguageModel, TokenDecoder};

/// Default number of shards of an iteration's groups.
const DEFAULT_SHARDS: usize = 16;

/// Checks the settings of a run by themselves, and that a model is given unless the run creates one.
pub(super) fn check_settings(
    config: &LanguageConfig,
    model: Option<&LanguageModel>,
) -> Result<(), LanguageTrainError> {
    config.validate().map_err(|error| LanguageTrainError::Settings(error.to_string()))?;
    let path = &config.model.path;
    if model.is_none() && path != TINY {
        return Err(LanguageTrainError::Settings(format!(
            "model.path is {path}, whose model must be given (`LanguageModel::load`); without one it must be `{TINY}`"
        )));
    }
    Ok(())
}

/// Checks that the settings name no sizes that a model does not have: only `tiny` gets its sizes from them.
pub(super) fn check_sizes(
    config: &LanguageConfig,
    model: &LanguageModel,
) -> Result<(), LanguageTrainError> {
    let shape = &model.shape;
    let sizes = |sizes: &DecoderConfig| {
        [
            ("hidden_size", sizes.hidden_size, shape.hidden_size),
            ("num_layers", sizes.num_layers, shape.num_layers),
            ("num_heads", sizes.num_heads, shape.num_heads),
            ("num_kv_heads", sizes.num_kv_heads, shape.num_kv_heads),
            ("intermediate_size", sizes.intermediate_size, shape.intermediate_size),
            ("context", sizes.context, shape.context),
        ]
    };
    let defaults = sizes(&ModelConfig::default().tiny);
    for ((name, size, actual), default) in sizes(&config.model.tiny).into_iter().zip(defaults) {
        if size != default.1 && size != actual {
            return Err(LanguageTrainError::Settings(format!(
                "model.{name} = {size} is a size of `tiny`, but the model in {} has {actual}; leave it out",
                config.model.path
            )));
        }
    }
    Ok(())
}

/// Number of shards of a run whose settings leave it to the model, since each shard's gradient takes as much memory as
/// the weights.
pub(super) fn default_shards(decoder: &TokenDecoder) -> usize {
    let is_large = !decoder.is_sequential() && !decoder.has_adapters();
    if is_large { 1 } else { DEFAULT_SHARDS }
}

/// Checks that each rank has a shard.
pub(super) fn check_ranks(team: &Team, config: &LanguageConfig) -> Result<(), TeamError> {
    let (ranks, groups) = (team.size(), config.generation.num_prompts);
    let shards = Shards::new(groups, config.update.num_shards).count();
    if ranks > shards {
        return Err(TeamError::TooManyRanks { ranks, shards });
    }
    Ok(())
}

/// Creates a small model with new weights, whose tokens are the characters of a task.
pub(super) fn new_model(
    task: &dyn Task,
    config: &LanguageConfig,
) -> Result<LanguageModel, LanguageTrainError> {
    let alphabet = task.alphabet();
    let alphabet =
        alphabet.ok_or_else(|| LanguageTrainError::NoAlphabet(task.name().to_string()))?;
    let key = Stream::Weights.key(config.seed);
    Ok(LanguageModel::with_fresh_weights(&config.tiny_shape(), &alphabet, key))
}

/// The task's maximum number of tokens of a completion, or fewer if the context has no room for them after the longest
/// listed prompt.
pub(super) fn default_max_new_tokens(
    task: &dyn Task,
    model: &LanguageModel,
) -> Result<usize, LanguageTrainError> {
    let longest = find_longest_prompt(task, model)?;
    let room = longest.map(|prompt| model.shape.context.saturating_sub(prompt.num_tokens).max(1));
    let limit = max_new_tokens_of(task, model);
    if limit == 0 {
        return Err(LanguageTrainError::Settings(format!(
            "the task {} has a max_new_tokens of 0, but a completion has a token or more; set \
             generation.max_new_tokens",
            task.name()
        )));
    }
    Ok(limit.min(room.unwrap_or(usize::MAX)))
}

/// Adds the adapters in the settings to a model, or copies the settings of its own adapters.
pub(super) fn set_up_adapters(
    model: &mut LanguageModel,
    config: &mut LanguageConfig,
) -> Result<(), LanguageTrainError> {
    match &model.adapters {
        Some(adapters) => {
            let adopted = config.lora.adopt(adapters.config());
            adopted.map_err(|conflict| LanguageTrainError::Settings(conflict.to_string()))?;
        }
        None if config.lora.r > 0 && model.is_fresh() => {
            let what = "lora.r needs a pretrained model; all weights of `tiny` are learnt";
            return Err(LanguageTrainError::Settings(what.to_string()));
        }
        None if config.lora.r > 0 => {
            let key = Stream::Weights.key(config.seed);
            model.adapters = Some(Adapters::new(&model.shape, &config.lora, key));
        }
        None => {}
    }
    Ok(())
}
