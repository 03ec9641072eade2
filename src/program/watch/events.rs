//! A run as a stream of server-sent events: first the existing records, then new ones as they come.
//!
//! - `start`: discard all earlier events; all records of the run follow.
//! - `record`: a line of `metrics.jsonl`. Its id is `RUN-ITERATION`; a client that reconnects with an id
//!   in `Last-Event-ID` receives the records after it.
//! - `checkpoint`: there is a new best or newest checkpoint.

use super::about::describe_checkpoint;
use super::live::LiveRun;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Interval of keep-alive comments, by which a closed connection is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// A client's position in the stream.
#[derive(Default)]
struct Cursor {
    generation: Option<u64>,
    next_record: usize,
    /// Tags of the best and the newest checkpoint that were sent.
    sent_tags: [Option<String>; 2],
}

/// Starts a stream of the events after the one with the id `last`.
///
/// A client that does not read delays its own stream only.
pub fn stream(live: Arc<LiveRun>, last: Option<&str>) -> Channel<Bytes> {
    let (sender, body) = Channel::new(1);
    let cursor = {
        let run = live.lock_state();
        match last.and_then(|id| run.metrics.index_after(id)) {
            Some(next_record) => Cursor {
                generation: Some(run.metrics.generation),
                next_record,
                ..Cursor::default()
            },
            None => Cursor::default(),
        }
    };
    tokio::spawn(send(live, cursor, sender));
    body
}

async fn send(live: Arc<LiveRun>, mut cursor: Cursor, mut sender: Sender<Bytes, Infallible>) {
    let mut changes = live.changes.subscribe();
    let mut text = b"retry: 2000\n\n".to_vec();
    loop {
        changes.mark_unchanged();
        if live.append_events(&mut cursor, &mut text).is_err() {
            return;
        }
        if text.is_empty() {
            match tokio::time::timeout(PING_INTERVAL, changes.changed()).await {
                Ok(Ok(())) => continue,
                Ok(Err(_)) => return,
                Err(_) => text.extend(b":\n\n"),
            }
        }
        if sender.send_data(Bytes::from(std::mem::take(&mut text))).await.is_err() {
            return;
        }
    }
}

impl LiveRun {
    /// Appends the next events to `text`, if there are any.
    fn append_events(&self, cursor: &mut Cursor, text: &mut Vec<u8>) -> io::Result<()> {
        let run = self.lock_state();
        if cursor.generation != Some(run.metrics.generation) {
            *cursor = Cursor { generation: Some(run.metrics.generation), ..Cursor::default() };
            text.extend(b"event: start\ndata: {}\n\n");
        }
        cursor.next_record = run.metrics.append_records(cursor.next_record, text)?;
        for (sent_tag, (which, policy)) in
            cursor.sent_tags.iter_mut().zip([("best", &run.best), ("newest", &run.newest)])
        {
            if let Some(policy) = policy
                && sent_tag.as_ref() != Some(&policy.tag)
            {
                let data = describe_checkpoint(which, policy);
                text.extend(format!("event: checkpoint\ndata: {data}\n\n").bytes());
                *sent_tag = Some(policy.tag.clone());
            }
        }
        Ok(())
    }
}
