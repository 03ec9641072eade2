//! A disk for tests that fails at a chosen change of this thread.

use std::cell::Cell;
use std::io;

/// Selection of the changes that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No change fails.
    Nothing,
    /// One change, after this many others, as when the disk is full for a moment.
    Once(usize),
    /// All changes after this many, as when the process is killed.
    Stop(usize),
}

#[derive(Clone, Copy)]
struct State {
    fault: Fault,
    done: usize,
}

thread_local! {
    static STATE: Cell<Option<State>> = const { Cell::new(None) };
}

/// Calls `work` on a disk with a fault. Returns the result and the number of changes to the disk.
pub fn with<T>(fault: Fault, work: impl FnOnce() -> T) -> (T, usize) {
    STATE.set(Some(State { fault, done: 0 }));
    let result = work();
    (result, STATE.take().map_or(0, |state| state.done))
}

/// Whether this thread uses such a disk.
pub(super) fn are_injected() -> bool {
    STATE.get().is_some()
}

/// Whether the next change is the first that fails.
pub(super) fn is_next() -> bool {
    STATE.get().is_some_and(|State { fault, done }| match fault {
        Fault::Nothing => false,
        Fault::Once(at) | Fault::Stop(at) => done == at,
    })
}

pub(super) fn fault_point() -> io::Result<()> {
    let Some(State { fault, done }) = STATE.get() else { return Ok(()) };
    let fails = is_next() || matches!(fault, Fault::Stop(at) if done > at);
    STATE.set(Some(State { fault, done: done + 1 }));
    if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}
