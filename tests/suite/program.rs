//! The program from a user's view: runs, results, interruptions, damage.

use crate::support::{
    Scratch, adapter_name, assert_same_files, grove, json, records, refusal, stderr, stdout,
    success, train, tree,
};
use grove::metrics::IterationRecord;
use std::fs;

#[test]
fn eval_plays_the_policy_of_a_run() {
    let folder = &Scratch::new();
    for &game in grove::env::NAMES {
        let report = json(folder, &train(game, game, &["--iterations", "6"]));
        assert_eq!(report["env"], game);
        assert_eq!(report["iteration"], 6);
        assert_eq!(report["interrupted"], false);
        assert_eq!(report["episodes"], 10_000);
        let evaluation = json(folder, &["eval", game, "--json"]);
        assert_eq!(evaluation["env"], game);
        assert_eq!(evaluation["episodes"], 10_000);
        assert_eq!(evaluation["mean_score"], report["mean_score"], "{game}");
        assert!(evaluation["std_error"].as_f64().unwrap() >= 0.0);
        let few = json(folder, &["eval", game, "--episodes", "7", "--seed", "3", "--json"]);
        assert_eq!(few["episodes"], 7);
        // `train` and `eval` print greedy and sampled scores side by side.
        assert_eq!(evaluation["sampled"], report["sampled"], "{game}");
        assert_eq!((&few["sampled"]["episodes"], &few["seed"]), (&7.into(), &3.into()));
        assert_ne!(evaluation["sampled"]["mean_score"], evaluation["mean_score"], "{game}");

        let records: Vec<IterationRecord> = records(&folder.join(game));
        let values: Vec<u32> = records.iter().map(|r| r.iteration).collect();
        assert_eq!(values, [1, 2, 3, 4, 5, 6]);
        // The native engine works in host memory.
        let metadata = fs::read_to_string(folder.join(game).join("run.json")).unwrap();
        assert!(metadata.contains("native rollouts, native updates"), "{metadata}");
        for record in &records {
            assert_eq!(record.read_backs, 0, "{game}");
            let phases = record.seconds.phases.expect("the CPU's phases are measured");
            assert!(phases.rollout > 0.0 && phases.update > 0.0);
            assert!(record.seconds.total >= phases.rollout + phases.advantage + phases.update);
            assert!(record.entropy > 0.0 && record.grad_norm > 0.0);
            assert_eq!(record.evaluation.is_some(), [5, 6].contains(&record.iteration));
        }
        let help = grove(folder, &["eval", game]);
        for line in
            ["this policy, sampled ", "this policy, greedy ", "10000 held-out episodes (seed 0)"]
        {
            assert!(stdout(&help).contains(line), "{}", stdout(&help));
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let folder = &Scratch::new();
    for (dir, threads) in [("one", "1"), ("two", "2"), ("again", "2")] {
        json(folder, &train("fruit", dir, &["--iterations", "5", "--threads", threads]));
    }
    json(folder, &train("fruit", "other", &["--iterations", "5", "--seed", "2"]));
    let path = |run: &str, part: &str| folder.join(run).join(part);
    for part in ["checkpoints", "best"] {
        assert_same_files(&path("one", part), &path("two", part));
        assert_same_files(&path("one", part), &path("again", part));
    }
    let settings = |run: &str| fs::read(path(run, "config.toml")).unwrap();
    assert_eq!(settings("one"), settings("two"));
    let weights = |run: &str| {
        fs::read(folder.join(run).join("checkpoints/00000005/weights.safetensors")).unwrap()
    };
    assert_ne!(weights("one"), weights("other"), "another seed is another run");
}

#[cfg(unix)]
#[test]
fn interrupted_and_resumed_equals_uninterrupted() {
    let folder = &Scratch::new();
    let more = ["--iterations", "150", "--set", "kl_coef=0.01", "--set", "save_every=40"];
    json(folder, &train("catch", "whole", &more));

    let report =
        crate::support::interrupted_run(folder, &train("catch", "broken", &more), "broken", 7, 150);
    assert_eq!(report["interrupted"], true);
    let stopped_at = report["iteration"].as_u64().unwrap();
    assert!((7..150).contains(&stopped_at));

    let resume = ["train", "--resume", "--run-dir", "broken", "--device", "cpu", "--json"];
    let report = json(folder, &resume);
    assert_eq!(report["iteration"], 150);
    let last = |run: &str| folder.join(run).join("checkpoints/00000150");
    assert_same_files(&last("whole"), &last("broken"));
    assert_same_files(&folder.join("whole/best"), &folder.join("broken/best"));
    let metrics = records::<IterationRecord>(&folder.join("broken"));
    assert_eq!(metrics.len(), 150, "each iteration is reported once");

    let again = grove(folder, &resume);
    assert!(!again.status.success());
    assert!(stderr(&again).contains("has finished all 150 iterations"), "{}", stderr(&again));
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let folder = &Scratch::new();
    let more = ["--iterations", "8", "--set", "save_every=4"];
    json(folder, &train("catch", "run", &more));
    let newest = folder.join("run/checkpoints/00000008");
    let whole = tree(&newest);
    let mut weights = fs::read(newest.join("weights.safetensors")).unwrap();
    let last = weights.len() - 1;
    weights[last] ^= 1;
    fs::write(newest.join("weights.safetensors"), weights).unwrap();
    // It would be as good a start.
    fs::remove_dir_all(folder.join("run/best")).unwrap();

    let resume = ["train", "--resume", "--run-dir", "run", "--device", "cpu"];
    let output = success(folder, &resume);
    assert!(stderr(&output).contains("00000008"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("using run/checkpoints/00000004 instead"),
        "{}",
        stderr(&output)
    );
    assert_eq!(tree(&newest), whole, "the run ends as it did before");

    // Without the best policy, `eval` warns and uses the newest checkpoint.
    fs::remove_file(folder.join("run/best/weights.safetensors")).unwrap();
    let output = success(folder, &["eval", "run", "--episodes", "10"]);
    assert!(stderr(&output).contains("weights.safetensors"), "{}", stderr(&output));

    // Where the system cannot read it, it may be intact, and no other policy takes its place.
    #[cfg(unix)]
    {
        let weights = folder.join("run/best/weights.safetensors");
        std::os::unix::fs::symlink(&weights, &weights).unwrap();
        let said = refusal(folder, &["eval", "run", "--episodes", "10"]);
        assert!(said.contains("cannot read run/best/weights.safetensors"), "{said}");
        let cause = "Too many levels of symbolic links";
        assert_eq!(said.matches(cause).count(), 1, "{said}");
    }
}

#[test]
fn a_run_is_named_by_its_game_or_its_folder() {
    let folder = &Scratch::new();
    for (run, iterations) in [("runs/catch-1", "1"), ("runs/catch-2", "2")] {
        json(folder, &train("catch", run, &["--iterations", iterations]));
    }
    assert_eq!(json(folder, &["eval", "catch", "--json"])["iteration"], 2);
    let first = ["train", "--resume", "runs/catch-1", "--iterations", "3", "--json"];
    let report = json(folder, &first);
    assert_eq!((&report["run"], &report["iteration"]), (&"runs/catch-1".into(), &3.into()));
    let said = refusal(folder, &["train", "--resume"]);
    let how = "no run in runs is unfinished; `grove train --resume runs/catch-1 --iterations N`";
    assert!(said.contains(how), "{said}");
    let report = json(folder, &["train", "--resume", "--iterations", "4", "--json"]);
    assert_eq!((&report["run"], &report["iteration"]), (&"runs/catch-1".into(), &4.into()));
}

#[test]
fn devices_are_listed() {
    let folder = Scratch::new();
    let report = json(&folder, &["devices", "--json"]);
    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices[0]["name"], "cpu");
    assert_eq!(devices[0]["software"], false);
    for device in devices {
        for key in ["name", "description", "api", "kind"] {
            assert!(device[key].is_string(), "{device}");
        }
        if report["auto"] == device["name"] {
            assert_eq!(device["software"], false, "auto never takes a software rasterizer");
        }
    }
    let table = grove(&folder, &["devices"]);
    assert!(stdout(&table).contains("`auto` selects"));
}

#[test]
fn bench_measures_all_quantities() {
    let folder = &Scratch::new();
    for device in [Some("cpu".to_string()), adapter_name()].iter().flatten() {
        let arguments = ["bench", "catch", "--device", device, "--out", "figures.json"];
        let sizes = ["--num-envs", "48", "--num-steps", "20", "--learn-steps", "10"];
        let more = ["--hidden", "8", "--update-epochs", "2", "--repeats", "3", "--score", "-1.1"];
        // Runs to a score are those of the settings: the same sizes, so that they have the same kernels.
        let run = ["num_groups=2", "num_minibatches=1", "hidden=[8]"];
        let run = [&run[..], &["num_steps=20", "learn_steps=10"]].concat();
        let run: Vec<_> = run.into_iter().flat_map(|setting| ["--set", setting]).collect();
        let more = [more.as_slice(), &["--score-repeats", "2"], &run[..]].concat();
        let output = success(folder, &[arguments.as_slice(), &sizes, &more].concat());
        let text = fs::read_to_string(folder.join("figures.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        for rate in ["rules", "policy", "trained"] {
            let figure = &report[format!("{rate}_steps_per_second")];
            let at = |key: &str| figure[key].as_f64().unwrap();
            assert!(0.0 < at("min") && at("min") <= at("median"), "{figure}");
            assert!(at("median") <= at("max"), "{figure}");
        }
        // 4 x 8 and 8 x 3 weights, one pass a step: half the steps, twice.
        assert_eq!(report["work_per_step"]["policy_flops"], 112.0);
        assert_eq!(report["work_per_step"]["trained_flops"], 112.0 + 112.0 + 112.0 + 48.0);
        assert!(report["seconds_to_first_update"].as_f64().unwrap() > 0.0);
        let runs = report["seconds_to_score"]["runs"].as_array().unwrap();
        assert!(runs.len() == 2 && runs.iter().all(|run| run.as_f64().unwrap() > 0.0));
        // Only devices with kernels have a measured peak.
        let peak = report["device_peak"]["flops_per_second"].as_f64();
        assert_eq!(peak.is_some_and(|flops| flops > 0.0), device != "cpu", "{peak:?}");
        assert_eq!(stdout(&output).contains("of peak arithmetic"), device != "cpu");
    }
}
