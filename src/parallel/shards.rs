//! The logical shards of a batch, and the binary tree in which their results are summed.
//!
//! The number of shards follows from the settings alone, so the order of summation, and hence every bit
//! of the result, is independent of the number of ranks. The tree over shards `0..n` splits each node at
//! the largest power of two below its length, so that aligned runs of `2^k` shards are nodes.

use super::PartialSum;
use std::ops::Range;

/// A partition of items, for instance groups of games, into shards, with the range that this rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    num_items: usize,
    /// Number of smaller units per item; an item's units stay in one shard.
    units_per_item: usize,
    count: usize,
    /// Number of strata; a shard consists of whole strata.
    num_strata: usize,
    own_shards: Range<usize>,
}

impl Shards {
    /// Cuts items into at most `count` non-empty shards, all owned by this rank.
    ///
    /// # Panics
    /// If there are no items.
    pub fn new(num_items: usize, count: usize) -> Self {
        assert!(num_items > 0, "no items to cut into shards");
        let count = count.clamp(1, num_items);
        Self { num_items, units_per_item: 1, count, num_strata: count, own_shards: 0..count }
    }

    /// Restricts the owned shards to `own_shards`.
    pub fn with_own_shards(self, own_shards: Range<usize>) -> Self {
        assert!(
            own_shards.start <= own_shards.end && own_shards.end <= self.count,
            "owned shards within the count"
        );
        Self { own_shards, ..self }
    }

    /// Subdivides the shards into `num_strata` parts of equal size. Minibatches draw equally from each
    /// stratum, so that a draw does not depend on the number of shards.
    ///
    /// # Panics
    /// If there are fewer strata than shards, or fewer items than strata.
    pub fn with_strata(self, num_strata: usize) -> Self {
        assert!(
            self.count <= num_strata && num_strata <= self.num_items,
            "shards <= strata <= items"
        );
        Self { num_strata, ..self }
    }

    /// The strata of consecutive shards.
    pub fn strata_of(&self, shards: Range<usize>) -> Range<usize> {
        let first_of = |shard: usize| shard * self.num_strata / self.count;
        first_of(shards.start)..first_of(shards.end)
    }

    /// The items of consecutive strata.
    fn items_of_strata(&self, strata: Range<usize>) -> Range<usize> {
        let first_of =
            |stratum: usize| stratum * self.num_items / self.num_strata * self.units_per_item;
        first_of(strata.start)..first_of(strata.end)
    }

    /// The index and the items of each stratum of the owned shards.
    pub fn own_strata(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let own_strata = self.strata_of(self.own_shards());
        own_strata.map(|stratum| (stratum, self.items_of_strata(stratum..stratum + 1)))
    }

    /// Number of shards.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of items in all shards.
    pub fn num_items(&self) -> usize {
        self.num_items * self.units_per_item
    }

    /// The shards owned by this rank.
    pub fn own_shards(&self) -> Range<usize> {
        self.own_shards.clone()
    }

    /// The items of consecutive shards.
    pub fn items_of(&self, shards: Range<usize>) -> Range<usize> {
        self.items_of_strata(self.strata_of(shards))
    }

    /// The items of an owned shard, as indices into this rank's items.
    pub fn local_items_of(&self, shard: usize) -> Range<usize> {
        let (first, items) = (self.own_items().start, self.items_of(shard..shard + 1));
        items.start - first..items.end - first
    }

    /// The items of the owned shards.
    pub fn own_items(&self) -> Range<usize> {
        self.items_of(self.own_shards())
    }

    /// The largest nodes of the tree that the owned shards consist of, in order.
    pub fn own_nodes(&self) -> Vec<Range<usize>> {
        tree_nodes(self.count, &self.own_shards)
    }

    /// Counts the same partition in smaller units, `units_per_item` of them per item: games instead of groups, for
    /// instance.
    pub fn in_smaller_units(&self, units_per_item: usize) -> Self {
        Self { units_per_item: self.units_per_item * units_per_item, ..self.clone() }
    }

    /// Computes the partial sums at the [`Shards::own_nodes`], on all threads; `leaf` computes that of one shard.
    /// `give_back` receives vectors that have been added to others, for reuse.
    pub fn compute_partial_sums(
        &self,
        leaf: &(impl Fn(usize) -> PartialSum + Sync),
        give_back: &(impl Fn(Vec<f32>) + Sync),
    ) -> Vec<PartialSum> {
        let add = |sum: PartialSum, other: PartialSum| sum.add_reusing(other, give_back);
        let sum = |node: Range<usize>| {
            sum_leaves(node.len(), LeafThreads::All, &|at: usize| leaf(node.start + at), &add)
        };
        self.own_nodes().into_iter().map(sum).collect()
    }
}

/// Finds the shard at which a node of the tree splits.
fn find_middle(node: &Range<usize>) -> usize {
    node.start + (node.len().next_power_of_two() >> 1)
}

/// The largest nodes of the tree over `0..count` that `range` consists of, in order.
pub(super) fn tree_nodes(count: usize, range: &Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    collect_tree_nodes(0..count, range, &mut found);
    found
}

/// Appends the nodes below `node` that `range` consists of.
fn collect_tree_nodes(node: Range<usize>, range: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if node.is_empty() || node.end <= range.start || range.end <= node.start {
        return;
    }
    if range.start <= node.start && node.end <= range.end {
        found.push(node);
        return;
    }
    let middle = find_middle(&node);
    collect_tree_nodes(node.start..middle, range, found);
    collect_tree_nodes(middle..node.end, range, found);
}

/// The left siblings along the path from a node down to its last leaf, topmost first. Starting with the
/// last leaf and adding these from the last to the first gives the node's sum.
pub fn left_siblings(node: &Range<usize>) -> Vec<Range<usize>> {
    let (mut found, mut node) = (Vec::new(), node.clone());
    while node.len() > 1 {
        let middle = find_middle(&node);
        found.push(node.start..middle);
        node.start = middle;
    }
    found
}

/// Sums values in the order of the tree over `0..count`. `values` belong to nodes that together cover the
/// tree, in order.
pub(super) fn sum_tree<T>(
    count: usize,
    values: Vec<(Range<usize>, T)>,
    add: &impl Fn(T, T) -> T,
) -> T {
    let mut values = values.into_iter().peekable();
    add_node(0..count, &mut values, add)
}

/// Threads on which the leaves of a sum are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafThreads {
    /// All threads of the pool.
    All,
    /// The calling thread, one leaf at a time: for leaves that use all threads themselves, or much memory.
    One,
}

/// Computes `count` leaves by `leaf` and sums them in the order of the tree. Leaves are added right after they were
/// computed, while they are in the cache, so few of them exist at a time: at most the tree's height plus one on one
/// thread.
pub fn sum_leaves<T: Send>(
    count: usize,
    threads: LeafThreads,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    assert!(count > 0, "a sum of no leaves");
    sum_node(0..count, threads, leaf, add)
}

fn sum_node<T: Send>(
    node: Range<usize>,
    threads: LeafThreads,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    if node.len() == 1 {
        return leaf(node.start);
    }
    let middle = find_middle(&node);
    let left = || sum_node(node.start..middle, threads, leaf, add);
    let right = || sum_node(middle..node.end, threads, leaf, add);
    let (left, right) = match threads {
        LeafThreads::All => rayon::join(left, right),
        LeafThreads::One => (left(), right()),
    };
    add(left, right)
}

fn add_node<T>(
    node: Range<usize>,
    values: &mut std::iter::Peekable<impl Iterator<Item = (Range<usize>, T)>>,
    add: &impl Fn(T, T) -> T,
) -> T {
    if let Some((_, value)) = values.next_if(|(at, _)| *at == node) {
        return value;
    }
    assert!(node.len() > 1, "every shard has a value");
    let middle = find_middle(&node);
    let left = add_node(node.start..middle, values, add);
    let right = add_node(middle..node.end, values, add);
    add(left, right)
}

/// Boundaries of the ranks' shares of `count` shards: `[ranks + 1]`. Shares are proportional to `speeds`.
/// Equally fast ranks get blocks of `2^k` shards, as large as possible while no rank has more than
/// `ceil(count / ranks)`, so that a share consists of few nodes of the tree.
pub fn shard_boundaries(count: usize, speeds: &[f64]) -> Vec<usize> {
    let num_ranks = speeds.len();
    let fair_share = count.div_ceil(num_ranks);
    let is_fair = |block: &usize| {
        let blocks = count.div_ceil(*block);
        blocks >= num_ranks && blocks.div_ceil(num_ranks) * block <= fair_share
    };
    let are_equal = speeds.iter().all(|speed| *speed == speeds[0]);
    let block = (0..usize::BITS).map(|bit| 1 << bit).take_while(|b| *b <= fair_share);
    let block = if are_equal { block.filter(is_fair).max().unwrap_or(1) } else { 1 };
    let blocks = count.div_ceil(block);
    let total: f64 = speeds.iter().sum();
    let mut total_so_far = 0.0;
    let mut boundaries = vec![0];
    for (rank, speed) in speeds.iter().enumerate() {
        total_so_far += speed;
        let boundary = if are_equal {
            (rank + 1) * blocks / num_ranks
        } else {
            (total_so_far / total * blocks as f64).round() as usize
        };
        let boundary = (boundary * block).min(count);
        // Every rank gets a shard if there are enough.
        let [min, max] = [boundaries[rank] + 1, (count + rank + 1).saturating_sub(num_ranks)];
        boundaries.push(if min <= max { boundary.clamp(min, max) } else { boundary });
    }
    boundaries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_cover_the_range_in_order() {
        for count in 1..40 {
            for start in 0..=count {
                for end in start..=count {
                    let found = tree_nodes(count, &(start..end));
                    let all: Vec<usize> = found.iter().cloned().flatten().collect();
                    assert_eq!(all, (start..end).collect::<Vec<_>>());
                }
            }
        }
        let bounds = |count, start, end| -> Vec<_> {
            tree_nodes(count, &(start..end)).iter().map(|node| (node.start, node.end)).collect()
        };
        assert_eq!(bounds(16, 0, 8), [(0, 8)]);
        assert_eq!(bounds(16, 6, 10), [(6, 8), (8, 10)]);
        assert_eq!(bounds(12, 4, 8), [(4, 8)]);
    }

    #[test]
    fn sums_do_not_depend_on_the_number_of_ranks() {
        let add = |a: String, b: String| format!("({a}{b})");
        let sum_on = |threads, node: Range<usize>| {
            sum_leaves(node.len(), threads, &|at: usize| format!("{:x}", node.start + at), &add)
        };
        let sum = |node: Range<usize>| sum_on(LeafThreads::One, node);
        assert_eq!(sum(0..5), "(((01)(23))4)");
        for count in 1..20 {
            let whole = sum(0..count);
            assert_eq!(sum_on(LeafThreads::All, 0..count), whole);
            for ranks in 1..=count {
                let boundaries = shard_boundaries(count, &vec![1.0; ranks]);
                let shares = boundaries.windows(2).map(|bounds| bounds[0]..bounds[1]);
                let nodes = shares.flat_map(|share| tree_nodes(count, &share));
                let parts = nodes.map(|node| (node.clone(), sum(node))).collect();
                assert_eq!(sum_tree(count, parts, &add), whole, "{count} shards, {ranks} ranks");
            }
            let lefts = left_siblings(&(0..count)).into_iter().rev();
            let last = sum(count - 1..count);
            assert_eq!(lefts.fold(last, |sum_so_far, left| add(sum(left), sum_so_far)), whole);
        }
    }

    #[test]
    fn shares_are_balanced_and_aligned() {
        assert_eq!(shard_boundaries(16, &[1.0; 2]), [0, 8, 16]);
        assert_eq!(shard_boundaries(16, &[1.0; 4]), [0, 4, 8, 12, 16]);
        let boundaries = shard_boundaries(16, &[1.0; 3]);
        assert!(boundaries.windows(2).all(|bounds| bounds[1] - bounds[0] <= 6), "{boundaries:?}");
        assert!(boundaries.iter().all(|boundary| boundary % 2 == 0), "{boundaries:?}");
        assert_eq!(shard_boundaries(16, &[3.0, 1.0]), [0, 12, 16]);
        assert_eq!(shard_boundaries(1, &[1.0; 3]).last(), Some(&1));
        for count in 1..40 {
            for ranks in 1..=count {
                for speeds in [vec![1.0; ranks], (0..ranks).map(|i| 0.01 + i as f64).collect()] {
                    let boundaries = shard_boundaries(count, &speeds);
                    assert_eq!((boundaries[0], boundaries[ranks]), (0, count), "{speeds:?}");
                    assert!(
                        boundaries.windows(2).all(|bounds| bounds[0] < bounds[1]),
                        "{count}, {speeds:?}: {boundaries:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn shards_of_games_are_whole_groups() {
        let groups = Shards::new(37, 16).with_own_shards(4..8);
        let games = groups.in_smaller_units(8);
        assert_eq!((games.num_items(), games.count()), (296, 16));
        let firsts =
            |shards: &Shards| (0..16).map(|s| shards.items_of(s..s + 1).start).collect::<Vec<_>>();
        assert!(firsts(&games).iter().zip(firsts(&groups)).all(|(game, group)| *game == 8 * group));
        assert_eq!(Shards::new(3, 16).count(), 3);
    }
}
