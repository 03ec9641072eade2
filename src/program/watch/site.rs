//! Routing: the page's files, and an allow-list of the run's files.

use super::about::describe_run;
use super::guard::{Hosts, Refusal, check_request};
use super::live::{LiveRun, PUBLIC_SECTIONS, RunState, ServedPolicy};
use super::page::{self, File, content_type, hash_content};
use super::{download, events};
use crate::program::games::Games;
use crate::run::{CONFIG, METADATA, METRICS, Panic, catch_panic};
use http_body_util::channel::Channel;
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;

/// The body of a response.
pub type Body = Either<Full<Bytes>, Channel<Bytes>>;
/// The response to a request, or why there is none.
type Answer = Result<Response<Body>, Refusal>;

/// Security headers of every response. The page names the same policy, for hosts that send none.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; \
         style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; \
         manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // Cross-origin isolation, which makes SharedArrayBuffer available to the page.
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Response header with the iteration of a checkpoint.
const ITERATION_HEADER: HeaderName = HeaderName::from_static("grove-iteration");

/// A run with the page that shows it.
pub struct Site {
    pub live: Arc<LiveRun>,
    pub hosts: Hosts,
    pub games: Games,
}

impl Site {
    /// Responds to a request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        let failed = |panic: Panic| Err(internal_error(format!("The answer failed: {panic}.")));
        check_request(request, &self.hosts)
            .and_then(|()| catch_panic(|| self.route(request)).unwrap_or_else(failed))
            .unwrap_or_else(refusal_response)
    }

    /// Responds to an allowed request. Paths are compared literally with a list: they are not decoded and
    /// never used as file system paths.
    fn route<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        match path {
            "/run/about.json" => self.about_response(request),
            "/run/events" => Ok(self.events_response(request)),
            "/run/completions.jsonl" => self.completions_response(request),
            _ => match path.strip_prefix("/run/files/") {
                Some(METRICS) => self.metrics_response(),
                Some(name) => self.file_response(request, name),
                None => Ok(page_response(request, page::find(path).ok_or_else(not_found)?)),
            },
        }
    }

    fn about_response<B>(&self, request: &Request<B>) -> Answer {
        let about = describe_run(&self.live.lock_state(), &self.games)
            .map_err(|error| Refusal::new(StatusCode::NOT_FOUND, format!("{error:#}.")))?;
        let about = Bytes::from(about.to_string());
        Ok(full_response(request, content_type(".json"), about.clone(), &hash_content(&about)))
    }

    fn events_response<B>(&self, request: &Request<B>) -> Response<Body> {
        let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok());
        let body = Either::Right(events::stream(self.live.clone(), last));
        let mut response = new_response(StatusCode::OK, "text/event-stream", body);
        set_header(&mut response, header::CACHE_CONTROL, "no-store");
        response
    }

    fn completions_response<B>(&self, request: &Request<B>) -> Answer {
        let iteration = parse_query(request.uri().query())?;
        let run = self.live.lock_state();
        let completions = run.completions.as_ref().ok_or_else(not_found)?;
        let bytes = completions
            .read_block(iteration)
            .map_err(|error| internal_error(format!("Cannot read the completions: {error}.")))?;
        let body = Either::Left(Full::new(Bytes::from(bytes)));
        Ok(new_response(StatusCode::OK, content_type(".jsonl"), body))
    }

    fn metrics_response(&self) -> Answer {
        let (generation, end) = {
            let run = self.live.lock_state();
            (run.metrics.generation, run.metrics.end)
        };
        if end == 0 {
            return Err(not_found());
        }
        let body = Either::Right(download::stream_metrics(self.live.clone(), generation, end));
        let mut response = new_response(StatusCode::OK, content_type(METRICS), body);
        // Without it a stream that ends early looks complete.
        set_header(&mut response, header::CONTENT_LENGTH, &end.to_string());
        Ok(response)
    }

    fn file_response<B>(&self, request: &Request<B>, name: &str) -> Answer {
        let run = self.live.lock_state();
        let (bytes, iteration) = find_public_file(&run, name).ok_or_else(not_found)?;
        let mut response =
            full_response(request, content_type(name), bytes.clone(), &hash_content(bytes));
        if let Some(iteration) = iteration {
            set_header(&mut response, ITERATION_HEADER, &iteration.to_string());
        }
        Ok(response)
    }
}

/// Parses the query of a request for completions: their iteration, or `None` for the newest.
fn parse_query(query: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(query) = query else { return Ok(None) };
    let iteration = query.strip_prefix("iteration=").and_then(|number| number.parse().ok());
    let text = "The query must be ?iteration=N, or absent for the newest completions.";
    iteration.map(Some).ok_or(Refusal::new(StatusCode::BAD_REQUEST, text))
}

/// Finds a public file of a run by its name in requests, with the iteration if it is part of a checkpoint.
fn find_public_file<'a>(run: &'a RunState, name: &str) -> Option<(&'a Bytes, Option<u64>)> {
    let section_of = |policy: &'a Option<ServedPolicy>, section: &str| {
        let policy = policy.as_ref()?;
        let at = PUBLIC_SECTIONS.iter().position(|known| *known == section)?;
        Some((&policy.sections[at], Some(policy.iteration)))
    };
    match name.split_once('/') {
        None if name == CONFIG => Some((run.config.as_ref()?, None)),
        None if name == METADATA => Some((run.metadata.as_ref()?, None)),
        Some(("best", section)) => section_of(&run.best, section),
        Some(("newest", section)) => section_of(&run.newest, section),
        _ => None,
    }
}

/// Responds with a file of the page, compressed if it is embedded so and the browser accepts that.
fn page_response<B>(request: &Request<B>, file: &'static File) -> Response<Body> {
    let is_packed = file.is_gzip && accepts_gzip(request.headers());
    let (bytes, tag) = if is_packed {
        (Bytes::from_static(file.bytes), format!("{}-gzip", file.tag))
    } else {
        (file.plain(), file.tag.to_string())
    };
    let mut response = full_response(request, content_type(file.path), bytes, &tag);
    if is_packed && response.status() == StatusCode::OK {
        set_header(&mut response, header::CONTENT_ENCODING, "gzip");
    }
    if file.is_gzip {
        set_header(&mut response, header::VARY, "accept-encoding");
    }
    response
}

/// Whether a client accepts compressed content (RFC 9110, 12.5.3).
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let mut codings =
        values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|q| q.trim().parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|weight| weight > 0.0)
    })
}

/// Responds with a whole file, or `304 Not Modified` if the browser has it in its cache.
fn full_response<B>(
    request: &Request<B>,
    media_type: &str,
    bytes: Bytes,
    tag: &str,
) -> Response<Body> {
    let tag = format!("\"{tag}\"");
    let known = request.headers().get(header::IF_NONE_MATCH);
    let (status, bytes) = if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        (StatusCode::NOT_MODIFIED, Bytes::new())
    } else {
        (StatusCode::OK, bytes)
    };
    let mut response = new_response(status, media_type, Either::Left(Full::new(bytes)));
    set_header(&mut response, header::ETAG, &tag);
    response
}

/// Responds to a refused request.
pub fn refusal_response(refusal: Refusal) -> Response<Body> {
    let Refusal { status, text } = refusal;
    let body = Either::Left(Full::new(Bytes::from(format!("{text}\n"))));
    let mut response = new_response(status, "text/plain; charset=utf-8", body);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        set_header(&mut response, header::ALLOW, "GET, HEAD");
    }
    response
}

fn not_found() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "Not found.")
}

fn internal_error(text: String) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn new_response(status: StatusCode, media_type: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    set_header(&mut response, header::CONTENT_TYPE, media_type);
    // Browsers may cache the response, but must revalidate it.
    set_header(&mut response, header::CACHE_CONTROL, "no-cache");
    response
}

fn set_header(response: &mut Response<Body>, name: HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("header values are ASCII");
    response.headers_mut().insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::read::GzEncoder;
    use http_body_util::BodyExt;
    use std::io::Read;

    fn request(accepted: Option<&str>, known: Option<&str>) -> Request<()> {
        let mut request = Request::builder();
        for (name, value) in [(header::ACCEPT_ENCODING, accepted), (header::IF_NONE_MATCH, known)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.body(()).unwrap()
    }

    fn body(response: Response<Body>) -> Bytes {
        pollster::block_on(response.into_body().collect()).unwrap().to_bytes()
    }

    #[test]
    fn a_compressed_file_goes_out_as_the_client_accepts_it() {
        let plain = b"(module)".repeat(100);
        let mut packed = Vec::new();
        GzEncoder::new(&plain[..], Compression::best()).read_to_end(&mut packed).unwrap();
        let bytes: &'static [u8] = packed.leak();
        let file: &'static File =
            Box::leak(Box::new(File { path: "/module.wasm", tag: "1", is_gzip: true, bytes }));
        for (accepted, is_packed) in [
            (None, false),
            (Some("gzip"), true),
            (Some("deflate, GZip;q=0.5, br"), true),
            (Some("br"), false),
            (Some("gzip;q=0, deflate"), false),
        ] {
            let response = page_response(&request(accepted, None), file);
            let headers = response.headers().clone();
            let want = is_packed.then(|| HeaderValue::from_static("gzip"));
            assert_eq!(headers.get(header::CONTENT_ENCODING), want.as_ref(), "{accepted:?}");
            assert_eq!(headers[header::VARY], "accept-encoding");
            assert_eq!(headers[header::CONTENT_TYPE], "application/wasm");
            let got = body(response);
            assert!(got == if is_packed { bytes } else { &plain[..] }, "{accepted:?}");
            let tag = headers[header::ETAG].to_str().unwrap();
            let again = page_response(&request(accepted, Some(tag)), file);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{accepted:?}");
            assert!(again.headers().get(header::CONTENT_ENCODING).is_none());
            let other = if is_packed { "\"1\"" } else { "\"1-gzip\"" };
            assert_eq!(
                page_response(&request(accepted, Some(other)), file).status(),
                StatusCode::OK
            );
        }
    }

    #[test]
    fn an_uncompressed_file_is_sent_unchanged() {
        let file: &'static File =
            Box::leak(Box::new(File { path: "/p.png", tag: "2", is_gzip: false, bytes: b"png" }));
        let response = page_response(&request(Some("gzip"), None), file);
        assert!(response.headers().get(header::CONTENT_ENCODING).is_none());
        assert!(body(response) == b"png"[..]);
    }
}
