//! The time and the steps of a run.

use super::{FinalScores, Report, Run, RunFiles};
use crate::checkpoint::Checkpoint;
use crate::run::End;

/// The time and the steps that a run took, up to the iteration where it stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Seconds in this process.
    pub seconds: f64,
    /// Seconds up to the first update; `None` without one.
    pub seconds_to_first_update: Option<f64>,
    /// Steps of all episodes since the start of the run.
    pub env_steps: u64,
    /// Iterations since the start of the run.
    pub iteration: u32,
    /// The reason why it ended; `None` if it was interrupted.
    pub end: Option<End>,
}

impl Effort {
    /// The report of a run on this device, whose `best` checkpoint had this `result`.
    pub fn report(
        self,
        run: &dyn Run,
        files: &RunFiles,
        device: &str,
        best: Option<&Checkpoint>,
        result: FinalScores,
    ) -> Report {
        let (iteration, folder) = (self.iteration, files.folder());
        let place = if folder.has_model() { folder.model() } else { folder.best() };
        Report {
            subject: run.subject(),
            run: folder.path().display().to_string(),
            device: device.to_string(),
            seed: run.seed(),
            iterations: run.schedule().iterations,
            iteration,
            env_steps: self.env_steps,
            interrupted: self.end.is_none(),
            seconds: self.seconds,
            seconds_to_first_update: self.seconds_to_first_update,
            best_iteration: best.map_or(iteration.into(), |best| best.iteration),
            best: place.display().to_string(),
            result,
        }
    }
}
