//! Settings of learning from a dataset.

use crate::schema::{names, settings};

settings! {
    /// Learning from a dataset instead of from games (`grove fit`).
    pub struct DataConfig {
        /// Folder of the dataset (`grove fit`); empty for games.
        path: String;
        /// SHA-256 of the dataset, so that a resumed run recognizes it after it was moved; written when the run
        /// begins.
        digest: String;
        /// Steps of a window, the piece of an episode that is one sample; memory is reset at its start.
        window: usize = 1, in integer(1..=65536);
        /// Steps before a window that a model with memory sees without learning their actions. The entropy bonus, the
        /// KL divergence and the reported means include them.
        history: usize = 0, in integer(0..=65536);
        /// Windows per optimizer step.
        batch_size: usize = 256, in integer(1..=1 << 24);
        /// MiB up to which a dataset is kept in memory; larger ones are streamed from disk. 0 for half of the free
        /// memory.
        ///
        /// The result is the same.
        resident_mb: u64 = 0, in integer(0..=1 << 40);
        /// Share of the episodes held out for evaluation.
        validation: f64 = 0.1, in above(0.0).at_most(0.5);
        /// Passes over the data. They set `iterations`, unless `--iterations` or `--set` does, or a settings file
        /// without epochs.
        epochs: u32 = 30, in integer(1..=u32::MAX as u64);
        /// Weight of actions: `none` weighs every step alike, `balanced` every action.
        class_weights: ClassWeights = ClassWeights::None;
        /// Evaluations without improvement before the run stops; 0 for never.
        patience: u32 = 0, in integer(0..=u32::MAX as u64);
    }
}

impl DataConfig {
    /// Whether the run learns from data.
    pub fn is_on(&self) -> bool {
        !self.path.is_empty()
    }
}

names! {
    /// Weights of actions in a dataset, besides those that it holds.
    pub enum ClassWeights {
        /// The same for every step.
        None = "none",
        /// Inverse to the action's frequency, so that all actions have the same weight in total.
        Balanced = "balanced",
    }
}
