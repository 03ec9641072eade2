//! Commands that compare runs: lists, curves, seeds, sweeps, exports.

use crate::support::{
    Scratch, assert_same_files, grove, json, records, refusal, refused, report, start, stderr,
    stdout, train, wait_for,
};
use std::fs;
#[cfg(target_os = "linux")]
use std::process::{Command, Stdio};

#[test]
fn runs_are_listed_with_what_they_changed() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "runs/catch-2", &["--iterations", "6", "--seed", "7"]));
    json(folder, &train("cartpole", "runs/cartpole-10", &["--iterations", "1"]));
    fs::create_dir(folder.join("runs/other")).unwrap();
    let listed = json(folder, &["runs", "--json"]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 2);
    let catch = &listed[1];
    assert_eq!((&catch["env"], &catch["state"]), (&"catch".into(), &"finished".into()));
    assert_eq!(catch["changes"]["seed"], 7);
    assert_eq!(catch["changes"]["rollout.num_groups"], 8);
    assert!(catch["changes"].get("optimizer.learning_rate").is_none());
    let records: Vec<serde_json::Value> = records(&folder.join("runs/catch-2"));
    let scores = records.iter().filter_map(|record| record["evaluation"]["mean_score"].as_f64());
    let best = scores.fold(f64::MIN, f64::max);
    assert_eq!(catch["best_score"], best);
    let table = stdout(&grove(folder, &["runs"]));
    assert!(table.lines().count() == 3 && table.contains("num_groups=8"), "{table}");
    // With more iterations in its settings a run is not over.
    let config = folder.join("runs/catch-2/config.toml");
    let longer = fs::read_to_string(&config).unwrap().replace("iterations = 6", "iterations = 9");
    fs::write(&config, longer).unwrap();
    assert!(stdout(&grove(folder, &["runs"])).contains("interrupted 6/9"));
    // Without them, those of its checkpoint hold.
    fs::remove_file(&config).unwrap();
    assert_eq!(json(folder, &["runs", "--json"])[1], *catch);
    assert_eq!(json(folder, &["runs", "runs/catch-2", "--json"])[0], *catch);
}

#[test]
fn seeds_are_trained_side_by_side_and_become_one_line() {
    let folder = &Scratch::new();
    let more = ["--iterations", "5", "--seeds", "1..3"];
    let study = json(folder, &train("catch", "study", &more));
    let runs = study["runs"].as_array().unwrap();
    let seeds: Vec<_> = runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [1, 2, 3]);
    let mean = runs.iter().map(|run| run["mean_score"].as_f64().unwrap()).sum::<f64>() / 3.0;
    assert!((study["mean"].as_f64().unwrap() - mean).abs() < 1e-12);
    // A separate run gives the same policy.
    json(folder, &train("catch", "alone", &["--iterations", "5", "--seed", "2"]));
    assert_same_files(&folder.join("alone/best"), &folder.join("study/seed-2/best"));

    let plot = "plot study --x iterations --y losses/entropy --json --out curves.svg";
    let rows = report(folder, plot);
    assert_eq!(rows.as_array().unwrap().len(), 1);
    assert_eq!((&rows[0]["runs"], &rows[0]["x"]), (&3.into(), &5.0.into()));
    assert_eq!(rows[0]["interval"].as_array().unwrap().len(), 2);
    // A run that is named twice is one, and a single one has no interval.
    let rows = report(folder, "plot study/seed-2 study/seed-2 --y losses/entropy --json");
    assert_eq!((&rows[0]["runs"], &rows[0]["interval"]), (&1.into(), &serde_json::Value::Null));
    let svg = fs::read_to_string(folder.join("curves.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("losses/entropy"), "{svg}");
    refused(folder, "plot study --y los", &["losses/policy_loss"]);
    refused(folder, "plot nowhere", &["nowhere"]);
}

#[test]
fn runs_side_by_side_stop_with_the_process_that_started_them() {
    let folder = &Scratch::new();
    let more = ["--iterations", "1000000", "--seeds", "1,2", "--threads", "2"];
    let mut parent = start(folder, &train("catch", "study", &more));
    let states = || -> Vec<serde_json::Value> {
        let listed = json(folder, &["runs", "study", "--json"]);
        listed.as_array().unwrap().iter().map(|run| run["state"].clone()).collect()
    };
    let has_begun = |seed: u64| {
        let records = folder.join(format!("study/seed-{seed}/metrics.jsonl"));
        fs::metadata(records).is_ok_and(|records| records.len() > 0)
    };
    wait_for("two runs", || has_begun(1) && has_begun(2));
    assert_eq!(states(), ["running", "running"]);
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("runs that are saved", || states() == ["interrupted", "interrupted"]);
}

#[cfg(target_os = "linux")]
#[test]
fn runs_side_by_side_are_trained_by_one_program_even_if_its_file_is_removed() {
    let folder = &Scratch::new();
    let program = folder.join("grove");
    // Another process copies it: a child that inherits a descriptor open for writing would keep the file from being
    // executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_grove")).arg(&program).status();
    assert!(copied.unwrap().success());
    let more = ["--iterations", "5", "--seeds", "1..3", "--threads", "1"];
    let parent = Command::new(&program)
        .args(train("catch", "study", &more))
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the first run", || folder.join("study/seed-1/config.toml").exists());
    fs::remove_file(&program).unwrap();
    let output = parent.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 3);
}

const SWEEP: &str = "game = 'catch'\nsearch = 'halving'\ntrials = 4\neta = 2\nrounds = 2\nseeds = '1,2'\n\
    [settings]\niterations = 4\nnum_groups = 8\n'checkpoint.eval_every' = 1\n\
    [space]\n'optimizer.learning_rate' = { log = [1e-4, 1e-1] }\n'policy.hidden' = { choices = [[8], [16, 16]] }\n";

#[test]
fn an_interrupted_sweep_ends_with_the_same_table() {
    let folder = &Scratch::new();
    fs::write(folder.join("whole.toml"), SWEEP).unwrap();
    fs::write(folder.join("broken.toml"), SWEEP).unwrap();
    let sweep = |file: &str| json(folder, &["sweep", file, "--device", "cpu", "--json"]);
    let whole = sweep("whole.toml");
    let trials = whole["trials"].as_array().unwrap();
    let rounds: Vec<_> = trials.iter().map(|trial| trial["round"].as_u64().unwrap()).collect();
    assert_eq!(rounds, [1, 1, 0, 0]);
    assert!(trials.iter().all(|trial| trial["scores"].as_array().unwrap().len() == 2));

    // As a crash leaves it: some results are there, the last line is torn, and a run is in the middle.
    fs::create_dir(folder.join("broken")).unwrap();
    fs::write(folder.join("broken/sweep.toml"), SWEEP).unwrap();
    let results = fs::read_to_string(folder.join("whole/results.jsonl")).unwrap();
    fs::write(folder.join("broken/results.jsonl"), &results[..results.len() / 2]).unwrap();
    let broken = sweep("broken.toml");
    assert_eq!(broken["trials"], whole["trials"]);
    assert_eq!(broken["importance"], whole["importance"]);
    let best = fs::read_to_string(folder.join("whole/best.toml")).unwrap();
    assert_eq!(fs::read_to_string(folder.join("broken/best.toml")).unwrap(), best);
    // The best settings train, to the score that the sweep has.
    let best = report(folder, "train --config whole/best.toml --device cpu --json --seed 2");
    assert_eq!(best["mean_score"], trials[0]["scores"][1]);

    fs::write(folder.join("broken.toml"), SWEEP.replace("trials = 4", "trials = 5")).unwrap();
    let lock = folder.join("broken/sweep.lock");
    fs::remove_file(&lock).unwrap();
    let other = "holds another sweep, with trials = 4, not 5; remove that folder";
    refused(folder, "sweep broken.toml", &[other]);
    assert!(!lock.exists(), "a refused sweep leaves nothing behind");
    let task =
        "game = 'sort'\n[settings]\nnonsense = 1\n[space]\nlearning_rate = { log = [1e-4, 1e-1] }";
    let with = |old: &str, new: &str| SWEEP.replace(old, new);
    for (name, text, words) in [
        ("typed", with("'1,2'", "[1, 2]"), "`seeds` is [1, 2], but must be a string such as"),
        ("named", with("halving", "bayes"), "`bayes` must be one of: grid, random, halving, tpe"),
        ("wrong", with("learning_rate", "learnin_rate"), "did you mean `optimizer.learning_rate`"),
        ("task", task.to_string(), "unknown setting `nonsense`"),
        ("choice", with("[16, 16]", "[0]"), "policy.hidden is [0], but must be "),
        (
            "seed",
            SWEEP.to_string() + "seed = { choices = [1, 2] }",
            "`seed` is not a setting of a sweep",
        ),
        ("none", with("game = 'catch'", ""), "`game` is missing"),
        ("grid", with("halving", "grid"), "`trials` does not apply to this search"),
    ] {
        fs::write(folder.join(format!("{name}.toml")), text).unwrap();
        refused(folder, &format!("sweep {name}.toml"), &[words]);
    }
    assert!(!folder.join("task").exists() && !folder.join("choice").exists());
}

#[test]
fn one_process_at_a_time_runs_a_sweep() {
    let folder = &Scratch::new();
    fs::write(folder.join("study.toml"), SWEEP).unwrap();
    fs::create_dir(folder.join("study")).unwrap();
    let lock = fs::File::create(folder.join("study/sweep.lock")).unwrap();
    lock.lock().unwrap();
    let busy = "another process runs the sweep in study; wait for it";
    refused(folder, "sweep study.toml --device cpu", &[busy]);
    assert_eq!(fs::read_dir(folder.join("study")).unwrap().count(), 1, "nothing has begun");
    drop(lock);
    json(folder, &["sweep", "study.toml", "--device", "cpu", "--json"]);
}

#[cfg(unix)]
#[test]
fn a_batch_of_tpe_that_fails_as_a_whole_is_tried_again() {
    let folder = &Scratch::new();
    let file = SWEEP.replace("'halving'", "'tpe'").replace("'1,2'", "'1'");
    let file = file.replace("trials = 4\neta = 2\nrounds = 2", "trials = 6\nbatch = 2");
    for name in ["whole.toml", "broken.toml"] {
        fs::write(folder.join(name), &file).unwrap();
    }
    let sweep = |file: &str| json(folder, &["sweep", file, "--device", "cpu", "--json"]);
    let whole = sweep("whole.toml");
    // In the place of a link to nothing no run can make its folder.
    fs::create_dir(folder.join("broken")).unwrap();
    fs::write(folder.join("broken/sweep.toml"), &file).unwrap();
    let links = [2, 3].map(|trial| folder.join(format!("broken/trial-{trial}-seed-1")));
    links.iter().for_each(|link| std::os::unix::fs::symlink("nowhere/run", link).unwrap());
    let failed = "error: all runs of batch 2 failed: cannot create ";
    let again = "; the same command tries them again";
    refused(folder, "sweep broken.toml --device cpu", &[failed, again]);
    assert!(!folder.join("broken/trial-4-seed-1").exists(), "no batch is chosen by that");
    links.iter().for_each(|link| fs::remove_file(link).unwrap());
    assert_eq!(sweep("broken.toml")["trials"], whole["trials"]);
    // A second failure is not the disk's fault, and the last batch loses nothing.
    for (name, failing, attempts) in [("again", [2, 3], 1), ("last", [4, 5], 0)] {
        fs::write(folder.join(format!("{name}.toml")), &file).unwrap();
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("sweep.toml"), &file).unwrap();
        for trial in failing {
            let link = folder.join(format!("{name}/trial-{trial}-seed-1"));
            std::os::unix::fs::symlink("nowhere/run", link).unwrap();
        }
        let file = format!("{name}.toml");
        (0..attempts).for_each(|_| drop(refusal(folder, &["sweep", &file, "--device", "cpu"])));
        let report = sweep(&file);
        let means: Vec<bool> =
            report["trials"].as_array().unwrap().iter().map(|it| it["mean"].is_null()).collect();
        assert_eq!((means.len(), means.iter().filter(|none| **none).count()), (6, 2), "{name}");
    }
}

#[test]
fn a_policy_is_exported_in_every_format() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "1"]));
    for format in ["onnx", "safetensors", "json"] {
        let report = json(folder, &["export", "run", "--format", format, "--json"]);
        let bytes = fs::read(folder.join(format!("run.{format}"))).unwrap();
        assert_eq!(report["bytes"], bytes.len());
    }
    let plain = fs::read(folder.join("run.json")).unwrap();
    let plain: serde_json::Value = serde_json::from_slice(&plain).unwrap();
    assert_eq!(
        (&plain["env"], &plain["tensors"][0]["name"]),
        (&"catch".into(), &"layers.0.weight".into())
    );
    // No file of a run is replaced.
    let records = fs::read(folder.join("run/metrics.jsonl")).unwrap();
    for line in [
        "export run --format json --out run/metrics.jsonl",
        "export run --samples run/config.toml",
        "export run --format safetensors --out run/best/weights.safetensors",
        "export run --out run/checkpoints/00000001/policy.onnx",
        "bench catch --out run/../run/run.json",
    ] {
        refused(folder, line, &["is a file of a run"]);
    }
    assert!(fs::read(folder.join("run/metrics.jsonl")).unwrap() == records);
    let none = "cannot write none/policy.onnx: the folder none does not exist";
    refused(folder, "export run --out none/policy.onnx", &[none]);
    let twice = "export run --out both.onnx --samples both.onnx";
    refused(folder, twice, &["would be the same file"]);
    assert!(!folder.join("both.onnx").exists());
    json(folder, &["export", "run", "--out", "run/policy.onnx", "--json"]);
    // An exported policy is a policy file.
    let score = |path: &str| {
        json(folder, &["eval", path, "--episodes", "50", "--json"])["mean_score"].clone()
    };
    assert_eq!(score("run"), score("run.safetensors"));
    for kind in ["gru", "decoder"] {
        let kind_set = format!("kind={kind}");
        json(folder, &train("catch", kind, &["--iterations", "1", "--set", &kind_set]));
        assert!(json(folder, &["export", kind, "--json"])["bytes"].as_u64() > Some(1000));
        let bytes = fs::read(folder.join(format!("{kind}.onnx"))).unwrap();
        assert!(bytes.windows(11).any(|name| name == b"next_memory"));
    }
}
