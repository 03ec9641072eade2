//! The manifest of a dataset.

use serde::{Deserialize, Serialize};

/// File name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The format version that this build writes and reads.
const FORMAT: u32 = 1;

/// The description of a dataset, the content of its [`MANIFEST_FILE`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version, 1.
    pub format: u32,
    /// Name of the game.
    pub env: String,
    /// Parameters of the game by name; missing ones have their defaults.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Name of the player or policy that was recorded.
    #[serde(default)]
    pub player: String,
    /// Names of the features, if known.
    #[serde(default)]
    pub features: Vec<String>,
    /// Units of the features, if known, for instance `m/s`; informational only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// Names of the actions, if known.
    #[serde(default)]
    pub actions: Vec<String>,
    /// Licence as an SPDX identifier, for instance `CC0-1.0`.
    #[serde(default)]
    pub license: String,
    /// File names of the shards in order.
    pub shards: Vec<String>,
    /// File names of the held-out shards. If empty, some episodes of the other shards are held out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<String>,
    /// The number of steps that form one example, if known; for a time series, the steps up to a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Standardization of each feature, if the features are standardized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<Standardization>,
}

/// Standardization of a feature as `(x - mean) / std`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standardization {
    /// Mean over the training steps.
    pub mean: f64,
    /// Standard deviation over the training steps, or 1 if that is 0.
    pub std: f64,
}

impl Manifest {
    /// Reads the content of a manifest.
    ///
    /// # Errors
    /// A sentence if it is malformed, or of another format.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        /// The fields that are checked first, since another format may have other ones.
        #[derive(Deserialize)]
        struct Essentials {
            format: u32,
            env: Option<serde_json::Value>,
        }
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let Essentials { format, env } = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if format != FORMAT {
            return Err(format!("its format is {format}, but this build reads {FORMAT}"));
        }
        if env.is_none() {
            let reason = "it describes no dataset (a checkpoint?), since it has no `env`, the name of a game";
            return Err(reason.to_string());
        }
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// The manifest as JSON without its shards. It is stored with policies that are fitted to the dataset, and tells how
    /// to use them when the dataset is gone.
    pub fn describe(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self).expect("a manifest is plain data");
        let fields = json.as_object_mut().expect("it has fields");
        fields.retain(|name, _| !["format", "shards", "held_out"].contains(&name.as_str()));
        json
    }

    /// Creates a manifest without shards for demonstrations of a game.
    pub fn new(env: &str) -> Self {
        Self { format: FORMAT, env: env.to_string(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_format_is_named_whatever_its_fields() {
        let parse = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut json = serde_json::to_value(Manifest::new("catch")).unwrap();
            change(&mut json);
            Manifest::parse(&json.to_string())
        };
        assert_eq!(parse(&|_| {}), Ok(Manifest::new("catch")));
        let marked = format!("\u{feff}{}", serde_json::to_string(&Manifest::new("catch")).unwrap());
        assert_eq!(Manifest::parse(&marked), Ok(Manifest::new("catch")));
        let checkpoint = Manifest::parse(r#"{"format": 1, "iteration": 3, "files": []}"#);
        assert!(checkpoint.unwrap_err().starts_with("it describes no dataset (a checkpoint?)"));
        let newer = parse(&|json| (json["format"], json["new"]) = (2.into(), 1.into()));
        assert_eq!(newer.unwrap_err(), "its format is 2, but this build reads 1");
        let unknown = parse(&|json| json["new"] = 1.into());
        assert!(unknown.unwrap_err().starts_with("unknown field `new`"));
    }
}
