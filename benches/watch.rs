//! CPU usage of the live page during a training run, with two clients that read everything.
//!
//! `cargo bench --bench watch`

#[cfg(target_os = "linux")]
fn main() {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    use std::{env, fs, process, thread};

    let dir = env::temp_dir().join(format!("grove-watch-{}", process::id()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_grove"))
        .args(["train", "fruit", "--device", "cpu", "--iterations", "100000", "--watch"])
        .args(["--port", "0", "--run-dir"])
        .arg(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said =
        BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let line = said.find(|line| line.contains("http://")).expect("an address");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.expect("host and port").to_string();
    thread::spawn(move || said.for_each(drop));
    for _ in 0..2 {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        write!(stream, "GET /run/events HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("a request");
        thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).for_each(drop));
    }
    // CPU time of the page's threads, milliseconds.
    let spent = || -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).expect("Linux's threads");
        let paths = tasks.map_while(Result::ok).map(|task| task.path());
        let of = |path: std::path::PathBuf| {
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let stat = fs::read_to_string(path.join("schedstat")).ok()?;
            name.starts_with("watch-").then(|| stat.split(' ').next()?.parse::<f64>().ok())?
        };
        paths.filter_map(of).sum::<f64>() / 1e6
    };
    let (started, before) = (Instant::now(), spent());
    thread::sleep(Duration::from_secs(10));
    let milliseconds = spent() - before;
    let share = milliseconds / 1e3 / started.elapsed().as_secs_f64();
    println!("{:.2} % of a processor", 100.0 * share);
    let _ = child.kill();
    let _ = child.wait();
    let _ = fs::remove_dir_all(dir);
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("Only Linux says how long a thread has worked.");
}
