//! The source of the steps that an engine learns from: games, or a dataset.

use super::prefetch::WindowPrefetcher;
use crate::data::{WindowSet, Windows};
use crate::device;
use crate::learner::Batches;
use crate::parallel::Shards;
use crate::settings::TrainConfig;

/// Bytes up to which a resident dataset is loaded before the run begins; larger ones are streamed until they have been
/// loaded in the background.
const AT_ONCE: u64 = 1 << 20;

/// The source of the steps that an engine learns from.
#[derive(Debug)]
pub(super) enum Source<R, D> {
    /// Games played by the policy.
    Games(R),
    /// A dataset in the memory of the device, from which an iteration copies nothing.
    Resident(D),
    /// A dataset read from its files batch by batch.
    Streamed(Box<WindowPrefetcher>),
}

impl<R, D> Source<R, D> {
    /// Opens the dataset of these shards: resident and converted by `keep` if it fits in memory, otherwise streamed. A
    /// resident dataset of more than `most` bytes, the size of a buffer, is loaded at once rather than streamed first:
    /// it is summed in another order, and results must not depend on when loading finishes.
    pub fn of_data(
        pieces: WindowSet,
        config: &TrainConfig,
        shards: &Shards,
        most: u64,
        keep: impl FnOnce(Windows) -> D,
    ) -> Self {
        let stays = is_resident(&pieces, config);
        let at_once =
            cfg!(target_family = "wasm") || !(AT_ONCE + 1..=most).contains(&pieces.bytes());
        if stays && at_once {
            return Self::kept(pieces.all(), keep);
        }
        let batches = Batches::of_shards(config, shards.clone());
        let stream = WindowPrefetcher::new(pieces, batches);
        Self::Streamed(Box::new(if stays { stream.reading_all() } else { stream }))
    }

    fn kept(windows: Windows, keep: impl FnOnce(Windows) -> D) -> Self {
        device::count_upload(windows.bytes());
        Self::Resident(keep(windows))
    }

    /// Makes a streamed dataset resident, converted by `keep`, once it has been loaded in the background.
    pub fn settle(&mut self, keep: impl FnOnce(Windows) -> D) {
        let Self::Streamed(stream) = self else { return };
        let Some(windows) = stream.all() else { return };
        *self = Self::kept(windows, keep);
    }

    /// Human-readable location of the dataset; `None` for games.
    pub fn data(&self) -> Option<&'static str> {
        match self {
            Self::Games(_) => None,
            Self::Streamed(stream) if !stream.reads_all() => Some("a dataset read as it is needed"),
            _ => Some("a dataset in memory"),
        }
    }

    /// Whether windows arrive batch by batch, in the order of learning.
    pub fn is_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    /// Returns the seconds spent waiting for data since the last call.
    pub fn take_waited(&mut self) -> f64 {
        match self {
            Self::Streamed(stream) => stream.take_waited(),
            _ => 0.0,
        }
    }
}

impl<R, T: Clone, A: Clone> Source<R, Box<(T, A)>> {
    /// The windows of an iteration, converted by `convert`, with their weights as advantages; `None` for games.
    pub fn take(&mut self, iteration: u32, convert: impl Fn(&Windows) -> (T, A)) -> Option<(T, A)> {
        self.settle(|windows| Box::new(convert(&windows)));
        match self {
            Self::Games(_) => None,
            Self::Resident(data) => Some((**data).clone()),
            Self::Streamed(stream) => {
                let windows = stream.take(iteration);
                let converted = convert(&windows);
                stream.give_back(windows);
                Some(converted)
            }
        }
    }
}

/// Whether a dataset is kept in memory: if it needs at most `data.resident_mb`, or, where that is 0, half of the free
/// memory.
fn is_resident(pieces: &WindowSet, config: &TrainConfig) -> bool {
    let most = match config.data.resident_mb {
        0 => device::data_budget(),
        megabytes => Some(megabytes << 20),
    };
    most.is_none_or(|most| pieces.bytes() <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Columns, EpisodeStatus, Steps, WindowOptions};
    use std::sync::Arc;

    #[test]
    fn data_in_several_buffers_are_resident_from_the_first_iteration() {
        let steps = 40_000;
        let columns = Columns {
            num_features: 8,
            obs: vec![0.0; 8 * steps],
            actions: vec![0; steps],
            weights: vec![1.0; steps],
            ends: (0..steps).map(|step| EpisodeStatus::new(step % 100 == 99, false)).collect(),
        };
        let episodes = columns.episodes();
        let pieces = WindowSet::new(Arc::new(columns), &episodes, WindowOptions::plain(1, 1));
        let mut config = TrainConfig::for_game("any");
        (config.data.path, config.data.resident_mb) = ("somewhere".to_string(), 64);
        let shards = Shards::new(pieces.len(), 1);
        let is_streamed = |config: &TrainConfig, most: u64| {
            Source::<(), usize>::of_data(pieces.clone(), config, &shards, most, |all| all.len())
                .is_streamed()
        };
        assert!(is_streamed(&config, u64::MAX) && !is_streamed(&config, AT_ONCE));
        config.data.resident_mb = 1;
        assert!(is_streamed(&config, AT_ONCE), "too large to be resident");
    }
}
