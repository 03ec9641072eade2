//! Names of the files and folders of a run.

/// Default parent of run directories.
pub(super) const RUNS: &str = "runs";
/// Settings of a run.
pub const CONFIG: &str = "config.toml";
/// Device and engine of a run.
pub const METADATA: &str = "run.json";
/// Metrics, one record per iteration.
pub const METRICS: &str = "metrics.jsonl";
/// All completions that a run has learnt from.
pub const COMPLETIONS: &str = "completions.jsonl";
/// Observation and action spaces of an environment in Python.
pub(super) const SPACES: &str = "spaces.json";
/// Description of the dataset that a run learns from.
pub(super) const DATASET: &str = "dataset.json";
/// Empty file, locked by the process that trains the run.
pub(super) const LOCK: &str = "run.lock";
/// Folder of a run's checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// Checkpoint of a run's best policy.
pub(super) const BEST: &str = "best";
/// Folder of the exported language model, for other programs. A run resumes from its checkpoint alone.
pub(super) const MODEL: &str = "model";
/// Description of the exported model, under the name that model hubs display. Written after the final evaluation.
pub(super) const MODEL_CARD: &str = "model/README.md";
