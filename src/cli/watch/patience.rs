//! A connection that gives up when its other end takes nothing for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A stream, and for how long a write of it has been waiting.
pub struct Patient {
    stream: TcpStream,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl Patient {
    /// A stream of which no write waits longer than `limit`.
    pub fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)), waiting: false }
    }
}

impl AsyncWrite for Patient {
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

impl AsyncRead for Patient {
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
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    #[test]
    fn a_write_that_nobody_takes_ends_and_a_slow_reader_is_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = Patient::new(stream, Duration::from_millis(200));
            let block = vec![0; 1 << 22];
            let slowly = async {
                let mut left = block.len();
                let mut buffer = vec![0; 1 << 20];
                while left > 0 {
                    sleep(Duration::from_millis(50)).await;
                    left -= tokio::io::AsyncReadExt::read(&mut client, &mut buffer).await.unwrap();
                }
            };
            let (written, ()) = tokio::join!(stream.write_all(&block), slowly);
            written.unwrap();
            let error = loop {
                if let Err(error) = stream.write_all(&block).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
