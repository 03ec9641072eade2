//! Fuzz tests of the readers of foreign files: on any mutation of a small valid file, a reader must return.
//!
//! The suite tries some cases of each. `GROVE_FUZZ_SECONDS=600 cargo test --release --lib fuzz:: -- --test-threads 1`
//! tries each for this many seconds of CPU time, and also fails on a case that takes more than five of them;
//! `ulimit -v` bounds their memory. A failure names its seed; `GROVE_FUZZ_SEED=0x1f00000200` repeats it.

mod mutation;
mod targets;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Cases of each target in the suite.
const NUM_CASES: u64 = 200;
/// Random bytes of a case.
const CASE_BYTES: u64 = 512;
/// Maximum CPU time of a case, where `GROVE_FUZZ_SECONDS` is set.
const MAX_CASE_TIME: Duration = Duration::from_secs(5);

/// Feeds the `seeds`, then mutations of them, to a reader.
fn fuzz(seeds: &[Vec<u8>], read: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| read(seed));
    // arbtest's seeds: the upper half is random, the lower one the number of random bytes.
    let run = |upper_half: u64| {
        let case = |u: &mut Unstructured| {
            read(&mutation::draw_mutation(seeds, u)?);
            Ok(())
        };
        arbtest(case).seed(upper_half << 32 | CASE_BYTES).run();
    };
    if let Ok(seed) = std::env::var("GROVE_FUZZ_SEED") {
        let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16);
        return run(seed.expect("GROVE_FUZZ_SEED is a number") >> 32);
    }
    let Ok(seconds) = std::env::var("GROVE_FUZZ_SECONDS") else {
        return (1..=NUM_CASES).for_each(run);
    };
    let seconds = seconds.parse().expect("GROVE_FUZZ_SECONDS is a number");
    let mut upper_half = RandomState::new().hash_one(seconds);
    let started = cpu_time();
    while cpu_time() - started < Duration::from_secs(seconds) {
        let before = cpu_time();
        run(upper_half);
        let taken = cpu_time() - before;
        assert!(taken < MAX_CASE_TIME, "case {upper_half} took {taken:?}");
        upper_half = upper_half.wrapping_add(1);
    }
}

/// The CPU time of this process, which does not depend on what else the machine does.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
