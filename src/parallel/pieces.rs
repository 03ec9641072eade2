//! Sums that overlap with computation: a vector is summed piece by piece while the next piece is computed.

use super::{Node, NodeLen, Shards, Team, TeamError};
use std::sync::mpsc;
use std::thread;
use web_time::Instant;

impl Team {
    /// Calls `compute`, and sums the pieces that it passes to its callback, as [`Team::sum`] would, on
    /// another thread meanwhile. A piece consists of all nodes of this rank. All ranks must pass
    /// equally many pieces of the same lengths, in the same order; the sums are returned in that order.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn sum_pieces(
        &self,
        shards: &Shards,
        compute: impl FnOnce(&mut dyn FnMut(Vec<Node>)),
    ) -> Result<Vec<Node>, TeamError> {
        let seconds = || self.wire().map_or(0.0, |wire| wire.traffic.seconds);
        let before = seconds();
        let (give, pieces) = mpsc::channel::<Vec<Node>>();
        let add_up = || {
            let sum = |ours: Vec<Node>| {
                let len = NodeLen { vector: ours[0].vector.len(), numbers: ours[0].numbers.len() };
                self.sum(shards, ours, len)
            };
            pieces.into_iter().map(sum).collect::<Result<Vec<Node>, TeamError>>()
        };
        thread::scope(|scope| {
            let added_up = scope.spawn(add_up);
            // After a failed sum the receiver is gone, and the remaining pieces are dropped.
            compute(&mut |nodes| drop(give.send(nodes)));
            drop(give);
            let since = Instant::now();
            let sums = added_up.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let waited = since.elapsed().as_secs_f64();
            if let Some(mut wire) = self.wire() {
                wire.traffic.hidden += (wire.traffic.seconds - before - waited).max(0.0);
            }
            sums
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HANG, on_ranks};
    use super::*;
    use crate::parallel::Link;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// A link that counts its exchanges.
    struct Counted {
        link: Box<dyn Link>,
        exchanges: Arc<AtomicUsize>,
    }

    impl Link for Counted {
        fn exchange(&mut self, outbox: &[&[u8]], inbox: &mut [&mut [u8]]) -> Result<(), TeamError> {
            self.link.exchange(outbox, inbox)?;
            self.exchanges.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn pieces_are_summed_while_others_are_computed() {
        // Computes until there were `enough` exchanges, and returns their number.
        let run = |team: Team, enough: usize| {
            let link = Arc::try_unwrap(team.wire.unwrap()).ok().unwrap().into_inner().unwrap().link;
            let exchanges = Arc::new(AtomicUsize::new(0));
            let counted = Counted { link, exchanges: exchanges.clone() };
            let team = Team::new(team.rank, 2, Box::new(counted));
            let shards = team.shards(16, 16);
            let node = |vector: Vec<f32>| Node {
                shards: shards.own(),
                numbers: vec![vector[0].into()],
                vector,
            };
            let sums = team.sum_pieces(&shards, |give| {
                for len in [3, 1, 2] {
                    give(vec![node(vec![1.0 + team.rank() as f32; len])]);
                }
                let started = Instant::now();
                while exchanges.load(Ordering::Relaxed) < enough {
                    assert!(started.elapsed() < HANG, "no exchange overlaps with the computation");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let sums: Vec<_> =
                sums.unwrap().into_iter().map(|sum| (sum.vector, sum.numbers)).collect();
            assert_eq!(sums, [3, 1, 2].map(|len| (vec![3.0; len], vec![3.0])));
            let traffic = team.take_traffic();
            assert!((0.0..=traffic.seconds).contains(&traffic.hidden), "{traffic:?}");
            exchanges.load(Ordering::Relaxed)
        };
        let all = on_ranks(2, |team| run(team, 0));
        assert!(all[0] >= 3 && all[0] == all[1], "{all:?}");
        let overlapped = on_ranks(2, |team| run(team, all[0]));
        assert_eq!(overlapped, all, "all exchanges overlap with the computation");
        let gone = on_ranks(2, |team| match team.rank() {
            1 => None,
            _ => team
                .sum_pieces(&team.shards(2, 2), |give| {
                    give(vec![Node { shards: 0..1, vector: vec![1.0], numbers: Vec::new() }]);
                })
                .err(),
        });
        assert!(matches!(gone[0], Some(TeamError::Gone { rank: 1, .. })), "{gone:?}");
    }
}
