//! Several runs at once, as child processes of this program.
//!
//! Separate processes isolate runs: a failing run does not stop the others, and the result of a run does not depend on
//! its number of threads.

use super::args::{RunArgs, TrainArgs, VerifierArgs};
use super::interrupt::{INTERRUPTED_STATUS, Interrupt};
use super::progress::RunBoard;
use super::ranks::PROCESS_LIMIT_ADVICE;
use super::text::device::device_name;
use crate::device;
use crate::run::pluralize;
use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Interval at which Ctrl-C is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Division of a machine among runs side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Maximum number of runs at a time.
    pub max_runs: usize,
    pub threads_per_run: usize,
}

impl Concurrency {
    /// Divides this machine's threads, or those of `--threads`, among `num_runs` runs of games or, if `is_text`, of
    /// language models. On devices other than the CPU, runs are trained one after another.
    pub fn new(device: &str, threads: Option<u32>, is_text: bool, num_runs: usize) -> Result<Self> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.map_or(available, |threads| threads as usize);
        let is_cpu = |name: &str| -> Result<bool> {
            let name = if is_text { device_name(name) } else { name };
            Ok(name == "cpu" || device::start(name)?.info.is_cpu())
        };
        let kinds = device.split(',').map(|name| is_cpu(name.trim()));
        let are_cpus = kinds.collect::<Result<Vec<bool>>>()?.into_iter().all(|is_cpu| is_cpu);
        Ok(Self::divide(threads, if are_cpus { num_runs } else { 1 }))
    }

    fn divide(threads: usize, num_runs: usize) -> Self {
        let max_runs = threads.min(num_runs).max(1);
        Self { max_runs, threads_per_run: threads / max_runs }
    }

    /// Describes it, for the announcement of the runs.
    pub fn describe(self) -> String {
        let threads = pluralize(self.threads_per_run, "thread");
        format!("{} at a time, with {threads} each", self.max_runs)
    }
}

/// Formats an argument of a command line: an option with its value, which may be a path of arbitrary bytes.
pub fn option_argument(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

/// Formats the command line that trains as `args` request, without seed, threads, run directory and output format.
pub fn format_command_line(args: &TrainArgs) -> Vec<OsString> {
    let RunArgs { config, device, engine, precision, iterations, timeout, set, .. } = &args.run;
    let VerifierArgs { verifier, verifier_sandbox, verifier_allow, trust } = &args.verifier;
    let paths = [
        ("task-data", &args.task_data),
        ("model", &args.model),
        ("from", &args.from),
        ("config", config),
    ];
    let texts = [
        ("verifier", verifier.clone()),
        ("verifier-sandbox", verifier_sandbox.map(|is_on| if is_on { "on" } else { "off" }.into())),
        ("device", Some(device.clone())),
        ("engine", engine.map(|engine| engine.to_string())),
        ("precision", precision.map(|precision| precision.to_string())),
        ("iterations", iterations.map(|iterations| iterations.to_string())),
        ("timeout", timeout.map(|timeout| timeout.to_string())),
    ];
    let mut argv = vec![OsString::from("train")];
    argv.extend(args.game.as_ref().map(OsString::from));
    for (name, path) in paths {
        argv.extend(path.as_ref().map(|path| option_argument(name, path)));
    }
    for (name, text) in texts {
        argv.extend(text.map(|text| option_argument(name, text)));
    }
    for (name, list) in [("verifier-allow", verifier_allow), ("set", set)] {
        argv.extend(list.iter().map(|value| option_argument(name, value)));
    }
    argv.extend(trust.then(|| OsString::from("--trust")));
    argv
}

/// The report of a run's process ([`Report`](crate::run::Report)), as far as this program reads it.
#[derive(Clone, Debug, Deserialize)]
pub struct JobReport {
    /// Path of the run directory.
    pub run: String,
    pub seed: u64,
    /// Score of the best policy on fresh episodes; `None` if nothing was played.
    #[serde(default)]
    pub mean_score: Option<f64>,
    pub best_iteration: u64,
    pub seconds: f64,
    pub interrupted: bool,
    /// The whole report.
    #[serde(skip)]
    pub json: Value,
}

/// Runs this program several times.
pub struct JobRunner<'a> {
    /// Command line that starts this program; by default its executable.
    pub start_command: &'a [OsString],
    pub concurrency: Concurrency,
    pub interrupt: &'a Interrupt,
    /// Shows the warnings of the runs, each once.
    pub board: &'a RunBoard,
}

impl JobRunner<'_> {
    /// Runs this program once for each of `jobs`, given by its command line without the program, and passes the report
    /// of each to `on_end`, in order of completion; `None` if a run was interrupted before it began. After Ctrl-C or an
    /// error no further run is started; running ones save and end.
    pub fn run(
        &self,
        jobs: &[Vec<OsString>],
        mut on_end: impl FnMut(usize, Result<Option<JobReport>>) -> Result<()>,
    ) -> Result<()> {
        let Concurrency { max_runs, threads_per_run } = self.concurrency;
        let start_command = self.start_command;
        let (sender, receiver) = mpsc::channel();
        let mut not_started = jobs.iter().enumerate();
        let mut running = RunningJobs { start_command, processes: BTreeMap::new(), sender };
        let mut is_stop_requested = false;
        let mut outcome = Ok(());
        let mut shown_warnings = HashSet::new();
        loop {
            while running.processes.len() < max_runs
                && !self.interrupt.has_signal()
                && outcome.is_ok()
                && let Some((job, argv)) = not_started.next()
            {
                outcome = running.start(job, argv, threads_per_run);
            }
            if running.processes.is_empty() {
                return outcome;
            }
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok((job, output)) => {
                    running.processes.remove(&job);
                    if let Ok(output) = &output {
                        show_warnings(output, &mut shown_warnings, self.board);
                    }
                    let report = output.context("cannot wait for a run").map(read_report);
                    outcome = outcome.and(report.and_then(|report| on_end(job, report)));
                }
                Err(RecvTimeoutError::Timeout)
                    if (self.interrupt.has_signal() || outcome.is_err()) && !is_stop_requested =>
                {
                    running.request_stops();
                    is_stop_requested = true;
                }
                Err(_) => {}
            }
        }
    }
}

/// The processes of the running jobs.
struct RunningJobs<'a> {
    start_command: &'a [OsString],
    /// The id of each process, and its stdin, by the index of its job.
    processes: BTreeMap<usize, (u32, Option<ChildStdin>)>,
    /// Receives the output of each process that has ended, with the index of its job.
    sender: Sender<(usize, io::Result<Output>)>,
}

impl RunningJobs<'_> {
    fn start(&mut self, job: usize, argv: &[OsString], threads: usize) -> Result<()> {
        let (started, children) = mpsc::channel::<Child>();
        let ended = self.sender.clone();
        // Before the process, which nothing would wait for otherwise.
        let waiter = std::thread::Builder::new().spawn(move || {
            if let Ok(child) = children.recv() {
                let _ = ended.send((job, child.wait_with_output()));
            }
        });
        waiter.map_err(cannot_start)?;
        let mut child = start_process(self.start_command, argv, threads)?;
        self.processes.insert(job, (child.id(), child.stdin.take()));
        let _ = started.send(child);
        Ok(())
    }

    fn request_stops(&mut self) {
        for (process, stdin) in self.processes.values_mut() {
            request_stop(*process);
            *stdin = None;
        }
    }
}

/// Shows the warnings of a run that no other run has given.
fn show_warnings(output: &Output, shown: &mut HashSet<String>, board: &RunBoard) {
    let text = String::from_utf8_lossy(&output.stderr);
    for line in text.lines().filter(|line| line.starts_with("warning: ")) {
        if shown.insert(line.to_string()) {
            board.print_line(line);
        }
    }
}

/// The file of this process's program or, if it was replaced or removed meanwhile, as by an update, what Linux keeps of
/// it while the process runs. Without `/proc`, as the command line names it.
fn program_file() -> io::Result<PathBuf> {
    let called = |error| std::env::args_os().next().map(PathBuf::from).ok_or(error);
    let path = std::env::current_exe().or_else(called)?;
    let kept = Path::new("/proc/self/exe");
    Ok(if path.exists() || !kept.exists() { path } else { kept.to_path_buf() })
}

/// Starts a run, which saves and ends when its stdin closes: if this process is killed, the run does not continue
/// unattended.
fn start_process(start_command: &[OsString], argv: &[OsString], threads: usize) -> Result<Child> {
    let mut command = match start_command {
        [program, ..] => Command::new(program),
        [] => Command::new(program_file().context("cannot find this program")?),
    };
    command
        .args(start_command.iter().skip(1))
        .args(argv)
        .args(["--json", "--stop-with-stdin", "--threads", &threads.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().map_err(cannot_start)
}

/// The error of a run whose process, or the thread that waits for it, cannot be started.
fn cannot_start(cause: io::Error) -> anyhow::Error {
    let is_limit = cause.kind() == io::ErrorKind::WouldBlock;
    let advice = if is_limit { format!("; {PROCESS_LIMIT_ADVICE}") } else { String::new() };
    anyhow!("cannot start a run: {cause}{advice}")
}

/// Reads the report printed by a run, or its error; `None` if a signal ended a run before it listened for signals.
fn read_report(output: Output) -> Result<Option<JobReport>> {
    if was_interrupted(output.status) {
        return Ok(None);
    }
    if !output.status.success() {
        return Err(anyhow!("{}", explain_failure(&output)));
    }
    let json: Value =
        serde_json::from_slice(&output.stdout).context("a run has printed no report")?;
    let report = JobReport::deserialize(&json).context("a run has printed another report")?;
    Ok(Some(JobReport { json, ..report }))
}

/// Whether Ctrl-C, a closed terminal or SIGTERM ended a run immediately.
fn was_interrupted(status: ExitStatus) -> bool {
    let by_signal = ending_signal(status).is_some_and(|signal| [1, 2, 3, 15].contains(&signal));
    status.code() == Some(INTERRUPTED_STATUS) || by_signal
}

/// The signal that ended a run, if any.
#[cfg(unix)]
fn ending_signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn ending_signal(_: ExitStatus) -> Option<i32> {
    None
}

/// Explains the failure of a run by its last error, or by what ended it.
fn explain_failure(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match (ending_signal(output.status), last_error(&text)) {
        (Some(9), _) => "it was killed (signal 9), perhaps because memory ran out".to_string(),
        (Some(signal), _) => format!("it was ended by signal {signal}"),
        (None, Some(error)) => error.to_string(),
        (None, None) => format!("it ended with status {}", output.status.code().unwrap_or(-1)),
    }
}

/// Last error message in a run's output, which starts on a new line and may span several.
fn last_error(text: &str) -> Option<&str> {
    const START: &str = "error: ";
    let begins_line = |at: &usize| *at == 0 || text[..*at].ends_with('\n');
    let at = text.rmatch_indices(START).map(|(at, _)| at).find(begins_line);
    at.map(|at| text[at + START.len()..].trim())
}

/// Asks a run to save and end, with a signal that is not ignored even if a script started this program with `&`, and
/// that ends a run that does not listen yet. A terminal also sends its Ctrl-C to the run; both count as one request.
#[cfg(unix)]
fn request_stop(process: u32) {
    // SAFETY: sending a signal has no preconditions. The process is a child that was not waited for yet, or has just
    // ended, and its id is not given to another so soon.
    unsafe { libc::kill(process as libc::pid_t, libc::SIGTERM) };
}

#[cfg(not(unix))]
fn request_stop(_: u32) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_run_is_whole() {
        for (text, expected) in [
            (
                "Saving to x\nerror: iteration 7 failed: wgpu error: Out",
                Some("iteration 7 failed: wgpu error: Out"),
            ),
            ("error: a\n  b: error: c\n", Some("a\n  b: error: c")),
            ("error: a\nerror: b", Some("b")),
            ("killed\n", None),
        ] {
            assert_eq!(last_error(text), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_run_ended_by_a_signal_counts_as_interrupted() {
        let run_script = |script: &str| {
            let output = Command::new("sh").args(["-c", script]).output().unwrap();
            read_report(output)
        };
        for script in ["kill -TERM $$", "exit 130"] {
            assert!(run_script(script).unwrap().is_none(), "{script}");
        }
        // The other signals, which a parent may have this process ignore.
        let by = <ExitStatus as std::os::unix::process::ExitStatusExt>::from_raw;
        assert!([1, 2, 3, 15].into_iter().all(|signal| was_interrupted(by(signal))));
        for (script, reason) in [
            ("echo Saving >&2; kill -KILL $$", "it was killed (signal 9)"),
            ("kill -ABRT $$", "it was ended by signal 6"),
            ("echo Saving >&2; exit 3", "it ended with status 3"),
            ("echo 'error: a' >&2; exit 1", "a"),
        ] {
            let error = run_script(script).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{script}: {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_run_that_ignores_ctrl_c_is_killed() {
        let arguments = ["-c", "trap '' INT; echo; exec sleep 600"];
        let mut run = Command::new("sh").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        request_stop(run.id());
        assert!(was_interrupted(run.wait().unwrap()));
    }

    #[test]
    fn threads_are_shared_among_the_runs() {
        for (threads, num_runs, max_runs, threads_per_run) in
            [(2, 5, 2, 1), (16, 5, 5, 3), (16, 1, 1, 16), (1, 3, 1, 1)]
        {
            let expected = Concurrency { max_runs, threads_per_run };
            assert_eq!(Concurrency::divide(threads, num_runs), expected);
        }
    }
}
