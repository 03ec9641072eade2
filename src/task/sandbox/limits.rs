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
    /// Puts the current process under these limits, that on processes if `on_processes`, and forbids core dumps.
    ///
    /// # Errors
    /// The system's.
    pub fn enforce(&self, on_processes: bool) -> io::Result<()> {
        let set = |what, limit: u64| {
            let limit =
                libc::rlimit { rlim_cur: limit as libc::rlim_t, rlim_max: limit as libc::rlim_t };
            // SAFETY: reads a live struct.
            check(unsafe { libc::setrlimit(what, &raw const limit) })
        };
        set(libc::RLIMIT_CORE, 0)?;
        for (what, limit) in [
            (libc::RLIMIT_AS, self.memory),
            (libc::RLIMIT_FSIZE, self.file_size),
            (libc::RLIMIT_NOFILE, self.files),
            (libc::RLIMIT_CPU, self.cpu_seconds),
            (libc::RLIMIT_NPROC, if on_processes { self.processes } else { 0 }),
        ] {
            if limit > 0 {
                set(what, limit)?;
            }
        }
        Ok(())
    }
}
