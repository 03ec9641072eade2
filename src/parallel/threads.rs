//! Ranks that are threads of one process.

use super::{Link, Team, TeamError};
use crate::clock::Stopwatch;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use web_time::Duration;

/// Creates a team of `size` threads: a handle for each of them. `timeout` limits each wait for a message.
pub fn thread_teams(size: usize, timeout: Duration) -> Vec<Team> {
    let queues = Queues { messages: vec![VecDeque::new(); size * size], ended: vec![false; size] };
    let shared = Arc::new(SharedQueues { queues: Mutex::new(queues), changed: Condvar::new() });
    let handle = |rank| {
        let link = ThreadLink { rank, size, timeout, shared: shared.clone() };
        Team::new(rank, size, Box::new(link))
    };
    (0..size).map(handle).collect()
}

/// The message queues of a team.
struct SharedQueues {
    queues: Mutex<Queues>,
    /// Signals a new message or the end of a thread.
    changed: Condvar,
}

struct Queues {
    /// Pending messages by sender and receiver, oldest first: `[size, size]`.
    messages: Vec<VecDeque<Vec<u8>>>,
    /// Ranks whose thread has ended: `[size]`.
    ended: Vec<bool>,
}

/// A thread's end of the queues.
struct ThreadLink {
    rank: usize,
    size: usize,
    timeout: Duration,
    shared: Arc<SharedQueues>,
}

impl SharedQueues {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for ThreadLink {
    fn exchange(&mut self, outbox: &[&[u8]], lens: &[usize]) -> Result<Vec<Vec<u8>>, TeamError> {
        let Self { rank, size, timeout, .. } = *self;
        // The message to this rank itself is empty, and there at once.
        let messages: Vec<_> = outbox.iter().map(|message| message.to_vec()).collect();
        let mut queues = self.shared.lock();
        for (to, message) in messages.into_iter().enumerate() {
            queues.messages[rank * size + to].push_back(message);
        }
        self.shared.changed.notify_all();
        let mut stopwatch = Stopwatch::start();
        let mut received = Vec::with_capacity(size);
        for (from, len) in lens.iter().enumerate() {
            let message = loop {
                if let Some(message) = queues.messages[from * size + rank].pop_front() {
                    break message;
                }
                if queues.ended[from] {
                    let reason = "its thread has ended".to_string();
                    return Err(TeamError::Ended { rank: from, reason });
                }
                let Some(next_wait) = stopwatch.next_wait(timeout) else {
                    return Err(TeamError::TimedOut { rank: from, seconds: timeout.as_secs() });
                };
                let woken = self.shared.changed.wait_timeout(queues, next_wait);
                queues = woken.unwrap_or_else(PoisonError::into_inner).0;
            };
            assert_eq!(message.len(), *len, "the length of the message from rank {from}");
            received.push(message);
        }
        Ok(received)
    }
}

impl Drop for ThreadLink {
    fn drop(&mut self) {
        self.shared.lock().ended[self.rank] = true;
        self.shared.changed.notify_all();
    }
}
