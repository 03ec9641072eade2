//! A sandbox for untrusted programs, such as code written by a model.
//!
//! On every Unix, a sandboxed process gets a new session and process group, an empty environment, its own
//! working directory, and limits on CPU time, memory, file size, open files and processes. On Linux, if the
//! machine permits, it also gets new namespaces: a network without interfaces, a file system that is
//! read-only except for the working directory, and a PID namespace, whose processes end with the first
//! one. If Grove runs as root, the process runs as an unprivileged user, since root is exempt from the
//! limit on processes. [`Sandbox::notes`] lists the restrictions that this machine cannot enforce.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Resource limits of a sandboxed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// CPU time, seconds; 0 for no limit.
    pub cpu_seconds: u64,
    /// Address space, bytes.
    pub memory: u64,
    /// Size of a file, bytes.
    pub file_size: u64,
    /// Simultaneous processes, including those of the sandbox itself.
    pub processes: u64,
}

/// A sandbox with the restrictions that this machine can enforce.
#[derive(Clone, Debug)]
pub struct Sandbox {
    limits: Limits,
    /// Whether processes get new network, mount, IPC and PID namespaces.
    namespaces: bool,
    /// The user that processes run as.
    user: User,
    /// Whether the number of processes is limited.
    limits_processes: bool,
}

/// The user that a sandboxed process runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// A fresh unprivileged UID, so that `RLIMIT_NPROC` counts the processes of this sandbox alone.
    Fresh,
    /// The system's unprivileged user `nobody`.
    Nobody,
    /// The current user.
    Current,
}

impl User {
    /// The UID to change to, if any.
    fn uid(self) -> Option<u32> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        match self {
            // Outside the usual ranges of UIDs.
            User::Fresh => {
                let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xfff;
                Some(2_000_000_000 + ((std::process::id() & 0xffff) << 12) + count)
            }
            User::Nobody => Some(65_534),
            User::Current => None,
        }
    }
}

/// The writable directory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// The working directory on disk, visible to other processes.
    Shared,
    /// An in-memory file system mounted over the working directory, removed with the process. Without
    /// namespaces, the same as `Shared`.
    Private,
}

impl Sandbox {
    /// Determines the strictest sandbox that works on this machine, by running a shell in `folder`.
    ///
    /// # Errors
    /// The system's error if not even the weakest sandbox works.
    pub fn new(limits: Limits, folder: &Path) -> io::Result<Self> {
        // SAFETY: has no preconditions.
        let root = unsafe { libc::geteuid() } == 0;
        let users: &[User] =
            if root { &[User::Fresh, User::Nobody, User::Current] } else { &[User::Current] };
        let mut last = io::Error::other("no attempt was made");
        for namespaces in [true, false] {
            for &user in users {
                for limits_processes in [true, false] {
                    let sandbox = Self { limits, namespaces, user, limits_processes };
                    match sandbox.probe(folder) {
                        Ok(()) => return Ok(sandbox),
                        Err(error) => last = error,
                    }
                }
            }
        }
        Err(last)
    }

    /// Runs a shell that starts other processes.
    fn probe(&self, folder: &Path) -> io::Result<()> {
        let mut command = self.command("sh", folder, Scratch::Private)?;
        let status = command
            .args(["-c", "true | true; exit 7"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.code() == Some(7) { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }

    /// The restrictions that cannot be enforced on this machine, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.namespaces {
            notes.push(
                "This machine does not permit namespaces: code that is run can access the network and write \
                 wherever its user can, and a process that leaves its process group may outlive the sandbox."
                    .to_string(),
            );
        }
        // SAFETY: has no preconditions.
        if unsafe { libc::geteuid() } == 0 && self.user == User::Current {
            notes.push(
                "This machine runs code as root, since it permits no other user; root is exempt from the limit \
                 on processes."
                    .to_string(),
            );
        } else if !self.limits_processes {
            notes.push(
                "This machine does not limit the number of processes that code starts.".to_string(),
            );
        }
        notes
    }

    /// A command that runs `program` in the sandbox, with the working directory `folder`.
    ///
    /// # Errors
    /// If the ownership of the folder cannot be changed to the sandbox's user.
    pub fn command(&self, program: &str, folder: &Path, scratch: Scratch) -> io::Result<Command> {
        let user = self.user.uid();
        if user.is_some() {
            std::os::unix::fs::chown(folder, user, user)?;
        }
        let folder_name = CString::new(fs::canonicalize(folder)?.as_os_str().as_bytes())?;
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", folder);
        let sandbox = self.clone();
        // SAFETY: between `fork` and `exec`, `enter` makes system calls only and does not allocate.
        unsafe { command.pre_exec(move || sandbox.enter(&folder_name, scratch, user)) };
        Ok(command)
    }

    /// Enters the sandbox, in the child process before `exec`.
    fn enter(&self, folder: &CString, scratch: Scratch, user: Option<u32>) -> io::Result<()> {
        // SAFETY: system calls on integers and on live strings.
        unsafe {
            check(libc::setsid())?;
            close_on_exec();
            #[cfg(target_os = "linux")]
            if self.namespaces {
                namespaces::enter(folder, scratch)?;
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
                if self.namespaces {
                    namespaces::become_init()?;
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
            // SAFETY: reads a live struct.
            check(unsafe { libc::setrlimit(what, &raw const limit) })
        };
        set(libc::RLIMIT_CORE, 0)?;
        set(libc::RLIMIT_AS, limits.memory)?;
        set(libc::RLIMIT_FSIZE, limits.file_size)?;
        set(libc::RLIMIT_NOFILE, 64)?;
        if limits.cpu_seconds > 0 {
            set(libc::RLIMIT_CPU, limits.cpu_seconds)?;
        }
        if self.limits_processes {
            set(libc::RLIMIT_NPROC, limits.processes)?;
        }
        Ok(())
    }
}

/// Marks all file descriptors except the standard streams as close-on-exec. Some libraries, graphics
/// drivers among them, leave theirs inheritable, and a program that truncates such a file can crash Grove.
///
/// # Safety
/// Only between `fork` and `exec`.
unsafe fn close_on_exec() {
    // SAFETY: system calls on integers.
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

/// Converts the return value of a system call to a result.
fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Linux namespaces.
#[cfg(target_os = "linux")]
mod namespaces {
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

    /// Creates the namespaces and makes the file system read-only except for `folder`.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enter(folder: &CString, scratch: Scratch) -> io::Result<()> {
        // SAFETY: system calls on integers and on live strings and structs.
        unsafe {
            let mut flags =
                libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
            if libc::geteuid() != 0 {
                flags |= libc::CLONE_NEWUSER;
            }
            check(libc::unshare(flags))?;
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
        // SAFETY: a system call on a live string, a live struct and the struct's size.
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

    /// Forks and continues in the child, the first process of the new PID namespace. The parent stays
    /// outside the namespace and only forwards the child's exit status.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn become_init() -> io::Result<()> {
        // SAFETY: system calls on integers and on a live integer.
        unsafe {
            let child = libc::fork();
            check(child)?;
            if child == 0 {
                // If the parent is killed, the namespace ends.
                return check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
            }
            // Close all pipes, so that readers see their end when the child exits.
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
    fn inheritable_files_are_closed_in_the_sandbox() {
        let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = ours.path().join("kept");
        fs::write(&path, "kept").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let number = file.as_raw_fd();
        // SAFETY: a system call on an integer. Clears close-on-exec, as some libraries do.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let limits = Limits { cpu_seconds: 5, memory: 1 << 30, file_size: 1 << 20, processes: 16 };
        let sandbox = Sandbox::new(limits, theirs.path()).unwrap();
        let mut command = sandbox.command("sh", theirs.path(), Scratch::Private).unwrap();
        let script = format!("echo lost >&{number}; : > /proc/self/fd/{number}; exit 0");
        command.args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "kept");
    }
}
