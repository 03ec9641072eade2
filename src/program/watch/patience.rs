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
    use std::future::poll_fn;
    use std::io::Read;

    async fn write(stream: &mut Patient, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes));
            bytes = &bytes[written.await?..];
        }
        Ok(())
    }

    #[test]
    fn a_slow_reader_is_waited_for_and_one_that_takes_nothing_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            let stream = TcpStream::from_std(stream).unwrap();
            let mut stream = Patient::new(stream, Duration::from_millis(500));
            let block = vec![0; 1 << 24];
            let length = block.len();
            let reader = std::thread::spawn(move || {
                let (mut left, mut buffer) = (length, vec![0; 1 << 21]);
                while left > 0 {
                    std::thread::sleep(Duration::from_millis(100));
                    left -= (&client).read(&mut buffer).unwrap();
                }
                client
            });
            let started = Instant::now();
            write(&mut stream, &block).await.unwrap();
            assert!(started.elapsed() > Duration::from_millis(500), "it was slow");
            let _client = reader.join().unwrap();
            let error = loop {
                if let Err(error) = write(&mut stream, &block).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
