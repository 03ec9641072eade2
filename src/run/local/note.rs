//! The file `run.json`: the device, the engine and the ranks that train a run.
//!
//! They are not among the settings, for the result does not depend on them.

use super::{Phase, Run, Subject};
use crate::device::DeviceInfo;
use serde::Serialize;

/// The content of `run.json`.
#[derive(Debug, Serialize)]
pub struct RunNote<'a> {
    grove: &'static str,
    #[serde(flatten)]
    subject: Subject,
    /// The environment for which the game stands, if it is of another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<&'a str>,
    seed: u64,
    device: &'a DeviceInfo,
    engine: String,
    phases: Vec<Phase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_score: Option<f64>,
    /// The ranks, if several share the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<Share>,
}

/// A rank's part of every batch.
#[derive(Debug, Serialize)]
struct Share {
    device: String,
    /// The first shard, and the one after the last.
    shards: [usize; 2],
}

impl<'a> RunNote<'a> {
    /// The note of a run of which this rank is on `device`.
    pub fn new(run: &dyn Run, device: &'a DeviceInfo) -> Self {
        let (trainer, team) = (run.trainer(), run.trainer().team());
        let cuts = team.cuts(trainer.shards().count());
        let share = |(device, cut): (&String, &[usize])| Share {
            device: device.clone(),
            shards: [cut[0], cut[1]],
        };
        let ranks = match team.size() {
            1 => Vec::new(),
            _ => team.hardware().names.iter().zip(cuts.windows(2)).map(share).collect(),
        };
        Self {
            grove: env!("CARGO_PKG_VERSION"),
            subject: run.subject(),
            environment: None,
            seed: run.seed(),
            device,
            engine: trainer.engine(),
            phases: run.phases(),
            highest_score: run.highest_score(),
            ranks,
        }
    }

    /// Names the environment for which the run's game stands.
    pub fn in_environment(self, environment: Option<&'a str>) -> Self {
        Self { environment, ..self }
    }
}
