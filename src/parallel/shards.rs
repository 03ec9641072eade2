//! The logical shards of a batch, and the one tree in which what they give is added up.
//!
//! How many shards there are follows from the settings alone; who works them off does not change a bit of
//! what comes out. The tree over shards `0..n` splits each of its nodes at the largest power of two below
//! its length, so that neighbours whose number is a power of two are a node wherever they can be.

use std::ops::Range;

/// How the items of a run, say its groups of games, are cut into shards, and which of those are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    items: usize,
    /// Things in an item, which are never cut apart.
    each: usize,
    count: usize,
    /// Strata, which shards are made of.
    strata: usize,
    own: Range<usize>,
}

impl Shards {
    /// `items` in `count` shards, at least one item in each, all of them ours.
    ///
    /// # Panics
    /// If there are no items.
    pub fn new(items: usize, count: usize) -> Self {
        assert!(items > 0, "there is nothing to cut");
        let count = count.clamp(1, items);
        Self { items, each: 1, count, strata: count, own: 0..count }
    }

    /// The same cut, of which only the shards `own` are ours.
    pub fn of(self, own: Range<usize>) -> Self {
        assert!(own.start <= own.end && own.end <= self.count, "shards that there are");
        Self { own, ..self }
    }

    /// As many shards, made of `strata` smaller parts, all of a size: what is drawn from the items is drawn from each
    /// of these alike, whatever shards they make up.
    ///
    /// # Panics
    /// If there are fewer strata than shards, or fewer items than strata.
    pub fn with_strata(self, strata: usize) -> Self {
        assert!(self.count <= strata && strata <= self.items, "something in each");
        Self { strata, ..self }
    }

    /// The strata of a shard.
    pub fn strata_of(&self, shard: usize) -> Range<usize> {
        self.stratum(shard)..self.stratum(shard + 1)
    }

    /// The items of each stratum of our shards, with its number.
    pub fn own_strata(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let own = self.stratum(self.own.start)..self.stratum(self.own.end);
        own.map(|stratum| (stratum, self.cut(stratum)..self.cut(stratum + 1)))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// All items.
    pub fn items(&self) -> usize {
        self.items * self.each
    }

    /// The shards that are ours.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// The items of a shard.
    pub fn items_of(&self, shard: usize) -> Range<usize> {
        self.first(shard)..self.first(shard + 1)
    }

    /// The places of the items of one of our shards among all that are ours.
    pub fn places_of(&self, shard: usize) -> Range<usize> {
        let first = self.first(self.own.start);
        self.first(shard) - first..self.first(shard + 1) - first
    }

    /// The items of our shards.
    pub fn own_items(&self) -> Range<usize> {
        self.first(self.own.start)..self.first(self.own.end)
    }

    /// The same cut, told in what the items are made of, `each` of them in an item: of groups, for instance,
    /// the games.
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
}

/// Where a node of the tree splits.
pub fn middle(node: &Range<usize>) -> usize {
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

/// The nodes to the left of the way from a node to its last leaf: the node's sum is that of the first, and the
/// second, and so on to the leaf, added up from the end.
pub fn lefts(node: &Range<usize>) -> Vec<Range<usize>> {
    let (mut found, mut node) = (Vec::new(), node.clone());
    while node.len() > 1 {
        let middle = middle(&node);
        found.push(node.start..middle);
        node.start = middle;
    }
    found
}

/// Adds up values by the tree over `0..count`; they are those of some of its nodes, in order, which make
/// it up.
pub fn add_up<T>(count: usize, values: Vec<(Range<usize>, T)>, add: &impl Fn(T, T) -> T) -> T {
    let mut values = values.into_iter().peekable();
    add_node(0..count, &mut values, add)
}

/// The sum over a node's leaves, `count` of them, each as `leaf` gives it: by the tree, and on as many threads as
/// there are. What is added up is still in the caches then, and little of it is there at a time.
pub fn sum_leaves<T: Send>(
    count: usize,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    assert!(count > 0, "a sum of something");
    sum_node(0..count, leaf, add)
}

fn sum_node<T: Send>(
    node: Range<usize>,
    leaf: &(impl Fn(usize) -> T + Sync),
    add: &(impl Fn(T, T) -> T + Sync),
) -> T {
    if node.len() == 1 {
        return leaf(node.start);
    }
    let middle = middle(&node);
    let (left, right) = rayon::join(
        || sum_node(node.start..middle, leaf, add),
        || sum_node(middle..node.end, leaf, add),
    );
    add(left, right)
}

/// The same sum, one leaf after the other, for leaves that take all threads or much memory: never are more
/// values there than the tree is high, and one.
pub fn sum_leaves_in_turn<T>(
    count: usize,
    leaf: &impl Fn(usize) -> T,
    add: &impl Fn(T, T) -> T,
) -> T {
    assert!(count > 0, "a sum of something");
    sum_node_in_turn(0..count, leaf, add)
}

fn sum_node_in_turn<T>(
    node: Range<usize>,
    leaf: &impl Fn(usize) -> T,
    add: &impl Fn(T, T) -> T,
) -> T {
    if node.len() == 1 {
        return leaf(node.start);
    }
    let middle = middle(&node);
    let left = sum_node_in_turn(node.start..middle, leaf, add);
    add(left, sum_node_in_turn(middle..node.end, leaf, add))
}

fn add_node<T>(
    node: Range<usize>,
    values: &mut std::iter::Peekable<impl Iterator<Item = (Range<usize>, T)>>,
    add: &impl Fn(T, T) -> T,
) -> T {
    if values.peek().is_some_and(|(at, _)| *at == node) {
        return values.next().expect("it was looked at").1;
    }
    assert!(node.len() > 1, "every shard has a value");
    let middle = middle(&node);
    let left = add_node(node.start..middle, values, add);
    let right = add_node(middle..node.end, values, add);
    add(left, right)
}

/// Where the shares of members that are `speeds` times as fast as one another begin and end among `count`
/// shards: `[members + 1]`. Members alike get whole nodes of the tree as large as can be had without giving
/// anyone more than the fairest share.
pub fn shares(count: usize, speeds: &[f64]) -> Vec<usize> {
    let members = speeds.len();
    let fair = count.div_ceil(members);
    let is_fair = |block: &usize| {
        let blocks = count.div_ceil(*block);
        blocks >= members && blocks.div_ceil(members) * block <= fair
    };
    let alike = speeds.iter().all(|speed| *speed == speeds[0]);
    let block = (0..usize::BITS).map(|bit| 1 << bit).take_while(|b| *b <= fair);
    let block = if alike { block.filter(is_fair).max().unwrap_or(1) } else { 1 };
    let blocks = count.div_ceil(block);
    let all: f64 = speeds.iter().sum();
    let mut so_far = 0.0;
    let mut cuts = vec![0];
    for (member, speed) in speeds.iter().enumerate() {
        so_far += speed;
        let cut = match alike {
            true => (member + 1) * blocks / members,
            false => (so_far / all * blocks as f64).round() as usize,
        };
        let cut = (cut * block).min(count);
        // Everyone has a shard, where there are so many.
        let [least, most] = [cuts[member] + 1, (count + member + 1).saturating_sub(members)];
        cuts.push(if least <= most { cut.clamp(least, most) } else { cut });
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_make_up_what_they_are_asked_for() {
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
    fn sums_do_not_depend_on_who_makes_them() {
        let add = |a: String, b: String| format!("({a}{b})");
        for count in [1, 2, 5, 12, 16] {
            let leaf = |i: usize| (i..i + 1, format!("{i:x}"));
            let whole = add_up(count, (0..count).map(leaf).collect(), &add);
            for members in 1..=count {
                let cuts = shares(count, &vec![1.0; members]);
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
                assert_eq!(add_up(count, parts, &add), whole, "{count} shards, {members} members");
            }
        }
        for count in 1..20 {
            let name = |i: usize| format!("{i:x}");
            let whole = add_up(count, (0..count).map(|i| (i..i + 1, name(i))).collect(), &add);
            assert_eq!(sum_leaves(count, &name, &add), whole);
            assert_eq!(sum_leaves_in_turn(count, &name, &add), whole);
        }
        for count in 1..20 {
            let node = |node: Range<usize>| {
                let leaf = |at: usize| format!("{:x}", node.start + at);
                sum_leaves(node.len(), &leaf, &add)
            };
            let leaf = format!("{:x}", count - 1);
            let sum =
                lefts(&(0..count)).into_iter().rev().fold(leaf, |sum, left| add(node(left), sum));
            assert_eq!(sum, node(0..count));
        }
        let sum = add_up(5, (0..5).map(|i| (i..i + 1, i.to_string())).collect(), &add);
        assert_eq!(sum, "(((01)(23))4)");
    }

    #[test]
    fn shares_are_fair_and_whole_nodes_where_they_can_be() {
        assert_eq!(shares(16, &[1.0; 2]), [0, 8, 16]);
        assert_eq!(shares(16, &[1.0; 4]), [0, 4, 8, 12, 16]);
        let cuts = shares(16, &[1.0; 3]);
        assert!(cuts.windows(2).all(|cut| cut[1] - cut[0] <= 6), "{cuts:?}");
        assert!(cuts.iter().all(|cut| cut % 2 == 0), "{cuts:?}");
        assert_eq!(shares(16, &[3.0, 1.0]), [0, 12, 16]);
        assert_eq!(shares(1, &[1.0; 3]).last(), Some(&1));
        for count in 1..40 {
            for members in 1..=count {
                for speeds in [vec![1.0; members], (0..members).map(|i| 0.01 + i as f64).collect()]
                {
                    let cuts = shares(count, &speeds);
                    assert_eq!((cuts[0], cuts[members]), (0, count), "{speeds:?}");
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
        let groups = Shards::new(37, 16).of(4..8);
        let games = groups.times(8);
        assert_eq!((games.items(), games.count()), (296, 16));
        let firsts =
            |shards: &Shards| (0..16).map(|s| shards.items_of(s).start).collect::<Vec<_>>();
        assert!(firsts(&games).iter().zip(firsts(&groups)).all(|(game, group)| *game == 8 * group));
        assert_eq!(Shards::new(3, 16).count(), 3);
    }
}
