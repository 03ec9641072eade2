//! The sandbox of user-defined verifiers, and approval to run them.

use crate::support::{GIVES_ONE, HANG, Scratch, command, stderr};
use grove::task::{Completion, DataTask, Prompt, Task, Verifier, VerifierOptions, VerifierSandbox};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A verifier that evaluates the completion as an expression of Python.
const EVALUATES: &str = r#"
import json, os, socket, subprocess, sys

def succeeds(attempt):
    try:
        attempt()
        return 1
    except Exception:
        return 0

for line in sys.stdin:
    asked = json.loads(line)
    reward = eval(asked["completion"])
    print(json.dumps({"id": asked["id"], "reward": reward}), flush=True)
"#;

fn rewards(options: VerifierOptions, texts: &[String]) -> Vec<f64> {
    let verifier =
        Verifier::start(VerifierOptions { timeout_seconds: HANG.as_secs_f64(), ..options })
            .unwrap();
    let prompt = Prompt { text: "p".to_string(), ..Prompt::default() };
    let all: Vec<_> = texts.iter().map(|text| Completion::new(&prompt, text)).collect();
    let found = verifier.verify(&all).unwrap();
    found
        .into_iter()
        .map(|rewards| {
            assert_eq!(rewards.problem, None);
            rewards.values[0]
        })
        .collect()
}

#[test]
fn a_sandboxed_verifier_reaches_what_it_needs_and_nothing_else() {
    let [ours, others] = [(); 2].map(|()| Scratch::new());
    fs::write(ours.join("verifier.py"), EVALUATES).unwrap();
    fs::write(ours.join("words.txt"), "one").unwrap();
    let secret = others.join("secret");
    fs::write(&secret, "secret").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let read = format!("succeeds(lambda: open({:?}).read())", secret.display().to_string());
    let connect = format!("succeeds(lambda: socket.create_connection(('127.0.0.1', {port})))");
    let outside = [
        read.clone(),
        connect.clone(),
        "succeeds(lambda: open('words.txt', 'w'))".to_string(),
        "succeeds(lambda: open('new.txt', 'w'))".to_string(),
        "succeeds(lambda: os.listdir('/proc/self'))".to_string(),
        format!("succeeds(lambda: os.kill({}, 0))", std::process::id()),
    ];
    let needed = [
        "succeeds(lambda: open('words.txt').read())".to_string(),
        "succeeds(lambda: open(os.environ['TMPDIR'] + '/x', 'w').write('x'))".to_string(),
        "succeeds(lambda: subprocess.run(['sh', '-c', 'true'], check=True))".to_string(),
        "succeeds(lambda: __import__('asyncio').run(__import__('asyncio').sleep(0)))".to_string(),
        "succeeds(lambda: os.urandom(4))".to_string(),
    ];
    let options = |sandbox| VerifierOptions {
        folder: Some(ours.to_path_buf()),
        sandbox,
        ..VerifierOptions::new("python3 verifier.py")
    };
    let on = VerifierSandbox { is_on: true, ..VerifierSandbox::default() };
    assert_eq!(rewards(options(on.clone()), &outside), [0.0; 6]);
    assert_eq!(rewards(options(on.clone()), &needed), [1.0; 5]);
    assert_eq!(fs::read_to_string(ours.join("words.txt")).unwrap(), "one");
    // As far as it is permitted more, it reaches more.
    let readable = vec![others.canonicalize().unwrap()];
    let allowed = VerifierSandbox { readable, has_network: true, ..on };
    assert_eq!(rewards(options(allowed), &[read.clone(), connect.clone()]), [1.0, 1.0]);
    assert_eq!(rewards(options(VerifierSandbox::default()), &[read, connect]), [1.0, 1.0]);
}

#[test]
fn an_allowed_path_is_readable_however_it_is_named() {
    let place = Scratch::new();
    let place = place.canonicalize().unwrap();
    let folder = place.join("work");
    fs::create_dir_all(place.join("data/all")).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("verifier.py"), EVALUATES).unwrap();
    fs::write(place.join("data/all/words.txt"), "one").unwrap();
    std::os::unix::fs::symlink("../link", folder.join("inner")).unwrap();
    std::os::unix::fs::symlink("data", place.join("link")).unwrap();
    let options = |path: &Path| {
        let readable = vec![path.to_path_buf()];
        let sandbox = VerifierSandbox { is_on: true, readable, ..VerifierSandbox::default() };
        let command = "python3 verifier.py";
        VerifierOptions { folder: Some(folder.clone()), sandbox, ..VerifierOptions::new(command) }
    };
    let read =
        |path: &Path| format!("succeeds(lambda: open({:?}).read())", path.display().to_string());
    let paths = ["../data/all", "../link", "inner", "../link/all/words.txt"].map(PathBuf::from);
    for path in paths.into_iter().chain([folder.join("../data"), place.join("link")]) {
        let words = ["", "words.txt", "all/words.txt"].map(|below| path.join(below));
        let words = words.into_iter().find(|words| folder.join(words).is_file());
        let words = words.unwrap_or_else(|| path.clone());
        assert_eq!(rewards(options(&path), &[read(&words)]), [1.0], "{path:?}");
    }
    let secret = place.join("data/all/words.txt");
    assert_eq!(rewards(options(Path::new("verifier.py")), &[read(&secret)]), [0.0]);
    for (path, said) in [
        ("../none", "../none (--verifier-allow, data.readable) cannot be read: No such"),
        ("/", "is the whole machine"),
    ] {
        let error = Verifier::start(options(Path::new(path))).err().unwrap().to_string();
        assert!(error.contains(said) && error.contains("data.readable"), "{error}");
    }
}

/// A program in a completion has the verifier's standard input, if the verifier leaves it to it.
#[cfg(target_os = "linux")]
#[test]
fn a_sandboxed_process_cannot_copy_what_is_in_a_pipe() {
    let ours = Scratch::new();
    fs::write(ours.join("verifier.py"), EVALUATES).unwrap();
    let tee = "__import__('ctypes').CDLL(None, use_errno=True).tee(*[os.pipe()[i] for i in (0, 1)], 1, 2)";
    let attempt = format!("float({tee} < 0 and __import__('ctypes').get_errno() == 1)");
    let options = |is_on| VerifierOptions {
        folder: Some(ours.to_path_buf()),
        sandbox: VerifierSandbox { is_on, ..VerifierSandbox::default() },
        ..VerifierOptions::new("python3 verifier.py")
    };
    let attempts = [attempt];
    assert_eq!(rewards(options(true), &attempts), [1.0]);
    assert_eq!(rewards(options(false), &attempts), [0.0]);
}

/// Code of a model could look the solution up.
#[test]
fn a_sandboxed_verifier_finds_the_file_of_prompts_empty_unless_it_is_named() {
    let ours = Scratch::new();
    let ours = ours.canonicalize().unwrap();
    fs::write(ours.join("verifier.py"), EVALUATES).unwrap();
    fs::create_dir(ours.join("data")).unwrap();
    let prompts = ours.join("data/prompts.jsonl");
    fs::write(&prompts, "{\"prompt\": \"2+2=\", \"solution\": \"1\"}\n").unwrap();
    std::os::unix::fs::symlink("data/prompts.jsonl", ours.join("link.jsonl")).unwrap();
    let read = |command: &str, readable: Vec<PathBuf>| {
        let sandbox = VerifierSandbox { is_on: true, readable, ..VerifierSandbox::default() };
        let options = VerifierOptions {
            folder: Some(ours.clone()),
            timeout_seconds: HANG.as_secs_f64(),
            sandbox,
            ..VerifierOptions::new(command)
        };
        let task = DataTask::open(&ours.join("link.jsonl"), Some(options)).unwrap();
        let prompt = Prompt { text: "2+2=".to_string(), ..Prompt::default() };
        let texts = ["link", "data/prompts"]
            .map(|name| format!("succeeds(lambda: open('{name}.jsonl').read()[0])"));
        let completions = texts.each_ref().map(|text| Completion::new(&prompt, text));
        let rewards = task.verify(&completions).unwrap();
        rewards.into_iter().map(|rewards| rewards.values[0]).collect::<Vec<_>>()
    };
    assert_eq!(read("python3 verifier.py", vec![]), [0.0, 0.0]);
    for path in [ours.join("data"), PathBuf::from("data")] {
        assert_eq!(read("python3 verifier.py", vec![path]), [1.0, 1.0]);
    }
    assert_eq!(read("python3 verifier.py --of data/prompts.jsonl", vec![]), [1.0, 1.0]);
}

/// Runs the program with its own cache.
fn with_cache(folder: &Path, cache: &str, arguments: &[&str]) -> Output {
    command(folder, arguments).env("XDG_CACHE_HOME", folder.join(cache)).output().unwrap()
}

#[test]
fn a_verifier_runs_for_those_who_gave_it_or_trust_it() {
    let place = &Scratch::new();
    let lines: String =
        (0..8).map(|i| format!("{{\"prompt\": \"{i}\", \"solution\": \"{i}\"}}\n")).collect();
    fs::write(place.join("own.jsonl"), &lines).unwrap();
    fs::write(place.join("one.py"), format!("open('ran', 'w')\n{GIVES_ONE}")).unwrap();
    let ran = || fs::remove_file(place.join("ran")).is_ok();
    let train = ["train", "--task-data", "own.jsonl"];
    let verifier = ["--verifier", "python3 one.py", "--verifier-sandbox", "off"];
    let sizes = ["--model", "tiny", "--iterations", "1", "--run-dir", "run"];
    let set = ["--set", "checkpoint.eval_episodes=1"];
    let done = with_cache(place, "mine", &[&train[..], &verifier, &sizes, &set].concat());
    assert!(done.status.success() && ran(), "{}", stderr(&done));
    let eval = ["eval", "run", "--episodes", "1", "--k", "1"];
    let resume = ["train", "--resume", "--run-dir", "run", "--iterations", "2"];
    let config = ["train", "--config", "run/config.toml", "--dry-run"];
    for command in [&eval[..], &resume, &config] {
        let refused = with_cache(place, "other", command);
        let said = stderr(&refused);
        assert!(!refused.status.success() && !ran(), "{command:?}: {said}");
        assert!(said.contains("python3 one.py") && said.contains("--trust"), "{said}");
        let same = with_cache(place, "mine", command);
        assert!(same.status.success() && ran(), "{command:?}: {}", stderr(&same));
    }
    let trusted = with_cache(place, "third", &[&eval[..], &["--trust"]].concat());
    assert!(trusted.status.success() && ran(), "{}", stderr(&trusted));
    // The command alone does not permit the run to switch the sandbox off.
    let command = [&eval[..], &["--verifier", "python3 one.py"]].concat();
    let loose = with_cache(place, "fourth", &command);
    let said = stderr(&loose);
    assert!(said.contains("sandbox = false") && said.contains("--verifier-sandbox"), "{said}");
    assert!(!loose.status.success() && !ran(), "{said}");
    let given =
        with_cache(place, "fourth", &[&command[..], &["--verifier-sandbox", "off"]].concat());
    assert!(given.status.success() && ran(), "{}", stderr(&given));
    let other = with_cache(place, "mine", &[&eval[..], &["--verifier", "cat"]].concat());
    assert!(!other.status.success() && stderr(&other).contains("not `cat`"), "{}", stderr(&other));
    assert!(!ran());
    // The options serve a settings file, and a file of prompts named by `--set`, as well.
    let by_set = ["train", "data", "--set", "data.path=own.jsonl", "--dry-run"];
    for (cache, command) in [("config", &config[..]), ("set", &by_set)] {
        let given = with_cache(place, cache, &[command, &verifier].concat());
        assert!(given.status.success() && ran(), "{command:?}: {}", stderr(&given));
    }

    // A folder that only a settings file names may hold another program of the same name.
    fs::create_dir(place.join("theirs")).unwrap();
    fs::copy(place.join("one.py"), place.join("theirs/one.py")).unwrap();
    let theirs = format!("[data]\nfolder = {:?}\n", place.join("theirs"));
    fs::write(place.join("theirs.toml"), theirs).unwrap();
    let set = ["--set", "data.verifier=python3 one.py", "--config", "theirs.toml", "--dry-run"];
    let refused = with_cache(place, "fifth", &[&train[..], &set].concat());
    let said = stderr(&refused);
    assert!(!refused.status.success() && !place.join("theirs/ran").exists(), "{said}");
    assert!(said.contains("theirs\"") && said.contains("--trust"), "{said}");
    let twice = [&train[..], &verifier[..2], &["--set", "data.verifier=cat", "--dry-run"]].concat();
    let said = stderr(&with_cache(place, "fifth", &twice));
    assert!(said.contains("`data.verifier` is given twice"), "{said}");

    // Settings that permit more than those that were approved.
    let text = fs::read_to_string(place.join("run/config.toml")).unwrap();
    for (key, strict, loose) in [("network", "false", "true"), ("readable", "[]", "[\"/\"]")] {
        let [strict, loose] = [strict, loose].map(|value| format!("\n{key} = {value}"));
        assert!(text.contains(&strict), "{text}");
        fs::write(place.join("loose.toml"), text.replace(&strict, &loose)).unwrap();
        let refused = with_cache(place, "mine", &["train", "--config", "loose.toml", "--dry-run"]);
        let said = stderr(&refused);
        assert!(said.contains(loose.trim()) && said.contains("--trust"), "{said}");
        assert!(!refused.status.success() && !ran(), "{said}");
    }

    // The prompts have changed.
    fs::write(place.join("own.jsonl"), format!("{lines}\n")).unwrap();
    for command in [&eval[..], &config] {
        let said = stderr(&with_cache(place, "mine", command));
        assert!(said.contains("own.jsonl is not the file that the run was given"), "{said}");
        assert!(!ran(), "{said}");
    }
    fs::write(place.join("own.jsonl"), lines).unwrap();

    // The prompts have moved.
    fs::rename(place.join("own.jsonl"), place.join("moved.jsonl")).unwrap();
    let lost = with_cache(place, "mine", &eval);
    assert!(!lost.status.success() && stderr(&lost).contains("--task-data"), "{}", stderr(&lost));
    let found = with_cache(place, "mine", &[&eval[..], &["--task-data", "moved.jsonl"]].concat());
    assert!(found.status.success(), "{}", stderr(&found));
    fs::write(place.join("others.jsonl"), "{\"prompt\": \"1\", \"solution\": \"2\"}\n").unwrap();
    let wrong = with_cache(place, "mine", &[&eval[..], &["--task-data", "others.jsonl"]].concat());
    assert!(stderr(&wrong).contains("is not the file"), "{}", stderr(&wrong));
}

#[test]
fn code_without_a_sandbox_runs_with_approval_alone() {
    let place = &Scratch::new();
    let config = "task = \"ocaml\"\n[ocaml]\nunsafe = true\n[fit]\niterations = 0\n[generation]\nnum_prompts = 1\n\
                  group_size = 2\nmax_new_tokens = 4\n[checkpoint]\neval_episodes = 1\n";
    fs::write(place.join("loose.toml"), config).unwrap();
    let train = ["train", "--config", "loose.toml", "--dry-run"];
    let refused = with_cache(place, "mine", &train);
    let said = stderr(&refused);
    assert!(said.contains("ocaml.unsafe = true") && said.contains("--trust"), "{said}");
    assert!(!refused.status.success());
    for given in [&["--trust"][..], &["--set", "ocaml.unsafe=true"]] {
        let cache = given[0].trim_start_matches('-');
        for command in [&[&train[..], given].concat()[..], &train] {
            let permitted = with_cache(place, cache, command);
            assert!(permitted.status.success(), "{command:?}: {}", stderr(&permitted));
        }
    }
}

#[test]
fn a_run_keeps_to_its_file_of_problems() {
    let place = &Scratch::new();
    let row = |id: &str, split: &str| {
        let head = "let f (x : int) : int =";
        format!(
            "{{\"id\": \"{id}\", \"prompt\": \"(* {id} *)\\n{head}\", \"tests\": \"let () = assert (f 1 = 2)\", \
             \"solution\": \" x + 1\", \"split\": \"{split}\"}}\n"
        )
    };
    let rows = [row("one", "train"), row("two", "test")].concat();
    fs::write(place.join("rows.jsonl"), &rows).unwrap();
    let fit = ["fit", "ocaml", "--model", "tiny", "--iterations", "1", "--run-dir", "run"];
    let set = ["--set", "ocaml.problems=rows.jsonl", "--set", "checkpoint.eval_episodes=1"];
    let done = with_cache(place, "mine", &[&fit[..], &set].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let eval = ["eval", "run", "--episodes", "1", "--k", "1"];
    let same = with_cache(place, "mine", &eval);
    assert!(same.status.success(), "{}", stderr(&same));

    fs::write(place.join("rows.jsonl"), rows.replace("x + 1", "x + 2")).unwrap();
    let changed = stderr(&with_cache(place, "mine", &eval));
    assert!(changed.contains("rows.jsonl is not the file that the run was given"), "{changed}");

    fs::remove_file(place.join("rows.jsonl")).unwrap();
    let lost = stderr(&with_cache(place, "mine", &eval));
    assert!(lost.contains("no longer exists") && lost.contains("--task-data"), "{lost}");
    fs::write(place.join("moved.jsonl"), &rows).unwrap();
    let moved = [&eval[..], &["--task-data", "moved.jsonl"]].concat();
    let found = with_cache(place, "mine", &moved);
    assert!(found.status.success(), "{}", stderr(&found));
}
