//! A stream wrapper with a write timeout.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail after waiting too long for the other end.
pub struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream so that no write waits longer than `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)), is_waiting: false }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = Pin::new(&mut self.stream).poll_write(context, bytes) {
            self.is_waiting = false;
            return ready;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            let deadline = Instant::now() + self.limit;
            self.deadline.as_mut().reset(deadline);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[test]
    fn slow_readers_are_tolerated_and_stalled_ones_time_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (stream, mut reader) = duplex(1);
            let mut stream = WriteTimeout::new(stream, Duration::from_secs(3600));
            let slow = tokio::spawn(async move {
                for _ in 0..40 {
                    tokio::task::yield_now().await;
                    reader.read_u8().await.unwrap();
                }
            });
            stream.write_all(&[0; 40]).await.unwrap();
            slow.await.unwrap();
            assert!(!stream.is_waiting, "the next write may wait as long again");

            let (stream, _stalled) = duplex(1);
            let mut stream = WriteTimeout::new(stream, Duration::ZERO);
            let error = stream.write_all(&[0; 2]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
