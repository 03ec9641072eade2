//! Collective operations on top of a point-to-point link.

use super::shards::{add_up, nodes};
use super::{Link, Node, NodeLen, Team, TeamError, Traffic};
use std::ops::Range;
use web_time::Instant;

/// A link with its traffic statistics.
pub struct Wire {
    pub link: Box<dyn Link>,
    pub traffic: Traffic,
    /// Number of sums so far, equal on all ranks.
    pub sums: usize,
}

/// The slice of a vector of `len` numbers that one of `size` ranks reduces.
fn slice(len: usize, size: usize, rank: usize) -> Range<usize> {
    len * rank / size..len * (rank + 1) / size
}

impl Wire {
    /// Calls [`Link::exchange`] and records its duration.
    fn exchange(&mut self, outbox: &[&[u8]], inbox: &mut [&mut [u8]]) -> Result<(), TeamError> {
        let started = Instant::now();
        let done = self.link.exchange(outbox, inbox);
        self.traffic.seconds += started.elapsed().as_secs_f64();
        done
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
        self.traffic.others += ((team.size() - 1) * bytes.len()) as u64;
        self.exchange(&outbox, &mut inbox)?;
        all[team.rank].copy_from_slice(ours);
        Ok(all)
    }

    /// Implements [`Team::sum`] for several ranks; `cuts` are the boundaries of their shards.
    pub fn sum(
        &mut self,
        team: &Team,
        cuts: &[usize],
        mine: Vec<Node>,
        NodeLen { vector: len, numbers }: NodeLen,
    ) -> Result<Node, TeamError> {
        let (size, rank, count) = (team.size(), team.rank, cuts[team.size()]);
        let theirs: Vec<Vec<Range<usize>>> =
            cuts.windows(2).map(|cut| nodes(count, &(cut[0]..cut[1]))).collect();
        let is_ours = mine.iter().map(|node| &node.shards).eq(&theirs[rank]);
        assert!(is_ours, "the nodes of this rank's shards");
        // Two ranks with one node each send whole vectors: as many bytes as by halves, in one exchange.
        let is_direct = size == 2 && theirs.iter().all(|nodes| nodes.len() == 1);
        let slice = |other| if is_direct { 0..len } else { slice(len, size, other) };
        // The numbers are summed by every rank, or by one rank in rotation, which sends them along
        // with its slice.
        let is_whole = is_direct || len == 0;
        let adder = self.sums % size;
        self.sums += 1;
        let counts = |other: usize| if is_whole || other == adder { numbers } else { 0 };
        // Reduce-scatter: each rank receives its slice of our nodes, and we receive ours of theirs.
        let message = |other: usize| -> Vec<u8> {
            let mut bytes = Vec::new();
            for node in mine.iter().filter(|_| other != rank) {
                bytes.extend_from_slice(bytemuck::cast_slice(&node.vector[slice(other)]));
                bytes.extend_from_slice(bytemuck::cast_slice(&node.numbers[..counts(other)]));
            }
            bytes
        };
        let outbox: Vec<Vec<u8>> = (0..size).map(message).collect();
        let own = slice(rank);
        let vector = size_of::<f32>() * own.len();
        let node = vector + 8 * counts(rank);
        let bytes_from = |other: usize| if other == rank { 0 } else { theirs[other].len() * node };
        let mut received: Vec<Vec<u8>> = (0..size).map(|from| vec![0; bytes_from(from)]).collect();
        let outbox: Vec<&[u8]> = outbox.iter().map(|bytes| &bytes[..]).collect();
        let mut inbox: Vec<&mut [u8]> = received.iter_mut().map(|bytes| &mut bytes[..]).collect();
        self.exchange(&outbox, &mut inbox)?;
        let sent: usize = (0..size).filter(|other| *other != rank).map(counts).sum();
        let others = (mine.len() * 8 * sent) as u64;
        self.traffic.others += others;
        self.traffic.vectors += outbox.iter().map(|bytes| bytes.len() as u64).sum::<u64>() - others;

        let mut all = Vec::new();
        for (other, shards) in theirs.into_iter().enumerate() {
            for (at, shards) in shards.into_iter().enumerate() {
                let [vector, numbers] = match received[other].get(at * node..(at + 1) * node) {
                    Some(bytes) if other != rank => [&bytes[..vector], &bytes[vector..]],
                    _ => [
                        bytemuck::cast_slice(&mine[at].vector[own.clone()]),
                        bytemuck::cast_slice(&mine[at].numbers[..counts(rank)]),
                    ],
                };
                let vector = bytemuck::pod_collect_to_vec(vector);
                let numbers = bytemuck::pod_collect_to_vec(numbers);
                all.push((shards.clone(), Node { shards, vector, numbers }));
            }
        }
        let sum = add_up(count, all, &Node::plus);

        if is_whole {
            return Ok(sum);
        }
        // All-gather: every rank sends its slice of the sum, the adder's followed by the numbers.
        let mut vector = vec![0.0f32; len];
        vector[own].copy_from_slice(&sum.vector);
        let mut ours: Vec<u8> = bytemuck::cast_slice(&sum.vector).to_vec();
        let of_vector = ours.len();
        let mut theirs = Vec::new();
        match rank == adder {
            true => ours.extend_from_slice(bytemuck::cast_slice(&sum.numbers)),
            false => theirs.resize(size_of::<f32>() * slice(adder).len() + 8 * numbers, 0u8),
        }
        let mut outbox = vec![&ours[..]; size];
        outbox[rank] = &[];
        let mut inbox: Vec<&mut [u8]> = Vec::with_capacity(size);
        let (mut rest, mut of_adder) = (&mut vector[..], &mut theirs[..]);
        for other in 0..size {
            let (part, behind) = rest.split_at_mut(slice(other).len());
            inbox.push(match other {
                _ if other == rank => &mut [],
                _ if other == adder => std::mem::take(&mut of_adder),
                _ => bytemuck::cast_slice_mut(part),
            });
            rest = behind;
        }
        self.exchange(&outbox, &mut inbox)?;
        self.traffic.vectors += ((size - 1) * of_vector) as u64;
        self.traffic.others += ((size - 1) * (ours.len() - of_vector)) as u64;
        if rank == adder {
            return Ok(Node { vector, ..sum });
        }
        let part = slice(adder);
        let (values, numbers) = theirs.split_at(size_of::<f32>() * part.len());
        vector[part].copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(values));
        let numbers = bytemuck::pod_collect_to_vec(numbers);
        Ok(Node { vector, numbers, ..sum })
    }
}
