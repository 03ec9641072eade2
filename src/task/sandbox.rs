//! A place to run what nobody vouches for: a process, and all that it starts, with little room and no way out.
//!
//! Everywhere: a session and a process group of its own, limits of CPU time, memory, file size, open files and
//! processes, no environment, and a folder of its own. On Linux, where the machine lets us: a network without
//! interfaces, a file system that cannot be written to but for that folder, a space of processes that end when
//! the first one does, and, where the trainer runs as root, a user that owns nothing, since root ignores the
//! limit of processes. [`Sandbox::notes`] says what of this there is not.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// How much a process may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seconds of CPU time; 0 for no limit, where somebody else sees to it.
    pub cpu_seconds: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of a file.
    pub file_size: u64,
    /// Processes at a time, the first ones included.
    pub processes: u64,
}

/// What this machine lets us do.
#[derive(Clone, Debug)]
pub struct Sandbox {
    limits: Limits,
    /// Spaces of its own: network, mounts, processes.
    spaces: bool,
    /// Whom a process runs as.
    user: User,
    /// Whether the limit of processes holds.
    counts_processes: bool,
}

/// Whom a process runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// Somebody whom there was not before, and who owns nothing, so that the limit of processes counts for this one
    /// alone.
    New,
    /// The system's user who owns nothing.
    Nobody,
    /// Who we are.
    Same,
}

impl User {
    /// The user's number, where it is to be changed.
    fn number(self) -> Option<u32> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        match self {
            // Far from the numbers that users have.
            User::New => {
                let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xfff;
                Some(2_000_000_000 + ((std::process::id() & 0xffff) << 12) + count)
            }
            User::Nobody => Some(65_534),
            User::Same => None,
        }
    }
}

/// What a process can write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// Its folder, which others see too.
    Shared,
    /// A folder in memory that nobody else sees, where there are spaces; it is gone with the process.
    Private,
}

impl Sandbox {
    /// Tries what this machine lets us do, by running `true` in `folder`.
    ///
    /// # Errors
    /// What the system says where not even the least works.
    pub fn new(limits: Limits, folder: &Path) -> io::Result<Self> {
        // SAFETY: asks for a number.
        let root = unsafe { libc::geteuid() } == 0;
        let users: &[User] =
            if root { &[User::New, User::Nobody, User::Same] } else { &[User::Same] };
        let mut last = io::Error::other("nothing was tried");
        for spaces in [true, false] {
            for &user in users {
                for counts_processes in [true, false] {
                    let sandbox = Self { limits, spaces, user, counts_processes };
                    match sandbox.tried(folder) {
                        Ok(()) => return Ok(sandbox),
                        Err(error) => last = error,
                    }
                }
            }
        }
        Err(last)
    }

    /// Runs a program that starts another.
    fn tried(&self, folder: &Path) -> io::Result<()> {
        let mut command = self.command("sh", folder, Scratch::Private)?;
        let status = command
            .args(["-c", "true | true; exit 7"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.code() == Some(7) { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }

    /// What cannot be enforced here, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.spaces {
            notes.push(
                "This machine lets us make no namespaces: completions that are run may reach the network and write \
                 where their user may, and a process that leaves its group may live on."
                    .to_string(),
            );
        }
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } == 0 && self.user == User::Same {
            notes.push(
                "This machine lets us run completions as no other user than root, for whom the limit of processes \
                 does not hold."
                    .to_string(),
            );
        } else if !self.counts_processes {
            notes.push(
                "The number of processes of a completion cannot be limited here.".to_string(),
            );
        }
        notes
    }

    /// The command in the sandbox, in a folder that its user may write to.
    ///
    /// # Errors
    /// Where the folder cannot be given to the user.
    pub fn command(&self, program: &str, folder: &Path, scratch: Scratch) -> io::Result<Command> {
        let user = self.user.number();
        if user.is_some() {
            std::os::unix::fs::chown(folder, user, user)?;
        }
        let folder_name = CString::new(fs::canonicalize(folder)?.as_os_str().as_bytes())?;
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", folder);
        let sandbox = self.clone();
        // SAFETY: between `fork` and `exec` only system calls are made, and nothing is allocated.
        unsafe { command.pre_exec(move || sandbox.enter(&folder_name, scratch, user)) };
        Ok(command)
    }

    /// What the new process does before it becomes the program.
    fn enter(&self, folder: &CString, scratch: Scratch, user: Option<u32>) -> io::Result<()> {
        // SAFETY: system calls on numbers, and on strings that live.
        unsafe {
            check(libc::setsid())?;
            keep_nothing_open();
            #[cfg(target_os = "linux")]
            if self.spaces {
                spaces::enter(folder, scratch)?;
            }
            #[cfg(not(target_os = "linux"))]
            let _ = scratch;
            check(libc::chdir(folder.as_ptr()))?;
            self.limit()?;
            if let Some(user) = user {
                check(libc::setgroups(0, std::ptr::null()))?;
                check(libc::setgid(user))?;
                check(libc::setuid(user))?;
            }
            #[cfg(target_os = "linux")]
            {
                check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
                if self.spaces {
                    spaces::begin_as_first()?;
                }
            }
        }
        Ok(())
    }

    fn limit(&self) -> io::Result<()> {
        let limits = &self.limits;
        let set = |what, most: u64| {
            let limit =
                libc::rlimit { rlim_cur: most as libc::rlim_t, rlim_max: most as libc::rlim_t };
            // SAFETY: reads a struct that lives.
            check(unsafe { libc::setrlimit(what, &raw const limit) })
        };
        set(libc::RLIMIT_CORE, 0)?;
        set(libc::RLIMIT_AS, limits.memory)?;
        set(libc::RLIMIT_FSIZE, limits.file_size)?;
        set(libc::RLIMIT_NOFILE, 64)?;
        if limits.cpu_seconds > 0 {
            set(libc::RLIMIT_CPU, limits.cpu_seconds)?;
        }
        if self.counts_processes {
            set(libc::RLIMIT_NPROC, limits.processes)?;
        }
        Ok(())
    }
}

/// Lets the program inherit nothing but its three streams. A library that forgot to say so of a file of its
/// own would hand it over otherwise: some graphics drivers do, and who truncates that file ends the trainer.
///
/// # Safety
/// Only between `fork` and `exec`.
unsafe fn keep_nothing_open() {
    // SAFETY: system calls on numbers.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(1024, 1 << 20) as libc::c_int;
        for descriptor in 3..most {
            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// A system call's answer as a result.
fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Linux's namespaces.
#[cfg(target_os = "linux")]
mod spaces {
    use super::{Scratch, check};
    use std::ffi::CString;
    use std::io;
    use std::ptr::null;

    /// `struct mount_attr` of `mount_setattr(2)`.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }

    const READ_ONLY: u64 = 1;
    const RECURSIVE: libc::c_int = 0x8000;

    /// Makes the spaces, with all files read-only but those of the folder.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enter(folder: &CString, scratch: Scratch) -> io::Result<()> {
        // SAFETY: system calls on numbers, and on strings and structs that live.
        unsafe {
            let mut spaces =
                libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
            if libc::geteuid() != 0 {
                spaces |= libc::CLONE_NEWUSER;
            }
            check(libc::unshare(spaces))?;
            let root = c"/".as_ptr();
            check(libc::mount(null(), root, null(), libc::MS_REC | libc::MS_PRIVATE, null()))?;
            let folder = folder.as_ptr();
            if scratch == Scratch::Shared {
                check(libc::mount(folder, folder, null(), libc::MS_BIND, null()))?;
            }
            set_read_only(root, true, RECURSIVE)?;
            match scratch {
                Scratch::Shared => set_read_only(folder, false, 0),
                Scratch::Private => {
                    let flags = libc::MS_NOSUID | libc::MS_NODEV;
                    let options = c"size=16m,nr_inodes=1k,mode=1777".as_ptr();
                    check(libc::mount(
                        c"tmpfs".as_ptr(),
                        folder,
                        c"tmpfs".as_ptr(),
                        flags,
                        options.cast(),
                    ))
                }
            }
        }
    }

    unsafe fn set_read_only(
        path: *const libc::c_char,
        on: bool,
        flags: libc::c_int,
    ) -> io::Result<()> {
        let (set, clear) = if on { (READ_ONLY, 0) } else { (0, READ_ONLY) };
        let attributes = MountAttr { set, clear, propagation: 0, user_namespace: 0 };
        // SAFETY: a system call on a string and a struct that live, and the struct's size.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                path,
                flags,
                &raw const attributes,
                size_of::<MountAttr>(),
            )
        };
        if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Goes on as the first process of the new space; the one before stays outside, only to pass on how it ends.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn begin_as_first() -> io::Result<()> {
        // SAFETY: system calls on numbers and on a number that lives.
        unsafe {
            let child = libc::fork();
            check(child)?;
            if child == 0 {
                // If the one outside is killed, so is the space.
                return check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
            }
            // Nobody is to wait for the end of what it holds open.
            for descriptor in 0..1024 {
                libc::close(descriptor);
            }
            let mut status = 0;
            while libc::waitpid(child, &raw mut status, 0) == -1 {
                if *libc::__errno_location() != libc::EINTR {
                    libc::_exit(126);
                }
            }
            let signal = libc::WTERMSIG(status);
            libc::_exit(if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                128 + signal
            });
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_that_is_open_here_is_not_open_there() {
        let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = ours.path().join("kept");
        fs::write(&path, "kept").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let number = file.as_raw_fd();
        // SAFETY: a system call on a number. As a library leaves a file that does not care who inherits it.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let limits = Limits { cpu_seconds: 5, memory: 1 << 30, file_size: 1 << 20, processes: 16 };
        let sandbox = Sandbox::new(limits, theirs.path()).unwrap();
        let mut command = sandbox.command("sh", theirs.path(), Scratch::Private).unwrap();
        let script = format!("echo lost >&{number}; : > /proc/self/fd/{number}; exit 0");
        command.args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "kept");
    }
}
