//! The guides for contributors, and the policy for security, name files, lists, commands and benches that are there.

use std::fs;
use std::path::Path;

const GUIDES: [&str; 4] =
    ["CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "docs/debugging.md"];
/// Folders and files at the top that a guide may name; what begins otherwise is not a path of this repository.
const TOP: [&str; 10] = [
    ".ci/",
    "assets/",
    "benches/",
    "docs/",
    "examples/",
    "src/",
    "tests/",
    "web/",
    "ARCHITECTURE.md",
    "rust-toolchain.toml",
];

/// The pieces of code in a text: what stands between backticks on a line, outside of blocks.
fn code(text: &str) -> Vec<String> {
    let blocks = text.split("```").step_by(2);
    blocks
        .flat_map(|block| block.split('`').skip(1).step_by(2))
        .map(|piece| piece.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_file_that_a_guide_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for guide in GUIDES {
        let code = code(&read(guide));
        let words = code.iter().flat_map(|piece| piece.split(' '));
        // Build output is not part of the repository.
        let paths =
            words.filter(|word| TOP.iter().any(|top| word.starts_with(top)) && *word != "web/dist");
        let mut count = 0;
        for path in paths {
            assert!(root.join(path).exists(), "{guide} names {path}, which is not there");
            count += 1;
        }
        assert!(count > 3, "{guide} names {count} files");
    }
}

#[test]
fn every_list_that_a_guide_names_is_in_its_file() {
    let text = read("CONTRIBUTING.md");
    let pieces: Vec<&str> = text.split('`').collect();
    let mut count = 0;
    // `NAME` in `FILE`, or of it.
    for three in pieces.windows(3).skip(1).step_by(2) {
        let [name, between, path] = three else { unreachable!("windows of three") };
        if [" in ", " of "].contains(between) && path.ends_with(".rs") {
            for name in name.split([' ', ',']).filter(|name| !name.is_empty()) {
                assert!(read(path).contains(name), "{path} has no `{name}`");
            }
            count += 1;
        }
    }
    assert!(count >= 5, "{count} lists are named");
}

#[test]
fn every_bench_example_and_test_that_a_guide_runs_is_there() {
    let manifest = read("Cargo.toml");
    for guide in GUIDES {
        let text = read(guide);
        for (flag, section) in [("--bench ", "[[bench]]"), ("--example ", "[[example]]")] {
            for name in text.split(flag).skip(1) {
                let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                let entry = format!("{section}\nname = \"{name}\"");
                assert!(manifest.contains(&entry), "{guide} runs {flag}{name}, which is not there");
            }
        }
    }
}
