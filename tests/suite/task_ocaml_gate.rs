//! The gate of the OCaml task, which refuses code by the names that it uses, and the judge of assertions apart from it.

use crate::support::repository;
use crate::task_ocaml::{open, open_with, problem, report, solution};
use grove::task::ocaml::{Compilation, Job, LibraryAccess};
use std::fs;

/// Texts that name what is forbidden, by every path found so far, and texts that break what they can.
#[test]
#[ignore = "attacks: 20 s of CPU time"]
fn forbidden_names_are_rejected_and_worthless_texts_earn_nothing() {
    let task = open();
    let problem = problem(&task, "fold/total");
    let good = solution(problem);
    let right = report(&task, problem, &good).results;
    let texts = |kind: &str| {
        let folder = repository("tests/ocaml").join(kind);
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let (refused, worthless) = (texts("refused"), texts("worthless"));
    assert!(refused.len() > 40 && worthless.len() > 50);
    for (i, (path, text)) in refused.iter().chain(&worthless).enumerate() {
        let text = String::from_utf8_lossy(text);
        let Ok(found) = task.check_answer(problem, &text, LibraryAccess::Restricted).unwrap()
        else {
            continue;
        };
        let held = found.results.iter().zip(&right).filter(|(a, b)| a == b).count();
        // The sum of the empty list is 0, as is what some of the texts return.
        assert!(held <= 1, "{path:?}: {found:?}");
        if i < refused.len() {
            assert!(matches!(found.compilation, Compilation::Refused(_)), "{path:?}: {found:?}");
        }
    }
    assert_eq!(report(&task, problem, &good).results, right);
}

/// The library's modules in the forms that honest answers use.
#[test]
fn honest_uses_of_the_library_are_allowed() {
    let task = open();
    for code in [
        "module M = Map.Make (Int) let f l = M.cardinal (List.fold_left (fun m x -> M.add x x m) M.empty l)",
        "module S = Set.Make (struct type t = int let compare = compare end) let f l = S.cardinal (S.of_list l)",
        "let f l = let h = Hashtbl.create 3 in List.iter (fun x -> Hashtbl.replace h x 1) l; Hashtbl.length h",
        "let f l = let a = Array.of_list l in Array.sort compare a; a.(0) <- 3; Array.fold_left ( + ) 0 a",
        "let f l = let b = Bytes.of_string \"abc\" in Bytes.set b 0 'x'; String.length (Printf.sprintf \"%d %s\" 1 \"a\")",
        "open List let f l = fold_left ( + ) 0 l",
        "let f l = List.iter (fun x -> assert (Unit.equal () (ignore x))) l; List.length l",
        "module A = struct include Array let sum a = fold_left ( + ) 0 a end let f l = A.sum (A.of_list l)",
        "exception E of int let f l = try raise (E 3) with E x -> x + Lazy.force (lazy (List.length l))",
        "let f l = match Array.of_list l with [| a; b |] -> a + b + Float.to_int 2.5 | _ -> Sys.int_size",
        "module M = struct type t = A | B of int let g = function A -> 0 | B n -> n end let f l = M.g (M.B (List.length l))",
        "let rec even n = n = 0 || odd (n - 1) and odd n = n > 0 && even (n - 1) let f l = if even (List.length l) then 1 else 0",
        "let f l = match (if l = [] then `Empty else `Some (List.hd l)) with `Empty -> 0 | `Some x -> x",
        "open Stdlib let f l = let compare a b = Stdlib.(compare b a) in List.hd (List.sort compare l)",
        "let unsafe_sum = List.fold_left ( + ) 0 let f unsafe_l = unsafe_sum unsafe_l",
    ] {
        let (signature, calls) = ("val f : int list -> int", vec!["f [1; 2]"]);
        let report =
            task.check(&Job { code, signature, calls, ..Job::default() }).unwrap().unwrap();
        assert!(matches!(report.results[..], [Some(_)]), "{code}: {report:?}");
    }
}

/// Assertions that are evaluated apart from the answer hold if they hold in one process with it.
#[test]
fn assertions_apart_hold_as_in_one_process() {
    let task = open_with(4.0);
    let results = |signature: &str, code: &str, conditions: &[&str]| {
        let calls: Vec<String> =
            conditions.iter().map(|condition| format!("(\"mark\", ({condition}))")).collect();
        let calls = calls.iter().map(String::as_str).collect();
        task.check(&Job { code, signature, calls, ..Job::default() }).unwrap().unwrap().results
    };
    let [held, failed] = ["true", "false"].map(|value| results("", "", &[value]).remove(0));
    assert!(held.is_some() && failed.is_some());
    // A code, and whether each assertion holds; `None` if it cannot be evaluated.
    for (signature, code, assertions) in [
        // State that a function keeps between its arguments.
        (
            "val add : int -> int -> int",
            "let add start = let sum = ref start in fun x -> sum := !sum + x; !sum",
            [
                ("let a = add 1 in let b = add 5 in a 1 = 2 && b 1 = 6 && a 1 = 3", Some(true)),
                ("List.map (add 1) [1; 1] = [2; 3]", Some(true)),
            ],
        ),
        (
            "val add : int -> int -> int",
            "let sum = ref 0 let add start = sum := start; fun x -> sum := !sum + x; !sum",
            [
                ("let a = add 10 in let b = add 20 in a 1 = 11 && b 1 = 21", Some(false)),
                ("add 1 2 = 3 && add 2 3 = 5", Some(true)),
            ],
        ),
        (
            "val add : int -> int -> int",
            "let add a = if a < 0 then failwith \"negative\" else fun b -> a + b",
            [
                ("match add (-1) with exception Failure _ -> true | _ -> false", Some(true)),
                ("add 1 2 = 3 && true", Some(true)),
            ],
        ),
        // Rows that are one row, an array that each call returns, and a list that is another one.
        (
            "val grid : int -> int array array",
            "let grid n = Array.make n (Array.make n 0)",
            [
                ("let g = grid 2 in g.(0).(0) <- 5; g.(1).(0) = 0", Some(false)),
                ("Array.length (grid 3) = 3 && true", Some(true)),
            ],
        ),
        (
            "val one : int -> int array",
            "let kept = [| 0 |] let one n = kept.(0) <- n; kept",
            [
                ("let a = one 1 in let b = one 2 in a.(0) = 1 && b.(0) = 2", Some(false)),
                ("(one 3).(0) > 2", Some(true)),
            ],
        ),
        (
            "val same : string list -> string list",
            "let same l = l",
            [
                ("let s = String.make 1 'a' in List.memq s (same [s])", Some(true)),
                ("same [] = [] && true", Some(true)),
            ],
        ),
        // Arguments and results that are too large cost the assertion they are in.
        (
            "val total : int list -> int",
            "let total l = List.fold_left ( + ) 0 l",
            [
                ("(try total (List.init 1_100_000 (fun i -> i)) = 0 with _ -> true)", None),
                ("total [1; 2] > 2", Some(true)),
            ],
        ),
        (
            "val text : int -> string",
            "let text n = String.make n 'a'",
            [
                ("(try text 40_000_000 <> \"\" with _ -> true)", None),
                ("String.length (text 3) > 2", Some(true)),
            ],
        ),
        // Exceptions that have a place or a text.
        (
            "val half : int -> int",
            "let half n = assert (n mod 2 = 0); n / 2",
            [
                ("match half 3 with exception Assert_failure _ -> true | _ -> false", Some(true)),
                ("half 4 > 1", Some(true)),
            ],
        ),
        (
            "val half : int -> int",
            "let half n = match n mod 2 with 0 -> n / 2",
            [
                ("match half 3 with exception Match_failure _ -> true | _ -> false", Some(true)),
                ("match half 3 with exception Assert_failure _ -> true | _ -> false", None),
            ],
        ),
        (
            "val half : int -> int",
            "let half n = raise (Sys_error (string_of_int n))",
            [
                ("match half 3 with exception Sys_error \"3\" -> true | _ -> false", Some(true)),
                ("half 4 > 1", None),
            ],
        ),
    ] {
        let found = results(signature, code, &assertions.map(|(condition, _)| condition));
        let expected = assertions.map(|(_, holds)| match holds {
            Some(true) => held.clone(),
            Some(false) => failed.clone(),
            None => None,
        });
        assert_eq!(found, expected, "{code}");
    }
}
