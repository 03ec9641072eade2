//! Which games an optimiser step takes.

use crate::rng::draw;

/// The games of an epoch, `0..num_envs`, in the order that the draws of this run, iteration and epoch
/// give (Fisher-Yates). Minibatches take their share of it one after the other.
pub(super) fn epoch_order(key: u32, iteration: u32, epoch: usize, num_envs: usize) -> Vec<i32> {
    let key = draw(draw(key, iteration), epoch as u32);
    let mut order: Vec<i32> = (0..num_envs as i32).collect();
    for i in (1..num_envs).rev() {
        order.swap(i, draw(key, i as u32) as usize % (i + 1));
    }
    order
}

/// `games` in `count` parts that differ in length by one at most.
pub(super) fn parts(games: &[i32], count: usize) -> impl Iterator<Item = &[i32]> {
    (0..count).map(move |i| &games[i * games.len() / count..(i + 1) * games.len() / count])
}
