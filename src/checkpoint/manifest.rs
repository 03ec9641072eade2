//! The manifest and the checksum file of a checkpoint: their formats, and the rules for section names.

use super::{Checkpoint, CheckpointError};
use crate::disk;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;

/// The file that lists the sections.
pub const MANIFEST: &str = "manifest.json";

/// The file with the checksums of all other files. Its name and its first line (the manifest's) are
/// the same in every format, so that a newer format can be distinguished from a damaged manifest.
pub const CHECKSUMS: &str = "SHA256SUMS";

/// The directory format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// The content of `manifest.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub iteration: u64,
    pub sections: Vec<SectionEntry>,
}

/// A section's line in the manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SectionEntry {
    pub name: String,
    pub version: u32,
    /// Size of the file in bytes.
    pub size: u64,
}

/// Serializes the manifest of a checkpoint.
pub fn serialize_manifest(checkpoint: &Checkpoint) -> String {
    let sections = checkpoint.sections.iter().map(|section| SectionEntry {
        name: section.name.clone(),
        version: section.version,
        size: section.bytes.len() as u64,
    });
    let manifest =
        Manifest { format: FORMAT, iteration: checkpoint.iteration, sections: sections.collect() };
    // Serialization fails only for non-string map keys and failing `Serialize` impls: none here.
    let text = serde_json::to_string_pretty(&manifest).expect("a manifest is plain JSON");
    text + "\n"
}

/// Parses the manifest of the checkpoint in `path` and checks the section names.
pub fn parse_manifest(path: &Path, text: &[u8]) -> Result<Manifest, CheckpointError> {
    #[derive(Deserialize)]
    struct Header {
        format: u32,
    }
    let bad = |reason: String| CheckpointError::damaged(path, format!("{MANIFEST} {reason}"));
    let unparsable = |e: serde_json::Error| bad(format!("cannot be parsed ({e})"));
    let Header { format } = serde_json::from_slice(text).map_err(unparsable)?;
    if format > FORMAT {
        let (path, found, supported) = (path.to_owned(), format, FORMAT);
        return Err(CheckpointError::NewerFormat { path, found, supported });
    }
    let manifest: Manifest = serde_json::from_slice(text).map_err(unparsable)?;
    match find_bad_name(manifest.sections.iter().map(|entry| entry.name.as_str())) {
        Some((name, reason)) => Err(bad(format!("has a section name {name:?} that {reason}"))),
        None => Ok(manifest),
    }
}

/// Formats the line of `SHA256SUMS` for a file.
pub fn format_checksum_line(name: &str, bytes: &[u8]) -> String {
    format!("{}  {name}\n", disk::sha256(bytes))
}

/// Returns the first name that is not a portable, unique file name, with the reason.
pub fn find_bad_name<'a>(names: impl Iterator<Item = &'a str>) -> Option<(&'a str, &'static str)> {
    // `A` and `a` are the same file on case-insensitive systems.
    let reserved = [MANIFEST, CHECKSUMS].map(str::to_ascii_lowercase);
    let mut taken = HashSet::new();
    for name in names {
        let lower = name.to_ascii_lowercase();
        let stem = lower.split('.').next().unwrap_or_default();
        let reason = if name.is_empty() {
            "is empty"
        } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            "does not start with an ASCII letter or digit"
        } else if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            "has a character other than ASCII letters, digits, '.', '-' and '_'"
        } else if name.ends_with('.') || is_device_on_windows(stem) {
            "is not a valid file name on Windows"
        } else if reserved.contains(&lower) {
            "is reserved"
        } else if !taken.insert(lower) {
            "is taken by another section"
        } else {
            continue;
        };
        return Some((name, reason));
    }
    None
}

/// Whether Windows keeps a file's name, without its extension and in lower case, for a device.
fn is_device_on_windows(stem: &str) -> bool {
    let port = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    ["con", "prn", "aux", "nul"].contains(&stem)
        || port.is_some_and(|number| matches!(number.as_bytes(), [b'1'..=b'9']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_format_is_distinguished_from_a_malformed_manifest() {
        let error = |text: &str| parse_manifest(Path::new("best"), text.as_bytes()).err().unwrap();
        let newer = error(r#"{"format": 2, "shards": []}"#);
        assert!(matches!(newer, CheckpointError::NewerFormat { found: 2, .. }));
        let odd = error(r#"{"format": 1, "iteration": 1, "sections": [], "shards": []}"#);
        assert!(odd.to_string().contains("shards"), "{odd}");
    }

    #[test]
    fn section_names_must_be_portable_and_unique() {
        let good = ["weights.safetensors", "optimizer", "0", "a-b_c.d"];
        assert_eq!(find_bad_name(good.into_iter()), None);
        let bad = [
            ("", "empty"),
            ("a/b", "character"),
            ("a\\b", "character"),
            ("a\nb", "character"),
            ("größe", "character"),
            (".hidden", "start"),
            ("..", "start"),
            ("-", "start"),
            ("a.", "Windows"),
            ("nul.txt", "Windows"),
            ("COM1", "Windows"),
            ("manifest.json", "reserved"),
            ("sha256sums", "reserved"),
        ];
        for (name, expected) in bad {
            let (found, reason) = find_bad_name(["weights", name].into_iter()).unwrap();
            assert_eq!(found, name);
            assert!(reason.contains(expected), "{name:?} {reason}");
        }
        assert_eq!(
            find_bad_name(["a", "b", "A"].into_iter()),
            Some(("A", "is taken by another section"))
        );
    }
}
