//! The program with language models: user-defined tasks, fitting, interruptions, and errors about bad input.

use crate::support::{
    GIVES_ONE, MISSING, Scratch, adapter_name, assert_same_files, command, json, records, refusal,
    repository, stderr, success,
};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A tiny run that takes a second.
const SMALL: &str = "hidden_size=16 num_layers=1 num_heads=2 num_kv_heads=1 num_prompts=4 eval_every=2 save_every=3";

/// Options that run a verifier without a sandbox on systems that have none.
const UNCONFINED: &[&str] =
    if cfg!(target_os = "linux") { &[] } else { &["--verifier-sandbox", "off"] };

/// The verifier's end if the shell does not find a program.
const NO_PROGRAM: &str = if cfg!(unix) { "ended (exit status: 127" } else { "ended (exit code: " };

/// Words of a command with settings after them.
fn words<'a>(words: &[&'a str], settings: &[&'a str]) -> Vec<&'a str> {
    let mut all = words.to_vec();
    SMALL.split(' ').chain(settings.iter().copied()).for_each(|set| all.extend(["--set", set]));
    all
}

/// A file of sums, every fourth of which is held out.
fn sums(folder: &Path, answer: &str) -> PathBuf {
    let line = |i: usize| {
        let (a, b) = (i % 5, i / 5);
        let split = if i.is_multiple_of(4) { "test" } else { "train" };
        format!(
            "{{\"prompt\": \"{a}+{b}=\", \"{answer}\": \"{}\", \"split\": \"{split}\"}}\n",
            a + b
        )
    };
    let path = folder.join("sums.jsonl");
    fs::write(&path, (0..25).map(line).collect::<String>()).unwrap();
    path
}

/// Checks that two runs have learnt the same.
fn assert_same(a: &Path, b: &Path) {
    for part in ["checkpoints", "best", "model"] {
        assert_same_files(&a.join(part), &b.join(part));
    }
}

#[test]
fn a_user_defined_task_is_learnt_and_resumes_without_options() {
    let folder = Scratch::new();
    let place = folder.join("here");
    fs::create_dir(&place).unwrap();
    sums(&place, "solution");
    fs::copy(repository("examples/verifier.py"), place.join("verifier.py")).unwrap();
    let weights = "data.reward_weights=exact=1.6,brief=0.4";
    let start = |run: &'static str, iterations: &'static str| {
        let mut all = vec!["train", "--task-data", "sums.jsonl", "--verifier"];
        all.extend(["python3 verifier.py", "--model", "tiny", "--json", "--run-dir", run]);
        all.extend(UNCONFINED);
        all.extend(["--iterations", iterations]);
        words(&all, &["fit.iterations=2", "group_size=3", weights, "eval_episodes=5"])
    };
    json(&place, &start("whole", "6"));
    json(&place, &start("cut", "3"));
    let cut = place.join("cut");
    let run = cut.to_str().unwrap();
    let words = ["train", "--resume", "--run-dir", run, "--iterations", "6", "--json"];
    assert_eq!(json(&folder, &words)["iteration"], 6);
    let metrics: Vec<Value> = records(&cut);
    assert_eq!(metrics.len(), 6);
    for record in &metrics[2..] {
        assert_eq!(record["num_unjudged"], 0);
        assert_eq!(record["rewards"]["brief"], 1.0, "{record}");
        assert!(record["rewards"]["exact"].is_number() && record["distinct_fraction"].is_number());
        assert!(record["seconds"]["phases"]["verify"].as_f64().unwrap() > 0.0);
    }
    let metadata = fs::read_to_string(cut.join("run.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    assert_eq!(metadata["highest_score"], 2.0);
    let report = json(&folder, &["eval", run, "--episodes", "100", "--k", "2", "--json"]);
    // Three of the seven held-out prompts, namely those that did not choose the best policy.
    assert_eq!((&report["task"], &report["sampled"]["episodes"]), (&"data".into(), &3.into()));
    // A checkpoint is evaluated wherever it is.
    let last = cut.join("checkpoints").read_dir().unwrap().next().unwrap().unwrap().path();
    let path = last.to_str().unwrap();
    let report = json(&folder, &["eval", path, "--episodes", "100", "--k", "2", "--json"]);
    assert_eq!((&report["task"], &report["sampled"]["episodes"]), (&"data".into(), &3.into()));
    fs::rename(&last, folder.join("alone")).unwrap();
    let alone = json(&folder, &["eval", "alone", "--episodes", "100", "--k", "2", "--json"]);
    assert_eq!(alone["greedy"], report["greedy"]);
    fs::rename(folder.join("alone"), &last).unwrap();
    // The settings of the first three iterations are others, since the schedules end with the run.
    let settings = |run: &str| fs::read_to_string(place.join(run).join("config.toml")).unwrap();
    assert_eq!(settings("whole"), settings("cut"));
    let completions = |run: &str| {
        fs::read_to_string(place.join(run).join("completions.jsonl")).unwrap().lines().count()
    };
    assert_eq!((completions("whole"), completions("cut")), (4 * 4 * 3, 4 * 4 * 3));
}

#[test]
fn grpo_continues_from_a_fitted_model() {
    let folder = &Scratch::new();
    sums(folder, "completion");
    let start = ["fit", "sums.jsonl", "--model", "tiny", "--json", "--run-dir", "fitted"];
    let fast = ["fit.epochs=12", "optimizer.learning_rate=1e-2"];
    let report = json(folder, &words(&start, &fast));
    // 18 texts, 4 of them a step.
    assert_eq!((&report["task"], &report["iteration"]), (&"data".into(), &54.into()));
    let metrics: Vec<Value> = records(&folder.join("fitted"));
    let held_out: Vec<f64> = metrics
        .iter()
        .filter_map(|record| record["evaluation"]["held_out"]["loss"].as_f64())
        .collect();
    assert_eq!(held_out.len(), 27);
    let best = held_out.iter().copied().fold(f64::INFINITY, f64::min);
    // The model soon overfits so few texts; the best checkpoint is kept.
    assert!(best < 0.95 * held_out[0] && best < 0.95 * held_out[26], "{held_out:?}");
    // The report is of the solutions that did not choose it.
    let last = report["held_out"]["loss"].as_f64().unwrap();
    assert!(last > 0.0 && (last - best).abs() > 1e-9, "{report}");
    assert!(metrics.iter().all(|record| record["is_sft"] == true && record["num_tokens"] == 0));
    let card = fs::read_to_string(folder.join("fitted/model/README.md")).unwrap();
    assert!(
        card.contains("\ntags: [grove, sft]\n") && card.contains("fine-tuning (SFT)"),
        "{card}"
    );

    let said =
        refusal(folder, &["train", "--task-data", "sums.jsonl", "--model", "fitted", "--dry-run"]);
    assert!(said.contains("fitted is a run, not a model; give its model, fitted"), "{said}");

    // Until a run has ended, its folder `model` may have another model than the best one.
    let complete = |model: &str| {
        let words = ["generate", model, "1+1=", "--temperature", "0", "--max-new-tokens", "4"];
        json(folder, &[&words[..], &["--json"]].concat())["completions"].clone()
    };
    let best = complete("fitted");
    // Without options a completion has the room that the context leaves, and ends before the stop texts of the run.
    let text = |folder: &Path| {
        let drawn = ["--temperature", "100", "--seed", "1", "--json"];
        let report = json(folder, &[&["generate", "fitted", "1+1="][..], &drawn].concat());
        report["completions"][0]["text"].as_str().unwrap().to_string()
    };
    let whole = text(folder);
    let config = fs::read_to_string(folder.join("fitted/config.toml")).unwrap();
    let stop = format!("stop = [\"{}\"]", whole.chars().next().unwrap());
    assert!(config.contains("stop = []"), "{config}");
    fs::write(folder.join("fitted/config.toml"), config.replace("stop = []", &stop)).unwrap();
    assert_eq!(text(folder), "");
    fs::write(folder.join("fitted/config.toml"), config).unwrap();
    for file in ["README.md", "model.safetensors"] {
        fs::remove_file(folder.join("fitted/model").join(file)).unwrap();
    }
    assert_eq!(complete("fitted"), best);
    json(folder, &["export", "fitted", "--format", "safetensors", "--out", "exported", "--json"]);
    assert_eq!(complete("exported"), best);

    // A task has its own solutions; what was fitted knows its characters only.
    let start = ["fit", "sort", "--model", "tiny", "--json", "--run-dir", "sorts"];
    let report = json(folder, &words(&start, &["sort.length=3", "iterations=4"]));
    assert_eq!((&report["task"], &report["iteration"]), (&"sort".into(), &4.into()));
    let start = ["train", "sort", "--from", "sorts", "--json", "--run-dir", "goes-on"];
    let length = ["sort.length=3", "group_size=2", "iterations=2", "eval_episodes=4"];
    let report = json(folder, &words(&start, &length));
    assert_eq!(report["iteration"], 2);
    let metrics: Vec<Value> = records(&folder.join("goes-on"));
    assert!(metrics.iter().all(|record| record["is_sft"] == false));

    // Patience ends a run that gets no better: with a rate of 0 none does.
    let start = ["fit", "sums.jsonl", "--json", "--run-dir", "still"];
    let report = json(folder, &words(&start, &["optimizer.learning_rate=0", "fit.patience=2"]));
    assert_eq!((&report["iteration"], &report["best_iteration"]), (&6.into(), &2.into()));
    let said = refusal(folder, &["train", "--resume", "--run-dir", "still"]);
    assert!(said.contains("no improvement in 2 evaluations"), "{said}");
}

#[cfg(unix)]
#[test]
fn interrupted_and_resumed_equals_uninterrupted_for_texts_too() {
    let folder = &Scratch::new();
    sums(folder, "solution");
    let fit = ["fit", "sums.jsonl", "--json", "--iterations", "80", "--run-dir"];
    let train = ["train", "sort", "--json", "--iterations", "40", "--run-dir"];
    let sort = ["sort.length=3", "fit.iterations=3", "eval_episodes=16", "eval_every=7"];
    for (start, settings) in [(&fit[..], &[][..]), (&train[..], &sort[..])] {
        let [whole, broken] = ["whole", "broken"].map(|run| format!("{run}-{}", start[0]));
        json(folder, &words(&[start, &[whole.as_str()]].concat(), settings));
        let all: usize = start[start.len() - 2].parse().unwrap();
        let arguments = words(&[start, &[broken.as_str()]].concat(), settings);
        let report = crate::support::interrupted_run(folder, &arguments, &broken, 5, all);
        assert!(report["interrupted"] == true && report["mean_score"].is_null(), "{report}");
        assert!(!folder.join(&broken).join("model/README.md").exists(), "not evaluated yet");
        json(folder, &["train", "--resume", "--run-dir", &broken, "--json"]);
        assert_eq!(records::<Value>(&folder.join(&broken)).len(), all);
        assert_same(&folder.join(whole), &folder.join(broken));
    }
}

#[test]
#[ignore = "slow: 30 s of CPU time on a software adapter"]
fn a_language_run_on_a_device_resumes_on_the_cpu() {
    let Some(device) = adapter_name() else { return };
    let folder = &Scratch::new();
    let start = ["train", "sort", "--device", &device, "--run-dir", "run", "--json"];
    let small = ["generation.num_prompts=4", "generation.group_size=2", "sort.length=3"];
    let all = words(&[&start[..], &["--iterations", "2"]].concat(), &small);
    assert_eq!(json(folder, &all)["iteration"], 2);
    let resume = ["train", "--resume", "--run-dir", "run", "--device", "cpu", "--json"];
    let on = [&resume[..], &["--iterations", "3"]].concat();
    assert_eq!(json(folder, &on)["iteration"], 3);
    let metrics: Vec<Value> = records(&folder.join("run"));
    let distance = |record: &Value| record["first_ratio_distance"].as_f64().unwrap_or(0.0);
    let distances: Vec<f64> = metrics.iter().map(distance).collect();
    assert!(distances.iter().all(|distance| *distance < 1e-4), "{distances:?}");
    assert!(distances[2] == 0.0, "the CPU acts and learns alike: {distances:?}");
}

#[test]
fn a_dry_run_of_texts_keeps_nothing() {
    let folder = Scratch::new();
    sums(&folder, "solution");
    for start in [["fit", "sums.jsonl"], ["train", "sort"]] {
        let all = [&start[..], &["--model", "tiny", "--dry-run", "--json"]].concat();
        let report = json(&folder, &words(&all, &["eval_episodes=4", "group_size=2"]));
        assert!(report["seconds"].as_f64().unwrap() > 0.0, "{report}");
        let stages = report["stages"].as_array().unwrap();
        let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
        assert_eq!(names, if start[0] == "fit" { &["SFT"][..] } else { &["SFT", "GRPO"] });
        assert!(stages.iter().all(|one| one["seconds_per_iteration"].as_f64().unwrap() > 0.0));
        let same = ["device", "engine", "num_params", "num_envs", "iterations", "memory_bytes"];
        assert!(same.iter().all(|key| !report[key].is_null()), "{report}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn a_verifier_that_scores_nothing_is_reported_once() {
    let folder = &Scratch::new();
    sums(folder, "solution");
    let verifier = "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'id': \
                    json.loads(line)['id'], 'error': 'no idea'}), flush=True)\n";
    fs::write(folder.join("none.py"), verifier).unwrap();
    let start = ["train", "--task-data", "sums.jsonl", "--verifier", "python3 none.py"];
    let settings = ["fit.iterations=0", "iterations=3", "group_size=2", "eval_episodes=2"];
    let start = [&start[..], UNCONFINED, &["--run-dir", "run"]].concat();
    let output = success(folder, &words(&start, &settings));
    let words = "8 completions have no reward: the verifier reported: \"no idea\".";
    assert_eq!(stderr(&output).matches(words).count(), 1, "{}", stderr(&output));
    let metrics: Vec<Value> = records(&folder.join("run"));
    assert!(metrics[0]["warning"].as_str().unwrap().contains(words), "{}", metrics[0]);
    assert!(metrics[1].get("warning").is_none_or(|w| !w.to_string().contains("no idea")));
}

#[test]
fn bad_input_to_language_models_gets_one_clear_sentence_and_leaves_nothing() {
    let folder = &Scratch::new();
    sums(folder, "solution");
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("broken.jsonl", "{\"prompt\": \"a\", \"solution\": \"b\"}\n{\"prompt\": \n");
    write("train.jsonl", "{\"prompt\": \"a\", \"solution\": \"b\", \"split\": \"train\"}\n");
    write(
        "open.jsonl",
        "{\"prompt\": \"a\", \"split\": \"train\"}\n{\"prompt\": \"b\", \"split\": \"test\"}\n",
    );
    let long = "x".repeat(2000);
    write(
        "long.jsonl",
        &format!(
            "{{\"prompt\": \"a\", \"solution\": \"b\", \"split\": \"test\"}}\n{{\"prompt\": \"{long}\", \"solution\": \"b\", \"split\": \"train\"}}\n"
        ),
    );
    write("dies.py", "import sys, time\nsys.stdin.readline()\nsys.exit('no module')\n");
    write(
        "nan.py",
        "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'id': json.loads(line)['id'], 'reward': float('nan')}), flush=True)\n",
    );
    write("one.py", GIVES_ONE);
    write("settings.toml", "task = \"sort\"\n");
    fs::create_dir(folder.join("game")).unwrap();
    write("game/config.toml", "env = \"fruit\"\n");
    let verified = |command: &'static str| {
        let start = ["train", "--task-data", "sums.jsonl", "--verifier", command];
        [&start[..], UNCONFINED].concat()
    };
    let open = ["train", "--task-data", "open.jsonl", "--verifier", "python3 one.py"];
    let open = [&open[..], UNCONFINED].concat();
    let (dies, nan, none) =
        (verified("python3 dies.py"), verified("python3 nan.py"), verified("./none"));
    let cases: &[(&str, &[&str])] = &[
        ("train --task-data none.jsonl", &["cannot find none.jsonl", MISSING]),
        ("train --task-data broken.jsonl", &["broken.jsonl, line 2: invalid JSON"]),
        ("train --task-data train.jsonl", &["no test prompt", "\"split\": \"test\""]),
        ("train --task-data open.jsonl", &["give every line a `solution`", "--verifier"]),
        (
            "train --task-data long.jsonl",
            &["a prompt of 2000 tokens", "\"xxxxx", "context of 1024"],
        ),
        ("train sort --task-data sums.jsonl", &["leave out `sort`"]),
        ("train sort --verifier cat", &["`sort` has a built-in verifier"]),
        ("train sort --verifier-sandbox off", &["`sort` has a built-in verifier"]),
        ("verify sort --verifier-allow network", &["`sort` has a built-in verifier"]),
        ("train --model tiny", &["no task is named", "sort, reverse", "--task-data"]),
        ("train add --config settings.toml", &["is for `sort`, not `add`"]),
        ("train data", &["`data.path` is empty", "--task-data"]),
        ("train sort --set generation.stop=3", &["generation.stop", "list of strings"]),
        ("train sort --set stop=[\"\"]", &["generation.stop is [\"\"], but must be"]),
        (
            "train sort --set max_completion_length=-1",
            &["generation.max_new_tokens", "-1", "whole number"],
        ),
        ("train sort --set eval_episodes=0", &["eval_episodes is 0, but must be 1 or more"]),
        ("train sort --set rollout.num_steps=8", &["is a setting of games: this run trains sort"]),
        ("train sort --set model.path=none", &["cannot use the model in none"]),
        ("bench sort --set model.path=none", &["cannot use the model in none"]),
        ("train sort --engine fused", &["--engine is for games"]),
        ("bench sort --engine fused", &["--engine is for games"]),
        ("train sort --precision f16", &["the CPU supports f32, and bf16 for"]),
        ("fit none.jsonl", &["cannot find none.jsonl"]),
        ("fit train.jsonl", &["no test prompt"]),
        ("fit open.jsonl", &["a `solution` or a `completion`"]),
        ("fit sort --model nowhere", &["cannot use the model in nowhere"]),
        ("train sort --from game", &["the run in game has no language model"]),
        ("fit sort --resume", &["grove train --resume"]),
        ("fit sort --set fit.iterations=3", &["fit.iterations is 3, but must be 0"]),
    ];
    let cases = cases.iter().map(|(line, words)| (line.split(' ').collect::<Vec<_>>(), *words));
    let of_verifiers: [(_, &[&str]); 4] = [
        (open, &["`tiny` has the characters", "give every prompt a solution"]),
        (dies, &["the verifier ended", "no module", "python3 dies.py"]),
        (nan, &["returned \"NaN\" as the reward `reward`", "python3 nan.py"]),
        (none, &["./none", NO_PROGRAM, "by hand"]),
    ];
    let before = fs::read_dir(folder).unwrap().count();
    for (arguments, words) in cases.chain(of_verifiers) {
        let text = refusal(folder, &arguments);
        let is_usage = text.contains("Usage: ");
        assert!(is_usage || text.trim_end().lines().count() == 1, "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{arguments:?} lacks `{word}`: {text}");
        }
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), before, "something was left behind");
}

#[test]
fn a_model_without_an_end_token_gets_a_warning() {
    let folder = &Scratch::new();
    let from = repository("tests/language/qwen2");
    fs::create_dir(folder.join("endless")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(from.join(name), folder.join("endless").join(name)).unwrap();
    }
    let words = ["train", "add", "--model", "endless", "--dry-run", "--device", "cpu"];
    let without = success(folder, &words);
    let said = "has no token that ends a text";
    assert!(stderr(&without).contains(said), "{}", stderr(&without));
    fs::write(folder.join("endless/special_tokens_map.json"), r#"{"eos_token": "<eos>"}"#).unwrap();
    let with = success(folder, &words);
    assert!(!stderr(&with).contains(said), "{}", stderr(&with));
}

#[cfg(unix)]
#[test]
fn ocaml_without_a_compiler_says_what_to_install() {
    let folder = Scratch::new();
    let mut program = command(&folder, &["train", "ocaml", "--model", "tiny"]);
    let output = program.env("PATH", "/nowhere").output().unwrap();
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("`ocaml` needs the OCaml compiler"),
        "{said}"
    );
    assert!(said.contains("apt-get install ocaml-nox") && said.trim_end().lines().count() == 1);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}
