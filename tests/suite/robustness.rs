//! Runs under failures: nothing is lost, and nothing hangs.

use crate::support::{
    Scratch, command, grove, json, refusal, rewrite, signal, start, stderr, stdout, success, train,
    wait_for,
};
use grove::checkpoint::{self, Store};
use std::fs;
use std::io::{BufRead, BufReader};
#[cfg(unix)]
use std::io::{PipeWriter, Write};
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

fn resume<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--resume", "--run-dir", run, "--device", "cpu", "--json"], more].concat()
}

#[test]
fn settings_of_a_checkpoint_are_validated_before_use() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "1"]));
    rewrite(&folder.join("run/best"), "config.toml", |config| {
        let text = String::from_utf8(config.clone()).unwrap();
        *config = text.replace("rows = 10", "rows = 0").into_bytes();
    });
    let commands: [&[&str]; 2] =
        [&["eval", "run"], &["record", "run", "--out", "x.png", "--steps", "3"]];
    for arguments in commands {
        let text = refusal(folder, arguments);
        assert!(text.contains("catch.rows is 0"), "{arguments:?}: {text}");
    }
}

#[test]
fn an_overflowing_update_is_not_saved() {
    let folder = &Scratch::new();
    // One step from a finite loss to weights that are not finite.
    let more = ["learning_rate=3e38", "weight_decay=10", "update_epochs=1", "num_minibatches=1"];
    let sets = more.iter().flat_map(|set| ["--set", set]);
    let more: Vec<&str> = ["--iterations", "1"].into_iter().chain(sets).collect();
    let text = refusal(folder, &train("catch", "run", &more));
    assert!(
        text.contains("policy or its optimizer's state is not finite in iteration 1"),
        "{text}"
    );
    assert!(!folder.join("run/best").exists());
    assert!(Store::new(folder.join("run/checkpoints")).load_latest().is_err());
}

#[test]
fn a_run_resumes_before_non_finite_values() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "8", "--set", "save_every=4"]));
    let newest = folder.join("run/checkpoints/00000008");
    rewrite(&newest, "weights.safetensors", |weights| {
        let end = weights.len();
        weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    // A best policy that is later would be preferred.
    fs::remove_dir_all(folder.join("run/best")).unwrap();
    let said = stderr(&success(folder, &resume("run", &["--iterations", "9"])));
    assert!(said.contains("00000008 cannot be used: its values are not finite"), "{said}");
    assert!(said.contains("using run/checkpoints/00000004 instead"), "{said}");
}

#[test]
fn a_run_killed_before_its_first_checkpoint_resumes_from_the_best_policy() {
    let folder = &Scratch::new();
    let more = ["--iterations", "300", "--set", "save_every=1000"];
    json(folder, &train("catch", "whole", &more));
    // On a busy machine the run may end before it is killed; then try again.
    wait_for("a run that is killed before its end", || {
        let _ = fs::remove_dir_all(folder.join("killed"));
        let mut child = start(folder, &train("catch", "killed", &more));
        wait_for("a best policy", || folder.join("killed/best/SHA256SUMS").exists());
        child.kill().unwrap();
        child.wait().unwrap();
        !folder.join("killed/checkpoints").exists()
    });
    let said = stderr(&success(folder, &resume("killed", &[])));
    assert!(said.contains("using the best policy"), "{said}");
    let last = |run: &str| folder.join(run).join("checkpoints/00000300");
    let load = |run: &str| checkpoint::load(&last(run)).unwrap();
    assert_eq!(load("whole"), load("killed"), "the same as without the kill");
}

#[test]
#[cfg(unix)]
fn nohup_keeps_a_run_alive() {
    let folder = &Scratch::new();
    let more = ["--iterations", "1000000", "--set", "save_every=1"];
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_grove"))
        .args(train("catch", "run", &more))
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let store = Store::new(folder.join("run/checkpoints"));
    let latest = || store.iterations().ok().and_then(|saved| saved.into_iter().max());
    wait_for("a checkpoint", || latest().is_some());
    let before = latest();
    signal(child.id(), "-HUP");
    wait_for("later checkpoints", || latest() > before.map(|iteration| iteration + 50));
    assert!(child.try_wait().unwrap().is_none(), "the run goes on");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Fills a pipe, of which nobody reads, so that the next writer waits.
#[cfg(unix)]
fn fill(mut pipe: &PipeWriter) {
    let descriptor = pipe.as_raw_fd();
    let set_flags = |flags: libc::c_int| {
        // SAFETY: a system call on integers.
        assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags) }, 0);
    };
    set_flags(libc::O_NONBLOCK);
    for size in [4096, 1] {
        while matches!(pipe.write(&vec![b'.'; size]), Ok(1..)) {}
    }
    set_flags(0);
}

#[test]
#[cfg(unix)]
fn a_run_whose_messages_nobody_reads_is_saved_by_one_signal_and_ended_by_the_next() {
    let folder = &Scratch::new();
    let (_reader, pipe) = std::io::pipe().unwrap();
    let more = ["--quiet", "--iterations", "1000000", "--set", "save_every=1000000"];
    let mut program = command(folder, &train("catch", "run", &more));
    program.stdout(Stdio::null()).stderr(pipe.try_clone().unwrap());
    let mut child = program.spawn().unwrap();
    let id = child.id();
    let terminate = || signal(id, "-TERM");
    let metrics = folder.join("run/metrics.jsonl");
    wait_for("the first iterations", || fs::metadata(&metrics).is_ok_and(|file| file.len() > 0));
    fill(&pipe);
    terminate();
    let store = Store::new(folder.join("run/checkpoints"));
    wait_for("a checkpoint", || store.iterations().is_ok_and(|saved| !saved.is_empty()));
    // Signals that follow the first at once count as the same one.
    let mut status = None;
    wait_for("the end of the run", || {
        terminate();
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}

#[test]
fn one_process_at_a_time_trains_a_run() {
    let folder = &Scratch::new();
    let more = ["--iterations", "1000000", "--set", "save_every=1"];
    let mut child = start(folder, &train("catch", "run", &more));
    let store = Store::new(folder.join("run/checkpoints"));
    wait_for("a checkpoint", || store.iterations().is_ok_and(|saved| !saved.is_empty()));
    let text = refusal(folder, &resume("run", &[]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.contains("the run in run is being trained"), "{text}");
    // A killed process leaves no lock.
    let saved = store.iterations().unwrap();
    let to = (saved.last().unwrap() + 1).to_string();
    json(folder, &resume("run", &["--iterations", &to]));
}

#[test]
fn an_extended_run_updates_its_settings_and_repairs_its_metrics() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "3"]));
    let metrics = folder.join("run/metrics.jsonl");
    let mut bytes = fs::read(&metrics).unwrap();
    let second = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    bytes[second + 3] = 0xff;
    fs::write(&metrics, bytes).unwrap();
    let report = json(folder, &resume("run", &["--iterations", "5"]));
    assert_eq!(report["iterations"], 5);
    let text = fs::read_to_string(&metrics).unwrap();
    let iteration =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["iteration"].clone();
    assert_eq!(
        text.lines().map(iteration).collect::<Vec<_>>(),
        [1, 3, 4, 5],
        "but the damaged one"
    );
    let config: toml::Table =
        fs::read_to_string(folder.join("run/config.toml")).unwrap().parse().unwrap();
    assert_eq!(config["iterations"].as_integer(), Some(5));
}

#[test]
fn a_closed_pipe_does_not_stop_a_run() {
    let folder = &Scratch::new();
    // Without --json, the table goes to a closed pipe, too.
    let more = ["--iterations", "12", "--set", "eval_every=1"];
    let mut words = train("catch", "run", &more);
    words.retain(|word| *word != "--json");
    let mut child = start(folder, &words);
    drop(child.stdout.take());
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("Training catch"), "{line}");
    assert!(child.wait().unwrap().success());
    assert!(folder.join("run/checkpoints/00000012").exists());
    for arguments in [&["eval", "run", "--episodes", "9"][..], &["devices"], &["devices", "--json"]]
    {
        let mut child = start(folder, arguments);
        drop((child.stdout.take(), child.stderr.take()));
        assert!(child.wait().unwrap().success(), "{arguments:?}");
    }
}

#[test]
fn every_command_has_json_output() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "1"]));
    let picture = json(folder, &["record", "run", "--out", "x.gif", "--steps", "2", "--json"]);
    assert_eq!((&picture["frames"], &picture["iteration"]), (&13.into(), &1.into()));
    assert_eq!(picture["bytes"], fs::metadata(folder.join("x.gif")).unwrap().len());
    let sizes = ["--num-envs", "16", "--num-steps", "5", "--repeats", "1", "--no-peak"];
    let figures =
        json(folder, &[&["bench", "catch", "--device", "cpu", "--json"], &sizes[..]].concat());
    assert_eq!(figures["env"], "catch");
    let mut server = start(folder, &["watch", "run", "--port", "0", "--json"]);
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(said["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{line}");
    for command in ["train", "eval", "devices", "bench", "check", "watch", "record"] {
        let help = stdout(&grove(folder, &[command, "--help"]));
        assert!(help.contains("--json"), "{command}: {help}");
    }
}
