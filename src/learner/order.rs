//! Which games, or windows of a dataset, an optimiser step takes.

use crate::config::TrainConfig;
use crate::rng::{Stream, draw};

/// What each optimiser step of an iteration takes.
///
/// Games are new in each iteration: every epoch takes all of them, in parts of one size. Windows of a
/// dataset stay, so that an iteration takes the next batches of their epochs, wherever it begins in one;
/// the rest of an epoch that fills no batch is left out of it.
#[derive(Clone, Debug)]
pub struct Batches {
    config: TrainConfig,
    key: u32,
    in_order: bool,
    /// The last epoch of a dataset, and the order of its windows.
    epoch: Option<(u64, Vec<i32>)>,
}

impl Batches {
    /// By these settings.
    pub fn new(config: &TrainConfig) -> Self {
        let key = Stream::Shuffle.key(config.seed);
        Self { config: config.clone(), key, in_order: false, epoch: None }
    }

    /// Where all windows that are given are the batches of their iteration, one after the other.
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Those of an iteration, of `0..count`.
    pub fn of(&mut self, iteration: u32, count: usize) -> Vec<Vec<i32>> {
        let (update, data) = (&self.config.update, &self.config.data);
        if !data.is_on() {
            return of_games(&self.config, self.key, iteration, count);
        }
        let steps = (update.update_epochs * update.num_minibatches) as u64;
        if self.in_order {
            let all: Vec<i32> = (0..count as i32).collect();
            return all.chunks_exact(count / steps as usize).map(<[i32]>::to_vec).collect();
        }
        let size = data.batch_size.min(count);
        let batches = (count / size) as u64;
        let first = u64::from(iteration) * steps;
        let mut batch = |step: u64| {
            let epoch = step / batches;
            if self
                .epoch
                .as_ref()
                .is_none_or(|(last, order)| *last != epoch || order.len() != count)
            {
                self.epoch = Some((epoch, shuffled(draw(self.key, epoch as u32), count)));
            }
            let order = self.epoch.as_ref().map_or(&[][..], |(_, order)| order);
            order[(step % batches) as usize * size..][..size].to_vec()
        };
        (first..first + steps).map(&mut batch).collect()
    }
}

/// What each optimiser step of an iteration takes of `count` games.
pub(super) fn of_games(
    config: &TrainConfig,
    key: u32,
    iteration: u32,
    count: usize,
) -> Vec<Vec<i32>> {
    let update = &config.update;
    let games = count / update.num_minibatches;
    let epochs = 0..update.update_epochs;
    let orders = epochs.map(|epoch| shuffled(draw(draw(key, iteration), epoch as u32), count));
    let parts =
        |order: Vec<i32>| order.chunks_exact(games).map(<[i32]>::to_vec).collect::<Vec<_>>();
    orders.flat_map(parts).collect()
}

/// `0..count` in the order that the draws of `key` give (Fisher-Yates).
pub(super) fn shuffled(key: u32, count: usize) -> Vec<i32> {
    let mut order: Vec<i32> = (0..count as i32).collect();
    for i in (1..count).rev() {
        order.swap(i, draw(key, i as u32) as usize % (i + 1));
    }
    order
}

/// `games` in `count` parts that differ in length by one at most.
pub(super) fn parts(games: &[i32], count: usize) -> impl Iterator<Item = &[i32]> {
    (0..count).map(move |i| &games[i * games.len() / count..(i + 1) * games.len() / count])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(data: bool) -> TrainConfig {
        let mut config = TrainConfig::for_game("any");
        config.update.update_epochs = if data { 1 } else { 2 };
        config.update.num_minibatches = 4;
        config.data.batch_size = 10;
        config.data.path = if data { "somewhere".to_string() } else { String::new() };
        config
    }

    #[test]
    fn every_epoch_of_games_takes_each_once() {
        let mut batches = Batches::new(&config(false));
        let all = batches.of(5, 16);
        assert_eq!(all.len(), 8);
        for epoch in all.chunks(4) {
            let mut games = epoch.concat();
            games.sort_unstable();
            assert_eq!(games, (0..16).collect::<Vec<_>>());
        }
        assert_ne!(all[..4], all[4..]);
        assert_ne!(all, batches.of(6, 16));
    }

    #[test]
    fn iterations_over_data_go_on_where_the_last_ended() {
        let mut batches = Batches::new(&config(true));
        // 7 batches an epoch; 4 an iteration.
        let steps: Vec<_> = (0..7).flat_map(|i| batches.of(i, 73)).collect();
        for epoch in steps.chunks(7) {
            let mut windows = epoch.concat();
            windows.sort_unstable();
            windows.dedup();
            assert_eq!(windows.len(), 70, "none twice");
        }
        assert_ne!(steps[0], steps[7]);
        // Wherever one begins.
        assert_eq!(Batches::new(&config(true)).of(3, 73), steps[12..16]);
        // Fewer windows than a batch takes are one batch.
        assert_eq!(batches.of(0, 6)[0].len(), 6);
    }

    #[test]
    fn windows_in_order_are_taken_as_they_come() {
        let batches = Batches::new(&config(true)).in_order().of(9, 8);
        assert_eq!(batches, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    }
}
