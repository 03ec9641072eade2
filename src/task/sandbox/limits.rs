//! Resource limits of the operating system, which hold for each process alone.

use super::check_call;
use std::io;

/// Resource limits of a sandboxed process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU time; 0 for no limit.
    pub cpu_seconds: u64,
    /// Address space; 0 for no limit.
    pub memory_bytes: u64,
    /// Size of a file; 0 for no limit.
    pub file_size_bytes: u64,
    /// Simultaneous processes, including those of the sandbox itself; 0 for no limit.
    pub processes: u64,
    /// Open files of a process; 0 for no limit.
    pub files: u64,
}

impl Limits {
    /// Applies these limits to the current process, without that on open files ([`Limits::enforce_on_files`]), and with
    /// that on processes if `on_processes`. Forbids core dumps.
    ///
    /// # Errors
    /// The system's.
    pub fn enforce(&self, on_processes: bool) -> io::Result<()> {
        lower_limit(libc::RLIMIT_CORE, 0)?;
        for (resource, limit) in [
            (libc::RLIMIT_AS, self.memory_bytes),
            (libc::RLIMIT_FSIZE, self.file_size_bytes),
            (libc::RLIMIT_CPU, self.cpu_seconds),
            (libc::RLIMIT_NPROC, if on_processes { self.processes } else { 0 }),
        ] {
            if limit > 0 {
                lower_limit(resource, limit)?;
            }
        }
        Ok(())
    }

    /// Limits the open files of the current process, after all steps that open files: until `exec` it has those of
    /// Grove, of which there may be more.
    ///
    /// # Errors
    /// The system's.
    pub fn enforce_on_files(&self) -> io::Result<()> {
        if self.files > 0 { lower_limit(libc::RLIMIT_NOFILE, self.files) } else { Ok(()) }
    }
}

/// A resource, as the C library's type.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Resource = libc::c_int;

/// Limits a resource of the current process. A lower limit that it already has stays: only root may raise it.
fn lower_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let mut current = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a live struct.
    check_call(unsafe { libc::getrlimit(resource, &raw mut current) })?;
    let limit = current.rlim_max.min(limit as libc::rlim_t);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: reads a live struct.
    check_call(unsafe { libc::setrlimit(resource, &raw const limit) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_lower_limit_of_the_system_stays() {
        let limits = |files| Limits { files, ..Limits::default() };
        let mut command = Command::new("sh");
        // SAFETY: between `fork` and `exec`, it makes system calls only and does not allocate.
        unsafe {
            command.pre_exec(move || {
                limits(32).enforce_on_files()?;
                limits(64).enforce_on_files()
            });
        }
        let output = command.args(["-c", "ulimit -n"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "32\n");
    }
}
