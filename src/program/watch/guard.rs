//! Protection against requests by other sites' pages.
//!
//! A page of another site can make a browser send requests to this server, and its own host name may
//! resolve to this machine (DNS rebinding), so that it could read the responses. Checking the `Origin`
//! header prevents the former, checking `Host` the latter.

use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::{HeaderMap, Method, Request, StatusCode};
use std::borrow::Cow;
use std::net::IpAddr;

/// The response to a refused request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub text: Cow<'static, str>,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }
}

/// The host names under which the server may be addressed.
pub struct Hosts {
    /// Whether the server is reachable from this machine only.
    pub is_local: bool,
    /// Names of this machine that the server may be addressed by, beside `localhost`.
    pub names: Vec<String>,
}

impl Hosts {
    /// Whether `authority`, which is `host` or `host:port`, addresses this server. The port is ignored,
    /// since a tunnel may use another one. IP addresses are safe from DNS rebinding.
    fn contains(&self, authority: &str) -> bool {
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) if port.starts_with(':') => (host, Some(&port[1..])),
                _ => return false,
            },
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return false;
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return !self.is_local || address.to_canonical().is_loopback();
        }
        let is_host = |name: &str| host.eq_ignore_ascii_case(name);
        is_host("localhost") || self.names.iter().any(|name| is_host(name))
    }
}

/// Checks a request's method and headers.
pub fn check_request<B>(request: &Request<B>, hosts: &Hosts) -> Result<(), Refusal> {
    let headers = request.headers();
    let host = single_header(headers, HOST)
        .ok_or(Refusal::new(StatusCode::BAD_REQUEST, "The request must have one Host header."))?;
    let authority = request.uri().authority().map(|authority| authority.as_str());
    if !hosts.contains(host) || authority.is_some_and(|name| !hosts.contains(name)) {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "The Host header has a foreign name: use the IP address, or start with this name as --host.",
        ));
    }
    if headers.contains_key(ORIGIN) {
        let origin =
            single_header(headers, ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
        if !origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host)) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "Requests by pages of other origins are not allowed.",
            ));
        }
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are allowed."));
    }
    Ok(())
}

/// Returns a header's value if the header occurs exactly once.
fn single_header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_server_accepts_local_names_only() {
        let local = Hosts { is_local: true, names: vec!["127.0.0.1".into()] };
        let ours = ["127.0.0.1:8642", "127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80", "[::1]"];
        for name in ours.iter().chain(&["[::ffff:127.0.0.1]", "127.8.9.10:99"]) {
            assert!(local.contains(name), "{name}");
        }
        let foreign = ["", "evil.example", "localhost.evil.example:8642", "127.0.0.1.evil.example"];
        let more = ["192.168.1.5", "[::2]", "[::1", "[::1]x", "localhost:", "localhost:x", "::1"];
        for name in foreign.iter().chain(&more).chain(&["localhost:99999", "user@localhost"]) {
            assert!(!local.contains(name), "{name}");
        }
    }

    #[test]
    fn a_public_server_accepts_all_addresses_and_its_names() {
        let open = Hosts { is_local: false, names: vec!["0.0.0.0".into(), "lab-3".into()] };
        for name in ["lab-3:8642", "LAB-3", "192.168.1.5:8642", "[fd00::7]:8642", "localhost"] {
            assert!(open.contains(name), "{name}");
        }
        for name in ["evil.example", "lab-3.evil.example", "lab"] {
            assert!(!open.contains(name), "{name}");
        }
    }
}
