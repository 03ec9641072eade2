//! Parallel map over completions, with results in order.

use super::TaskError;
use rayon::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of cores of this machine.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Applies `work` to each item on at most `threads` threads and returns the results in order; one item is left to this
/// thread. After an error no further items are started.
pub fn map_in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R, TaskError> + Sync,
) -> Result<Vec<R>, TaskError> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    // Dedicated threads, since work waits for other processes.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| TaskError::Verifier(format!("cannot verify: {error}")))?;
    pool.install(|| items.par_iter().with_max_len(1).map(&work).collect())
}

/// Locks a mutex, ignoring poisoning: its data stay consistent even after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
