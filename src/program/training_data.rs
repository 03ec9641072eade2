//! Dataset of a run that learns from demonstrations instead of playing.

use super::games::ConfigurableGame;
use super::output::eprint_line;
use super::paths::canonical_path;
use crate::data::{Dataset, Manifest, ShardedSteps, Steps, WindowOptions, WindowSet, hold_out};
use crate::settings::{ClassWeights, DataConfig, ModelKind, TrainConfig, overlay};
use crate::trainer::Demonstrations;
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Table;

/// A dataset to learn from, cut into windows.
pub struct TrainingData {
    /// Steps to learn from, and held-out steps.
    pub demonstrations: Demonstrations,
    /// Names of the actions, if the dataset has them.
    pub action_names: Vec<String>,
    /// The manifest without its shards.
    pub description: Value,
    /// Number of steps of the longest episode to learn from.
    longest_episode: usize,
    /// Files with the steps.
    pub files: Vec<PathBuf>,
}

impl TrainingData {
    /// Opens the dataset in the settings of a new run, and records there which dataset it is; `None` for runs that
    /// play.
    ///
    /// # Errors
    /// If the dataset is of another game, has too few episodes to hold one out, or has weight 0 at all steps.
    pub fn open_new<G: ConfigurableGame>(
        game: G,
        config: &mut TrainConfig,
    ) -> Result<Option<Self>> {
        if !config.data.is_on() {
            return Ok(None);
        }
        let dataset = Dataset::open(Path::new(&config.data.path))?;
        // The run may be resumed from another folder.
        config.data.path = canonical_path(Path::new(&config.data.path))?;
        config.data.digest = dataset.digest();
        Self::new(game, config, dataset).map(Some)
    }

    /// Opens the dataset of a saved run, at the path `moved` if it has moved.
    ///
    /// # Errors
    /// The errors of [`TrainingData::open_new`], and one if it is not the run's dataset.
    pub fn open_saved<G: ConfigurableGame>(
        game: G,
        config: &mut TrainConfig,
        moved: Option<&Path>,
    ) -> Result<Option<Self>> {
        let data = &mut config.data;
        match (moved, data.is_on()) {
            (None, false) => return Ok(None),
            (Some(_), false) => {
                bail!("--data is for runs that learn from a dataset; this one plays games")
            }
            (Some(moved), true) => data.path = canonical_path(moved)?,
            (None, true) if !Path::new(&data.path).exists() => bail!(
                "the dataset in {} no longer exists; pass its new location with --data DIR",
                data.path
            ),
            (None, true) => {}
        }
        let dataset = Dataset::open(Path::new(&data.path))?;
        let found = dataset.digest();
        if !data.digest.is_empty() && found != data.digest {
            let DataConfig { path, digest, .. } = data;
            bail!(
                "the dataset in {path} is not the run's, by its SHA-256 ({found:.8}..., not {digest:.8}...); name the \
                 run's with --data DIR"
            );
        }
        Self::new(game, config, dataset).map(Some)
    }

    fn new<G: ConfigurableGame>(game: G, config: &TrainConfig, dataset: Dataset) -> Result<Self> {
        let manifest = dataset.manifest().clone();
        check_game(game, &manifest, &config.data.path)?;
        let files = dataset.shard_paths().into_iter().map(Path::to_path_buf).collect();
        // A game's observation is one row; a table's may be several.
        let columns = serde_json::to_value(game)?["columns"].as_u64().filter(|_| !G::IS_PLAYABLE);
        let width = columns.map_or(game.num_features(), |columns| columns as usize);
        for (kind, names, count) in [
            ("features", manifest.features.len(), width),
            ("actions", manifest.actions.len(), game.num_actions()),
        ] {
            let path = &config.data.path;
            ensure!(
                names == 0 || names == count,
                "`{kind}` in the manifest of the dataset in {path} names {names} {kind}, but there are {count} with its \
                 `settings`; name all or none"
            );
        }
        let steps = dataset.into_steps(width, game.num_actions())?;
        let split = split_episodes(&config.data, &manifest, &steps)?;
        let longest_episode = split[0].iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let DataConfig { path, window, .. } = &config.data;
        ensure!(
            *window <= longest_episode,
            "data.window is {window}, but the longest episode in {path} has {longest_episode} steps"
        );
        let demonstrations = cut_into_windows(game, &config.data, steps, split)?;
        let description = manifest.describe();
        let action_names = manifest.actions;
        Ok(Self { demonstrations, action_names, description, longest_episode, files })
    }

    /// A warning if a network with memory sees single steps, from which its memory learns nothing.
    pub fn warning_about_memory(&self, config: &TrainConfig) -> Option<String> {
        let TrainConfig { policy, data, rollout, .. } = config;
        let has_memory = policy.kind != ModelKind::Mlp && policy.kind.user_defined().is_none();
        if !has_memory || data.window + data.history > 1 || self.longest_episode == 1 {
            return None;
        }
        let window = rollout.num_steps.min(self.longest_episode);
        let batch_size = (data.batch_size / window).max(1);
        Some(format!(
            "the memory of a network of the kind {} learns nothing from single steps, data.window=1 and data.history=0; \
             --set data.window={window} --set data.batch_size={batch_size} trains it on as many steps at a time",
            policy.kind
        ))
    }

    /// Sets the number of iterations to that of `data.epochs` epochs. If the epochs do not fill whole iterations, all
    /// iterations become shorter, alike, by fewer `update_epochs` and `num_minibatches`.
    pub fn fit_iterations_to_epochs(&self, config: &mut TrainConfig) {
        let batches = self.batches_per_epoch(config).saturating_mul(config.data.epochs as usize);
        config.iterations = self.iterations_for_epochs(config, config.data.epochs);
        let steps_per_iteration = batches.div_ceil(config.iterations as usize);
        let update = &mut config.update;
        if steps_per_iteration < update.update_epochs * update.num_minibatches {
            (update.update_epochs, update.num_minibatches) = (1, steps_per_iteration);
        }
    }

    /// Number of iterations of `epochs` epochs, at least 1.
    pub fn iterations_for_epochs(&self, config: &TrainConfig, epochs: u32) -> u32 {
        let steps_per_iteration = config.update.update_epochs * config.update.num_minibatches;
        let batches = self.batches_per_epoch(config).saturating_mul(epochs as usize);
        batches.div_ceil(steps_per_iteration).clamp(1, u32::MAX as usize) as u32
    }

    /// Number of batches per epoch.
    fn batches_per_epoch(&self, config: &TrainConfig) -> usize {
        let windows = self.demonstrations.train.len();
        windows / config.data.batch_size.min(windows)
    }
}

/// Whether the user has chosen the number of iterations; otherwise it follows from the epochs. `--set` takes precedence
/// over the file. In a file with both `iterations` and `epochs`, such as an earlier run's config.toml, the epochs
/// count.
pub fn has_given_iterations(file: &Table, assignments: &[String]) -> bool {
    const EPOCHS: [&str; 2] = ["data.epochs", "fit.epochs"];
    let is_epochs = |key: &str| EPOCHS.into_iter().any(|path| overlay::is_name_of(key, path));
    let file_decides = || {
        file.contains_key("iterations") && !overlay::flatten(file).any(|(key, _)| is_epochs(&key))
    };
    overlay::assigns(assignments, "iterations")
        || !EPOCHS.into_iter().any(|path| overlay::assigns(assignments, path)) && file_decides()
}

/// Says that the number of iterations in a settings file, `in_file`, gives way to that of its epochs, if they differ.
pub fn note_iterations_for_epochs(file: &Table, in_file: u32, iterations_for_epochs: u32) {
    if file.contains_key("iterations") && in_file != iterations_for_epochs {
        eprint_line!(
            "The epochs in the settings file take {iterations_for_epochs} iterations; --iterations {in_file} \
             keeps its `iterations`."
        );
    }
}

/// Checks that a dataset is of the run's game, with the same parameters.
fn check_game<G: ConfigurableGame>(game: G, manifest: &Manifest, path: &str) -> Result<()> {
    let Manifest { env, settings: recorded, .. } = manifest;
    ensure!(env == G::NAME, "the dataset in {path} is of `{env}`, not `{}`", G::NAME);
    let Value::Object(parameters) = serde_json::to_value(game)? else { return Ok(()) };
    let differs = |(name, value): &(&String, &Value)| parameters.get(*name) != Some(*value);
    if let Some((name, value)) = recorded.iter().find(differs) {
        let expected = parameters.get(name).unwrap_or(&Value::Null);
        bail!("the dataset in {path} is of `{env}` with {env}.{name} = {value}, not {expected}");
    }
    Ok(())
}

/// Cuts the steps of a dataset into windows for learning and for validation.
fn cut_into_windows<G: ConfigurableGame>(
    game: G,
    data: &DataConfig,
    steps: ShardedSteps,
    [train, validation]: [Vec<Range<usize>>; 2],
) -> Result<Demonstrations> {
    let actions = game.num_actions();
    // All windows have room for the history.
    let longest = train.iter().chain(&validation).map(ExactSizeIterator::len).max().unwrap_or(1);
    let plain = WindowOptions {
        history: data.history.min(longest - 1),
        stack: game.num_features() / steps.num_features(),
        ..WindowOptions::new(data.window, actions)
    };
    let action_weights = match data.class_weights {
        ClassWeights::None => plain.action_weights.clone(),
        ClassWeights::Balanced => steps.balanced_action_weights(&train, actions),
    };
    let steps = Arc::new(steps);
    let train =
        WindowSet::new(steps.clone(), &train, WindowOptions { action_weights, ..plain.clone() });
    let validation = WindowSet::new(steps, &validation, plain);
    for (window_set, purpose) in [(&train, "training"), (&validation, "held-out")] {
        if window_set.is_empty() {
            bail!("all {purpose} steps of the dataset in {} have weight 0", data.path);
        }
    }
    Ok(Demonstrations { train, validation })
}

/// Episodes to learn from, and held-out ones: by the manifest, otherwise by the settings.
fn split_episodes(
    data: &DataConfig,
    manifest: &Manifest,
    steps: &ShardedSteps,
) -> Result<[Vec<Range<usize>>; 2]> {
    let episodes = steps.episodes();
    let [train, validation] = if manifest.held_out.is_empty() {
        hold_out(episodes, data.validation)
    } else {
        let later = steps.steps_from(manifest.shards.len());
        let is_train = |episode: &Range<usize>| episode.start < later.start;
        let (train, validation) = episodes.into_iter().partition(is_train);
        [train, validation]
    };
    let DataConfig { path, validation: share, .. } = data;
    let num_episodes = train.len() + validation.len();
    if train.is_empty() || validation.is_empty() {
        let part = if train.is_empty() { "shards" } else { "held_out" };
        ensure!(
            manifest.held_out.is_empty(),
            "no step is in the `{part}` that the manifest of the dataset in {path} names; without `held_out`, a share of \
             the episodes is held out"
        );
        bail!(
            "the dataset in {path} has too few episodes, {num_episodes}, to hold out a share of {share} (data.validation); \
             `ends` marks the last step of each"
        );
    }
    Ok([train, validation])
}
