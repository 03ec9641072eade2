//! Parallel regions: worker threads that spin between the operators of a pass instead of going to sleep.
//!
//! A pass of a large decoder is hundreds of short operators, each divided among all threads; waking a sleeping thread
//! takes longer than many of them. Within a region the threads of the pool poll for the next operator, so that it
//! begins on all of them within a microsecond. Whichever threads are free claim the parts of an operator: a thread that
//! is busy elsewhere is never waited for. Every millisecond a thread looks for other work of the pool, such as another
//! run's, which would otherwise stand still until the region closes.

use super::Parallelism;
use rayon::prelude::*;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;
use std::{hint, ptr, slice};
use web_time::Instant;

/// Bits of [`Region::next`] for the index of a part.
const PART_BITS: u32 = 24;
/// The index of the next part of a job whose parts cannot be claimed yet.
const CLOSED: u64 = (1 << PART_BITS) - 1;
/// Idle polls of a region before a thread yields to others.
const SPINS: u32 = 1 << 12;
/// Idle polls of a region before a thread parks.
const YIELDS: u32 = SPINS + (1 << 6);
/// The time for which a thread parks.
const PARK_TIME: Duration = Duration::from_micros(100);
/// The time after which a thread looks for other work of the pool.
const TURN_TIME: Duration = Duration::from_millis(1);

thread_local! {
    /// The region that this thread has opened.
    static CURRENT: Cell<*const Region> = const { Cell::new(ptr::null()) };
}

/// Executes `pass` while the threads of the pool poll for its parallel operators.
pub fn run_in_region<T>(parallelism: Parallelism, pass: impl FnOnce() -> T) -> T {
    let helpers = rayon::current_num_threads() - 1;
    let is_alone = parallelism == Parallelism::Sequential || helpers == 0;
    // A thread of a page must not wait awake: it would keep the page from starting others.
    if is_alone || cfg!(target_family = "wasm") || !CURRENT.get().is_null() {
        return pass();
    }
    let region = Arc::new(Region::new());
    for _ in 0..helpers {
        let region = region.clone();
        rayon::spawn(move || region.help());
    }
    CURRENT.set(&*region);
    let _open = OpenRegion(&region);
    pass()
}

impl Parallelism {
    /// Calls `work` with each index below `count`, side by side where this is parallel.
    pub fn each(self, count: usize, work: impl Fn(usize) + Sync) {
        let region = CURRENT.get();
        if self == Self::Sequential || count < 2 {
            (0..count).for_each(work);
        } else if region.is_null() {
            (0..count).into_par_iter().with_max_len(1).for_each(&work);
        } else {
            // SAFETY: a region exists as long as it is open.
            unsafe { &*region }.share(count, &work);
        }
    }

    /// Calls `work` with the index of each item and the item, as [`Parallelism::each`].
    pub fn each_mut<T: Send>(self, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
        self.each_chunk([(items, 1)], |i, [item]| work(i, &mut item[0]));
    }

    /// Cuts slices into equally many chunks and calls `work` with each index and the chunks there, as
    /// [`Parallelism::each`]. Each slice comes with the length of its chunks; the last one may be shorter.
    ///
    /// # Panics
    /// If the slices have different numbers of chunks.
    pub fn each_chunk<T: Send, const N: usize>(
        self,
        slices: [(&mut [T], usize); N],
        work: impl Fn(usize, [&mut [T]; N]) + Sync,
    ) {
        let chunked = slices.map(|(slice, chunk_len)| ChunkedSlice {
            first: slice.as_mut_ptr(),
            chunk_len,
            len: slice.len(),
        });
        let count = chunked.first().map_or(0, ChunkedSlice::num_chunks);
        assert!(chunked.iter().all(|slice| slice.num_chunks() == count), "as many chunks of each");
        // SAFETY: each index comes once, so that chunks are borrowed once.
        self.each(count, |i| work(i, chunked.each_ref().map(|slice| unsafe { slice.chunk(i) })));
    }
}

/// A slice whose chunks are borrowed one by one.
struct ChunkedSlice<T> {
    first: *mut T,
    chunk_len: usize,
    len: usize,
}

// SAFETY: each thread has its own chunk.
unsafe impl<T: Send> Sync for ChunkedSlice<T> {}

impl<T> ChunkedSlice<T> {
    fn num_chunks(&self) -> usize {
        self.len.div_ceil(self.chunk_len.max(1))
    }

    /// # Safety
    /// The slice outlives the chunk, no other reference to this chunk exists, and there are more than `index` chunks.
    unsafe fn chunk<'a>(&self, index: usize) -> &'a mut [T] {
        let start = index * self.chunk_len;
        // SAFETY: the caller guarantees it (`# Safety`).
        unsafe {
            slice::from_raw_parts_mut(self.first.add(start), self.chunk_len.min(self.len - start))
        }
    }
}

/// A region: one job at a time, whose parts its threads claim until none is left.
struct Region {
    owner: ThreadId,
    /// The job's number, then the index of its next part.
    next: AtomicU64,
    /// The number of the job's parts.
    num_parts: AtomicUsize,
    /// The job: valid from its publication until all of its parts are done.
    job: UnsafeCell<Option<Job>>,
    /// The number of parts that are done.
    num_done: AtomicUsize,
    is_closed: AtomicBool,
    /// The payload of a part's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A job whose borrows last as long as its parts are executed.
type Job = *const (dyn Fn(usize) + Sync + 'static);

// SAFETY: the job is read after one of its parts has been claimed, and written before the first or after the last.
unsafe impl Sync for Region {}
// SAFETY: as above; once the region is closed, no part can be claimed.
unsafe impl Send for Region {}

impl Region {
    fn new() -> Self {
        Self {
            owner: thread::current().id(),
            next: AtomicU64::new(CLOSED),
            num_parts: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            num_done: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Executes a job together with the threads that help; the owner alone calls it.
    fn share<'a>(&self, count: usize, job: &'a (dyn Fn(usize) + Sync + 'a)) {
        assert!((count as u64) < CLOSED, "parts of a job");
        let number = self.next.load(Ordering::Relaxed) >> PART_BITS;
        // A thread that sees the new count sees this as well, and claims no part of the last job.
        self.next.store((number + 1) << PART_BITS | CLOSED, Ordering::Relaxed);
        self.num_done.store(0, Ordering::Relaxed);
        self.num_parts.store(count, Ordering::Release);
        // SAFETY: no part can be claimed, so no other thread reads the job. This function returns when all parts are
        // done: nothing borrowed is used after `'a`.
        unsafe {
            let job: *const (dyn Fn(usize) + Sync + 'a) = job;
            #[allow(clippy::missing_transmute_annotations)]
            (*self.job.get()).replace(std::mem::transmute(job));
        }
        self.next.store((number + 2) << PART_BITS, Ordering::Release);
        // Parts of a part are executed without the region.
        let region = CURRENT.replace(ptr::null());
        while let Some(part) = self.claim() {
            self.execute(part);
        }
        CURRENT.set(region);
        let mut polls = 0;
        while self.num_done.load(Ordering::Acquire) < count {
            wait(&mut polls, thread::yield_now);
        }
        if let Some(reason) = self.panic.lock().expect("held for a moment").take() {
            panic::resume_unwind(reason);
        }
    }

    /// Claims a part of the current job; `None` if none is left.
    fn claim(&self) -> Option<usize> {
        // A thread that sees a part of a job sees that job's count: `Acquire`, of failures too.
        let mut next = self.next.load(Ordering::Acquire);
        loop {
            let part = next & CLOSED;
            if part >= self.num_parts.load(Ordering::Acquire) as u64 {
                return None;
            }
            // Fails if there is another job by now.
            let order = Ordering::Acquire;
            match self.next.compare_exchange_weak(next, next + 1, order, order) {
                Ok(_) => return Some(part as usize),
                Err(other) => next = other,
            }
        }
    }

    /// Executes a part that has been claimed.
    fn execute(&self, part: usize) {
        // SAFETY: the job stays until this part is done.
        let job = unsafe { &*(*self.job.get()).expect("published with its parts") };
        if let Err(reason) = panic::catch_unwind(AssertUnwindSafe(|| job(part))) {
            *self.panic.lock().expect("held for a moment") = Some(reason);
        }
        self.num_done.fetch_add(1, Ordering::Release);
    }

    /// Executes parts of all jobs for a turn; the next turn is a task of its own, until the region closes.
    fn help(self: Arc<Self>) {
        if thread::current().id() == self.owner {
            return;
        }
        let (started, mut polls) = (Instant::now(), 0);
        while started.elapsed() < TURN_TIME {
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            match self.claim() {
                Some(part) => {
                    self.execute(part);
                    polls = 0;
                }
                None => wait(&mut polls, || thread::park_timeout(PARK_TIME)),
            }
        }
        // Before the next turn is queued, which this thread would find first.
        rayon::yield_now();
        rayon::spawn(move || self.help());
    }
}

/// Waits a moment, after many polls by `pause`.
fn wait(polls: &mut u32, pause: impl FnOnce()) {
    *polls = polls.saturating_add(1);
    match *polls {
        0..SPINS => hint::spin_loop(),
        SPINS..YIELDS => thread::yield_now(),
        _ => pause(),
    }
}

/// A region that is open until this is dropped.
struct OpenRegion<'a>(&'a Region);

impl Drop for OpenRegion<'_> {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
        self.0.is_closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::ThreadPoolBuilder;
    use std::sync::mpsc::channel;

    /// Sums of many short jobs, each of which takes up the result of the one before.
    fn sums() -> Vec<usize> {
        let mut all = vec![0usize; 37];
        for round in 0..2000 {
            let before = all.clone();
            Parallelism::Parallel.each_chunk([(&mut all[..], 1 + round % 9)], |i, [chunk]| {
                for (at, x) in chunk.iter_mut().enumerate() {
                    *x += before[(i * (1 + round % 9) + at + 1) % 37] % 1000 + round;
                }
            });
        }
        all
    }

    #[test]
    fn jobs_of_a_region_are_executed_once_and_in_order() {
        let want = ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(sums);
        for threads in [1, 2, 5] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(|| run_in_region(Parallelism::Parallel, sums)), want);
            assert_eq!(pool.install(sums), want);
        }
        let outside = run_in_region(Parallelism::Parallel, sums);
        assert_eq!(outside, want, "from a thread outside of the pool");
    }

    #[test]
    fn regions_share_a_pool() {
        let want = sums();
        thread::scope(|scope| {
            let one = || {
                run_in_region(Parallelism::Parallel, || run_in_region(Parallelism::Parallel, sums))
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), want));
        });
    }

    #[test]
    fn other_work_of_the_pool_is_executed_while_a_region_is_open() {
        let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        pool.install(|| {
            run_in_region(Parallelism::Parallel, || {
                let (send, received) = channel();
                let (owner, is_helped) = (thread::current().id(), AtomicBool::new(false));
                while !is_helped.load(Ordering::Relaxed) {
                    Parallelism::Parallel.each(2, |_| {
                        is_helped.fetch_or(thread::current().id() != owner, Ordering::Relaxed);
                        thread::yield_now();
                    });
                }
                rayon::spawn(move || send.send(()).unwrap());
                received.recv().unwrap();
            });
        });
    }

    #[test]
    fn parts_may_have_parts() {
        let pool = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let total = AtomicUsize::new(0);
        let add = |x: usize| _ = total.fetch_add(x, Ordering::Relaxed);
        pool.install(|| {
            run_in_region(Parallelism::Parallel, || {
                Parallelism::Parallel.each(10, |i| Parallelism::Parallel.each(7, |j| add(i * j)));
            });
        });
        assert_eq!(total.into_inner(), 45 * 21);
    }

    #[test]
    fn a_panic_of_a_part_reaches_the_owner() {
        let pool = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let result = pool.install(|| {
            panic::catch_unwind(|| {
                run_in_region(Parallelism::Parallel, || {
                    Parallelism::Parallel.each(8, |i| assert!(i != 5, "part {i}"));
                });
            })
        });
        let reason = result.expect_err("part 5 panics");
        assert_eq!(reason.downcast_ref::<String>().map(String::as_str), Some("part 5"));
        assert_eq!(pool.install(|| run_in_region(Parallelism::Parallel, sums)), sums());
    }
}
