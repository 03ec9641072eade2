//! The logical shards of a batch, and the binary tree in which their results are summed.
//!
//! The number of shards follows from the settings alone, so the order of summation, and hence every bit
//! of the result, is independent of the number of ranks. The tree over shards `0..n` splits each node at
//! the largest power of two below its length, so that aligned runs of `2^k` shards are nodes.

use super::Node;
use std::ops::Range;

/// A partition of items, for instance groups of games, into shards, with the range that this rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    items: usize,
    /// Number of smaller units per item; an item's units stay in one shard.
    each: usize,
    count: usize,
    /// Number of strata; a shard consists of whole strata.
    strata: usize,
    own: Range<usize>,
}

impl Shards {
    /// Cuts `items` into at most `count` non-empty shards, all owned by this rank.
    ///
    /// # Panics
    /// If there are no items.
    pub fn new(items: usize, count: usize) -> Self {
        assert!(items > 0, "no items to cut into shards");
        let count = count.clamp(1, items);
        Self { items, each: 1, count, strata: count, own: 0..count }
    }

    /// Restricts the owned shards to `own`.
    pub fn with_own(self, own: Range<usize>) -> Self {
        assert!(own.start <= own.end && own.end <= self.count, "owned shards within the count");
        Self { own, ..self }
    }

    /// Subdivides the shards into `strata` parts of equal size. Minibatches draw equally from each
    /// stratum, so that a draw does not depend on the number of shards.
    ///
    /// # Panics
    /// If there are fewer strata than shards, or fewer items than strata.
    pub fn with_strata(self, strata: usize) -> Self {
        assert!(self.count <= strata && strata <= self.items, "shards <= strata <= items");
        Self { strata, ..self }
    }

    /// The range of strata of a shard.
    pub fn strata_of(&self, shard: usize) -> Range<usize> {
        self.stratum(shard)..self.stratum(shard + 1)
    }

    /// The number and the items of each stratum of the owned shards.
    pub fn own_strata(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let own = self.stratum(self.own.start)..self.stratum(self.own.end);
        own.map(|stratum| (stratum, self.cut(stratum)..self.cut(stratum + 1)))
    }

    /// Number of shards.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of items in all shards.
    pub fn items(&self) -> usize {
        self.items * self.each
    }

    /// The shards owned by this rank.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// The items of a shard.
    pub fn items_of(&self, shard: usize) -> Range<usize> {
        self.first(shard)..self.first(shard + 1)
    }

    /// The items of an owned shard, as indices into this rank's items.
    pub fn places_of(&self, shard: usize) -> Range<usize> {
        let first = self.first(self.own.start);
        self.first(shard) - first..self.first(shard + 1) - first
    }

    /// The items of the owned shards.
    pub fn own_items(&self) -> Range<usize> {
        self.first(self.own.start)..self.first(self.own.end)
    }

    /// The same partition counted in smaller units, `each` of them per item: games instead of groups,
    /// for instance.
    pub fn times(&self, each: usize) -> Self {
        Self { each: self.each * each, ..self.clone() }
    }

    /// The first item of a shard.
    fn first(&self, shard: usize) -> usize {
        self.cut(self.stratum(shard))
    }

    /// The first stratum of a shard.
    fn stratum(&self, shard: usize) -> usize {
        shard * self.strata / self.count
    }

    /// The first item of a stratum.
    fn cut(&self, stratum: usize) -> usize {
        stratum * self.items / self.strata * self.each
    }

    /// Computes the sums at the [`nodes`] of the owned shards, on all threads; `leaf` computes the node of one shard.
    /// `give_back` receives vectors that have been added to others, for reuse.
    pub fn sum_nodes(
        &self,
        leaf: &(impl Fn(usize) -> Node + Sync),
        give_back: &(impl Fn(Vec<f32>) + Sync),
    ) -> Vec<Node> {
        let add = |sum: Node, other: Node| sum.plus_and(other, give_back);
        let sum = |node: Range<usize>| {
            sum_leaves(node.len(), true, &|at: usize| leaf(node.start + at), &add)
        };
        nodes(self.count, &self.own).into_iter().map(sum).collect()
    }
}

/// The shard at which a node of the tree splits.
fn middle(node: &Range<usize>) -> usize {
    node.start + (node.len().next_power_of_two() >> 1)
}

/// The largest nodes of the tree over `0..count` that `own` consists of, in order.
pub fn nodes(count: usize, own: &Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    collect(0..count, own, &mut found);
    found
}

fn collect(node: Range<usize>, own: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if node.is_empty() || node.end <= own.start || own.end <= node.start {
        return;
    }
    if own.start <= node.start && node.end <= own.end {
        found.push(node);
        return;
    }
    let middle = middle(&node);
    collect(node.start..middle, own, found);
    collect(middle..node.end, own, found);
}

/// The left siblings along the path from a node down to its last leaf, topmost first. Starting with the
/// last leaf and adding these from the last to the first gives the node's sum.
pub fn left_siblings(node: &Range<usize>) -> Vec<Range<usize>> {
    let (mut found, mut node) = (Vec::new(), node.clone());
    while node.len() > 1 {
        let middle = middle(&node);
        found.push(node.start..middle);
        node.start = middle;
    }
    found
}

/// Sums values in the order of the tree over `0..count`. `values` belong to nodes that together cover the
/// tree, in order.
pub fn add_up<T>(count: usize, values: Vec<(Range<usize>, T)>, add: &impl Fn(T, T) -> T) -> T {
    let mut values = values.into_iter().peekable();
    add_node(0..count, &mut values, add)
}

/// Computes `count` leaves by `leaf` and sums them in the order of the tree, `on_all_threads` or one at a time, for leaves
/// that use all threads or much memory. Leaves are added right after they were computed, while they are in the cache, so few
/// of them exist at a time: on one thread at most the tree's height plus one.
pub fn sum_leaves<T: Send>(
    count: usize,
    on_all_threads: bool,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    assert!(count > 0, "a sum of no leaves");
    sum_node(0..count, on_all_threads, leaf, add)
}

fn sum_node<T: Send>(
    node: Range<usize>,
    on_all_threads: bool,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    if node.len() == 1 {
        return leaf(node.start);
    }
    let middle = middle(&node);
    let left = || sum_node(node.start..middle, on_all_threads, leaf, add);
    let right = || sum_node(middle..node.end, on_all_threads, leaf, add);
    let (left, right) = if on_all_threads { rayon::join(left, right) } else { (left(), right()) };
    add(left, right)
}

fn add_node<T>(
    node: Range<usize>,
    values: &mut std::iter::Peekable<impl Iterator<Item = (Range<usize>, T)>>,
    add: &impl Fn(T, T) -> T,
) -> T {
    if values.peek().is_some_and(|(at, _)| *at == node) {
        return values.next().expect("just peeked").1;
    }
    assert!(node.len() > 1, "every shard has a value");
    let middle = middle(&node);
    let left = add_node(node.start..middle, values, add);
    let right = add_node(middle..node.end, values, add);
    add(left, right)
}

/// Boundaries of the ranks' shares of `count` shards: `[ranks + 1]`. Shares are proportional to `speeds`.
/// Equally fast ranks get blocks of `2^k` shards, as large as possible while no rank has more than
/// `ceil(count / ranks)`, so that a share consists of few nodes of the tree.
pub fn shares(count: usize, speeds: &[f64]) -> Vec<usize> {
    let ranks = speeds.len();
    let fair = count.div_ceil(ranks);
    let is_fair = |block: &usize| {
        let blocks = count.div_ceil(*block);
        blocks >= ranks && blocks.div_ceil(ranks) * block <= fair
    };
    let alike = speeds.iter().all(|speed| *speed == speeds[0]);
    let block = (0..usize::BITS).map(|bit| 1 << bit).take_while(|b| *b <= fair);
    let block = if alike { block.filter(is_fair).max().unwrap_or(1) } else { 1 };
    let blocks = count.div_ceil(block);
    let all: f64 = speeds.iter().sum();
    let mut so_far = 0.0;
    let mut cuts = vec![0];
    for (rank, speed) in speeds.iter().enumerate() {
        so_far += speed;
        let cut = match alike {
            true => (rank + 1) * blocks / ranks,
            false => (so_far / all * blocks as f64).round() as usize,
        };
        let cut = (cut * block).min(count);
        // Every rank gets a shard if there are enough.
        let [least, most] = [cuts[rank] + 1, (count + rank + 1).saturating_sub(ranks)];
        cuts.push(if least <= most { cut.clamp(least, most) } else { cut });
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_cover_the_range_in_order() {
        for count in 1..40 {
            for start in 0..=count {
                for end in start..=count {
                    let found = nodes(count, &(start..end));
                    let all: Vec<usize> = found.iter().cloned().flatten().collect();
                    assert_eq!(all, (start..end).collect::<Vec<_>>());
                }
            }
        }
        let bounds = |count, start, end| -> Vec<_> {
            nodes(count, &(start..end)).iter().map(|node| (node.start, node.end)).collect()
        };
        assert_eq!(bounds(16, 0, 8), [(0, 8)]);
        assert_eq!(bounds(16, 6, 10), [(6, 8), (8, 10)]);
        assert_eq!(bounds(12, 4, 8), [(4, 8)]);
    }

    #[test]
    fn sums_do_not_depend_on_the_number_of_ranks() {
        let add = |a: String, b: String| format!("({a}{b})");
        for count in [1, 2, 5, 12, 16] {
            let leaf = |i: usize| (i..i + 1, format!("{i:x}"));
            let whole = add_up(count, (0..count).map(leaf).collect(), &add);
            for ranks in 1..=count {
                let cuts = shares(count, &vec![1.0; ranks]);
                let mut parts = Vec::new();
                for cut in cuts.windows(2) {
                    for node in nodes(count, &(cut[0]..cut[1])) {
                        let leaves = (0..node.len()).map(|i| {
                            let (_, name) = leaf(node.start + i);
                            (i..i + 1, name)
                        });
                        let sum = add_up(node.len(), leaves.collect(), &add);
                        parts.push((node, sum));
                    }
                }
                assert_eq!(add_up(count, parts, &add), whole, "{count} shards, {ranks} ranks");
            }
        }
        for count in 1..20 {
            let name = |i: usize| format!("{i:x}");
            let whole = add_up(count, (0..count).map(|i| (i..i + 1, name(i))).collect(), &add);
            for on_all_threads in [true, false] {
                assert_eq!(sum_leaves(count, on_all_threads, &name, &add), whole);
            }
        }
        for count in 1..20 {
            let node = |node: Range<usize>| {
                let leaf = |at: usize| format!("{:x}", node.start + at);
                sum_leaves(node.len(), true, &leaf, &add)
            };
            let leaf = format!("{:x}", count - 1);
            let lefts = left_siblings(&(0..count)).into_iter().rev();
            let sum = lefts.fold(leaf, |sum, left| add(node(left), sum));
            assert_eq!(sum, node(0..count));
        }
        let sum = add_up(5, (0..5).map(|i| (i..i + 1, i.to_string())).collect(), &add);
        assert_eq!(sum, "(((01)(23))4)");
    }

    #[test]
    fn shares_are_balanced_and_aligned() {
        assert_eq!(shares(16, &[1.0; 2]), [0, 8, 16]);
        assert_eq!(shares(16, &[1.0; 4]), [0, 4, 8, 12, 16]);
        let cuts = shares(16, &[1.0; 3]);
        assert!(cuts.windows(2).all(|cut| cut[1] - cut[0] <= 6), "{cuts:?}");
        assert!(cuts.iter().all(|cut| cut % 2 == 0), "{cuts:?}");
        assert_eq!(shares(16, &[3.0, 1.0]), [0, 12, 16]);
        assert_eq!(shares(1, &[1.0; 3]).last(), Some(&1));
        for count in 1..40 {
            for ranks in 1..=count {
                for speeds in [vec![1.0; ranks], (0..ranks).map(|i| 0.01 + i as f64).collect()] {
                    let cuts = shares(count, &speeds);
                    assert_eq!((cuts[0], cuts[ranks]), (0, count), "{speeds:?}");
                    assert!(
                        cuts.windows(2).all(|cut| cut[0] < cut[1]),
                        "{count}, {speeds:?}: {cuts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn shards_of_games_are_whole_groups() {
        let groups = Shards::new(37, 16).with_own(4..8);
        let games = groups.times(8);
        assert_eq!((games.items(), games.count()), (296, 16));
        let firsts =
            |shards: &Shards| (0..16).map(|s| shards.items_of(s).start).collect::<Vec<_>>();
        assert!(firsts(&games).iter().zip(firsts(&groups)).all(|(game, group)| *game == 8 * group));
        assert_eq!(Shards::new(3, 16).count(), 3);
    }
}
