//! Sums that overlap with computation: a vector is summed slice by slice while the next slice is computed.

use super::{PartialSum, PartialSumLen, Shards, Team, TeamError};
use std::sync::mpsc;
use std::thread;
use web_time::Instant;

impl Team {
    /// Calls `compute`, and sums the slices of a vector that it passes to its callback, as
    /// [`Team::all_reduce_shards`] would, on another thread meanwhile. A slice comes as all partial sums of
    /// this rank. All ranks must pass equally many slices of the same lengths, in the same order; the sums
    /// are returned in that order.
    ///
    /// # Errors
    /// If a rank has ended or does not respond.
    pub fn all_reduce_pipelined(
        &self,
        shards: &Shards,
        compute: impl FnOnce(&mut dyn FnMut(Vec<PartialSum>)),
    ) -> Result<Vec<PartialSum>, TeamError> {
        let link_seconds =
            || self.lock_collectives().map_or(0.0, |collectives| collectives.traffic.seconds);
        let before = link_seconds();
        let (sender, slices) = mpsc::channel::<Vec<PartialSum>>();
        let add_up = || {
            let sum = |ours: Vec<PartialSum>| {
                let len =
                    PartialSumLen { vector: ours[0].vector.len(), numbers: ours[0].numbers.len() };
                self.all_reduce_shards(shards, ours, len)
            };
            slices.into_iter().map(sum).collect::<Result<Vec<PartialSum>, TeamError>>()
        };
        thread::scope(|scope| {
            let adder = scope.spawn(add_up);
            // After a failed sum the receiver is gone, and the remaining slices are dropped.
            compute(&mut |partial_sums| drop(sender.send(partial_sums)));
            drop(sender);
            let since = Instant::now();
            let sums = adder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let waited = since.elapsed().as_secs_f64();
            if let Some(mut collectives) = self.lock_collectives() {
                collectives.traffic.hidden_seconds +=
                    (collectives.traffic.seconds - before - waited).max(0.0);
            }
            sums
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::tests::{HANG, run_on_ranks};
    use std::time::Duration;

    #[test]
    fn slices_are_summed_while_others_are_computed() {
        // Computes until there were `enough` sums, and returns their number.
        let run = |team: Team, enough: usize| {
            // The collectives are locked during a sum.
            let num_sums = || team.lock_collectives().expect("two ranks").num_sums;
            let shards = team.cut_into_shards(16, 16);
            let partial_sum = |vector: Vec<f32>| PartialSum {
                shards: shards.own_shards(),
                numbers: vec![vector[0].into()],
                vector,
            };
            let sums = team.all_reduce_pipelined(&shards, |give| {
                for len in [3, 1, 2] {
                    give(vec![partial_sum(vec![1.0 + team.rank() as f32; len])]);
                }
                let started = Instant::now();
                while num_sums() < enough {
                    assert!(started.elapsed() < HANG, "no sum overlaps with the computation");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let sums: Vec<_> =
                sums.unwrap().into_iter().map(|sum| (sum.vector, sum.numbers)).collect();
            assert_eq!(sums, [3, 1, 2].map(|len| (vec![3.0; len], vec![3.0])));
            let traffic = team.take_traffic();
            assert!((0.0..=traffic.seconds).contains(&traffic.hidden_seconds), "{traffic:?}");
            num_sums()
        };
        assert_eq!(run_on_ranks(2, |team| run(team, 0)), [3, 3]);
        let overlapped = run_on_ranks(2, |team| run(team, 3));
        assert_eq!(overlapped, [3, 3], "all sums overlap with the computation");
        let gone = run_on_ranks(2, |team| match team.rank() {
            1 => None,
            _ => team
                .all_reduce_pipelined(&team.cut_into_shards(2, 2), |give| {
                    give(vec![PartialSum { shards: 0..1, vector: vec![1.0], numbers: Vec::new() }]);
                })
                .err(),
        });
        assert!(matches!(gone[0], Some(TeamError::Ended { rank: 1, .. })), "{gone:?}");
    }
}
