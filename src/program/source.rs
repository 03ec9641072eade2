//! The dataset that a run learns from, where it plays no games.

use super::games::Playable;
use super::session::in_settings;
use crate::data::{Cut, Dataset, Pieces, Steps, split};
use crate::settings::{ClassWeights, DataConfig, TrainConfig};
use crate::trainer::Demonstrations;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The demonstrations that the settings name; `None` for runs that play.
///
/// # Errors
/// If the dataset cannot be used, is of another game, has too few episodes to hold one out, or
/// all its steps have weight 0.
pub fn demonstrations<G: Playable>(
    game: G,
    config: &TrainConfig,
) -> Result<Option<Demonstrations>> {
    let data = &config.data;
    if !data.is_on() {
        return Ok(None);
    }
    let dataset = Dataset::open(Path::new(&data.path))?;
    let manifest = dataset.manifest().clone();
    let env = &manifest.env;
    if env != G::NAME {
        bail!("the dataset in {} is of `{env}`, not `{}`", data.path, G::NAME);
    }
    if let Value::Object(settings) = serde_json::to_value(game)? {
        let shown = &manifest.settings;
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
    // A game's observation is a row; of a table it may be several.
    let width = if G::PLAYABLE { game.num_features() } else { manifest.features.len().max(1) };
    let steps = dataset.steps(width, actions)?;
    let later = steps.steps_from(manifest.shards.len());
    let episodes = steps.episodes();
    let [learnt, held_out] = match manifest.held_out.is_empty() {
        true => split(episodes, data.validation),
        false => {
            let is_learnt = |episode: &Range<usize>| episode.start < later.start;
            let (learnt, held_out) = episodes.into_iter().partition(is_learnt);
            [learnt, held_out]
        }
    };
    if learnt.is_empty() || held_out.is_empty() {
        bail!(
            "the dataset in {} has {} episodes: too few to hold out a share of {} (data.validation)",
            data.path,
            learnt.len() + held_out.len(),
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
    let plain = Cut {
        history: data.history,
        stack: game.num_features() / width,
        ..Cut::plain(data.window, actions)
    };
    let by_action = match data.class_weights {
        ClassWeights::None => plain.by_action.clone(),
        ClassWeights::Balanced => steps.balance(&learnt, actions),
    };
    let steps = Arc::new(steps);
    let learnt = Pieces::new(steps.clone(), &learnt, Cut { by_action, ..plain.clone() });
    let held_out = Pieces::new(steps, &held_out, plain);
    for (pieces, what) in [(&learnt, "training"), (&held_out, "held-out")] {
        if pieces.is_empty() {
            bail!("all {what} steps of the dataset in {} have weight 0", data.path);
        }
    }
    Ok(Some(Demonstrations { learnt, held_out }))
}

/// Notes in the settings of a new run which dataset they name, if they name one.
///
/// # Errors
/// If it cannot be read.
pub fn identify(data: &mut DataConfig) -> Result<()> {
    if data.is_on() {
        data.digest = Dataset::open(Path::new(&data.path))?.digest();
    }
    Ok(())
}

/// Finds the dataset of a saved run, at a `moved` place if there is one.
///
/// # Errors
/// If it is gone or another one, or the run has none.
pub fn find(data: &mut DataConfig, moved: Option<&Path>) -> Result<()> {
    match (moved, data.is_on()) {
        (None, false) => return Ok(()),
        (Some(_), false) => {
            bail!("--data is for runs that learn from a dataset; this one plays games")
        }
        (Some(moved), true) => {
            let whole = moved.canonicalize();
            let whole = whole.with_context(|| format!("cannot find {}", moved.display()))?;
            data.path = in_settings(&whole)?;
        }
        (None, true) if !Path::new(&data.path).exists() => {
            bail!(
                "the dataset in {} no longer exists; pass its new location with --data DIR",
                data.path
            )
        }
        (None, true) => {}
    }
    let found = Dataset::open(Path::new(&data.path))?.digest();
    if !data.digest.is_empty() && found != data.digest {
        let DataConfig { path, digest, .. } = data;
        bail!("the dataset in {path} is not the run's: its SHA-256 is {found}, not {digest}");
    }
    Ok(())
}

/// The names of a run's actions: the dataset's, else the game's.
pub fn action_names<G: Playable>(game: G, config: &TrainConfig) -> Vec<String> {
    let names = Dataset::open(Path::new(&config.data.path));
    let names = names.map(|dataset| dataset.manifest().actions.clone()).unwrap_or_default();
    match names.len() == game.num_actions() {
        true => names,
        false => (0..game.num_actions()).map(|a| game.action_name(a)).collect(),
    }
}

/// Iterations that make so many epochs of these windows.
pub fn iterations(config: &TrainConfig, windows: usize, epochs: u32) -> u32 {
    let batches = windows as u64 / (config.data.batch_size as u64).min(windows as u64);
    let steps = (config.update.update_epochs * config.update.num_minibatches) as u64;
    (batches * u64::from(epochs)).div_ceil(steps).clamp(1, u32::MAX.into()) as u32
}

/// Iterations of an epoch; of games, which have none, those between two evaluations.
pub fn epoch(config: &TrainConfig, data: Option<&Demonstrations>) -> u32 {
    match data {
        Some(data) => iterations(config, data.learnt.len(), 1),
        None => config.checkpoint.eval_every,
    }
}
