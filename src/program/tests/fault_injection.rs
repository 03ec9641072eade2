//! Fault injection: a run that fails at any change of a file resumes to the same bytes.

use crate::checkpoint::{self, Checkpoint};
use crate::disk::faults::{Fault, with_fault};
use crate::env::CartPole;
use crate::parallel::Team;
use crate::program::args::DemoArgs;
use crate::program::models::Models;
use crate::program::training_data::TrainingData;
use crate::program::{demo, output};
use crate::run::{
    GameRun, IterationReport, LanguageRun, Run, RunError, RunFiles, RunFolder, RunObserver, drive,
};
use crate::settings::LrSchedule;
use crate::task;
use crate::trainer::text::{
    LanguageConfig, LanguageTrainer, TINY, join_language_settings, load_language_model,
};
use crate::trainer::{Trainer, new_settings};
use burn::tensor::Device;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A constructor of a run with this number of iterations, new or from a checkpoint.
pub(super) type CreateRun<'a> = &'a dyn Fn(u32, Option<&Checkpoint>) -> Box<dyn Run>;

/// The files of a run by name, and the iterations of its records.
#[derive(Debug, PartialEq)]
pub(super) struct RunContent {
    files: Vec<(PathBuf, Vec<u8>)>,
    iterations: Vec<u64>,
}

pub(super) struct SilentObserver;

impl RunObserver for SilentObserver {
    fn wants_to_stop(&mut self) -> bool {
        false
    }

    fn on_iteration(&mut self, _report: &IterationReport) {}

    fn on_warning(&mut self, _warning: &str) {}
}

/// Trains a new run.
pub(super) fn train(create: CreateRun, iterations: u32, path: &Path) -> Result<(), RunError> {
    let mut run = create(iterations, None);
    let (files, _lock) = RunFiles::create(Some(path.to_path_buf()), "run", &*run, "")?;
    finish(&mut *run, files)
}

/// Resumes a run from its last checkpoint, if it has iterations left or its last one is not saved.
pub(super) fn resume(create: CreateRun, iterations: u32, path: &Path) -> Result<(), RunError> {
    let folder = RunFolder::find(path)?;
    let lock = folder.lock()?;
    let mut run = create(iterations, Some(&folder.load_latest()?.checkpoint));
    let trainer = run.trainer();
    let has_ended =
        trainer.schedule().end_reason(trainer.iterations_done(), trainer.best()).is_some();
    if has_ended && folder.has_checkpoint(trainer.iterations_done()) {
        return Ok(());
    }
    let files = RunFiles::resume(&lock, &mut *run, "")?.files;
    finish(&mut *run, files)
}

fn finish(run: &mut dyn Run, mut files: RunFiles) -> Result<(), RunError> {
    drive(run, Some(&mut files), &mut SilentObserver).map(drop)
}

/// Reads what a run must have after any fault. Left out are the times in its records, the export of a language model,
/// which comes after its last checkpoint, and hidden files, which the next save removes.
pub(super) fn read_content(run: &Path) -> RunContent {
    let (mut files, mut folders) = (Vec::new(), vec![run.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(run).unwrap().to_path_buf();
            let text = name.to_string_lossy().into_owned();
            let is_hidden = text.starts_with('.') || text.contains("/.");
            if is_hidden || ["model", "metrics.jsonl"].contains(&text.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((name, fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    let records = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let iteration = |line| serde_json::from_str::<Value>(line).unwrap()["iteration"].as_u64();
    let iterations = records.lines().map(|line| iteration(line).unwrap()).collect();
    RunContent { files, iterations }
}

/// Whether there is a whole checkpoint.
pub(super) fn has_checkpoint(run: &Path) -> bool {
    let all = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let all = all.map(|entry| entry.path()).chain([run.join("best")]);
    // Hidden ones have not taken their place yet.
    let is_hidden =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut all = all.filter(|path| !is_hidden(path));
    all.any(|folder| checkpoint::load(&folder).is_ok())
}

/// Resumes a run on a disk without faults, and checks its files. A removal that failed leaves older checkpoints, which
/// the next save removes.
pub(super) fn assert_continues(create: CreateRun, run: &Path, expected: &RunContent) {
    with_fault(Fault::Nothing, || resume(create, 4, run)).0.unwrap();
    assert_holds(run, expected);
}

/// Checks that a run has the expected files, and perhaps others.
pub(super) fn assert_holds(run: &Path, expected: &RunContent) {
    let found = read_content(run);
    assert_eq!(found.iterations, expected.iterations);
    let missing = expected.files.iter().find(|file| !found.files.contains(file));
    assert!(missing.is_none(), "{:?}", missing.map(|(name, _)| name));
}

/// A folder in memory, where the system has some: the tests below change tens of thousands of files.
fn folder_in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

/// Faults of both kinds at each of this many changes.
fn faults(changes: usize) -> impl Iterator<Item = Fault> {
    (0..changes).flat_map(|at| [Fault::Once(at), Fault::Stop(at)])
}

/// Injects each fault into a run of four iterations, and into one that resumes after two.
fn meet_all_faults(create: CreateRun) {
    output::set_muted(true);
    let temp_dir = folder_in_memory();
    let [whole, half, run] = ["whole", "half", "run"].map(|name| temp_dir.path().join(name));
    let (done, changes) = with_fault(Fault::Nothing, || train(create, 4, &whole));
    done.unwrap();
    let expected = read_content(&whole);
    assert_eq!(expected.iterations, [1, 2, 3, 4]);
    assert!(changes > 60, "{changes}");
    let mut resumed = 0;
    for fault in faults(changes) {
        let _ = with_fault(fault, || train(create, 4, &run));
        if has_checkpoint(&run) {
            assert_continues(create, &run, &expected);
            resumed += 1;
        } else {
            // Before its first checkpoint there is nothing to continue, and the run begins again in its folder.
            assert!(resume(create, 4, &run).is_err(), "{fault:?}");
            with_fault(Fault::Nothing, || train(create, 4, &run)).0.unwrap();
            assert_holds(&run, &expected);
        }
        let _ = fs::remove_dir_all(&run);
    }
    assert!(resumed > changes, "{resumed} of {changes}");

    with_fault(Fault::Nothing, || train(create, 2, &half)).0.unwrap();
    copy_folder(&half, &run);
    let (done, changes) = with_fault(Fault::Nothing, || resume(create, 4, &run));
    done.unwrap();
    assert!(changes > 30, "{changes}");
    // The checkpoints from before the resumption have other settings: the number of iterations.
    let expected = read_content(&run);
    fs::remove_dir_all(&run).unwrap();
    for fault in faults(changes) {
        copy_folder(&half, &run);
        let _ = with_fault(fault, || resume(create, 4, &run));
        assert_continues(create, &run, &expected);
        fs::remove_dir_all(&run).unwrap();
    }
}

/// A run of a game, or of demonstrations of it, with these settings.
pub(super) fn create_game_run(
    assignments: &[&str],
    iterations: u32,
    checkpoint: Option<&Checkpoint>,
) -> Box<dyn Run> {
    let assignments: Vec<String> =
        SMALL_RUN_SETTINGS.iter().chain(assignments).map(ToString::to_string).collect();
    let (game, mut config) = new_settings::<CartPole>(&toml::Table::new(), &assignments).unwrap();
    config.iterations = iterations;
    let data = TrainingData::open_new(game, &mut config).unwrap();
    let demonstrations = data.map(|data| data.demonstrations);
    let device = Device::flex();
    let network = Models::default().new_network(game, &config, &device);
    let trainer =
        Trainer::with_team(game, network, &config, &device, demonstrations, Team::alone()).unwrap();
    let trainer = match checkpoint {
        Some(checkpoint) => trainer.with_checkpoint(checkpoint).unwrap(),
        None => trainer,
    };
    Box::new(GameRun::new(trainer, 1, Vec::new()))
}

/// Settings of a game's small run, whose learning rate does not depend on the number of iterations.
const SMALL_RUN_SETTINGS: [&str; 11] = [
    "rollout.num_groups=4",
    "rollout.group_size=2",
    "rollout.num_steps=4",
    "rollout.learn_steps=2",
    "update.num_minibatches=1",
    "optimizer.lr_scheduler_type=constant",
    "policy.hidden=[4]",
    "checkpoint.save_every=1",
    "checkpoint.eval_every=2",
    "checkpoint.eval_episodes=2",
    "checkpoint.keep=2",
];

#[test]
fn a_game_meets_a_fault_anywhere_and_continues_to_the_same_bytes() {
    meet_all_faults(&|iterations, checkpoint| create_game_run(&[], iterations, checkpoint));
}

#[test]
fn a_run_of_demonstrations_meets_a_fault_anywhere_and_continues_to_the_same_bytes() {
    output::set_muted(true);
    let temp_dir = TempDir::new().unwrap();
    let out = temp_dir.path().join("data");
    let args = DemoArgs {
        game: None,
        player: "random".into(),
        episodes: 8,
        out: out.clone(),
        seed: 1,
        set: Vec::new(),
        json: true,
    };
    demo::demonstrate::<CartPole>(&Models::default(), &args).unwrap();
    let path = format!("data.path={}", out.display());
    let assignments = [
        &path[..],
        "loss.loss_type=nll",
        "loss.entropy_coef=0",
        "loss.entropy_coef_final=0",
        "loss.kl_coef=0",
        "update.update_epochs=1",
        "data.window=1",
        "data.batch_size=4",
        "data.validation=0.25",
    ];
    meet_all_faults(&|iterations, checkpoint| {
        create_game_run(&assignments, iterations, checkpoint)
    });
}

/// A run of a small language model for `sort`.
pub(super) fn create_language_run(
    iterations: u32,
    checkpoint: Option<&Checkpoint>,
) -> Box<dyn Run> {
    let sort = task::find("sort").unwrap();
    let mut task_settings = (sort.defaults)();
    task_settings.insert("length".to_string(), 2.into());
    let mut config = LanguageConfig::for_model(TINY);
    let tiny = &mut config.model.tiny;
    (tiny.hidden_size, tiny.num_layers, tiny.intermediate_size) = (8, 1, 8);
    (tiny.num_heads, tiny.num_kv_heads) = (1, 1);
    (config.generation.num_prompts, config.generation.group_size) = (2, 2);
    (config.checkpoint.save_every, config.checkpoint.eval_every) = (1, 2);
    (config.checkpoint.eval_episodes, config.checkpoint.keep) = (2, 2);
    (config.iterations, config.fit.iterations) = (iterations, 1);
    config.optimizer.lr_scheduler_type = LrSchedule::Constant;
    let settings = join_language_settings("sort", &task_settings, &config);
    let task = (sort.open)(task_settings).unwrap();
    let model = checkpoint.map(|checkpoint| load_language_model(checkpoint, None).unwrap());
    let trainer = LanguageTrainer::for_task(task, config, model).unwrap();
    let trainer = trainer.with_settings(settings);
    Box::new(LanguageRun::new(match checkpoint {
        Some(checkpoint) => trainer.with_checkpoint(checkpoint).unwrap(),
        None => trainer,
    }))
}

#[test]
fn a_language_model_meets_a_fault_anywhere_and_continues_to_the_same_bytes() {
    meet_all_faults(&create_language_run);
}
