//! Members that are threads of one process.

use super::{Link, Team, TeamError};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use web_time::{Duration, Instant};

/// A team of `size` threads, who wait for each other so long at most: a handle for each.
pub fn threads(size: usize, timeout: Duration) -> Vec<Team> {
    let boxes = vec![VecDeque::new(); size * size];
    let hall =
        Hall { post: Mutex::new(Post { boxes, gone: vec![false; size] }), rung: Condvar::new() };
    let hall = Arc::new(hall);
    let handle = |rank| {
        let place = Place { rank, size, timeout, hall: hall.clone() };
        Team::new(rank, size, Box::new(place))
    };
    (0..size).map(handle).collect()
}

/// Where threads leave their messages for each other.
struct Hall {
    post: Mutex<Post>,
    rung: Condvar,
}

struct Post {
    /// The messages from each member to each other, in order: `[size, size]`.
    boxes: Vec<VecDeque<Vec<u8>>>,
    /// Who has left: `[size]`.
    gone: Vec<bool>,
}

/// A thread's place there.
struct Place {
    rank: usize,
    size: usize,
    timeout: Duration,
    hall: Arc<Hall>,
}

impl Hall {
    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for Place {
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), TeamError> {
        let Self { rank, size, timeout, .. } = *self;
        let others = || (0..size).filter(|other| *other != rank);
        let messages: Vec<(usize, Vec<u8>)> =
            others().map(|to| (to, outgoing[to].to_vec())).collect();
        let mut post = self.hall.post();
        for (to, message) in messages {
            post.boxes[rank * size + to].push_back(message);
        }
        self.hall.rung.notify_all();
        let deadline = Instant::now() + timeout;
        for from in others() {
            let message = loop {
                if let Some(message) = post.boxes[from * size + rank].pop_front() {
                    break message;
                }
                if post.gone[from] {
                    let why = "its thread has ended".to_string();
                    return Err(TeamError::Gone { rank: from, why });
                }
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    return Err(TeamError::Silent { rank: from, seconds: timeout.as_secs() });
                };
                let waited = self.hall.rung.wait_timeout(post, left);
                post = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            incoming[from].copy_from_slice(&message);
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hall.post().gone[self.rank] = true;
        self.hall.rung.notify_all();
    }
}
