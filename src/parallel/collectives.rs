//! Collective operations on top of a point-to-point link.

use super::shards::{sum_tree, tree_nodes};
use super::{Link, PartialSum, PartialSumLen, Team, TeamError, Traffic};
use std::ops::Range;
use web_time::Instant;

/// Collective operations over a link, whose traffic they count.
pub struct Collectives {
    pub link: Box<dyn Link>,
    pub traffic: Traffic,
    /// Number of sums so far, equal on all ranks.
    pub num_sums: usize,
}

/// Division of the work of a sum among several ranks.
struct SumPlan {
    num_ranks: usize,
    rank: usize,
    num_shards: usize,
    len: PartialSumLen,
    /// Nodes of the tree at which each rank has a partial sum.
    nodes: Vec<Vec<Range<usize>>>,
    /// Whether the ranks send whole vectors. Two ranks with one node each do: as many bytes as by halves, in one
    /// exchange.
    sends_whole_vectors: bool,
    /// The rank that sums the numbers and sends them along with its slice, in rotation.
    numbers_rank: usize,
}

impl SumPlan {
    /// Plans the sum with this index; `boundaries` are those of the ranks' shards.
    fn new(team: &Team, boundaries: &[usize], len: PartialSumLen, index: usize) -> Self {
        let (num_ranks, rank, num_shards) = (team.size(), team.rank, boundaries[team.size()]);
        let of_rank = |bounds: &[usize]| tree_nodes(num_shards, &(bounds[0]..bounds[1]));
        let nodes: Vec<_> = boundaries.windows(2).map(of_rank).collect();
        let sends_whole_vectors = num_ranks == 2 && nodes.iter().all(|nodes| nodes.len() == 1);
        Self {
            num_ranks,
            rank,
            num_shards,
            len,
            nodes,
            sends_whole_vectors,
            numbers_rank: index % num_ranks,
        }
    }

    /// The slice of a vector that a rank reduces.
    fn slice(&self, rank: usize) -> Range<usize> {
        let (len, num_ranks) = (self.len.vector, self.num_ranks);
        if self.sends_whole_vectors {
            0..len
        } else {
            len * rank / num_ranks..len * (rank + 1) / num_ranks
        }
    }

    /// Whether ranks reduce different slices, which are then to be gathered; otherwise each reduces everything.
    fn has_slices(&self) -> bool {
        !self.sends_whole_vectors && self.len.vector > 0
    }

    /// Number of f64 numbers that a rank sums beside its slice.
    fn num_numbers(&self, rank: usize) -> usize {
        if !self.has_slices() || rank == self.numbers_rank { self.len.numbers } else { 0 }
    }

    /// Bytes of a rank's slice of a vector, and of the numbers that it sums.
    fn slice_bytes(&self, rank: usize) -> [usize; 2] {
        [size_of::<f32>() * self.slice(rank).len(), size_of::<f64>() * self.num_numbers(rank)]
    }
}

impl Traffic {
    /// Counts as many messages, each with so many bytes of a vector and of numbers.
    fn add(&mut self, [vector_bytes, number_bytes]: [usize; 2], messages: usize) {
        self.vector_bytes += (messages * vector_bytes) as u64;
        self.other_bytes += (messages * number_bytes) as u64;
    }
}

impl Collectives {
    /// Sends a message to each rank, and returns those of the others, of which that from rank `i` has `len_from(i)`
    /// bytes. The message to this rank, `rank`, is empty.
    fn exchange(
        &mut self,
        rank: usize,
        outbox: &[&[u8]],
        len_from: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<u8>>, TeamError> {
        let len = |from| if from == rank { 0 } else { len_from(from) };
        let lens: Vec<usize> = (0..outbox.len()).map(len).collect();
        let started = Instant::now();
        let received = self.link.exchange(outbox, &lens);
        self.traffic.seconds += started.elapsed().as_secs_f64();
        received
    }

    /// Sends `ours` to all other ranks and returns the values of every rank, `len_of(i)` of them of rank `i`.
    pub fn all_gather<T: bytemuck::Pod>(
        &mut self,
        team: &Team,
        ours: &[T],
        len_of: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<T>>, TeamError> {
        let bytes: &[u8] = bytemuck::cast_slice(ours);
        let mut outbox = vec![bytes; team.size()];
        outbox[team.rank] = &[];
        self.traffic.other_bytes += ((team.size() - 1) * bytes.len()) as u64;
        let mut all = self.exchange(team.rank, &outbox, |from| size_of::<T>() * len_of(from))?;
        all[team.rank] = bytes.to_vec();
        Ok(all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
    }

    /// Implements [`Team::all_reduce_shards`] for several ranks; `boundaries` are those of their shards.
    pub fn all_reduce(
        &mut self,
        team: &Team,
        boundaries: &[usize],
        ours: Vec<PartialSum>,
        len: PartialSumLen,
    ) -> Result<PartialSum, TeamError> {
        let plan = SumPlan::new(team, boundaries, len, self.num_sums);
        self.num_sums += 1;
        let are_complete = ours.iter().map(|sum| &sum.shards).eq(&plan.nodes[plan.rank]);
        assert!(are_complete, "a partial sum at each node of this rank's shards");
        let sum = self.reduce_scatter(&plan, &ours)?;
        if plan.has_slices() { self.all_gather_slices(&plan, sum) } else { Ok(sum) }
    }

    /// Sends each rank its slice of our partial sums, receives our slice of theirs, and returns the sum of all.
    fn reduce_scatter(
        &mut self,
        plan: &SumPlan,
        ours: &[PartialSum],
    ) -> Result<PartialSum, TeamError> {
        let rank = plan.rank;
        let message = |other: usize| -> Vec<u8> {
            let mut bytes = Vec::new();
            for sum in ours {
                let numbers = &sum.numbers[..plan.num_numbers(other)];
                bytes.extend_from_slice(bytemuck::cast_slice(&sum.vector[plan.slice(other)]));
                bytes.extend_from_slice(bytemuck::cast_slice(numbers));
            }
            bytes
        };
        let mut messages: Vec<Vec<u8>> = (0..plan.num_ranks).map(message).collect();
        let own = std::mem::take(&mut messages[rank]);
        let outbox: Vec<&[u8]> = messages.iter().map(|bytes| &bytes[..]).collect();
        // Bytes of our slice of one partial sum.
        let [vector_bytes, number_bytes] = plan.slice_bytes(rank);
        let bytes = vector_bytes + number_bytes;
        let mut received = self.exchange(rank, &outbox, |from| plan.nodes[from].len() * bytes)?;
        received[rank] = own;
        for other in (0..plan.num_ranks).filter(|other| *other != rank) {
            self.traffic.add(plan.slice_bytes(other), ours.len());
        }
        let mut all = Vec::new();
        for (nodes, received) in plan.nodes.iter().zip(&received) {
            for (at, shards) in nodes.iter().enumerate() {
                let (vector, numbers) = received[at * bytes..][..bytes].split_at(vector_bytes);
                let sum = PartialSum {
                    shards: shards.clone(),
                    vector: bytemuck::pod_collect_to_vec(vector),
                    numbers: bytemuck::pod_collect_to_vec(numbers),
                };
                all.push((shards.clone(), sum));
            }
        }
        Ok(sum_tree(plan.num_shards, all, &PartialSum::add_next))
    }

    /// Sends every rank our slice of the sum, the one of `numbers_rank` followed by the numbers, and returns the whole
    /// sum.
    fn all_gather_slices(
        &mut self,
        plan: &SumPlan,
        sum: PartialSum,
    ) -> Result<PartialSum, TeamError> {
        let rank = plan.rank;
        let mut ours = bytemuck::cast_slice::<f32, u8>(&sum.vector).to_vec();
        ours.extend_from_slice(bytemuck::cast_slice(&sum.numbers));
        let mut outbox = vec![&ours[..]; plan.num_ranks];
        outbox[rank] = &[];
        let mut received =
            self.exchange(rank, &outbox, |from| plan.slice_bytes(from).iter().sum())?;
        received[rank] = ours;
        self.traffic.add(plan.slice_bytes(rank), plan.num_ranks - 1);
        let (mut vector, mut numbers) = (Vec::with_capacity(plan.len.vector), Vec::new());
        for (from, bytes) in received.iter().enumerate() {
            let [vector_bytes, _] = plan.slice_bytes(from);
            let (slice, slice_numbers) = bytes.split_at(vector_bytes);
            vector.extend(bytemuck::pod_collect_to_vec::<u8, f32>(slice));
            numbers.extend(bytemuck::pod_collect_to_vec::<u8, f64>(slice_numbers));
        }
        Ok(PartialSum { vector, numbers, ..sum })
    }
}
