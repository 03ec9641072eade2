//! Schedule of evaluations, checkpoints and the end of a run.

use crate::settings::{CheckpointConfig, StopConfig, TrainConfig};
use crate::trainer::BestEvaluation;
use crate::trainer::text::LanguageConfig;

/// Schedule of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Number of iterations of the whole run.
    pub iterations: u32,
    /// Number of iterations between evaluations.
    pub eval_every: u32,
    /// Number of iterations between checkpoints.
    pub save_every: u32,
    /// Number of checkpoints to keep.
    pub keep: usize,
    /// Number of evaluations without improvement after which the run ends; 0 for no limit.
    pub patience: u32,
    /// Score of an evaluation, or seconds of training, that end the run.
    pub stop: StopConfig,
}

/// Work due after an iteration, in addition to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueWork {
    /// Evaluate the policy.
    pub evaluate: bool,
    /// Save a checkpoint.
    pub save: bool,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// All iterations are done.
    Iterations,
    /// None of the last [`Schedule::patience`] evaluations was an improvement.
    Patience,
    /// An evaluation reached [`StopConfig::score`].
    Score,
    /// The run trained for [`StopConfig::seconds`]; it can be resumed.
    Seconds,
}

impl Schedule {
    fn new(iterations: u32, every: &CheckpointConfig, patience: u32, stop: StopConfig) -> Self {
        let CheckpointConfig { eval_every, save_every, keep, .. } = *every;
        Self { iterations, eval_every, save_every, keep, patience, stop }
    }

    /// The work due after `iteration`, counted from 1; `is_stopped` tells whether the user stops the run there. The
    /// last iteration of a run is always evaluated, since nothing follows it.
    pub fn due_work(&self, iteration: u32, is_stopped: bool) -> DueWork {
        let is_last = iteration >= self.iterations;
        DueWork {
            evaluate: is_last || iteration.is_multiple_of(self.eval_every),
            save: is_last || is_stopped || iteration.is_multiple_of(self.save_every),
        }
    }

    /// The reason why a run is over after `iteration`; `None` if it is not. `best` is its best evaluation.
    pub fn end_reason(&self, iteration: u32, best: Option<BestEvaluation>) -> Option<EndReason> {
        if best.is_some_and(|best| best.value >= self.stop.score) {
            return Some(EndReason::Score);
        }
        if iteration >= self.iterations {
            return Some(EndReason::Iterations);
        }
        // The best evaluation may lie between scheduled ones, since `stop.seconds` and the end of a run also evaluate.
        // Whole intervals are counted, so that a run ends where it is evaluated and saved.
        let evaluations = |iteration: u32| iteration / self.eval_every.max(1);
        let best_iteration = best.map_or(0, |best| best.iterations_done);
        let since_best = evaluations(iteration).saturating_sub(evaluations(best_iteration));
        (self.patience > 0 && since_best >= self.patience).then_some(EndReason::Patience)
    }
}

/// The schedule of a run of a game or dataset.
impl From<&TrainConfig> for Schedule {
    fn from(config: &TrainConfig) -> Self {
        Self::new(config.iterations, &config.checkpoint, config.patience(), config.stop)
    }
}

/// The schedule of a language model's run.
impl From<&LanguageConfig> for Schedule {
    fn from(config: &LanguageConfig) -> Self {
        Self::new(config.iterations, &config.checkpoint, config.patience(), config.stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        iterations: 21,
        eval_every: 10,
        save_every: 8,
        keep: 2,
        patience: 0,
        stop: StopConfig { score: f64::INFINITY, seconds: 0.0 },
    };

    #[test]
    fn the_last_iteration_is_evaluated_and_saved_interrupted_or_not() {
        for stop in [false, true] {
            assert_eq!(SCHEDULE.due_work(21, stop), DueWork { evaluate: true, save: true });
        }
        // Before it, an interruption leaves the evaluation to the run that continues.
        let longer = Schedule { iterations: 22, ..SCHEDULE };
        assert_eq!(longer.due_work(21, true), DueWork { evaluate: false, save: true });
        assert_eq!(longer.due_work(21, false), DueWork { evaluate: false, save: false });
        assert_eq!(longer.due_work(20, false), DueWork { evaluate: true, save: false });
        assert_eq!(longer.due_work(16, false), DueWork { evaluate: false, save: true });
    }

    #[test]
    fn a_run_ends_with_its_iterations_or_its_patience() {
        let patient = Schedule { patience: 2, iterations: 100, ..SCHEDULE };
        let ends = |iteration, best: Option<u32>| {
            patient.end_reason(
                iteration,
                best.map(|iterations_done| BestEvaluation { value: 0.5, iterations_done }),
            )
        };
        assert_eq!([ends(19, None), ends(20, None)], [None, Some(EndReason::Patience)]);
        assert_eq!([ends(49, Some(30)), ends(50, Some(30))], [None, Some(EndReason::Patience)]);
        assert_eq!([ends(99, Some(99)), ends(100, Some(99))], [None, Some(EndReason::Iterations)]);
        // The best evaluation was not due: the run ends with the next one that is due, not with the iteration itself.
        assert_eq!([ends(29, Some(15)), ends(30, Some(15))], [None, Some(EndReason::Patience)]);
        assert_eq!(SCHEDULE.end_reason(20, None), None, "without patience it never ends early");
    }

    #[test]
    fn a_run_ends_on_reaching_its_target_score() {
        let stop = StopConfig { score: 7.5, ..SCHEDULE.stop };
        let schedule = Schedule { stop, ..SCHEDULE };
        let ends = |score| {
            schedule.end_reason(10, Some(BestEvaluation { value: score, iterations_done: 10 }))
        };
        assert_eq!([ends(7.4), ends(7.5)], [None, Some(EndReason::Score)]);
        assert_eq!(schedule.end_reason(10, None), None);
        assert_eq!(StopConfig::default(), SCHEDULE.stop);
    }
}
