//! The files of the live page, embedded in the program.

use flate2::read::GzDecoder;
use hyper::body::Bytes;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;

/// A file of the page.
pub struct File {
    /// The path in requests.
    pub path: &'static str,
    /// A hash of the content, for `ETag`.
    pub tag: &'static str,
    /// Whether the bytes are compressed.
    pub is_gzip: bool,
    pub bytes: &'static [u8],
}

impl File {
    /// Returns the content uncompressed, for a client that cannot decompress it.
    pub fn plain(&self) -> Bytes {
        if !self.is_gzip {
            return Bytes::from_static(self.bytes);
        }
        let mut plain = Vec::new();
        GzDecoder::new(self.bytes).read_to_end(&mut plain).expect("the build has compressed it");
        Bytes::from(plain)
    }
}

// Defines `DIST`, the built page; empty if `web/build.sh` has not built it.
include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// The page of a program that was compiled without the built one.
static UNBUILT_PAGE: File = File {
    path: "/index.html",
    tag: "unbuilt",
    is_gzip: false,
    bytes: b"<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>Grove</title>
<h1>Grove</h1>
<p>The page was not built when this program was compiled. Run <code>web/build.sh</code>, then
<code>cargo build --release</code>, to watch the run in a browser.
<p>Its records are in <a href=\"/run/files/metrics.jsonl\">metrics.jsonl</a>, its settings in
<a href=\"/run/files/config.toml\">config.toml</a>.
</html>
",
};

/// The file at a path in a request.
pub fn find(path: &str) -> Option<&'static File> {
    let path = if path == "/" { "/index.html" } else { path };
    let unbuilt = (DIST.is_empty() && path == UNBUILT_PAGE.path).then_some(&UNBUILT_PAGE);
    DIST.iter().find(|file| file.path == path).or(unbuilt)
}

/// The media type of a file, by its name.
pub fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "jsonl" => "application/x-ndjson",
        "toml" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "png" => "image/png",
        _ => "application/octet-stream",
    }
}

/// Hashes a content, for `ETag`.
pub fn hash_content(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_has_a_type_and_the_tag_of_its_content() {
        for file in DIST {
            let known = content_type(file.path) != "application/octet-stream";
            assert_eq!(known, !file.path.ends_with(".safetensors"), "{}", file.path);
            assert_eq!(hash_content(&file.plain()), file.tag, "{}", file.path);
        }
        assert!(find("/").is_some_and(|file| file.path == "/index.html"));
        assert!(find("").is_none() && find("/nothing.html").is_none());
    }
}
