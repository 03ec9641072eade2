//! Linux namespaces, with a root that contains only what a program needs.

use super::{Scratch, check};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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

/// Mount point of the new root at first; any directory that exists.
const BASE: &CStr = c"/tmp";
/// Mount point of the old root until it is detached.
const OLD: &CStr = c"/.old";

/// Folders of programs and libraries, as far as they exist.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"];

/// A path of the old root that is bound into the new one.
struct Bound {
    source: CString,
    /// Folders to create, outermost first.
    parents: Vec<CString>,
    target: CString,
}

impl Bound {
    fn new(path: &Path) -> io::Result<Self> {
        let text = |path: &Path| Ok::<_, io::Error>(CString::new(path.as_os_str().as_bytes())?);
        let within = path.strip_prefix("/").map_err(io::Error::other)?;
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        let parents = parents.into_iter().skip(1).map(text).collect::<io::Result<_>>()?;
        let source = text(&Path::new("/.old").join(within))?;
        Ok(Self { source, parents, target: text(path)? })
    }

    /// Creates the parents, and the target as a folder.
    unsafe fn create(&self) {
        for folder in self.parents.iter().chain([&self.target]) {
            // SAFETY: a system call on a live string. An existing folder is as good.
            unsafe { libc::mkdir(folder.as_ptr(), 0o755) };
        }
    }

    unsafe fn bind(&self) -> io::Result<()> {
        let (source, target) = (self.source.as_ptr(), self.target.as_ptr());
        let flags = libc::MS_BIND | libc::MS_REC;
        // SAFETY: a system call on live strings.
        check(unsafe { libc::mount(source, target, null(), flags, null()) })
    }
}

/// The contents of a new root, prepared before `fork`.
pub struct Root {
    bound: Vec<Bound>,
    null: Bound,
    folder: Bound,
    scratch: Scratch,
    /// The files that map the user and the group to themselves, with their contents.
    maps: [(&'static CStr, String); 3],
}

impl Root {
    /// Prepares a root with the system's programs and `readable`, and `folder` to write to.
    pub fn new(readable: &[PathBuf], folder: &Path, scratch: Scratch) -> io::Result<Self> {
        let system = SYSTEM.iter().map(Path::new).filter(|path| path.exists());
        // What a system folder holds is there already.
        let own = readable.iter().map(PathBuf::as_path);
        let own = own.filter(|path| path.exists() && !SYSTEM.iter().any(|at| path.starts_with(at)));
        let bound = system.chain(own).map(Bound::new).collect::<io::Result<_>>()?;
        // SAFETY: these calls have no preconditions.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let maps = [
            (c"/proc/self/setgroups", "deny".to_string()),
            (c"/proc/self/uid_map", format!("{user} {user} 1")),
            (c"/proc/self/gid_map", format!("{group} {group} 1")),
        ];
        let null = Bound::new(Path::new("/dev/null"))?;
        Ok(Self { bound, null, folder: Bound::new(folder)?, scratch, maps })
    }

    /// Creates the namespaces and enters the new root.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on integers and on live strings and structs.
        unsafe {
            let mut flags =
                libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
            let is_root = libc::geteuid() == 0;
            if !is_root {
                flags |= libc::CLONE_NEWUSER;
            }
            check(libc::unshare(flags))?;
            if !is_root {
                self.maps.iter().try_for_each(|(path, text)| write(path, text.as_bytes()))?;
            }
            let root = c"/".as_ptr();
            check(libc::mount(null(), root, null(), libc::MS_REC | libc::MS_PRIVATE, null()))?;
            memory(BASE, c"size=1m,mode=755")?;
            check(libc::chdir(BASE.as_ptr()))?;
            check(libc::mkdir(c".old".as_ptr(), 0o700))?;
            check(
                libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".old".as_ptr()) as libc::c_int
            )?;
            check(libc::chdir(root))?;
            for bound in &self.bound {
                bound.create();
                bound.bind()?;
            }
            libc::mkdir(c"/dev".as_ptr(), 0o755);
            let file = libc::open(self.null.target.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o644);
            check(file)?;
            libc::close(file);
            self.null.bind()?;
            self.folder.create();
            if self.scratch == Scratch::Shared {
                self.folder.bind()?;
            }
            check(libc::umount2(OLD.as_ptr(), libc::MNT_DETACH))?;
            libc::rmdir(OLD.as_ptr());
            set_read_only(root, true, RECURSIVE)?;
            match self.scratch {
                Scratch::Shared => set_read_only(self.folder.target.as_ptr(), false, 0),
                Scratch::Private => memory(&self.folder.target, c"size=16m,nr_inodes=1k,mode=1777"),
            }
        }
    }
}

/// Mounts a file system in memory.
unsafe fn memory(folder: &CStr, options: &CStr) -> io::Result<()> {
    let (flags, kind) = (libc::MS_NOSUID | libc::MS_NODEV, c"tmpfs".as_ptr());
    // SAFETY: a system call on live strings.
    check(unsafe { libc::mount(kind, folder.as_ptr(), kind, flags, options.as_ptr().cast()) })
}

unsafe fn write(path: &CStr, text: &[u8]) -> io::Result<()> {
    // SAFETY: system calls on a live string and live bytes.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY);
        check(file)?;
        let written = libc::write(file, text.as_ptr().cast(), text.len());
        let outcome = check(written as libc::c_int);
        libc::close(file);
        outcome
    }
}

unsafe fn set_read_only(path: *const libc::c_char, on: bool, flags: libc::c_int) -> io::Result<()> {
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
    check(answer as libc::c_int)
}

/// Interval at which the parent of a sandbox checks that Grove still runs, milliseconds.
const WATCH: libc::c_long = 250;

/// Forks and continues in the child, the first process of the new PID namespace. The parent stays
/// outside the namespace: it forwards the child's exit status, and kills it when `grove` has ended.
///
/// # Safety
/// Only between `fork` and `exec`.
pub unsafe fn become_init(grove: u32) -> io::Result<()> {
    // SAFETY: system calls on integers and on live structs.
    unsafe {
        let mut ended: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ended);
        libc::sigaddset(&raw mut ended, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const ended, &raw mut before))?;
        let child = libc::fork();
        check(child)?;
        if child == 0 {
            check(libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()))?;
            // If the parent is killed, the namespace ends.
            return check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0));
        }
        // Close all pipes, so that readers see their end when the child exits.
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        let mut status = 0;
        let pause = libc::timespec { tv_sec: 0, tv_nsec: WATCH * 1_000_000 };
        loop {
            match libc::waitpid(child, &raw mut status, libc::WNOHANG) {
                0 if libc::getppid() as u32 == grove => {
                    libc::sigtimedwait(&raw const ended, std::ptr::null_mut(), &raw const pause);
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
