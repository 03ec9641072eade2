//! Runs that a team of several ranks shares: the bytes are those of one rank, and a rank that fails is named.
//!
//! Ranks are threads here. MPI processes need `mpirun` and a program that was built with the feature
//! `mpi`, which `GROVE_MPI` names: those tests are ignored unless they are asked for.

use crate::support::{
    Scratch, adapter_name, assert_same_files, command, grove, json, records, refused, report, sets,
    signal, stderr, train, wait_for,
};
use grove::metrics::IterationRecord;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Devices for this number of ranks on the CPU.
pub fn cpus(ranks: usize) -> String {
    vec!["cpu"; ranks].join(",")
}

/// Arguments of a run of 16 groups on these devices, with a branch and a reference policy to share too.
fn shared(game: &str, dir: &str, devices: &str, more: &str) -> String {
    let all = "--set num_groups=16 --set kl_coef=0.01 --set eval_every=4 --set eval_episodes=50";
    let mut line = format!("train {game} --run-dir {dir} --json --device {devices} {all}");
    for (option, value) in [("--iterations", "8"), ("--timeout", "600")] {
        if !more.contains(option) {
            line += &format!(" {option} {value}");
        }
    }
    format!("{line} {more}")
}

/// Checks that two runs in a folder have saved the same.
pub fn assert_same_runs(folder: &Path, a: &str, b: &str) {
    for part in ["checkpoints", "best"] {
        assert_same_files(&folder.join(a).join(part), &folder.join(b).join(part));
    }
    let figures = |run: &str| -> Vec<_> {
        let of = |it: IterationRecord| {
            let lengths = (it.mean_length, it.evaluation);
            (it.iteration, it.env_steps, it.score, it.episodes, it.mean_reward, lengths)
        };
        records(&folder.join(run)).into_iter().map(of).collect()
    };
    assert_eq!(figures(a), figures(b), "{b}");
}

#[test]
fn any_number_of_ranks_gives_the_same_bytes() {
    let folder = &Scratch::new();
    for (name, game, more) in [
        ("fast", "fruit", "--set num_minibatches=2"),
        ("masked", "breakout", "--set num_minibatches=4"),
        ("gru", "recall", "--set num_shards=5 --set num_groups=64"),
        (
            "bf16",
            "fruit",
            "--precision bf16 --set hidden=[70] --set num_minibatches=1 --set num_groups=64",
        ),
        ("general", "catch", "--engine general --set num_minibatches=1 --set num_groups=64"),
        ("decoder", "recall", "--set policy.kind=decoder --set kl_coef=0 --set num_groups=32"),
        ("stopped-fast", "fruit", "--set target_kl=1e-3 --set num_groups=32"),
        (
            "stopped",
            "catch",
            "--engine general --set num_minibatches=1 --set num_groups=64 --set target_kl=1e-3 --set update_epochs=4",
        ),
        ("idle", "catch", "--set auto_reset=false --set num_minibatches=1 --set num_groups=64"),
        (
            "idle-general",
            "catch",
            "--engine general --set num_minibatches=1 --set num_groups=64 --set auto_reset=false",
        ),
    ] {
        // Updates that are to end early have more iterations for it.
        let iterations = if name.starts_with("stopped") { "8" } else { "4" };
        let more = &format!("{more} --iterations {iterations} --set eval_every=2");
        report(folder, &shared(game, &format!("{name}-1"), "cpu", more));
        for ranks in [3, 4] {
            let (dir, devices) = (format!("{name}-{ranks}"), cpus(ranks));
            report(folder, &shared(game, &dir, &devices, more));
            assert_same_runs(folder, &format!("{name}-1"), &dir);
        }
    }
}

#[test]
fn a_run_resumes_with_another_team() {
    let folder = &Scratch::new();
    let more = "--set save_every=5";
    report(folder, &shared("catch", "whole", "cpu", more));
    for (dir, first, then) in [("joined", cpus(4), cpus(1)), ("split", cpus(1), cpus(3))] {
        // A schedule that ends with the eighth, and a run that is interrupted at the fifth.
        report(folder, &shared("catch", dir, &first, more));
        fs::remove_dir_all(folder.join(dir).join("checkpoints/00000008")).unwrap();
        let resume = format!("train --resume --run-dir {dir} --device {then} --json --timeout 600");
        assert_eq!(report(folder, &resume)["iteration"], 8);
        let last = |dir: &str| folder.join(dir).join("checkpoints/00000008");
        assert_same_files(&last("whole"), &last(dir));
    }
}

#[test]
fn demonstrations_are_shared_too() {
    let folder = &Scratch::new();
    let demo = ["demo", "fruit", "--player", "planner", "--episodes", "480", "--out", "shown"];
    assert!(grove(folder, &demo).status.success());
    let fit = |dir: &str, devices: &str, more: &str| {
        let all = "--json --iterations 6 --timeout 600 --set num_minibatches=5";
        report(folder, &format!("fit shown --run-dir {dir} --device {devices} {all}{more}"))
    };
    let gru = " --set policy.kind=gru --set data.window=20 --set kl_coef=0.1 --set hidden=[8,8]";
    for (name, more) in [("mlp", ""), ("gru", gru)] {
        // Each rank streams its own half, which is larger than a MiB.
        let streamed = format!("{more} --set data.resident_mb=1 --set data.batch_size=256");
        let alone = fit(&format!("{name}-1"), "cpu", more);
        for (way, more) in [("resident", more), ("streamed", &streamed)] {
            let dir = format!("{name}-{way}");
            let shared = fit(&dir, "cpu,cpu", more);
            assert_eq!(shared["held_out"], alone["held_out"], "{name}, {way}");
            // The file of the weights tells the settings, which differ.
            let alone = params(folder, &format!("{name}-1"), 6);
            assert!(params(folder, &dir, 6) == alone, "{name}, {way}");
        }
    }
}

#[test]
fn completions_exchanged_between_processes_arrive_intact() {
    let folder = &Scratch::new();
    let one = "--set num_minibatches=1 --set update_epochs=1 --set kl_coef=0";
    report(folder, &shared("fruit", "run", &cpus(4), one));
    for record in records::<IterationRecord>(&folder.join("run")) {
        let communication = record.communication.expect("there are four ranks");
        assert_eq!(communication.num_ranks, 4);
        // 16 features, two layers of 64, 3 actions.
        let params = 16 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3;
        let bound = params as f64 * 4.0 * 2.0 * 3.0 / 4.0;
        assert!(
            (communication.bytes as f64 - bound).abs() <= 16.0,
            "{} instead of {bound}",
            communication.bytes
        );
        assert!(communication.other_bytes <= 4096, "{}", communication.other_bytes);
        assert!(communication.seconds > 0.0 && communication.seconds < record.seconds.total);
        assert!(communication.imbalance >= 0.0);
    }
    let text = fs::read_to_string(folder.join("run/run.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ranks = metadata["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), &metadata["env"], &metadata["seed"]), (4, &"fruit".into(), &1.into()));
    assert_eq!(ranks[3]["shards"][0], ranks[2]["shards"][1], "{metadata}");
    report(folder, &shared("fruit", "alone", "cpu", one));
    let text = fs::read_to_string(folder.join("alone/metrics.jsonl")).unwrap();
    assert!(!text.contains("communication"), "one rank exchanges nothing");
}

/// The parameters in a run's last checkpoint.
pub fn params(folder: &Path, dir: &str, iterations: u32) -> Vec<f32> {
    let file = format!("{dir}/checkpoints/{iterations:08}/weights.safetensors");
    let bytes = fs::read(folder.join(file)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    let values = names.iter().flat_map(|name| {
        let (chunks, _) = tensors.tensor(name).unwrap().data().as_chunks::<4>();
        chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    });
    values.collect()
}

#[test]
#[ignore = "slow: 62 s of CPU time on a software adapter"]
fn several_devices_reach_the_result_of_one() {
    let Some(adapter) = &adapter_name() else { return };
    let folder = &Scratch::new();
    let small = "hidden=[16] num_steps=12 learn_steps=7 num_groups=6 num_minibatches=2 update_epochs=1 eval_every=100";
    let gru = "policy.kind=gru hidden=[8,8] num_steps=8 learn_steps=8 num_groups=64 recall.steps=4";
    let run = |dir: &str, game: &str, devices: &str, settings: &str| {
        let all = "--json --iterations 3 --timeout 600";
        let sets = sets(settings);
        report(folder, &format!("train {game} --run-dir {dir} --device {devices} {all}{sets}"));
        params(folder, dir, 3)
    };
    for (name, game, more) in [("fused", "catch", small), ("gru", "recall", gru)] {
        let one = run(&format!("{name}-one"), game, adapter, more);
        let size = one.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for record in records::<IterationRecord>(&folder.join(format!("{name}-one"))) {
            assert!(record.grad_norm > 1e-4, "{name} learns: {record:?}");
        }
        for devices in [format!("{adapter},{adapter}"), format!("{adapter},cpu")] {
            let shared = run(&format!("{name}-{devices}"), game, &devices, more);
            let off: f64 = one.iter().zip(&shared).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert!(off.sqrt() <= 1e-5 * size, "{name} on {devices}: {}", off.sqrt() / size);
        }
        let metadata =
            fs::read_to_string(folder.join(format!("{name}-{adapter},{adapter}/run.json")))
                .unwrap();
        assert_eq!(metadata.contains("fused"), name == "fused", "{metadata}");
    }
}

#[test]
fn too_many_processes_are_rejected() {
    let folder = Scratch::new();
    let devices = cpus(5);
    let run = |devices: &str| shared("catch", "run", devices, "--set num_shards=4");
    refused(&folder, &run(&devices), &["4 shards, too few for 5 ranks"]);
    refused(&folder, &run("cpu,nonsense"), &["unknown device `nonsense`"]);
    assert!(!folder.join("run").exists(), "nothing is left behind");
}

#[test]
fn one_member_tries_a_run_out() {
    let folder = Scratch::new();
    for what in ["catch", "sort"] {
        let line = format!("train {what} --dry-run --device cpu,cpu");
        refused(&folder, &line, &["--dry-run is for one rank"]);
    }
}

#[test]
fn a_program_without_mpi_is_not_started_several_times() {
    let folder = Scratch::new();
    let mut program = command(&folder, &["train", "catch"]);
    let output = program.env("OMPI_COMM_WORLD_SIZE", "3").output().unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("MPI has started 3 processes, but this program was built"), "{text}");
}

/// The program that speaks MPI.
fn program() -> PathBuf {
    std::env::var_os("GROVE_MPI").expect("GROVE_MPI names a program with the feature `mpi`").into()
}

fn mpirun(folder: &Path, ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(program())
        .current_dir(folder);
    command
}

/// The output of so many processes with these arguments.
pub fn on_ranks(folder: &Path, ranks: usize, line: &str) -> Output {
    mpirun(folder, ranks).args(line.split(' ')).output().expect("mpirun is there")
}

#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn ranks_give_the_same_bytes_as_one_process() {
    let folder = &Scratch::new();
    let demo = ["demo", "fruit", "--player", "planner", "--episodes", "60", "--out", "shown"];
    assert!(grove(folder, &demo).status.success());
    for name in ["fruit", "recall", "fit"] {
        let run = |dir| match name {
            "fit" => format!("fit shown --json --device cpu --iterations 50 --run-dir {dir}"),
            game => shared(game, dir, "cpu", "--iterations 50 --set num_groups=64"),
        };
        for (dir, threads) in [("one", "1"), ("two", "2")] {
            report(folder, &format!("{} --threads {threads}", run(dir)));
        }
        assert_same_runs(folder, "one", "two");
        for (ranks, dir) in [(1, "1-rank"), (2, "2-ranks"), (3, "3-ranks"), (4, "4-ranks")] {
            let output = on_ranks(folder, ranks, &run(dir));
            assert!(output.status.success(), "{}", stderr(&output));
            let ended: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(ended["iteration"], 50, "only the first rank speaks");
            assert_same_runs(folder, "one", dir);
        }
        for dir in ["one", "two", "1-rank", "2-ranks", "3-ranks", "4-ranks"] {
            fs::remove_dir_all(folder.join(dir)).unwrap();
        }
    }
}

/// The processes that a process has started, and those that they have.
fn below(parent: u32) -> Vec<u32> {
    let pgrep = Command::new("pgrep").args(["-P", &parent.to_string()]).output().unwrap();
    let text = String::from_utf8(pgrep.stdout).unwrap();
    let children: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    children.into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

/// The ranks that `mpirun` has started.
fn ranks(mpirun: &Child) -> Vec<u32> {
    let name = program().file_name().unwrap().to_string_lossy().into_owned();
    let is_rank = |process: &u32| {
        let name_of = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        // The system keeps 15 letters of a name.
        name.starts_with(name_of.trim()) && !name_of.trim().is_empty()
    };
    let mut ranks: Vec<u32> = below(mpirun.id()).into_iter().filter(is_rank).collect();
    ranks.sort_unstable();
    ranks
}

fn lines(metrics: &Path) -> usize {
    fs::read_to_string(metrics).map_or(0, |text| text.lines().count())
}

/// Settings of a run that three ranks can share, and end as they like.
const MANY: &str = "--set num_groups=64 --set save_every=20";

/// A run of three ranks once it has done so many iterations.
fn started_run(folder: &Path, dir: &str, iterations: usize, more: &str) -> Child {
    let line = shared("fruit", dir, "cpu", &format!("{MANY} {more}"));
    let mut child = mpirun(folder, 3)
        .args(line.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("some iterations", || {
        child.try_wait().unwrap().is_some()
            || lines(&folder.join(dir).join("metrics.jsonl")) >= iterations
    });
    child
}

#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn killing_one_rank_ends_all_and_loses_nothing() {
    let folder = &Scratch::new();
    report(folder, &shared("fruit", "whole", "cpu", &format!("{MANY} --iterations 400")));
    for round in 0..20 {
        let dir = format!("broken-{round}");
        let end = folder.join(&dir).join("checkpoints/00000400");
        // A run that ends before it is killed, on a busy machine, is started again.
        wait_for("a run that is killed before its end", || {
            let _ = fs::remove_dir_all(folder.join(&dir));
            // Any moment: after some iterations and a bit.
            let child = started_run(folder, &dir, 21 + round * 7 % 40, "--iterations 400");
            sleep(Duration::from_micros((round * 977 % 7000) as u64));
            if let Some(rank) = ranks(&child).get(round % 3) {
                let _ = Command::new("kill").args(["-KILL", &rank.to_string()]).status();
            }
            let output = child.wait_with_output().unwrap();
            let killed = !end.exists();
            if killed {
                let text = stderr(&output);
                assert!(!output.status.success());
                assert!(text.contains(&format!("rank {}", round % 3)), "{text}");
            }
            killed
        });
        let resume = ["train", "--resume", "--run-dir", &dir, "--device", "cpu", "--json"];
        assert_eq!(json(folder, &resume)["iteration"], 400, "round {round}");
        let last = |dir: &str| folder.join(dir).join("checkpoints/00000400");
        assert_same_files(&last("whole"), &last(&dir));
        fs::remove_dir_all(folder.join(&dir)).unwrap();
    }
}

#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn a_stopped_rank_is_named() {
    let folder = Scratch::new();
    for stopped in [0, 2] {
        let dir = format!("stopped-{stopped}");
        let child = started_run(&folder, &dir, 3, "--timeout 2 --iterations 1000000");
        signal(ranks(&child)[stopped], "-STOP");
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let sentence = format!("rank {stopped} has not answered for 2 s");
        assert_eq!(stderr(&output).matches(&sentence).count(), 1, "{}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn ctrl_c_saves_the_run_of_all_ranks() {
    crate::support::hear_ctrl_c();
    let folder = &Scratch::new();
    let child = started_run(folder, "run", 5, "--iterations 1000000");
    signal(child.id(), "-INT");
    child.wait_with_output().unwrap();
    let done = lines(&folder.join("run/metrics.jsonl"));
    assert!(done >= 5, "{done}");
    let saved = folder.join(format!("run/checkpoints/{done:08}"));
    assert!(saved.is_dir(), "the iteration under way is finished and saved");
}

#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn differing_ranks_are_rejected_by_name() {
    let folder = &Scratch::new();
    let seeds = [1, 2].map(|seed| shared("catch", "run", "cpu", &format!("--seed {seed}")));
    let program = program();
    let parts = seeds.map(|arguments| format!("-n 1 {} {arguments}", program.display()));
    let words = format!("--allow-run-as-root --oversubscribe {}", parts.join(" : "));
    let output =
        Command::new("mpirun").args(words.split(' ')).current_dir(folder).output().unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(
        text.contains("rank 1 has a different setting from rank 0: seed = 2 instead of seed = 1"),
        "{text}"
    );
    assert!(!folder.join("run").exists());
    // A failure at the first rank alone ends all ranks.
    fs::create_dir(folder.join("taken")).unwrap();
    fs::write(folder.join("taken/other"), "").unwrap();
    let output = on_ranks(folder, 3, &train("catch", "taken", &[]).join(" "));
    assert!(!output.status.success());
    assert_eq!(stderr(&output).matches("the folder taken is not empty").count(), 1);
    // The same folder has other demonstrations on another machine.
    for (dir, episodes) in [("shown", "60"), ("others", "61")] {
        let demo = ["demo", "fruit", "--player", "planner", "--episodes", episodes, "--out", dir];
        assert!(grove(folder, &demo).status.success());
    }
    let fit = format!("{} fit shown --run-dir run --device cpu", program.display());
    let elsewhere = format!("mount --bind others shown && exec {fit}");
    let words = format!("--allow-run-as-root --oversubscribe -n 1 {fit} : -n 1 unshare -m sh -c");
    let output = Command::new("mpirun")
        .args(words.split(' '))
        .arg(&elsewhere)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("rank 1 has a different dataset from rank 0:"), "{text}");
    assert!(!folder.join("run").exists());
}
