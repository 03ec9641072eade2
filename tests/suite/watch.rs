//! The server of the live page: public files, access control and refusals.

use crate::browser::{Answer, Served};
use crate::support::{
    Scratch, command, grove, json, refusal, refused, repository, stderr, train, wait_for,
};
use std::fs;

const SECRET: &str = "this stays here";

/// A folder with a run of six iterations, and private files in it and beside it.
fn folder_with_run() -> Scratch {
    let folder = Scratch::new();
    json(&folder, &train("catch", "run", &["--iterations", "6", "--set", "save_every=4"]));
    for place in ["secret.txt", "run/secret.txt", "run/best/secret.txt"] {
        fs::write(folder.join(place), SECRET).unwrap();
    }
    folder
}

#[test]
fn the_page_and_the_listed_files_are_served_with_their_headers() {
    let folder = folder_with_run();
    let run = folder.join("run");
    let server = Served::watch(&folder);
    let listed = [
        ("text/plain; charset=utf-8", "config.toml best/config.toml newest/config.toml"),
        ("application/json", "run.json"),
        ("application/x-ndjson", "metrics.jsonl"),
        ("application/octet-stream", "best/weights.safetensors newest/weights.safetensors"),
    ];
    let each = |(kind, names): (_, &'static str)| names.split(' ').map(move |name| (kind, name));
    for (kind, name) in listed.into_iter().flat_map(each) {
        let answer = server.get(&format!("/run/files/{name}"));
        assert_eq!(answer.status, 200, "{name}");
        let file = run.join(name.replace("newest", "checkpoints/00000006"));
        assert!(answer.body == fs::read(file).unwrap(), "{name}");
        assert_eq!(answer.header("content-type"), Some(kind), "{name}");
        if name.starts_with("newest") {
            assert_eq!(answer.header("grove-iteration"), Some("6"), "{name}");
        }
    }
    for path in ["/", "/index.html"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"), "{path}");
        assert!(!answer.text().contains("style="), "{path}: the policy forbids it");
    }
    for path in ["/", "/run/about.json", "/run/files/metrics.jsonl", "/nothing"] {
        let answer = server.get(path);
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self' 'wasm-unsafe-eval';"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-embedder-policy", "require-corp"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path} {name}");
        }
    }
}

#[test]
fn the_page_names_the_policy_of_the_server_before_all_that_it_loads() {
    let folder = folder_with_run();
    let server = Served::watch(&folder);
    let answer = server.get("/");
    // Browsers take the last part from a header alone.
    let policy = answer.header("content-security-policy").unwrap();
    let policy = policy.strip_suffix("; frame-ancestors 'none'").unwrap();
    let page = fs::read_to_string(repository("web/page/index.html")).unwrap();
    let meta = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
    let (meta_at, first) = (page.find(&meta).expect(&meta), page.find("<link").unwrap());
    assert!(meta_at < first);
}

#[test]
fn the_run_is_described() {
    let folder = folder_with_run();
    let server = Served::watch(&folder);
    let about = server.get("/run/about.json").json();
    assert_eq!(about["run"], "run");
    assert_eq!(about["game"], "catch");
    assert_eq!(about["grove"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&about["iteration"], &about["iterations"]), (&6.into(), &6.into()));
    assert_eq!(about["settings"]["rollout"]["num_groups"], 8);
    assert_eq!(about["settings"]["catch"]["rows"], 10);
    assert_eq!(about["optimum"], 1.0);
    assert_eq!(about["references"][0]["player"], "random");
    assert_eq!(about["references"][1]["player"], "optimum");
    assert_eq!(about["trained_with"]["device"]["name"], "cpu");
    assert!(about["trained_with"]["engine"].is_string());
    assert_eq!(about["newest"]["iteration"], 6);
    let best = server.get(about["best"]["weights"].as_str().unwrap());
    let iteration = about["best"]["iteration"].to_string();
    assert_eq!(best.header("grove-iteration"), Some(iteration.as_str()));
}

#[test]
fn cached_files_are_not_sent_again() {
    let folder = folder_with_run();
    let server = Served::watch(&folder);
    let host = format!("Host: {}\r\n", server.address);
    for path in ["/", "/run/about.json", "/run/files/best/weights.safetensors"] {
        let first = server.get(path);
        let tag = first.header("etag").unwrap();
        let again = |tag: &str| {
            server.ask(&format!("GET {path} HTTP/1.1\r\n{host}If-None-Match: {tag}\r\n"))
        };
        let answer = again(tag);
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{path}");
        assert_eq!(again("\"other\"").status, 200, "{path}");

        let head = server.ask(&format!("HEAD {path} HTTP/1.1\r\n{host}"));
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        let length = first.body.len().to_string();
        assert_eq!(head.header("content-length"), Some(length.as_str()), "{path}");
    }
    let records = fs::read(folder.join("run/metrics.jsonl")).unwrap().len().to_string();
    for (path, length) in
        [("/run/events", None), ("/run/files/metrics.jsonl", Some(records.as_str()))]
    {
        let head = server.ask(&format!("HEAD {path} HTTP/1.1\r\n{host}"));
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert_eq!(head.header("content-length"), length, "{path}");
    }
}

#[test]
fn no_other_path_is_served() {
    let folder = folder_with_run();
    let secret = folder.join("secret.txt");
    let server = Served::watch(&folder);
    let absolute = format!("/run/files/{}", secret.display());
    let encoded = absolute.replace('/', "%2f");
    let whole = format!("http://{}/run/files/../secret.txt", server.address);
    let file = format!("file://{}", secret.display());
    let paths = [
        "/run/files/../secret.txt",
        "/run/files/../../secret.txt",
        "/run/files/%2e%2e%2fsecret.txt",
        "/run/files/%2e%2e/secret.txt",
        "/run/files/..%2f..%2fsecret.txt",
        "/run/files/%252e%252e%252fsecret.txt",
        "/run/files/..\\secret.txt",
        "/run/files/..%5csecret.txt",
        "/run/files/best/../../secret.txt",
        "/run/files/best/..\\..\\secret.txt",
        "/run/files/best/secret.txt",
        "/run/files/secret.txt",
        "/run/files/config.toml%00secret.txt",
        "/run/files/config.toml\0",
        "/run/files/\0/secret.txt",
        "/run/files/config.toml/",
        "/run/files/config.toml/../secret.txt",
        "/run/files/./secret.txt",
        "/run/files//secret.txt",
        "/run/files/CONFIG.TOML",
        "/run/files/run.json::$DATA",
        "/run/files/",
        "/run/files",
        "/run/files/best",
        "/run/files/best/",
        "/run/files/best/state.json",
        "/run/files/newest/first_moment.safetensors",
        "/run/files/checkpoints/00000006/weights.safetensors",
        "/run/",
        "/run",
        "/page/../run/secret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/secret.txt",
        "//secret.txt",
        "secret.txt",
        "*",
        "/..;/secret.txt",
        "/run/files/\u{ff0e}\u{ff0e}/secret.txt",
        &absolute,
        &encoded,
        &whole,
        &file,
    ];
    for path in paths {
        let stream = server.send(&format!("{}Connection: close\r\n\r\n", server.head(path)));
        // A malformed request may be dropped without a response.
        if let Some(answer) = Answer::read(stream) {
            assert!([400, 403, 404].contains(&answer.status), "{path:?}: {}", answer.status);
            assert!(!answer.text().contains(SECRET), "{path:?}");
            assert!(answer.body.len() < 100, "{path:?}: {}", answer.text());
        }
        assert_eq!(server.get("/run/files/config.toml").status, 200, "after {path:?}");
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_run_are_not_followed() {
    use std::os::unix::fs::symlink;
    let folder = folder_with_run();
    let (run, other) = (folder.join("run"), folder.join("other"));
    fs::create_dir(&other).unwrap();
    let server = Served::watch(&folder);
    for name in ["config.toml", "metrics.jsonl", "run.json", "best", "checkpoints"] {
        fs::rename(run.join(name), other.join(name)).unwrap();
        symlink(other.join(name), run.join(name)).unwrap();
    }
    // The files are looked at some times a second.
    let gone = |path: &str| wait_for(path, || server.get(path).status == 404);
    for name in ["config.toml", "metrics.jsonl", "run.json", "best/config.toml"] {
        gone(&format!("/run/files/{name}"));
    }
    gone("/run/files/newest/weights.safetensors");
    gone("/run/about.json");
    let error = refusal(&folder, &["watch", "run", "--port", "0"]);
    assert!(error.contains("checkpoints is a symbolic link"), "{error}");

    // The run directory itself may be a symbolic link.
    symlink(&other, folder.join("way")).unwrap();
    let server = Served::start(&folder, &["watch", "way", "--port", "0"]);
    assert_eq!(server.get("/run/about.json").json()["run"], "other");
}

#[test]
fn foreign_hosts_origins_and_methods_are_rejected() {
    let folder = folder_with_run();
    let server = Served::watch(&folder);
    let (address, port) = (&server.address, server.address.rsplit(':').next().unwrap());
    let localhost = format!("localhost:{port}");
    let ask = |method: &str, host: &str, more: &str| {
        server.ask(&format!("{method} /run/about.json HTTP/1.1\r\nHost: {host}\r\n{more}"))
    };
    for host in [address, &localhost, "localhost", &format!("[::1]:{port}")] {
        assert_eq!(ask("GET", host, "").status, 200, "{host}");
        assert_eq!(ask("GET", host, &format!("Origin: http://{host}\r\n")).status, 200, "{host}");
    }
    let foreign = [format!("evil.example:{port}"), "evil.example".into(), "192.168.0.1".into()];
    for host in foreign.iter().chain([&format!("{address}.evil.example"), &String::new()]) {
        let answer = ask("GET", host, "");
        assert_eq!(answer.status, 403, "{host}");
        assert!(answer.text().contains("Host header"), "{}", answer.text());
    }
    let origins = ["http://evil.example", "null", "https://localhost", "http://127.0.0.1:1", ""];
    for origin in origins.into_iter().chain([format!("http://{localhost}").as_str()]) {
        let answer = ask("GET", address, &format!("Origin: {origin}\r\n"));
        assert_eq!(answer.status, 403, "{origin}");
        assert!(answer.text().contains("other origins"), "{}", answer.text());
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let answer = ask(method, address, "");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    for (head, status) in [
        ("GET / HTTP/1.1\r\n".to_string(), 400),
        (format!("GET / HTTP/1.1\r\nHost: {address}\r\nHost: {address}\r\n"), 400),
        (format!("GET http://evil.example/ HTTP/1.1\r\nHost: {address}\r\n"), 403),
        (format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: {}\r\n", "x".repeat(40_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: {address}\r\n", "x".repeat(40_000)), 414),
    ] {
        let answer = server.ask(&head);
        let shown = &head[..head.len().min(60)];
        assert!([status, 431].contains(&answer.status), "{shown}: {}", answer.status);
    }
}

#[test]
fn the_latest_run_is_shown_by_default() {
    let folder = &Scratch::new();
    for run in ["runs/catch-1", "runs/catch-2", "runs/fruit-1"] {
        let game = &run["runs/".len()..][..5];
        json(folder, &train(game, run, &["--iterations", "1"]));
    }
    fs::create_dir(folder.join("runs/zebra-9")).unwrap();
    let server = Served::start(folder, &["watch", "--port", "0"]);
    assert_eq!(server.get("/run/about.json").json()["game"], "fruit");
    let server = Served::start(folder, &["watch", "catch", "--port", "0"]);
    assert_eq!(server.get("/run/about.json").json()["run"], "catch-2");
    let resume = ["train", "--resume", "--run-dir", "runs/catch-2", "--iterations", "2"];
    assert!(grove(folder, &resume).status.success());
    let server = Served::start(folder, &["watch", "--port", "0"]);
    assert_eq!(server.get("/run/about.json").json()["game"], "catch");
}

#[test]
fn invalid_runs_are_one_line_errors() {
    let folder = &Scratch::new();
    fs::create_dir(folder.join("empty")).unwrap();
    json(folder, &train("catch", "run", &["--iterations", "1"]));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let train_here = format!("train --run-dir new --watch --port {port}");
    let resume = format!("train --resume --run-dir run --iterations 2 --watch --port {port}");
    let watch = format!("watch run --port {port}");
    let cases: &[(&str, &[&str])] = &[
        ("watch", &["no run in runs", "name a run directory"]),
        ("watch nowhere", &["no such run: nowhere"]),
        ("watch empty", &["empty holds no run", "config.toml"]),
        (&watch, &["127.0.0.1", &port, "in use", "--port"]),
        ("watch run --port 65536", &["--port", "65536"]),
        ("watch run --host no.such.host.invalid", &["no.such.host.invalid"]),
        ("watch run --host 192.0.2.1 --port 0", &["192.0.2.1"]),
        (&train_here, &["127.0.0.1", &port, "in use"]),
        (&resume, &["127.0.0.1", &port, "in use"]),
        ("train --run-dir new --port 1", &["--watch"]),
    ];
    for (line, words) in cases {
        refused(folder, line, words);
    }
    let output = grove(folder, &["watch", "nowhere"]);
    assert_eq!((output.status.code(), stderr(&output).lines().count()), (Some(1), 1));
    assert!(!folder.join("new").exists(), "bad input leaves nothing behind");
}

#[cfg(unix)]
#[test]
fn open_starts_the_browser_with_the_address() {
    use std::os::unix::fs::PermissionsExt;
    let folder = &folder_with_run();
    let browser = folder.join("xdg-open");
    fs::write(&browser, "#!/bin/sh\necho \"$1\" > opened\n").unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut program = command(folder, &["watch", "run", "--port", "0", "--open"]);
    let server = Served::spawn(program.env("PATH", path));
    let opened = || fs::read_to_string(folder.join("opened")).unwrap_or_default();
    wait_for("a browser that opens the page", || opened().ends_with('\n'));
    assert_eq!(opened().trim(), format!("http://{}/", server.address));
}
