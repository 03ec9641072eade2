//! Resource limits of the operating system, which hold for each process alone.

use super::check;
use std::io;

/// Resource limits of a sandboxed process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU time, seconds; 0 for no limit.
    pub cpu_seconds: u64,
    /// Address space, bytes; 0 for no limit.
    pub memory: u64,
    /// Size of a file, bytes; 0 for no limit.
    pub file_size: u64,
    /// Simultaneous processes, including those of the sandbox itself; 0 for no limit.
    pub processes: u64,
    /// Open files of a process; 0 for no limit.
    pub files: u64,
}

impl Limits {
    /// Puts the current process under these limits but that on open files, that on processes if `on_processes`, and
    /// forbids core dumps.
    ///
    /// # Errors
    /// The system's.
    pub fn enforce(&self, on_processes: bool) -> io::Result<()> {
        // SAFETY: reads a live struct.
        let set = |what, limit| check(unsafe { libc::setrlimit(what, &raw const limit) });
        set(libc::RLIMIT_CORE, rlimit(0))?;
        for (what, limit) in [
            (libc::RLIMIT_AS, self.memory),
            (libc::RLIMIT_FSIZE, self.file_size),
            (libc::RLIMIT_CPU, self.cpu_seconds),
            (libc::RLIMIT_NPROC, if on_processes { self.processes } else { 0 }),
        ] {
            if limit > 0 {
                set(what, rlimit(limit))?;
            }
        }
        Ok(())
    }

    /// Limits the open files of the current process, after all steps that open files: until `exec` it has those of Grove, of
    /// which there may be more.
    ///
    /// # Errors
    /// The system's.
    pub fn enforce_on_files(&self) -> io::Result<()> {
        let limit = rlimit(self.files);
        // SAFETY: reads a live struct.
        let set = || check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) });
        if self.files > 0 { set() } else { Ok(()) }
    }
}

fn rlimit(limit: u64) -> libc::rlimit {
    libc::rlimit { rlim_cur: limit as libc::rlim_t, rlim_max: limit as libc::rlim_t }
}
