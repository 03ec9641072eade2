//! The live page of a language run: its description, and its completions in blocks.

use crate::browser::Served;
use crate::support::{Scratch, json, train, wait_for};
use std::fs;

/// A run of four iterations with completions in the last three.
fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut words =
        vec!["train", "sort", "--model", "tiny", "--iterations", "4", "--json", "--run-dir", "run"];
    let sets = "hidden_size=16 num_layers=1 num_heads=2 num_kv_heads=1 fit.iterations=1 num_prompts=2 \
        group_size=3 sort.length=3 eval_episodes=8";
    words.extend(sets.split(' ').flat_map(|set| ["--set", set]));
    words.extend(more);
    words
}

#[test]
fn a_language_run_is_described_and_its_completions_served_in_blocks() {
    let folder = &Scratch::new();
    json(folder, &arguments(&[]));
    let server = Served::watch(folder);
    let about = server.get("/run/about.json").json();
    assert_eq!((&about["task"], &about["iterations"]), (&"sort".into(), &4.into()));
    // Weights may be large, and the page does not use them.
    assert!(about["best"].is_null() && about["newest"].is_null(), "{about}");
    assert_eq!(server.get("/run/files/best/weights.safetensors").status, 404);

    let mut events = server.events(None);
    assert_eq!((0..4).map(|_| events.iteration()).collect::<Vec<_>>(), [1, 2, 3, 4]);

    let path = folder.join("run/completions.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 3 * 2 * 3);
    let all = server.get("/run/completions.jsonl");
    assert_eq!((all.status, all.text().as_str()), (200, text.as_str()));
    assert_eq!(all.header("content-type"), Some("application/x-ndjson"));
    for (iteration, first) in [(1, 0), (2, 0), (3, 6), (4, 12), (5, 18)] {
        let piece = server.get(&format!("/run/completions.jsonl?iteration={iteration}")).text();
        assert_eq!(piece, lines[first..].concat(), "{iteration}");
    }
    for query in ["iteration=", "iteration=x", "iteration=-1", "before=3", ""] {
        assert_eq!(server.get(&format!("/run/completions.jsonl?{query}")).status, 400, "{query}");
    }
    let one: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
    assert!(one["rewards"]["exact"].is_number() && one["logprobs"][0].is_number(), "{one}");

    // New lines appear as the file grows.
    fs::write(&path, text.clone() + lines[0].replace(":2,", ":9,").as_str()).unwrap();
    let mut newest = String::new();
    wait_for("the new completions", || {
        newest = server.get("/run/completions.jsonl?iteration=9").text();
        !newest.is_empty()
    });
    assert_eq!(newest, lines[0].replace(":2,", ":9,"));
}

#[test]
fn a_run_of_a_game_has_no_completions() {
    let folder = Scratch::new();
    json(&folder, &train("catch", "run", &["--iterations", "2"]));
    let server = Served::watch(&folder);
    assert_eq!(server.get("/run/completions.jsonl").status, 404);
    assert!(server.get("/run/about.json").json()["task"].is_null());
}

#[cfg(unix)]
#[test]
fn training_can_be_watched_and_the_page_stays_afterwards() {
    let folder = &Scratch::new();
    let mut server = Served::start(folder, &arguments(&["--watch", "--port", "0"]));
    let mut events = server.events(None);
    assert_eq!((0..4).map(|_| events.iteration()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    server.wait_for_line("stays up until you press Ctrl-C");
    let lines = server.get("/run/completions.jsonl?iteration=4").text().lines().count();
    assert_eq!(lines, 2 * 3);
    assert_eq!(server.interrupt().code(), Some(0));
}
