//! The OCaml task on rows of prompts and assertions.

use grove::task::ocaml::{Access, Ocaml, OcamlSettings, Problem};
use grove::task::{Completion, Split, Task};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn open(path: &Path) -> Ocaml {
    let problems = path.display().to_string();
    Ocaml::open(&OcamlSettings { problems, ..OcamlSettings::default() }).unwrap()
}

/// The prompts of a task, with the rewards of an answer to each.
fn totals(task: &Ocaml, answer: impl Fn(&Problem) -> String) -> Vec<(String, f64)> {
    let prompts = [Split::Train, Split::Test].map(|split| {
        let num = task.num_prompts(split).unwrap();
        (0..num).map(|i| task.prompt(split, i).unwrap()).collect::<Vec<_>>()
    });
    let answers: Vec<_> = prompts
        .iter()
        .flatten()
        .map(|prompt| (prompt, answer(task.problems().find(prompt).unwrap())))
        .collect();
    let all: Vec<_> = answers.iter().map(|(prompt, text)| Completion::new(prompt, text)).collect();
    let rewards = task.verify(&all).unwrap();
    let named = rewards.iter().zip(&answers).map(|(rewards, (prompt, _))| {
        assert_eq!(rewards.problem, None, "{prompt:?}");
        (prompt.text.clone(), rewards.total(task.parts()))
    });
    named.collect()
}

#[test]
fn rows_of_prompts_and_assertions_are_problems() {
    let task = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ocaml/rows.csv"));
    let problems = task.problems().all();
    assert_eq!(problems.len(), 20);
    for (prompt, total) in totals(&task, |problem| problem.solution.clone().unwrap()) {
        assert!((total - 1.0).abs() < 1e-9, "{total} for {prompt}");
    }
    // An answer of the right type that raises has the points of the first two stages alone.
    for (prompt, total) in totals(&task, |problem| format!("{} raise Exit", problem.head)) {
        assert!((total - 0.35).abs() < 1e-9, "{total} for {prompt}");
    }
    let share = |id: &str, answer: &str| {
        let all = totals(&task, |problem| if problem.id == id { answer } else { "" }.to_string());
        let most = all.iter().map(|(_, total)| *total).reduce(f64::max).unwrap();
        ((most - 0.35) / 0.65 * 1e6).round() / 1e6
    };
    assert_eq!(share("is_even", "let is_even n = n = 4"), (2.0_f64 / 3.0 * 1e6).round() / 1e6);
    assert_eq!(share("apply_n", "let apply_n f n x = if n = 3 then 8 else -1"), 0.333_333);
    assert_eq!(share("gcd", "let gcd a b = 6"), 0.666_667);
    // Printing, exiting and true values earn nothing in place of an assertion's outcome.
    for answer in ["let is_even n = exit 0", "let is_even n = print_string \"true\"; raise Exit"] {
        assert_eq!(share("is_even", answer), 0.0);
    }
    let gcd = problems.iter().find(|problem| problem.id == "gcd").unwrap();
    let report = task.try_code(gcd, "let gcd a b = 6", Access::Restricted).unwrap().unwrap();
    assert_eq!(report.results.len(), 3);
}

#[test]
fn json_rows_need_three_keys_alone() {
    let line = serde_json::json!({
        "id": 7, "problem": "(* Twice. *)\nlet twice (n : int) : int =\n", "tests": "assert (twice 2 = 4)",
    });
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, format!("{line}\n")).unwrap();
    let total = totals(&open(&path), |_| "2 * n".to_string()).remove(0).1;
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    let wrong = "{\"id\": 1, \"prompt\": \"Twice.\", \"tests\": \"assert true\"}\n";
    fs::write(&path, wrong).unwrap();
    let problems = path.display().to_string();
    let error = Ocaml::open(&OcamlSettings { problems, ..OcamlSettings::default() });
    let error = error.err().unwrap().to_string();
    assert!(error.contains("line 1: the prompt does not end in the head"), "{error}");
}
