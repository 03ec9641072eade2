//! Linux namespaces, with a root that contains only what a program needs.

use super::cgroup::ControlGroup;
use super::{Access, check_call};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

/// Mount point of the new root at first; any directory that exists.
const NEW_ROOT: &CStr = c"/tmp";
/// Mount point of the old root until it is detached.
const OLD_ROOT: &CStr = c"/.old";

/// Folders of libraries, as far as they exist.
const LIBRARY_FOLDERS: [&str; 9] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
];

/// Folders of programs and libraries, as far as they exist.
const PROGRAM_FOLDERS: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"];

/// Files of the system that programs with a user's tools expect: names of users and hosts, certificates, time zones.
const SYSTEM_FILES: [&str; 12] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/java",
];

/// Harmless devices.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A path of the old root that is bound into the new one.
pub struct BindMount {
    source: CString,
    /// Folders to create, outermost first.
    parents: Vec<CString>,
    /// The path in the new root.
    pub target: CString,
    /// Whether it is a folder; links are followed.
    pub is_folder: bool,
}

impl BindMount {
    fn new(path: &Path) -> io::Result<Self> {
        let c_string = |path: &Path| Ok::<_, io::Error>(CString::new(path.as_os_str().as_bytes())?);
        let within = path.strip_prefix("/").map_err(io::Error::other)?;
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        let parents = parents.into_iter().skip(1).map(c_string).collect::<io::Result<_>>()?;
        // A link leads to the same file in the new root.
        let file = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let source = c_string(&Path::new("/.old").join(file.strip_prefix("/").unwrap_or(within)))?;
        Ok(Self { source, parents, target: c_string(path)?, is_folder: path.is_dir() })
    }

    /// Creates the mount of the null device in the place of `path`.
    fn new_hidden(path: &Path) -> io::Result<Self> {
        Ok(Self { source: c"/.old/dev/null".to_owned(), ..Self::new(path)? })
    }

    /// Whether it is one of the harmless devices.
    pub fn is_device(&self) -> bool {
        self.target.as_bytes().starts_with(b"/dev/")
    }

    /// Creates the parents and the target, empty. Existing ones are as good.
    unsafe fn create(&self) {
        // SAFETY: system calls on live strings.
        unsafe {
            self.parents.iter().for_each(|folder| {
                libc::mkdir(folder.as_ptr(), 0o755);
            });
            if self.is_folder {
                libc::mkdir(self.target.as_ptr(), 0o755);
                return;
            }
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
            libc::close(libc::open(self.target.as_ptr(), flags, 0o644));
        }
    }

    /// Mounts the source at the target.
    unsafe fn bind(&self) -> io::Result<()> {
        let (source, target) = (self.source.as_ptr(), self.target.as_ptr());
        let flags = libc::MS_BIND | libc::MS_REC;
        // SAFETY: a system call on live strings.
        check_call(unsafe { libc::mount(source, target, null(), flags, null()) })
    }
}

/// The contents of a new root, prepared before `fork`.
pub struct Root {
    /// The paths of the root, read-only but for devices.
    pub mounts: Vec<BindMount>,
    /// Folders that are there, but empty.
    empty_folders: Vec<BindMount>,
    /// The folder to write to.
    pub scratch_folder: BindMount,
    /// The options of the file system in memory for that folder.
    tmpfs_options: CString,
    has_network: bool,
    /// The files that map the user and the group to themselves, with their contents.
    id_maps: [(&'static CStr, String); 3],
}

/// Finds the files that contain this code, and with it the answers of built-in tasks: the program, and the library of
/// a package for another language, such as Python's.
fn find_grove_files() -> Vec<PathBuf> {
    // SAFETY: all zeros are a valid `Dl_info`, which the call fills; the name that it gives is never freed.
    let library = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let is_found =
            libc::dladdr(find_grove_files as *const () as *const libc::c_void, &raw mut info) != 0;
        (is_found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    };
    let library = library.map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
    // For a program it may be the word by which it was started, which is no path.
    let files = [std::env::current_exe().ok(), library.filter(|path| path.is_absolute())];
    let mut files: Vec<PathBuf> =
        files.into_iter().flatten().filter_map(|path| path.canonicalize().ok()).collect();
    files.dedup();
    files
}

impl Root {
    /// Prepares a root with what `access` names, and `folder` to write to.
    ///
    /// # Errors
    /// If a path cannot be resolved.
    pub fn new(access: &Access, folder: &Path) -> io::Result<Self> {
        let system = if access.has_programs { &PROGRAM_FOLDERS[..] } else { &LIBRARY_FOLDERS };
        let files = if access.has_programs { &SYSTEM_FILES[..] } else { &[] };
        let devices = if access.has_programs { &DEVICES[..] } else { &DEVICES[..1] };
        // Files in the folders of the system are there already.
        let is_new = |path: &&Path| !system.iter().any(|at| path.starts_with(at));
        let mut readable: Vec<&Path> =
            access.readable.iter().map(PathBuf::as_path).filter(is_new).collect();
        // A folder before what it holds.
        readable.sort();
        readable.dedup_by(|path, folder| path.starts_with(*folder));
        let all = [system, files].concat();
        let all = all.iter().map(Path::new).chain(readable).chain(devices.iter().map(Path::new));
        let all: Vec<&Path> = all.filter(|path| path.exists()).collect();
        let mut mounts =
            all.iter().map(|path| BindMount::new(path)).collect::<io::Result<Vec<_>>>()?;
        for (path, file) in
            all.iter().flat_map(|path| access.hidden_paths.iter().map(move |f| (path, f)))
        {
            // The path may be a link to the folder that has the file.
            let real = path.canonicalize()?;
            if let Some(within) = file.strip_prefix(real).ok().filter(|_| path.is_dir()) {
                mounts.push(BindMount::new_hidden(&path.join(within))?);
            }
        }
        let is_shown = |path: &PathBuf| {
            access.readable.iter().any(|at| path.starts_with(at)) || !is_new(&path.as_path())
        };
        for file in find_grove_files().iter().filter(|path| !access.has_programs && is_shown(path))
        {
            mounts.push(BindMount::new_hidden(file)?);
        }
        let empty_folders =
            access.workdir.iter().map(|path| BindMount::new(path)).collect::<io::Result<_>>()?;
        // SAFETY: these calls have no preconditions.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let id_maps = [
            (c"/proc/self/setgroups", "deny".to_string()),
            (c"/proc/self/uid_map", format!("{user} {user} 1")),
            (c"/proc/self/gid_map", format!("{group} {group} 1")),
        ];
        let size = access.scratch_mib;
        let tmpfs_options = format!("size={size}m,nr_inodes={},mode=1777", 64 * size);
        let tmpfs_options = CString::new(tmpfs_options)?;
        let scratch_folder = BindMount::new(folder)?;
        let has_network = access.has_network;
        Ok(Self { mounts, empty_folders, scratch_folder, tmpfs_options, has_network, id_maps })
    }

    /// Creates the namespaces and enters the new root.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on integers and on live strings and structs.
        unsafe {
            let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
            if !self.has_network {
                flags |= libc::CLONE_NEWNET;
            }
            let is_root = libc::geteuid() == 0;
            if !is_root {
                flags |= libc::CLONE_NEWUSER;
            }
            check_call(libc::unshare(flags))?;
            if !is_root {
                self.id_maps.iter().try_for_each(|(path, text)| write(path, text.as_bytes()))?;
            }
            let root = c"/".as_ptr();
            check_call(libc::mount(null(), root, null(), libc::MS_REC | libc::MS_PRIVATE, null()))?;
            mount_tmpfs(NEW_ROOT, c"size=1m,mode=755")?;
            check_call(libc::chdir(NEW_ROOT.as_ptr()))?;
            check_call(libc::mkdir(c".old".as_ptr(), 0o700))?;
            check_call(
                libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".old".as_ptr()) as libc::c_int
            )?;
            check_call(libc::chdir(root))?;
            self.empty_folders.iter().for_each(|folder| folder.create());
            for mount in &self.mounts {
                mount.create();
                mount.bind()?;
            }
            self.scratch_folder.create();
            check_call(libc::umount2(OLD_ROOT.as_ptr(), libc::MNT_DETACH))?;
            libc::rmdir(OLD_ROOT.as_ptr());
            set_read_only(c"/")?;
            mount_tmpfs(&self.scratch_folder.target, &self.tmpfs_options)
        }
    }
}

/// Mounts a file system in memory.
unsafe fn mount_tmpfs(folder: &CStr, options: &CStr) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let kind = c"tmpfs".as_ptr();
    // SAFETY: a system call on live strings.
    check_call(unsafe { libc::mount(kind, folder.as_ptr(), kind, flags, options.as_ptr().cast()) })
}

unsafe fn write(path: &CStr, text: &[u8]) -> io::Result<()> {
    // SAFETY: system calls on a live string and live bytes.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY);
        check_call(file)?;
        let written = libc::write(file, text.as_ptr().cast(), text.len());
        let outcome = check_call(written as libc::c_int);
        libc::close(file);
        outcome
    }
}

/// Makes all that is mounted below a path read-only.
unsafe fn set_read_only(path: &CStr) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: a system call on a live string, a live struct and the struct's size.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check_call(answer as libc::c_int)
}

/// Drops all capabilities, so that root is exempt from nothing, even after `exec`.
///
/// # Safety
/// Only between `fork` and `exec`.
pub unsafe fn drop_capabilities() -> io::Result<()> {
    // Version 3 of `capset(2)`: a header, and two words each of effective, permitted and inheritable ones.
    let header = [0x2008_0522u32, 0];
    let none = [0u32; 6];
    // SAFETY: system calls on integers and on live arrays.
    unsafe {
        let mut capability = 0;
        while libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) >= 0 {
            check_call(libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0))?;
            capability += 1;
        }
        check_call(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) as libc::c_int)
    }
}

/// Makes the kernel end this process before others, if memory runs out.
///
/// # Safety
/// Only between `fork` and `exec`.
pub unsafe fn become_first_oom_victim() {
    // SAFETY: a system call on live bytes. Without `/proc` all stays as it is.
    let _ = unsafe { write(c"/proc/self/oom_score_adj", b"1000") };
}

/// Interval at which the parent of a sandbox checks that Grove still runs, milliseconds.
const WATCH_INTERVAL_MS: libc::c_long = 250;

/// Forks and continues in the child, the first process of the new PID namespace. The parent stays
/// outside the namespace: it forwards the child's exit status, and kills it when Grove has ended. The child joins the
/// `group`.
///
/// # Safety
/// Only between `fork` and `exec`.
pub unsafe fn become_init(grove_pid: u32, group: Option<&ControlGroup>) -> io::Result<()> {
    // SAFETY: system calls on integers and on live structs.
    unsafe {
        let mut child_signal: libc::sigset_t = std::mem::zeroed();
        let mut old_mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut child_signal);
        libc::sigaddset(&raw mut child_signal, libc::SIGCHLD);
        check_call(libc::sigprocmask(libc::SIG_BLOCK, &raw const child_signal, &raw mut old_mask))?;
        let child = libc::fork();
        check_call(child)?;
        if child == 0 {
            check_call(libc::sigprocmask(libc::SIG_SETMASK, &raw const old_mask, null_mut()))?;
            if let Some(group) = group {
                group.join()?;
            }
            // If the parent is killed, the namespace ends.
            return check_call(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
        }
        // Close all pipes, so that readers see their end when the child exits.
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        let mut status = 0;
        let pause = libc::timespec { tv_sec: 0, tv_nsec: WATCH_INTERVAL_MS * 1_000_000 };
        loop {
            match libc::waitpid(child, &raw mut status, libc::WNOHANG) {
                0 if libc::getppid() as u32 == grove_pid => {
                    libc::sigtimedwait(&raw const child_signal, null_mut(), &raw const pause);
                }
                0 => {
                    libc::kill(child, libc::SIGKILL);
                    libc::_exit(126);
                }
                -1 => libc::_exit(126),
                _ => break,
            }
        }
        let signal = libc::WTERMSIG(status);
        libc::_exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + signal });
    }
}
