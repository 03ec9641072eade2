//! The OCaml task: scores by the compiler and by tests, and the sandbox, which only Linux has.

use crate::support::Scratch;
use grove::task::ocaml::{
    Checker, CodeReport, Compiler, Job, LibraryAccess, Ocaml, OcamlLimits, OcamlSettings, Problem,
    TypeCheck,
};
use grove::task::{Completion, Prompt, Split, Task, TaskError};
use std::fs;
use std::path::Path;

/// The task with a short time limit.
pub fn open() -> Ocaml {
    open_with(0.5)
}

/// The task with a limit on the CPU time of an answer.
pub fn open_with(cpu_seconds: f64) -> Ocaml {
    let limits = OcamlLimits { cpu_seconds, ..OcamlLimits::default() };
    let settings = OcamlSettings { limits, ..OcamlSettings::default() };
    let task = Ocaml::open(&settings).unwrap();
    // Test machines permit root or user namespaces, so that all restrictions are enforced.
    assert_eq!(task.notes(), [""; 0]);
    task
}

/// The task on a file of problems.
pub fn open_file(problems: &Path) -> Result<Ocaml, TaskError> {
    let problems = problems.display().to_string();
    Ocaml::open(&OcamlSettings { problems, ..OcamlSettings::default() })
}

/// All prompts, for training and held out.
pub fn prompts(task: &Ocaml) -> [Vec<Prompt>; 2] {
    [Split::Train, Split::Test].map(|split| {
        let num = task.num_prompts(split).unwrap();
        (0..num).map(|i| task.prompt(split, i).unwrap()).collect()
    })
}

/// The problem with an identifier.
pub fn problem<'a>(task: &'a Ocaml, id: &str) -> &'a Problem {
    task.problems().all().into_iter().find(|problem| problem.id == id).unwrap()
}

/// A problem's solution, with the head that begins it.
pub fn solution(problem: &Problem) -> String {
    format!("{}\n{}", problem.head, problem.solution.as_ref().unwrap())
}

/// The report on an answer that may not reach outside.
pub fn report(task: &Ocaml, problem: &Problem, code: &str) -> CodeReport {
    task.check_answer(problem, code, LibraryAccess::Restricted).unwrap().unwrap()
}

#[test]
fn generated_problems_have_solutions_and_disjoint_splits() {
    let folder = Scratch::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/ocaml/many.py");
    let output =
        std::process::Command::new("python3").args(["-B", script, "150"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = folder.join("many.jsonl");
    fs::write(&path, output.stdout).unwrap();
    let task = open_file(&path).unwrap();
    let asked = prompts(&task);
    assert!(asked[0].len() + asked[1].len() == 150 && asked[1].len() > 2);
    let solutions: Vec<(&_, String)> =
        asked.iter().flatten().map(|prompt| (prompt, task.solution(prompt).unwrap())).collect();
    let all: Vec<_> =
        solutions.iter().map(|(prompt, text)| Completion::new(prompt, text)).collect();
    for (one, rewards) in all.iter().zip(task.verify(&all).unwrap()) {
        let total = rewards.score(task.reward_parts());
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
    let prompts = prompts(&task);
    assert!(prompts[1].len() >= 40);
    let mut completions = Vec::new();
    for prompt in prompts.iter().flatten() {
        let problem = task.problems().find(prompt).unwrap();
        assert!(prompt.text.ends_with(&format!("{}\n", problem.head)) && problem.tests.len() >= 3);
        let wrong = problem.wrong_answers.iter().map(|text| (text.clone(), false));
        completions.extend(wrong.map(|answer| (prompt, answer)));
        completions.push((prompt, (task.solution(prompt).unwrap(), true)));
        // Every test family has training problems.
        assert!(prompts[0].iter().any(|other| other.fields["family"] == prompt.fields["family"]));
    }
    let all: Vec<_> =
        completions.iter().map(|(prompt, (text, _))| Completion::new(prompt, text)).collect();
    assert!(all.len() > 600, "{}", all.len());
    for ((prompt, (text, right)), rewards) in completions.iter().zip(task.verify(&all).unwrap()) {
        let total = rewards.score(task.reward_parts());
        assert_eq!(rewards.problem, None, "{prompt:?} {text}");
        assert_eq!((total - 1.0).abs() < 1e-9, *right, "{total} for\n{}{text}", prompt.text);
    }
}

#[test]
fn errors_are_counted_individually() {
    let task = open();
    let problem = problem(&task, "fold/total");
    let types = |code: &str| report(&task, problem, code).type_check;
    assert_eq!(types("let total l = List.fold_left ( + ) 0 l"), TypeCheck::Errors(0));
    assert_eq!(types("let total l = ("), TypeCheck::Syntax);
    assert_eq!(types("let total l = 'ab'"), TypeCheck::Syntax);
    // A wrong type, an unknown name, and a missing function.
    assert_eq!(types("let total (l : int list) : int = \"a\""), TypeCheck::Errors(1));
    assert_eq!(types("let total (l : int list) : int = lenght l"), TypeCheck::Errors(1));
    assert_eq!(types("let total (l : string) : int = 1"), TypeCheck::Errors(1));
    assert_eq!(types("let other = 1"), TypeCheck::Errors(1));
    // Several errors in one expression, and in consecutive definitions.
    assert_eq!(
        types("let total (l : int list) : int = foo l + bar l + (1 ^ \"a\")"),
        TypeCheck::Errors(4)
    );
    assert_eq!(types("let a = 1 + \"b\" let total l = a + 1 let c = zork"), TypeCheck::Errors(2));
    let many: String = (0..30).map(|i| format!("let a{i} = 1 + \"{i}\"\n")).collect();
    assert_eq!(types(&many), TypeCheck::Errors(10));
    // A redefined type is not the requested one.
    assert_eq!(
        types("type int = string let total (l : int list) : int = \"\""),
        TypeCheck::Errors(1)
    );
}

#[test]
fn the_reward_has_stages() {
    let task = open();
    let [prompts, _] = prompts(&task);
    let prompt = prompts.into_iter().find(|prompt| prompt.fields["id"] == "fold/total").unwrap();
    let total = |text: &str| {
        let rewards = task.verify(&[Completion::new(&prompt, text)]).unwrap().remove(0);
        assert_eq!(rewards.problem, None);
        (rewards.score(task.reward_parts()) * 1e6).round() / 1e6
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
    // One of seven calls gives 0.
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
        let (calls, access) = (calls.clone(), LibraryAccess::Full);
        task.check(&Job { code, signature, calls, access, ..Job::default() })
            .unwrap()
            .unwrap()
            .results
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
    let compiler = Compiler::find("ocamlc").unwrap();
    let limits = OcamlLimits { cpu_seconds: 0.3, ..OcamlLimits::default() };
    let checker = Checker::start(&compiler, limits).unwrap();
    let run = |code: &str| {
        let job = Job { code, signature: "val f : int", calls: vec!["f"], ..Job::default() };
        checker.check(&job).unwrap().unwrap()
    };
    assert_eq!((run("let f = 1").results.len(), checker.num_started()), (1, 1));
    let value = || {
        let job = Job { calls: vec!["1"], ..Job::default() };
        checker.check(&job).unwrap().unwrap().results
    };
    assert_eq!((value(), checker.num_started()), (run("let f = 1").results, 2));
    // Mistakes are not attacks.
    for code in ["let f = (", "let f = \"\"", "let f = raise Exit", "let f = 1"] {
        run(code);
        assert_eq!(checker.num_started(), 2, "{code}");
    }
    for (code, started) in
        [("let f = Sys.command \"true\"", 3), ("let rec g () = g () let f = g ()", 4)]
    {
        run(code);
        run("let f = 1");
        assert_eq!(checker.num_started(), started, "{code}");
    }
    assert_eq!((value().len(), checker.num_started()), (1, 4));
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
fn run_hostile(task: &Ocaml, mark: &str, access: LibraryAccess, rounds: usize) {
    let problem = problem(task, "fold/total");
    let next = std::sync::atomic::AtomicUsize::new(0);
    let good = solution(problem);
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
                    match task.check_answer(problem, &code, access).unwrap() {
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

/// Asserts that no process and no file is left.
fn assert_nothing_is_left(mark: &str) {
    let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let line = fs::read(path.join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    let left: Vec<String> =
        commands.filter(|line| line.contains("sleep 7654") || line.contains(mark)).collect();
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
#[ignore = "attacks: 15 s of CPU time"]
fn hostile_answers_neither_escape_nor_score() {
    let mark = format!("grove-hostile-{}", std::process::id());
    let wanted = std::env::var("GROVE_HOSTILE").map_or(0usize, |number| number.parse().unwrap());
    let rounds = (wanted / 2).div_ceil(HOSTILE.len()).max(1);
    for access in [LibraryAccess::Restricted, LibraryAccess::Full] {
        let task = open_with(if rounds == 1 { 0.3 } else { 0.1 });
        run_hostile(&task, &mark, access, rounds);
        assert!(folders() > 0);
        drop(task);
        assert_nothing_is_left(&mark);
    }
}

/// Covers more problems than a server caches, a very long answer (regression: a buffer above the memory limit), and
/// more results than fit into 64 KiB.
#[test]
fn servers_handle_many_problems_and_long_answers() {
    let task = open_with(4.0);
    let many = Job { calls: vec!["1"; 2_000], ..Job::default() };
    let results = task.check(&many).unwrap().unwrap().results;
    assert!(results.len() == 2_000 && results.iter().all(Option::is_some));
    for i in 0..300 {
        let [signature, code] = ["val f : int -> int", &format!("let f x = x + {i}")];
        let asked = Job { signature, code, calls: vec!["f 1", "f (-2)"], ..Job::default() };
        let values = [format!("{}", i + 1), format!("{}", i - 2)];
        let calls = values.iter().map(String::as_str).collect();
        let [found, right] = [asked, Job { calls, ..Job::default() }].map(|job| {
            task.check(&job).unwrap().unwrap_or_else(|why| panic!("problem {i}: {why}"))
        });
        assert!(found.results.len() == 2 && found.results.iter().all(Option::is_some), "{i}");
        assert_eq!(found.results, right.results, "problem {i}");
    }
    let problem = problem(&task, "fold/total");
    let good = solution(problem);
    let long = format!("{good}\n(* {} *)", "so long ".repeat(30_000));
    assert_eq!(report(&task, problem, &long), report(&task, problem, &good));
}

#[test]
fn missing_tools_and_invalid_settings_are_one_sentence() {
    let error = Compiler::find("no-such-ocamlc").unwrap_err().to_string();
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

    let folder = Scratch::new();
    let path = folder.join("own.jsonl");
    let good = r#"{"id": "a", "family": "f", "difficulty": 1, "split": "train", "words": "One.", "head": "let f =",
        "signature": "val f : int", "tests": [["f", "1"]]}"#
        .replace('\n', " ");
    let own = |text: &str| {
        fs::write(&path, text).unwrap();
        open_file(&path)
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
    let totals: Vec<f64> = rewards.iter().map(|r| r.score(task.reward_parts())).collect();
    assert!((totals[0] - 1.0).abs() < 1e-9 && (totals[1] - 0.35).abs() < 1e-9, "{totals:?}");
    assert!(task.prompt(Split::Test, 0).unwrap_err().to_string().contains("no test prompt"));
    // A malformed test is an error, not a reward of 0.
    let task = own(&good.replace("\"1\"", "\"1 +\"")).unwrap();
    let error = task.verify(&[Completion::new(&prompt, " 1")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tests of the OCaml problem \"a\" cannot be used: test 1 does not compile: Syntax error"
    );
}
