//! Readers of foreign bytes, each on mutations of small valid files: whatever these hold, a reader returns.
//!
//! The suite tries some cases of each. `GROVE_FUZZ_SECONDS=600 cargo test --release --lib fuzz:: -- --test-threads 1` goes
//! on for so many seconds of the processor's time with each, and also refuses cases that take more than five of them;
//! `ulimit -v` bounds their memory. A failure names its seed; `GROVE_FUZZ_SEED=0x1f00000200` repeats it.

mod mutation;
mod targets;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Cases of a target in the suite.
const CASES: u64 = 200;
/// Random bytes of a case.
const BYTES: u64 = 512;
/// Time in which a reader must return, when a target goes on for long.
const SLOW: Duration = Duration::from_secs(5);

/// Hands mutations of the `seeds` to a reader.
fn fuzz(seeds: &[Vec<u8>], read: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| read(seed));
    // The upper half of a seed is what it is of, the lower one the number of its bytes.
    let run = |number: u64| {
        let case = |u: &mut Unstructured| {
            read(&mutation::mutated(seeds, u)?);
            Ok(())
        };
        arbtest(case).seed(number << 32 | BYTES).run();
    };
    if let Ok(seed) = std::env::var("GROVE_FUZZ_SEED") {
        let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16);
        return run(seed.expect("GROVE_FUZZ_SEED is a number") >> 32);
    }
    let Ok(seconds) = std::env::var("GROVE_FUZZ_SECONDS") else {
        return (1..=CASES).for_each(run);
    };
    let seconds = seconds.parse().expect("GROVE_FUZZ_SECONDS is a number");
    let (mut number, started) = (RandomState::new().hash_one(seconds), processor_time());
    while processor_time() - started < Duration::from_secs(seconds) {
        let before = processor_time();
        run(number);
        let taken = processor_time() - before;
        assert!(taken < SLOW, "case {number} took {taken:?}");
        number = number.wrapping_add(1);
    }
}

/// The CPU time of this process, which does not depend on what else the machine does.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
