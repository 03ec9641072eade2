//! Sums of vectors that come in pieces: those that are there are added up while the next are computed.

use super::{Node, Shards, Team, TeamError};
use std::sync::mpsc;
use std::thread;
use web_time::Instant;

impl Team {
    /// [`Team::sum`] of each piece of our nodes' vectors that `compute` hands over, all nodes of it at once; it goes on
    /// while another thread adds up what is there. All members give equally many pieces of the same lengths, in the
    /// same order, in which their sums come back.
    ///
    /// # Errors
    /// If a member is gone or silent.
    pub fn sum_pieces(
        &self,
        shards: &Shards,
        compute: impl FnOnce(&mut dyn FnMut(Vec<Node>)),
    ) -> Result<Vec<Node>, TeamError> {
        let seconds = || self.wire().map_or(0.0, |wire| wire.traffic.seconds);
        let before = seconds();
        let (give, pieces) = mpsc::channel::<Vec<Node>>();
        let add_up = || {
            let sum = |nodes: Vec<Node>| {
                let lens = [nodes[0].vector.len(), nodes[0].numbers.len()];
                self.sum(shards, nodes, lens)
            };
            pieces.into_iter().map(sum).collect::<Result<Vec<Node>, TeamError>>()
        };
        thread::scope(|scope| {
            let added_up = scope.spawn(add_up);
            // Where adding up has failed, the rest is for nobody.
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
    use super::super::tests::{HANG, members};
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
        fn exchange(
            &mut self,
            outgoing: &[&[u8]],
            incoming: &mut [&mut [u8]],
        ) -> Result<(), TeamError> {
            self.link.exchange(outgoing, incoming)?;
            self.exchanges.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn pieces_are_added_up_while_others_are_computed() {
        // Computes until there have been so many exchanges, and counts them.
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
                    assert!(started.elapsed() < HANG, "nothing is exchanged meanwhile");
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
        let all = members(2, |team| run(team, 0));
        assert!(all[0] >= 3 && all[0] == all[1], "{all:?}");
        assert_eq!(
            members(2, |team| run(team, all[0])),
            all,
            "all of it while something is computed"
        );
        let gone = members(2, |team| match team.rank() {
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
