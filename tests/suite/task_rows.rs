//! The OCaml task on rows of prompts and assertions, in the sandbox that only Linux has.

use crate::support::{Scratch, repository};
use crate::task_ocaml::{open_file, prompts};
use grove::task::ocaml::{LibraryAccess, Ocaml, Problem};
use grove::task::{Completion, Task};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn open(path: &Path) -> Ocaml {
    open_file(path).unwrap()
}

/// A file of rows.
fn write(folder: &Scratch, row: &Value) -> PathBuf {
    let path = folder.join("rows.jsonl");
    fs::write(&path, format!("{row}\n")).unwrap();
    path
}

/// The prompts of a task, with the rewards of an answer to each.
fn totals(task: &Ocaml, answer: impl Fn(&Problem) -> String) -> Vec<(String, f64)> {
    let prompts = prompts(task).concat();
    let answers: Vec<_> = prompts
        .iter()
        .map(|prompt| (prompt, answer(task.problems().find(prompt).unwrap())))
        .collect();
    let all: Vec<_> = answers.iter().map(|(prompt, text)| Completion::new(prompt, text)).collect();
    let rewards = task.verify(&all).unwrap();
    let named = rewards.iter().zip(&answers).map(|(rewards, (prompt, _))| {
        assert_eq!(rewards.problem, None, "{prompt:?}");
        (prompt.text.clone(), rewards.score(task.reward_parts()))
    });
    named.collect()
}

#[test]
fn rows_of_prompts_and_assertions_are_problems() {
    let task = open(&repository("tests/ocaml/rows.csv"));
    let problems = task.problems().all();
    assert_eq!(problems.len(), 25);
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
    // A completion that repeats the prompt does not define another type of the same name.
    let depth = "type tree =\n  | Leaf (** Empty. *)\n  | Node of tree * int * tree\n\n\
        let rec depth = function Leaf -> 0 | Node (l, _, r) -> 1 + max (depth l) (depth r)";
    assert_eq!(share("depth", depth), 1.0);
    assert!(share("depth", &depth.replace("Node", "Two")) < 0.0);
    // Printing, exiting and true values earn nothing in place of an assertion's outcome.
    for answer in ["let is_even n = exit 0", "let is_even n = print_string \"true\"; raise Exit"] {
        assert_eq!(share("is_even", answer), 0.0);
    }
    let gcd = problems.iter().find(|problem| problem.id == "gcd").unwrap();
    let report =
        task.check_answer(gcd, "let gcd a b = 6", LibraryAccess::Restricted).unwrap().unwrap();
    assert_eq!(report.results.len(), 3);
}

#[test]
fn json_rows_need_three_keys_alone() {
    let folder = Scratch::new();
    let line = json!({
        "id": 7, "problem": "(* Twice. *)\nlet twice (n : int) : int =\n", "tests": "assert (twice 2 = 4)",
    });
    let path = write(&folder, &line);
    let total = totals(&open(&path), |_| "2 * n".to_string()).remove(0).1;
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    let wrong = "{\"id\": 1, \"prompt\": \"Twice.\", \"tests\": \"assert true\"}\n";
    fs::write(&path, wrong).unwrap();
    let error = open_file(&path).err().unwrap().to_string();
    assert!(error.contains("line 1: the prompt does not end in the head"), "{error}");
}

/// An exception has its own number in each process, by which no answer is judged.
#[test]
fn exceptions_of_a_prompt_are_values_like_others() {
    let folder = Scratch::new();
    let row = json!({
        "id": "a",
        "prompt": "module Own = struct module Inner = struct let x = 1 exception Empty of int end end\n\
            module type S = sig exception Other end\nmodule M : S = struct exception Zero exception Other end\n\
            let first (l : int list) : int =",
        "tests": "assert ((try Ok (first []) with e -> Error e) = Error (Own.Inner.Empty 3))\n\
            assert ((try Ok (first [0]) with e -> Error e) = Error M.Other)",
    });
    let task = open(&write(&folder, &row));
    let half = 0.35 + 0.65 / 2.0;
    for (raised, expected) in
        [("Own.Inner.Empty 3", 1.0), ("Own.Inner.Empty 4", half), ("M.Other", half)]
    {
        let answer = format!("match l with [] -> raise ({raised}) | _ -> raise M.Other");
        let total = totals(&task, |_| answer.clone()).remove(0).1;
        assert!((total - expected).abs() < 1e-9, "{total} for {raised}");
    }
}

/// Tests that cannot be used stop the task at its start, rather than giving every answer a reward of 0.
#[test]
fn unusable_tests_are_an_error_and_helpers_may_assert() {
    let folder = Scratch::new();
    let write = |tests: &str| {
        let row = json!({
            "id": "a", "prompt": "let f (x : int) : int =", "tests": tests, "solution": "x + 1",
        });
        write(&folder, &row)
    };
    for tests in [
        "let check x y = assert (f x = y)\nlet () = check 1 2",
        "let main () =\n  assert (f 1 = 2);\n  assert (f 3 = 4)\nlet () = main ()",
        "let test_one () = assert (f 1 = 2)\nlet () = test_one ()",
    ] {
        let task = open(&write(tests));
        for (answer, expected) in [("x + 1", 1.0), ("x", 0.35)] {
            let total = totals(&task, |_| answer.to_string()).remove(0).1;
            assert!((total - expected).abs() < 1e-9, "{total} of {answer} for {tests}");
        }
    }
    for (tests, said) in [
        (
            "let () = assert (f 1 = 2\nlet () = assert (f 2 = 3)",
            "test 1 does not compile: Syntax error",
        ),
        ("assert (f 1 = )", "test 1 does not compile: Syntax error"),
        (
            "assert (f 1 = 2);;\nassert (f 1 = \"a\")",
            "test 2 does not compile: This expression has type",
        ),
        ("assert (f 1 = g 2)", "test 1 does not compile: Unbound value g"),
        ("assert (f 1 = List.hd [])", "the expected value of test 1 raises an exception"),
        ("let main () = assert (f 1 = 2)", "`main` in `tests` has an `assert`, but is not used"),
    ] {
        let error = open_file(&write(tests)).err().unwrap().to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{tests}: {error}");
    }
}

/// An answer that replaces the library's functions, in whatever way it may have come to do so, is not judged by them.
#[test]
fn tests_are_judged_with_a_library_of_their_own() {
    let folder = Scratch::new();
    let row = json!({
        "id": "a", "prompt": "let f (l : int list) : int list =",
        "tests": "assert (List.length (f [1; 2]) = 1);; assert (List.mem 2 (f [2; 3]))",
    });
    let task = open(&write(&folder, &row));
    let problem = task.problems().all().remove(0);
    let results = |code: &str| {
        task.check_answer(problem, code, LibraryAccess::Full).unwrap().unwrap().results
    };
    let patch = "module type L = module type of List \
        let patch old fresh = let block = Obj.repr (module List : L) in \
        for i = 0 to Obj.size block - 1 do \
        if Obj.field block i == Obj.repr old then Obj.set_field block i (Obj.repr fresh) done \
        let () = patch List.length (fun _ -> 1); patch List.mem (fun _ _ -> true) ";
    let worthless = results(&format!("{patch} let f _ = []"));
    assert_eq!(worthless, results("let f _ = []"));
    assert_ne!(worthless, results("let f l = List.filter (fun x -> x mod 2 = 0) l"));
    // Something that is not a value of the function's type is not read as one.
    assert!(results("let f _ = Obj.magic \"abcdefghijklmnop\"").iter().all(Option::is_none));
}
