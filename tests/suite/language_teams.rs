//! Runs of language models that a team of several ranks shares: the bytes are those of one rank.

use crate::support::{
    HANG, Scratch, TINY_SIZES, Verified, adapter_name, records, refused, report, sets, stderr, tiny,
};
use crate::teams::{assert_same_runs, cpus, on_ranks, params};
use grove::metrics::IterationRecord;
use grove::parallel::{Team, thread_teams};
use grove::task::{Completion, Sort, Task, TaskError};
use grove::trainer::text::LanguageTrainer;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A run of two iterations that imitate and four with rewards, of a tiny model, in a second.
const SMALL: &str =
    "num_prompts=6 group_size=3 fit.iterations=2 eval_every=3 save_every=2 eval_episodes=9";

/// Runs of six iterations.
const SORT: &str = "train sort --model tiny --iterations 6";
const FIT: &str = "fit sums.jsonl --model tiny --iterations 6";

/// 4.9 million parameters.
const LARGE: &str =
    "hidden_size=256 num_layers=5 intermediate_size=1024 sort.length=3 fit.iterations=1";

/// A command with a run directory, devices and settings.
fn line(command: &str, [dir, devices]: [&str; 2], settings: &str) -> String {
    let sets = sets(&format!("{} {SMALL} {settings}", TINY_SIZES.join(" ")));
    format!("{command} --json --run-dir {dir} --device {devices}{sets}")
}

fn assert_same(folder: &Path, a: &str, b: &str) {
    assert_same_runs(folder, a, b);
    let made = |run: &str| fs::read(folder.join(run).join("completions.jsonl")).unwrap();
    assert!(made(a) == made(b), "{a} and {b} have other completions");
}

/// Sums with their answers.
fn sums(folder: &Path) {
    let line = |i: usize| {
        let (a, b) = (i % 7, i / 7);
        format!("{{\"prompt\": \"{a}+{b}=\", \"solution\": \"{}\"}}\n", a + b)
    };
    fs::write(folder.join("sums.jsonl"), (0..49).map(line).collect::<String>()).unwrap();
}

#[test]
fn any_number_of_ranks_gives_the_same_bytes() {
    let folder = &Scratch::new();
    sums(folder);
    let kl = "sort.length=3 kl_coef=0.05 entropy_coef=0.01 resample=1";
    let stopped = "sort.length=3 update_epochs=4 target_kl=1e-3 optimizer.learning_rate=1e-2";
    let steps =
        "sort.length=3 num_minibatches=2 update_epochs=2 top_entropy_quantile=0.5 moments=8bit";
    // Five shards are not the same for all of two to four.
    let adapted = "sort.length=3 lora.r=2 num_shards=5 fit.iterations=0";
    let adapt = "train sort --model kl-1-cpu/model --iterations 6";
    for (name, command, settings, numbers) in [
        ("kl", SORT, kl, [1, 2].as_slice()),
        ("steps", SORT, steps, &[2]),
        ("stopped", SORT, stopped, &[2]),
        ("lora", adapt, adapted, &[2]),
        ("fit", FIT, "fit.iterations=0 num_shards=4", &[2]),
    ] {
        for number in numbers {
            for ranks in 1..=4 {
                let devices = cpus(ranks);
                let dir = format!("{name}-{number}-{devices}");
                let command = format!("{command} --threads {number}");
                report(folder, &line(&command, [&dir, &devices], settings));
                assert_same(folder, &format!("{name}-{}-cpu", numbers[0]), &dir);
            }
        }
    }
}

#[test]
#[ignore = "slow: 15 s of CPU time"]
fn a_large_model_is_shared_where_there_is_memory_for_it() {
    let folder = &Scratch::new();
    let sort = "train sort --model tiny --iterations 3";
    let two = line(sort, ["run", "cpu,cpu"], LARGE);
    refused(folder, &two, &["1 shard, too few for 2 ranks"]);
    let large = &format!("{LARGE} num_shards=3");
    for (others, dir) in ["one", "two", "three"].into_iter().enumerate() {
        report(folder, &line(sort, [dir, &cpus(others + 1)], large));
        assert_same(folder, "one", dir);
    }
    for record in records::<IterationRecord>(&folder.join("three")) {
        let communication = record.communication.unwrap();
        assert!(
            communication.seconds > 0.0 && (0.0..=1.0).contains(&communication.hidden_fraction),
            "{communication:?}"
        );
    }
    // Gradient checkpointing does not change the weights.
    let saving = format!("{large} gradient_checkpointing=true");
    report(folder, &line(sort, ["saving", &cpus(2)], &saving));
    assert!(params(folder, "saving", 3) == params(folder, "one", 3), "other weights");
    // Adapters are learnt layer by layer, too.
    let adapted = &format!("{LARGE} lora.r=2 num_shards=3 fit.iterations=0");
    let adapt = "train sort --model one/model --iterations 3";
    for (dir, devices) in [("adapted", "cpu"), ("adapted-two", "cpu,cpu")] {
        report(folder, &line(adapt, [dir, devices], adapted));
    }
    assert_same(folder, "adapted", "adapted-two");
}

#[test]
fn a_run_resumes_with_another_team() {
    let folder = &Scratch::new();
    let more = "sort.length=3 kl_coef=0.05";
    report(folder, &line(SORT, ["whole", "cpu"], more));
    for (dir, first, then) in [("joined", "cpu,cpu", "cpu"), ("split", "cpu", "cpu,cpu")] {
        report(folder, &line(SORT, [dir, first], more));
        fs::remove_dir_all(folder.join(dir).join("checkpoints/00000006")).unwrap();
        let resume = format!("train --resume --run-dir {dir} --device {then} --json");
        assert_eq!(report(folder, &resume)["iteration"], 6);
        assert_same(folder, "whole", dir);
    }
}

#[test]
fn mismatched_processes_are_rejected() {
    let folder = Scratch::new();
    for (devices, shards, why) in [
        (cpus(7), 0, "6 shards, too few for 7 ranks"),
        (cpus(3), 2, "2 shards, too few for 3 ranks"),
    ] {
        let settings = format!("num_shards={shards}");
        refused(&folder, &line(SORT, ["run", &devices], &settings), &[why]);
    }
    assert!(!folder.join("run").exists(), "nothing is left behind");
}

#[test]
#[ignore = "slow: 15 s of CPU time on a software adapter"]
fn the_cpu_and_a_device_share_a_run() {
    let Some(adapter) = adapter_name() else { return };
    let folder = &Scratch::new();
    let sort = "train sort --model tiny --iterations 4";
    let weights = ["one", "two"].map(|dir| {
        let devices = if dir == "one" { "cpu" } else { &format!("cpu,{adapter}") };
        report(folder, &line(sort, [dir, devices], "sort.length=3"));
        params(folder, dir, 4)
    });
    let [one, two] = weights;
    let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let off = length(&mut one.iter().zip(&two).map(|(a, b)| a - b));
    let off = off / length(&mut one.iter().copied());
    assert!(one.len() == two.len() && off < 1e-4, "off by {off}");
}

/// Results of the iterations of three ranks, by rank; at rank 1 the verifier may fail.
fn train_three_ranks(fails: bool) -> Vec<Result<Vec<IterationRecord>, String>> {
    let mut config = tiny(1);
    (config.iterations, config.fit.iterations) = (3, 1);
    std::thread::scope(|scope| {
        let config = &config;
        let run = |team: Team| {
            let fails = fails && team.rank() == 1;
            let verify = Box::new(move |task: &dyn Task, completions: &[Completion]| match fails {
                true => Err(TaskError::Verifier("it has broken".to_string())),
                false => task.verify(completions),
            });
            let task = Verified { task: Arc::new(Sort::default()), threads: 0, verify };
            let task = Arc::new(task);
            let trainer = LanguageTrainer::for_task_of_team(task, config.clone(), None, team);
            let mut trainer = trainer.unwrap();
            let all = (0..3).map(|_| trainer.iterate());
            all.collect::<Result<_, _>>().map_err(|error| error.to_string())
        };
        let ranks: Vec<_> =
            thread_teams(3, HANG).into_iter().map(|team| scope.spawn(move || run(team))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_verifier_that_fails_in_one_process_ends_the_run() {
    for ended in train_three_ranks(true) {
        let error = ended.unwrap_err();
        assert!(error.starts_with("rank 1 failed:") && error.contains("it has broken"), "{error}");
    }
}

#[test]
fn completions_exchanged_between_processes_arrive_intact() {
    let all = train_three_ranks(false).into_iter().map(Result::unwrap).collect::<Vec<_>>();
    for records in &all {
        for (record, first) in records.iter().zip(&all[0]) {
            let communication = record.communication.expect("there are three ranks");
            assert_eq!(communication.num_ranks, 3);
            assert!(
                communication.bytes > 0
                    && communication.seconds > 0.0
                    && communication.imbalance >= 0.0
            );
            // SFT exchanges no completions between ranks.
            let text = |record: &IterationRecord| record.text.clone().unwrap();
            assert!(text(record).is_sft == (communication.other_bytes < 4096), "{communication:?}");
            // All ranks report the same losses and rewards.
            assert_eq!((record.loss, record.grad_norm), (first.loss, first.grad_norm));
            assert_eq!(text(record).rewards, text(first).rewards);
        }
    }
}

#[test]
#[ignore = "needs mpirun, and a program with the feature `mpi` that GROVE_MPI names"]
fn ranks_give_the_same_bytes_as_one_process() {
    let folder = &Scratch::new();
    sums(folder);
    let large = format!("{LARGE} num_shards=5");
    for (name, command, settings) in [
        ("sort", SORT, "sort.length=3 kl_coef=0.05"),
        ("fit", FIT, "fit.iterations=0"),
        ("large", SORT, &large),
    ] {
        report(folder, &line(command, [&format!("{name}-1"), "cpu"], settings));
        for ranks in [1, 2, 3, 4] {
            let dir = format!("{name}-{ranks}-ranks");
            let output = on_ranks(folder, ranks, &line(command, [&dir, "cpu"], settings));
            assert!(output.status.success(), "{}", stderr(&output));
            let ended: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(ended["iteration"], 6, "only the first rank speaks");
            assert_same(folder, &format!("{name}-1"), &dir);
        }
    }
}
