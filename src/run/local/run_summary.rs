//! Time and steps spent on a run.

use crate::run::EndReason;
use serde::{Serialize, Serializer};

/// Time and steps spent on a run, up to the iteration where it stopped.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RunSummary {
    /// Number of iterations done since the start of the run.
    #[serde(rename = "iteration")]
    pub iterations_done: u32,
    /// Number of steps of all episodes since the start of the run; tokens for a language model.
    pub env_steps: u64,
    /// Reason for the end of the run; `None` if it was interrupted. Serialized as the flag
    /// `interrupted`.
    #[serde(rename = "interrupted", serialize_with = "serialize_interrupted")]
    pub end_reason: Option<EndReason>,
    /// Seconds in this process, without pauses.
    pub seconds: f64,
    /// Seconds until the first update was done; `None` without one.
    pub seconds_to_first_update: Option<f64>,
}

fn serialize_interrupted<S: Serializer>(
    end_reason: &Option<EndReason>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(end_reason.is_none())
}
