//! The files of the page, which are part of the program.

use std::hash::{DefaultHasher, Hasher};

/// A file of the page.
pub struct File {
    /// Its path in requests.
    pub path: &'static str,
    /// Changes with the content.
    pub tag: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

// `DIST`, the page where it is built, and `PLAIN`, the small page that is always there.
include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// The file that a request for this path means.
pub fn find(path: &str) -> Option<&'static File> {
    let file = |path| DIST.iter().chain(PLAIN).find(|file: &&File| file.path == path);
    match path {
        "/" => file("/index.html").or_else(|| file("/plain/index.html")),
        "/plain/" => file("/plain/index.html"),
        path => file(path),
    }
}

/// The type of a file, by its name.
pub fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "jsonl" => "application/x-ndjson",
        "toml" | "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}

/// A text that changes with the content, for `ETag`.
pub fn tag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_has_a_type_and_the_tag_of_its_content() {
        assert!(PLAIN.len() >= 3);
        for file in DIST.iter().chain(PLAIN) {
            let known = content_type(file.path) != "application/octet-stream";
            assert_eq!(known, !file.path.ends_with(".safetensors"), "{}", file.path);
            assert_eq!(tag(file.bytes), file.tag, "{}", file.path);
        }
        assert!(find("/").is_some_and(|file| file.path.ends_with("/index.html")));
        assert!(find("/plain/").is_some_and(|file| file.path == "/plain/index.html"));
        assert!(find("").is_none() && find("/plain").is_none());
    }
}
