//! Verifiers of one's own: a command, some of whose processes are kept at work.
//!
//! Each process is asked one completion at a time, and the next when it has answered: none is flooded, and if
//! one dies or hangs, it is clear over which completion. A process that is started in the course of a run is
//! first asked something that was answered before, so that the time that it takes to start is charged to no
//! completion.

mod protocol;

use super::parallel::{cores, in_order, lock};
use super::process::{Process, Trouble};
use super::{Completion, Part, Rewards, TaskError};
use protocol::Answer;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// How a verifier is run.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifierOptions {
    /// The command, as a shell takes it.
    pub command: String,
    /// The folder in which it is started; `None` for the program's own.
    pub folder: Option<PathBuf>,
    /// Processes at work; 0 for as many as the machine has cores.
    pub workers: usize,
    /// Seconds that an answer may take, above 0.
    pub timeout: f64,
    /// The parts of a reward, at least one. Where there is one, an answer may call it `reward`.
    pub parts: Vec<Part>,
}

impl VerifierOptions {
    /// A command that gives one number, within ten seconds.
    pub fn new(command: &str) -> Self {
        let parts = vec![Part::new("reward", 1.0)];
        Self { command: command.to_string(), folder: None, workers: 0, timeout: 10.0, parts }
    }

    /// With the parts of a text such as `exact=0.8,format=0.2`; a part without a number has weight 1.
    ///
    /// # Errors
    /// One sentence about the part that is wrong.
    pub fn with_parts(self, text: &str) -> Result<Self, TaskError> {
        Ok(Self { parts: Part::list(text)?, ..self })
    }

    fn num_workers(&self) -> usize {
        match self.workers {
            0 => cores(),
            workers => workers,
        }
    }
}

fn setting(message: String) -> TaskError {
    TaskError::Setting(message)
}

/// How long a process may take to start, beside the time that an answer takes.
const START: Duration = Duration::from_secs(60);

/// Processes that may give no answer, one after the other, before a command counts as broken.
const ATTEMPTS: usize = 3;

/// A command at work.
pub struct Verifier {
    options: VerifierOptions,
    timeout: Duration,
    /// Processes that wait for something to do.
    idle: Mutex<Vec<Process>>,
    /// What was answered first of all: the message without its number.
    answered: OnceLock<String>,
    /// Held by who asks while nothing was answered yet.
    first: Mutex<()>,
    /// Processes that gave no answer before anything was answered.
    in_vain: AtomicUsize,
}

impl Verifier {
    /// Starts the command.
    ///
    /// # Errors
    /// Options out of range, or a command that ends at once.
    pub fn start(options: VerifierOptions) -> Result<Self, TaskError> {
        let timeout = Duration::try_from_secs_f64(options.timeout).unwrap_or_default();
        if timeout.is_zero() {
            let message = format!("a verifier may take {} s; give it more than 0", options.timeout);
            return Err(setting(message));
        }
        if options.parts.is_empty() {
            return Err(setting("a verifier needs the name of at least one reward".to_string()));
        }
        let verifier = Self {
            options,
            timeout,
            idle: Mutex::default(),
            answered: OnceLock::new(),
            first: Mutex::default(),
            in_vain: AtomicUsize::new(0),
        };
        let mut first = verifier.spawn()?;
        // A command that is not there ends at once.
        thread::sleep(Duration::from_millis(50));
        if let Some(end) = first.ended() {
            return Err(verifier.broken(&end));
        }
        lock(&verifier.idle).push(first);
        Ok(verifier)
    }

    /// What completions are worth, in their order.
    ///
    /// # Errors
    /// [`TaskError::Verifier`] where no process answers any more, or none ever did. What goes wrong with one
    /// completion is its [`Rewards::problem`].
    pub fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        in_order(completions, self.options.num_workers(), |completion| self.one(completion))
    }

    /// Asks about one completion, so that a command that cannot answer is known before anything depends on it.
    /// That it has no reward for this one (an `error`) is an answer.
    ///
    /// # Errors
    /// [`TaskError::Verifier`] with what it did instead.
    pub fn try_out(&self, completion: &Completion) -> Result<(), TaskError> {
        match self.one(completion)?.problem {
            Some(problem) if !problem.starts_with(protocol::SAYS) => {
                Err(TaskError::Verifier(format!(
                    "{problem}, as it was asked about the first prompt; run `{}` by hand to see why",
                    self.options.command
                )))
            }
            _ => Ok(()),
        }
    }

    /// What one completion is worth. If a process ends over it, another one is asked, since it may not have
    /// been the completion's fault; if that one ends too, it was.
    fn one(&self, completion: &Completion) -> Result<Rewards, TaskError> {
        let body = protocol::body(completion);
        // Until something is answered, there is one question at a time: only the first takes long.
        let turn = self.answered.get().is_none().then(|| lock(&self.first));
        let mut last = String::new();
        for _ in 0..2 {
            let idle = lock(&self.idle).pop();
            let mut worker = idle.map_or_else(|| self.ready(), Ok)?;
            let start = if self.answered.get().is_some() { Duration::ZERO } else { START };
            match ask(&mut worker, &body, self.timeout + start) {
                Ok(answer) => {
                    lock(&self.idle).push(worker);
                    let rewards = answer.rewards(&self.options.parts).map(Rewards::new);
                    self.answered.get_or_init(|| body);
                    return Ok(rewards.unwrap_or_else(|message| self.unknown(message)));
                }
                Err(Trouble::Late(instead)) => {
                    self.in_vain("does not answer")?;
                    let limit = self.options.timeout;
                    return Ok(
                        self.unknown(format!("the verifier took more than {limit} s{instead}"))
                    );
                }
                Err(Trouble::Ended(end)) => {
                    self.in_vain(&end)?;
                    last = end;
                }
            }
        }
        drop(turn);
        Ok(self.unknown(format!("the verifier {last} over this completion, twice")))
    }

    /// Counts a process that gave no answer, where none ever did.
    fn in_vain(&self, how: &str) -> Result<(), TaskError> {
        let none = self.answered.get().is_none();
        if none && self.in_vain.fetch_add(1, Ordering::Relaxed) + 1 >= ATTEMPTS {
            return Err(self.broken(how));
        }
        Ok(())
    }

    fn unknown(&self, problem: String) -> Rewards {
        Rewards::unknown(self.options.parts.len(), problem)
    }

    /// A process that is known to answer, if anything was answered before.
    fn ready(&self) -> Result<Process, TaskError> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let mut worker = self.spawn()?;
            let Some(body) = self.answered.get() else { return Ok(worker) };
            match ask(&mut worker, body, self.timeout + START) {
                Ok(_) => return Ok(worker),
                Err(Trouble::Late(_)) => last = "does not answer".to_string(),
                Err(Trouble::Ended(end)) => last = end,
            }
        }
        Err(self.broken(&last))
    }

    fn spawn(&self) -> Result<Process, TaskError> {
        let VerifierOptions { command, folder, .. } = &self.options;
        let mut shell = shell(command);
        if let Some(folder) = folder {
            shell.current_dir(folder);
        }
        Process::start(&mut shell).map_err(|e| {
            let place = folder.as_ref().map(|folder| format!(" in {}", folder.display()));
            let place = place.unwrap_or_default();
            TaskError::Verifier(format!("the verifier `{command}` does not start{place}: {e}"))
        })
    }

    fn broken(&self, how: &str) -> TaskError {
        let command = &self.options.command;
        TaskError::Verifier(format!("the verifier `{command}` {how}; run it by hand to see why"))
    }
}

/// Asks a process what the message `body` is about.
fn ask(process: &mut Process, body: &str, limit: Duration) -> Result<Answer, Trouble> {
    let request = |id| protocol::request(id, body).into_bytes();
    process.ask(request, limit, |id, line| {
        let answer = Answer::parse(line)?;
        Ok((answer.id == id).then_some(answer))
    })
}

/// The command in a shell, in a process group of its own where there are such.
fn shell(command: &str) -> Command {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).process_group(0);
        shell
    }
    #[cfg(not(unix))]
    {
        let mut shell = Command::new("cmd");
        shell.args(["/C", command]);
        shell
    }
}
