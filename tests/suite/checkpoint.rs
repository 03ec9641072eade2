//! A single checkpoint on disk: round trips, and detection of any damage.

use crate::support::{Scratch, tree};
use grove::checkpoint::{Checkpoint, CheckpointError, Section, load, save};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

fn section(name: &str, version: u32, bytes: &[u8]) -> Section {
    Section { name: name.into(), version, bytes: bytes.into() }
}

fn checkpoint(iteration: u64) -> Checkpoint {
    let weights: Vec<u8> = (0..=255).collect();
    let sections = vec![
        section("weights.safetensors", 1, &weights),
        section("log.jsonl", 2, format!("{{\"iteration\":{iteration}}}\n").as_bytes()),
        section("empty", 0, b""),
    ];
    Checkpoint { iteration, sections }
}

/// Loads `path`, which must fail with a message that contains `path` and `named`.
fn load_damaged(path: &Path, named: &str) -> CheckpointError {
    let error = load(path).expect_err("damage went unnoticed");
    let sentence = error.to_string();
    assert!(sentence.contains(named), "{named} is not named in: {sentence}");
    assert!(sentence.contains(&path.display().to_string()), "no path in: {sentence}");
    error
}

/// Replaces the manifest and its checksum.
pub fn forge_manifest(path: &Path, text: &str) {
    fs::write(path.join("manifest.json"), text).unwrap();
    let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    let sums = fs::read_to_string(path.join("SHA256SUMS")).unwrap();
    let (_, rest) = sums.split_once('\n').unwrap();
    fs::write(path.join("SHA256SUMS"), format!("{hash}  manifest.json\n{rest}")).unwrap();
}

#[test]
fn a_checkpoint_round_trips() {
    let run = Scratch::new();
    let path = run.join("new/parents/best");
    let none = Checkpoint { iteration: u64::MAX, sections: Vec::new() };
    for saved in [checkpoint(1), checkpoint(2), none] {
        save(&saved, &path).unwrap();
        assert_eq!(load(&path).unwrap(), saved);
    }
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn the_bytes_do_not_depend_on_time_or_path() {
    let run = Scratch::new();
    let [here, there] = ["here", "deep/down/there"].map(|name| run.join(name));
    save(&checkpoint(7), &here).unwrap();
    save(&checkpoint(6), &there).unwrap();
    save(&load(&here).unwrap(), &there).unwrap();
    assert_eq!(tree(&here), tree(&there));
    let names: Vec<_> = tree(&here).into_keys().collect();
    assert_eq!(names, ["SHA256SUMS", "empty", "log.jsonl", "manifest.json", "weights.safetensors"]);
}

// Windows has no `sha256sum`.
#[cfg(unix)]
#[test]
fn sha256sum_verifies_a_checkpoint() {
    let run = Scratch::new();
    let path = run.join("best");
    save(&checkpoint(7), &path).unwrap();
    let check = || {
        let command =
            if cfg!(target_os = "macos") { "shasum -a 256" } else { "sha256sum --strict" };
        let shell = ["-c", &format!("{command} -c SHA256SUMS")];
        std::process::Command::new("sh").args(shell).current_dir(&path).output().unwrap()
    };
    let output = check();
    assert!(output.status.success(), "{output:?}");
    let lines = "manifest.json: OK\nweights.safetensors: OK\nlog.jsonl: OK\nempty: OK\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), lines);
    fs::write(path.join("empty"), "no more").unwrap();
    assert!(!check().status.success());
}

#[test]
fn every_flipped_bit_is_detected() {
    let run = Scratch::new();
    let path = run.join("best");
    save(&checkpoint(7), &path).unwrap();
    let mut flipped = 0;
    for (name, bytes) in tree(&path) {
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1 << (position % 8);
            fs::write(path.join(&name), damaged).unwrap();
            let error = load_damaged(&path, &name);
            assert!(error.to_string().contains("does not have the checksum"), "{error}");
            flipped += 1;
        }
        fs::write(path.join(&name), bytes).unwrap();
    }
    assert!(flipped > 600, "{flipped} bits in all files");
    assert_eq!(load(&path).unwrap(), checkpoint(7));
}

#[test]
fn truncated_extended_and_deleted_files_are_detected() {
    let run = Scratch::new();
    let path = run.join("best");
    save(&checkpoint(7), &path).unwrap();
    for (name, bytes) in tree(&path) {
        let file = path.join(&name);
        for length in 0..bytes.len() {
            fs::write(&file, &bytes[..length]).unwrap();
            load_damaged(&path, &name);
        }
        fs::write(&file, [&bytes[..], b"\n"].concat()).unwrap();
        load_damaged(&path, &name);
        fs::remove_file(&file).unwrap();
        let error = load_damaged(&path, &name);
        assert!(error.to_string().contains(&format!("{name} is missing")), "{error}");
        fs::write(&file, bytes).unwrap();
    }
    fs::write(path.join("log.jsonl"), "short").unwrap();
    assert_eq!(
        load(&path).unwrap_err().to_string(),
        format!(
            "the checkpoint {} is damaged: log.jsonl has 5 bytes instead of 16",
            path.display()
        )
    );
}

#[test]
fn a_malformed_manifest_is_rejected_even_with_a_valid_checksum() {
    let run = Scratch::new();
    let path = run.join("best");
    save(&checkpoint(7), &path).unwrap();
    let manifest = fs::read_to_string(path.join("manifest.json")).unwrap();
    let cases = [
        "garbage".to_owned(),
        manifest.replace("7", "-7"),
        manifest.replace("log.jsonl", "../log.jsonl"),
        manifest.replace("log.jsonl", "empty"),
        manifest.replace("iteration", "step"),
    ];
    for text in cases {
        forge_manifest(&path, &text);
        let error = load_damaged(&path, "manifest.json");
        assert!(error.to_string().contains("damaged: manifest.json "), "{text}: {error}");
    }
    forge_manifest(&path, r#"{"format": 1, "iteration": 7, "sections": []}"#);
    load_damaged(&path, "damaged: SHA256SUMS lists more than manifest.json");
}

#[test]
fn paths_without_a_checkpoint_have_specific_errors() {
    let run = Scratch::new();
    let [gone, file, empty] = ["gone", "file", "empty"].map(|name| run.join(name));
    fs::write(&file, "text").unwrap();
    fs::create_dir(&empty).unwrap();
    assert!(matches!(load_damaged(&gone, "no checkpoint"), CheckpointError::NotFound { .. }));
    assert!(matches!(load_damaged(&file, "is a file"), CheckpointError::NotADirectory { .. }));
    load_damaged(&empty, "is empty");
}

#[test]
fn invalid_section_names_are_rejected_before_writing() {
    let run = Scratch::new();
    let path = run.join("runs/best");
    let mut bad = checkpoint(7);
    bad.sections.push(section("a/b", 1, b"data"));
    let error = save(&bad, &path).unwrap_err();
    let named = matches!(&error, CheckpointError::BadSectionName { name, .. } if name == "a/b");
    assert!(named && error.to_string().contains("\"a/b\""), "{error:?}");
    assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
}

#[test]
fn only_checkpoints_are_replaced() {
    let run = Scratch::new();
    let [file, other, empty] = ["file", "other", "empty"].map(|name| run.join(name));
    fs::write(&file, "text").unwrap();
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.tex"), "years of work").unwrap();

    let refused = save(&checkpoint(7), &other).unwrap_err();
    assert!(matches!(refused, CheckpointError::NotACheckpoint { .. }), "{refused:?}");
    assert_eq!(fs::read(other.join("thesis.tex")).unwrap(), b"years of work");
    let refused = save(&checkpoint(7), &file).unwrap_err();
    assert!(matches!(refused, CheckpointError::NotACheckpoint { .. }), "{refused:?}");
    assert_eq!(fs::read(&file).unwrap(), b"text");
    let refused = save(&checkpoint(7), Path::new("..")).unwrap_err();
    assert!(matches!(refused, CheckpointError::Unnamed { .. }), "{refused:?}");

    save(&checkpoint(7), &empty).unwrap();
    fs::remove_file(empty.join("manifest.json")).unwrap();
    save(&checkpoint(8), &empty).unwrap();
    assert_eq!(load(&empty).unwrap(), checkpoint(8));
    assert_eq!(fs::read_dir(&run).unwrap().count(), 3);
}
