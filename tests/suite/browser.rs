//! A served program, and a client that sends exactly the bytes of a test.

use crate::support::{HANG, command, wait_for};
#[cfg(unix)]
use crate::support::{hear_ctrl_c, signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A running `grove` that serves.
pub struct Served {
    pub child: Child,
    /// Host and port.
    pub address: String,
    lines: Receiver<String>,
}

impl Served {
    /// Starts the program and waits until it says where it is.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::spawn(&mut command(folder, arguments))
    }

    /// Shows the run in the folder `run`.
    pub fn watch(folder: &Path) -> Self {
        Self::start(folder, &["watch", "run", "--port", "0"])
    }

    pub fn spawn(command: &mut Command) -> Self {
        #[cfg(unix)]
        hear_ctrl_c();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut served = Self { child, address: String::new(), lines };
        let line = served.wait_for_line("http://");
        let after = line.split("http://").nth(1).unwrap();
        served.address = after.split('/').next().unwrap().to_string();
        served
    }

    /// Waits for a line on stderr.
    pub fn wait_for_line(&mut self, words: &str) -> String {
        let until = Instant::now() + HANG;
        let mut all = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("it does not say `{words}`, but: {all}"));
            if line.contains(words) {
                return line;
            }
            all += &(line + "\n");
        }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask(&self.head(path))
    }

    /// The lines that ask for a path.
    pub fn head(&self, path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", self.address)
    }

    /// Sends these lines, and that this is all.
    pub fn ask(&self, head: &str) -> Answer {
        let stream = self.send(&format!("{head}Connection: close\r\n\r\n"));
        Answer::read(stream).unwrap_or_else(|| panic!("no answer to {head:?}"))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    }

    /// Sends exactly this.
    pub fn send(&self, text: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// Asks for the events after the one with this id.
    pub fn events(&self, last: Option<&str>) -> Events {
        // A stream of HTTP/1.0 is not cut into chunks.
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let head = format!("GET /run/events HTTP/1.0\r\nHost: {}\r\n{last}\r\n", self.address);
        let mut lines = BufReader::new(self.send(&head));
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        while line.trim() != "" {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        Events { lines }
    }

    /// Sends what Ctrl-C sends, and waits for the end.
    #[cfg(unix)]
    pub fn interrupt(&mut self) -> ExitStatus {
        signal(self.child.id(), "-INT");
        let mut status = None;
        wait_for("the end of the program", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads up to the end of the connection; `None` if nothing came.
    pub fn read(mut stream: TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        // Data that the server did not want may end the connection with an error; what came counts.
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let (first, rest) = head.split_once("\r\n").unwrap();
        let headers = rest.lines().map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_string())
        });
        let headers: Vec<_> = headers.collect();
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Self { status, headers, body: bytes[end + 4..].to_vec() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = joined(&answer.body);
        }
        Some(answer)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The chunks of a body, put together.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let length = std::str::from_utf8(&body[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.extend(&body[end + 2..end + 2 + length]);
        body = &body[end + 4 + length..];
    }
    whole
}

/// A stream of events.
pub struct Events {
    lines: BufReader<TcpStream>,
}

/// An event.
#[derive(Debug, Default)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: String,
}

impl Events {
    /// Waits for the next event.
    pub fn next(&mut self) -> Event {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended");
            match line.trim_end().split_once(": ") {
                Some(("event", name)) => event.name = name.into(),
                Some(("id", id)) => event.id = id.into(),
                Some(("data", data)) => event.data = data.into(),
                _ if line == "\n" && !event.name.is_empty() => return event,
                _ => {}
            }
        }
    }

    /// Waits for the next event of this name.
    pub fn next_of(&mut self, name: &str) -> Event {
        loop {
            let event = self.next();
            if event.name == name {
                return event;
            }
        }
    }

    /// Waits for the next record, and gives the number of its iteration.
    pub fn iteration(&mut self) -> u64 {
        let data = self.next_of("record").data;
        serde_json::from_str::<serde_json::Value>(&data).unwrap()["iteration"].as_u64().unwrap()
    }
}
