//! The server of the live page over time: growing runs, reconnecting and slow clients, shutdown.

use crate::browser::{Answer, Event, Events, Served};
use crate::support::{Scratch, json, train, wait_for};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

fn folder_with_run(iterations: &str) -> Scratch {
    let folder = Scratch::new();
    json(&folder, &train("catch", "run", &["--iterations", iterations]));
    folder
}

/// Appends a copy of the last record with another iteration.
fn record(folder: &Path, iteration: u64) {
    let path = folder.join("run/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    record["iteration"] = iteration.into();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    // In two writes, so that a reader may see an incomplete line.
    let line = record.to_string();
    file.write_all(&line.as_bytes()[..20]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    file.write_all(&line.as_bytes()[20..]).unwrap();
    file.write_all(b"\n").unwrap();
}

fn checkpoints(events: &mut Events, number: usize) -> Vec<(String, u64)> {
    let of = |_| {
        let data = events.next_of("checkpoint").data;
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        (data["which"].as_str().unwrap().to_string(), data["iteration"].as_u64().unwrap())
    };
    let mut found: Vec<_> = (0..number).map(of).collect();
    found.sort();
    found
}

#[test]
fn a_client_receives_existing_then_new_records() {
    let folder = &folder_with_run("6");
    let server = Served::watch(folder);
    let mut events = server.events(None);
    assert_eq!(events.next().name, "start");
    let text = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    for line in text.lines() {
        let event = events.next();
        assert_eq!((event.name.as_str(), event.data.as_str()), ("record", line));
    }
    assert_eq!(checkpoints(&mut events, 2)[1], ("newest".to_string(), 6));
    record(folder, 7);
    assert_eq!(events.iteration(), 7);
    assert_eq!(server.get("/run/about.json").json()["iteration"], 7);
}

#[test]
fn a_reconnecting_client_continues_where_it_was() {
    let folder = &folder_with_run("6");
    let server = Served::watch(folder);
    let mut events = server.events(None);
    let third = (0..3).map(|_| events.next_of("record")).last().unwrap();
    assert!(third.id.ends_with("-3"), "{third:?}");
    drop(events);

    // Another server of the same run accepts the id, too.
    let other = Served::watch(folder);
    for server in [&server, &other] {
        let mut events = server.events(Some(&third.id));
        let names: Vec<String> = (0..3).map(|_| events.next().name).collect();
        assert_eq!(names, ["record"; 3]);
        let mut last = server.events(Some(&third.id.replace("-3", "-6")));
        assert_eq!(last.next().name, "checkpoint");
    }
    // Unknown ids start over.
    for id in ["1", "0-3", &third.id.replace("-3", "-7"), "../../secret", "-", ""] {
        let mut events = server.events(Some(id));
        assert_eq!(events.next().name, "start", "{id}");
        assert_eq!(events.iteration(), 1, "{id}");
    }
}

#[test]
fn resumed_and_replaced_runs_restart_the_stream() {
    let folder = &folder_with_run("6");
    record(folder, 7);
    let server = Served::watch(folder);
    let mut events = server.events(None);
    while events.iteration() < 7 {}
    assert_eq!(checkpoints(&mut events, 2)[1], ("newest".to_string(), 6));
    // Resuming drops the records after the checkpoint.
    json(folder, &["train", "--resume", "--run-dir", "run", "--iterations", "9", "--json"]);
    events.next_of("start");
    let iterations: Vec<u64> = (0..9).map(|_| events.iteration()).collect();
    assert_eq!(iterations, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    loop {
        let newest = checkpoints(&mut events, 1);
        if newest == [("newest".to_string(), 9)] {
            break;
        }
    }
    let newest = server.get("/run/files/newest/weights.safetensors");
    assert_eq!(newest.header("grove-iteration"), Some("9"));

    // The server survives the removal of the run, and serves it again when it is back.
    fs::rename(folder.join("run"), folder.join("away")).unwrap();
    events.next_of("start");
    assert_eq!(server.get("/run/about.json").status, 404);
    json(folder, &train("fruit", "run", &["--iterations", "2"]));
    assert_eq!(events.iteration(), 1);
    assert_eq!(server.get("/run/about.json").json()["game"], "fruit");
}

#[test]
fn damaged_checkpoints_are_skipped() {
    let folder = &Scratch::new();
    json(folder, &train("catch", "run", &["--iterations", "8", "--set", "save_every=4"]));
    let weights = folder.join("run/checkpoints/00000008/weights.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    bytes[100] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let server = Served::watch(folder);
    assert_eq!(server.get("/run/about.json").json()["newest"]["iteration"], 4);
}

#[test]
fn connections_are_limited_and_freed_when_clients_leave() {
    let folder = folder_with_run("1");
    let server = Served::watch(&folder);
    let clients: Vec<Events> = (0..64).map(|_| server.events(None)).collect();
    let answer = server.get("/run/about.json");
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("Too many connections"), "{}", answer.text());
    // Connections beyond those are dropped.
    let waiting: Vec<_> = (0..30).map(|_| server.connect()).collect();
    drop((clients, waiting));
    let status = || {
        let mut stream = server.connect();
        stream.write_all((server.head("/") + "Connection: close\r\n\r\n").as_bytes()).ok()?;
        Some(Answer::read(stream)?.status)
    };
    wait_for("a place that became free", || status() == Some(200));
}

#[test]
fn incomplete_requests_time_out() {
    let folder = folder_with_run("1");
    let server = Served::watch(&folder);
    let head = server.head("/");
    let (silent, slow, idle) =
        (server.connect(), server.send(&head), server.send(&(head + "\r\n")));
    for mut client in [silent, slow, idle] {
        // The server must close the connection.
        if let Err(error) = client.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
}

/// Resident memory of a process, bytes.
#[cfg(target_os = "linux")]
fn resident(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn clients_that_do_not_read_take_no_memory() {
    let folder = &folder_with_run("1");
    let path = folder.join("run/metrics.jsonl");
    let line = fs::read_to_string(&path).unwrap();
    let many: String = (1..=20_000)
        .map(|i| line.replacen("\"iteration\":1,", &format!("\"iteration\":{i},"), 1))
        .collect();
    assert!(many.len() > 10 << 20);
    fs::write(&path, many).unwrap();
    let server = Served::watch(folder);
    assert_eq!(server.get("/run/about.json").json()["iteration"], 20_000);
    let before = resident(server.child.id());
    let slow: Vec<_> = (0..50)
        .map(|i| {
            let path = ["/run/events", "/run/files/metrics.jsonl"][i % 2];
            server.send(&(server.head(path) + "\r\n"))
        })
        .collect();
    // Other clients are served meanwhile.
    let mut events = server.events(None);
    while events.iteration() < 20_000 {}
    let grown = resident(server.child.id()).saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} bytes more for {} clients", slow.len());
    let answer = server.get("/run/files/metrics.jsonl");
    assert!(answer.body == fs::read(&path).unwrap());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_server_with_0_despite_open_connections() {
    let folder = folder_with_run("1");
    let mut server = Served::watch(&folder);
    let mut events = server.events(None);
    events.next_of("record");
    let _idle = server.connect();
    let status = server.interrupt();
    assert_eq!(status.code(), Some(0));
}

#[cfg(unix)]
#[test]
fn watching_does_not_change_a_run() {
    let folder = &Scratch::new();
    let more = ["--iterations", "40", "--set", "save_every=10"];
    let quiet = json(folder, &train("catch", "quiet", &more));

    let more = [more.as_slice(), &["--watch", "--port", "0"]].concat();
    let mut server = Served::start(folder, &train("catch", "run", &more));
    let mut events = server.events(None);
    let iterations: Vec<u64> = (0..40).map(|_| events.iteration()).collect();
    assert_eq!(iterations, (1..=40).collect::<Vec<u64>>());
    let mut newest = Event::default();
    while !newest.data.contains("\"iteration\":40") || !newest.data.contains("newest") {
        newest = events.next_of("checkpoint");
    }

    // The result is printed at the end, and the page stays until Ctrl-C.
    let mut result = String::new();
    BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut result).unwrap();
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["mean_score"], quiet["mean_score"]);
    server.wait_for_line("stays up until you press Ctrl-C");
    let about = server.get("/run/about.json").json();
    assert_eq!((&about["iteration"], &about["newest"]["iteration"]), (&40.into(), &40.into()));
    assert_eq!(server.interrupt().code(), Some(0));
    for file in ["config.toml", "best/SHA256SUMS", "checkpoints/00000040/SHA256SUMS"] {
        let read = |run: &str| fs::read(folder.join(run).join(file)).unwrap();
        assert_eq!(read("quiet"), read("run"), "{file}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_during_training_saves_and_stops_the_page() {
    let folder = Scratch::new();
    let more = ["--iterations", "100000", "--watch", "--port", "0"];
    let mut server = Served::start(&folder, &train("catch", "run", &more));
    let mut events = server.events(None);
    while events.iteration() < 5 {}
    assert_eq!(server.interrupt().code(), Some(0));
    server.wait_for_line("Interrupted and saved");
}
