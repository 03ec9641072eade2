//! User-defined verifiers: a pool of long-running processes of a command.
//!
//! A process receives one completion at a time, so that a crash or hang can be attributed to a completion.
//! A process that is started during a run first repeats a request that was answered before, so that its
//! start-up time does not count towards a completion's time limit.

#[cfg(unix)]
mod confinement;
pub(crate) mod protocol;

use super::parallel::{FairSemaphore, lock, map_in_order, num_cores};
use super::process::{NoAnswer, Process, processes_to_try};
use super::{Completion, RewardPart, Rewards, TaskError};
#[cfg(unix)]
use confinement::Confinement;
use protocol::{Answer, Failure};
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// Options of a verifier.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifierOptions {
    /// The shell command.
    pub command: String,
    /// The working directory; `None` for that of the program.
    pub folder: Option<PathBuf>,
    /// Number of processes; 0 for one per core.
    pub workers: usize,
    /// Time limit per completion, seconds, above 0 and at most a day.
    pub timeout_seconds: f64,
    /// The parts of a reward, at least one. A single part may be called `reward` in answers.
    pub parts: Vec<RewardPart>,
    /// The restrictions of its processes.
    pub sandbox: VerifierSandbox,
}

/// The restrictions of a verifier's processes, since it may run what a model has written.
///
/// A sandboxed process has no network. It reads the system's programs, its working directory, and the files and
/// programs that its command names; it writes to its own folder (`TMPDIR`) alone, which is removed with it. It inherits
/// the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifierSandbox {
    /// Whether there are restrictions.
    pub is_on: bool,
    /// Further paths to read; relative ones are within the working directory.
    pub readable: Vec<PathBuf>,
    /// Files that it finds empty unless its command or `readable` names them; absolute paths without links.
    pub hidden_paths: Vec<PathBuf>,
    /// Whether the network is permitted.
    pub has_network: bool,
}

impl VerifierOptions {
    /// Options for a command that returns one number, with a time limit of ten seconds and without a sandbox.
    pub fn new(command: &str) -> Self {
        let parts = vec![RewardPart::new("reward", 1.0)];
        let command = command.to_string();
        let sandbox = VerifierSandbox::default();
        Self { command, folder: None, workers: 0, timeout_seconds: 10.0, parts, sandbox }
    }

    /// Sets the parts of a reward from a list such as `exact=0.8,format=0.2`; the default weight is 1.
    ///
    /// # Errors
    /// If the list is malformed; see [`RewardPart::parse_list`].
    pub fn with_parts(self, text: &str) -> Result<Self, TaskError> {
        let parts = RewardPart::parse_list(text)?;
        RewardPart::require_positive(&parts, text)?;
        Ok(Self { parts, ..self })
    }

    fn num_workers(&self) -> usize {
        if self.workers == 0 { num_cores() } else { self.workers }
    }
}

/// The usual additional time limit for the first answer of a process.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time limit per completion, seconds: a clock cannot add arbitrarily long ones.
pub const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

/// Processes that may fail before the first answer, until the command counts as broken.
const MAX_FAILURES: usize = 3;

/// A pool of verifier processes.
pub struct Verifier {
    options: VerifierOptions,
    timeout: Duration,
    /// Additional time limit for the first answer of a process, which includes its start-up.
    start_timeout: Duration,
    /// Permits of completions, each of which keeps one process busy.
    semaphore: FairSemaphore,
    /// Idle processes, which end before their sandbox is removed.
    idle: Mutex<Vec<Process>>,
    #[cfg(unix)]
    confinement: Option<Confinement>,
    /// The first request that was answered, without its id, to warm up further processes.
    answered_request: OnceLock<String>,
    /// Serializes requests until the first answer.
    first_answer: Mutex<()>,
    /// Number of processes that failed before the first answer.
    num_failures: AtomicUsize,
}

impl Verifier {
    /// Starts the first process.
    ///
    /// # Errors
    /// If an option is out of range, or the command ends immediately.
    pub fn start(options: VerifierOptions) -> Result<Self, TaskError> {
        let timeout = Duration::try_from_secs_f64(options.timeout_seconds).unwrap_or_default();
        if timeout.is_zero() || options.timeout_seconds > MAX_TIMEOUT_SECONDS {
            let message = format!(
                "the verifier's timeout is {} s, but must be above 0, at most {MAX_TIMEOUT_SECONDS}",
                options.timeout_seconds
            );
            return Err(TaskError::Setting(message));
        }
        if options.parts.is_empty() {
            let message = "a verifier needs at least one reward part".to_string();
            return Err(TaskError::Setting(message));
        }
        #[cfg(unix)]
        let confinement = options.sandbox.is_on.then(|| Confinement::new(&options)).transpose()?;
        #[cfg(not(unix))]
        if options.sandbox.is_on {
            let message = "this system has no sandbox for the verifier; --verifier-sandbox=off runs it with all of \
                           your rights";
            return Err(TaskError::Verifier(message.to_string()));
        }
        let verifier = Self {
            semaphore: FairSemaphore::new(options.num_workers()),
            options,
            timeout,
            start_timeout: START_TIMEOUT,
            #[cfg(unix)]
            confinement,
            idle: Mutex::default(),
            answered_request: OnceLock::new(),
            first_answer: Mutex::default(),
            num_failures: AtomicUsize::new(0),
        };
        let mut first = verifier.spawn()?;
        // The shell ends immediately if the command does not exist.
        thread::sleep(Duration::from_millis(50));
        if let Some(end) = first.end_description() {
            return Err(verifier.command_error(&end));
        }
        lock(&verifier.idle).push(first);
        Ok(verifier)
    }

    /// Computes the rewards of completions, in their order.
    ///
    /// # Errors
    /// [`TaskError::Verifier`] if the processes do not answer any more, or never did. A failure that concerns
    /// a single completion is reported in its [`Rewards::problem`].
    pub fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        map_in_order(completions, self.num_workers(), |completion| {
            Ok(self.verify_one(completion)?.map_or_else(
                |failure| Rewards::unjudged(self.options.parts.len(), failure.to_string()),
                Rewards::new,
            ))
        })
    }

    /// Number of completions that are verified at a time, whichever threads ask for it.
    pub fn num_workers(&self) -> usize {
        self.options.num_workers()
    }

    /// Verifies one completion, to detect a broken command before a run starts. An `error` that the
    /// verifier reports counts as an answer.
    ///
    /// # Errors
    /// [`TaskError::Verifier`] if the verifier does not answer.
    pub fn check(&self, completion: &Completion) -> Result<(), TaskError> {
        let problem = match self.verify_one(completion)? {
            Ok(_) | Err(Failure::Reported(_)) => return Ok(()),
            Err(Failure::Ended(end)) => format!("the verifier {end} twice"),
            Err(failure) => failure.to_string(),
        };
        Err(TaskError::Verifier(format!(
            "for the first prompt, {problem}; run `{}` by hand to see why{}",
            self.options.command,
            self.sandbox_advice()
        )))
    }

    /// Returns the rewards of one completion, or the reason why it has none. If the process ends meanwhile, another one
    /// tries again, until the completion is to blame ([`processes_to_try`]).
    fn verify_one(&self, completion: &Completion) -> Result<Result<Vec<f64>, Failure>, TaskError> {
        let body = protocol::encode_body(completion);
        // Before the lock, whose owner must not wait for a permit; released once the process is idle or has ended.
        let _permit = self.semaphore.acquire();
        // Until the first answer, requests are serialized: the first one may take long.
        let _guard = self.answered_request.get().is_none().then(|| lock(&self.first_answer));
        let is_first = self.answered_request.get().is_none();
        let start = if is_first { self.start_timeout } else { Duration::ZERO };
        // Before the first answer an idle process is as good as a new one.
        let max_processes = if is_first { 2 } else { 3 };
        let workers = processes_to_try(&self.idle, || self.start_warmed_up());
        let mut last_end = String::new();
        for worker in workers.take(max_processes) {
            let mut worker = worker?;
            match ask(&mut worker, &body, self.timeout + start) {
                Ok(answer) => {
                    lock(&self.idle).push(worker);
                    self.answered_request.get_or_init(|| body);
                    return Ok(answer.rewards(&self.options.parts));
                }
                Err(NoAnswer::Timeout(instead)) => {
                    self.count_failure("does not answer")?;
                    return Ok(Err(Failure::TimedOut(self.describe_timeout(start, &instead))));
                }
                Err(NoAnswer::Ended(end)) => {
                    self.count_failure(&end)?;
                    last_end = end;
                }
            }
        }
        Ok(Err(Failure::Ended(last_end)))
    }

    /// Describes a time limit that was exceeded, with what came instead of an answer.
    fn describe_timeout(&self, start: Duration, instead: &str) -> String {
        let [limit, start, answer] =
            [self.timeout + start, start, self.timeout].map(|time| time.as_secs_f64());
        if self.answered_request.get().is_some() {
            return format!("the verifier took more than {limit} s{instead}");
        }
        let advice = "; it must print one line for each request, and flush it";
        let instead = if instead.is_empty() { advice } else { instead };
        format!(
            "the verifier did not answer within {limit} s ({start} for its start, {answer} for the answer){instead}"
        )
    }

    /// Counts a process that did not answer, and fails after too many before the first answer.
    fn count_failure(&self, how: &str) -> Result<(), TaskError> {
        let is_answered = self.answered_request.get().is_some();
        if !is_answered && self.num_failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES {
            return Err(self.command_error(how));
        }
        Ok(())
    }

    /// Starts a process and, once a request has been answered, warms it up by that request.
    fn start_warmed_up(&self) -> Result<Process, TaskError> {
        let mut last_failure = String::new();
        for _ in 0..MAX_FAILURES {
            let mut worker = self.spawn()?;
            let Some(body) = self.answered_request.get() else { return Ok(worker) };
            match ask(&mut worker, body, self.timeout + self.start_timeout) {
                Ok(_) => return Ok(worker),
                Err(NoAnswer::Timeout(_)) => last_failure = "does not answer".to_string(),
                Err(NoAnswer::Ended(end)) => last_failure = end,
            }
        }
        Err(self.command_error(&last_failure))
    }

    fn spawn(&self) -> Result<Process, TaskError> {
        let VerifierOptions { command, folder, sandbox, .. } = &self.options;
        let started = self.build_command().and_then(|mut shell| Process::start(&mut shell));
        // The processes of a sandbox end with Grove by themselves.
        let started =
            started.map(|process| if sandbox.is_on { process } else { process.with_watcher() });
        started.map_err(|e| {
            let place = folder.as_ref().map(|folder| format!(" in {}", folder.display()));
            let place = place.unwrap_or_default();
            TaskError::Verifier(format!("the verifier `{command}` does not start{place}: {e}"))
        })
    }

    /// The command in a shell, sandboxed unless that is off.
    fn build_command(&self) -> io::Result<Command> {
        let VerifierOptions { command, folder, .. } = &self.options;
        #[cfg(unix)]
        if let Some(confinement) = &self.confinement {
            return confinement.shell_command(command);
        }
        let mut shell = shell_command(command);
        if let Some(folder) = folder {
            shell.current_dir(folder);
        }
        Ok(shell)
    }

    fn command_error(&self, how: &str) -> TaskError {
        let command = &self.options.command;
        let advice = self.sandbox_advice();
        let message = format!("the verifier `{command}` {how}; run it by hand to see why{advice}");
        TaskError::Verifier(message)
    }

    /// The end of advice to run the command by hand, where a sandbox may be the reason.
    fn sandbox_advice(&self) -> &'static str {
        if self.options.sandbox.is_on {
            "; if that works, its sandbox hides what it needs: --verifier-allow PATH shows a file or folder"
        } else {
            ""
        }
    }
}

/// Sends the request `body` to a process and waits for its answer.
fn ask(process: &mut Process, body: &str, limit: Duration) -> Result<Answer, NoAnswer> {
    let request = |id| protocol::encode_request(id, body).into_bytes();
    process.ask(request, limit, |id, line| {
        let answer = Answer::parse(line)?;
        Ok((answer.id == id).then_some(answer))
    })
}

/// The command in a shell, on Unix in a new process group.
fn shell_command(command: &str) -> Command {
    let [program, flag] = if cfg!(unix) { ["sh", "-c"] } else { ["cmd", "/C"] };
    let mut shell = Command::new(program);
    shell.args([flag, command]);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    shell
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::task::Prompt;
    use std::fs;
    use std::sync::Barrier;

    #[test]
    fn a_process_that_ended_while_idle_does_not_fail_a_completion() {
        let command = "python3 -uc 'import json, sys\nfor line in sys.stdin: print(json.dumps({\"id\": \
                       json.loads(line)[\"id\"], \"reward\": 1}))'";
        let options = VerifierOptions { timeout_seconds: 600.0, ..VerifierOptions::new(command) };
        let verifier = Verifier::start(options).unwrap();
        let prompt = Prompt::new("?".to_string(), String::new(), Default::default());
        let verify = || verifier.verify(&[Completion::new(&prompt, "!")]).unwrap();
        assert_eq!(verify(), [Rewards::new(vec![1.0])]);
        // They have ended, or are about to.
        let ended = (0..4).map(|_| Process::start(&mut shell_command("exit")).unwrap());
        lock(&verifier.idle).extend(ended);
        assert_eq!(verify(), [Rewards::new(vec![1.0])]);
    }

    #[test]
    fn runs_that_share_a_verifier_share_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let command = "echo started >> starts; exec python3 -uc 'import json, sys\nfor line in sys.stdin: \
                       print(json.dumps({\"id\": json.loads(line)[\"id\"], \"reward\": 1}))'";
        let verifier = Verifier::start(VerifierOptions {
            folder: Some(folder.path().to_path_buf()),
            workers: 1,
            timeout_seconds: 600.0,
            ..VerifierOptions::new(command)
        });
        let verifier = verifier.unwrap();
        let start = Barrier::new(4);
        let prompt = Prompt::new("?".to_string(), String::new(), Default::default());
        let completions = [Completion::new(&prompt, "!"); 8];
        verifier.check(&completions[0]).unwrap();
        let run = || {
            start.wait();
            assert_eq!(verifier.verify(&completions).unwrap(), vec![Rewards::new(vec![1.0]); 8]);
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(run))));
        assert_eq!(fs::read_to_string(folder.path().join("starts")).unwrap(), "started\n");
    }

    #[test]
    fn a_silent_verifier_gets_advice_to_flush() {
        // Answers that stay in a buffer never arrive, however long the wait.
        let options =
            VerifierOptions { timeout_seconds: 0.01, ..VerifierOptions::new("cat > /dev/null") };
        let mut verifier = Verifier::start(options).unwrap();
        verifier.start_timeout = Duration::ZERO;
        let prompt = Prompt { text: "?".to_string(), ..Prompt::default() };
        let error = verifier.check(&Completion::new(&prompt, "!")).unwrap_err().to_string();
        let said = "for the first prompt, the verifier did not answer within 0.01 s (0 for its start, 0.01 for the \
                    answer); it must print one line for each request, and flush it; run `cat";
        assert!(error.contains(said), "{error}");
    }
}
