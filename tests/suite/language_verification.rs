//! Verification on other threads while a language model generates: a run has the same bytes as with one that waits.

use crate::support::{HANG, Scratch, Verified, tiny};
use crate::trainers;
use grove::checkpoint::Checkpoint;
use grove::metrics::LanguageRecord;
use grove::parallel::thread_teams;
use grove::task::{Completion, DataTask, Sort, Task, TaskError, VerifierOptions};
use grove::trainer::text::{CompletionRecord, LanguageConfig, LanguageTrainer};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// The thread and the number of completions of each call of a verifier.
type Calls = Mutex<Vec<(ThreadId, usize)>>;

/// The task with its verifier on so many threads, and the calls of it; it fails after `good` completions.
fn on_threads(task: &Arc<dyn Task>, threads: usize, good: usize) -> (Arc<dyn Task>, Arc<Calls>) {
    let (calls, good) = (Arc::new(Calls::default()), AtomicUsize::new(good));
    let seen = calls.clone();
    let verify = Box::new(move |task: &dyn Task, completions: &[Completion]| {
        seen.lock().unwrap().push((thread::current().id(), completions.len()));
        let take = |good: usize| good.checked_sub(completions.len());
        match good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => task.verify(completions),
            Err(_) => Err(TaskError::Verifier("it has broken".to_string())),
        }
    });
    (Arc::new(Verified { task: task.clone(), threads, verify }), calls)
}

/// A small model that imitates once and then learns by rewards.
fn config() -> LanguageConfig {
    let mut config = tiny(1);
    config.generation.num_prompts = 6;
    config.generation.group_size = 6;
    config.generation.slots = 5;
    config.generation.resample = 1;
    config.iterations = 4;
    config.fit.iterations = 1;
    config.checkpoint.eval_episodes = 8;
    config
}

fn sort() -> Arc<dyn Task> {
    Arc::new(Sort { length: 3 })
}

/// Prompts with a verifier of two processes, which cannot judge some answers.
fn data(folder: &Scratch) -> Arc<dyn Task> {
    let script = "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
                  text, wanted = request['completion'], request['fields']['solution']\n    \
                  answer = {'error': 'too long'} if len(text) > 1 else {'reward': text.count(wanted) / 2}\n    \
                  print(json.dumps({'id': request['id'], **answer}), flush=True)\n";
    let line = |i: usize| {
        let split = ["train", "test"][i % 2];
        format!("{{\"prompt\": \"{i}=\", \"solution\": \"{}\", \"split\": \"{split}\"}}\n", i % 3)
    };
    let [prompts, program] = ["prompts.jsonl", "verifier.py"].map(|name| folder.join(name));
    fs::write(&prompts, (0..10).map(line).collect::<String>()).unwrap();
    fs::write(&program, script).unwrap();
    let command = format!("python3 {}", program.display());
    let options =
        VerifierOptions { workers: 2, timeout_seconds: 600.0, ..VerifierOptions::new(&command) };
    Arc::new(DataTask::open(&prompts, Some(options)).unwrap())
}

/// Results of a run without its times: state, records, completions, and the score of an evaluation.
type Outcome = (Checkpoint, Vec<LanguageRecord>, Vec<CompletionRecord>, Option<f64>);

fn outcome(mut trainer: LanguageTrainer) -> Outcome {
    let (mut records, mut completions) = (Vec::new(), Vec::new());
    for _ in 0..trainer.config().iterations {
        let text = trainer.iterate().unwrap().text.unwrap();
        records.push(LanguageRecord {
            generated_tokens_per_second: 0.0,
            learnt_tokens_per_second: 0.0,
            ..text
        });
        completions.extend(trainer.take_completions());
    }
    let score = trainer.validate().unwrap().evaluation.mean_score;
    (trainer.snapshot().unwrap(), records, completions, score)
}

/// Trains on the task on a pool of threads.
fn train(task: &Arc<dyn Task>, pool: usize) -> Outcome {
    let trainer = || LanguageTrainer::for_task(task.clone(), config(), None).unwrap();
    trainers::on_threads(pool, || outcome(trainer()))
}

#[test]
fn verification_during_generation_changes_no_byte() {
    let folder = Scratch::new();
    for task in [sort(), data(&folder)] {
        let expected = train(&on_threads(&task, 0, usize::MAX).0, 2);
        let unjudged: usize = expected.1.iter().map(|record| record.num_unjudged).sum();
        assert_eq!(unjudged > 0, task.name() == "data");
        for (threads, pool) in [(1, 1), (3, 2), (2, 3)] {
            let (task, calls) = on_threads(&task, threads, usize::MAX);
            assert!(train(&task, pool) == expected, "{threads} threads, a pool of {pool}");
            let calls = calls.lock().unwrap();
            assert!(!calls.is_empty() && calls.iter().all(|(_, count)| *count == 1));
        }
    }
}

#[test]
fn built_in_verifiers_on_threads_have_a_call_for_each_completion() {
    let folder = Scratch::new();
    assert_eq!((data(&folder).num_verifier_threads(), sort().num_verifier_threads()), (2, 0));
    let here = thread::current().id();
    for threads in [0, 2] {
        let (task, calls) = on_threads(&sort(), threads, usize::MAX);
        let mut trainer = LanguageTrainer::for_task(task, config(), None).unwrap();
        trainer.iterate().unwrap();
        assert!(calls.lock().unwrap().is_empty(), "SFT has no completions");
        trainer.iterate().unwrap();
        let calls = calls.lock().unwrap();
        let is_here = |(thread, _): &(ThreadId, usize)| *thread == here;
        match threads {
            0 => assert!(calls.iter().all(is_here) && calls[0].1 > 6),
            _ => assert!(calls.len() > 6 && !calls.iter().any(is_here)),
        }
    }
}

#[test]
fn ranks_verify_during_generation_with_the_same_bytes() {
    let ranks = |of_verifier: usize| -> Vec<Outcome> {
        thread::scope(|scope| {
            let run = |team| {
                let (task, _) = on_threads(&sort(), of_verifier, usize::MAX);
                let trainer = LanguageTrainer::for_task_of_team(task, config(), None, team);
                outcome(trainer.unwrap())
            };
            let ranks = thread_teams(2, HANG).into_iter();
            let ranks: Vec<_> = ranks.map(|team| scope.spawn(move || run(team))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    let expected = train(&sort(), 2);
    for outcome in ranks(2) {
        assert!(outcome == expected);
    }
}

#[test]
fn errors_of_a_verifier_are_the_same_on_any_thread() {
    let errors = [0, 1, 3].map(|threads| {
        let (task, _) = on_threads(&sort(), threads, 9);
        let mut trainer = LanguageTrainer::for_task(task, config(), None).unwrap();
        trainer.iterate().unwrap();
        trainer.iterate().unwrap_err().to_string()
    });
    assert!(errors[0].contains("it has broken"), "{}", errors[0]);
    assert_eq!(errors, [&errors[0]; 3].map(Clone::clone));
}
