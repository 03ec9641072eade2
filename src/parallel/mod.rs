//! Data-parallel runs: several ranks (threads with a device each, or MPI processes) share one run.
//!
//! A batch is cut into logical [`Shards`], whose number follows from the settings alone. Each rank
//! computes some of the shards, and the partial results are summed in one fixed binary tree over all
//! shards. A result therefore has the same bytes for any number of ranks. The vectors that are summed
//! are opaque to this module.

mod collectives;
mod error;
#[cfg_attr(not(feature = "mpi"), path = "no_mpi.rs")]
pub mod mpi;
mod nccl;
mod pipelined;
mod shards;
#[cfg(test)]
pub(crate) mod tests;
mod threads;

pub use error::TeamError;
pub use nccl::NcclGroup;
pub use shards::{LeafThreads, Shards, left_siblings, shard_boundaries, sum_leaves};
pub use threads::thread_teams;

use collectives::Collectives;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use web_time::Duration;

/// Default time that a rank waits for a message from another one before it fails.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// A transport of bytes between the ranks of a run.
pub trait Link: Send {
    /// Sends `outbox[i]` to rank `i` and returns the message from each rank, that from rank `i` of
    /// `lens[i]` bytes: both sides know the length of a message. Messages to the rank itself are
    /// empty, and an empty message need not be waited for.
    ///
    /// # Errors
    /// If a rank has ended, or has not responded within the timeout.
    fn exchange(&mut self, outbox: &[&[u8]], lens: &[usize]) -> Result<Vec<Vec<u8>>, TeamError>;
}

/// A rank's handle to the group of ranks that share a run, with their collective operations.
///
/// All ranks must call the same operations in the same order. Cloning is cheap; clones share the link.
///
/// ```
/// use grove::parallel::{DEFAULT_TIMEOUT, thread_teams};
///
/// // Three threads sum what they have; each of them receives the result.
/// std::thread::scope(|scope| {
///     for team in thread_teams(3, DEFAULT_TIMEOUT) {
///         scope.spawn(move || {
///             let sum = team.all_reduce_counts(&[1.0, team.rank() as f64]).unwrap();
///             assert_eq!(sum, [3.0, 0.0 + 1.0 + 2.0]);
///         });
///     }
/// });
/// ```
#[derive(Clone)]
pub struct Team {
    rank: usize,
    /// Relative speed of each rank: `[size]`.
    speeds: Arc<[f64]>,
    hardware: Arc<Hardware>,
    collectives: Option<Arc<Mutex<Collectives>>>,
}

/// The devices that the ranks of a run compute on.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// The name of each rank's device.
    pub device_names: Vec<String>,
    /// The group that sums vectors on CUDA devices without host memory, if available.
    pub nccl: Option<NcclGroup>,
    /// Whether any rank computes on a device (a GPU).
    pub has_devices: bool,
    /// Whether any rank computes on the CPU.
    pub has_cpus: bool,
    /// Whether the ranks' arithmetic may round differently.
    pub rounds_differently: bool,
}

/// Communication of a rank with the others, accumulated over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Seconds spent in exchanges.
    pub seconds: f64,
    /// Seconds of these that overlapped with computation on this rank.
    pub hidden_seconds: f64,
    /// Bytes of vectors (gradients) that this rank has sent.
    pub vector_bytes: u64,
    /// Bytes of all other messages that this rank has sent.
    pub other_bytes: u64,
}

/// A partial sum over shards: at a node of the tree in which the sum over all shards is formed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialSum {
    /// The shards that are summed.
    pub shards: Range<usize>,
    /// Sum of their vectors, for instance gradients; the same length in all partial sums.
    pub vector: Vec<f32>,
    /// Sum of a few numbers that accompany the vectors.
    pub numbers: Vec<f64>,
}

/// Lengths of the two parts of a [`PartialSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSumLen {
    /// Length of [`PartialSum::vector`].
    pub vector: usize,
    /// Length of [`PartialSum::numbers`].
    pub numbers: usize,
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
    /// A team of one rank, without communication.
    pub fn alone() -> Self {
        Self { rank: 0, speeds: Arc::new([1.0]), hardware: Arc::default(), collectives: None }
    }

    /// Rank `rank` of `size` equally fast ranks.
    ///
    /// # Panics
    /// Unless `rank < size`.
    pub fn new(rank: usize, size: usize, link: Box<dyn Link>) -> Self {
        assert!(rank < size, "rank {rank} of {size}");
        let collectives = Collectives { link, traffic: Traffic::default(), num_sums: 0 };
        let collectives = (size > 1).then(|| Arc::new(Mutex::new(collectives)));
        Self { rank, speeds: vec![1.0; size].into(), hardware: Arc::default(), collectives }
    }

    /// Sets the relative speed of each rank, by which shards are distributed: `[size]`, above 0, equal
    /// on all ranks.
    ///
    /// # Panics
    /// If `speeds` has another length.
    pub fn with_speeds(self, speeds: &[f64]) -> Self {
        assert_eq!(speeds.len(), self.size(), "a speed for each rank");
        Self { speeds: speeds.into(), ..self }
    }

    /// Sets the hardware of the ranks, known once each has chosen its device.
    pub fn with_hardware(self, hardware: Hardware) -> Self {
        Self { hardware: Arc::new(hardware), ..self }
    }

    /// Whether any of several ranks computes on a device. Each rank then contributes one sum instead
    /// of one per shard.
    pub fn has_devices(&self) -> bool {
        self.size() > 1 && self.hardware.has_devices
    }

    /// Whether some ranks compute on devices and others on the CPU.
    pub fn is_mixed(&self) -> bool {
        self.has_devices() && self.hardware.has_cpus
    }

    /// Whether the ranks may round differently. Rank 0 then computes each optimizer step for all.
    pub fn rounds_differently(&self) -> bool {
        self.size() > 1 && self.hardware.rounds_differently
    }

    /// The hardware of the ranks.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// This rank's index, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.speeds.len()
    }

    /// Whether this is rank 0, which prints and saves.
    pub fn is_root(&self) -> bool {
        self.rank == 0
    }

    /// Cuts items into at most `count` shards and assigns this rank its share of them.
    pub fn cut_into_shards(&self, num_items: usize, count: usize) -> Shards {
        let all = Shards::new(num_items, count);
        let boundaries = self.shard_boundaries(all.count());
        all.with_own_shards(boundaries[self.rank]..boundaries[self.rank + 1])
    }

    /// Boundaries between the ranks' shares of `shards` shards: `[size + 1]`.
    pub fn shard_boundaries(&self, shards: usize) -> Vec<usize> {
        shard_boundaries(shards, &self.speeds)
    }

    /// Sums over all shards and returns the same result on every rank. `ours` are the partial sums
    /// at the [nodes](Shards::own_nodes) of this rank's shards, each of length `len`.
    ///
    /// Every rank reduces one slice of the vectors and sends it to the others (reduce-scatter, then
    /// all-gather); two ranks exchange whole vectors instead. With one partial sum per rank, each sends
    /// `2 (size - 1) / size` times the bytes of a vector.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_reduce_shards(
        &self,
        shards: &Shards,
        ours: Vec<PartialSum>,
        len: PartialSumLen,
    ) -> Result<PartialSum, TeamError> {
        let Some(mut collectives) = self.lock_collectives() else {
            let [sum] = ours.try_into().expect("a rank alone has one node, the root");
            return Ok(sum);
        };
        collectives.all_reduce(self, &self.shard_boundaries(shards.count()), ours, len)
    }

    /// Sums `N` numbers over the items of all shards, those of a shard in order, and returns the same result on every
    /// rank. `numbers_of` gives those of an item of this rank by its local index.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_reduce_item_numbers<const N: usize>(
        &self,
        shards: &Shards,
        numbers_of: impl Fn(usize) -> [f64; N],
    ) -> Result<[f64; N], TeamError> {
        let shard_sum = |shard: usize| {
            let numbers = shards.local_items_of(shard).map(&numbers_of);
            numbers.fold([0.0; N], |a, b| std::array::from_fn(|i| a[i] + b[i]))
        };
        let ours: Vec<[f64; N]> = shards.own_shards().map(shard_sum).collect();
        self.all_reduce_shard_numbers(shards, &ours)
    }

    /// Sums `N` numbers over all shards and returns the same result on every rank. `ours` are the
    /// numbers of this rank's shards, in order.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    fn all_reduce_shard_numbers<const N: usize>(
        &self,
        shards: &Shards,
        ours: &[[f64; N]],
    ) -> Result<[f64; N], TeamError> {
        let first = shards.own_shards().start;
        let sum = |node: Range<usize>| {
            let leaf = |at: usize| ours[node.start - first + at];
            let add = |a: [f64; N], b: [f64; N]| std::array::from_fn(|i| a[i] + b[i]);
            let numbers = sum_leaves(node.len(), LeafThreads::One, &leaf, &add).to_vec();
            PartialSum { shards: node, vector: Vec::new(), numbers }
        };
        let ours = shards.own_nodes().into_iter().map(sum).collect();
        let sum = self.all_reduce_shards(shards, ours, PartialSumLen { vector: 0, numbers: N })?;
        Ok(std::array::from_fn(|i| sum.numbers[i]))
    }

    /// Sums one vector and some numbers per rank, of equal lengths on all ranks.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_reduce_ranks(
        &self,
        vector: Vec<f32>,
        numbers: Vec<f64>,
    ) -> Result<PartialSum, TeamError> {
        let len = PartialSumLen { vector: vector.len(), numbers: numbers.len() };
        let ours = PartialSum { shards: self.rank..self.rank + 1, vector, numbers };
        let Some(mut collectives) = self.lock_collectives() else { return Ok(ours) };
        collectives.all_reduce(self, &(0..=self.size()).collect::<Vec<_>>(), vec![ours], len)
    }

    /// Sums numbers over all ranks. Meant for sums that are exact in any order, such as counts.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_reduce_counts(&self, counts: &[f64]) -> Result<Vec<f64>, TeamError> {
        let mut totals = vec![0.0; counts.len()];
        for theirs in self.all_gather_numbers(counts)? {
            totals.iter_mut().zip(theirs).for_each(|(sum, x)| *sum += x);
        }
        Ok(totals)
    }

    /// Collects the numbers of every rank, equally many of each, in order of rank.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_gather_numbers(&self, ours: &[f64]) -> Result<Vec<Vec<f64>>, TeamError> {
        let Some(mut collectives) = self.lock_collectives() else { return Ok(vec![ours.to_vec()]) };
        collectives.all_gather(self, ours, |_| ours.len())
    }

    /// Collects the bytes of every rank, of any length, in order of rank.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_gather(&self, ours: &[u8]) -> Result<Vec<Vec<u8>>, TeamError> {
        let lengths = self.all_gather_numbers(&[ours.len() as f64])?;
        let Some(mut collectives) = self.lock_collectives() else { return Ok(vec![ours.to_vec()]) };
        collectives.all_gather(self, ours, |rank| lengths[rank][0] as usize)
    }

    /// Returns the bytes of rank 0 on every rank; `ours` is ignored on the others.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn broadcast(&self, ours: &[u8]) -> Result<Vec<u8>, TeamError> {
        let ours = if self.is_root() { ours } else { &[] };
        Ok(self.all_gather(ours)?.swap_remove(0))
    }

    /// Whether `ours` is true on any rank.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn any(&self, ours: bool) -> Result<bool, TeamError> {
        Ok(self.all_reduce_counts(&[f64::from(u8::from(ours))])?[0] > 0.0)
    }

    /// Checks that all ranks have the same text, for instance of their settings. `what` names it in
    /// the error.
    ///
    /// # Errors
    /// [`TeamError::Differs`], equal on all ranks, or if a rank has ended or does not respond.
    pub fn check_identical(&self, what: &str, ours: &str) -> Result<(), TeamError> {
        let all = self.all_gather(ours.as_bytes())?;
        match all.iter().position(|theirs| *theirs != all[0]) {
            None => Ok(()),
            Some(rank) => {
                let [theirs, ours] = [rank, 0].map(|rank| String::from_utf8_lossy(&all[rank]));
                let (theirs, ours) = find_difference(&theirs, &ours);
                Err(TeamError::Differs { rank, what: what.to_string(), theirs, ours })
            }
        }
    }

    /// Returns the communication since the last call.
    pub fn take_traffic(&self) -> Traffic {
        self.lock_collectives()
            .map(|mut collectives| std::mem::take(&mut collectives.traffic))
            .unwrap_or_default()
    }

    /// Adds bytes of vectors that were not sent over the link.
    pub fn add_vector_bytes(&self, bytes: u64) {
        if let Some(mut collectives) = self.lock_collectives() {
            collectives.traffic.vector_bytes += bytes;
        }
    }

    /// Locks the collective operations with the other ranks; `None` for a rank alone.
    fn lock_collectives(&self) -> Option<MutexGuard<'_, Collectives>> {
        self.collectives
            .as_ref()
            .map(|collectives| collectives.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PartialSum {
    /// Adds the partial sum that comes next in the order of shards.
    pub fn add_next(self, other: Self) -> Self {
        self.add_reusing(other, drop)
    }

    /// Adds like [`PartialSum::add_next`], and passes the other's vector to `give_back` for reuse.
    pub fn add_reusing(mut self, other: Self, give_back: impl FnOnce(Vec<f32>)) -> Self {
        self.vector.iter_mut().zip(&other.vector).for_each(|(sum, x)| *sum += x);
        self.numbers.iter_mut().zip(&other.numbers).for_each(|(sum, x)| *sum += x);
        give_back(other.vector);
        Self { shards: self.shards.start..other.shards.end, ..self }
    }
}

/// Finds the first line in which two texts differ, as each has it.
fn find_difference(theirs: &str, ours: &str) -> (String, String) {
    let (mut theirs, mut ours) = (theirs.lines(), ours.lines());
    loop {
        let lines = [theirs.next(), ours.next()];
        if lines[0].is_none() || lines[0] != lines[1] {
            return lines.map(|line| line.unwrap_or("nothing").to_string()).into();
        }
    }
}
