//! When a run is evaluated, saved and over.

use crate::settings::{CheckpointConfig, TrainConfig};
use crate::trainer::text::LanguageConfig;

/// The calendar of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Iterations of the whole run.
    pub iterations: u32,
    /// Iterations between two evaluations.
    pub eval_every: u32,
    /// Iterations between two checkpoints.
    pub save_every: u32,
    /// Checkpoints to keep.
    pub keep: usize,
    /// Evaluations without a better one after which the run ends; 0 for never.
    pub patience: u32,
}

/// Work that is due after an iteration, besides its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// An evaluation of the policy.
    pub evaluation: bool,
    /// A checkpoint.
    pub save: bool,
}

/// The reason why a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All iterations are done.
    Iterations,
    /// None of the last [`Schedule::patience`] evaluations found anything better.
    Patience,
}

impl Schedule {
    fn new(iterations: u32, every: &CheckpointConfig, patience: u32) -> Self {
        let CheckpointConfig { eval_every, save_every, keep, .. } = *every;
        Self { iterations, eval_every, save_every, keep, patience }
    }

    /// The work due after `iteration`, counted from 1, if the user asks to `stop` there or not. The last iteration
    /// of a run is always evaluated: nothing will continue after it.
    pub fn due(&self, iteration: u32, stop: bool) -> Due {
        let last = iteration >= self.iterations;
        Due {
            evaluation: last || iteration.is_multiple_of(self.eval_every),
            save: last || stop || iteration.is_multiple_of(self.save_every),
        }
    }

    /// Whether and why a run is over after `iteration`, if its best evaluation so far is of iteration `best`.
    pub fn end(&self, iteration: u32, best: Option<u32>) -> Option<End> {
        if iteration >= self.iterations {
            return Some(End::Iterations);
        }
        let wait = u64::from(self.patience) * u64::from(self.eval_every);
        let since = u64::from(iteration.saturating_sub(best.unwrap_or(0)));
        (wait > 0 && since >= wait).then_some(End::Patience)
    }
}

/// The schedule of a game's run; patience is for runs that learn from a dataset.
impl From<&TrainConfig> for Schedule {
    fn from(config: &TrainConfig) -> Self {
        let patience = if config.data.is_on() { config.data.patience } else { 0 };
        Self::new(config.iterations, &config.checkpoint, patience)
    }
}

/// The schedule of a language model's run; patience is for runs of SFT alone.
impl From<&LanguageConfig> for Schedule {
    fn from(config: &LanguageConfig) -> Self {
        let patience = if config.imitates() { config.fit.patience } else { 0 };
        Self::new(config.iterations, &config.checkpoint, patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule =
        Schedule { iterations: 21, eval_every: 10, save_every: 8, keep: 2, patience: 0 };

    #[test]
    fn the_last_iteration_is_evaluated_and_saved_interrupted_or_not() {
        for stop in [false, true] {
            assert_eq!(SCHEDULE.due(21, stop), Due { evaluation: true, save: true });
        }
        // Before it, an interruption leaves the evaluation to the run that continues.
        let longer = Schedule { iterations: 22, ..SCHEDULE };
        assert_eq!(longer.due(21, true), Due { evaluation: false, save: true });
        assert_eq!(longer.due(21, false), Due { evaluation: false, save: false });
        assert_eq!(longer.due(20, false), Due { evaluation: true, save: false });
        assert_eq!(longer.due(16, false), Due { evaluation: false, save: true });
    }

    #[test]
    fn a_run_ends_with_its_iterations_or_its_patience() {
        let patient = Schedule { patience: 2, iterations: 100, ..SCHEDULE };
        let ends = |iteration, best| patient.end(iteration, best);
        assert_eq!([ends(19, None), ends(20, None)], [None, Some(End::Patience)]);
        assert_eq!([ends(49, Some(30)), ends(50, Some(30))], [None, Some(End::Patience)]);
        assert_eq!([ends(99, Some(99)), ends(100, Some(99))], [None, Some(End::Iterations)]);
        assert_eq!(SCHEDULE.end(20, None), None, "without patience it never ends early");
    }
}
