//! The file of metrics as it is now, block by block.

use super::live::Live;
use http_body_util::channel::Channel;
use hyper::body::Bytes;
use std::sync::Arc;

/// The first `end` bytes of the file. Ends early, which the client notices, when another file takes
/// its place.
pub fn metrics(live: Arc<Live>, epoch: u64, end: u64) -> Channel<Bytes> {
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut start = 0;
        while start < end {
            let bytes = {
                let run = live.run();
                (run.log.epoch == epoch).then(|| run.log.bytes(start, end))
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
