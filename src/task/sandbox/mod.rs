//! A sandbox for untrusted programs, such as code written by a model.
//!
//! On every Unix, a sandboxed process gets:
//!
//! - a new session and process group, and its own working directory;
//! - limits on CPU time, memory, file size, open files and processes;
//! - an environment with nothing but the paths that it needs. A process that may run the system's programs
//!   ([`Access::has_programs`]) inherits Grove's environment instead, secrets included.
//!
//! On Linux it also gets, where the machine permits:
//!
//! - namespaces: a network without interfaces; a read-only root that contains the paths of its [`Access`] and the
//!   working directory, with no `/proc` and no devices but `/dev/null` and the like; and a PID namespace, whose
//!   processes end with the first one, and with Grove;
//! - a seccomp filter, which refuses sockets and access to other processes;
//! - Landlock, which also confines files, TCP and signals, even without namespaces;
//! - a control group, which limits all processes together. If memory runs out, the kernel ends them before Grove.
//!
//! If Grove runs as root, the process runs as an unprivileged user, since root is exempt from the limit on processes,
//! or as root without capabilities. [`Sandbox::notes`] lists the restrictions that this machine cannot enforce.

#[cfg(target_os = "linux")]
mod cgroup;
mod folder;
#[cfg(target_os = "linux")]
mod landlock;
mod limits;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod seccomp;

pub use folder::SandboxFolder;
pub use limits::Limits;

#[cfg(target_os = "linux")]
use super::parallel::num_cores;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The parts of the machine that a sandboxed process reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Absolute paths that it may read, in addition to the system's libraries.
    pub readable: Vec<PathBuf>,
    /// Files within these that it finds empty where there are namespaces; absolute paths without links.
    pub hidden_paths: Vec<PathBuf>,
    /// Whether it may also run the system's programs, run as the user who owns the paths, and inherit Grove's
    /// environment.
    pub has_programs: bool,
    /// Whether it may use the network.
    pub has_network: bool,
    /// Initial working directory; `None` for the writable one. It appears empty unless `readable` covers it.
    pub workdir: Option<PathBuf>,
    /// Size limit of a private working directory, MiB.
    pub scratch_mib: u32,
}

/// Number of threads for which a sandbox has room even on a machine of fewer cores: the maximum of `workers` of the
/// task `ocaml`.
#[cfg(target_os = "linux")]
const MIN_THREADS: usize = 64;

/// A sandbox with the restrictions that this machine can enforce.
#[derive(Clone, Debug)]
pub struct Sandbox {
    limits: Limits,
    access: Access,
    /// Whether processes get new network, mount, IPC and PID namespaces.
    has_namespaces: bool,
    user: User,
    has_process_limit: bool,
    /// The control group of all processes.
    #[cfg(target_os = "linux")]
    group: Option<Arc<cgroup::ControlGroup>>,
}

/// The user that a sandboxed process runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// A fresh unprivileged UID, so that `RLIMIT_NPROC` counts the processes of this sandbox alone.
    Fresh,
    /// The system's unprivileged user `nobody`.
    Nobody,
    /// Root without its capabilities, which reads the files of root.
    RootWithoutCapabilities,
    /// The current user.
    Current,
}

impl User {
    /// Chooses the UID to change to, if any; each fresh one is new.
    fn choose_uid(self) -> Option<u32> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        match self {
            // Outside the usual ranges of UIDs.
            User::Fresh => {
                let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xfff;
                Some(2_000_000_000 + ((std::process::id() & 0xffff) << 12) + count)
            }
            User::Nobody => Some(65_534),
            User::RootWithoutCapabilities | User::Current => None,
        }
    }
}

impl Sandbox {
    /// Determines the strictest sandbox that works on this machine, by running a shell in `folder`.
    ///
    /// # Errors
    /// The system's error if not even the weakest sandbox works.
    pub fn new(limits: Limits, folder: &Path, access: Access) -> io::Result<Self> {
        // SAFETY: has no preconditions.
        let is_root = unsafe { libc::geteuid() } == 0;
        let users: &[User] = match (is_root, access.has_programs) {
            (true, false) => &[User::Fresh, User::Nobody, User::Current],
            (true, true) => &[User::RootWithoutCapabilities, User::Current],
            (false, _) => &[User::Current],
        };
        let mut last_error = io::Error::other("no attempt was made");
        for has_namespaces in [true, false] {
            for &user in users {
                // Outside of a namespace the limit would count all other processes of the user too.
                let is_alone = has_namespaces || user != User::Current;
                let process_limits: &[bool] =
                    if limits.processes > 0 && is_alone { &[true, false] } else { &[false] };
                for &has_process_limit in process_limits {
                    let sandbox = Self {
                        limits,
                        access: access.clone(),
                        has_namespaces,
                        user,
                        has_process_limit,
                        #[cfg(target_os = "linux")]
                        group: None,
                    };
                    match sandbox.probe(folder) {
                        Ok(()) => return Ok(sandbox.with_control_group(folder)),
                        Err(error) => last_error = error,
                    }
                }
            }
        }
        Err(last_error)
    }

    /// Adds a control group, if this machine permits it.
    fn with_control_group(self, folder: &Path) -> Self {
        #[cfg(target_os = "linux")]
        if self.has_namespaces && self.limits.processes > 0 {
            // Each thread may use a process of two kinds, each of which may have a predecessor that is ending.
            let processes = 4 * num_cores().max(MIN_THREADS) as u64 * self.limits.processes;
            for parent in cgroup::find_possible_parents() {
                let Ok(group) = cgroup::ControlGroup::new(&parent, processes) else { continue };
                let grouped = Self { group: Some(Arc::new(group)), ..self.clone() };
                if grouped.probe(folder).is_ok() {
                    return grouped;
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = folder;
        self
    }

    /// Runs a shell that starts other processes.
    fn probe(&self, folder: &Path) -> io::Result<()> {
        let access = Access { has_programs: true, ..self.access.clone() };
        let shell = Self { access, ..self.clone() };
        let mut command = shell.command("sh", folder)?;
        let status = command
            .args(["-c", "true | true; exit 7"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|e| io::Error::new(e.kind(), format!("`sh` does not start in it: {e}")))?;
        if status.code() == Some(7) { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }

    /// The restrictions that cannot be enforced on this machine, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_namespaces {
            let reach = describe_reach(landlock_version(), HAS_SECCOMP || self.access.has_network);
            notes.push(format!(
                "This machine does not permit namespaces: code that is run can {reach}, and a process that leaves its \
                 process group may outlive the sandbox."
            ));
        }
        // SAFETY: has no preconditions.
        if unsafe { libc::geteuid() } == 0 && self.user == User::Current {
            notes.push(
                "This machine runs code as root, since it permits no other user; root is exempt from the limit \
                 on processes."
                    .to_string(),
            );
        } else if self.limits.processes > 0 && !self.has_process_limit {
            notes.push(
                "This machine does not limit the number of processes that code starts.".to_string(),
            );
        }
        notes
    }

    /// A command that runs `program` in the sandbox, where it may write to `folder`. With namespaces, a file system in
    /// memory takes the folder's place and ends with the process.
    ///
    /// # Errors
    /// If the ownership of the folder cannot be changed to the sandbox's user.
    pub fn command(&self, program: &str, folder: &Path) -> io::Result<Command> {
        let uid = self.user.choose_uid();
        if uid.is_some() {
            std::os::unix::fs::chown(folder, uid, uid)?;
        }
        let folder = fs::canonicalize(folder)?;
        let workdir = self.access.workdir.as_ref().unwrap_or(&folder);
        let mut command = Command::new(program);
        if !self.access.has_programs {
            command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        }
        command.env("TMPDIR", &folder).env("XDG_CACHE_HOME", &folder);
        let entry = SandboxEntry {
            sandbox: self.clone(),
            #[cfg(target_os = "linux")]
            root: namespaces::Root::new(&self.access, &folder)?,
            #[cfg(target_os = "linux")]
            landlock: landlock::LandlockRuleset::new(self),
            workdir: CString::new(workdir.as_os_str().as_bytes())?,
            #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
            filter: seccomp::build_filter(&self.access),
            uid,
            #[cfg(target_os = "linux")]
            grove_pid: std::process::id(),
        };
        // SAFETY: between `fork` and `exec`, `enter` makes system calls only and does not allocate.
        unsafe { command.pre_exec(move || entry.enter()) };
        Ok(command)
    }
}

/// The entry of a process into its sandbox, with all that it needs, allocated before `fork`.
struct SandboxEntry {
    sandbox: Sandbox,
    #[cfg(target_os = "linux")]
    root: namespaces::Root,
    #[cfg(target_os = "linux")]
    landlock: Option<landlock::LandlockRuleset>,
    workdir: CString,
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    filter: Vec<libc::sock_filter>,
    uid: Option<u32>,
    #[cfg(target_os = "linux")]
    grove_pid: u32,
}

impl SandboxEntry {
    /// Enters the sandbox, in the child process before `exec`.
    fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on integers and on live strings.
        unsafe {
            check_call(libc::setsid())?;
            mark_close_on_exec();
            #[cfg(target_os = "linux")]
            namespaces::become_first_oom_victim();
            #[cfg(target_os = "linux")]
            if self.sandbox.has_namespaces {
                self.root.enter()?;
            }
            check_call(libc::chdir(self.workdir.as_ptr()))?;
            self.sandbox.limits.enforce(self.sandbox.has_process_limit)?;
            if let Some(uid) = self.uid {
                check_call(libc::setgroups(0, std::ptr::null()))?;
                check_call(libc::setgid(uid))?;
                check_call(libc::setuid(uid))?;
            }
            #[cfg(target_os = "linux")]
            {
                if self.sandbox.user == User::RootWithoutCapabilities {
                    namespaces::drop_capabilities()?;
                }
                check_call(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
                if self.sandbox.has_namespaces {
                    namespaces::become_init(self.grove_pid, self.sandbox.group.as_deref())?;
                }
                self.landlock.iter().try_for_each(|ruleset| ruleset.enforce(&self.root))?;
            }
            self.sandbox.limits.enforce_on_files()?;
            #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
            seccomp::install(&self.filter)?;
        }
        Ok(())
    }
}

/// Marks all file descriptors except the standard streams as close-on-exec. Some libraries, graphics
/// drivers among them, leave theirs inheritable, and a program that truncates such a file can crash Grove.
///
/// # Safety
/// Only between `fork` and `exec`.
unsafe fn mark_close_on_exec() {
    // SAFETY: system calls on integers.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        let end = libc::sysconf(libc::_SC_OPEN_MAX).clamp(1024, 1 << 20) as libc::c_int;
        for descriptor in 3..end {
            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// Whether seccomp refuses sockets.
const HAS_SECCOMP: bool =
    cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));

/// The version of Landlock in the kernel; 0 if there is none.
fn landlock_version() -> u32 {
    #[cfg(target_os = "linux")]
    return landlock::version();
    #[cfg(not(target_os = "linux"))]
    0
}

/// Describes the parts of the machine that code reaches without namespaces, beyond its [`Access`]: Landlock confines
/// files, and TCP since its fourth version, and seccomp refuses sockets.
fn describe_reach(landlock: u32, confines_sockets: bool) -> &'static str {
    match (landlock, confines_sockets) {
        (0, true) => "see other processes and read and write wherever its user can",
        (0, false) => {
            "see other processes, read and write wherever its user can, and access the network"
        }
        (1..4, false) => "see other processes and access the network",
        (4.., false) => "see other processes and access the network by protocols other than TCP",
        (_, true) => "see other processes",
    }
}

/// Converts the return value of a system call to a result.
fn check_call(answer: libc::c_int) -> io::Result<()> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::task::report_not_tested;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// A sandbox without namespaces, as a machine may have it.
    fn without_namespaces(readable: Vec<PathBuf>) -> Sandbox {
        let limits = Limits { cpu_seconds: 5, ..Limits::default() };
        let access = Access { readable, has_programs: true, scratch_mib: 16, ..Access::default() };
        let user = User::Current;
        let has_process_limit = false;
        Sandbox { limits, access, has_namespaces: false, user, has_process_limit, group: None }
    }

    #[test]
    fn landlock_confines_files_without_namespaces() {
        if landlock::version() == 0 {
            return report_not_tested("this kernel has no Landlock");
        }
        let [readable, hidden, own] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        for folder in [&readable, &hidden] {
            fs::write(folder.path().join("text"), "text").unwrap();
        }
        let sandbox = without_namespaces(vec![readable.path().canonicalize().unwrap()]);
        let mut command = sandbox.command("sh", own.path()).unwrap();
        let paths = [&readable, &hidden, &own].map(|folder| folder.path().join("text"));
        let [readable, hidden, own] = paths.each_ref().map(|path| path.display());
        let script = format!(
            "cat {readable} > {own}; cat {hidden} || echo >> {hidden} || echo >> {readable} || exit 7"
        );
        let status = command.args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(7));
        assert!(paths.iter().all(|path| fs::read_to_string(path).unwrap() == "text"));
    }

    #[test]
    fn notes_name_what_neither_landlock_nor_seccomp_confines() {
        let reaches = |landlock, sockets, what| describe_reach(landlock, sockets).contains(what);
        for version in [0, 1, 3, 4, 7] {
            assert!(!reaches(version, true, "network"), "{version}");
            assert!(reaches(version, false, "network"), "{version}");
            assert_eq!(reaches(version, true, "write"), version == 0);
        }
        assert!(reaches(3, false, "access the network") && !reaches(3, false, "TCP"));
        assert!(reaches(4, false, "protocols other than TCP"));
    }

    #[test]
    fn seccomp_alone_refuses_the_network() {
        if !HAS_SECCOMP {
            return report_not_tested("no seccomp filter for this architecture");
        }
        let own = tempfile::tempdir().unwrap();
        let sandbox = without_namespaces(Vec::new());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut command = sandbox.command("bash", own.path()).unwrap();
        let script = format!("exec 3<>/dev/tcp/{}", listener.local_addr().unwrap());
        let script = script.replace(':', "/");
        let output = command.args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("Operation not permitted"), "{said}");
    }

    #[test]
    fn a_sandbox_is_ended_first_if_memory_runs_out() {
        let own = tempfile::tempdir().unwrap();
        let sandbox = without_namespaces(Vec::new());
        let mut command = sandbox.command("sh", own.path()).unwrap();
        let mut child = command.args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(score.unwrap().trim(), "1000");
    }

    #[test]
    fn inheritable_files_are_closed_in_the_sandbox() {
        let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = ours.path().join("kept");
        fs::write(&path, "kept").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let number = file.as_raw_fd();
        // SAFETY: a system call on an integer. Clears close-on-exec, as some libraries do.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let (memory_bytes, file_size_bytes) = (1 << 30, 1 << 20);
        let limits =
            Limits { cpu_seconds: 5, memory_bytes, file_size_bytes, processes: 16, files: 64 };
        let access = Access { has_programs: true, scratch_mib: 16, ..Access::default() };
        let sandbox = Sandbox::new(limits, theirs.path(), access).unwrap();
        let mut command = sandbox.command("sh", theirs.path()).unwrap();
        let script = format!("echo lost >&{number}; : > /proc/self/fd/{number}; exit 0");
        command.args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "kept");
    }

    /// A run has many open that streams data, or is watched by many.
    #[test]
    fn a_sandbox_begins_however_many_files_are_open_outside() {
        let place = tempfile::tempdir().unwrap();
        let open: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
        let limits = Limits { files: 16, ..Limits::default() };
        let access = Access { has_programs: true, scratch_mib: 16, ..Access::default() };
        let sandbox = Sandbox::new(limits, place.path(), access).unwrap();
        let mut command = sandbox.command("sh", place.path()).unwrap();
        let output = command.args(["-c", "ulimit -n"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "16\n", "{} open", open.len());
    }
}
