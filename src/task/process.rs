//! A long-running worker process: requests go to its standard input, answers come as lines on its
//! standard output.

use super::parallel::lock;
use crate::clock::Stopwatch;
#[cfg(unix)]
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::iter;
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The reason a process did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The time limit was exceeded. The text is a clause about other output, such as `; it sent an answer with another
    /// id`, or empty.
    Timeout(String),
    /// The process ended, or wrote a line that is too long. The text completes a sentence such as "the verifier
    /// ended (exit status: 1)".
    Ended(String),
}

/// Maximum length of a line, bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Lines that are kept until they are read.
const MAX_UNREAD_LINES: usize = 4;

/// Time that a process has to exit after its input was closed.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// Time within which a program that was just written can be executed.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running process. Dropping it kills the process, and on Unix its process group.
pub struct Process {
    child: Child,
    requests: Option<Sender<Vec<u8>>>,
    lines: Receiver<Vec<u8>>,
    /// Whether a line of its output was too long, after which no more is read.
    wrote_long_line: Arc<AtomicBool>,
    last_stderr_line: Arc<Mutex<String>>,
    stderr_reader: JoinHandle<()>,
    /// Whether a request is unanswered.
    is_busy: bool,
    /// The process that kills the process group if Grove ends without dropping this.
    watcher: Option<Child>,
}

impl Process {
    /// Starts `command` with piped standard streams.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(command)?;
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let stderr = child.stderr.take().expect("piped");
        let (requests, request_receiver) = mpsc::channel();
        // Bounded, so that unsolicited output blocks the process.
        let (line_sender, lines) = mpsc::sync_channel(MAX_UNREAD_LINES);
        let last_stderr_line = Arc::<Mutex<String>>::default();
        let kept = Arc::clone(&last_stderr_line);
        let wrote_long_line = Arc::<AtomicBool>::default();
        let is_too_long = Arc::clone(&wrote_long_line);
        let start_threads = || {
            start_thread(move || write_requests(stdin, &request_receiver))?;
            start_thread(move || forward_lines(stdout, &line_sender, &is_too_long))?;
            start_thread(move || keep_last_line(stderr, &kept))
        };
        let stderr_reader = start_threads().inspect_err(|_| {
            kill_group(&mut child);
            let _ = child.wait();
        })?;
        let requests = Some(requests);
        Ok(Self {
            child,
            requests,
            lines,
            wrote_long_line,
            last_stderr_line,
            stderr_reader,
            is_busy: false,
            watcher: None,
        })
    }

    /// Adds a watcher, which on Unix kills the process group even if Grove ends without dropping this, as by Ctrl-C or
    /// `kill -9`.
    #[cfg_attr(not(unix), expect(unused_mut))]
    pub fn with_watcher(mut self) -> Self {
        #[cfg(unix)]
        {
            // Without one, all else works.
            self.watcher = spawn_watcher(self.child.id()).ok();
        }
        self
    }

    /// Sends `request(id)` with a new id and waits for the answer, at most for `limit`. `parse(id, line)`
    /// parses a line: it returns the answer, `None` for an answer with another id, or a description of any
    /// other output. Lines that are not the answer are skipped.
    ///
    /// # Errors
    /// [`NoAnswer`] if the process ends, or the time is over.
    pub fn ask<T>(
        &mut self,
        request: impl FnOnce(u64) -> Vec<u8>,
        limit: Duration,
        parse: impl Fn(u64, &[u8]) -> Result<Option<T>, String>,
    ) -> Result<T, NoAnswer> {
        // Earlier output cannot be the answer. A process may write without end.
        self.lines.try_iter().take(MAX_UNREAD_LINES + 1).for_each(drop);
        // Unpredictable, so that code that the process runs cannot forge the answer, and exact as a JSON number in any
        // parser.
        let id = RandomState::new().hash_one(()) >> 11;
        self.is_busy = true;
        let requests = self.requests.as_ref().expect("open until dropped");
        // If the process has ended, reading its output fails below.
        let _ = requests.send(request(id));
        let mut instead = String::new();
        let mut waited = Stopwatch::start();
        // Over time the next line may be there already, however late it is.
        while let Some(next_wait) = waited.next_wait(limit) {
            match self.lines.recv_timeout(next_wait) {
                Ok(line) => match parse(id, &line) {
                    Ok(Some(answer)) => {
                        self.is_busy = false;
                        return Ok(answer);
                    }
                    Ok(None) => instead = "; it sent an answer with another `id`".to_string(),
                    Err(message) => instead = format!("; {message}"),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(NoAnswer::Ended(self.describe_end()));
                }
            }
        }
        Err(NoAnswer::Timeout(instead))
    }

    /// Describes how the process ended; `None` if it is running.
    pub fn end_description(&mut self) -> Option<String> {
        (!self.is_running()).then(|| self.describe_end())
    }

    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the process to end and describes how it did.
    fn describe_end(&mut self) -> String {
        if self.wrote_long_line.load(Ordering::Acquire) {
            return format!("wrote a line of more than {} MiB", MAX_LINE_BYTES >> 20);
        }
        let status = wait(&mut self.child, GRACE_PERIOD).ok().flatten();
        // Wait for the last line of standard error.
        let mut waited = Stopwatch::start();
        while !self.stderr_reader.is_finished() && waited.elapsed() < GRACE_PERIOD {
            thread::sleep(Duration::from_millis(2));
        }
        let error = lock(&self.last_stderr_line).clone();
        let status = status.map_or("no more output".to_string(), |status| status.to_string());
        let separator = if error.is_empty() { "" } else { ": " };
        format!("ended ({status}{separator}{error})")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing its input asks an idle process to exit; a busy one would not notice.
        self.requests = None;
        if !self.is_busy {
            let _ = wait(&mut self.child, GRACE_PERIOD);
        }
        kill_group(&mut self.child);
        if let Some(watcher) = &mut self.watcher {
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
        let _ = self.child.wait();
    }
}

/// The processes that a request is tried on until one answers: an idle one, which may end for a reason of its own, and
/// two that `start` starts. If both of these end, the request is to blame.
pub fn processes_to_try<E>(
    idle: &Mutex<Vec<Process>>,
    start: impl FnMut() -> Result<Process, E>,
) -> impl Iterator<Item = Result<Process, E>> {
    // Those that have ended meanwhile are discarded.
    let running = iter::from_fn(|| lock(idle).pop())
        .find_map(|mut process| process.is_running().then_some(process));
    running.map(Ok).into_iter().chain(iter::repeat_with(start).take(2))
}

/// The path of a program that is given as an absolute path, or is in a folder of `PATH`.
#[cfg(unix)]
pub fn find_on_path(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return program.is_file().then(|| program.to_path_buf());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Waits at most `limit` for a process to end; `None` if it still runs then.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let mut waited = Stopwatch::start();
    loop {
        let status = child.try_wait()?;
        if status.is_some() || waited.elapsed() >= limit {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a process and its process group.
pub fn kill_group(child: &mut Child) {
    #[cfg(unix)]
    if let Ok(group) = i32::try_from(child.id()) {
        // SAFETY: sends a signal and accesses no memory. The group id is the child's process id, which the
        // system does not reuse while the group has members, nor soon afterwards.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    let _ = child.kill();
}

/// Starts a process that kills a process group when its input ends, as it does with Grove. It ignores the signals by
/// which a terminal or a supervisor stops Grove.
#[cfg(unix)]
fn spawn_watcher(group: u32) -> io::Result<Child> {
    let script = "trap '' HUP INT QUIT TERM; read -r _; kill -KILL \"-$0\"";
    let mut watcher = Command::new("sh");
    watcher.args(["-c", script, &group.to_string()]);
    std::os::unix::process::CommandExt::process_group(&mut watcher, 0);
    watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Starts a command, whose program this process may have just written. A child that another thread has just forked
/// holds the file open until it executes its own program; until then the file cannot be executed.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut waited = Stopwatch::start();
    loop {
        match command.spawn() {
            Err(e)
                if e.kind() == io::ErrorKind::ExecutableFileBusy
                    && waited.elapsed() < BUSY_TIMEOUT =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            started => return started,
        }
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().spawn(work)
}

/// Writes requests to a process until the channel or the pipe is closed.
fn write_requests(mut stdin: ChildStdin, requests: &Receiver<Vec<u8>>) {
    for request in requests {
        if stdin.write_all(&request).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Reads lines with their ends, as far as they can be read. A line that is too long is cut.
fn read_lines(from: impl Read) -> impl Iterator<Item = Vec<u8>> {
    let mut from = BufReader::new(from);
    iter::from_fn(move || {
        let mut line = Vec::new();
        let read = (&mut from).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        read.is_ok_and(|length| length > 0).then_some(line)
    })
}

/// Forwards the output lines of a process until it ends or exceeds the maximum length of a line, which it reports.
fn forward_lines(
    stdout: impl Read,
    line_sender: &SyncSender<Vec<u8>>,
    wrote_long_line: &AtomicBool,
) {
    for line in read_lines(stdout) {
        if !line.ends_with(b"\n") && line.len() as u64 == MAX_LINE_BYTES {
            wrote_long_line.store(true, Ordering::Release);
            return;
        }
        if line_sender.send(line.trim_ascii_end().to_vec()).is_err() {
            return;
        }
    }
}

/// Drains the standard error of a process and keeps the last line.
fn keep_last_line(stderr: impl Read, kept: &Mutex<String>) {
    for line in read_lines(stderr) {
        let text: String = String::from_utf8_lossy(&line).trim().chars().take(200).collect();
        if !text.is_empty() {
            *lock(kept) = text;
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_program_still_open_for_writing_is_retried() {
        let folder = tempfile::TempDir::new().unwrap();
        let program = folder.path().join("cat");
        fs::copy("/bin/cat", &program).unwrap();
        let open = File::options().append(true).open(&program).unwrap();
        let refused = Command::new(&program).spawn().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ExecutableFileBusy);
        let closed = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(open);
        });
        Process::start(&mut Command::new(&program)).unwrap();
        closed.join().unwrap();
    }

    #[test]
    fn other_output_does_not_extend_the_time_limit() {
        let mut process = Process::start(&mut Command::new("yes")).unwrap();
        // Reading a line takes longer than writing one, so that there is always a next one.
        let read = |_: u64, _: &[u8]| -> Result<Option<()>, String> {
            thread::sleep(Duration::from_millis(1));
            Ok(None)
        };
        let answer = process.ask(|_| Vec::new(), Duration::from_millis(20), read);
        assert!(matches!(answer, Err(NoAnswer::Timeout(_))), "{answer:?}");
    }
}
