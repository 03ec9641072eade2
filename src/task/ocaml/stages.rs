//! A checker with one sandboxed process per stage: type checking, compilation with linking, and execution.
//!
//! It requires `ocamlc` alone, and is about ten times as slow as the persistent checker. Tests compare the two.

use super::job::{Compiler, Job, OcamlLimits};
use super::report::{Compiled, Report, Types};
use crate::task::TaskError;
use crate::task::process::kill_group;
use crate::task::sandbox::{Folder, Limits, Sandbox, Scratch};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of type checking, seconds.
const TYPES: f64 = 5.0;
/// Time limit of compilation, seconds.
const COMPILE: f64 = 10.0;

/// Maximum bytes read from a process's output.
const MAX_OUTPUT: u64 = 1 << 16;

/// A checker that runs each stage in its own process.
pub struct Stages {
    sandbox: Sandbox,
    folder: Folder,
    compiler: Compiler,
    limits: OcamlLimits,
    runs: AtomicUsize,
}

impl Stages {
    /// Creates the sandbox.
    ///
    /// # Errors
    /// If no sandbox can be created on this machine.
    pub fn start(compiler: &Compiler, limits: OcamlLimits) -> Result<Self, TaskError> {
        let make = || {
            let folder = Folder::new()?;
            let bounds = Limits {
                cpu_seconds: limits.cpu_seconds.ceil() as u64 + 1,
                memory: u64::from(limits.memory_mb) << 20,
                file_size: 1 << 20,
                processes: u64::from(limits.processes) + 3,
                files: 64,
            };
            let sandbox = Sandbox::new(
                bounds,
                &folder.inner("try")?,
                compiler.access_to_compile(folder.path()),
            )?;
            let (compiler, runs) = (compiler.clone(), AtomicUsize::new(0));
            Ok(Self { sandbox, folder, compiler, limits, runs })
        };
        make().map_err(|e: io::Error| {
            TaskError::Verifier(format!("cannot create a sandbox for OCaml: {e}"))
        })
    }

    /// The restrictions that cannot be enforced on this machine, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.sandbox.notes()
    }

    /// Runs all stages on a piece of code; an `Err` describes a system failure.
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
            Exit::Success => Types::Errors(0),
            Exit::Timeout => Types::Unknown,
            Exit::Failure(text) if !text.contains("Error") => Types::Unknown,
            Exit::Failure(text) if is_syntax_error(&text) => Types::Syntax,
            Exit::Failure(text) => Types::Errors(text.matches("Error:").count().max(1) as u32),
        };
        let mut report = Report { types, compiled: Compiled::No, results: Vec::new() };
        if types != Types::Errors(0) {
            return Ok(report);
        }
        // The next stage runs as another user, which cannot overwrite the files of this one.
        for output in files
            .iter()
            .flat_map(|file| ["cmi", "cmo"].map(|end| folder.join(file).with_extension(end)))
        {
            let _ = fs::remove_file(output);
        }
        files.push("main.ml");
        let compile = self.run(
            compiler,
            folder,
            [&["-w", "-a", "-o", "program"], &files[..]].concat(),
            COMPILE,
        )?;
        report.compiled = match compile {
            Exit::Success => Compiled::Yes,
            _ => Compiled::Refused("linking".to_string()),
        };
        if report.compiled == Compiled::Yes {
            let limit = self.limits.wall_seconds();
            self.run(&self.compiler.runtime, folder, vec!["program"], limit)?;
            report.results = results(&folder.join("results"))?;
        }
        Ok(report)
    }

    /// Runs a program in the sandbox, at most for `seconds`.
    fn run<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        folder: &Path,
        arguments: Vec<S>,
        seconds: f64,
    ) -> io::Result<Exit> {
        let mut command =
            self.sandbox.command(&program.to_string_lossy(), folder, Scratch::Shared)?;
        let stderr = folder.join("stderr");
        let mut child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr)?)
            .spawn()?;
        let success = wait(&mut child, Duration::from_secs_f64(seconds));
        kill_group(&mut child);
        child.wait()?;
        Ok(match success {
            None => Exit::Timeout,
            Some(true) => Exit::Success,
            Some(false) => {
                let mut text = Vec::new();
                File::open(&stderr)?.take(MAX_OUTPUT).read_to_end(&mut text)?;
                Exit::Failure(String::from_utf8_lossy(&text).into_owned())
            }
        })
    }
}

/// The outcome of a process.
enum Exit {
    Success,
    Timeout,
    /// Failed, with its standard error.
    Failure(String),
}

/// OCaml code that writes the digest of a call's value to a file, as the persistent checker does.
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

/// Whether the compiler's output reports a syntax error.
fn is_syntax_error(text: &str) -> bool {
    ["Syntax error", "Illegal", "not terminated", "Invalid literal", "unmatched"]
        .iter()
        .any(|words| text.contains(words))
}

/// Reads the digests of the calls that were reached.
fn results(path: &PathBuf) -> io::Result<Vec<Option<String>>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_OUTPUT).read_to_end(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().map(|line| (line != "-").then(|| line.to_string())).collect())
}

/// Waits for a process and returns whether it succeeded; `None` if it exceeded the limit.
fn wait(child: &mut Child, limit: Duration) -> Option<bool> {
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
