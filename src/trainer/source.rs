//! The source of the steps that an engine learns from: games, or a dataset.

use super::prefetch::WindowPrefetcher;
use super::rank_part::RankPart;
use crate::data::{WindowBatch, WindowSet};
use crate::device;
use crate::learner::Batches;

/// Maximum bytes of a resident dataset that is loaded before the run begins; larger ones are streamed until they have
/// been loaded in the background.
const MAX_EAGER_LOAD_BYTES: u64 = 1 << 20;

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
    /// Opens the dataset of a rank's part of a run: resident and converted by `convert` if it fits in memory, otherwise
    /// streamed. A resident dataset of more than `max_part_bytes` is loaded at once rather than streamed first: it is
    /// summed in another order, and results must not depend on when loading finishes.
    pub fn from_data(
        window_set: WindowSet,
        part: &RankPart,
        max_part_bytes: u64,
        convert: impl FnOnce(WindowBatch) -> D,
    ) -> Self {
        let is_resident = is_resident(&window_set, part);
        let bytes = window_set.bytes();
        let is_loaded_at_once =
            cfg!(target_family = "wasm") || bytes <= MAX_EAGER_LOAD_BYTES || bytes > max_part_bytes;
        if is_resident && is_loaded_at_once {
            return Self::make_resident(window_set.copy_all(), convert);
        }
        let batches = Batches::with_shards(&part.config, part.shards.clone());
        let stream = WindowPrefetcher::new(window_set, batches);
        Self::Streamed(Box::new(if is_resident { stream.read_all_in_background() } else { stream }))
    }

    /// Makes a resident dataset of all windows, converted by `convert`.
    fn make_resident(windows: WindowBatch, convert: impl FnOnce(WindowBatch) -> D) -> Self {
        device::count_upload(windows.bytes());
        Self::Resident(convert(windows))
    }

    /// Makes a streamed dataset resident, converted by `convert`, once it has been loaded in the background.
    pub fn become_resident(&mut self, convert: impl FnOnce(WindowBatch) -> D) {
        let Self::Streamed(stream) = self else { return };
        let Some(windows) = stream.take_all() else { return };
        *self = Self::make_resident(windows, convert);
    }

    /// Human-readable description of the dataset; `None` for games.
    pub fn description(&self) -> Option<&'static str> {
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
    pub fn take_waiting_seconds(&mut self) -> f64 {
        match self {
            Self::Streamed(stream) => stream.take_waiting_seconds(),
            _ => 0.0,
        }
    }
}

impl<R, T: Clone, A: Clone> Source<R, Box<(T, A)>> {
    /// Returns the steps of an iteration: of games, which `play` plays, or of a dataset with the weights of its
    /// windows, converted by `convert`. The `batches` are in order if the windows are.
    pub fn take<E>(
        &mut self,
        iteration: u32,
        batches: &mut Batches,
        convert: impl Fn(&WindowBatch) -> (T, A),
        play: impl FnOnce(&mut R) -> Result<T, E>,
    ) -> Result<(T, Option<A>), E> {
        self.become_resident(|windows| Box::new(convert(&windows)));
        batches.set_in_order(self.is_streamed());
        let (steps, weights) = match self {
            Self::Games(games) => return Ok((play(games)?, None)),
            Self::Resident(data) => (**data).clone(),
            Self::Streamed(stream) => {
                let windows = stream.take(iteration);
                let converted = convert(&windows);
                stream.give_back(windows);
                converted
            }
        };
        Ok((steps, Some(weights)))
    }
}

/// Whether a dataset is kept in memory: if the windows of all ranks, which may share a machine, need at most
/// `data.resident_mb`, or, if that is 0, half of the free memory.
fn is_resident(window_set: &WindowSet, part: &RankPart) -> bool {
    let max_bytes = match part.config.data.resident_mb {
        0 => device::data_budget_bytes(),
        megabytes => Some(megabytes << 20),
    };
    // The set has the windows of this rank.
    let num_windows = part.shards.num_items() as u64;
    let bytes = window_set.bytes() / window_set.len().max(1) as u64 * num_windows;
    max_bytes.is_none_or(|max| bytes <= max)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::{EpisodeStatus, StepColumns, Steps, WindowOptions};
    use crate::parallel::{Shards, Team};
    use crate::settings::TrainConfig;
    use std::sync::Arc;

    /// A dataset of `steps` steps in episodes of ten, cut into windows of `window` steps. Its observations differ.
    pub fn window_set(steps: usize, window: usize, sizes: [usize; 2]) -> WindowSet {
        let [num_features, num_actions] = sizes;
        let columns = StepColumns {
            num_features,
            obs: (0..steps * num_features).map(|i| (i as f32).sin()).collect(),
            actions: (0..steps).map(|step| (step % num_actions) as i32).collect(),
            weights: vec![1.0; steps],
            statuses: (0..steps).map(|step| EpisodeStatus::new(step % 10 == 9, false)).collect(),
        };
        let episodes = columns.episodes();
        WindowSet::new(Arc::new(columns), &episodes, WindowOptions::new(window, num_actions))
    }

    /// A dataset of more than a MiB, cut into windows of one step.
    fn large_window_set() -> WindowSet {
        window_set(40_000, 1, [8, 1])
    }

    /// Whether the dataset of some shards is streamed first, where `resident_mb` may be kept in memory and a part
    /// holds `max_part_bytes`.
    fn is_streamed(
        window_set: &WindowSet,
        shards: &Shards,
        resident_mb: u64,
        max_part_bytes: u64,
    ) -> bool {
        let mut config = TrainConfig::for_game("any");
        (config.data.path, config.data.resident_mb) = ("somewhere".to_string(), resident_mb);
        let own = window_set.clone().select(shards.own_items());
        let (own_rollout, shards, team) = (config.rollout.clone(), shards.clone(), Team::alone());
        let part = RankPart { config, team, game_shards: shards.clone(), shards, own_rollout };
        Source::<(), usize>::from_data(own, &part, max_part_bytes, |all| all.len()).is_streamed()
    }

    #[test]
    fn data_in_several_buffers_are_resident_from_the_first_iteration() {
        let data = large_window_set();
        let shards = Shards::new(data.len(), 1);
        assert!(is_streamed(&data, &shards, 64, u64::MAX));
        assert!(!is_streamed(&data, &shards, 64, MAX_EAGER_LOAD_BYTES));
        assert!(is_streamed(&data, &shards, 1, MAX_EAGER_LOAD_BYTES), "too large to be resident");
    }

    #[test]
    fn ranks_keep_data_in_memory_only_if_all_of_them_fit() {
        let data = large_window_set();
        let (too_little, enough) = (data.bytes() >> 20, (data.bytes() >> 20) + 1);
        for (count, own) in [(1, 0..1), (2, 0..1), (2, 1..2), (3, 1..2)] {
            let shards = Shards::new(data.len(), count).with_own_shards(own);
            assert!(is_streamed(&data, &shards, too_little, MAX_EAGER_LOAD_BYTES), "{shards:?}");
            assert!(!is_streamed(&data, &shards, enough, MAX_EAGER_LOAD_BYTES), "{shards:?}");
        }
    }
}
