//! Download of the metrics file, block by block.

use super::live::LiveRun;
use http_body_util::channel::Channel;
use hyper::body::Bytes;
use std::sync::Arc;

/// Streams the first `end` bytes of the metrics file. If the file is replaced meanwhile, the stream ends
/// early, which the client notices.
pub fn stream_metrics(live: Arc<LiveRun>, generation: u64, end: u64) -> Channel<Bytes> {
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut start = 0;
        while start < end {
            let bytes = {
                let run = live.lock_state();
                (run.metrics.generation == generation).then(|| run.metrics.read_range(start, end))
            };
            let Some(Ok(bytes)) = bytes else { return };
            start += bytes.len() as u64;
            if sender.send_data(bytes.into()).await.is_err() {
                return;
            }
        }
    });
    body
}
