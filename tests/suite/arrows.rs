//! The arrows of the map: which room may use which, and what every file owes its reader.

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of the library and those that each may use. `ARCHITECTURE.md` draws the same.
const ARROWS: [(&str, &[&str]); 22] = [
    ("math", &["schema"]),
    ("objective", &["math", "schema"]),
    ("settings", &["env", "math", "model", "objective", "schema"]),
    ("rng", &[]),
    ("schema", &[]),
    ("data", &[]),
    ("metrics", &[]),
    ("checkpoint", &[]),
    ("parallel", &[]),
    ("device", &["settings", "metrics"]),
    ("env", &["rng"]),
    ("task", &["rng", "schema"]),
    ("nn", &["math", "rng", "schema"]),
    ("model", &["math", "nn", "rng", "schema"]),
    ("text", &["device", "math", "model", "nn", "rng", "schema"]),
    ("rollout", &["settings", "device", "math", "rng", "env", "model", "data"]),
    ("advantage", &["settings", "device", "data", "parallel"]),
    (
        "learner",
        &["settings", "device", "math", "objective", "rng", "model", "data", "parallel", "text"],
    ),
    (
        "trainer",
        &[
            "advantage",
            "checkpoint",
            "settings",
            "device",
            "rng",
            "env",
            "learner",
            "metrics",
            "model",
            "rollout",
            "data",
            "parallel",
            "task",
            "text",
        ],
    ),
    (
        "run",
        &[
            "checkpoint",
            "settings",
            "device",
            "env",
            "metrics",
            "model",
            "parallel",
            "rng",
            "rollout",
            "text",
            "trainer",
        ],
    ),
    ("viewer", &["device", "env", "rollout"]),
    ("program", &[]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The room that a file of the library is in.
fn room(file: &Path) -> String {
    let inside = file.strip_prefix(root()).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_string()
}

/// The code of a file: no comments, no unit tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that follow `prefix` in `code`, those in braces included.
fn names_after(code: &str, prefix: &str) -> Vec<String> {
    let ident = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split('}').next().unwrap();
                names.extend(list.split(',').map(|item| ident(item.trim())));
            }
            None => names.push(ident(rest)),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn every_room_uses_only_what_the_map_allows() {
    let mut seen = Vec::new();
    for file in sources(&root()) {
        let room = room(&file);
        if ["lib", "main", "program"].contains(&room.as_str()) {
            // They sit on top and may use all.
            continue;
        }
        let (_, allowed) = ARROWS
            .iter()
            .find(|(name, _)| *name == room)
            .unwrap_or_else(|| panic!("{} is in a room that is not on the map", file.display()));
        for used in names_after(&code(&file), "crate::") {
            let is_room = ARROWS.iter().any(|(name, _)| *name == used);
            if is_room && used != room {
                assert!(
                    allowed.contains(&used.as_str()),
                    "{} uses `{used}`, which the map does not allow `{room}`",
                    file.display()
                );
                seen.push((room.clone(), used));
            }
        }
    }
    // The test reads arrows at all, and the map shows none that is not there.
    for (room, allowed) in ARROWS {
        for used in allowed {
            assert!(
                seen.contains(&(room.to_string(), used.to_string())),
                "the map lets `{room}` use `{used}`, but it does not"
            );
        }
    }
}

#[test]
fn games_know_neither_tensors_nor_files_nor_the_time() {
    for file in sources(&root().join("env")) {
        for forbidden in ["burn::tensor", "burn::nn", "std::fs", "std::io", "std::time"] {
            assert!(!code(&file).contains(forbidden), "{} uses {forbidden}", file.display());
        }
    }
}

#[test]
fn every_file_says_its_idea_and_stays_readable() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for file in sources(&root()).into_iter().chain(sources(&tests)) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} must say what it is for", file.display());
        let lines = text.lines().count();
        assert!(lines <= 500, "{} has {lines} lines; split it", file.display());
    }
}
