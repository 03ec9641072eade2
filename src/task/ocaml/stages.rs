//! A process per stage: the compiler for types, the compiler with linking, the program, each in the sandbox.
//!
//! It needs nothing but `ocamlc`, and takes about ten times as long as the persistent checker, with which tests
//! compare it.

use super::folder::Folder;
use super::report::{Compiled, Report, Types};
use super::{Compiler, Job, OcamlLimits};
use crate::task::TaskError;
use crate::task::process::end_group;
use crate::task::sandbox::{Limits, Sandbox, Scratch};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds for types, and for compiling.
const TYPES: f64 = 5.0;
const COMPILE: f64 = 10.0;

/// The most that is read of what a process writes.
const LONGEST: u64 = 1 << 16;

/// The sandbox of the stages.
pub struct Stages {
    sandbox: Sandbox,
    folder: Folder,
    compiler: Compiler,
    limits: OcamlLimits,
    runs: AtomicUsize,
}

impl Stages {
    /// Makes the sandbox.
    ///
    /// # Errors
    /// One sentence where there can be none.
    pub fn start(compiler: &Compiler, limits: OcamlLimits) -> Result<Self, TaskError> {
        let make = || {
            let folder = Folder::new()?;
            let bounds = Limits {
                cpu_seconds: limits.cpu_seconds.ceil() as u64 + 1,
                memory: u64::from(limits.memory_mb) << 20,
                file_size: 1 << 20,
                processes: u64::from(limits.processes) + 3,
            };
            let sandbox = Sandbox::new(bounds, &folder.inner("try")?)?;
            let (compiler, runs) = (compiler.clone(), AtomicUsize::new(0));
            Ok(Self { sandbox, folder, compiler, limits, runs })
        };
        make().map_err(|e: io::Error| {
            TaskError::Verifier(format!("there can be no sandbox for OCaml: {e}"))
        })
    }

    /// What cannot be enforced, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.sandbox.notes()
    }

    /// What becomes of a piece of code; a sentence where the system fails.
    pub fn report(&self, job: &Job) -> Result<Report, String> {
        let name = format!("s{}", self.runs.fetch_add(1, Ordering::Relaxed));
        let folder = self.folder.inner(&name).map_err(|e| e.to_string())?;
        let report = self.stages(job, &folder).map_err(|e| format!("the stages of OCaml: {e}"));
        let _ = fs::remove_dir_all(&folder);
        report
    }

    fn stages(&self, job: &Job, folder: &Path) -> io::Result<Report> {
        let write = |name: &str, text: &str| fs::write(folder.join(name), text);
        let opened =
            if job.code.is_empty() { "open! Problem" } else { "open! Problem open! Candidate" };
        let calls: Vec<String> = job
            .calls
            .iter()
            .map(|call| format!("let () = grove_call (fun () -> ({call}))\n"))
            .collect();
        write("problem.ml", job.prelude)?;
        write("main.ml", &format!("{CALL}{opened}\n{}", calls.concat()))?;
        let mut files = vec!["problem.ml"];
        if !job.code.is_empty() {
            write("candidate.mli", &format!("open! Problem\n{}", job.signature))?;
            write("candidate.ml", &format!("open! Problem\n{}", job.code))?;
            files.extend(["candidate.mli", "candidate.ml"]);
        }
        let compiler = &self.compiler.path;
        let types =
            self.run(compiler, folder, [&["-w", "-a", "-c"], &files[..]].concat(), TYPES)?;
        let types = match types {
            Ended::Well => Types::Errors(0),
            Ended::Late => Types::Unknown,
            Ended::Badly(said) if !said.contains("Error") => Types::Unknown,
            Ended::Badly(said) if unreadable(&said) => Types::Syntax,
            Ended::Badly(said) => Types::Errors(said.matches("Error:").count().max(1) as u32),
        };
        let mut report = Report { types, compiled: Compiled::No, results: Vec::new() };
        if types != Types::Errors(0) {
            return Ok(report);
        }
        // The next stage is somebody else's, who may not write over what this one made.
        for made in files
            .iter()
            .flat_map(|file| ["cmi", "cmo"].map(|end| folder.join(file).with_extension(end)))
        {
            let _ = fs::remove_file(made);
        }
        files.push("main.ml");
        let compile = self.run(
            compiler,
            folder,
            [&["-w", "-a", "-o", "program"], &files[..]].concat(),
            COMPILE,
        )?;
        report.compiled = match compile {
            Ended::Well => Compiled::Yes,
            _ => Compiled::Refused("linking".to_string()),
        };
        if report.compiled == Compiled::Yes {
            let limit = self.limits.wall_seconds();
            self.run(&self.compiler.runtime, folder, vec!["program"], limit)?;
            report.results = results(&folder.join("results"))?;
        }
        Ok(report)
    }

    /// Runs a program in the sandbox until it ends or time is over.
    fn run<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        folder: &Path,
        arguments: Vec<S>,
        seconds: f64,
    ) -> io::Result<Ended> {
        let mut command =
            self.sandbox.command(&program.to_string_lossy(), folder, Scratch::Shared)?;
        let said = folder.join("said");
        let mut child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said)?)
            .spawn()?;
        let ended = waited(&mut child, Duration::from_secs_f64(seconds));
        end_group(&mut child);
        child.wait()?;
        Ok(match ended {
            None => Ended::Late,
            Some(true) => Ended::Well,
            Some(false) => {
                let mut text = Vec::new();
                File::open(&said)?.take(LONGEST).read_to_end(&mut text)?;
                Ended::Badly(String::from_utf8_lossy(&text).into_owned())
            }
        })
    }
}

/// How a process ended.
enum Ended {
    Well,
    Late,
    /// With what it said.
    Badly(String),
}

/// What hands a call's value on: into a file of its own, as digests, as the persistent checker does.
const CALL: &str = r#"
let grove_results = open_out "results"
let grove_room = Bytes.create 65536
let grove_call call =
  let digest () =
    let length = Marshal.to_buffer grove_room 0 65536 (call ()) [ Marshal.No_sharing ] in
    Digest.to_hex (Digest.subbytes grove_room 0 length)
  in
  let digest = try digest () with _ -> "-" in
  output_string grove_results (digest ^ "\n");
  flush grove_results
"#;

/// Whether the compiler complains that it cannot read a file.
fn unreadable(said: &str) -> bool {
    ["Syntax error", "Illegal", "not terminated", "Invalid literal", "unmatched"]
        .iter()
        .any(|words| said.contains(words))
}

/// The digests of the calls that were come to.
fn results(path: &PathBuf) -> io::Result<Vec<Option<String>>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(LONGEST).read_to_end(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().map(|line| (line != "-").then(|| line.to_string())).collect())
}

/// Whether a process ended well; `None` where it did not in time.
fn waited(child: &mut Child, limit: Duration) -> Option<bool> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Err(_) => return Some(false),
            Ok(None) if Instant::now() >= deadline => return None,
            Ok(None) => thread::sleep(pause),
        }
        pause = (pause * 5 / 4).min(Duration::from_millis(10));
    }
}
