//! Every command of the README works as printed, from top to bottom in a new folder, and so do those of the documents,
//! as far as a test has what they need; all are ones that the program has.

use crate::support::{
    Scratch, adapter, hear_ctrl_c, interrupted_run, repository, signal, wait_for,
};
use std::fs;
use std::process::{Command, Stdio};

/// A program `grove` that shortens a command: fewer iterations, games and units, a free port.
const SHORTER: &str = r#"#!/bin/sh
command="$*"
case " $command " in
    *" --iterations 400 "*) set -- train fruit --seed 7 --iterations 2 --run-dir runs/long ;;
    *" --score 7.67 "*) set -- bench fruit --score -20 --repeats 1 --no-peak ;;
    *" --resume "* | *" --dry-run "* | *" --iterations "*) ;;
    " train "* | " fit "*) set -- "$@" --iterations 2 ;;
    " bench "*) set -- "$@" --repeats 1 --no-peak ;;
    " eval runs/sort"*) set -- "$@" --episodes 64 --k 2 ;;
    " eval "*) set -- "$@" --episodes 64 ;;
esac
case " $command " in *" --resume "*) ;; " train fruit "*) set -- "$@" --set num_groups=64 ;; esac
case " $command " in *" --device wgpu "*) set -- "$@" --set hidden=8 ;; esac
case " $command " in *watch*) set -- "$@" --port 0 ;; esac
exec "$GROVE" "$@"
"#;

/// The commands in the console blocks of a document, each on one line and without its comment.
fn commands(document: &str) -> Vec<String> {
    let text = fs::read_to_string(repository(document)).unwrap().replace("\\\n", " ");
    let mut inside = false;
    let mut commands = Vec::new();
    for line in text.lines() {
        inside = if line.starts_with("```") { line == "```console" } else { inside };
        if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            commands.push(command.split("  #").next().unwrap().trim().to_string());
        }
    }
    commands
}

struct Shell {
    folder: Scratch,
}

impl Shell {
    /// A folder with the repository's examples and the shortened program.
    fn new() -> Self {
        let folder = Scratch::new();
        let bin = folder.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("grove"), SHORTER).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(bin.join("grove"), mode).unwrap();
        std::os::unix::fs::symlink(repository("examples"), folder.join("examples")).unwrap();
        Self { folder }
    }

    fn command(&self, line: &str) -> Command {
        let bin = self.folder.join("bin");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {line}")]).current_dir(&self.folder);
        command.env("PATH", path).env("GROVE", env!("CARGO_BIN_EXE_grove"));
        command.env("model", "no-such-model");
        command
    }

    fn run(&self, line: &str) {
        let output = self.command(line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        match line.contains("$model") {
            true => assert!(said.contains("no file or folder no-such-model"), "{line}: {said}"),
            false => assert!(output.status.success(), "{line}: {said}"),
        }
    }

    /// Runs a command that serves a page until Ctrl-C.
    fn serve(&self, line: &str) {
        let log = self.folder.join("served");
        let file = fs::File::create(&log).unwrap();
        let mut child = self.command(line).stderr(file).stdout(Stdio::null()).spawn().unwrap();
        let said = || fs::read_to_string(&log).unwrap();
        wait_for("the page's address", || said().contains("http://127.0.0.1:"));
        if line.contains("train") {
            wait_for("the end of the run", || said().contains("stays up until you press Ctrl-C"));
        }
        signal(child.id(), "-INT");
        assert!(child.wait().unwrap().success(), "{line}: {}", said());
    }
}

#[test]
fn the_commands_of_the_readme_work_in_order() {
    hear_ctrl_c();
    let shell = Shell::new();
    let has_adapter = adapter().is_some();
    let mut count = 0;
    for line in commands("README.md") {
        match () {
            () if !line.starts_with("grove ") => continue,
            () if line.contains("--device wgpu") && !has_adapter => continue,
            // Verifiers run in a sandbox of Linux.
            () if line.contains("--verifier") && !cfg!(target_os = "linux") => continue,
            () if line.contains("watch") => shell.serve(&line),
            () if line == "grove train --resume" => {
                // One that was interrupted.
                let run = ["train", "catch", "--iterations", "400"];
                let arguments = [&run[..], &["--run-dir", "runs/catch-9", "--json"]].concat();
                interrupted_run(&shell.folder, &arguments, "runs/catch-9", 2, 400);
                shell.run(&line);
                let metrics = shell.folder.join("runs/catch-9/metrics.jsonl");
                assert_eq!(fs::read_to_string(metrics).unwrap().lines().count(), 400);
            }
            () => shell.run(&line),
        }
        count += 1;
    }
    assert!(count > 20, "{count} commands");
}

/// Documents whose commands work one after another.
const DOCUMENTS: [&str; 8] =
    ["introduction", "curves", "sweep", "runs", "data", "learning", "verifiers", "tasks"];
/// Parts of commands that need what a test does not have: devices, programs, models and files of the reader's.
const NOT_HERE: [&str; 8] =
    ["wgpu", "mpirun", "tensorboard --", "my-model", "$(", "ocaml", "grove import", "texts.jsonl"];

#[test]
fn commands_of_the_documents_work_in_their_order() {
    hear_ctrl_c();
    let shell = Shell::new();
    let text = fs::read_to_string(repository("docs/sweep.md")).unwrap();
    let sweep = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let shorter =
        sweep.replace("trials = 16", "trials = 3").replace("iterations = 12", "iterations = 2");
    assert_ne!(shorter, sweep);
    fs::write(shell.folder.join("catch.toml"), shorter).unwrap();
    // Runs of earlier days.
    shell.run("grove train sort --model tiny");
    shell.run("grove train sort --model runs/sort-1/model --set lora.r=2 --run-dir runs/sums-1");
    let mut count = 0;
    for document in DOCUMENTS {
        for line in commands(&format!("docs/{document}.md")) {
            match () {
                () if NOT_HERE.iter().any(|part| line.contains(part)) => continue,
                // Verifiers run in a sandbox of Linux.
                () if line.contains("--verifier") && !cfg!(target_os = "linux") => continue,
                () if line.contains("watch") => shell.serve(&line),
                () => shell.run(&line),
            }
            count += 1;
        }
    }
    assert!(count > 25, "{count} commands");
}

#[test]
fn the_reference_of_settings_is_that_of_the_program() {
    let docs = repository("docs");
    let mut command = Command::new("python3");
    let output =
        command.arg(docs.join("settings.py")).arg(env!("CARGO_BIN_EXE_grove")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let is_same = fs::read(docs.join("settings.md")).unwrap() == output.stdout;
    assert!(is_same, "run: docs/settings.py target/release/grove > docs/settings.md");
}

#[test]
fn commands_of_the_documents_have_options_that_exist() {
    let names = fs::read_dir(repository("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.filter_map(|name| Some(format!("docs/{}", name.to_str()?)));
    let mut count = 0;
    for document in names.filter(|name| name.ends_with(".md")) {
        for line in commands(&document) {
            let Some(arguments) = line.strip_prefix("grove ") else { continue };
            // Options are parsed before help is printed.
            let (arguments, _) = arguments.split_once(" | ").unwrap_or((arguments, ""));
            let command = format!("{} {arguments} --help", env!("CARGO_BIN_EXE_grove"));
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{document}: {line}: {said}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands");
}

#[test]
fn every_document_is_in_the_table_of_contents() {
    let docs = repository("docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let links: Vec<(&str, &str)> = contents
        .split('[')
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap().split_once("](").unwrap())
        .collect();
    let mut listed: Vec<String> = links.iter().map(|&(_, file)| file.to_string()).collect();
    listed.sort();
    let names = fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().file_name());
    let mut present: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    present.retain(|name| name.ends_with(".md") && name != "SUMMARY.md");
    present.sort();
    assert_eq!(listed, present);
    // A page has its title in the table, and no other at the same level.
    for (title, file) in links {
        let text = fs::read_to_string(docs.join(file)).unwrap();
        let prose = text.split("```").step_by(2).flat_map(str::lines);
        let titles: Vec<&str> = prose.filter_map(|line| line.strip_prefix("# ")).collect();
        assert_eq!(titles, [title], "{file}");
    }
}

#[test]
fn the_tutorial_of_a_game_shows_all_of_the_example() {
    let read = |path: &str| fs::read_to_string(repository(path)).unwrap();
    let tutorial = read("docs/first-game.md");
    let pieces = tutorial.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let pieces: Vec<&str> = pieces.map(str::trim).collect();
    assert_eq!(pieces.len(), 3);
    let example = read("examples/own_game.rs");
    // The header of the example describes the file itself.
    let (_, code) = example.split_once("\n\n").unwrap();
    assert_eq!(pieces.join("\n\n"), code.trim());
}
