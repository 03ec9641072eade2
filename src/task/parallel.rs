//! Parallel map over completions, with results in order.

use super::TaskError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Number of cores of this machine.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Applies `work` to each item on at most `threads` threads and returns the results in order. After an
/// error no further items are started.
pub fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R, TaskError> + Sync,
) -> Result<Vec<R>, TaskError> {
    let next = AtomicUsize::new(0);
    let share = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return Ok(done) };
            match work(item) {
                Ok(result) => done.push((i, result)),
                Err(error) => {
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let shares: Vec<Result<Vec<_>, TaskError>> = thread::scope(|scope| {
        let threads = threads.clamp(1, items.len().max(1));
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    });
    let mut results = Vec::with_capacity(items.len());
    for share in shares {
        results.extend(share?);
    }
    results.sort_unstable_by_key(|(i, _)| *i);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Locks a mutex, ignoring poisoning: its data stay consistent even after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
