//! How members exchange what is added up.

use super::shards::{add_up, nodes};
use super::{Link, Node, Team, TeamError, Traffic};
use std::ops::Range;
use web_time::Instant;

/// A link, and what it was used for.
pub struct Wire {
    pub link: Box<dyn Link>,
    pub traffic: Traffic,
    /// Sums that were handed round, equally many at all members.
    pub sums: usize,
}

/// The part of a vector of `len` numbers that a member adds up.
fn slice(len: usize, members: usize, member: usize) -> Range<usize> {
    len * member / members..len * (member + 1) / members
}

impl Wire {
    /// Does what [`Link::exchange`] does, with a look at the clock.
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), TeamError> {
        let started = Instant::now();
        let done = self.link.exchange(outgoing, incoming);
        self.traffic.seconds += started.elapsed().as_secs_f64();
        done
    }

    /// Sends the same to all others, and puts what they and we give into `all`, by rank.
    pub fn give<T: bytemuck::Pod>(
        &mut self,
        team: &Team,
        ours: &[T],
        mut all: Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, TeamError> {
        let bytes: &[u8] = bytemuck::cast_slice(ours);
        let mut outgoing = vec![bytes; team.size()];
        outgoing[team.rank] = &[];
        let mut incoming: Vec<&mut [u8]> =
            all.iter_mut().map(|theirs| bytemuck::cast_slice_mut(theirs)).collect();
        incoming[team.rank] = &mut [];
        self.traffic.others += ((team.size() - 1) * bytes.len()) as u64;
        self.exchange(&outgoing, &mut incoming)?;
        all[team.rank].copy_from_slice(ours);
        Ok(all)
    }

    /// [`Team::sum`] where there are several members, whose shards begin and end at `cuts`.
    pub fn sum(
        &mut self,
        team: &Team,
        cuts: &[usize],
        mine: Vec<Node>,
        [len, numbers]: [usize; 2],
    ) -> Result<Node, TeamError> {
        let (size, rank, count) = (team.size(), team.rank, cuts[team.size()]);
        let theirs: Vec<Vec<Range<usize>>> =
            cuts.windows(2).map(|cut| nodes(count, &(cut[0]..cut[1]))).collect();
        let is_ours = mine.iter().map(|node| &node.shards).eq(&theirs[rank]);
        assert!(is_ours, "the nodes of our shards");
        // Two who have a node each need not go halves: to send all of it is as much, and done at once.
        let is_direct = size == 2 && theirs.iter().all(|nodes| nodes.len() == 1);
        let slice = |member| if is_direct { 0..len } else { slice(len, size, member) };
        // The numbers are added up by everyone, or by one, each in its turn, who hands them round with its slice.
        let is_whole = is_direct || len == 0;
        let adder = self.sums % size;
        self.sums += 1;
        let counts = |member: usize| if is_whole || member == adder { numbers } else { 0 };
        // Everyone's slice of our nodes, for our slice of theirs.
        let message = |member: usize| -> Vec<u8> {
            let mut bytes = Vec::new();
            for node in mine.iter().filter(|_| member != rank) {
                bytes.extend_from_slice(bytemuck::cast_slice(&node.vector[slice(member)]));
                bytes.extend_from_slice(bytemuck::cast_slice(&node.numbers[..counts(member)]));
            }
            bytes
        };
        let outgoing: Vec<Vec<u8>> = (0..size).map(message).collect();
        let own = slice(rank);
        let (vector, node) =
            (size_of::<f32>() * own.len(), size_of::<f32>() * own.len() + 8 * counts(rank));
        let room = |member: usize| if member == rank { 0 } else { theirs[member].len() * node };
        let mut received: Vec<Vec<u8>> = (0..size).map(|member| vec![0; room(member)]).collect();
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        let mut incoming: Vec<&mut [u8]> =
            received.iter_mut().map(|bytes| &mut bytes[..]).collect();
        self.exchange(&outgoing, &mut incoming)?;
        let told: usize = (0..size).filter(|member| *member != rank).map(counts).sum();
        let others = (mine.len() * 8 * told) as u64;
        self.traffic.others += others;
        self.traffic.vectors +=
            outgoing.iter().map(|bytes| bytes.len() as u64).sum::<u64>() - others;

        let mut all = Vec::new();
        for (member, shards) in theirs.into_iter().enumerate() {
            for (at, shards) in shards.into_iter().enumerate() {
                let [vector, numbers] = match received[member].get(at * node..(at + 1) * node) {
                    Some(bytes) if member != rank => [&bytes[..vector], &bytes[vector..]],
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
        // Our slice of the sum for everyone's; behind the adder's come the numbers.
        let mut vector = vec![0.0f32; len];
        vector[own].copy_from_slice(&sum.vector);
        let mut ours: Vec<u8> = bytemuck::cast_slice(&sum.vector).to_vec();
        let of_vector = ours.len();
        let mut theirs = Vec::new();
        match rank == adder {
            true => ours.extend_from_slice(bytemuck::cast_slice(&sum.numbers)),
            false => theirs.resize(size_of::<f32>() * slice(adder).len() + 8 * numbers, 0u8),
        }
        let mut outgoing = vec![&ours[..]; size];
        outgoing[rank] = &[];
        let mut incoming: Vec<&mut [u8]> = Vec::with_capacity(size);
        let (mut rest, mut of_adder) = (&mut vector[..], &mut theirs[..]);
        for member in 0..size {
            let (part, behind) = rest.split_at_mut(slice(member).len());
            incoming.push(match member {
                _ if member == rank => &mut [],
                _ if member == adder => std::mem::take(&mut of_adder),
                _ => bytemuck::cast_slice_mut(part),
            });
            rest = behind;
        }
        self.exchange(&outgoing, &mut incoming)?;
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
