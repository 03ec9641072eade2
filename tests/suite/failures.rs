//! Programs whose engine panics: a one-line error, exit status 1, and a run that can be resumed.

use crate::own_game::own;
use crate::support::{Scratch, stderr};
use grove::checkpoint::Store;
use std::path::Path;

const SETTINGS: &str =
    "--set num_groups=8 --set eval_every=5 --set eval_episodes=50 --set save_every=1";

/// Runs what must fail, and gives its last line: the error, with no word of a panic before it.
fn error(folder: &Path, arguments: &str) -> String {
    let output = own(folder, arguments);
    let said = stderr(&output);
    assert!(!output.status.success(), "{arguments}: {said}");
    assert!(!said.contains("panic") && !said.contains("backtrace"), "{arguments}: {said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("gone")).collect();
    assert_eq!(errors.len(), 1, "{arguments}: {said}");
    errors[0].to_string()
}

fn saved(folder: &Path) -> u64 {
    *Store::new(folder.join("run/checkpoints")).iterations().unwrap().last().unwrap()
}

#[test]
fn a_panic_in_an_engine_reports_how_to_resume() {
    for fault in ["Panics", "PanicsUnheard"] {
        let folder = &Scratch::new();
        let train = format!("train faulty --run-dir run --set faulty.fault={fault} {SETTINGS}");
        let said = error(folder, &format!("{train} --device cpu"));
        let done = saved(folder);
        let expected = format!(
            "failed: the device is gone. The run in run is saved up to iteration {done}, from where --resume continues it"
        );
        assert!(said.starts_with("error: ") && said.ends_with(&expected), "{said}");
        error(folder, "train --resume --run-dir run --device cpu");
        assert!(saved(folder) > done, "{fault}");
        // An evaluation fails as a whole.
        let said = error(folder, "eval run --episodes 10000");
        assert_eq!(said, "error: the device is gone");
    }
}

#[test]
fn a_panic_during_another_is_an_error_as_well() {
    let folder = Scratch::new();
    let train = "train faulty --run-dir run --set faulty.fault=PanicsTwice --device cpu";
    let said = error(&folder, &format!("{train} {SETTINGS}"));
    assert!(said.contains("the device is gone"), "{said}");
}

#[test]
fn a_panic_in_one_rank_ends_all_with_one_error() {
    let folder = &Scratch::new();
    let train =
        "train faulty --run-dir run --set faulty.fault=Panics --device cpu,cpu --timeout 600";
    let said = error(folder, &format!("{train} {SETTINGS}"));
    assert!(said.starts_with("error: on cpu: iteration "), "{said}");
    assert!(said.contains("failed: the device is gone"), "{said}");
    assert!(saved(folder) > 0);
}
