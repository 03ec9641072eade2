//! Parallel verification: a map over completions, with results in order, and turns of the threads of several runs.

use super::TaskError;
use rayon::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of cores of this machine.
pub fn cores() -> usize {
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

/// Turns at a limited resource, for which threads of all runs of the process queue: none of them waits much longer than
/// another.
pub struct Turns {
    limit: usize,
    counts: Mutex<TurnCounts>,
    ended: Condvar,
}

#[derive(Default)]
struct TurnCounts {
    requested: usize,
    ended: usize,
}

impl Turns {
    /// Creates turns of which at most `limit`, 1 or more, are taken at a time.
    pub fn new(limit: usize) -> Self {
        Self { limit, counts: Mutex::default(), ended: Condvar::new() }
    }

    /// Waits for a turn, which ends when it is dropped. Its thread must not wait for another one.
    pub fn take(&self) -> Turn<'_> {
        let mut counts = lock(&self.counts);
        let number = counts.requested;
        counts.requested += 1;
        let is_early = |counts: &mut TurnCounts| number >= counts.ended + self.limit;
        drop(self.ended.wait_while(counts, is_early).unwrap_or_else(PoisonError::into_inner));
        Turn(self)
    }
}

/// A turn of [`Turns`].
pub struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.counts).ended += 1;
        // The next in the queue is among those that wait.
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn at_most_as_many_turns_as_the_limit_are_taken_at_a_time() {
        for limit in [1, 3] {
            let (turns, taken) = (Turns::new(limit), AtomicUsize::new(0));
            let work = || {
                for _ in 0..100 {
                    let _turn = turns.take();
                    assert!(taken.fetch_add(1, Ordering::SeqCst) < limit);
                    thread::yield_now();
                    taken.fetch_sub(1, Ordering::SeqCst);
                }
            };
            thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
        }
    }

    #[test]
    fn a_panic_ends_a_turn() {
        let turns = Turns::new(1);
        let fail = || {
            let _turn = turns.take();
            panic!("a bug of the verifier");
        };
        assert!(catch_unwind(AssertUnwindSafe(fail)).is_err());
        drop(turns.take());
    }
}
