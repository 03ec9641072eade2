//! A process that is kept at work: asked over its standard input, answering a line over its standard output.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Why a process did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Time ran out; what it wrote instead of an answer, as the end of a sentence.
    Late(String),
    /// It is gone, or answers without end; how, as what follows "the verifier".
    Ended(String),
}

/// The longest line that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// How long a process may take to end when its input does.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process at work. Dropping it ends the process, and all of its group where there are groups.
pub struct Process {
    child: Child,
    requests: Option<Sender<Vec<u8>>>,
    lines: Receiver<Vec<u8>>,
    /// The last line of its standard error.
    complaint: Arc<Mutex<String>>,
    /// The thread that reads its standard error.
    listener: JoinHandle<()>,
    next_id: u64,
    /// Whether it was asked something and has not answered.
    busy: bool,
}

impl Process {
    /// Starts the command.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let stderr = child.stderr.take().expect("piped");
        let (requests, to_write) = mpsc::channel();
        // A process that writes more than it is asked has to wait.
        let (read, lines) = mpsc::sync_channel(4);
        let complaint = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&complaint);
        thread::spawn(move || write_all(stdin, &to_write));
        thread::spawn(move || read_lines(stdout, &read));
        let listener = thread::spawn(move || keep_last_line(stderr, &heard));
        let requests = Some(requests);
        Ok(Self { child, requests, lines, complaint, listener, next_id: 1, busy: false })
    }

    /// Asks under a new number, and waits for the answer. `read` says of a line whether it is that: what is in
    /// it; `None` for an answer to something else; an error that says what else it is. Such lines are passed over,
    /// since nobody knows what they are about.
    pub fn ask<T>(
        &mut self,
        request: impl FnOnce(u64) -> Vec<u8>,
        limit: Duration,
        read: impl Fn(u64, &[u8]) -> Result<Option<T>, String>,
    ) -> Result<T, Trouble> {
        let deadline = Instant::now() + limit;
        // What was written before the question is no answer to it.
        while self.lines.try_recv().is_ok() {}
        let id = self.next_id;
        self.next_id += 1;
        self.busy = true;
        let requests = self.requests.as_ref().expect("open until dropped");
        // If the process is gone, so is its output, which tells.
        let _ = requests.send(request(id));
        let mut instead = String::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match read(id, &line) {
                    Ok(Some(answer)) => {
                        self.busy = false;
                        return Ok(answer);
                    }
                    Ok(None) => instead = "; it answered something else".to_string(),
                    Err(message) => instead = format!("; {message}"),
                },
                Err(RecvTimeoutError::Timeout) => return Err(Trouble::Late(instead)),
                Err(RecvTimeoutError::Disconnected) => return Err(Trouble::Ended(self.end())),
            }
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            _ => Some(self.end()),
        }
    }

    /// How it ended, as what follows "the verifier"; it is made to where it has not.
    fn end(&mut self) -> String {
        let status = self.wait(PATIENCE);
        // Its last words may still be on their way.
        let deadline = Instant::now() + PATIENCE;
        while !self.listener.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let status = status.unwrap_or_else(|| "no more output".to_string());
        match complaint.is_empty() {
            true => format!("ended ({status})"),
            false => format!("ended ({status}: {complaint})"),
        }
    }

    /// Its exit status, if it ends in time.
    fn wait(&mut self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.to_string()),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input tells a process to go, unless it is lost in a question.
        self.requests = None;
        if !self.busy {
            self.wait(PATIENCE);
        }
        end_group(&mut self.child);
        let _ = self.child.wait();
    }
}

/// Ends a process, and whatever it has started in its group.
pub fn end_group(child: &mut Child) {
    #[cfg(unix)]
    if let Ok(group) = i32::try_from(child.id()) {
        // SAFETY: sends a signal, touches no memory. The group is the child's own, by its number, which the system
        // gives to nobody else as long as somebody is in the group, and not soon afterwards.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    let _ = child.kill();
}

/// Writes what comes until nobody sends any more, or nobody reads.
fn write_all(mut stdin: ChildStdin, lines: &Receiver<Vec<u8>>) {
    for line in lines {
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Hands on the lines of a process until it ends, or writes one that does not.
fn read_lines(stdout: impl Read, to: &SyncSender<Vec<u8>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = (&mut stdout).take(LONGEST).read_until(b'\n', &mut line);
        let whole = line.last() == Some(&b'\n');
        if read.is_err() || line.is_empty() || (!whole && line.len() as u64 == LONGEST) {
            return;
        }
        if to.send(line.trim_ascii_end().to_vec()).is_err() {
            return;
        }
    }
}

/// Keeps the last line of what a process complains of, and lets it complain.
fn keep_last_line(stderr: impl Read, kept: &Mutex<String>) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match (&mut stderr).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let text: String = String::from_utf8_lossy(&line).trim().chars().take(200).collect();
        if !text.is_empty() {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
    }
}
