//! What a dataset says of itself.

use serde::{Deserialize, Serialize};

/// The format that this build writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

/// What a dataset is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format, 1.
    pub format: u32,
    /// The game that was shown.
    pub env: String,
    /// The game's parameters, by their names; those that are missing are the game's defaults.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Who has shown it.
    #[serde(default)]
    pub player: String,
    /// The names of the features, if they are told.
    #[serde(default)]
    pub features: Vec<String>,
    /// The units of the features, if they are told, for instance `m/s`; nothing is computed with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// The names of the actions, if they are told.
    #[serde(default)]
    pub actions: Vec<String>,
    /// Under which licence it may be used; an SPDX name, for instance `CC0-1.0`.
    #[serde(default)]
    pub license: String,
    /// The files of the shards, in their order.
    pub shards: Vec<String>,
    /// The files of the shards that are held out to measure what is learnt. Where there are none, some
    /// episodes of the others are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<String>,
    /// Steps that must be seen together, where that is known: of a series, those up to a label's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// What the features were before they were standardised, one for each, where they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<Standard>,
}

/// How a feature was standardised: by `(x - mean) / std`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standard {
    /// Its mean over the steps that are learnt from.
    pub mean: f64,
    /// Its standard deviation over the same; 1 where that is 0.
    pub std: f64,
}

impl Manifest {
    /// The manifest of a game's demonstrations that have no shards yet.
    pub fn new(env: &str) -> Self {
        Self {
            format: FORMAT,
            env: env.to_string(),
            settings: Default::default(),
            player: String::new(),
            features: Vec::new(),
            units: Vec::new(),
            actions: Vec::new(),
            license: String::new(),
            shards: Vec::new(),
            held_out: Vec::new(),
            window: None,
            scales: Vec::new(),
        }
    }
}
