//! Description of a run as a JSON object.

use super::live::{RunState, ServedPolicy};
use crate::program::games::Games;
use crate::settings::overlay;
use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Builds the response to `/run/about.json`.
pub fn describe_run(run: &RunState, games: &Games) -> Result<Value> {
    let config = run.config.as_ref().context("the run has no config.toml")?;
    let config = std::str::from_utf8(config).context("the run's config.toml is not UTF-8")?;
    let table = overlay::parse("config.toml", config)?;
    let game = table.get("env").and_then(toml::Value::as_str).unwrap_or_default().to_string();
    // Unknown games have no reference scores.
    let known = games.find(&game).and_then(|game| (game.reference_scores)(table.clone()));
    let reference_scores = known.unwrap_or_default();
    let optimum = reference_scores.iter().find(|(player, _)| *player == "optimum");
    let metadata =
        run.metadata.as_ref().and_then(|metadata| serde_json::from_slice::<Value>(metadata).ok());
    Ok(json!({
        "grove": env!("CARGO_PKG_VERSION"),
        "run": run.name,
        "game": game,
        "task": table.get("task"),
        "iteration": run.metrics.iteration(),
        "iterations": table.get("iterations").and_then(toml::Value::as_integer),
        "references": reference_scores
            .iter()
            .map(|(player, score)| json!({ "player": player, "score": score }))
            .collect::<Vec<_>>(),
        "optimum": optimum.map(|(_, score)| score),
        "trained_with": metadata,
        "best": run.best.as_ref().map(|policy| describe_checkpoint("best", policy)),
        "newest": run.newest.as_ref().map(|policy| describe_checkpoint("newest", policy)),
        "settings": table,
    }))
}

/// Describes a checkpoint by its name in requests, `best` or `newest`.
pub fn describe_checkpoint(which: &str, policy: &ServedPolicy) -> Value {
    json!({
        "which": which,
        "iteration": policy.iteration,
        "tag": policy.tag,
        "config": format!("/run/files/{which}/config.toml"),
        "weights": format!("/run/files/{which}/weights.safetensors"),
    })
}
