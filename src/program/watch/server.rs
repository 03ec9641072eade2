//! The HTTP server: sockets, limits, timeouts and shutdown, on its own thread.

use super::guard::{Hosts, Refusal};
use super::site::{Site, refusal_response};
use super::write_timeout::WriteTimeout;
use anyhow::{Context, Result};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
#[cfg(unix)]
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of simultaneous connections.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of further connections that receive an error response; others are dropped.
const MAX_REFUSED_CONNECTIONS: usize = 16;
/// Timeout for the head of a request, and for an idle connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a client that does not read its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a request's head and of the write buffer, bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// A bound port, not served yet.
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
    host: String,
}

impl Port {
    /// Binds a port; 0 selects any free one.
    pub fn bind(host: &str, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((host, port)).with_context(|| {
            format!("cannot serve at {host} port {port}; try another --port (0 for any free one)")
        })?;
        listener.set_nonblocking(true).context("cannot make the socket non-blocking")?;
        let address = listener.local_addr().context("cannot determine the server's address")?;
        Ok(Self { listener, address, host: host.to_string() })
    }

    /// The URL of the page.
    pub fn url(&self) -> String {
        if self.address.ip().is_unspecified() {
            format!("http://localhost:{}/", self.address.port())
        } else {
            format!("http://{}/", self.address)
        }
    }

    /// Advises how to connect from other machines, if the server listens at all addresses.
    pub fn remote_advice(&self) -> Option<String> {
        let port = self.address.port();
        self.address.ip().is_unspecified().then(|| {
            format!(
                "from other machines use this one's IP address, http://IP:{port}/, or its name{}",
                machine_name().map(|name| format!(", http://{name}:{port}/")).unwrap_or_default()
            )
        })
    }

    /// Advises another host if this one is a name that only this machine knows as its own: Debian's `/etc/hosts` maps
    /// the machine's name to a local address.
    pub fn host_advice(&self) -> Option<String> {
        let is_name = self.host.parse::<IpAddr>().is_err() && !self.host.starts_with("localhost");
        let (host, ip) = (&self.host, self.address.ip());
        let is_own = || machine_name().is_some_and(|name| name.eq_ignore_ascii_case(host));
        (self.is_local() && is_name).then(|| {
            let place = if is_own() { "name or its IP address" } else { "IP address" };
            format!(
                "{host} is {ip} here, which other machines cannot reach; --host 0.0.0.0 serves them, at this machine's {place}"
            )
        })
    }

    /// Whether the port is reachable from this machine only.
    pub fn is_local(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// The host names of a server at this port.
    pub fn hosts(&self) -> Hosts {
        let machine_name = if self.address.ip().is_unspecified() { machine_name() } else { None };
        Hosts {
            is_local: self.is_local(),
            names: machine_name.into_iter().chain([self.host.clone()]).collect(),
        }
    }
}

/// The name of this machine, if the system tells it.
fn machine_name() -> Option<String> {
    #[cfg(unix)]
    {
        let mut name = [0_u8; 256];
        // SAFETY: the buffer is writable, and as long as it is said to be.
        let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) };
        let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| code == 0)?;
        name.to_str().ok().filter(|name| !name.is_empty()).map(str::to_string)
    }
    #[cfg(not(unix))]
    std::env::var("COMPUTERNAME").ok()
}

/// A running server. Dropping it stops the server.
pub struct Server {
    /// The thread, which ends when the sender is dropped.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Server {
    /// Starts a thread that serves a site.
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
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("watch-server".into()).spawn(serve);
        let thread = thread.context("cannot start the server's thread")?;
        Ok(Self { running: Some((stop, thread)) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, site: Arc<Site>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSED_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The client has disconnected, or there are too many open files; both are temporary.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (permit, is_busy) = match connections.clone().try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_) => match refusals.clone().try_acquire_owned() {
                Ok(permit) => (permit, true),
                Err(_) => continue,
            },
        };
        let site = site.clone();
        tokio::spawn(async move {
            serve(stream, &site, is_busy).await;
            drop(permit);
        });
    }
}

async fn serve(stream: TcpStream, site: &Site, is_busy: bool) {
    let service = service_fn(async |request: Request<_>| {
        let response = if is_busy {
            let text = "Too many connections; close some of the pages that watch this run.";
            let mut response =
                refusal_response(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        } else {
            site.answer(&request)
        };
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT)), service);
    // Errors concern this connection only, which is closed.
    let _ = served.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_local_address_is_known_only_here() {
        let port =
            |host: &str| Port { host: host.to_string(), ..Port::bind("127.0.0.1", 0).unwrap() };
        assert!(port("lab-3").host_advice().unwrap().starts_with("lab-3 is 127.0.0.1 here, "));
        for host in ["127.0.0.1", "localhost"] {
            assert_eq!(port(host).host_advice(), None, "{host}");
        }
    }

    #[test]
    fn a_server_at_all_addresses_has_the_name_of_the_machine() {
        let names = |host| Port::bind(host, 0).unwrap().hosts().names;
        let own = machine_name().into_iter().chain(["0.0.0.0".to_string()]);
        assert_eq!(names("0.0.0.0"), own.collect::<Vec<_>>());
        assert_eq!(names("127.0.0.1"), ["127.0.0.1"]);
    }
}
