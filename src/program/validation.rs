//! Validation of a game's settings.

use super::games::ConfigurableGame;
use super::models::Models;
use crate::checkpoint::Checkpoint;
use crate::env;
use crate::settings::{ConfigError, TrainConfig};
use crate::trainer::read_config;
use anyhow::{Context, Result};

/// Reads and validates the settings of a checkpoint, which may come from anyone.
pub fn read_valid_settings<G: ConfigurableGame>(
    models: &Models,
    checkpoint: &Checkpoint,
) -> Result<(G, TrainConfig)> {
    let (game, config) = read_config::<G>(checkpoint)?;
    validate(models, &game, &config).context("the checkpoint's settings cannot be used")?;
    Ok((game, config))
}

/// Validates the settings of a game and a run.
pub fn validate<G: ConfigurableGame>(
    models: &Models,
    game: &G,
    config: &TrainConfig,
) -> Result<()> {
    env::validate(game).map_err(ConfigError::OutOfRange)?;
    config.validate_with(&models.names())?;
    Ok(())
}
