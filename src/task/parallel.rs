//! Parallel verification: a map over completions, with results in order, and a semaphore for threads of several runs.

use super::TaskError;
use rayon::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of cores of this machine.
pub fn num_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Applies `work` to each item on at most `threads` threads and returns the results in order; one item is left to this
/// thread. After an error no further items are started.
///
/// # Errors
/// The first error of `work`, or if the threads cannot be started.
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

/// A semaphore for the threads of all runs of the process, which grants permits in the order of requests, so that no
/// thread waits much longer than another.
pub struct FairSemaphore {
    limit: usize,
    counts: Mutex<PermitCounts>,
    released: Condvar,
}

#[derive(Default)]
struct PermitCounts {
    num_requested: usize,
    num_released: usize,
}

impl FairSemaphore {
    /// Creates a semaphore of which at most `limit` permits, 1 or more, are held at a time.
    pub fn new(limit: usize) -> Self {
        Self { limit, counts: Mutex::default(), released: Condvar::new() }
    }

    /// Waits for a permit, which is released when dropped. Its thread must not wait for another one.
    pub fn acquire(&self) -> Permit<'_> {
        let mut counts = lock(&self.counts);
        let index = counts.num_requested;
        counts.num_requested += 1;
        let is_early = |counts: &mut PermitCounts| index >= counts.num_released + self.limit;
        drop(self.released.wait_while(counts, is_early).unwrap_or_else(PoisonError::into_inner));
        Permit(self)
    }
}

/// A permit of a [`FairSemaphore`].
pub struct Permit<'a>(&'a FairSemaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        lock(&self.0.counts).num_released += 1;
        // The next in the queue is among those that wait.
        self.0.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn at_most_as_many_permits_as_the_limit_are_held_at_a_time() {
        for limit in [1, 3] {
            let semaphore = FairSemaphore::new(limit);
            let held = AtomicUsize::new(0);
            let work = || {
                for _ in 0..100 {
                    let _permit = semaphore.acquire();
                    assert!(held.fetch_add(1, Ordering::SeqCst) < limit);
                    thread::yield_now();
                    held.fetch_sub(1, Ordering::SeqCst);
                }
            };
            thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
        }
    }

    #[test]
    fn a_panic_releases_a_permit() {
        let semaphore = FairSemaphore::new(1);
        let fail = || {
            let _permit = semaphore.acquire();
            panic!("a bug of the verifier");
        };
        assert!(catch_unwind(AssertUnwindSafe(fail)).is_err());
        drop(semaphore.acquire());
    }
}
