//! Detection of memory leaks: an epoch processes the same data as the one before, so memory in use
//! should stay constant.

/// Consecutive growing epochs that count as a leak.
const LEAK_EPOCHS: usize = 5;
/// Minimum growth over these epochs, relative to the memory in use before them.
const MIN_RELATIVE_GROWTH: f64 = 0.01;
/// Minimum growth over these epochs, bytes.
const MIN_GROWTH_BYTES: u64 = 1 << 20;
/// Minimum growth in each of these epochs, relative to that in all of them. A run that warms up grows once by much, and
/// then by a few pages.
const MIN_SHARE: f64 = 0.5 / LEAK_EPOCHS as f64;

/// Detector of memory leaks, from the memory in use at the end of the last epochs.
#[derive(Clone, Debug, Default)]
pub struct MemoryLeakDetector {
    /// Bytes in use after the last epochs.
    bytes_in_use: Vec<u64>,
    has_warned: bool,
}

impl MemoryLeakDetector {
    /// Records the bytes in use after an epoch. Returns a warning, at most once, if memory has grown
    /// significantly in each of the last epochs.
    pub fn record_epoch(&mut self, bytes: u64) -> Option<String> {
        self.bytes_in_use.push(bytes);
        self.bytes_in_use.drain(..self.bytes_in_use.len().saturating_sub(LEAK_EPOCHS + 1));
        let last = self.bytes_in_use.last_chunk::<{ LEAK_EPOCHS + 1 }>()?;
        let (first, now) = (last[0], last[LEAK_EPOCHS]);
        let growth = now.saturating_sub(first);
        let min_growth = growth as f64 * MIN_SHARE;
        let is_growing = last.windows(2).all(|pair| pair[1] as f64 >= pair[0] as f64 + min_growth);
        let is_large = growth >= MIN_GROWTH_BYTES.max((first as f64 * MIN_RELATIVE_GROWTH) as u64);
        if self.has_warned || !is_growing || !is_large {
            return None;
        }
        self.has_warned = true;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Some(format!(
            "memory use has grown in each of the last {LEAK_EPOCHS} epochs, from {:.1} to {:.1} MiB",
            mib(first),
            mib(now)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn growth_in_every_epoch_is_warned_of_once() {
        let mut detector = MemoryLeakDetector::default();
        let warnings: Vec<_> =
            (0..10).filter_map(|i| detector.record_epoch((100 + i) * MIB)).collect();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].ends_with("from 100.0 to 105.0 MiB"), "{}", warnings[0]);
    }

    #[test]
    fn uneven_growth_in_every_epoch_is_warned_of() {
        let mut detector = MemoryLeakDetector::default();
        let mut in_use = 100 * MIB;
        let warning = (0..6).find_map(|i| {
            in_use += MIB / if i % 2 == 0 { 2 } else { 4 };
            detector.record_epoch(in_use)
        });
        assert!(warning.is_some());
    }

    #[test]
    fn one_jump_before_small_growth_is_not_warned_of() {
        // A language model's run: KiB after each iteration.
        let in_use = [92096, 95996, 96000, 96100, 96104, 96108, 96120, 96124, 96136];
        let mut detector = MemoryLeakDetector::default();
        assert!(in_use.iter().all(|kib| detector.record_epoch(kib << 10).is_none()));
        let mut late = MemoryLeakDetector::default();
        let jump = |i: u64| if i < 7 { 0 } else { 40 * MIB };
        assert!((0..20).all(|i| late.record_epoch(100 * MIB + i * 4096 + jump(i)).is_none()));
    }

    #[test]
    fn stable_or_nearly_stable_memory_is_not_warned_of() {
        let mut settles = MemoryLeakDetector::default();
        assert!((0..10).all(|i| settles.record_epoch((100 + i % 5) * MIB).is_none()));
        let mut still = MemoryLeakDetector::default();
        assert!((0..10).all(|i| still.record_epoch(1000 * MIB + i * 1000).is_none()));
    }
}
