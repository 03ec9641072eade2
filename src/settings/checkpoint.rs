//! Settings of when a run is saved, evaluated and ended, and of copies of its records.

use crate::schema::settings;

settings! {
    /// Iterations at which a run is saved and evaluated.
    pub struct CheckpointConfig: Eq {
        /// Iterations between checkpoints; the last one is always saved.
        save_every: u32 = 50, in integer(1..=u32::MAX as u64);
        /// Checkpoints kept, beside the best.
        keep: usize = 3, in integer(1..=1 << 30);
        /// Iterations between evaluations of the greedy policy, for language models on held-out prompts.
        eval_every: u32 = 25, in integer(1..=u32::MAX as u64);
        /// Episodes or prompts of an evaluation. With `grove fit` of a language model, 0 measures only the held-out
        /// NLL. The final score uses different prompts; if prompts are listed, evaluations use at most half of the
        /// held-out ones.
        eval_episodes: usize = 1000, in integer(0..=1 << 24);
    }
}

settings! {
    /// Reasons to end a run early.
    pub struct StopConfig: Copy {
        /// Score of an evaluation that ends the run; `inf` for none.
        score: f64 = f64::INFINITY, in number_or_inf();
        /// Time limit in seconds, which includes evaluations but not pauses; the run is then evaluated, saved and
        /// ended. 0 for no limit. A resumed run gets the whole limit again.
        seconds: f64 = 0.0, in at_least(0.0);
    }
}

settings! {
    /// Copies of the records for other tools; the training does not depend on them.
    pub struct TrackingConfig: Eq {
        /// Write TensorBoard's event files into the folder `tensorboard` of the run.
        tensorboard: bool = false;
        /// Write the records as comma-separated values too, into `metrics.csv` of the run.
        csv: bool = false;
    }
}
