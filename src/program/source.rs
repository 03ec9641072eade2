//! The dataset that a run learns from, where it plays no games.

use super::Playable;
use crate::config::{ClassWeights, TrainConfig};
use crate::data::{Dataset, Windows};
use crate::trainer::Demonstrations;
use anyhow::{Result, bail};
use serde_json::Value;
use std::path::Path;

/// What the settings say is learnt from; `None` for games.
///
/// # Errors
/// If the dataset cannot be used, is of another game, or has too few episodes to hold one out.
pub fn demonstrations<G: Playable>(
    game: G,
    config: &TrainConfig,
) -> Result<Option<Demonstrations>> {
    let data = &config.data;
    if !data.is_on() {
        return Ok(None);
    }
    let dataset = Dataset::open(Path::new(&data.path))?;
    let env = &dataset.manifest().env;
    if env != G::NAME {
        bail!("the dataset in {} is of `{env}`, not `{}`", data.path, G::NAME);
    }
    if let Value::Object(settings) = serde_json::to_value(game)? {
        let shown = &dataset.manifest().settings;
        let differs = |(name, value): &(&String, &Value)| settings.get(*name) != Some(*value);
        if let Some((name, value)) = shown.iter().find(differs) {
            let set = settings.get(name).unwrap_or(&Value::Null);
            bail!(
                "the dataset in {} is of `{env}` with {env}.{name} = {value}, not {set}",
                data.path
            );
        }
    }
    let actions = game.num_actions();
    let columns = dataset.columns(game.num_features(), actions)?;
    let [learnt, held_out] = columns.split(data.validation);
    if held_out.is_empty() {
        bail!(
            "the dataset in {} has {} episodes: too few to hold out a share of {} (data.validation)",
            data.path,
            learnt.len(),
            data.validation
        );
    }
    let longest = learnt.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    if data.window > longest {
        bail!(
            "data.window is {}, but the longest episode in {} has {longest} steps",
            data.window,
            data.path
        );
    }
    let plain = vec![1.0; actions];
    let weights = match data.class_weights {
        ClassWeights::None => plain.clone(),
        ClassWeights::Balanced => columns.balance(&learnt, actions),
    };
    Ok(Some(Demonstrations {
        learnt: Windows::new(&columns, &learnt, data.window, &weights),
        held_out: Windows::new(&columns, &held_out, data.window, &plain),
    }))
}

/// Iterations that make so many epochs of these windows.
pub fn iterations(config: &TrainConfig, windows: usize) -> u32 {
    let data = &config.data;
    let batches = windows as u64 / (data.batch_size as u64).min(windows as u64);
    let steps = (config.update.update_epochs * config.update.num_minibatches) as u64;
    (batches * u64::from(data.epochs)).div_ceil(steps).clamp(1, u32::MAX.into()) as u32
}
