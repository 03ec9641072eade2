//! Checks of a game's settings, and of the engine that they ask for.

use super::games::Playable;
use super::models::Models;
use crate::checkpoint::Checkpoint;
use crate::settings::{ConfigError, Engine, Precision, TrainConfig};
use crate::trainer::{GameTrainer, saved_config};
use anyhow::{Context, Result, bail};

/// Reads the settings of a checkpoint and validates them, since a file may hold anything.
pub fn saved<G: Playable>(models: &Models, checkpoint: &Checkpoint) -> Result<(G, TrainConfig)> {
    let (game, config) = saved_config::<G>(checkpoint)?;
    validate(models, &game, &config).context("the checkpoint's settings cannot be used")?;
    Ok((game, config))
}

/// Validates the settings of a game and a run.
pub fn validate<G: Playable>(models: &Models, game: &G, config: &TrainConfig) -> Result<()> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate_with(&models.names())?;
    Ok(())
}

/// Checks that the requested engine and precision are available for a run.
pub fn check_engine<G: Playable>(trainer: &GameTrainer<G>) -> Result<()> {
    let config = trainer.config();
    let (requested, obstacle) = match (config.engine, config.precision) {
        (Engine::Fused, _) => ("the engine `fused`".to_string(), trainer.obstacle()),
        (_, Precision::F32) => return Ok(()),
        (_, precision) => (format!("the precision {precision}"), trainer.precision_obstacle()),
    };
    match obstacle {
        Some(obstacle) => bail!("{requested} is not available for this run: {obstacle}"),
        None => Ok(()),
    }
}
