//! The guides for contributors, and the policy for security, name files, lists, commands and benches that are there,
//! and all lists that are kept by hand; all copies of the list of instruction sets are equal.

use crate::support::{repository, tree};
use grove::env::NAMES;
use grove::model::ModelKind;
use grove::settings::LossType;
use grove::task::TASKS;
use std::fs;
use std::path::{Path, PathBuf};

const GUIDES: [&str; 4] =
    ["CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "docs/debugging.md"];
/// Folders and files at the top that a guide may name; what begins otherwise is not a path of this repository.
const TOP: &str =
    ".ci/ assets/ benches/ docs/ examples/ src/ tests/ web/ ARCHITECTURE.md rust-toolchain.toml";

/// The pieces of code in a text: what stands between backticks on a line, outside of blocks.
fn code(text: &str) -> Vec<String> {
    let blocks = text.split("```").step_by(2);
    blocks
        .flat_map(|block| block.split('`').skip(1).step_by(2))
        .map(|piece| piece.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_file_that_a_guide_names_is_there() {
    for guide in GUIDES {
        let code = code(&read(guide));
        let words = code.iter().flat_map(|piece| piece.split(' '));
        // Build output is not part of the repository.
        let paths = words
            .filter(|word| TOP.split(' ').any(|top| word.starts_with(top)) && *word != "web/dist");
        let mut count = 0;
        for path in paths {
            assert!(repository(path).exists(), "{guide} names {path}, which is not there");
            count += 1;
        }
        assert!(count > 3, "{guide} names {count} files");
    }
}

#[test]
fn every_list_that_a_guide_names_is_in_its_file() {
    let text = read("CONTRIBUTING.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let pieces: Vec<&str> = text.split('`').collect();
    let mut count = 0;
    // `NAME` in `FILE`, or of it.
    for three in pieces.windows(3).skip(1).step_by(2) {
        let [name, between, path] = three else { unreachable!("windows of three") };
        if [" in ", " of "].contains(between) && Path::new(path).extension().is_some() {
            for name in name.split([' ', ',']).filter(|name| !name.is_empty()) {
                assert!(read(path).contains(name), "{path} has no `{name}`");
            }
            count += 1;
        }
    }
    assert!(count >= 5, "{count} lists are named");
}

/// Whether a text in lower case has a name in its form in settings or in Rust.
fn has(text: &str, pattern: &str, name: &str) -> bool {
    [name, &name.replace('_', "")].iter().any(|name| text.contains(&pattern.replace("NAME", name)))
}

/// The section of CONTRIBUTING.md with this title.
fn section(title: &str) -> String {
    let text = read("CONTRIBUTING.md");
    let (_, rest) = text.split_once(&format!("### {title}\n")).expect(title);
    rest.split("\n### ").next().unwrap().to_string()
}

#[test]
fn every_list_that_is_kept_by_hand_is_complete_and_named() {
    let tasks: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
    for (title, names, path, pattern) in [
        ("A game", NAMES, "README.md", "| `NAME` |"),
        ("A game", NAMES, "tests/shared/rollouts.rs", "NAME"),
        ("A game", NAMES, "tests/suite/rules.rs", "NAME"),
        ("A game", NAMES, "web/tests/watching.mjs", "'NAME'"),
        ("A loss", LossType::NAMES, "README.md", "`NAME`"),
        ("A network for games", ModelKind::NAMES, "docs/glossary.md", "NAME"),
        ("A task", &tasks[..], "docs/tasks.md", "| `NAME` |"),
    ] {
        let text = read(path).to_lowercase();
        for name in names {
            assert!(has(&text, pattern, name), "{path} lacks {name}");
        }
        let place = path.trim_end_matches(".md");
        assert!(section(title).contains(place), "{title}: {path} is not named");
    }
}

#[test]
fn no_other_list_is_kept_by_hand() {
    let folders = ["tests/shared", "tests/suite", "tests/tools", "web/page"];
    let below = |folder: PathBuf| tree(&folder).into_keys().map(move |name| folder.join(name));
    let mut files: Vec<PathBuf> = folders.into_iter().map(repository).flat_map(below).collect();
    files.extend(fs::read_dir(repository("web/tests")).unwrap().map(|entry| entry.unwrap().path()));
    files.retain(|path| path.is_file());
    for (title, names) in [("A game", NAMES), ("A loss", LossType::NAMES)] {
        let section = section(title);
        for path in &files {
            let text = String::from_utf8_lossy(&fs::read(path).unwrap()).to_lowercase();
            let path = path.strip_prefix(repository("")).unwrap().to_str().unwrap();
            let is_list = names.iter().all(|name| has(&text, "NAME", name));
            assert!(
                !is_list || section.contains(path),
                "{title}: {path} lists all, but is not named"
            );
        }
    }
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

/// The instruction sets for which functions are compiled, where no file has a reason for others.
const TARGETS: &str = r#""x86_64+avx512f+avx512vl+avx2+fma","x86_64+avx2+fma","aarch64+neon""#;
/// The instruction sets of functions that have a form for AVX-512 written by hand.
const TARGETS_BESIDE_AVX512: &str = r#""x86_64+avx2+fma","aarch64+neon""#;
/// The instruction sets of functions that expand bytes.
const TARGETS_OF_BYTES: &str =
    r#""x86_64+avx512f+avx512vl+avx512bw+avx2+fma","x86_64+avx2+fma","aarch64+neon""#;

/// Instruction sets decide whether sums are fused, and so how numbers are rounded.
#[test]
fn functions_are_compiled_for_the_same_instruction_sets() {
    let mut count = 0;
    for (path, bytes) in tree(&repository("src")) {
        let wanted = match &path[..] {
            "nn/ops/attention/products.rs" | "nn/ops/matmul/tiles.rs" => TARGETS_BESIDE_AVX512,
            "nn/ops/stored/mod.rs" | "nn/ops/stored/products.rs" => TARGETS_OF_BYTES,
            _ => TARGETS,
        };
        let text = String::from_utf8_lossy(&bytes);
        for attribute in text.split("#[multiversion").skip(1) {
            let (attribute, _) = attribute.split_once(']').unwrap();
            let found = attribute.split_whitespace().collect::<String>();
            assert_eq!(found, format!("(targets({wanted}))"), "src/{path}");
            count += 1;
        }
    }
    assert!(count > 40, "{count} functions are compiled for several instruction sets");
}
