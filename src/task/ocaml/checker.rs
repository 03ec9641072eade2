//! The persistent checker: sandboxed servers built on OCaml's `compiler-libs`, which fork a process for each
//! completion.
//!
//! The server is compiled on first use and cached in the user's cache directory. `assets/ocaml/checker.ml`
//! documents its protocol.

use super::job::{Compiler, Job, LibraryAccess, OcamlLimits};
use super::report::{CodeReport, Compilation, TypeCheck};
use crate::disk;
use crate::task::TaskError;
use crate::task::cache;
use crate::task::parallel::lock;
use crate::task::process::{NoAnswer, Process, find_on_path, processes_to_try};
use crate::task::sandbox::{Limits, Sandbox, SandboxFolder};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The files of the server, each after those that it uses.
const SOURCES: [(&str, &str); 3] = [
    ("grove_data.ml", include_str!("../../../assets/ocaml/grove_data.ml")),
    ("grove_gate.ml", include_str!("../../../assets/ocaml/grove_gate.ml")),
    ("checker.ml", include_str!("../../../assets/ocaml/checker.ml")),
];

/// Time allowed for a server's start-up, in addition to the completion's time limit.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time allowed for a running server's work outside the completion's time limit.
const OVERHEAD: Duration = Duration::from_secs(3);

/// Pools of checker servers.
///
/// The server of a completion never computes an expected value: a completion is a process forked from it, and
/// could search its memory. Expected values come from servers that see no completions.
pub struct Checker {
    /// Idle servers for completions. Servers end before their sandbox is removed.
    idle: Mutex<Vec<Process>>,
    /// Idle servers for values without a completion.
    idle_for_values: Mutex<Vec<Process>>,
    sandbox: Sandbox,
    folder: SandboxFolder,
    runtime: PathBuf,
    limits: OcamlLimits,
    num_started: AtomicUsize,
}

impl Checker {
    /// Compiles the server if it is not cached, and starts one.
    ///
    /// # Errors
    /// If the server does not compile or does not answer.
    pub fn start(compiler: &Compiler, limits: OcamlLimits) -> Result<Self, TaskError> {
        Self::start_cached(compiler, limits, cache::folder().as_deref())
    }

    /// Starts the server that is cached in a folder; recompiles it if it does not run.
    fn start_cached(
        compiler: &Compiler,
        limits: OcamlLimits,
        cache: Option<&Path>,
    ) -> Result<Self, TaskError> {
        let cached = cache.map(|cache| cache.join(cache_file_name(compiler)));
        let start = || Self::start_from(compiler, limits, cached.as_deref());
        match &cached {
            Some(cached) if cached.exists() => start().or_else(|_| {
                let _ = fs::remove_file(cached);
                start()
            }),
            _ => start(),
        }
    }

    /// Puts the server's program, compiled if `cached` does not exist, into a sandbox, and starts a first server to see
    /// that it runs.
    fn start_from(
        compiler: &Compiler,
        limits: OcamlLimits,
        cached: Option<&Path>,
    ) -> Result<Self, TaskError> {
        let wrong = |e: io::Error| checker_error(&format!("cannot be put into its sandbox: {e}"));
        let folder = SandboxFolder::new().map_err(wrong)?;
        // The sandbox's user may not be able to read the cache.
        let program = folder.path().join("checker");
        fs::copy(compile_server(compiler, cached, &folder)?, &program).map_err(wrong)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o444)).map_err(wrong)?;
        let scratch = folder.create_subfolder("try").map_err(wrong)?;
        let sandbox_limits = Limits {
            // Each completion has its own timer; this is a backstop.
            cpu_seconds: 600,
            memory_bytes: u64::from(limits.memory_mb) << 20,
            file_size_bytes: 1 << 20,
            // In addition to the completion's: the server, its process that caches problems, the one that judges
            // tests, and two short-lived ones.
            processes: u64::from(limits.processes) + 5,
            files: 64,
        };
        let sandbox = Sandbox::new(sandbox_limits, &scratch, compiler.access(folder.path()))
            .map_err(wrong)?;
        let checker = Self {
            sandbox,
            runtime: copy_runtime(compiler, &folder).map_err(wrong)?,
            folder,
            limits,
            idle: Mutex::default(),
            idle_for_values: Mutex::default(),
            num_started: AtomicUsize::new(0),
        };
        let first = checker.start_server()?;
        lock(&checker.idle).push(first);
        Ok(checker)
    }

    /// The restrictions that cannot be enforced on this machine, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.sandbox.notes()
    }

    /// The number of servers started so far, for tests.
    #[doc(hidden)]
    pub fn num_started(&self) -> usize {
        self.num_started.load(Ordering::Relaxed)
    }

    /// Checks a piece of code. The inner `Err` describes a failure that concerns this code, for instance
    /// if two new servers end while checking it.
    ///
    /// # Errors
    /// If no server can be started.
    pub fn check(&self, job: &Job) -> Result<Result<CodeReport, String>, TaskError> {
        let idle = if job.code.is_empty() { &self.idle_for_values } else { &self.idle };
        let limit = Duration::from_secs_f64(self.limits.wall_seconds()) + OVERHEAD;
        let mut last_end = String::new();
        for server in processes_to_try(idle, || self.start_server()) {
            let mut server = server?;
            match server.ask(|id| self.encode_request(id, job), limit, parse_answer) {
                Ok(Answer::Unusable(why)) => {
                    lock(idle).push(server);
                    return Ok(Err(why));
                }
                Ok(Answer::Report { report, is_whole }) => {
                    // Code that was stopped by a signal, or used a forbidden name, may be an attack.
                    if is_whole && !matches!(report.compilation, Compilation::Refused(_)) {
                        lock(idle).push(server);
                    }
                    return Ok(Ok(report));
                }
                Err(NoAnswer::Timeout(_)) => {
                    return Ok(Err("the OCaml checker does not answer".to_string()));
                }
                Err(NoAnswer::Ended(end)) => last_end = end,
            }
        }
        Ok(Err(format!("the OCaml checker {last_end} twice on this completion")))
    }

    /// Starts a server, and waits until it has checked a trivial piece of code.
    fn start_server(&self) -> Result<Process, TaskError> {
        let name = format!("w{}", self.num_started.fetch_add(1, Ordering::Relaxed));
        let start = || {
            let scratch = self.folder.create_subfolder(&name)?;
            let runtime = self.runtime.to_string_lossy();
            let mut command = self.sandbox.command(&runtime, &scratch)?;
            Process::start(command.arg(self.folder.path().join("checker")))
        };
        let mut server = start().map_err(|e| checker_error(&format!("does not start: {e}")))?;
        let trivial =
            Job { code: "let f = 1", signature: "val f : int", calls: vec!["f"], ..Job::default() };
        let asked = server.ask(|id| self.encode_request(id, &trivial), START_TIMEOUT, parse_answer);
        match asked {
            Ok(Answer::Report { report, .. }) if matches!(report.results[..], [Some(_)]) => {
                Ok(server)
            }
            Ok(_) => Err(checker_error("does not run what it compiles")),
            Err(NoAnswer::Timeout(_)) => Err(checker_error("does not answer")),
            Err(NoAnswer::Ended(end)) => Err(checker_error(&end)),
        }
    }

    fn encode_request(&self, id: u64, job: &Job) -> Vec<u8> {
        let texts =
            [job.prelude, job.signature, job.code].into_iter().chain(job.calls.iter().copied());
        let texts: Vec<&str> = texts.collect();
        let gate = if job.access == LibraryAccess::Full { "open" } else { "gate" };
        let mut request =
            format!("{id} {} {} {gate}", self.limits.cpu_seconds, self.limits.wall_seconds());
        texts.iter().for_each(|text| request += &format!(" {}", text.len()));
        request.push('\n');
        request += &texts.concat();
        request.into_bytes()
    }
}

fn checker_error(how: &str) -> TaskError {
    TaskError::Verifier(format!("the OCaml checker {how}"))
}

/// Copies the interpreter of bytecode so that it may be executed but not read: the memory of such a program can be
/// neither read nor traced by other processes of its user.
fn copy_runtime(compiler: &Compiler, folder: &SandboxFolder) -> io::Result<PathBuf> {
    let missing = || io::Error::other(format!("there is no {}", compiler.runtime.display()));
    let copy = folder.path().join("ocamlrun");
    fs::copy(find_on_path(&compiler.runtime).ok_or_else(missing)?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o111))?;
    Ok(copy)
}

/// A server's answer.
#[derive(Debug, PartialEq)]
enum Answer {
    /// The outcome of the code, and whether it came to its end, rather than being stopped.
    Report { report: CodeReport, is_whole: bool },
    /// The calls cannot be compiled, for this reason.
    Unusable(String),
}

/// Parses an answer `ID types compile result... .`, which is truncated if the process ended early, or
/// `ID unusable NUMBER MESSAGE`.
fn parse_answer(id: u64, line: &[u8]) -> Result<Option<Answer>, String> {
    let text = String::from_utf8_lossy(line);
    let is_whole = text.ends_with(" .");
    let mut words = text.trim_end_matches(" .").split_ascii_whitespace();
    let answered = words.next().and_then(|word| word.parse::<u64>().ok());
    if answered != Some(id) {
        return Ok(None);
    }
    let type_check = match words.next() {
        Some("unusable") => {
            let number = words.next().unwrap_or_default();
            let message = words.collect::<Vec<_>>().join(" ");
            return Ok(Some(Answer::Unusable(match number {
                "0" => message,
                number => format!("test {number} does not compile: {message}"),
            })));
        }
        Some("syntax") => TypeCheck::Syntax,
        Some(word) => word.parse().map_or(TypeCheck::Unknown, TypeCheck::Errors),
        None => TypeCheck::Unknown,
    };
    let compilation = match words.next() {
        Some("ok") => Compilation::Succeeded,
        Some("no") | None => Compilation::Failed,
        // The mark tells a name from the words above.
        Some(name) => Compilation::Refused(name.trim_start_matches('!').to_string()),
    };
    let results = words.map(|word| (word != "-").then(|| word.to_string())).collect();
    Ok(Some(Answer::Report { report: CodeReport { type_check, compilation, results }, is_whole }))
}

/// The name of the compiled server in the cache.
fn cache_file_name(compiler: &Compiler) -> String {
    let sources = SOURCES.map(|(_, text)| text).concat();
    let key = format!("{}\0{}\0{sources}", compiler.path.display(), compiler.version);
    format!("ocaml-checker-{}", &disk::sha256(key)[..16])
}

/// Returns the path of the compiled server: in the cache, or in `folder` if there is no safe cache.
fn compile_server(
    compiler: &Compiler,
    cached: Option<&Path>,
    folder: &SandboxFolder,
) -> Result<PathBuf, TaskError> {
    let wrong = |e: io::Error| checker_error(&format!("cannot be compiled: {e}"));
    if let Some(cached) = cached.filter(|path| path.exists()) {
        return Ok(cached.to_path_buf());
    }
    for (name, text) in SOURCES {
        fs::write(folder.path().join(name), text).map_err(wrong)?;
    }
    let output = Command::new(&compiler.path)
        .current_dir(folder.path())
        .args(["-w", "-a", "-I", "+unix", "-I", "+compiler-libs", "unix.cma", "ocamlcommon.cma"])
        .args(["ocamlbytecomp.cma", "ocamltoplevel.cma", "-linkall"])
        .args(SOURCES.map(|(name, _)| name))
        .args(["-o", "checker.byte"])
        .output()
        .map_err(wrong)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| line.contains("Error")).unwrap_or("no reason is given");
        let version = &compiler.version;
        return Err(checker_error(&format!("does not compile with OCaml {version}: {why}")));
    }
    let fresh = folder.path().join("checker.byte");
    // The program is there all the same.
    let _ = cached.map(|cached| store_in_cache(&fresh, cached));
    Ok(fresh)
}

/// Copies a program from a sandbox's folder to the cache. Until the copy is whole, it is named after the folder, since
/// others may be doing the same.
fn store_in_cache(program: &Path, cached: &Path) -> io::Result<()> {
    let folder = program.parent().and_then(Path::file_name).unwrap_or_default();
    let partial = cached.with_extension(folder);
    fs::copy(program, &partial)?;
    File::open(&partial)?.sync_all()?;
    fs::rename(&partial, cached)?;
    cached.parent().map_or(Ok(()), disk::sync_folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::report_not_tested;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn a_damaged_server_in_the_cache_is_recompiled() {
        let Ok(compiler) = Compiler::find("ocamlc") else {
            return report_not_tested("there is no OCaml compiler");
        };
        let cache = tempfile::tempdir().unwrap();
        let cached = cache.path().join(cache_file_name(&compiler));
        fs::write(&cached, "").unwrap();
        let start = || {
            Checker::start_cached(&compiler, OcamlLimits::default(), Some(cache.path())).unwrap()
        };
        drop(start());
        let compiled = fs::read(&cached).unwrap();
        assert!(!compiled.is_empty());
        drop(start());
        assert_eq!(fs::read(&cached).unwrap(), compiled);
    }

    #[test]
    fn programs_that_are_kept_at_once_stay_whole() {
        let cache = tempfile::tempdir().unwrap();
        let cached = cache.path().join("checker");
        let start = Barrier::new(8);
        let keep = |byte: u8| {
            let folder = SandboxFolder::new().unwrap();
            let program = folder.path().join("checker.byte");
            fs::write(&program, vec![byte; 1 << 20]).unwrap();
            start.wait();
            for _ in 0..4 {
                store_in_cache(&program, &cached).unwrap();
                let found = fs::read(&cached).unwrap();
                assert!(found.len() == 1 << 20 && found.iter().all(|other| *other == found[0]));
            }
        };
        thread::scope(|scope| (0..8).for_each(|byte| drop(scope.spawn(move || keep(byte)))));
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_server_that_ended_while_idle_is_not_blamed_on_code() {
        let Ok(compiler) = Compiler::find("ocamlc") else {
            return report_not_tested("there is no OCaml compiler");
        };
        let checker = Checker::start_cached(&compiler, OcamlLimits::default(), None).unwrap();
        // They have ended, or are about to.
        let ended = (0..4).map(|_| Process::start(&mut Command::new("true")).unwrap());
        lock(&checker.idle).extend(ended);
        let (code, signature) = ("let f = 1", "val f : int");
        let job = Job { code, signature, calls: vec!["f"], ..Job::default() };
        let report = checker.check(&job).unwrap().unwrap();
        assert!(matches!(report.results[..], [Some(_)]), "{report:?}");
    }

    #[test]
    fn truncated_answers_report_the_stages_reached() {
        let read = |line: &str| parse_answer(7, line.as_bytes()).unwrap().unwrap();
        let reached = |type_check, compilation, results: &[Option<&str>], is_whole| {
            let results = results.iter().map(|result| result.map(str::to_string)).collect();
            Answer::Report { report: CodeReport { type_check, compilation, results }, is_whole }
        };
        let none = TypeCheck::Errors(0);
        let two = [Some("ab"), None];
        assert_eq!(read("7 0 ok ab - ."), reached(none, Compilation::Succeeded, &two, true));
        assert_eq!(read("7 0 ok ab -"), reached(none, Compilation::Succeeded, &two, false));
        assert_eq!(
            read("7 syntax no ."),
            reached(TypeCheck::Syntax, Compilation::Failed, &[], true)
        );
        assert_eq!(read("7 3 no ."), reached(TypeCheck::Errors(3), Compilation::Failed, &[], true));
        let refused = Compilation::Refused("Sys.command".to_string());
        assert_eq!(read("7 0 Sys.command ."), reached(none, refused, &[], true));
        assert_eq!(read("7"), reached(TypeCheck::Unknown, Compilation::Failed, &[], false));
        let unusable = |why: &str| Answer::Unusable(why.to_string());
        assert_eq!(read("7 unusable 0 Unbound value g"), unusable("Unbound value g"));
        let said = "test 2 does not compile: Syntax error";
        assert_eq!(read("7 unusable 2 Syntax error"), unusable(said));
        assert_eq!(parse_answer(7, b"8 0 ok ."), Ok(None));
        assert_eq!(parse_answer(7, b"what"), Ok(None));
    }
}
