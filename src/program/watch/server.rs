//! The sockets, on a thread of their own: limits, timeouts, and the end.

use super::guard::{Hosts, Refusal};
use super::patience::Patient;
use super::site::{Site, refuse};
use anyhow::{Context, Result};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};

/// Connections that are served at a time.
const CONNECTIONS: usize = 64;
/// Further ones, that are told so.
const TURNED_AWAY: usize = 16;
/// For a request to arrive, and for a connection to be used again.
const REQUEST: Duration = Duration::from_secs(10);
/// For a client to take anything of what it asked for.
const WRITE: Duration = Duration::from_secs(30);
/// The most bytes of a request's head, and of what waits to be written.
const BUFFER: usize = 16 << 10;

/// A port that is taken, not served yet.
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
    host: String,
}

impl Port {
    /// Takes a port; 0 is any that is free.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn take(host: &str, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((host, port)).with_context(|| {
            format!("cannot serve at {host} port {port}; another --port may be free (0 takes any)")
        })?;
        listener.set_nonblocking(true).context("cannot serve without waiting")?;
        let address = listener.local_addr().context("cannot tell the server's address")?;
        Ok(Self { listener, address, host: host.to_string() })
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        match self.address.ip().is_unspecified() {
            true => format!("http://localhost:{}/", self.address.port()),
            false => format!("http://{}/", self.address),
        }
    }

    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// The hosts that a server at this port is.
    pub fn hosts(&self) -> Hosts {
        Hosts { local: self.is_local(), given: self.host.clone() }
    }
}

/// A server at work, until it is dropped.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a site.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(port: Port, site: Site) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the server")?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(port.listener).context("cannot start the server")?
        };
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::spawn(accept(listener, Arc::new(site)));
                // Whether it was sent or dropped, it is the end.
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("watch-server".into()).spawn(serve);
        let thread = thread.context("cannot start the server's thread")?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, site: Arc<Site>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let standing = Arc::new(Semaphore::new(TURNED_AWAY));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The client is gone already, or there are too many open files: neither is for long.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (permit, busy) = match connections.clone().try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_) => match standing.clone().try_acquire_owned() {
                Ok(permit) => (permit, true),
                Err(_) => continue,
            },
        };
        let site = site.clone();
        tokio::spawn(async move {
            serve(stream, &site, busy).await;
            drop(permit);
        });
    }
}

async fn serve(stream: TcpStream, site: &Site, busy: bool) {
    let service = service_fn(async |request: Request<_>| {
        let response = match busy {
            false => site.answer(&request),
            true => {
                let text = "There are too many connections; close some pages that watch this run.";
                let mut response = refuse(Refusal(StatusCode::SERVICE_UNAVAILABLE, text));
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                response
            }
        };
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(Patient::new(stream, WRITE)), service);
    // What goes wrong is the client's affair, or its way here: it is gone.
    let _ = served.await;
}
