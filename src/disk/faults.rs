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
struct FaultyDisk {
    fault: Fault,
    /// Number of changes so far.
    num_changes: usize,
}

thread_local! {
    static DISK: Cell<Option<FaultyDisk>> = const { Cell::new(None) };
}

/// Calls `work` on a disk with a fault. Returns the result and the number of changes to the disk.
pub fn with_fault<T>(fault: Fault, work: impl FnOnce() -> T) -> (T, usize) {
    DISK.set(Some(FaultyDisk { fault, num_changes: 0 }));
    let result = work();
    (result, DISK.take().map_or(0, |disk| disk.num_changes))
}

/// Whether this thread uses such a disk.
pub(super) fn are_injected() -> bool {
    DISK.get().is_some()
}

/// Whether the next change is the first that fails.
pub(super) fn is_first_failure_due() -> bool {
    DISK.get().is_some_and(|FaultyDisk { fault, num_changes }| match fault {
        Fault::Nothing => false,
        Fault::Once(at) | Fault::Stop(at) => num_changes == at,
    })
}

pub(super) fn pass_fault_point() -> io::Result<()> {
    let Some(FaultyDisk { fault, num_changes }) = DISK.get() else { return Ok(()) };
    let fails = is_first_failure_due() || matches!(fault, Fault::Stop(at) if num_changes > at);
    DISK.set(Some(FaultyDisk { fault, num_changes: num_changes + 1 }));
    if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}
