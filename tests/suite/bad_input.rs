//! Error messages for bad input: one clear line, and nothing is lost.

use crate::support::{Scratch, json, records, refused, rewrite, train};
use std::fs;
use std::path::Path;

#[test]
fn bad_input_is_a_one_line_error() {
    let folder = &Scratch::new();
    fs::write(folder.join("unknown.toml"), "learning_rat = 1e-3\n").unwrap();
    fs::write(folder.join("section.toml"), "[optimizer]\nlearning_rte = 1e-3\n").unwrap();
    fs::write(folder.join("broken.toml"), "seed = = 3\n").unwrap();
    fs::write(folder.join("other.toml"), "env = \"catch\"\n").unwrap();
    fs::create_dir(folder.join("taken")).unwrap();
    fs::write(folder.join("taken/notes.txt"), "mine").unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("train --config unknown.toml", &["learning_rat", "optimizer.learning_rate"]),
        ("train --config section.toml", &["learning_rte", "optimizer.learning_rate"]),
        ("train --config broken.toml", &["broken.toml", "not valid TOML", "line 1"]),
        ("train --config missing.toml", &["missing.toml", "cannot read"]),
        ("train fruit --config other.toml", &["catch", "fruit"]),
        ("train --set num_group=3", &["num_group", "rollout.num_groups"]),
        ("train --set num_groups", &["`num_groups` has no value; write key=value"]),
        ("train --set =3", &["`=3` names no setting; write key=value"]),
        ("train --set num_groups=", &["`rollout.num_groups` has no value, but must be"]),
        (
            "train catch --set max_completion_length=3",
            &["is a setting of language models: this run trains catch"],
        ),
        ("train catch --output-dir x", &["--run-dir"]),
        ("fit fruit", &["fruit is a game", "`grove demo fruit --player NAME --out DIR`"]),
        ("train --set num_groups=-1", &["rollout.num_groups", "-1", "whole number, 1 to 2^30"]),
        ("train --set num_groups=2.5", &["rollout.num_groups", "whole number"]),
        ("train --set num_groups=many", &["rollout.num_groups", "whole number"]),
        ("train --set num_groups=99999999999", &["2^30"]),
        ("train --set group_size=1", &["rollout.group_size is 1", "2 to 2^30"]),
        ("train --set num_generations=1", &["rollout.group_size is 1"]),
        ("train --set num_steps=0", &["rollout.num_steps is 0", "1 to 2^30"]),
        ("train --set learn_steps=33", &["rollout.learn_steps is 33", "32"]),
        ("train catch --resume runs/catch-1", &["`grove train --resume RUN`"]),
        ("train --iterations 0", &["--iterations", "must be 1 to 4294967295"]),
        ("train --set basket=21", &["fruit.basket is 21", "must be 1 to 20 (fruit.width)"]),
        ("train --set fruit.width=2", &["fruit.width is 2", "3 to 255"]),
        ("train catch --set rows=1", &["catch.rows is 1"]),
        ("train catch --set rows=4294967296", &["catch.rows is 4294967296, but must"]),
        ("train catch --set observation=pixels", &["catch.observation", "board"]),
        ("train catch --set observation=board --set rows=256", &["1280"]),
        ("train catch --set fruit.width=9", &["another game", "this run trains catch"]),
        ("train catch --lr -1e-3", &["optimizer.learning_rate is -0.001"]),
        ("train catch --num-envs 9", &["--num-envs", "--set rollout.num_groups=VALUE"]),
        ("train fruit --model tiny", &["`fruit` is a game", "policy.kind"]),
        ("train fruit --task-data x", &["`fruit` is a game, and --task-data has"]),
        ("train fruit --verifier cat", &["--verifier", "language models"]),
        ("train sort --model tiny --from x", &["--from", "--model"]),
        ("train --seeds 1,2,1", &["the seed 1 is listed twice"]),
        ("bench --model tiny", &["--model needs a task"]),
        ("bench catch --score nan", &["--score", "must be a finite number"]),
        // A blank at the end is followed by an empty word.
        ("generate x --stop ", &["--stop"]),
        ("generate x --temperature 1e-38", &["must be 0, or 1e-6 or more"]),
        ("generate x --top-p 0", &["must be above 0, at most 1"]),
        ("generate x --min-p 1", &["must be 0 to below 1"]),
        ("train --task-data x --verifier ", &["--verifier <CMD>"]),
        ("train sort --model gpt2", &["no file or folder gpt2", "not downloaded"]),
        ("train --set loss_type=ppo", &["`ppo` must be one of: grpo"]),
        ("train --set activation=relo", &["policy.activation", "relo", "relu"]),
        ("train --set hidden=[]", &["policy.hidden", "1 to 8 numbers"]),
        ("train --set hidden=[8,8,8,8,8,8,8,8,8]", &["policy.hidden", "1 to 8 numbers"]),
        ("train --set learning_rate=-1", &["optimizer.learning_rate is -1", "0 or more"]),
        ("train --set learning_rate=nan", &["optimizer.learning_rate"]),
        ("train --set moments=bf16", &["optimizer.moments is bf16", "f32 where the run"]),
        ("train --set moments=8bit", &["optimizer.moments is 8bit", "f32 where the run"]),
        ("train --set moments=4bit", &["`4bit` must be one of: f32, bf16, 8bit"]),
        ("train --set discount=1.5", &["advantage.discount is 1.5"]),
        ("train --set dual_clip=1.1", &["loss.dual_clip is 1.1"]),
        ("train --set num_minibatches=7", &["update.num_minibatches is 7", "divisor"]),
        ("train --engine fast", &["engine", "auto, fused, general"]),
        ("generate m --precision tf32", &["`tf32` must be one of: f32, bf16\n"]),
        ("train --set engine=fast", &["engine", "fused"]),
        ("train chess", &["chess", &grove::env::NAMES.join(", ")]),
        ("train --seed -1", &["--seed", "-1", "a whole number from 0 to 9223372036854775807"]),
        ("check --seed 4294967296", &["a whole number from 0 to 4294967295"]),
        ("train srot", &["unknown game `srot`", "a language model's task", "mean `sort`?"]),
        ("verify srot --verifier cat", &["unknown task `srot`"]),
        (
            "train ocaml --model tiny --set ocaml.memory_mb=-1",
            &["ocaml.memory_mb is -1, but must be 128 to 16384"],
        ),
        ("settings fruti", &["unknown game `fruti`", "mean `fruit`?"]),
        ("train CartPole-v1", &["unknown game `CartPole-v1`", "mean `cartpole`?"]),
        ("train LunarLander-v3", &["unknown game `LunarLander-v3`", "grove_rl.train"]),
        ("train --device gpu", &["unknown device `gpu`", "auto", "wgpu"]),
        ("train --device wgpu:x", &["`wgpu:x` must be a whole number", "`wgpu:0`"]),
        ("train --device cpu,", &["`cpu,` has an empty name", "comma"]),
        ("train --device cuda", &["--features cuda"]),
        ("train --device wgpu:77", &["wgpu:77", "available: cpu"]),
        ("train --run-dir taken", &["taken is not empty and holds no run", "--run-dir"]),
        ("train --resume --run-dir nowhere", &["nowhere"]),
        ("train --resume", &["there is no run in runs", "name a run directory"]),
        ("train fruit --resume", &["no run of fruit in runs"]),
        ("train --resume --run-dir taken", &["taken"]),
        ("train --resume --set seed=2", &["there is no run in runs"]),
        ("eval nowhere", &["no such run: nowhere; `grove train` creates runs in"]),
        ("runs", &["no such run: runs"]),
        ("plot runs", &["no such run: runs"]),
        ("eval taken", &["taken"]),
        ("eval taken --episodes 0", &["--episodes", "0"]),
        ("bench --num-envs 100", &["--num-envs is 100", "multiple", "--group-size (8)"]),
        ("bench --num-envs 0", &["rollout.num_groups is 0"]),
        ("bench --learn-steps 101", &["rollout.learn_steps is 101", "100"]),
        ("bench --score-repeats 2", &["--score"]),
        ("bench --set hidden=[]", &["policy.hidden", "1 to 8 numbers"]),
        ("bench sort --hidden 8", &["--hidden is for games", "generation.num_prompts"]),
    ];
    for (line, words) in cases {
        refused(folder, line, words);
    }
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "bad input leaves nothing behind: {left:?}");
}

#[test]
fn a_checkpoint_of_another_game_or_shape_is_rejected() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "2"]));
    for (line, words) in [
        (
            "train --resume --run-dir run --set moments=bf16",
            "optimizer.moments is bf16, but must be f32 where the run plays games",
        ),
        ("eval run --k 2", "run is of a game"),
        ("export run --outtype f16", "--outtype"),
        (
            "train --resume --run-dir run --set catch.rows=12 --iterations 3",
            "`catch.rows` cannot be changed",
        ),
        ("train fruit --resume --run-dir run", "`catch`, not `fruit`"),
    ] {
        refused(folder, line, &[words]);
    }

    // Settings of a wider network with the weights of a narrower one, with valid checksums.
    let path = folder.join("run/checkpoints/00000002");
    rewrite(&path, "config.toml", |config| {
        let wider = String::from_utf8(config.clone()).unwrap().replace("64, 64", "64, 65");
        assert_ne!(wider.as_bytes(), config);
        *config = wider.replace("iterations = 2", "iterations = 4").into_bytes();
    });
    let resume = "train --resume --run-dir run --device cpu";
    refused(folder, resume, &["does not fit the network", "layers.1.weight"]);
}

#[test]
fn a_non_finite_loss_stops_the_run_and_keeps_the_last_checkpoint() {
    let folder = &Scratch::new();
    let more = ["--iterations", "3", "--set", "save_every=1"];
    json(folder, &train("cartpole", "run", &more));

    // Resume with a learning rate that makes the weights overflow.
    let store = grove::checkpoint::Store::new(folder.join("run/checkpoints"));
    let path = folder.join("run/checkpoints/00000003");
    let good = rewrite(&path, "config.toml", |config| {
        let mut table: toml::Table = std::str::from_utf8(config).unwrap().parse().unwrap();
        table["optimizer"]["learning_rate"] = toml::Value::Float(1e30);
        table["iterations"] = toml::Value::Integer(50);
        *config = table.to_string().into_bytes();
    });
    let resume = "train --resume --run-dir run --device cpu";
    refused(folder, resume, &["is not finite in iteration 4, so"]);

    // The earlier checkpoint is intact and the newest, and the failed iteration has no record.
    let latest = store.load_latest().unwrap();
    assert!(latest.skipped_checkpoints.is_empty());
    assert!(latest.checkpoint == good);
    assert_eq!(store.iterations().unwrap(), [1, 2, 3]);
    assert_eq!(records::<serde_json::Value>(&folder.join("run")).len(), 3);
    let evaluation = json(folder, &["eval", "run", "--json"]);
    assert!(evaluation["mean_score"].as_f64().unwrap() > 0.0);
}

/// A file of zeros in most of its length, which takes no room.
fn write_sparse_file(path: &Path, start: &str) {
    fs::write(path, start).unwrap();
    fs::File::options().append(true).open(path).unwrap().set_len(1 << 40).unwrap();
}

#[test]
#[cfg(unix)]
fn pipes_devices_folders_and_huge_files_are_rejected_at_once() {
    let folder = &Scratch::new();
    let pipe = folder.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::create_dir(folder.join("folder")).unwrap();
    write_sparse_file(&folder.join("huge"), "");
    write_sparse_file(&folder.join("long"), "a,b\n");
    let commands = [
        "train --task-data PATH --model tiny",
        "fit PATH --model tiny --dry-run",
        "import PATH --out new",
        "import PATH --label b --window 1 --out new",
        "train --config PATH",
        "sweep PATH",
        "eval PATH",
        "generate PATH hi",
        "train --from PATH",
    ];
    for path in ["pipe", "/dev/zero", "folder", "huge", "long"] {
        for command in commands {
            let line = command.replace("PATH", path);
            let text = refused(folder, &line, &[]);
            assert_eq!(text.trim().lines().count(), 1, "{line}: {text}");
        }
    }
    for name in ["metrics.jsonl", "run.lock"] {
        let run = format!("{name}-run");
        json(folder, &train("catch", &run, &["--iterations", "1"]));
        fs::remove_file(folder.join(&run).join(name)).unwrap();
        fs::rename(&pipe, folder.join(&run).join(name)).unwrap();
        let resume = format!("train --resume --run-dir {run} --iterations 2 --device cpu");
        refused(folder, &resume, &[name]);
        fs::rename(folder.join(&run).join(name), &pipe).unwrap();
    }
}
