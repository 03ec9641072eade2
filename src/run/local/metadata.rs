//! The file `run.json`: device, engine and ranks of a run.
//!
//! They are not settings, because the result does not depend on them.

use super::{Run, Stage, Subject};
use crate::device::DeviceInfo;
use serde::Serialize;

/// Content of `run.json`.
#[derive(Debug, Serialize)]
pub struct RunMetadata<'a> {
    grove: &'static str,
    #[serde(flatten)]
    subject: Subject,
    /// Name of another program's environment, for which the game is a placeholder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<&'a str>,
    seed: u64,
    device: &'a DeviceInfo,
    engine: String,
    stages: Vec<Stage>,
    /// Number of iterations that the epochs of the data take; the settings have that of the run.
    #[serde(rename = "iterations_of_epochs", skip_serializing_if = "Option::is_none")]
    pub iterations_for_epochs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_score: Option<f64>,
    /// The ranks, if several share the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankShards>,
}

/// The shards of every batch that a rank computes.
#[derive(Debug, Serialize)]
struct RankShards {
    device: String,
    /// First shard, and the one after the last.
    shards: [usize; 2],
}

impl<'a> RunMetadata<'a> {
    /// Describes a run whose rank in this process uses `device`.
    pub fn new(run: &dyn Run, device: &'a DeviceInfo) -> Self {
        let (trainer, team) = (run.trainer(), run.trainer().team());
        let boundaries = team.shard_boundaries(trainer.shards().count());
        let rank_shards = |(device, bounds): (&String, &[usize])| RankShards {
            device: device.clone(),
            shards: [bounds[0], bounds[1]],
        };
        let device_names = team.hardware().device_names.iter();
        let ranks = match team.size() {
            1 => Vec::new(),
            _ => device_names.zip(boundaries.windows(2)).map(rank_shards).collect(),
        };
        Self {
            grove: env!("CARGO_PKG_VERSION"),
            subject: run.subject(),
            environment: None,
            seed: run.seed(),
            device,
            engine: trainer.describe_engine(),
            stages: run.stages(),
            iterations_for_epochs: None,
            highest_score: run.highest_score(),
            ranks,
        }
    }
}
