//! The first hour with the program: common first commands and their output.

#[cfg(target_os = "linux")]
use crate::output::{in_terminal, without_escapes};
use crate::support::{Scratch, json, records, refusal, stderr, stdout, success, train};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The settings of a language model that trains in a second.
const TINY: &str = "--set hidden_size=16 --set num_layers=1 --set num_heads=2 --set num_kv_heads=1 \
    --set num_prompts=4 --set eval_every=4 --set eval_episodes=8";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The command that a finished run prints as the next step, without the program's name.
fn next_step(said: &str) -> String {
    let line = said.lines().find_map(|line| line.strip_prefix("Next: grove "));
    line.unwrap_or_else(|| panic!("no next step: {said}")).to_string()
}

fn run(folder: &Path, line: &str) -> String {
    let output = success(folder, &words(line));
    stdout(&output) + &stderr(&output)
}

#[test]
fn a_language_run_prints_stages_and_working_next_steps() {
    let folder = &Scratch::new();
    let said = run(folder, &format!("train sort --iterations 4 --set fit.iterations=2 {TINY}"));
    for part in ["a model for sort on the CPU", "Stages: SFT 1-2, GRPO 3-4", "held-out prompts"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("none is GRPO"), "{said}");
    let short = run(folder, &format!("train sort --iterations 2 --set fit.iterations=2 {TINY}"));
    assert!(short.contains("warning: all iterations are SFT, and none is GRPO"), "{short}");
    let said_no = refusal(folder, &["record", "runs/sort-2", "--out", "a.gif"]);
    assert!(said_no.contains("a language model, which plays no game"), "{said_no}");
    fs::remove_dir_all(folder.join("runs/sort-2")).unwrap();
    // Without rewards there is no score.
    let first = records::<serde_json::Value>(&folder.join("runs/sort-1")).remove(0);
    assert!(first["score"].is_null() && first["is_sft"] == true, "{first}");

    let next = next_step(&said).replace('\'', "");
    assert!(next.starts_with("generate runs/sort-1 ") && next.ends_with('>'), "{next}");
    assert!(!run(folder, &next).contains("Note:"));
    let example = next.rsplit(' ').next().unwrap();
    let said = run(folder, "generate runs/sort-1");
    assert!(said.contains(&format!("Prompt: {example}")), "{said}");
    let said = run(folder, "generate runs/sort-1 314");
    assert!(said.contains(&format!("Note: prompts of this run look like `{example}`.")), "{said}");
    assert_eq!(json(folder, &["eval", "sort", "--episodes", "8", "--json"])["run"], "runs/sort-1");
}

#[test]
#[ignore = "slow: two minutes of CPU time"]
fn add_is_learnt_with_its_defaults() {
    let folder = Scratch::new();
    let report = json(&folder, &["train", "add", "--json"]);
    assert!(report["mean_score"].as_f64().unwrap() > 0.9, "{report}");
}

#[test]
fn the_command_suggested_after_a_fit_continues_from_it() {
    let folder = &Scratch::new();
    let line = |i: u32| {
        let split = if i.is_multiple_of(4) { "test" } else { "train" };
        format!("{{\"prompt\": \"{i}+1=\", \"solution\": \"{}\", \"split\": \"{split}\"}}\n", i + 1)
    };
    fs::write(folder.join("mine.jsonl"), (0..16).map(line).collect::<String>()).unwrap();
    let said = run(folder, "fit mine.jsonl --iterations 2");
    assert!(said.contains("a model on your data"), "{said}");
    let next = next_step(&said);
    assert_eq!(next, "train --task-data mine.jsonl --from runs/mine-1");
    run(folder, &format!("{next} --iterations 1 --set num_prompts=4"));

    run(folder, "demo catch --player chaser --episodes 40 --out shown");
    let next = next_step(&run(folder, "fit shown --iterations 2"));
    run(folder, "fit shown --set data.epochs=1");
    let runs = run(folder, "runs");
    for (fitted, is_named) in
        [("runs/mine-1 ", true), ("runs/catch-1 ", true), ("runs/catch-2 ", false)]
    {
        let line = runs.lines().find(|line| line.starts_with(fitted)).unwrap();
        assert_eq!(
            line.contains("iterations="),
            is_named,
            "or they follow from the epochs: {line}"
        );
    }
    run(folder, &format!("{next} --iterations 1 --set num_groups=8"));
}

#[test]
fn common_first_commands_work() {
    let folder = &Scratch::new();
    let more = ["--iterations", "1", "--lr", "3e-3", "--set", "hidden=12"];
    let more = [&more[..], &["--num-generations=4", "--beta", "0.01"]].concat();
    json(folder, &train("catch", "runs/catch-1", &more));
    let text = fs::read_to_string(folder.join("runs/catch-1/config.toml")).unwrap();
    let config: toml::Table = text.parse().unwrap();
    assert_eq!(config["optimizer"]["learning_rate"].as_float(), Some(3e-3));
    assert_eq!(config["policy"]["hidden"].as_array().unwrap()[0].as_integer(), Some(12));
    assert_eq!(config["rollout"]["group_size"].as_integer(), Some(4));
    assert_eq!(config["loss"]["kl_coef"].as_float(), Some(0.01));
    let runs = run(folder, "runs");
    assert!(runs.contains("runs/catch-1") && runs.contains("learning_rate=0.003"), "{runs}");
    assert_eq!(run(folder, "ls"), runs);
    let said = refusal(folder, &["train", "--max-steps", "10"]);
    assert!(said.contains("did you mean `--iterations`?"), "{said}");
    let add = json(folder, &["settings", "add", "--json"]);
    let settings = add["settings"].as_array().unwrap();
    let imitated = settings.iter().find(|it| it["key"] == "fit.iterations").unwrap();
    assert_eq!(imitated["default"], 300);
}

#[test]
fn graphics_libraries_print_nothing_while_adapters_are_listed() {
    // With a folder for its caches and, as a service of the system, without one.
    for unset in [&["XDG_RUNTIME_DIR"][..], &["XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grove"));
        for name in unset {
            command.env_remove(name);
        }
        let output = command.arg("devices").output().unwrap();
        assert!(output.status.success());
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn a_dry_run_of_a_fit_has_figures() {
    let folder = &Scratch::new();
    run(folder, "demo catch --player chaser --episodes 40 --out shown");
    let said = run(folder, "fit shown --dry-run");
    assert!(said.contains(" ms per iteration") && !said.contains(" - "), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn help_fits_the_terminal_and_is_short_or_long() {
    let folder = Scratch::new();
    let help = |size: &str, flag: &str| {
        let said = in_terminal(&folder, size, &format!("train {flag}"), "");
        // The modes of the terminal, before and after, are not part of it.
        let lines = said.lines().filter(|line| !line.contains('<') || line.contains(' '));
        lines.map(|line| without_escapes(line.trim_end())).collect::<Vec<_>>()
    };
    let narrow = help("cols 64 rows 40", "-h");
    assert!(narrow.iter().all(|line| line.chars().count() <= 64), "{narrow:#?}");
    // No word is cut: all of a wide terminal's are there.
    let wide = help("cols 200 rows 40", "-h");
    let words = |lines: &[String]| {
        lines.iter().flat_map(|line| line.split_whitespace()).map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(words(&narrow), words(&wide));
    assert!(help("cols 200 rows 40", "--help").len() > wide.len());
}

#[cfg(target_os = "linux")]
#[test]
fn a_language_run_has_a_bar_and_the_time_left() {
    let folder = Scratch::new();
    let line = format!("train sort --iterations 30 --set fit.iterations=20 {TINY}");
    let said = in_terminal(&folder, "cols 80", &line, "");
    assert!(said.contains("/30 ") && said.contains("s left") && said.contains('█'), "{said:?}");
    assert!(said.contains("tokens/s"), "{said:?}");
}

/// The paths of all keys of some JSON, with those of a list's first element.
fn keys(value: &serde_json::Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(object) = value.as_object() {
        for (key, value) in object {
            found.insert(format!("{path}{key}"));
            keys(value, &format!("{path}{key}."), found);
        }
    }
    value.as_array().and_then(|list| list.first()).iter().for_each(|it| keys(it, path, found));
}

#[test]
fn games_and_texts_report_in_the_same_words() {
    let folder = &Scratch::new();
    run(folder, "train catch --iterations 2 --set num_groups=8 --set eval_every=2");
    run(folder, &format!("train sort --iterations 4 --set fit.iterations=2 {TINY}"));
    let eval = |of: &str| json(folder, &["eval", of, "--episodes", "8", "--json"]);
    let file = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
    let last = |run: &str| records::<serde_json::Value>(&folder.join(run)).pop().unwrap();
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let pairs = [
        [eval("catch"), eval("sort")],
        ["runs/catch-1/run.json", "runs/sort-1/run.json"].map(|path| read(&file(path))),
        ["runs/catch-1", "runs/sort-1"].map(last),
    ];
    for pair in pairs {
        let [game, text] = pair.map(|report| {
            let mut found = BTreeSet::new();
            keys(&report, "", &mut found);
            found
        });
        // Texts have no other players to compare with.
        let only: Vec<_> =
            game.difference(&text).filter(|key| !key.starts_with("reference_scores")).collect();
        assert!(only.is_empty() || only == ["env"], "{only:?}");
        assert!(text.contains("task") == game.contains("env"));
    }
}

#[test]
fn every_setting_has_a_comment() {
    let folder = Scratch::new();
    let tasks = grove::task::TASKS.iter().map(|task| task.name);
    for name in grove::env::NAMES.iter().copied().chain(tasks) {
        let said = run(&folder, &format!("settings {name}"));
        let mut before = "";
        for line in said.lines() {
            // The two that name what is trained say enough.
            let named = ["env = ", "task = "].iter().any(|key| line.starts_with(key));
            let is_setting = line.starts_with(|c: char| c.is_ascii_lowercase()) && !named;
            assert!(!is_setting || before.starts_with("# "), "{name}: {line}");
            before = line;
        }
    }
}

#[test]
fn a_game_with_other_parameters_has_baselines_with_standard_errors() {
    let folder = Scratch::new();
    let said = run(&folder, "train catch --iterations 2 --set catch.rows=9");
    for player in ["random ", "chaser ", "this policy, greedy "] {
        let line = said.lines().find(|line| line.starts_with(player));
        assert!(line.is_some_and(|line| line.contains(" ± ")), "{player}: {said}");
    }
}
