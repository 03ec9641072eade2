//! Paths whose names are not UTF-8, which the file systems of Linux permit.

use crate::support::{Scratch, command, stderr, stdout};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

#[test]
fn paths_that_are_not_utf8_are_taken_or_rejected_in_a_sentence() {
    let folder = Scratch::new();
    let name = |bytes| OsStr::from_bytes(bytes);
    let (run, data) = (name(b"run-\xff"), name(b"data-\xff.jsonl"));
    fs::write(folder.join(data), "{\"prompt\": \"1+1\", \"solution\": \"2\"}\n").unwrap();
    let grove = |words: &[&OsStr]| command(&folder, &[]).args(words).output().unwrap();
    let words = |text: &'static str| text.split(' ').map(OsStr::new);
    let of = |before, path, after| {
        let all: Vec<&OsStr> = words(before).chain([path]).chain(words(after)).collect();
        grove(&all)
    };
    let new = of("train catch --quiet --iterations 2 --device cpu --run-dir", run, "--seed 1");
    assert!(new.status.success(), "{}", stderr(&new));
    let more = of("train --resume --run-dir", run, "--quiet --set iterations=3");
    assert!(more.status.success(), "{}", stderr(&more));
    let listed = of("runs", run, "--json");
    let listed: serde_json::Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed[0]["iteration"], 3, "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let seeds = of(
        "train catch --quiet --iterations 2 --device cpu --run-dir",
        name(b"seeds-\xff"),
        "--seeds 1,2",
    );
    assert!(seeds.status.success(), "{}", stderr(&seeds));
    assert!(folder.join(name(b"seeds-\xff/seed-2/checkpoints")).is_dir());
    for (before, after) in [
        ("train --model tiny --task-data", "--verifier cat"),
        ("fit", "--model tiny"),
        ("train sort --model", "--iterations 1"),
    ] {
        let output = of(before, data, after);
        let text = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{before}");
        assert!(text.contains("is not UTF-8") && text.contains("rename it"), "{before}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
