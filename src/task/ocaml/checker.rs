//! The persistent checker: sandboxed servers built on OCaml's `compiler-libs`, which fork a process for each
//! completion.
//!
//! The server is compiled on first use and cached in the user's cache directory. `assets/ocaml/checker.ml`
//! documents its protocol.

use super::folder::Folder;
use super::job::{Access, Compiler, Job, OcamlLimits};
use super::report::{Compiled, Report, Types};
use crate::task::TaskError;
use crate::task::parallel::lock;
use crate::task::process::{NoAnswer, Process};
use crate::task::sandbox::{Limits, Sandbox, Scratch};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, io};

const SOURCE: &str = include_str!("../../../assets/ocaml/checker.ml");

/// Time allowed for a server's start-up, in addition to the completion's time limit.
const START: Duration = Duration::from_secs(30);
/// Time allowed for a running server's work outside the completion's time limit.
const OVERHEAD: Duration = Duration::from_secs(3);

/// A pool of checker servers.
pub struct Checker {
    sandbox: Sandbox,
    folder: Folder,
    runtime: PathBuf,
    limits: OcamlLimits,
    idle: Mutex<Vec<Process>>,
    started: AtomicUsize,
}

impl Checker {
    /// Compiles the server if it is not cached, and starts one.
    ///
    /// # Errors
    /// If the server does not compile or does not answer.
    pub fn start(compiler: &Compiler, limits: OcamlLimits) -> Result<Self, TaskError> {
        let program = compiled(compiler)?;
        let wrong = |e: io::Error| broken(&format!("cannot be put into its sandbox: {e}"));
        let folder = Folder::new().map_err(wrong)?;
        // The sandbox's user may not be able to read the cache.
        fs::copy(&program, folder.path().join("checker")).map_err(wrong)?;
        let scratch = folder.inner("try").map_err(wrong)?;
        let bounds = Limits {
            // Each completion has its own timer; this is a backstop.
            cpu_seconds: 600,
            memory: u64::from(limits.memory_mb) << 20,
            file_size: 1 << 20,
            // In addition to the completion's: the server, its process that caches problems, and two
            // short-lived ones.
            processes: u64::from(limits.processes) + 4,
        };
        let sandbox =
            Sandbox::new(bounds, &scratch, compiler.needs(folder.path())).map_err(wrong)?;
        let checker = Self {
            sandbox,
            folder,
            runtime: compiler.runtime.clone(),
            limits,
            idle: Mutex::default(),
            started: AtomicUsize::new(0),
        };
        let test =
            Job { code: "let f = 1", signature: "val f : int", calls: vec!["f"], ..Job::default() };
        let report = checker.report(&test)?.map_err(|problem| broken(&problem))?;
        match report.results[..] {
            [Some(_)] => Ok(checker),
            _ => Err(broken("does not run what it compiles")),
        }
    }

    /// The restrictions that cannot be enforced on this machine, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.sandbox.notes()
    }

    /// Checks a piece of code. The inner `Err` describes a failure that concerns this code, for instance
    /// if two servers end while checking it.
    ///
    /// # Errors
    /// If no server can be started.
    pub fn report(&self, job: &Job) -> Result<Result<Report, String>, TaskError> {
        let mut last = String::new();
        for _ in 0..2 {
            let idle = lock(&self.idle).pop();
            let more = if idle.is_some() { OVERHEAD } else { START };
            let mut server = idle.map_or_else(|| self.server(), Ok)?;
            let limit = Duration::from_secs_f64(self.limits.wall_seconds()) + more;
            match server.ask(|id| self.request(id, job), limit, answer) {
                Ok(report) => {
                    lock(&self.idle).push(server);
                    return Ok(Ok(report));
                }
                Err(NoAnswer::Timeout(_)) => {
                    return Ok(Err("the OCaml checker does not answer".to_string()));
                }
                Err(NoAnswer::Ended(end)) => last = end,
            }
        }
        Ok(Err(format!("the OCaml checker {last} twice on this completion")))
    }

    fn server(&self) -> Result<Process, TaskError> {
        let name = format!("w{}", self.started.fetch_add(1, Ordering::Relaxed));
        let start = || {
            let scratch = self.folder.inner(&name)?;
            let runtime = self.runtime.to_string_lossy();
            let mut command = self.sandbox.command(&runtime, &scratch, Scratch::Private)?;
            Process::start(command.arg(self.folder.path().join("checker")))
        };
        start().map_err(|e| broken(&format!("does not start: {e}")))
    }

    fn request(&self, id: u64, job: &Job) -> Vec<u8> {
        let texts =
            [job.prelude, job.signature, job.code].into_iter().chain(job.calls.iter().copied());
        let texts: Vec<&str> = texts.collect();
        let gate = if job.access == Access::Full { "open" } else { "gate" };
        let mut request =
            format!("{id} {} {} {gate}", self.limits.cpu_seconds, self.limits.wall_seconds());
        texts.iter().for_each(|text| request += &format!(" {}", text.len()));
        request.push('\n');
        request += &texts.concat();
        request.into_bytes()
    }
}

fn broken(how: &str) -> TaskError {
    TaskError::Verifier(format!("the OCaml checker {how}"))
}

/// Parses an answer `ID types compile result...`, which is truncated if the process ended early.
fn answer(id: u64, line: &[u8]) -> Result<Option<Report>, String> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let answered = words.next().and_then(|word| word.parse::<u64>().ok());
    if answered != Some(id) {
        return Ok(None);
    }
    let types = match words.next() {
        Some("syntax") => Types::Syntax,
        Some(word) => word.parse().map_or(Types::Unknown, Types::Errors),
        None => Types::Unknown,
    };
    let compiled = match words.next() {
        Some("ok") => Compiled::Yes,
        Some("no") | None => Compiled::No,
        Some(name) => Compiled::Refused(name.to_string()),
    };
    let results = words.map(|word| (word != "-").then(|| word.to_string())).collect();
    Ok(Some(Report { types, compiled, results }))
}

/// Returns the path of the compiled server, compiling it if it is not cached.
fn compiled(compiler: &Compiler) -> Result<PathBuf, TaskError> {
    let wrong = |e: io::Error| broken(&format!("cannot be compiled: {e}"));
    let key =
        Sha256::digest(format!("{}\0{}\0{SOURCE}", compiler.path.display(), compiler.version));
    let key: String = key.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let cache = cache().join("grove");
    let program = cache.join(format!("ocaml-checker-{key}"));
    if program.exists() {
        return Ok(program);
    }
    let folder = Folder::new().map_err(wrong)?;
    let source = folder.path().join("checker.ml");
    fs::write(&source, SOURCE).map_err(wrong)?;
    let output = Command::new(&compiler.path)
        .current_dir(folder.path())
        .args(["-w", "-a", "-I", "+unix", "-I", "+compiler-libs", "unix.cma", "ocamlcommon.cma"])
        .args(["ocamlbytecomp.cma", "ocamltoplevel.cma", "-linkall", "checker.ml", "-o", "checker"])
        .output()
        .map_err(wrong)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| line.contains("Error")).unwrap_or("no reason is given");
        return Err(broken(&format!("does not compile with OCaml {}: {why}", compiler.version)));
    }
    // Renamed into place atomically, since another process may be doing the same.
    fs::create_dir_all(&cache).map_err(wrong)?;
    let whole = cache.join(format!("ocaml-checker-{key}.{}", std::process::id()));
    fs::copy(folder.path().join("checker"), &whole).map_err(wrong)?;
    fs::rename(&whole, &program).map_err(wrong)?;
    Ok(program)
}

/// The user's cache directory.
fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let given = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    given.or_else(home).unwrap_or_else(env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answers_report_the_stages_reached() {
        let read = |line: &str| answer(7, line.as_bytes()).unwrap().unwrap();
        let report = |types, compiled, results: &[Option<&str>]| {
            let results = results.iter().map(|result| result.map(str::to_string)).collect();
            Report { types, compiled, results }
        };
        assert_eq!(
            read("7 0 ok ab -"),
            report(Types::Errors(0), Compiled::Yes, &[Some("ab"), None])
        );
        assert_eq!(read("7 syntax no"), report(Types::Syntax, Compiled::No, &[]));
        assert_eq!(read("7 3 no"), report(Types::Errors(3), Compiled::No, &[]));
        let refused = Compiled::Refused("Sys.command".to_string());
        assert_eq!(read("7 0 Sys.command"), report(Types::Errors(0), refused, &[]));
        assert_eq!(read("7"), report(Types::Unknown, Compiled::No, &[]));
        assert_eq!(answer(7, b"8 0 ok"), Ok(None));
        assert_eq!(answer(7, b"what"), Ok(None));
    }
}
