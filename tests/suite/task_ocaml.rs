//! The OCaml task: scores by the compiler and by tests, and the sandbox, which only Linux has.

use grove::task::ocaml::{
    Access, Checker, CodeReport, Compiled, Compiler, Job, Ocaml, OcamlLimits, OcamlSettings,
    Problem, Types,
};
use grove::task::{Completion, Split, Task};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The task with a short time limit.
fn open() -> Ocaml {
    open_with(0.5)
}

fn open_with(cpu_seconds: f64) -> Ocaml {
    let limits = OcamlLimits { cpu_seconds, ..OcamlLimits::default() };
    let settings = OcamlSettings { limits, ..OcamlSettings::default() };
    let task = Ocaml::open(&settings).unwrap();
    // Test machines permit root or user namespaces, so that all restrictions are enforced.
    assert_eq!(task.notes(), [""; 0]);
    task
}

fn problem<'a>(task: &'a Ocaml, id: &str) -> &'a Problem {
    task.problems().all().into_iter().find(|problem| problem.id == id).unwrap()
}

fn report(task: &Ocaml, problem: &Problem, code: &str) -> CodeReport {
    task.try_code(problem, code, Access::Restricted).unwrap().unwrap()
}

#[test]
fn generated_problems_have_solutions_and_disjoint_splits() {
    let folder = TempDir::new().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/ocaml/many.py");
    let output =
        std::process::Command::new("python3").args(["-B", script, "150"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = folder.path().join("many.jsonl");
    fs::write(&path, output.stdout).unwrap();
    let settings =
        OcamlSettings { problems: path.display().to_string(), ..OcamlSettings::default() };
    let task = Ocaml::open(&settings).unwrap();
    let asked = [Split::Train, Split::Test].map(|split| {
        let prompts = (0..task.num_prompts(split).unwrap()).map(|i| task.prompt(split, i).unwrap());
        prompts.collect::<Vec<_>>()
    });
    assert!(asked[0].len() + asked[1].len() == 150 && asked[1].len() > 2);
    let solutions: Vec<(&_, String)> =
        asked.iter().flatten().map(|prompt| (prompt, task.solution(prompt).unwrap())).collect();
    let all: Vec<_> =
        solutions.iter().map(|(prompt, text)| Completion::new(prompt, text)).collect();
    for (one, rewards) in all.iter().zip(task.verify(&all).unwrap()) {
        let total = rewards.total(task.parts());
        assert!((total - 1.0).abs() < 1e-9, "{total} for\n{}{}", one.prompt.text, one.text);
    }
    // The description without its example, which contains the function's name.
    let words = asked.each_ref().map(|prompts| {
        let texts =
            prompts.iter().map(|prompt| prompt.text.split(". ").next().unwrap().to_string());
        texts.collect::<std::collections::BTreeSet<_>>()
    });
    assert!(words[0].is_disjoint(&words[1]), "{words:?}");
}

#[test]
fn solutions_are_accepted_and_wrong_answers_are_not() {
    let task = open();
    let problems = task.problems().all();
    assert!(problems.len() >= 200, "{}", problems.len());
    let prompts = [Split::Train, Split::Test].map(|split| {
        let num = task.num_prompts(split).unwrap();
        (0..num).map(|i| task.prompt(split, i).unwrap()).collect::<Vec<_>>()
    });
    assert!(prompts[1].len() >= 40);
    let mut completions = Vec::new();
    for prompt in prompts.iter().flatten() {
        let problem = task.problems().find(prompt).unwrap();
        assert!(prompt.text.ends_with(&format!("{}\n", problem.head)) && problem.tests.len() >= 3);
        let wrong = problem.wrong.iter().map(|text| (text.clone(), false));
        completions.extend(wrong.map(|answer| (prompt, answer)));
        completions.push((prompt, (task.solution(prompt).unwrap(), true)));
        // Every test family has training problems.
        assert!(prompts[0].iter().any(|other| other.fields["family"] == prompt.fields["family"]));
    }
    let all: Vec<_> =
        completions.iter().map(|(prompt, (text, _))| Completion::new(prompt, text)).collect();
    assert!(all.len() > 600, "{}", all.len());
    for ((prompt, (text, right)), rewards) in completions.iter().zip(task.verify(&all).unwrap()) {
        let total = rewards.total(task.parts());
        assert_eq!(rewards.problem, None, "{prompt:?} {text}");
        assert_eq!((total - 1.0).abs() < 1e-9, *right, "{total} for\n{}{text}", prompt.text);
    }
}

#[test]
fn errors_are_counted_individually() {
    let task = open();
    let problem = problem(&task, "fold/total");
    let types = |code: &str| report(&task, problem, code).types;
    assert_eq!(types("let total l = List.fold_left ( + ) 0 l"), Types::Errors(0));
    assert_eq!(types("let total l = ("), Types::Syntax);
    assert_eq!(types("let total l = 'ab'"), Types::Syntax);
    // A wrong type, an unknown name, and a missing function.
    assert_eq!(types("let total (l : int list) : int = \"a\""), Types::Errors(1));
    assert_eq!(types("let total (l : int list) : int = lenght l"), Types::Errors(1));
    assert_eq!(types("let total (l : string) : int = 1"), Types::Errors(1));
    assert_eq!(types("let other = 1"), Types::Errors(1));
    // Several errors in one expression, and in consecutive definitions.
    assert_eq!(
        types("let total (l : int list) : int = foo l + bar l + (1 ^ \"a\")"),
        Types::Errors(4)
    );
    assert_eq!(types("let a = 1 + \"b\" let total l = a + 1 let c = zork"), Types::Errors(2));
    let many: String = (0..30).map(|i| format!("let a{i} = 1 + \"{i}\"\n")).collect();
    assert_eq!(types(&many), Types::Errors(10));
    // A redefined type is not the requested one.
    assert_eq!(types("type int = string let total (l : int list) : int = \"\""), Types::Errors(1));
}

#[test]
fn the_reward_has_stages() {
    let task = open();
    let prompts =
        (0..task.num_prompts(Split::Train).unwrap()).map(|i| task.prompt(Split::Train, i).unwrap());
    let prompt = prompts.into_iter().find(|prompt| prompt.fields["id"] == "fold/total").unwrap();
    let total = |text: &str| {
        let rewards = task.verify(&[Completion::new(&prompt, text)]).unwrap().remove(0);
        assert_eq!(rewards.problem, None);
        (rewards.total(task.parts()) * 1e6).round() / 1e6
    };
    let solution = task.solution(&prompt).unwrap();
    assert_eq!(total(&solution), 1.0);
    assert_eq!(total(&format!("Here:\n```ocaml\n{}\n{solution}```\n", prompt.text)), 1.0);
    let after = "\n\nThat is because lists are trees.";
    assert_eq!(total(&format!("```\n{solution}```{after}")), 0.97);
    assert_eq!(total(""), 0.0);
    assert_eq!(total("(* match l with [] -> 0 *)"), 0.0);
    assert_eq!(total("match l with"), 0.0);
    assert_eq!(total("lenght l"), 0.21);
    // Of seven calls, one comes to 0.
    assert_eq!(total("0 * List.length l"), ((0.35 + 0.65 / 7.0) * 1e6_f64).round() / 1e6);
    assert_eq!(total("ignore l; failwith \"todo\""), ((0.35 * 0.3) * 1e6_f64).round() / 1e6);
    // Access to the system is forbidden.
    assert_eq!(total("Sys.command (String.concat \"\" (List.map string_of_int l))"), 0.30);
}

/// A completion that could stop its server, or reach out by other means, is refused by the system even
/// where the check of names is off.
#[test]
fn the_sandbox_blocks_ways_out() {
    let task = open();
    let (signature, calls) = ("val f : unit -> int", vec!["f ()"]);
    let value = |code: &str| {
        let job =
            Job { code, signature, calls: calls.clone(), access: Access::Full, ..Job::default() };
        task.report(&job).unwrap().unwrap().results
    };
    let ran = value("let f () = 0");
    assert!(matches!(ran[..], [Some(_)]));
    for (wrong, attempt) in [
        (1, "Sys.readdir \"/proc\""),
        (2, "Sys.readdir \"/root\""),
        (3, "open_in \"/etc/passwd\""),
        (4, "open_in \"/dev/urandom\""),
        (5, "open_out \"/usr/lib/file\""),
        (6, "if Sys.command \"kill -STOP $PPID\" <> 0 then raise Exit"),
        (
            7,
            "if Sys.command \"perl -MSocket -e 'exit 1 unless socket(S, AF_UNIX, SOCK_STREAM, 0)'\" <> 0 then raise Exit",
        ),
    ] {
        let code = format!("let f () = match {attempt} with _ -> {wrong} | exception _ -> 0");
        assert_eq!(value(&code), ran, "{code}");
    }
}

/// Completions descend from servers that never hold an expected value, and a server that may have been attacked
/// serves no further one.
#[test]
fn servers_are_apart_and_replaced_after_an_attack() {
    let compiler = Compiler::at("ocamlc").unwrap();
    let limits = OcamlLimits { cpu_seconds: 0.3, ..OcamlLimits::default() };
    let checker = Checker::start(&compiler, limits).unwrap();
    let run = |code: &str| {
        let job = Job { code, signature: "val f : int", calls: vec!["f"], ..Job::default() };
        checker.report(&job).unwrap().unwrap()
    };
    assert_eq!((run("let f = 1").results.len(), checker.started()), (1, 1));
    let value = || {
        let job = Job { calls: vec!["1"], ..Job::default() };
        checker.report(&job).unwrap().unwrap().results
    };
    assert_eq!((value(), checker.started()), (run("let f = 1").results, 2));
    // Mistakes are not attacks.
    for code in ["let f = (", "let f = \"\"", "let f = raise Exit", "let f = 1"] {
        run(code);
        assert_eq!(checker.started(), 2, "{code}");
    }
    for (code, started) in
        [("let f = Sys.command \"true\"", 3), ("let rec g () = g () let f = g ()", 4)]
    {
        run(code);
        run("let f = 1");
        assert_eq!(checker.started(), started, "{code}");
    }
    assert_eq!((value().len(), checker.started()), (1, 4));
}

/// Hostile answers to `fold/total`; `MARK` is a file that must not be created.
const HOSTILE: [&str; 40] = [
    "let total l = while true do () done; min_int",
    "let rec total l = total l",
    "let rec total l = 1 + total l",
    "let () = while true do () done let total l = 1",
    "let rec grow l = grow (1 :: l) let total l = grow l",
    "let total l = List.length (List.init 1_000_000_000 (fun i -> i))",
    "let total l = Bytes.length (Bytes.make 10_000_000_000 'x')",
    "let total l = Array.length (Array.make 1_250_000_000 l)",
    "let total l = let s = ref \"x\" in while true do s := !s ^ !s done; 0",
    "let total l = let b = Buffer.create 1 in while true do Buffer.add_string b (String.make 1000000 'x') done; 0",
    "let total l = exit 0",
    "let () = exit 0 let total l = 0",
    "let () = at_exit (fun () -> print_endline \"1 0 ok - - -\") let total l = exit 0",
    "let () = print_string \"\\n1 0 ok a b c d e f g\\n2 0 ok a b c d e f g\\n\" let total l = min_int",
    "let () = prerr_string \"0 ok\\n7/7 passed\\n\" let total l = failwith \"7/7\"",
    "let total l = for _ = 1 to 100 do print_string (String.make 1_000_000 'x') done; min_int",
    "let total l = while true do prerr_string (String.make 1_000_000 'x') done; min_int",
    "let () = raise Exit let total l = 0",
    "let total l = raise Stack_overflow",
    "let total l = raise Out_of_memory",
    "let total l = assert false",
    "let total l = let c = open_out \"MARK\" in output_string c \"x\"; close_out c; min_int",
    "let total l = Sys.command \"echo x > MARK\"; min_int",
    "let total l = ignore (Sys.command \"echo x > MARK; cp /bin/sh . ; echo x > ../MARK; rm -rf / 2>/dev/null\"); min_int",
    "let total l = ignore (Sys.command \"sleep 7654 & setsid sleep 7654 & setsid nohup sleep 7654 &\"); min_int",
    "let total l = ignore (Sys.command \"bomb() { bomb | bomb & }; bomb; sleep 7654\"); min_int",
    "let total l = let rec bomb () = ignore (Sys.command \"sleep 7654 &\"); bomb () in bomb ()",
    "let total l = ignore (Sys.command \"kill -9 -1; kill -9 1; kill -9 $PPID\"); min_int",
    "let total l = ignore (Sys.command \"yes > big; yes > big2\"); min_int",
    "let total l = Sys.set_signal Sys.sigprof Sys.Signal_ignore; while true do () done; min_int",
    "let total l = String.length (Obj.magic 1)",
    "let total l = Obj.set_field (Obj.repr l) 99999999 (Obj.repr 0); min_int",
    "external seek : int -> 'a = \"%identity\" let total l = Array.length (seek 64)",
    "let total l = for i = 3 to 30 do try let c = open_out (Printf.sprintf \"/proc/self/fd/%d\" i) in \
     output_string c \" 0 ok x x x x x x x\\n\"; close_out c with _ -> () done; min_int",
    "module S = Stdlib let total l = S.Sys.command \"echo x > MARK\"; min_int",
    "let total l = let module M = struct include Stdlib end in M.Sys.remove \"/etc/passwd\"; min_int",
    "let f x = (x, x) let g x = f (f (f (f (f x)))) let h x = g (g (g (g (g (g x))))) let i x = h (h (h x)) let total l = 1",
    "let total l = ignore (Marshal.from_string (String.make 20 '\\255') 0); min_int",
    "let total l = Gc.set { (Gc.get ()) with Gc.minor_heap_size = 1_000_000_000 }; min_int",
    "let total l = ignore (Sys.command \"echo x | tee /tmp/MARK /var/tmp/MARK /dev/shm/MARK $HOME/MARK\"); min_int",
];

/// Runs all hostile answers `rounds` times: none scores.
fn run_hostile(task: &Ocaml, mark: &str, access: Access, rounds: usize) {
    let problem = problem(task, "fold/total");
    let next = std::sync::atomic::AtomicUsize::new(0);
    let good = format!("{}\n{}", problem.head, problem.solution.as_ref().unwrap());
    let right = report(task, problem, &good).results;
    assert!(right.len() == problem.tests.len() && right.iter().all(Option::is_some));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if i >= rounds * HOSTILE.len() {
                        return;
                    }
                    let code = HOSTILE[i % HOSTILE.len()].replace("MARK", mark);
                    match task.try_code(problem, &code, access).unwrap() {
                        Ok(report) => {
                            let held =
                                report.results.iter().zip(&right).filter(|(a, b)| a == b).count();
                            assert_eq!(held, 0, "{code}: {report:?}");
                        }
                        // It may crash its server, but then has no score.
                        Err(problem) => assert!(!problem.contains('\n'), "{problem}"),
                    }
                }
            });
        }
    });
    // A good answer is still accepted afterwards.
    assert_eq!(report(task, problem, &good).results, right);
}

/// Texts that name what is forbidden, by every path found so far, and texts that break what they can.
#[test]
fn forbidden_names_are_rejected_and_worthless_texts_earn_nothing() {
    let task = open();
    let problem = problem(&task, "fold/total");
    let good = format!("{}\n{}", problem.head, problem.solution.as_ref().unwrap());
    let right = report(&task, problem, &good).results;
    let texts = |kind: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ocaml").join(kind);
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let (refused, worthless) = (texts("refused"), texts("worthless"));
    assert!(refused.len() > 40 && worthless.len() > 50);
    for (i, (path, text)) in refused.iter().chain(&worthless).enumerate() {
        let text = String::from_utf8_lossy(text);
        let Ok(found) = task.try_code(problem, &text, Access::Restricted).unwrap() else {
            continue;
        };
        let held = found.results.iter().zip(&right).filter(|(a, b)| a == b).count();
        // The sum of the empty list is 0, as is what some of the texts return.
        assert!(held <= 1, "{path:?}: {found:?}");
        if i < refused.len() {
            assert!(matches!(found.compiled, Compiled::Refused(_)), "{path:?}: {found:?}");
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
            task.report(&Job { code, signature, calls, ..Job::default() }).unwrap().unwrap();
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
        task.report(&Job { code, signature, calls, ..Job::default() }).unwrap().unwrap().results
    };
    let [held, failed] = ["true", "false"].map(|value| results("", "", &[value]).remove(0));
    assert!(held.is_some() && failed.is_some());
    // A code, and whether each assertion holds; `None` if it cannot be evaluated.
    for (signature, code, assertions) in [
        // What a function keeps between its arguments.
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

/// Asserts that no process and no file is left.
fn assert_nothing_is_left(mark: &str) {
    let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let line = fs::read(path.join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    let left: Vec<String> =
        commands.filter(|line| line.contains("7654") || line.contains(mark)).collect();
    assert!(left.is_empty(), "{left:?}");
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/", ".", "/root"] {
        assert!(!Path::new(folder).join(mark).exists(), "{folder}/{mark}");
    }
}

/// Number of temporary folders of this process.
fn folders() -> usize {
    let prefix = format!("grove-sandbox-{}-", std::process::id());
    let names = fs::read_dir(std::env::temp_dir()).unwrap();
    names
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix))
        .count()
}

/// Runs each once, or as many in total as `GROVE_HOSTILE` says.
#[test]
fn hostile_answers_neither_escape_nor_score() {
    let mark = format!("grove-hostile-{}", std::process::id());
    let wanted = std::env::var("GROVE_HOSTILE").map_or(0usize, |number| number.parse().unwrap());
    let rounds = (wanted / 2).div_ceil(HOSTILE.len()).max(1);
    for access in [Access::Restricted, Access::Full] {
        let task = open_with(if rounds == 1 { 0.3 } else { 0.1 });
        run_hostile(&task, &mark, access, rounds);
        assert!(folders() > 0);
        drop(task);
        assert_nothing_is_left(&mark);
    }
}

/// Covers more problems than a server caches, a very long answer (regression: a buffer above the memory limit), and more
/// results than fit into 64 KiB.
#[test]
fn servers_handle_many_problems_and_long_answers() {
    let task = open_with(4.0);
    let many = Job { calls: vec!["1"; 2_000], ..Job::default() };
    let results = task.report(&many).unwrap().unwrap().results;
    assert!(results.len() == 2_000 && results.iter().all(Option::is_some));
    for i in 0..300 {
        let [signature, code] = ["val f : int -> int", &format!("let f x = x + {i}")];
        let asked = Job { signature, code, calls: vec!["f 1", "f (-2)"], ..Job::default() };
        let values = [format!("{}", i + 1), format!("{}", i - 2)];
        let calls = values.iter().map(String::as_str).collect();
        let [found, right] = [asked, Job { calls, ..Job::default() }].map(|job| {
            task.report(&job).unwrap().unwrap_or_else(|why| panic!("problem {i}: {why}"))
        });
        assert!(found.results.len() == 2 && found.results.iter().all(Option::is_some), "{i}");
        assert_eq!(found.results, right.results, "problem {i}");
    }
    let problem = problem(&task, "fold/total");
    let good = format!("{}\n{}", problem.head, problem.solution.as_ref().unwrap());
    let long = format!("{good}\n(* {} *)", "so long ".repeat(30_000));
    assert_eq!(report(&task, problem, &long), report(&task, problem, &good));
}

#[test]
fn missing_tools_and_invalid_settings_are_one_sentence() {
    let error = Compiler::at("no-such-ocamlc").unwrap_err().to_string();
    assert_eq!(
        error,
        "the task `ocaml` needs the OCaml compiler, but `no-such-ocamlc` cannot be run; install it (Debian: \
         apt-get install ocaml-nox)"
    );
    let error = |change: fn(&mut OcamlSettings)| {
        let mut settings = OcamlSettings::default();
        change(&mut settings);
        Ocaml::open(&settings).err().unwrap().to_string()
    };
    assert_eq!(
        error(|s| s.limits.cpu_seconds = 0.0),
        "ocaml.cpu_seconds is 0, but must be 0.01 to 60"
    );
    assert_eq!(error(|s| s.limits.memory_mb = 1), "ocaml.memory_mb is 1, but must be 128 to 16384");
    assert!(error(|s| s.problems = "/none.jsonl".into()).starts_with("cannot read /none.jsonl: "));

    let folder = TempDir::new().unwrap();
    let path = folder.path().join("own.jsonl");
    let good = r#"{"id": "a", "family": "f", "difficulty": 1, "split": "train", "words": "One.", "head": "let f =",
        "signature": "val f : int", "tests": [["f", "1"]]}"#
        .replace('\n', " ");
    let own = |text: &str| {
        fs::write(&path, text).unwrap();
        let settings =
            OcamlSettings { problems: path.display().to_string(), ..OcamlSettings::default() };
        Ocaml::open(&settings)
    };
    let wrong = |text: &str| own(text).err().unwrap().to_string();
    let said = wrong(&format!("{good}\n\n{good}"));
    assert!(said.ends_with("own.jsonl, line 3: duplicate `id` \"a\""), "{said}");
    assert!(wrong("{}").contains("line 1: not a problem: missing field"), "{}", wrong("{}"));
    let task = own(&good).unwrap();
    assert_eq!(task.max_new_tokens(), 256);
    // Models whose tokens are characters have room for every solution.
    let long = good.replacen('{', &format!("{{\"solution\": \"{}1\", ", " ".repeat(300)), 1);
    assert!(own(&long).unwrap().max_new_tokens() > 301);
    let prompt = task.prompt(Split::Train, 0).unwrap();
    let rewards =
        task.verify(&[Completion::new(&prompt, " 1"), Completion::new(&prompt, " 2")]).unwrap();
    let totals: Vec<f64> = rewards.iter().map(|r| r.total(task.parts())).collect();
    assert!((totals[0] - 1.0).abs() < 1e-9 && (totals[1] - 0.35).abs() < 1e-9, "{totals:?}");
    assert!(task.prompt(Split::Test, 0).unwrap_err().to_string().contains("no test prompt"));
    // A malformed test is an error, not a reward of 0.
    let task = own(&good.replace("\"1\"", "\"1 +\"")).unwrap();
    let error = task.verify(&[Completion::new(&prompt, " 1")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tests of the OCaml problem \"a\" cannot be used: test 1 does not compile: Syntax error"
    );
    let _ = Job::default();
}
