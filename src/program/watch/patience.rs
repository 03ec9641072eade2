//! A connection that gives up when its other end takes nothing for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream, and for how long a write of it has been waiting.
pub struct Patient<S> {
    stream: S,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> Patient<S> {
    /// A stream of which no write waits longer than `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)), waiting: false }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
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

    // The clock is the runtime's own, and goes on where nothing else does.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_and_one_that_takes_nothing_is_not() {
        let (stream, mut reader) = duplex(1);
        let mut stream = Patient::new(stream, LIMIT);
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
