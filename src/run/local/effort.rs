//! The time and the steps of a run.

use crate::run::End;
use serde::{Serialize, Serializer};

/// The time and the steps that a run took, up to the iteration where it stopped.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Effort {
    /// Iterations since the start of the run.
    pub iteration: u32,
    /// Steps of all episodes since the start of the run; of a language model, tokens.
    pub env_steps: u64,
    /// The reason why it ended; `None` if it was interrupted. In JSON it is whether it was.
    #[serde(rename = "interrupted", serialize_with = "is_missing")]
    pub end: Option<End>,
    /// Seconds in this process, without pauses.
    pub seconds: f64,
    /// Seconds up to the first update; `None` without one.
    pub seconds_to_first_update: Option<f64>,
}

fn is_missing<S: Serializer>(end: &Option<End>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(end.is_none())
}
