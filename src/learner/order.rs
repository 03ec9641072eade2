//! Assignment of games, or of windows of a dataset, to optimizer steps.

use crate::parallel::Shards;
use crate::rng::{Stream, draw};
use crate::settings::{TrainConfig, UpdateConfig};
use std::ops::Range;

/// Minimum number of steps of a minibatch per shard; smaller shards are not worth a separate
/// gradient.
pub const MIN_SHARD_STEPS: usize = 64;

/// This rank's share of a minibatch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minibatch {
    /// Number of games in the minibatch over all ranks.
    pub global_size: usize,
    /// Local indices of the games, shard by shard.
    games: Vec<i32>,
    /// Index of the first local shard.
    first_shard: usize,
    /// End of each local shard within `games`.
    ends: Vec<usize>,
}

impl Minibatch {
    /// Creates a minibatch of `global_size` games from the local ones, of which each local stratum contributes a range.
    fn new(global_size: usize, games: Vec<i32>, shards: &Shards, taken: &[Range<usize>]) -> Self {
        let (mut end, mut rest) = (0, taken);
        let next_end = |shard: usize| {
            let (strata, others) = rest.split_at(shards.strata_of(shard..shard + 1).len());
            rest = others;
            end += strata.iter().map(Range::len).sum::<usize>();
            end
        };
        let ends = shards.own_shards().map(next_end).collect();
        Self { global_size, games, first_shard: shards.own_shards().start, ends }
    }

    /// Games of all local shards.
    pub fn games(&self) -> &[i32] {
        &self.games
    }

    /// Games of a local shard, by its index in the run.
    pub fn shard(&self, shard: usize) -> &[i32] {
        let local = shard - self.first_shard;
        let start = if local == 0 { 0 } else { self.ends[local - 1] };
        &self.games[start..self.ends[local]]
    }
}

/// Assigns games, or windows of a dataset, to the minibatches of each iteration.
///
/// Every stratum of the shards is shuffled separately and a minibatch takes a proportional share of
/// each, so that minibatches have the same size on any number of ranks. Games are new in each
/// iteration, so every epoch covers all of them. The windows of a dataset stay the same, so an
/// iteration takes the next batches of their epochs, wherever it starts within one; the remainder
/// of an epoch that does not fill a batch is skipped.
#[derive(Clone, Debug)]
pub struct Batches {
    config: TrainConfig,
    shards: Option<Shards>,
    key: u32,
    is_in_order: bool,
    /// Current epoch of a dataset, and the shuffled order of the local strata.
    epoch: Option<(u64, Vec<Vec<i32>>)>,
}

impl Batches {
    /// Creates the batches of a single shard with all games or windows.
    pub fn new(config: &TrainConfig) -> Self {
        let key = Stream::Shuffle.key(config.seed);
        Self { config: config.clone(), shards: None, key, is_in_order: false, epoch: None }
    }

    /// Creates the batches of the given shards ([`TrainConfig::shard_counts`] computes their number).
    pub fn with_shards(config: &TrainConfig, shards: Shards) -> Self {
        Self { shards: Some(shards), ..Self::new(config) }
    }

    /// Sets whether the windows passed to an update are exactly the batches of its iteration, in
    /// order.
    pub fn set_in_order(&mut self, is_in_order: bool) {
        self.is_in_order = is_in_order;
    }

    /// Returns the shards. `count` is the number of local games or windows.
    ///
    /// # Panics
    /// If `count` does not match the shards.
    pub fn shards(&self, count: usize) -> Shards {
        let shards = self.shards.clone().unwrap_or_else(|| Shards::new(count, 1));
        let is_right = self.is_in_order || shards.own_items().len() == count;
        assert!(is_right, "{count} games, but our shards have {}", shards.own_items().len());
        shards
    }

    /// Returns the minibatches of an iteration. `count` is the number of local games or windows.
    ///
    /// # Panics
    /// If `count` does not match the shards.
    pub fn minibatches(&mut self, iteration: u32, count: usize) -> Vec<Minibatch> {
        let shards = self.shards(count);
        if self.config.data.is_on() {
            self.take_windows(iteration, &shards)
        } else {
            self.split_games(iteration, &shards)
        }
    }

    /// Divides the games of an iteration into the minibatches of each epoch.
    fn split_games(&self, iteration: u32, shards: &Shards) -> Vec<Minibatch> {
        let UpdateConfig { update_epochs, num_minibatches, .. } = self.config.update;
        let (size, key) = (shards.num_items() / num_minibatches, draw(self.key, iteration));
        let minibatches = (0..update_epochs).flat_map(|epoch| {
            let order = shuffle_strata(shards, draw(key, epoch as u32));
            let minibatch = |i: usize| take_minibatch(shards, i * size..(i + 1) * size, &order);
            (0..num_minibatches).map(minibatch).collect::<Vec<_>>()
        });
        minibatches.collect()
    }

    /// Takes the batches of an iteration from the epochs of a dataset.
    fn take_windows(&mut self, iteration: u32, shards: &Shards) -> Vec<Minibatch> {
        let UpdateConfig { update_epochs, num_minibatches, .. } = self.config.update;
        let (count, steps) = (shards.num_items(), update_epochs * num_minibatches);
        let size = self.config.data.batch_size.min(count);
        let batches = (count / size) as u64;
        let first = u64::from(iteration) * steps as u64;
        let mut next = 0;
        let minibatches = (first..first + steps as u64).map(|step| {
            let (epoch, batch) = (step / batches, (step % batches) as usize);
            let positions = batch * size..(batch + 1) * size;
            if self.is_in_order {
                let taken = stratum_ranges(shards, positions);
                let first = next;
                next += taken.iter().map(Range::len).sum::<usize>() as i32;
                return Minibatch::new(size, (first..next).collect(), shards, &taken);
            }
            if self.epoch.as_ref().is_none_or(|(current, _)| *current != epoch) {
                self.epoch = Some((epoch, shuffle_strata(shards, draw(self.key, epoch as u32))));
            }
            let order = self.epoch.as_ref().map_or(&[][..], |(_, order)| order);
            take_minibatch(shards, positions, order)
        });
        minibatches.collect()
    }

    /// Divides the `count` local games or windows passed to an update into portions, which do not depend on the number
    /// of ranks: the shards, or, for windows in order, the shards of each of the update's `minibatches`. Returns the
    /// indices of each portion; together these are `0..count`, in order.
    ///
    /// # Panics
    /// If `count` does not match the shards.
    pub(super) fn portions(&self, minibatches: &[Minibatch], count: usize) -> Vec<Vec<i32>> {
        let shards = self.shards(count);
        if !self.is_in_order {
            let shard_games =
                |shard| shards.local_items_of(shard).map(|game| game as i32).collect();
            return shards.own_shards().map(shard_games).collect();
        }
        let shards_of = |minibatch: &Minibatch| -> Vec<Vec<i32>> {
            shards.own_shards().map(|shard| minibatch.shard(shard).to_vec()).collect()
        };
        minibatches.iter().flat_map(shards_of).filter(|games| !games.is_empty()).collect()
    }
}

/// Assigns groups of texts to optimizer steps in each epoch, as equally as possible. A minibatch is in the order of the
/// groups: its gradient is one sum, whose bytes depend on the order.
pub(super) fn assign_groups(
    num_groups: usize,
    num_minibatches: usize,
    num_epochs: usize,
    key: u32,
) -> Vec<Vec<usize>> {
    let assign_epoch = |epoch: usize| {
        let order = random_permutation(num_groups, draw(key, epoch as u32));
        let sort = |part: &[i32]| {
            let mut groups: Vec<usize> = part.iter().map(|group| *group as usize).collect();
            groups.sort_unstable();
            groups
        };
        split_evenly(&order, num_minibatches).map(sort).collect::<Vec<_>>()
    };
    (0..num_epochs).flat_map(assign_epoch).collect()
}

/// Shuffles each local stratum; the result holds local indices.
fn shuffle_strata(shards: &Shards, key: u32) -> Vec<Vec<i32>> {
    let first = shards.own_items().start;
    let stratum = |(stratum, items): (usize, Range<usize>)| {
        let mut order = random_permutation(items.len(), draw(key, stratum as u32));
        order.iter_mut().for_each(|item| *item += (items.start - first) as i32);
        order
    };
    shards.own_strata().map(stratum).collect()
}

/// Takes the minibatch at these positions of an epoch with shuffled strata `order`.
fn take_minibatch(shards: &Shards, positions: Range<usize>, order: &[Vec<i32>]) -> Minibatch {
    let size = positions.len();
    let taken = stratum_ranges(shards, positions);
    let games = taken.iter().zip(order).flat_map(|(taken, order)| &order[taken.clone()]);
    Minibatch::new(size, games.copied().collect(), shards, &taken)
}

/// Range of items that these positions of an epoch take from each local stratum:
/// proportional to its size, and over all ranks as many as there are positions.
fn stratum_ranges(shards: &Shards, positions: Range<usize>) -> Vec<Range<usize>> {
    let count_before = |items: &Range<usize>, position: usize| {
        let up_to =
            |item: usize| (position as u128 * item as u128 / shards.num_items() as u128) as usize;
        up_to(items.end) - up_to(items.start)
    };
    let range =
        |(_, items)| count_before(&items, positions.start)..count_before(&items, positions.end);
    shards.own_strata().map(range).collect()
}

/// Random permutation of `0..count` (Fisher-Yates).
fn random_permutation(count: usize, key: u32) -> Vec<i32> {
    let mut order: Vec<i32> = (0..count as i32).collect();
    for i in (1..count).rev() {
        order.swap(i, draw(key, i as u32) as usize % (i + 1));
    }
    order
}

/// Splits `games` into `count` parts whose lengths differ by at most one.
pub(super) fn split_evenly(games: &[i32], count: usize) -> impl Iterator<Item = &[i32]> {
    (0..count).map(move |i| &games[i * games.len() / count..(i + 1) * games.len() / count])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn game_config() -> TrainConfig {
        let mut config = TrainConfig::for_game("any");
        config.update.update_epochs = 2;
        config.update.num_minibatches = 4;
        config
    }

    fn dataset_config() -> TrainConfig {
        let mut config = game_config();
        config.update.update_epochs = 1;
        config.data.batch_size = 10;
        config.data.path = "somewhere".to_string();
        config
    }

    fn games(minibatches: &[Minibatch]) -> Vec<i32> {
        let mut games: Vec<i32> = minibatches.iter().flat_map(|m| m.games()).copied().collect();
        games.sort_unstable();
        games
    }

    #[test]
    fn every_epoch_of_games_takes_each_once() {
        for shards in [1, 3, 4] {
            let mut batches = Batches::with_shards(&game_config(), Shards::new(20, shards));
            let all = batches.minibatches(5, 20);
            assert_eq!(all.len(), 8);
            for epoch in all.chunks(4) {
                assert_eq!(games(epoch), (0..20).collect::<Vec<_>>());
                assert!(
                    epoch.iter().all(|taken| taken.global_size == 5 && taken.games().len() == 5)
                );
            }
            assert_ne!(all[..4], all[4..]);
            assert_ne!(all, batches.minibatches(6, 20));
        }
    }

    #[test]
    fn several_processes_together_take_the_batches_of_one() {
        // 7 groups of 3 games in 4 shards, two for each of two ranks.
        for config in [game_config(), dataset_config()] {
            let shards = Shards::new(7, 4).in_smaller_units(3);
            let minibatches = |shards: &Shards, iteration: u32| {
                let mut batches = Batches::with_shards(&config, shards.clone());
                batches.minibatches(iteration, shards.own_items().len())
            };
            let whole = minibatches(&shards, 2);
            let first = minibatches(&shards.clone().with_own_shards(0..2), 2);
            let second = minibatches(&shards.clone().with_own_shards(2..4), 2);
            let from = shards.items_of(2..3).start as i32;
            for ((whole, first), second) in whole.iter().zip(first).zip(second) {
                for shard in 0..2 {
                    assert_eq!(whole.shard(shard), first.shard(shard));
                    let theirs: Vec<i32> =
                        second.shard(2 + shard).iter().map(|i| i + from).collect();
                    assert_eq!(whole.shard(2 + shard), theirs);
                }
                assert_eq!(
                    (whole.global_size, whole.global_size),
                    (first.global_size, second.global_size)
                );
                assert_eq!(whole.games().len(), whole.global_size);
            }
        }
    }

    #[test]
    fn minibatches_are_the_same_whatever_shards_strata_make_up() {
        for config in [game_config(), dataset_config()] {
            let minibatches =
                |shards: Shards| Batches::with_shards(&config, shards).minibatches(3, 26);
            let fine = minibatches(Shards::new(26, 6));
            for count in 1..6 {
                let shards = Shards::new(26, count).with_strata(6);
                for (coarse, fine) in minibatches(shards.clone()).iter().zip(&fine) {
                    assert_eq!(coarse.games(), fine.games());
                    for shard in 0..count {
                        let strata = shards.strata_of(shard..shard + 1);
                        let parts: Vec<i32> = strata.flat_map(|i| fine.shard(i)).copied().collect();
                        assert_eq!(coarse.shard(shard), parts);
                    }
                }
            }
        }
    }

    #[test]
    fn iterations_over_data_continue_where_the_last_ended() {
        let shards = Shards::new(73, 5);
        let mut batches = Batches::with_shards(&dataset_config(), shards.clone());
        // 7 batches per epoch, 4 per iteration.
        let steps: Vec<_> = (0..7).flat_map(|i| batches.minibatches(i, 73)).collect();
        for epoch in steps.chunks(7) {
            let mut windows = games(epoch);
            windows.dedup();
            assert_eq!(windows.len(), 70, "none twice");
        }
        assert_ne!(steps[0], steps[7]);
        // Independent of the iteration at which a run starts.
        let resumed = Batches::with_shards(&dataset_config(), shards).minibatches(3, 73);
        assert_eq!(resumed, steps[12..16]);
        // If there are fewer windows than a batch holds, they form one batch.
        assert_eq!(Batches::new(&dataset_config()).minibatches(0, 6)[0].games().len(), 6);
    }

    #[test]
    fn windows_in_order_are_not_shuffled() {
        let shards = Shards::new(43, 2);
        let shuffled = Batches::with_shards(&dataset_config(), shards.clone()).minibatches(9, 43);
        let mut batches = Batches::with_shards(&dataset_config(), shards);
        batches.set_in_order(true);
        let in_order = batches.minibatches(9, 43);
        assert_eq!(games(&in_order), (0..40).collect::<Vec<_>>());
        for (one, other) in in_order.iter().zip(shuffled) {
            assert_eq!(one.ends, other.ends);
            assert!(one.games().is_sorted());
        }
    }

    #[test]
    fn portions_are_all_that_an_update_has_on_any_number_of_ranks() {
        // Fewer windows in an iteration than in the shards, and more.
        for (windows, in_order) in [(43, true), (26, true), (43, false)] {
            let portion_sizes = |shards: Shards| {
                let count = shards.own_items().len();
                let mut batches = Batches::with_shards(&dataset_config(), shards);
                batches.set_in_order(in_order);
                let minibatches = batches.minibatches(9, count);
                let count = if in_order { games(&minibatches).len() } else { count };
                let portions = batches.portions(&minibatches, count);
                assert_eq!(portions.concat(), (0..count as i32).collect::<Vec<_>>());
                portions.iter().map(Vec::len).collect::<Vec<_>>()
            };
            let shards = Shards::new(windows, 2);
            let whole = portion_sizes(shards.clone());
            let ranks = [0..1, 1..2].map(|own| portion_sizes(shards.clone().with_own_shards(own)));
            let minibatches = if in_order { 4 } else { 1 };
            assert_eq!(whole.len(), 2 * minibatches);
            let both = (0..minibatches).flat_map(|one| ranks.iter().map(move |rank| rank[one]));
            assert_eq!(both.collect::<Vec<_>>(), whole);
        }
    }
}
