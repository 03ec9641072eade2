//! The sandbox of a verifier: what its command names, read-only, without a network.

use super::VerifierOptions;
use crate::disk::input;
use crate::task::TaskError;
use crate::task::process::find_on_path;
use crate::task::sandbox::{Access, Limits, Sandbox, SandboxFolder};
use std::collections::BTreeSet;
use std::env;
use std::io::{self, Read};
use std::iter;
use std::mem;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Characters that separate the words of a shell command, as far as paths are concerned.
const SEPARATORS: &str = " \t\n'\"=:;,&|()<>{}`";

/// Folders of the system that are not shown even if a command names them.
const HIDDEN_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Processes and threads that a verifier may have at a time: more than any needs, and fewer than stop a machine.
const MAX_PROCESSES: u64 = 4096;

/// The sandboxes of a verifier's processes.
pub struct Confinement {
    sandbox: Sandbox,
    /// Holds a folder for each process to write to.
    folder: SandboxFolder,
    num_started: AtomicUsize,
}

impl Confinement {
    /// Creates the sandbox of a command.
    ///
    /// # Errors
    /// If this machine cannot enforce it.
    pub fn new(options: &VerifierOptions) -> Result<Self, TaskError> {
        let failed = |why: String| {
            TaskError::Verifier(format!("the verifier cannot be put into a sandbox: {why}"))
        };
        let wrong = |error: io::Error| failed(error.to_string());
        let refused = |why: String| {
            failed(format!("{why} --verifier-sandbox=off runs it with all of your rights"))
        };
        let folder = SandboxFolder::new().map_err(wrong)?;
        let limits = Limits { processes: MAX_PROCESSES, ..Limits::default() };
        let workdir = match &options.folder {
            Some(folder) => folder.canonicalize(),
            None => env::current_dir(),
        };
        let workdir = workdir.map_err(wrong)?;
        let mut readable = find_command_paths(&options.command, &workdir);
        let allowed = find_allowed_paths(&options.sandbox.readable, &workdir).map_err(failed)?;
        readable.extend(allowed.iter().cloned());
        // The command and the user may name a hidden file, which is then readable.
        let is_named = |file: &PathBuf| {
            let holds =
                |path: &PathBuf| path.canonicalize().is_ok_and(|path| file.starts_with(path));
            readable.contains(file) || allowed.iter().any(holds)
        };
        let hidden_paths =
            options.sandbox.hidden_paths.iter().filter(|file| !is_named(file)).cloned();
        let access = Access {
            hidden_paths: hidden_paths.collect(),
            readable: readable.into_iter().collect(),
            has_programs: true,
            has_network: options.sandbox.has_network,
            workdir: Some(workdir),
            scratch_mib: 1024,
        };
        let scratch = folder.create_subfolder("try").map_err(wrong)?;
        let sandbox = Sandbox::new(limits, &scratch, access);
        let sandbox = sandbox.map_err(|error| refused(format!("{error}.")))?;
        let notes = sandbox.notes();
        if !notes.is_empty() {
            return Err(refused(notes.join(" ")));
        }
        Ok(Self { sandbox, folder, num_started: AtomicUsize::new(0) })
    }

    /// A shell that runs `command` in its own sandbox.
    ///
    /// # Errors
    /// If its folder cannot be created.
    pub fn shell_command(&self, command: &str) -> io::Result<Command> {
        let name = format!("v{}", self.num_started.fetch_add(1, Ordering::Relaxed));
        let scratch = self.folder.create_subfolder(&name)?;
        let mut shell = self.sandbox.command("sh", &scratch)?;
        shell.args(["-c", command]);
        Ok(shell)
    }
}

/// Finds the paths that the user allows, with everything that their links lead to.
///
/// # Errors
/// A clause, if one of them does not exist, or is the root.
fn find_allowed_paths(allowed: &[PathBuf], workdir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for path in allowed {
        let full = workdir.join(path);
        let real = full.canonicalize().map_err(|error| {
            format!(
                "{} (--verifier-allow, data.readable) cannot be read: {error}; correct the path, or leave it out",
                path.display()
            )
        })?;
        if real.parent().is_none() {
            return Err(format!(
                "{} (--verifier-allow, data.readable) is the whole machine; name the folders that it needs",
                path.display()
            ));
        }
        paths.extend(follow_links(&full));
        if !paths.contains(&real) {
            paths.push(real);
        }
    }
    Ok(paths)
}

/// Splits a command into words: as a shell does, with the quotes and backslashes in it, and also at every separator.
fn split_words(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match quote {
            _ if c == '\\' && quote != Some('\'') => word.extend(characters.next()),
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if SEPARATORS.contains(c) => words.push(mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.extend(command.split(|c| SEPARATORS.contains(c)).map(str::to_string));
    words
}

/// Finds the paths that a command needs: its folder (unless that contains the user's home), the files and folders that
/// it names, the installations of its programs, and the Python libraries that the user has installed.
fn find_command_paths(command: &str, workdir: &Path) -> BTreeSet<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let is_private = |path: &Path| {
        path.parent().is_none() || home.as_ref().is_some_and(|home| home.starts_with(path))
    };
    let mut paths = BTreeSet::new();
    if !is_private(workdir) {
        paths.insert(workdir.to_path_buf());
    }
    if let Some(home) = &home {
        paths.insert(home.join(".local/lib"));
    }
    let mut words = split_words(command);
    let mut next = 0;
    while let Some(word) = words.get(next).cloned() {
        next += 1;
        let word = match (word.strip_prefix("~/").or(word.strip_prefix("$HOME/")), &home) {
            _ if word.is_empty() => continue,
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(&word),
        };
        let file = workdir.join(&word);
        let found = if file.exists() {
            Some(file).filter(|file| !file.canonicalize().is_ok_and(|path| is_private(&path)))
        } else if word.components().count() == 1 {
            find_on_path(&word)
        } else {
            None
        };
        if let Some(found) = found {
            let interpreter = read_interpreter_line(&found).filter(|line| !words.contains(line));
            words.extend(
                interpreter.iter().flat_map(|line| line.split_whitespace().map(str::to_string)),
            );
            words.extend(interpreter);
            paths.extend(find_installation_paths(&found, is_private));
        }
    }
    paths.retain(|path| {
        path.exists() && !HIDDEN_FOLDERS.iter().any(|hidden| path.starts_with(hidden))
    });
    paths
}

/// Reads the command in the first line of a script, after `#!`.
fn read_interpreter_line(file: &Path) -> Option<String> {
    let mut start = Vec::new();
    // The longest line that Linux reads.
    input::open(file).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).trim().to_string())
}

/// Finds a file with everything that its links lead to and, if it lies in a folder `bin`, or in `shims` of a version
/// manager, everything installed beside that folder.
fn find_installation_paths(file: &Path, is_private: impl Fn(&Path) -> bool) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for path in follow_links(file) {
        let is_bin = |folder: &&Path| folder.ends_with("bin") || folder.ends_with("shims");
        let bin = path.parent().filter(is_bin);
        let prefix = bin.and_then(Path::parent);
        let is_own = |prefix: &&Path| !is_private(prefix) && !prefix.ends_with(".local");
        paths.insert(prefix.filter(is_own).map_or(path.clone(), Path::to_path_buf));
    }
    paths.extend(file.canonicalize());
    paths
}

/// A path and, if it is a link, the paths that it leads to in turn, all without `..`.
fn follow_links(path: &Path) -> impl Iterator<Item = PathBuf> {
    let target = |path: &PathBuf| {
        path.read_link().ok().map(|to| resolve_parents(&path.with_file_name("").join(to)))
    };
    // As many links as Linux follows.
    iter::successors(Some(resolve_parents(path)), target).take(40)
}

/// A path without `..`, by which it might seem to be in a folder that it leaves. Links in the rest of it stay.
fn resolve_parents(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            resolved = resolved.canonicalize().unwrap_or(resolved);
            resolved.pop();
        } else {
            resolved.push(part);
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::report_not_tested;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_command_names_its_folder_its_files_and_its_programs() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        for folder in ["work", "venv/bin", "python/bin", "other", "interpreters", "o t"] {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        for file in
            ["work/check.py", "python/bin/python3", "other/words.txt", "other/secret", "o t/a.py"]
        {
            fs::write(place.join(file), "").unwrap();
        }
        let script = format!("#!{} -x\n", place.join("interpreters/own").display());
        fs::write(place.join("work/check.py"), script).unwrap();
        fs::write(place.join("interpreters/own"), "").unwrap();
        symlink("../../python/bin/python3", place.join("venv/bin/python")).unwrap();
        fs::write(place.join("o t/b.py"), "").unwrap();
        let command = "../venv/bin/python check.py --words=../other/words.txt / /proc/self '../o t/a.py' ../o\\ t/b.py";
        let found = find_command_paths(command, &place.join("work"));
        let holds = |file: &str| {
            let file = place.join(file).canonicalize().unwrap();
            found.iter().any(|path| file.starts_with(path.canonicalize().unwrap()))
        };
        assert!(
            ["work/check.py", "other/words.txt", "venv", "python/bin/python3", "interpreters/own"]
                .into_iter()
                .all(holds),
            "{found:?}"
        );
        assert!(holds("o t/a.py") && holds("o t/b.py"), "{found:?}");
        assert!(!holds("other/secret"), "{found:?}");
        assert!(!found.iter().any(|path| path == Path::new("/") || path.starts_with("/proc")));
    }

    #[test]
    fn an_allowed_path_is_shown_where_it_is_and_where_it_leads_to() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let workdir = place.join("work");
        fs::create_dir(&workdir).unwrap();
        fs::create_dir(place.join("data")).unwrap();
        symlink("../data", workdir.join("link")).unwrap();
        let allowed = ["../data", "link"].map(PathBuf::from);
        let paths = |allowed: &[PathBuf]| find_allowed_paths(allowed, &workdir);
        assert_eq!(paths(&allowed[..1]).unwrap(), [place.join("data")]);
        let found = paths(&allowed[1..]).unwrap();
        assert!(found.contains(&place.join("data")) && found.contains(&workdir.join("link")));
        let found = paths(&["../work/link".into()]).unwrap();
        assert!(found.contains(&place.join("data")) && found.contains(&workdir.join("link")));
        let all = paths(&["/".into()]).unwrap_err();
        assert!(all.contains("is the whole machine; name the folders"), "{all}");
        let missing = paths(&["nothing".into()]).unwrap_err();
        assert!(
            missing.contains("nothing (--verifier-allow, data.readable) cannot be read"),
            "{missing}"
        );
        // In the sandbox of a program in that folder.
        fs::write(place.join("data/word"), "seen").unwrap();
        for path in allowed {
            let mut options = VerifierOptions::new("");
            (options.folder, options.sandbox.readable) =
                (Some(workdir.clone()), vec![path.clone()]);
            let confinement = match Confinement::new(&options) {
                Ok(confinement) => confinement,
                Err(error) => return report_not_tested(error),
            };
            let command = format!("cat {}/word", path.display());
            let output = confinement.shell_command(&command).unwrap().output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "seen", "{path:?}: {output:?}");
        }
    }

    #[test]
    fn a_verifier_has_a_limit_on_processes() {
        let options = VerifierOptions::new("");
        let confinement = match Confinement::new(&options) {
            Ok(confinement) => confinement,
            Err(error) => return report_not_tested(error),
        };
        let output = confinement.shell_command("bash -c 'ulimit -u'").unwrap().output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), MAX_PROCESSES.to_string());
    }
}
