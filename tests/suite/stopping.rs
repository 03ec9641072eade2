//! Runs that end before their iterations are done, and settings that a resumed run may change.

use crate::support::{
    Scratch, assert_same_files, grove, json, records, refused, report, sets, stderr, stdout, train,
};
use std::fs;

const RESUME: &str = "train --resume --run-dir run --json --set";

#[test]
fn a_run_ends_on_reaching_its_target_score() {
    let folder = &Scratch::new();
    let more = ["--iterations", "40", "--set", "eval_every=2", "--set", "stop.score=-0.1"];
    let mut words = train("catch", "run", &more);
    words.retain(|word| *word != "--json");
    let output = grove(folder, &words);
    let said = stderr(&output);
    assert!(
        said.contains("Reached a score of -0.1 (stop.score) and saved after iteration"),
        "{said}"
    );
    assert!(stdout(&output).contains("greedy"), "the best policy is evaluated");
    let records: Vec<serde_json::Value> = records(&folder.join("run"));
    let scores = records.iter().filter_map(|record| record["evaluation"]["mean_score"].as_f64());
    let scores: Vec<f64> = scores.collect();
    let (end, before) = scores.split_last().unwrap();
    assert!(*end >= -0.1 && before.iter().all(|score| *score < -0.1), "{scores:?}");
    assert!(records.len() < 40);

    refused(folder, "train --resume --run-dir run", &["--set stop.score=inf"]);
    let iterations = records.len() + 1;
    let resume = format!("{RESUME} stop.score=inf --set iterations={iterations}");
    assert_eq!(report(folder, &resume)["iteration"], iterations);
}

#[test]
fn a_run_ends_after_its_seconds_and_resumes_for_as_many_again() {
    let folder = &Scratch::new();
    let first = json(folder, &train("catch", "run", &["--set", "stop.seconds=1e-6"]));
    assert_eq!((&first["iteration"], &first["interrupted"]), (&1.into(), &false.into()));
    assert_eq!(first["best_iteration"], 1, "it is evaluated");
    assert_eq!(report(folder, &format!("{RESUME} checkpoint.keep=5"))["iteration"], 2);
    let resume = format!("{RESUME} stop.seconds=0 --iterations 4");
    assert_eq!(report(folder, &resume)["iteration"], 4);
}

/// The schedule of the learning rate does not wait for updates that end early, and a resumed run continues it.
#[test]
fn updates_end_at_their_divergence() {
    let folder = &Scratch::new();
    let fast =
        ["--iterations", "6", "--set", "optimizer.learning_rate=0.05", "--set", "save_every=3"];
    let target = [&fast[..], &["--set", "target_kl=0.002"]].concat();
    let records = |dir: &str| records::<serde_json::Value>(&folder.join(dir));
    for engine in ["fused", "general"] {
        for (dir, more) in [("free", &fast[..]), ("run", &target)] {
            let dir = format!("{dir}-{engine}");
            json(folder, &train("catch", &dir, &[more, &["--engine", engine]].concat()));
        }
        let (free, cut) = (records(&format!("free-{engine}")), records(&format!("run-{engine}")));
        for (free, cut) in free.iter().zip(&cut) {
            assert_eq!(free["learning_rate"], cut["learning_rate"], "{engine}");
        }
        // The divergence that ended an update is recorded; the mean of its steps is below.
        assert!(cut.iter().any(|cut| cut["approx_kl"].as_f64().unwrap() > 0.002), "{engine}");
        assert_ne!(free[0]["grad_norm"], cut[0]["grad_norm"], "{engine}: fewer steps");
        let last = folder.join(format!("run-{engine}/checkpoints/00000006"));
        let moved = folder.join(format!("whole-{engine}"));
        fs::rename(&last, &moved).unwrap();
        let dir = format!("run-{engine}");
        json(folder, &["train", "--resume", "--run-dir", &dir, "--json"]);
        assert_same_files(&moved, &last);
    }
}

#[test]
fn a_resumed_run_accepts_changeable_settings_only() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "2"]));
    for (set, words) in [
        ("group_size=4", "`rollout.group_size` cannot be changed when resuming"),
        ("eval_episodes=5000", "`checkpoint.eval_episodes` cannot be changed when resuming"),
        ("catch.rows=4", "catch"),
    ] {
        refused(folder, &format!("{RESUME} {set}"), &[words]);
    }
    report(folder, &format!("{RESUME} learning_rate=1e-5 --iterations 3"));
    let settings = fs::read_to_string(folder.join("run/config.toml")).unwrap();
    let settings: toml::Table = settings.parse().unwrap();
    assert_eq!(settings["optimizer"]["learning_rate"].as_float(), Some(1e-5));
}

#[test]
fn a_model_stops_with_its_score_and_a_resumed_one_changes_its_settings() {
    let folder = &Scratch::new();
    let sizes = "hidden_size=16 num_layers=1 num_heads=2 num_kv_heads=1 intermediate_size=16";
    let sets = sets(&format!("{sizes} stop.score=-1 eval_every=1"));
    let train = format!("train sort --device cpu --run-dir run --json{sets}");
    assert_eq!(report(folder, &train)["iteration"], 1);
    let warmer = format!("{RESUME} temperature=0.5");
    refused(folder, &warmer, &["`generation.temperature` cannot be changed when resuming"]);
    let resume = format!("{RESUME} stop.score=inf --set iterations=2 --set tracking.csv=true");
    assert_eq!(report(folder, &resume)["iteration"], 2);
    assert!(folder.join("run/metrics.csv").is_file());
}
