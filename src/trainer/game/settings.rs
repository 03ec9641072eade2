//! Settings of a run that learns a game, layered from defaults, files and options.

use crate::env::Rules;
use crate::settings::{ConfigError, TrainConfig, overlay};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Converts the settings of a run to the form that is saved and displayed; [`overlay::split_game`] reads it.
pub fn config_to_toml<G: Rules + Serialize>(game: &G, config: &TrainConfig) -> String {
    let mut table = toml::Table::new();
    table.insert("env".to_string(), G::NAME.into());
    table.extend(overlay::to_table(config));
    table.insert(G::NAME.to_string(), overlay::to_table(game).into());
    toml::to_string(&table).expect("settings are plain tables")
}

/// The settings of a new run: the defaults, overridden by those of a file, then by every `key=value` of `assignments`.
///
/// # Errors
/// The errors of [`layer_settings`].
pub fn new_settings<G>(
    file: &toml::Table,
    assignments: &[String],
) -> Result<(G, TrainConfig), ConfigError>
where
    G: Rules + Default + Serialize + DeserializeOwned,
{
    layer_settings(std::slice::from_ref(file), assignments)
}

/// Layers the settings of a new run: the defaults, overridden by each of `files` in turn, then by every `key=value` of
/// `assignments`. A setting may have another of its names in each.
///
/// The game's parameters are read first, since defaults may depend on them
/// ([`Env::training_defaults`](crate::env::Env::training_defaults)).
///
/// # Errors
/// If there is no such setting, or a value has the wrong type.
pub fn layer_settings<G>(
    files: &[toml::Table],
    assignments: &[String],
) -> Result<(G, TrainConfig), ConfigError>
where
    G: Rules + Default + Serialize + DeserializeOwned,
{
    let layer_over = |defaults: TrainConfig| {
        let mut table = overlay::parse("the defaults", &config_to_toml(&G::default(), &defaults))?;
        files.iter().try_for_each(|file| overlay::lay_over(&mut table, file.clone()))?;
        overlay::apply_assignments(&mut table, assignments)?;
        overlay::split_game::<G>(table, G::NAME)
    };
    let (game, _) = layer_over(TrainConfig::with_defaults_of(&G::default())?)?;
    layer_over(TrainConfig::with_defaults_of(&game)?)
}
