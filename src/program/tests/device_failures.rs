//! Runs whose device fails: the error names the checkpoint from which the run resumes, and it does.

use super::fault_injection::{
    CreateRun, SilentObserver, assert_continues, assert_holds, create_game_run,
    create_language_run, has_checkpoint, read_content, resume, train,
};
use crate::checkpoint::Checkpoint;
use crate::disk::faults::{Fault, with_fault};
use crate::metrics::IterationRecord;
use crate::rng::{below, draw};
use crate::run::{
    FinalEvaluation, Run, RunError, RunFiles, RunFolder, RunSizes, Stage, Subject, TrainerStatus,
    drive, finish,
};
use crate::text::LanguageModel;
use crate::trainer::Validation;
use crate::trainer::text::CompletionRecord;
use tempfile::TempDir;

/// The work during which a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Iterate,
    Validate,
    Snapshot,
    Model,
    Finish,
}

/// A run whose device fails at an iteration.
struct FailingRun {
    run: Box<dyn Run>,
    work: Work,
    at: u32,
}

impl FailingRun {
    /// Panics if the device is to fail in this work; `iteration` counts the one under way.
    fn panic_if_due(&self, work: Work, iteration: u32) {
        if iteration == self.at && work == self.work {
            panic!(
                "wgpu error: Out of Memory\nCaused by:\n  not enough memory left\nBacktrace:\n  0: main"
            );
        }
    }
}

impl Run for FailingRun {
    fn subject(&self) -> Subject {
        self.run.subject()
    }

    fn seed(&self) -> u64 {
        self.run.seed()
    }

    fn trainer(&self) -> &dyn TrainerStatus {
        self.run.trainer()
    }

    fn stages(&self) -> Vec<Stage> {
        self.run.stages()
    }

    fn sizes(&self) -> RunSizes {
        self.run.sizes()
    }

    fn leak_check_interval(&self) -> u32 {
        self.run.leak_check_interval()
    }

    fn smaller_launches(&self) -> Option<String> {
        Some("--set launch_size=0.25".to_string())
    }

    fn iterate(&mut self) -> Result<(IterationRecord, Vec<CompletionRecord>), RunError> {
        self.panic_if_due(Work::Iterate, self.run.trainer().iterations_done() + 1);
        self.run.iterate()
    }

    fn validate(&mut self) -> Result<Validation, RunError> {
        self.panic_if_due(Work::Validate, self.run.trainer().iterations_done());
        self.run.validate()
    }

    fn snapshot(&self) -> Result<Checkpoint, RunError> {
        self.panic_if_due(Work::Snapshot, self.run.trainer().iterations_done());
        self.run.snapshot()
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RunError> {
        self.run.restore(checkpoint)
    }

    fn evaluate_fresh(&mut self, max_episodes: usize) -> Result<FinalEvaluation, RunError> {
        // The run is at its best policy.
        self.panic_if_due(Work::Finish, self.at);
        self.run.evaluate_fresh(max_episodes)
    }

    fn language_model(&self) -> Option<LanguageModel> {
        self.panic_if_due(Work::Model, self.run.trainer().iterations_done());
        self.run.language_model()
    }
}

/// Trains a new run of four iterations to the end, with its final evaluation.
fn train_to_the_end(run: &mut dyn Run, path: &std::path::Path) -> Result<(), RunError> {
    let (mut files, _lock) = RunFiles::create(Some(path.to_path_buf()), "run", run, "")?;
    drive(run, Some(&mut files), &mut SilentObserver)?;
    let best = files.folder().load_best()?.checkpoint;
    finish(run, Some(&files), best.as_ref()).map(drop)
}

/// Makes a device fail at each iteration and each work of a run, which evaluates every second iteration.
fn fail_everywhere(create: CreateRun, has_language_model: bool) {
    let temp_dir = TempDir::new().unwrap();
    let [whole, path] = ["whole", "run"].map(|name| temp_dir.path().join(name));
    train(create, 4, &whole).unwrap();
    let expected = read_content(&whole);
    let cases = (1..=4)
        .map(|at| (Work::Iterate, at, at - 1))
        .chain((1..=4).map(|at| (Work::Snapshot, at, at - 1)))
        .chain((1..=4).filter(|_| has_language_model).map(|at| (Work::Model, at, at - 1)))
        .chain([2, 4].map(|at| (Work::Validate, at, at - 1)))
        .chain([(Work::Finish, 4, 4)]);
    for (work, at, saved) in cases {
        let mut run = FailingRun { run: create(4, None), work, at };
        let error = train_to_the_end(&mut run, &path).unwrap_err().to_string();
        let case = format!("{work:?} at {at}: {error}");
        let name = path.display();
        let end = match saved {
            0 => format!(". The run in {name} had no checkpoint yet (checkpoint.save_every)"),
            4 => format!(". The run in {name} is saved with all its iterations"),
            _ => format!(
                ". The run in {name} is saved up to iteration {saved}, from where --resume continues it, in smaller \
                 launches with --set launch_size=0.25"
            ),
        };
        let activity = match work {
            Work::Iterate => format!("iteration {at}"),
            Work::Validate => format!("the evaluation of iteration {at}"),
            Work::Snapshot | Work::Model => format!("reading the state of iteration {at}"),
            Work::Finish => "the final evaluation".to_string(),
        };
        let cause = "wgpu error: Out of Memory Caused by: not enough memory left";
        assert_eq!(error, format!("{activity} failed: {cause}{end}"), "{case}");
        if saved == 0 {
            assert!(resume(create, 4, &path).is_err(), "{case}");
        } else {
            let folder = RunFolder::find(&path).unwrap();
            assert_eq!(
                folder.load_latest().unwrap().checkpoint.iteration,
                u64::from(saved),
                "{case}"
            );
            resume(create, 4, &path).unwrap();
            // Shown beside a failed assertion.
            println!("{case}");
            if has_language_model && work == Work::Finish {
                // The best model is in its place before the evaluation.
                let mut run = create(4, None);
                let model = temp_dir.path().join("model");
                run.restore(&folder.load_best().unwrap().checkpoint.unwrap()).unwrap();
                run.language_model().unwrap().save(&model).unwrap();
                let [best, found] = [model, folder.model_path()]
                    .map(|model| std::fs::read(model.join("model.safetensors")).unwrap());
                assert!(best == found);
            }
            assert_holds(&path, &expected);
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_game_run_whose_device_fails_can_be_resumed_as_advised() {
    fail_everywhere(&|iterations, checkpoint| create_game_run(&[], iterations, checkpoint), false);
}

#[test]
fn a_language_run_whose_device_fails_can_be_resumed_as_advised() {
    fail_everywhere(&create_language_run, true);
}

/// Injects faults of the disk and of the device into a run one after the other, drawn by a seed, until it is done.
fn meet_faults_in_turn(create: CreateRun, seed: u64) {
    let temp_dir = TempDir::new().unwrap();
    let [whole, path] = ["whole", "run"].map(|name| temp_dir.path().join(name));
    train(create, 4, &whole).unwrap();
    let expected = read_content(&whole);
    let key = draw(seed as u32, (seed >> 32) as u32);
    let mut injected = Vec::new();
    for fault in 0..8 {
        let draw_number = |purpose| draw(draw(key, fault), purpose);
        let at = below(draw_number(1), 90) as usize;
        let disk = match draw_number(0) % 4 {
            0 => Fault::Once(at),
            1 => Fault::Stop(at),
            _ => Fault::Nothing,
        };
        let works = [Work::Iterate, Work::Snapshot, Work::Validate];
        let work = works[below(draw_number(2), 3) as usize];
        // Half of the devices fail in no iteration.
        let failing_at = 1 + below(draw_number(3), 8);
        let create_failing = |iterations, checkpoint: Option<&Checkpoint>| -> Box<dyn Run> {
            let run = create(iterations, checkpoint);
            Box::new(FailingRun { run, work, at: failing_at })
        };
        injected.push((disk, work, failing_at));
        let (outcome, _) = with_fault(disk, || {
            if has_checkpoint(&path) {
                resume(&create_failing, 4, &path)
            } else {
                let _ = std::fs::remove_dir_all(&path);
                train(&create_failing, 4, &path)
            }
        });
        if outcome.is_ok() {
            break;
        }
    }
    if !has_checkpoint(&path) {
        let _ = std::fs::remove_dir_all(&path);
        train(create, 4, &path).unwrap();
    }
    // Shown beside a failed assertion.
    println!("seed {seed}: {injected:?}");
    assert_continues(create, &path, &expected);
}

/// Seeds in the suite; `GROVE_FAULT_SEEDS=FIRST..LAST` takes others.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("GROVE_FAULT_SEEDS") else { return 0..12 };
    let ends =
        text.split_once("..").map(|(first, last)| Some(first.parse().ok()?..last.parse().ok()?));
    ends.flatten().expect("GROVE_FAULT_SEEDS is FIRST..LAST")
}

#[test]
fn a_game_meets_faults_in_turn_and_continues_to_the_same_bytes() {
    let create =
        |iterations, checkpoint: Option<&Checkpoint>| create_game_run(&[], iterations, checkpoint);
    seeds().for_each(|seed| meet_faults_in_turn(&create, seed));
}

#[test]
fn a_language_model_meets_faults_in_turn_and_continues_to_the_same_bytes() {
    seeds().for_each(|seed| meet_faults_in_turn(&create_language_run, seed));
}
