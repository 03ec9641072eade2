//! What a run has come to.

use super::Playable;
use super::score::Scores;
use crate::device::DeviceInfo;
use crate::metrics::HeldOut;
use crate::trainer::{Confusion, Trainer};
use serde::Serialize;

/// What a run is trained with, for its directory.
#[derive(Serialize)]
pub struct Note<'a> {
    grove: &'a str,
    device: &'a DeviceInfo,
    engine: String,
    /// Who shares it, where several do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Share<'a>>,
}

/// What a member has of a run.
#[derive(Serialize)]
struct Share<'a> {
    device: &'a str,
    /// Its shards, from the first up to the last.
    shards: [usize; 2],
}

impl<'a> Note<'a> {
    /// Of a run of which this is a member, on this device.
    pub fn of<G: Playable>(trainer: &'a Trainer<G>, device: &'a DeviceInfo) -> Self {
        let team = trainer.team();
        let cuts = team.cuts(trainer.shards().count());
        let share =
            |(device, cut): (&'a String, &[usize])| Share { device, shards: [cut[0], cut[1]] };
        let members = match team.size() {
            1 => Vec::new(),
            _ => team.hardware().names.iter().zip(cuts.windows(2)).map(share).collect(),
        };
        let grove = env!("CARGO_PKG_VERSION");
        Self { grove, device, engine: trainer.describe(), members }
    }
}

/// What a run has come to, for programs.
#[derive(Serialize)]
pub struct Report<'a> {
    pub env: &'a str,
    pub run_dir: String,
    pub device: &'a str,
    pub seed: u64,
    pub iterations: u32,
    pub iteration: u32,
    pub env_steps: u64,
    pub interrupted: bool,
    pub seconds: f64,
    pub seconds_to_first_update: Option<f64>,
    pub best_iteration: u64,
    #[serde(flatten)]
    pub scores: Option<Scores>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Told<'a>>,
}

/// How well the best policy tells what was done in the episodes that are held out.
#[derive(Serialize)]
pub struct Told<'a> {
    #[serde(flatten)]
    pub means: HeldOut,
    /// Steps by what was done and by the policy's most likely action.
    pub confusion: &'a [Vec<u64>],
}

/// What was done in the episodes that are held out, and what the policy would most likely have done.
pub fn table(confusion: &Confusion, names: &[String]) -> String {
    let width = names.iter().map(String::len).max().unwrap_or(0).max(8);
    let HeldOut { loss, accuracy } = confusion.means();
    let steps: u64 = confusion.counts.iter().flatten().sum();
    let mut table = format!(
        "Held out: {steps} steps; {:.2} % told right, {loss:.4} nats a step.\n{:width$}",
        100.0 * accuracy,
        "shown"
    );
    names.iter().for_each(|name| table += &format!("  {name:>width$}"));
    for (name, row) in names.iter().zip(&confusion.counts) {
        table += &format!("\n{name:width$}");
        row.iter().for_each(|count| table += &format!("  {count:>width$}"));
    }
    table + "\n\n"
}
