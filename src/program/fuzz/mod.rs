//! Readers of foreign bytes, each on mutations of small valid files: whatever these hold, a reader returns.
//!
//! The suite tries some cases of each. `GROVE_FUZZ_SECONDS=600 cargo test --release --lib fuzz:: -- --test-threads 1` goes
//! on for so long with each, and also refuses cases that take more than five seconds; `ulimit -v` bounds their memory.

mod mutation;
mod targets;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use std::time::{Duration, Instant};

/// Cases of a target in the suite.
const CASES: u64 = 200;
/// Random bytes of a case.
const BYTES: u64 = 512;
/// Time in which a reader must return, when a target goes on for long.
const SLOW: Duration = Duration::from_secs(5);

/// Hands mutations of the `seeds` to a reader.
fn fuzz(seeds: &[Vec<u8>], read: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| read(seed));
    let case = |u: &mut Unstructured| {
        read(&mutation::mutated(seeds, u)?);
        Ok(())
    };
    match std::env::var("GROVE_FUZZ_SECONDS") {
        Ok(seconds) => {
            let seconds = seconds.parse().expect("GROVE_FUZZ_SECONDS is a number");
            let case = |u: &mut Unstructured| {
                let started = Instant::now();
                let done = case(u);
                assert!(started.elapsed() < SLOW, "it took {:?}", started.elapsed());
                done
            };
            arbtest(case).size_max(1024).budget(Duration::from_secs(seconds)).run();
        }
        // The upper half of a seed is what it is of, the lower one the number of its bytes.
        Err(_) => (1..=CASES).for_each(|seed| arbtest(case).seed(seed << 32 | BYTES).run()),
    }
}
