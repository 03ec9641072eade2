//! Collective operations on top of a point-to-point link.

use super::shards::{sum_tree, tree_nodes};
use super::{Link, PartialSum, PartialSumLen, Team, TeamError, Traffic};
use std::ops::Range;
use web_time::Instant;

/// A link with its traffic statistics.
pub struct MeteredLink {
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
    is_direct: bool,
    /// The rank that sums the numbers and sends them along with its slice, in rotation.
    adder: usize,
}

impl SumPlan {
    /// Plans the sum with this index; `boundaries` are those of the ranks' shards.
    fn new(team: &Team, boundaries: &[usize], len: PartialSumLen, index: usize) -> Self {
        let (num_ranks, rank, num_shards) = (team.size(), team.rank, boundaries[team.size()]);
        let of_rank = |bounds: &[usize]| tree_nodes(num_shards, &(bounds[0]..bounds[1]));
        let nodes: Vec<_> = boundaries.windows(2).map(of_rank).collect();
        let is_direct = num_ranks == 2 && nodes.iter().all(|nodes| nodes.len() == 1);
        Self { num_ranks, rank, num_shards, len, nodes, is_direct, adder: index % num_ranks }
    }

    /// The slice of a vector that a rank reduces.
    fn slice(&self, rank: usize) -> Range<usize> {
        let (len, num_ranks) = (self.len.vector, self.num_ranks);
        if self.is_direct { 0..len } else { len * rank / num_ranks..len * (rank + 1) / num_ranks }
    }

    /// Whether ranks reduce different slices, which are then to be gathered; otherwise each reduces everything.
    fn has_slices(&self) -> bool {
        !self.is_direct && self.len.vector > 0
    }

    /// Number of f64 numbers that a rank sums beside its slice.
    fn num_numbers(&self, rank: usize) -> usize {
        if !self.has_slices() || rank == self.adder { self.len.numbers } else { 0 }
    }
}

impl MeteredLink {
    /// Calls [`Link::exchange`] and records its duration.
    fn exchange(&mut self, outbox: &[&[u8]], inbox: &mut [&mut [u8]]) -> Result<(), TeamError> {
        let started = Instant::now();
        let outcome = self.link.exchange(outbox, inbox);
        self.traffic.seconds += started.elapsed().as_secs_f64();
        outcome
    }

    /// Sends `ours` to all other ranks and fills `all` with the values of every rank.
    pub fn all_gather<T: bytemuck::Pod>(
        &mut self,
        team: &Team,
        ours: &[T],
        mut all: Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, TeamError> {
        let bytes: &[u8] = bytemuck::cast_slice(ours);
        let mut outbox = vec![bytes; team.size()];
        outbox[team.rank] = &[];
        let mut inbox: Vec<&mut [u8]> =
            all.iter_mut().map(|theirs| bytemuck::cast_slice_mut(theirs)).collect();
        inbox[team.rank] = &mut [];
        self.traffic.other_bytes += ((team.size() - 1) * bytes.len()) as u64;
        self.exchange(&outbox, &mut inbox)?;
        all[team.rank].copy_from_slice(ours);
        Ok(all)
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
            for sum in ours.iter().filter(|_| other != rank) {
                let numbers = &sum.numbers[..plan.num_numbers(other)];
                bytes.extend_from_slice(bytemuck::cast_slice(&sum.vector[plan.slice(other)]));
                bytes.extend_from_slice(bytemuck::cast_slice(numbers));
            }
            bytes
        };
        let outbox: Vec<Vec<u8>> = (0..plan.num_ranks).map(message).collect();
        let vector_bytes = size_of::<f32>() * plan.slice(rank).len();
        // Bytes of our slice of one partial sum.
        let bytes = vector_bytes + size_of::<f64>() * plan.num_numbers(rank);
        let bytes_from =
            |other: usize| if other == rank { 0 } else { plan.nodes[other].len() * bytes };
        let mut received: Vec<Vec<u8>> =
            (0..plan.num_ranks).map(|from| vec![0; bytes_from(from)]).collect();
        let outbox: Vec<&[u8]> = outbox.iter().map(|bytes| &bytes[..]).collect();
        let mut inbox: Vec<&mut [u8]> = received.iter_mut().map(|bytes| &mut bytes[..]).collect();
        self.exchange(&outbox, &mut inbox)?;
        let others = (0..plan.num_ranks).filter(|other| *other != rank);
        let sent_numbers: usize = others.map(|other| plan.num_numbers(other)).sum();
        let number_bytes = (ours.len() * size_of::<f64>() * sent_numbers) as u64;
        let sent_bytes: u64 = outbox.iter().map(|bytes| bytes.len() as u64).sum();
        self.traffic.other_bytes += number_bytes;
        self.traffic.vector_bytes += sent_bytes - number_bytes;

        let mut all = Vec::new();
        for (other, nodes) in plan.nodes.iter().enumerate() {
            for (at, shards) in nodes.iter().enumerate() {
                let [vector, numbers] = match received[other].get(at * bytes..(at + 1) * bytes) {
                    Some(part) if other != rank => [&part[..vector_bytes], &part[vector_bytes..]],
                    _ => [
                        bytemuck::cast_slice(&ours[at].vector[plan.slice(rank)]),
                        bytemuck::cast_slice(&ours[at].numbers[..plan.num_numbers(rank)]),
                    ],
                };
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

    /// Sends every rank our slice of the sum, the adder's followed by the numbers, and returns the whole sum.
    fn all_gather_slices(
        &mut self,
        plan: &SumPlan,
        sum: PartialSum,
    ) -> Result<PartialSum, TeamError> {
        let (rank, adder) = (plan.rank, plan.adder);
        let mut vector = vec![0.0f32; plan.len.vector];
        vector[plan.slice(rank)].copy_from_slice(&sum.vector);
        let mut ours: Vec<u8> = bytemuck::cast_slice(&sum.vector).to_vec();
        let vector_bytes = ours.len();
        let adder_vector_bytes = size_of::<f32>() * plan.slice(adder).len();
        let mut from_adder = Vec::new();
        if rank == adder {
            ours.extend_from_slice(bytemuck::cast_slice(&sum.numbers));
        } else {
            from_adder.resize(adder_vector_bytes + size_of::<f64>() * plan.len.numbers, 0u8);
        }
        let mut outbox = vec![&ours[..]; plan.num_ranks];
        outbox[rank] = &[];
        let mut inbox: Vec<&mut [u8]> = Vec::with_capacity(plan.num_ranks);
        let (mut rest, mut adder_inbox) = (&mut vector[..], &mut from_adder[..]);
        for other in 0..plan.num_ranks {
            let (part, behind) = rest.split_at_mut(plan.slice(other).len());
            inbox.push(match other {
                _ if other == rank => &mut [],
                _ if other == adder => std::mem::take(&mut adder_inbox),
                _ => bytemuck::cast_slice_mut(part),
            });
            rest = behind;
        }
        self.exchange(&outbox, &mut inbox)?;
        let receivers = plan.num_ranks - 1;
        self.traffic.vector_bytes += (receivers * vector_bytes) as u64;
        self.traffic.other_bytes += (receivers * (ours.len() - vector_bytes)) as u64;
        if rank == adder {
            return Ok(PartialSum { vector, ..sum });
        }
        let (values, numbers) = from_adder.split_at(adder_vector_bytes);
        let values = bytemuck::pod_collect_to_vec::<u8, f32>(values);
        vector[plan.slice(adder)].copy_from_slice(&values);
        let numbers = bytemuck::pod_collect_to_vec(numbers);
        Ok(PartialSum { vector, numbers, ..sum })
    }
}
