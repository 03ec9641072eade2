//! Settings of trackers, which copy a run's records into the formats of other tools.

use crate::schema::settings;

settings! {
    /// Copies of the records for other tools; the training does not depend on them.
    pub struct TrackingConfig: Eq {
        /// Write TensorBoard's event files into the folder `tensorboard` of the run.
        tensorboard: bool = false;
        /// Write the records as comma-separated values too, into `metrics.csv` of the run.
        csv: bool = false;
    }
}
