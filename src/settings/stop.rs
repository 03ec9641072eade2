//! Settings that end a run before its iterations are done.

use crate::schema::settings;

settings! {
    /// Reasons to end a run early.
    pub struct StopConfig: Copy {
        /// Score of an evaluation that ends the run; `inf` for none.
        score: f64 = f64::INFINITY, in number_or_inf();
        /// Seconds of training after which the run is evaluated, saved and ended; 0 for no limit. A resumed run
        /// gets as many again.
        seconds: f64 = 0.0, in at_least(0.0);
    }
}
