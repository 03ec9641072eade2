//! Ranks that are threads of one process.

use super::{Link, Team, TeamError};
use crate::clock::Stopwatch;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use web_time::Duration;

/// Creates a team of `size` threads: a handle for each of them. `timeout` limits each wait for a message.
pub fn thread_teams(size: usize, timeout: Duration) -> Vec<Team> {
    let link = |_| ThreadLink { timeout, senders: Vec::new(), receivers: Vec::new() };
    let mut links: Vec<ThreadLink> = (0..size).map(link).collect();
    for from in 0..size {
        for to in 0..size {
            let (sender, receiver) = mpsc::channel();
            links[from].senders.push(sender);
            links[to].receivers.push(receiver);
        }
    }
    let links = links.into_iter().enumerate();
    links.map(|(rank, link)| Team::new(rank, size, Box::new(link))).collect()
}

/// A thread's ends of the channels between each two threads.
struct ThreadLink {
    timeout: Duration,
    /// The channel to each rank.
    senders: Vec<Sender<Vec<u8>>>,
    /// The channel from each rank.
    receivers: Vec<Receiver<Vec<u8>>>,
}

impl Link for ThreadLink {
    fn exchange(&mut self, outbox: &[&[u8]], lens: &[usize]) -> Result<Vec<Vec<u8>>, TeamError> {
        for (sender, message) in self.senders.iter().zip(outbox) {
            // The channel from a rank that has ended tells so below.
            let _ = sender.send(message.to_vec());
        }
        let mut stopwatch = Stopwatch::start();
        let mut received = Vec::with_capacity(lens.len());
        for (rank, (receiver, len)) in self.receivers.iter().zip(lens).enumerate() {
            let message = loop {
                // A message that is there is taken even after the timeout.
                let next_wait = stopwatch.next_wait(self.timeout);
                match receiver.recv_timeout(next_wait.unwrap_or_default()) {
                    Ok(message) => break message,
                    Err(RecvTimeoutError::Disconnected) => {
                        let reason = "its thread has ended".to_string();
                        return Err(TeamError::Ended { rank, reason });
                    }
                    Err(RecvTimeoutError::Timeout) if next_wait.is_none() => {
                        return Err(TeamError::TimedOut { rank, seconds: self.timeout.as_secs() });
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            };
            assert_eq!(message.len(), *len, "the length of the message from rank {rank}");
            received.push(message);
        }
        Ok(received)
    }
}
