//! Runs that continue from a checkpoint alone, also where their data and models have moved.

use crate::support::{
    self, Scratch, assert_same_files, grove, json, refused, report, sets, stderr,
};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Trains a tiny language model for so many iterations.
fn train(folder: &Path, run: &str, iterations: &str, more: &str) {
    let settings = "sort.length=2 fit.iterations=1 num_prompts=2 group_size=2 save_every=1 eval_every=1 \
        eval_episodes=2";
    let train = format!("train sort --run-dir {run} --device cpu --json --iterations {iterations}");
    report(folder, &format!("{train} {more}{}", sets(settings)));
}

const TINY: &str = "--model tiny --set hidden_size=16 --set num_layers=1";

/// Checks that two runs in a folder have saved the same.
fn assert_same_runs(folder: &Path, expected: &str, found: &str) {
    for part in ["checkpoints", "best", "model"] {
        let [expected, found] = [expected, found].map(|run| folder.join(run).join(part));
        assert_same_files(&expected, &found);
    }
}

fn copy(folder: &Path, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_language_model_continues_from_its_checkpoint_alone() {
    let folder = &Scratch::new();
    train(folder, "half", "2", TINY);
    train(folder, "other", "1", TINY);
    let runs = ["undisturbed", "missing", "torn", "replaced"];
    runs.iter().for_each(|run| copy(folder, "half", run));
    fs::remove_dir_all(folder.join("missing/model")).unwrap();
    fs::write(folder.join("torn/model/model.safetensors"), "torn").unwrap();
    fs::remove_file(folder.join("torn/model/tokenizer.json")).unwrap();
    fs::remove_dir_all(folder.join("replaced/model")).unwrap();
    copy(folder, "other/model", "replaced/model");
    for run in runs {
        json(folder, &["train", "--resume", "--run-dir", run, "--iterations", "4", "--json"]);
        assert_same_runs(folder, "undisturbed", run);
    }
}

#[test]
fn a_language_model_killed_in_its_final_evaluation_is_completed() {
    let folder = &Scratch::new();
    train(folder, "whole", "2", TINY);
    copy(folder, "whole", "killed");
    fs::remove_file(folder.join("killed/model/README.md")).unwrap();
    fs::write(folder.join("killed/model/model.safetensors"), "the last iteration's").unwrap();
    let resume = "train --resume --run-dir killed --json";
    refused(folder, &format!("{resume} --iterations 1"), &["has done 2 iterations already"]);
    let ended = report(folder, resume);
    assert_eq!((&ended["iteration"], &ended["interrupted"]), (&2.into(), &false.into()));
    assert!(ended["mean_score"].is_number(), "{ended}");
    assert_same_runs(folder, "whole", "killed");
    refused(folder, resume, &["has finished all 2 iterations"]);
}

#[test]
fn moments_continue_in_another_precision() {
    let folder = &Scratch::new();
    train(folder, "half", "2", TINY);
    let resume = |from: &str, run: &str, more: &str| {
        copy(folder, from, run);
        report(folder, &format!("train --resume --run-dir {run} --json --iterations {more}"));
    };
    resume("half", "unchanged", "4");
    resume("half", "same", "4 --set moments=f32");
    resume("half", "less", "4 --set optimizer.moments=8bit");
    assert_same_runs(folder, "unchanged", "same");
    let read = |run: &str, name: &str| {
        let checkpoints = fs::read_dir(folder.join(run).join("checkpoints")).unwrap();
        let last = checkpoints.map(|entry| entry.unwrap().path()).max().unwrap();
        fs::read(last.join(name)).unwrap()
    };
    let [whole, less] = ["unchanged", "less"].map(|run| read(run, "second_moment.safetensors"));
    assert!(less.len() * 2 < whole.len(), "{} and {} bytes", less.len(), whole.len());
    assert!(read("less", "weights.safetensors") != read("unchanged", "weights.safetensors"));
    // The steps before the change count, so that the moments are those of all steps.
    let steps = |run: &str| {
        let state: serde_json::Value = serde_json::from_slice(&read(run, "state.json")).unwrap();
        state["optimizer_steps"].as_u64().unwrap()
    };
    assert!(steps("unchanged") > 2 && steps("less") == steps("unchanged"));
    // The changed setting is kept, and can be changed back.
    resume("less", "still", "5");
    resume("less", "back", "5 --set moments=f32");
    let [still, back] = ["still", "back"].map(|run| read(run, "second_moment.safetensors"));
    assert!(still.len() == less.len() && back.len() == whole.len());
}

#[cfg(unix)]
#[test]
fn links_in_the_place_of_a_runs_folders_are_rejected() {
    let folder = &Scratch::new();
    train(folder, "other", "1", "--model tiny --set hidden_size=16");
    for part in ["checkpoints", "best", "model"] {
        copy(folder, "other", "run");
        fs::remove_dir_all(folder.join("run").join(part)).unwrap();
        std::os::unix::fs::symlink(folder.join("other").join(part), folder.join("run").join(part))
            .unwrap();
        let said = format!("run/{part} is a symbolic link");
        for line in ["train --resume --run-dir run --iterations 2", "eval run"] {
            refused(folder, line, &[&said]);
        }
        fs::remove_dir_all(folder.join("run")).unwrap();
    }
    // Numbered checkpoints and leftovers that are links to another run's lose nothing there.
    copy(folder, "other", "run");
    for name in [".00000001.tmp", "00000000"] {
        let link = folder.join("run/checkpoints").join(name);
        std::os::unix::fs::symlink(folder.join("other/best"), &link).unwrap();
        let resume = ["train", "--resume", "--run-dir", "run", "--iterations", "9"];
        let said = stderr(&grove(folder, &resume));
        assert!(said.contains(&format!("{name} is a link")), "{said}");
        fs::remove_file(link).unwrap();
    }
    assert!(folder.join("other/best/weights.safetensors").exists());
}

#[test]
fn adapters_continue_with_their_model_at_another_place() {
    let folder = &Scratch::new();
    train(folder, "base", "1", TINY);
    train(folder, "other", "1", &format!("{TINY} --seed 5"));
    copy(folder, "base/model", "place");
    train(folder, "half", "2", "--model place --set lora.r=2");
    copy(folder, "half", "moved");
    let resume = |run| format!("train --resume --iterations 3 --json --run-dir {run}");
    report(folder, &resume("half"));
    fs::rename(folder.join("place"), folder.join("elsewhere")).unwrap();
    refused(folder, &resume("moved"), &["there is no model in", "--model PATH"]);
    let another = "is not the one that the run's adapters are for";
    let said = refused(folder, &resume("moved --model other/model"), &[another]);
    assert_eq!(said.split_whitespace().filter(|word| is_digest(word)).count(), 2, "{said}");
    report(folder, &resume("moved --model elsewhere"));
    for part in ["checkpoints", "best"] {
        let [expected, found] = ["half", "moved"].map(|run| folder.join(run).join(part));
        // The place of the model is in another section.
        for name in ["weights.safetensors", "first_moment.safetensors", "state.json"] {
            let newest = |folder: &Path| match part {
                "best" => folder.join(name),
                _ => folder.join("00000003").join(name),
            };
            assert!(fs::read(newest(&expected)).unwrap() == fs::read(newest(&found)).unwrap());
        }
    }
    let eval = "eval moved --episodes 2 --k 1 --json --model";
    report(folder, &format!("{eval} elsewhere"));
    refused(folder, &format!("{eval} other/model"), &[another]);
    let full = "eval base --episodes 2 --model elsewhere";
    refused(folder, full, &["--model elsewhere is not needed"]);
    // Another model is in the place of the base model, or the same weights with another configuration.
    copy(folder, "other/model", "place");
    let check = |expected: &str| {
        for line in [
            "generate half 213>",
            "generate half/model 213>",
            "export half --merge",
            "train sort --from half --iterations 1",
            "eval half",
        ] {
            refused(folder, line, &[expected, "--model PATH"]);
        }
    };
    check(another);
    fs::remove_dir_all(folder.join("place")).unwrap();
    copy(folder, "elsewhere", "place");
    let config = folder.join("place/config.json");
    let text = fs::read_to_string(&config).unwrap();
    let changed = text.replacen("\"rms_norm_eps\": ", "\"rms_norm_eps\": 0.", 1);
    assert_ne!(changed, text);
    fs::write(&config, changed).unwrap();
    check("differs from that of the model that the run's adapters are for");
}

/// Whether a word is the beginning of a SHA-256.
fn is_digest(word: &str) -> bool {
    let word = word.trim_matches(['(', ')', ',', ';', '.']);
    word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn a_run_of_a_dataset_continues_with_it_at_another_place() {
    let folder = &Scratch::new();
    for (seed, out) in [("1", "shown"), ("2", "other")] {
        let demo = "demo cartpole --player random --episodes 12 --json";
        report(folder, &format!("{demo} --out {out} --seed {seed}"));
    }
    let settings = "num_minibatches=1 data.batch_size=4 eval_episodes=4 validation=0.25";
    let fit = "fit shown --device cpu --json --iterations 2 --run-dir half";
    report(folder, &format!("{fit}{}", sets(settings)));
    copy(folder, "half", "moved");
    let resume = |run| format!("train --resume --iterations 3 --json --run-dir {run}");
    report(folder, &resume("half"));
    fs::rename(folder.join("shown"), folder.join("elsewhere")).unwrap();
    refused(folder, &resume("moved"), &["pass its new location with --data DIR"]);
    let said =
        refused(folder, &resume("moved --data other"), &["is not the run's, by its SHA-256"]);
    assert_eq!(said.split_whitespace().filter(|word| is_digest(word)).count(), 2, "{said}");
    report(folder, &resume("moved --data elsewhere"));
    for name in ["first_moment.safetensors", "state.json"] {
        let newest = |run: &str| folder.join(run).join("checkpoints/00000003").join(name);
        assert!(fs::read(newest("half")).unwrap() == fs::read(newest("moved")).unwrap(), "{name}");
    }
}

#[test]
fn a_folder_without_a_run_does_not_hide_the_runs_of_its_name() {
    let folder = &Scratch::new();
    json(folder, &support::train("catch", "runs/catch-1", &["--iterations", "1"]));
    fs::create_dir(folder.join("catch")).unwrap();
    let report = json(folder, &["eval", "catch", "--episodes", "8", "--json"]);
    assert_eq!(report["run"], "runs/catch-1");
    let more = ["train", "--resume", "catch", "--iterations", "2", "--json"];
    assert_eq!(json(folder, &more)["iteration"], 2);
}
