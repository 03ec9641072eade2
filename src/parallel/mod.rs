//! A run that several members share: threads with a device each, or processes under MPI.
//!
//! A batch is cut into logical [`Shards`], whose number follows from the settings alone; a member works off
//! some of them, and what they give is added up in one tree over the shards' numbers, wherever they lie. So
//! the bytes of a result do not depend on how many members there are. What is added up are vectors of
//! numbers, and nothing here knows what they mean.

mod collective;
mod error;
#[cfg(feature = "mpi")]
pub mod mpi;
mod pieces;
mod shards;
mod threads;
mod wire;

pub use collective::Collective;
pub use error::TeamError;
pub use shards::{Shards, add_up, lefts, nodes, shares, sum_leaves, sum_leaves_in_turn};
pub use threads::threads;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use web_time::Duration;
use wire::Wire;

/// How long a member waits for another before it gives up, unless it is told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What carries bytes between the members of a run.
pub trait Link: Send {
    /// Sends `outgoing[i]` to member `i` and fills `incoming[i]` with what that one sends, of which both know
    /// the length. What would go to the member itself is empty; for what is empty nobody need be waited for.
    ///
    /// # Errors
    /// If a member is gone, or silent for too long.
    fn exchange(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]])
    -> Result<(), TeamError>;
}

/// The members of a run, as one of them sees them.
#[derive(Clone)]
pub struct Team {
    rank: usize,
    /// How fast each member is, relative to the others: `[size]`.
    speeds: Arc<[f64]>,
    hardware: Arc<Hardware>,
    wire: Option<Arc<Mutex<Wire>>>,
}

/// What the members of a run compute with.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// The name of each one's device, by rank.
    pub names: Vec<String>,
    /// What adds up vectors where they lie, if anything does.
    pub collective: Option<Collective>,
    /// Some with devices.
    pub devices: bool,
    /// Some with the CPU.
    pub processors: bool,
    /// Not all with the same, which may round in different ways.
    pub differs: bool,
}

/// What was exchanged with other members.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Seconds from the first word of each exchange to its end, in all.
    pub seconds: f64,
    /// Seconds of these in which this member computed meanwhile.
    pub hidden: f64,
    /// Bytes of vectors that this member has sent.
    pub vectors: u64,
    /// Bytes of everything else that it has sent.
    pub others: u64,
}

/// The sum over a node of the tree of shards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The shards that it is over.
    pub shards: Range<usize>,
    /// Of vectors, for instance gradients; equally long everywhere.
    pub vector: Vec<f32>,
    /// Of a few numbers beside them.
    pub numbers: Vec<f64>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size())
    }
}

impl Default for Team {
    fn default() -> Self {
        Self::alone()
    }
}

impl Team {
    /// A run of one member, which exchanges nothing.
    pub fn alone() -> Self {
        Self { rank: 0, speeds: Arc::new([1.0]), hardware: Arc::default(), wire: None }
    }

    /// Member `rank` of `size`, all of them equally fast.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn new(rank: usize, size: usize, link: Box<dyn Link>) -> Self {
        assert!(rank < size, "a member of the team");
        let wire = Wire { link, traffic: Traffic::default(), sums: 0 };
        let wire = (size > 1).then(|| Arc::new(Mutex::new(wire)));
        Self { rank, speeds: vec![1.0; size].into(), hardware: Arc::default(), wire }
    }

    /// The same members, now that it is known how fast each is: `[size]`, above 0, the same at all of them.
    ///
    /// # Panics
    /// If their number is another.
    pub fn with_speeds(self, speeds: &[f64]) -> Self {
        assert_eq!(speeds.len(), self.size(), "a speed for each member");
        Self { speeds: speeds.into(), ..self }
    }

    /// The same members, now that it is known what they compute with.
    pub fn with_hardware(self, hardware: Hardware) -> Self {
        Self { hardware: Arc::new(hardware), ..self }
    }

    /// Whether a member computes on a device: what each gives is one sum then, and not one for each of its
    /// shards.
    pub fn has_devices(&self) -> bool {
        self.size() > 1 && self.hardware.devices
    }

    /// Whether some members compute on devices and some on the CPU.
    pub fn is_mixed(&self) -> bool {
        self.has_devices() && self.hardware.processors
    }

    /// Whether members may round in different ways, so that each step is the first one's to take.
    pub fn differs(&self) -> bool {
        self.size() > 1 && self.hardware.differs
    }

    /// What they compute with.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Which member this is, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.speeds.len()
    }

    /// Whether this is the one that speaks and saves.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// `items` in `count` shards at most, and which of them are this member's.
    pub fn shards(&self, items: usize, count: usize) -> Shards {
        let all = Shards::new(items, count);
        let cuts = self.cuts(all.count());
        all.of(cuts[self.rank]..cuts[self.rank + 1])
    }

    /// Where each member's part of so many shards begins, and where the last one's ends: `[size + 1]`.
    pub fn cuts(&self, shards: usize) -> Vec<usize> {
        shares(shards, &self.speeds)
    }

    /// The sum over all shards: `nodes` are the [`nodes`] of those that are ours, each with a vector of
    /// `len` numbers and `numbers` others. The result is the same at all members.
    ///
    /// Each member adds up a slice of the vectors and hands it round, or where there are two, each adds up all:
    /// with one node a member, `2 (size - 1) / size` times the vector's bytes are sent.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn sum(
        &self,
        shards: &Shards,
        nodes: Vec<Node>,
        [len, numbers]: [usize; 2],
    ) -> Result<Node, TeamError> {
        let Some(mut wire) = self.wire() else {
            let nodes = nodes.into_iter().map(|node| (node.shards.clone(), node)).collect();
            return Ok(add_up(shards.count(), nodes, &Node::plus));
        };
        wire.sum(self, &self.cuts(shards.count()), nodes, [len, numbers])
    }

    /// The sum over all shards of a few numbers, equally many of each: `ours` are those of our shards, in order.
    /// The same at all members.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn sum_numbers<const N: usize>(
        &self,
        shards: &Shards,
        ours: &[[f64; N]],
    ) -> Result<[f64; N], TeamError> {
        let first = shards.own().start;
        let sum = |node: Range<usize>| {
            let leaf = |at: usize| (at..at + 1, ours[node.start - first + at]);
            let add = |a: [f64; N], b: [f64; N]| std::array::from_fn(|i| a[i] + b[i]);
            let numbers = add_up(node.len(), (0..node.len()).map(leaf).collect(), &add).to_vec();
            Node { shards: node, vector: Vec::new(), numbers }
        };
        let nodes = nodes(shards.count(), &shards.own()).into_iter().map(sum).collect();
        let sum = self.sum(shards, nodes, [0, N])?;
        Ok(std::array::from_fn(|i| sum.numbers[i]))
    }

    /// The sum over all members, each of which has a vector and some numbers, equally many.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn sum_of_members(&self, vector: Vec<f32>, numbers: Vec<f64>) -> Result<Node, TeamError> {
        let lens = [vector.len(), numbers.len()];
        let ours = Node { shards: self.rank..self.rank + 1, vector, numbers };
        let Some(mut wire) = self.wire() else { return Ok(ours) };
        wire.sum(self, &(0..=self.size()).collect::<Vec<_>>(), vec![ours], lens)
    }

    /// Sums of numbers that are exact in any order, for instance counts: over all members.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn total(&self, counts: &[f64]) -> Result<Vec<f64>, TeamError> {
        let mut totals = vec![0.0; counts.len()];
        for theirs in self.numbers(counts)? {
            totals.iter_mut().zip(theirs).for_each(|(sum, x)| *sum += x);
        }
        Ok(totals)
    }

    /// The numbers of all members, who have equally many, by rank.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn numbers(&self, ours: &[f64]) -> Result<Vec<Vec<f64>>, TeamError> {
        let Some(mut wire) = self.wire() else { return Ok(vec![ours.to_vec()]) };
        wire.give(self, ours, vec![vec![0.0; ours.len()]; self.size()])
    }

    /// What all members give, whatever its length, by rank.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn gather(&self, ours: &[u8]) -> Result<Vec<Vec<u8>>, TeamError> {
        let lengths = self.numbers(&[ours.len() as f64])?;
        let Some(mut wire) = self.wire() else { return Ok(vec![ours.to_vec()]) };
        wire.give(self, ours, lengths.iter().map(|of| vec![0; of[0] as usize]).collect())
    }

    /// What the first member gives; what the others would is not looked at.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn from_first(&self, ours: &[u8]) -> Result<Vec<u8>, TeamError> {
        let ours = if self.is_first() { ours } else { &[] };
        Ok(self.gather(ours)?.swap_remove(0))
    }

    /// Whether any member says so.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn any(&self, ours: bool) -> Result<bool, TeamError> {
        Ok(self.total(&[f64::from(u8::from(ours))])?[0] > 0.0)
    }

    /// Checks that all members have the same of something.
    ///
    /// # Errors
    /// [`TeamError::Differs`], the same at all members; or if one is gone or silent.
    pub fn agree(&self, what: &str, ours: &str) -> Result<(), TeamError> {
        let all = self.gather(ours.as_bytes())?;
        match all.iter().position(|theirs| *theirs != all[0]) {
            None => Ok(()),
            Some(rank) => {
                let [theirs, ours] = [rank, 0].map(|rank| String::from_utf8_lossy(&all[rank]));
                let (theirs, ours) = first_difference(&theirs, &ours);
                Err(TeamError::Differs { rank, what: what.to_string(), theirs, ours })
            }
        }
    }

    /// What was exchanged since this was last called.
    pub fn take_traffic(&self) -> Traffic {
        self.wire().map(|mut wire| std::mem::take(&mut wire.traffic)).unwrap_or_default()
    }

    /// Counts bytes of vectors that went to other members by another way.
    pub fn count_vectors(&self, bytes: u64) {
        if let Some(mut wire) = self.wire() {
            wire.traffic.vectors += bytes;
        }
    }

    fn wire(&self) -> Option<MutexGuard<'_, Wire>> {
        self.wire.as_ref().map(|wire| wire.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Node {
    /// The sum of two nodes, of which the other comes next.
    pub fn plus(mut self, other: Self) -> Self {
        self.vector.iter_mut().zip(&other.vector).for_each(|(sum, x)| *sum += x);
        self.numbers.iter_mut().zip(&other.numbers).for_each(|(sum, x)| *sum += x);
        Self { shards: self.shards.start..other.shards.end, ..self }
    }
}

/// The first line in which two texts differ, as each has it.
fn first_difference(theirs: &str, ours: &str) -> (String, String) {
    let mut lines = (theirs.lines(), ours.lines());
    loop {
        match (lines.0.next(), lines.1.next()) {
            (Some(theirs), Some(ours)) if theirs == ours => {}
            (theirs, ours) => {
                return (
                    theirs.unwrap_or("nothing").to_string(),
                    ours.unwrap_or("nothing").to_string(),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upper limit of every wait. It ends a hang and decides nothing else.
    pub const HANG: Duration = Duration::from_secs(600);

    /// What `run` gives at each of so many members, by rank.
    pub fn members<T: Send>(size: usize, run: impl Fn(Team) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let run = &run;
            let teams = threads(size, HANG);
            let all: Vec<_> =
                teams.into_iter().map(|team| scope.spawn(move || run(team))).collect();
            all.into_iter().map(|member| member.join().unwrap()).collect()
        })
    }

    /// Numbers whose sum depends on the order in which they are added.
    fn leaf(shard: usize) -> (Vec<f32>, Vec<f64>) {
        let number = |i: usize| ((i * 7919 + 13) % 1009) as f32 * 10f32.powi((i % 9) as i32 - 4);
        let vector = (0..23).map(|i| number(shard * 31 + i)).collect();
        (vector, vec![f64::from(number(shard)) / 3.0, 1.0])
    }

    fn sum(team: &Team, count: usize) -> Node {
        let shards = team.shards(40, count);
        let nodes = nodes(shards.count(), &shards.own()).into_iter().map(|node| {
            let leaves = node.clone().map(|shard| {
                let (vector, numbers) = leaf(shard);
                let at = shard - node.start;
                (at..at + 1, Node { shards: shard..shard + 1, vector, numbers })
            });
            add_up(node.len(), leaves.collect(), &Node::plus)
        });
        team.sum(&shards, nodes.collect(), [23, 2]).unwrap()
    }

    #[test]
    fn sums_have_the_same_bytes_whoever_makes_them() {
        for count in [1, 3, 12, 16] {
            let alone = sum(&Team::alone(), count);
            assert_eq!(alone.numbers[1], count as f64);
            for size in 2..6 {
                for node in members(size, |team| sum(&team, count)) {
                    assert_eq!(node, alone, "{count} shards, {size} members");
                }
            }
        }
    }

    #[test]
    fn as_many_bytes_are_sent_as_a_ring_would() {
        for size in [2, 4, 8] {
            let sent = members(size, |team| {
                let vector = vec![1.0; 800];
                let nodes = nodes(16, &team.shards(16, 16).own());
                let node = Node { shards: nodes[0].clone(), vector, numbers: vec![1.0] };
                let sum = team.sum(&team.shards(16, 16), vec![node], [800, 1]).unwrap();
                assert_eq!(sum.vector, vec![size as f32; 800]);
                team.take_traffic()
            });
            for traffic in &sent {
                assert_eq!(traffic.vectors as usize, 800 * 4 * 2 * (size - 1) / size);
            }
            let others: u64 = sent.iter().map(|traffic| traffic.others).sum();
            assert_eq!(
                others as usize,
                8 * 2 * (size - 1),
                "to the one who adds them up, and back"
            );
        }
    }

    #[test]
    fn what_is_gathered_is_the_same_everywhere() {
        let told = members(3, |team| {
            let text = "x".repeat(team.rank());
            assert_eq!(team.gather(text.as_bytes()).unwrap(), [&b""[..], b"x", b"xx"]);
            assert_eq!(team.from_first(text.as_bytes()).unwrap(), b"");
            assert_eq!(team.total(&[1.0, team.rank() as f64]).unwrap(), [3.0, 3.0]);
            assert!(team.any(team.rank() == 2).unwrap());
            assert!(!team.any(false).unwrap());
            team.agree("size", "3").unwrap();
            let version = if team.rank() == 1 { "new" } else { "old" };
            team.agree("version", version).unwrap_err().to_string()
        });
        assert!(told.iter().all(|text| *text == told[0]));
        assert_eq!(told[0], "rank 1 has another version than rank 0: new, not old");
    }

    #[test]
    fn who_is_gone_or_silent_is_named() {
        let told = members(3, |team| match team.rank() {
            2 => None,
            _ => team.total(&[1.0]).err(),
        });
        assert!(
            told[0].as_ref().is_some_and(|error| error.to_string().starts_with("rank 2 is gone"))
        );
        let teams = threads(2, Duration::from_millis(20));
        let error = teams[0].total(&[1.0]).unwrap_err().to_string();
        assert!(error.starts_with("rank 1 has not answered"), "{error}");
    }
}
