//! Output of the program: settings, dry runs, progress, and the choice of the latest run.

use crate::support::{Scratch, grove, json, refusal, stderr, stdout, train};
use grove::settings::{TrainConfig, overlay};
use std::fs;
#[cfg(target_os = "linux")]
use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

#[test]
fn the_list_of_settings_is_a_valid_settings_file() {
    let folder = &Scratch::new();
    let text = stdout(&grove(folder, &["settings", "catch"]));
    assert!(text.contains("# learning_rate: 0 or more\nlearning_rate = "), "{text}");
    assert!(text.contains("(TRL: beta)"), "{text}");
    fs::write(folder.join("catch.toml"), &text).unwrap();
    let more = ["--config", "catch.toml", "--iterations", "1"];
    let report = json(folder, &train("catch", "run", &more));
    assert_eq!(report["iteration"], 1);

    // The run's settings file is commented as well, with the same values.
    let own = fs::read_to_string(folder.join("run/config.toml")).unwrap();
    assert!(own.contains("# Peak learning rate; 0 leaves the weights as they are.\n"), "{own}");
    let expected = text.replace("iterations = 100", "iterations = 1");
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    assert_eq!(table(&own)["optimizer"], table(&expected)["optimizer"]);

    let report = json(folder, &["settings", "catch", "--json"]);
    let settings = report["settings"].as_array().unwrap();
    let at = |key: &str| settings.iter().find(|setting| setting["key"] == key).unwrap();
    let rate = TrainConfig::for_game("catch").optimizer.learning_rate;
    assert_eq!(at("optimizer.learning_rate")["default"], rate);
    assert_eq!(at("optimizer.learning_rate")["range"], "0 or more");
    assert!(at("catch.rows")["default"].is_u64());
    let sections = overlay::to_table(&TrainConfig::for_game("catch"));
    assert!(settings.len() > sections.len() + 30, "{}", settings.len());
}

#[test]
fn a_dry_run_estimates_and_saves_nothing() {
    let folder = &Scratch::new();
    let words = ["train", "catch", "--device", "cpu", "--dry-run"];
    let report = json(folder, &[&words[..], &["--set", "hidden=[8]", "--json"]].concat());
    // 4 features and 3 actions.
    assert_eq!(report["num_params"], 4 * 8 + 8 + 8 * 3 + 3);
    let at = |key: &str| report[key].as_f64().unwrap();
    assert!(at("seconds_per_iteration") > 0.0 && at("seconds_per_evaluation") > 0.0);
    let config = TrainConfig::for_game("catch");
    let iterations = f64::from(config.iterations);
    assert!(at("seconds") >= at("seconds_per_iteration") * (iterations - 1.0));
    let steps = (config.rollout.num_envs() * config.rollout.num_steps) as f64 * iterations;
    assert_eq!(at("env_steps"), steps);
    assert!(at("memory_bytes") > 1e6);
    let text = stdout(&grove(folder, &words));
    assert!(text.contains("policy     mlp ") && text.contains("Dry run: nothing saved."), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    assert!(refusal(folder, &["train", "--dry-run", "--resume"]).contains("--resume"));
}

#[test]
fn resume_without_a_game_takes_the_latest_run() {
    let folder = &Scratch::new();
    for game in ["cartpole", "catch"] {
        let words = ["train", game, "--device", "cpu", "--iterations", "1"];
        assert!(grove(folder, &words).status.success());
    }
    let resume = ["train", "--resume", "--device", "cpu", "--json", "--iterations"];
    let report = json(folder, &[&resume[..], &["2"]].concat());
    assert_eq!((&report["env"], &report["iteration"]), (&"catch".into(), &2.into()));
    let words = [&resume[..], &["2"], &["cartpole"]].concat();
    assert_eq!(json(folder, &words)["env"], "cartpole");
    // Resuming made that run the latest.
    assert_eq!(json(folder, &[&resume[..], &["3"]].concat())["env"], "cartpole");
}

#[test]
fn a_run_leaves_a_history_of_about_twenty_lines() {
    let folder = &Scratch::new();
    let words = ["train", "catch", "--device", "cpu", "--iterations", "100", "--set"];
    let said = stderr(&grove(folder, &[&words[..], &["eval_every=1"]].concat()));
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("/100  score ")).collect();
    assert_eq!(lines.len(), 20, "{said}");
    assert!(lines[0].starts_with("  5/100  score ") && lines[0].contains("  greedy "), "{said}");
    assert!(lines[19].starts_with("100/100  score "), "{said}");
}

/// Runs the program in a terminal of this size by `script`, which is fed with `keys`. Returns what it printed, with the
/// terminal's mode before and after.
#[cfg(target_os = "linux")]
pub fn in_terminal(folder: &Path, size: &str, arguments: &str, keys: &str) -> String {
    let grove = env!("CARGO_BIN_EXE_grove");
    let mode = "echo \"<$(stty -g)>\"";
    let run = format!("stty {size}; {mode}; {grove} {arguments}; {mode}");
    let mut script = Command::new("script")
        .args(["-qec", &run, "/dev/null"])
        .current_dir(folder)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` is there (Debian: bsdutils)");
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(keys.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    drop(stdin);
    stdout(&output)
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_terminal_has_a_dashboard_and_keys() {
    let folder = &Scratch::new();
    let run = "train catch --device cpu --iterations 1000000";
    let said = in_terminal(folder, "cols 120 rows 40", run, "sq");
    for part in [
        "score, sampled",
        "approx. KL",
        "Saving after the current iteration",
        "Interrupted and saved",
    ] {
        assert!(said.contains(part), "{part}: {said:?}");
    }
    let modes: Vec<&str> =
        said.split('<').skip(1).filter_map(|it| it.split_once('>')).map(|it| it.0).collect();
    let (before, after) = (modes.first().unwrap(), modes.last().unwrap());
    assert!(before.contains(':') && before == after, "the terminal is left as it was: {modes:?}");

    let run = "train --resume --iterations 3000000 --plain --set stop.seconds=0.01";
    let said = in_terminal(folder, "cols 120 rows 40", run, "");
    assert!(said.contains("stop.seconds") && !said.contains("approx. KL"), "{said:?}");
    let run = "train catch --device cpu --iterations 5 --quiet";
    let said = in_terminal(folder, "cols 120 rows 40", run, "");
    assert!(said.contains("Training catch") && !said.contains("5/5"), "{said:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn progress_fits_a_terminal_of_eighty_columns() {
    let folder = Scratch::new();
    let run = "train catch --device cpu --iterations 200";
    let said = in_terminal(&folder, "cols 80", run, "");
    let mut history = 0;
    // Each update of the line starts with a carriage return or a control sequence.
    for line in said.split(['\r', '\n']) {
        let text = without_escapes(line);
        if text.contains("steps/s") {
            assert!(text.chars().count() <= 80, "{} columns: {text}", text.chars().count());
            history += usize::from(text.contains("/200  score") && !text.contains(" left "));
        }
    }
    assert!(history >= 5, "{history} lines are left: {said:?}");
}

/// Removes escape sequences.
#[cfg(target_os = "linux")]
pub fn without_escapes(line: &str) -> String {
    let mut text = String::new();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            letters.by_ref().skip(1).find(char::is_ascii_alphabetic);
        } else {
            text.push(letter);
        }
    }
    text
}

/// Words that bash offers for the last one of a line, by the script in `grove.bash`.
#[cfg(target_os = "linux")]
fn completed(folder: &Path, line: &str) -> String {
    const COMPLETE: &str = r#"source ./grove.bash && complete -p grove > complete.txt && COMP_WORDS=("$@") &&
        COMP_CWORD=$(($# - 1)) && _grove grove "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; echo "${COMPREPLY[*]}""#;
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", COMPLETE, "bash"]).args(line.split(' ')).current_dir(folder);
    let output = output.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(fs::read_to_string(folder.join("complete.txt")).unwrap().contains("-F _grove "));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let folder = &Scratch::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(&grove(folder, &["completions", shell]));
        assert!(script.contains("sweep") && script.contains("run-dir"), "{shell}: {script}");
    }
    #[cfg(target_os = "linux")]
    {
        fs::write(folder.join("grove.bash"), stdout(&grove(folder, &["completions", "bash"])))
            .unwrap();
        for (line, words) in [
            ("grove train --engine ", "auto fused general"),
            ("grove train sort --precision ", "f32 tf32 f16 bf16"),
            ("grove verify s", "sort"),
            ("grove demo ca", "catch cartpole"),
            ("grove train --stop-", ""),
        ] {
            assert_eq!(completed(folder, line), words, "{line}");
        }
    }
    let help = stdout(&grove(folder, &["fit", "--help"]));
    assert!(!help.contains("--resume") && !help.contains("--task-data"), "{help}");
    assert!(grove(folder, &["man", "--out", "pages"]).status.success());
    let page = fs::read_to_string(folder.join("pages/grove-train.1")).unwrap();
    assert!(page.contains(".TH grove-train 1") && page.contains("\\-\\-run\\-dir"), "{page}");
    assert!(folder.join("pages/grove.1").is_file());
}
