//! Many completions at once: on threads, with the results in their order.

use super::TaskError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The cores of this machine.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What `work` gives for each item, in their order, on at most so many threads. After an error nothing new is
/// begun.
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

/// The lock of a mutex, whose data are whole even after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
