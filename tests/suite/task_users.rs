//! Sandboxes of an ordinary user, of one without a home, without namespaces, and after the end of their trainer.

use crate::support::{GIVES_ONE, Scratch, command, stderr, stdout, wait_for};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The user and the group.
const USER: &str = "1234";

/// A folder with programs that every user can run, and one to write to.
struct Place {
    folder: Scratch,
}

impl Place {
    fn new() -> Self {
        let folder = Scratch::new();
        let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        open(&folder, 0o755).unwrap();
        fs::create_dir(folder.join("tmp")).unwrap();
        open(&folder.join("tmp"), 0o777).unwrap();
        Self { folder }
    }

    /// A copy of a program.
    fn program(&self, program: impl AsRef<Path>) -> PathBuf {
        let copy = self.folder.join(program.as_ref().file_name().unwrap());
        if !copy.exists() {
            // Another process copies it: a child of another test could inherit a descriptor that is open for writing,
            // and the system would refuse to run the file.
            let mut install = Command::new("install");
            install.args(["-m", "755"]).arg(program.as_ref()).arg(&copy);
            assert!(install.status().unwrap().success());
        }
        copy
    }

    /// Runs a program as an ordinary user without a home; the first of the `words` is its path.
    fn run(&self, words: &[&str]) -> Output {
        // SAFETY: has no preconditions.
        let is_root = unsafe { libc::geteuid() } == 0;
        let as_user =
            ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"].map(str::to_string);
        let before = if is_root { as_user.to_vec() } else { vec!["env".to_string()] };
        Command::new(&before[0])
            .args(&before[1..])
            .args(words)
            .current_dir(self.folder.join("tmp"))
            .env("TMPDIR", self.folder.join("tmp"))
            .env_remove("HOME")
            .env_remove("XDG_CACHE_HOME")
            .output()
            .unwrap()
    }

    /// Whether the system lets ordinary users have namespaces.
    fn has_namespaces(&self) -> bool {
        self.run(&["unshare", "--user", "--map-root-user", "--mount", "true"]).status.success()
    }

    /// Runs the program on a verifier that gives 1 to everything.
    fn verify(&self, before: &[&str], more: &[&str]) -> Output {
        let tmp = self.folder.join("tmp");
        fs::write(tmp.join("own.jsonl"), "{\"prompt\": \"a\", \"split\": \"test\"}\n").unwrap();
        fs::write(tmp.join("one.py"), GIVES_ONE).unwrap();
        let grove = self.program(env!("CARGO_BIN_EXE_grove")).display().to_string();
        let words =
            ["verify", "--task-data", "own.jsonl", "--verifier", "python3 one.py", "--json"];
        self.run(&[before, &[&grove], &words[..], more].concat())
    }
}

/// Runs a program where no namespaces can be made, and without the capabilities of their owner.
const WITHOUT_NAMESPACES: [&str; 6] = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all \"$0\" \"$@\"",
];

#[test]
fn sandboxes_hold_for_an_ordinary_user_without_a_home() {
    let place = Place::new();
    if !place.has_namespaces() {
        let refused = stderr(&place.verify(&[], &[]));
        assert!(refused.contains("does not permit namespaces"), "{refused}");
        return;
    }
    let suite = place.program(std::env::current_exe().unwrap()).display().to_string();
    let tests = [
        "task_ocaml::the_sandbox_blocks_ways_out",
        "task_ocaml::servers_are_apart_and_replaced_after_an_attack",
        "task_sandbox::a_sandboxed_verifier_reaches_what_it_needs_and_nothing_else",
    ];
    let output = place.run(&[&[&suite, "--exact"], &tests[..]].concat());
    let said = stdout(&output);
    assert!(output.status.success() && said.contains("3 passed"), "{said}{}", stderr(&output));
}

#[test]
fn without_namespaces_tasks_need_an_explicit_permission() {
    let place = Place::new();
    let before: &[&str] = if place.has_namespaces() { &WITHOUT_NAMESPACES } else { &[] };
    let refused = place.verify(before, &[]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    let expected = ["does not permit namespaces", "--verifier-sandbox=off"];
    assert!(expected.iter().all(|part| said.contains(part)), "{said}");
    let permitted = place.verify(before, &["--verifier-sandbox", "off"]);
    assert!(permitted.status.success(), "{}", stderr(&permitted));

    let grove = place.program(env!("CARGO_BIN_EXE_grove")).display().to_string();
    let ocaml = [&grove[..], "verify", "ocaml", "--prompts", "1", "--json"];
    let refused = place.run(&[before, &ocaml].concat());
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    let expected = ["does not permit namespaces", "--set ocaml.unsafe=true"];
    assert!(expected.iter().all(|part| said.contains(part)), "{said}");
    let permitted = place.run(&[before, &ocaml, &["--set", "ocaml.unsafe=true"]].concat());
    assert!(permitted.status.success(), "{}", stderr(&permitted));
}

/// The fields of a process after its name, from its state on; `None` if it is gone.
fn status(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.rsplit_once(')')?.1.split_whitespace();
    let fields: Vec<String> = fields.map(str::to_string).collect();
    (!["Z", "X"].contains(&fields[0].as_str())).then_some(fields)
}

/// All processes below one, with the times of their starts.
fn below(root: u32) -> Vec<(u32, String)> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<(u32, Vec<String>)> = pids.filter_map(|pid| Some((pid, status(pid)?))).collect();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let is_child = |fields: &[String]| fields[1] == parent.to_string();
        for (pid, fields) in all.iter().filter(|(_, fields)| is_child(fields)) {
            parents.push(*pid);
            found.push((*pid, fields[19].clone()));
        }
    }
    found
}

/// Starts a run, kills it once it has so many processes below it, and waits for the end of these.
fn assert_processes_end(folder: &Path, arguments: &[&str], processes: usize) {
    let mut run = command(folder, arguments);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut started = Vec::new();
    wait_for("the processes of a verifier", || {
        started = below(run.id());
        started.len() >= processes
    });
    run.kill().unwrap();
    run.wait().unwrap();
    let runs = |(pid, start): &(u32, String)| status(*pid).is_some_and(|now| now[19] == *start);
    wait_for("the end of all processes", || !started.iter().any(runs));
}

#[test]
fn verifiers_and_servers_end_with_a_trainer_that_is_killed() {
    let folder = &Scratch::new();
    fs::write(folder.join("own.jsonl"), "{\"prompt\": \"a\", \"split\": \"test\"}\n").unwrap();
    // Neither the end of its input nor a signal but SIGKILL ends it or its child.
    let script = "import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                  subprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)\n";
    fs::write(folder.join("silent.py"), script).unwrap();
    let verify = ["verify", "--task-data", "own.jsonl", "--verifier", "python3 silent.py"];
    // A watcher outside of the namespace, a shell or Python in its place, and the child.
    assert_processes_end(folder, &verify, 3);
    // Python, perhaps a shell around it, its child, and a watcher.
    assert_processes_end(folder, &[&verify[..], &["--verifier-sandbox=off"]].concat(), 3);
    assert_processes_end(folder, &["verify", "ocaml", "--prompts", "10000", "--attack"], 4);
}
