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
