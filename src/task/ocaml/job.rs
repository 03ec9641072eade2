//! The input of a checker: the compiler, the code to check, and its resource limits.

use crate::schema::settings;
use crate::task::{TaskError, sandbox};
use std::path::{Path, PathBuf};
use std::process::Command;

settings! {
    /// Resource limits of a completion.
    pub struct OcamlLimits: Copy {
        /// CPU time of a completion in seconds. The wall-clock limit is three times this plus one second.
        cpu_seconds: f64 = 2.0, in at_least(0.01).at_most(60.0);
        /// Address space of each process of a completion, in MiB.
        memory_mb: u32 = 512, in integer(128..=16_384);
        /// Processes that a completion may have at a time.
        processes: u32 = 4, in integer(1..=64);
    }
}

impl OcamlLimits {
    /// Wall-clock time limit, seconds.
    pub(super) fn wall_seconds(&self) -> f64 {
        3.0 * self.cpu_seconds + 1.0
    }
}

/// Version of OCaml whose `compiler-libs` the checker uses.
const VERSION: &str = "4.13";

/// The OCaml compiler of this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Path or name of `ocamlc`.
    pub path: PathBuf,
    /// Path or name of `ocamlrun`, which runs the compiled bytecode.
    pub runtime: PathBuf,
    /// Folder of the standard library.
    pub library: PathBuf,
    /// Version of the compiler.
    pub version: String,
}

impl Compiler {
    /// Finds the compiler `command`, usually `ocamlc`, and queries its configuration.
    ///
    /// # Errors
    /// If there is no such compiler, or it has another version than the checker is for.
    pub fn find(command: &str) -> Result<Self, TaskError> {
        let missing = || {
            TaskError::Verifier(format!(
                "the task `ocaml` needs the OCaml compiler, but `{command}` cannot be run; install it (Debian: \
                 apt-get install ocaml-nox)"
            ))
        };
        let output = Command::new(command).arg("-config").output().map_err(|_| missing())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_string())
        };
        let version = value("version").ok_or_else(missing)?;
        check_version(command, &version)?;
        let runtime = value("standard_runtime").map_or_else(|| "ocamlrun".into(), PathBuf::from);
        let library = value("standard_library").map_or_else(PathBuf::new, PathBuf::from);
        Ok(Self { path: command.into(), runtime, library, version })
    }

    /// Access to what running compiled code needs, with the folder of the program.
    pub(super) fn access(&self, folder: &Path) -> sandbox::Access {
        let paths = [self.library.as_path(), folder].map(Path::to_path_buf);
        let readable = paths.into_iter().filter(|path| path.is_absolute()).collect();
        sandbox::Access { readable, scratch_mib: 16, ..sandbox::Access::default() }
    }
}

/// Refuses a compiler of another version; patch levels do not matter.
fn check_version(command: &str, version: &str) -> Result<(), TaskError> {
    if version.split('.').take(2).eq(VERSION.split('.')) {
        return Ok(());
    }
    let message =
        format!("the task `ocaml` needs OCaml {VERSION}, but `{command}` has version {version}");
    Err(TaskError::Verifier(message))
}

/// A piece of code to check and run.
#[derive(Clone, Debug, Default)]
pub struct Job<'a> {
    /// Type definitions that the code uses.
    pub prelude: &'a str,
    /// The signature that the code must implement.
    pub signature: &'a str,
    /// The code; empty to evaluate calls without it.
    pub code: &'a str,
    /// Expressions to evaluate.
    pub calls: Vec<&'a str>,
    /// Access of the code to the standard library.
    pub access: LibraryAccess,
}

/// The part of the standard library that code may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LibraryAccess {
    /// Modules without input, output or other effects outside the program.
    #[default]
    Restricted,
    /// All modules, to test the sandbox.
    #[doc(hidden)]
    Full,
}

#[cfg(test)]
mod tests {
    use super::check_version;

    #[test]
    fn another_version_of_ocaml_is_refused() {
        assert!(check_version("ocamlc", "4.13.1").is_ok());
        for version in ["4.14.1", "4.1.3", "5.1.0"] {
            let message = check_version("ocamlc", version).unwrap_err().to_string();
            let why = format!("needs OCaml 4.13, but `ocamlc` has version {version}");
            assert!(message.ends_with(&why), "{message}");
        }
    }
}
