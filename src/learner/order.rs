//! Which games, or windows of a dataset, an optimiser step takes.

use crate::config::TrainConfig;
use crate::rng::draw;

/// What each optimiser step of an iteration takes of `0..count`.
///
/// Games are new in each iteration: every epoch takes all of them, in parts of one size. Windows of a
/// dataset stay, so that an iteration takes the next batches of their epochs, wherever it begins in one;
/// the rest of an epoch that fills no batch is left out of it.
pub(super) fn minibatches(
    config: &TrainConfig,
    key: u32,
    iteration: u32,
    count: usize,
) -> Vec<Vec<i32>> {
    let update = &config.update;
    if !config.data.is_on() {
        let games = count / update.num_minibatches;
        let epochs = 0..update.update_epochs;
        let orders = epochs.map(|epoch| shuffled(draw(draw(key, iteration), epoch as u32), count));
        let parts =
            |order: Vec<i32>| order.chunks_exact(games).map(<[i32]>::to_vec).collect::<Vec<_>>();
        return orders.flat_map(parts).collect();
    }
    let size = config.data.batch_size.min(count);
    let batches = (count / size) as u64;
    let steps = (update.update_epochs * update.num_minibatches) as u64;
    let first = u64::from(iteration) * steps;
    let mut order = (u64::MAX, Vec::new());
    let batch = |step: u64| {
        let epoch = step / batches;
        if order.0 != epoch {
            order = (epoch, shuffled(draw(key, epoch as u32), count));
        }
        let start = (step % batches) as usize * size;
        order.1[start..start + size].to_vec()
    };
    (first..first + steps).map(batch).collect()
}

/// `0..count` in the order that the draws of `key` give (Fisher-Yates).
fn shuffled(key: u32, count: usize) -> Vec<i32> {
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
        let all = minibatches(&config(false), 3, 5, 16);
        assert_eq!(all.len(), 8);
        for epoch in all.chunks(4) {
            let mut games = epoch.concat();
            games.sort_unstable();
            assert_eq!(games, (0..16).collect::<Vec<_>>());
        }
        assert_ne!(all[..4], all[4..]);
        assert_ne!(all, minibatches(&config(false), 3, 6, 16));
    }

    #[test]
    fn iterations_over_data_go_on_where_the_last_ended() {
        let config = config(true);
        // 7 batches an epoch; 4 an iteration.
        let steps: Vec<_> = (0..7).flat_map(|i| minibatches(&config, 3, i, 73)).collect();
        for epoch in steps.chunks(7) {
            let mut windows = epoch.concat();
            windows.sort_unstable();
            windows.dedup();
            assert_eq!(windows.len(), 70, "none twice");
        }
        assert_ne!(steps[0], steps[7]);
        // Fewer windows than a batch takes are one batch.
        assert_eq!(minibatches(&config, 3, 0, 6)[0].len(), 6);
    }
}
