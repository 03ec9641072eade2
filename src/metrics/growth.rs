//! Memory that grows from epoch to epoch: what is learnt from stays the same, and so should what it takes.

/// Epochs in a row that are growth and no chance.
const EPOCHS: usize = 5;
/// What they must come to together, as a share of what was in use before, and in bytes.
const SHARE: f64 = 0.01;
const BYTES: u64 = 1 << 20;

/// What was in use at the end of each epoch.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    in_use: Vec<u64>,
    told: bool,
}

impl Growth {
    /// After an epoch: what to warn of, once, where memory has grown in each of the last epochs.
    pub fn epoch(&mut self, in_use: u64) -> Option<String> {
        self.in_use.push(in_use);
        let last = self.in_use.last_chunk::<{ EPOCHS + 1 }>()?;
        let (first, now) = (last[0], last[EPOCHS]);
        let grows = last.windows(2).all(|pair| pair[0] < pair[1]);
        let much = now.saturating_sub(first) >= BYTES.max((first as f64 * SHARE) as u64);
        if self.told || !grows || !much {
            return None;
        }
        self.told = true;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Some(format!(
            "the memory in use has grown in each of the last {EPOCHS} epochs, from {:.1} to {:.1} MiB",
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
    fn growth_in_every_epoch_is_told_once() {
        let mut growth = Growth::default();
        let told: Vec<_> = (0..10).filter_map(|i| growth.epoch((100 + i) * MIB)).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].ends_with("from 100.0 to 105.0 MiB"), "{}", told[0]);
    }

    #[test]
    fn what_settles_or_hardly_changes_is_not_told() {
        let mut settles = Growth::default();
        assert!((0..10).all(|i| settles.epoch((100 + i % 5) * MIB).is_none()));
        let mut still = Growth::default();
        assert!((0..10).all(|i| still.epoch(1000 * MIB + i * 1000).is_none()));
    }
}
