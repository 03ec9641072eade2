//! MPI in a build without it: every process is alone.

use super::Team;
use std::env;
use std::time::Duration;

/// Environment variables in which MPI launchers give the number of processes.
const SIZE_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"];

/// The number of processes that an MPI launcher started, if several.
fn launched_size() -> Option<usize> {
    let size = |name: &&str| env::var(name).ok()?.parse().ok();
    SIZE_VARIABLES.iter().filter_map(size).find(|size| *size > 1)
}

/// Whether an MPI launcher started this process as one of several.
pub fn is_launched() -> bool {
    launched_size().is_some()
}

/// Refuses to be one of several processes.
///
/// # Errors
/// A message if this process is one of several.
pub fn start() -> Result<(), String> {
    let Some(size) = launched_size() else { return Ok(()) };
    Err(format!(
        "MPI has started {size} processes, but this program was built without the feature `mpi`, and each \
         would do all of the work: build it with `--features mpi`, or start one"
    ))
}

/// The team of this process alone.
pub fn team(_size: usize, _timeout: Duration) -> Team {
    Team::alone()
}

/// This process's rank and the number of processes: none.
pub fn rank_and_size() -> Option<(usize, usize)> {
    None
}

/// This process's rank among those on this machine, and their number: it is alone.
pub fn local_rank_and_size() -> (usize, usize) {
    (0, 1)
}

/// The default number of CPU threads of this process: all of them.
pub fn default_threads() -> Option<usize> {
    None
}

/// Does nothing, since MPI was not started.
pub fn finish() {}

/// Does nothing, since MPI was not started.
pub fn abort(_code: i32) {}
