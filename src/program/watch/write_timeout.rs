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
    waiting: bool,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream so that no write waits longer than `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)), waiting: false }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = Pin::new(&mut self.stream).poll_write(context, bytes) {
            self.waiting = false;
            return ready;
        }
        if !self.waiting {
            self.waiting = true;
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

    const LIMIT: Duration = Duration::from_secs(1);

    // Virtual time: the runtime advances its clock when all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn slow_readers_are_tolerated_and_stalled_ones_time_out() {
        let (stream, mut reader) = duplex(1);
        let mut stream = WriteTimeout::new(stream, LIMIT);
        let slow = async {
            for _ in 0..40 {
                reader.read_u8().await.unwrap();
                sleep(LIMIT / 20).await;
            }
        };
        let started = Instant::now();
        let (written, ()) = tokio::join!(stream.write_all(&[0; 40]), slow);
        written.unwrap();
        assert!(started.elapsed() > LIMIT, "all of it takes longer than a single write may");
        let error = stream.write_all(&[0; 2]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
