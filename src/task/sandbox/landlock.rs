//! Landlock, where the kernel has it: a second wall around a sandboxed process, and the only one around files where
//! there are no namespaces. The process reads and runs what its root names, writes to its own folder, and reaches
//! neither TCP nor processes and abstract sockets outside of the sandbox.

use super::check;
use super::namespaces::{Bound, Root};
use std::ffi::CStr;
use std::io;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    tcp: u64,
    scope: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// Rights to files: to run, to write and to read one, to list a folder, to truncate, and to control a device.
const RUN: u64 = 1;
const WRITE: u64 = 1 << 1;
const READ: u64 = 1 << 2;
const LIST: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
const CONTROL: u64 = 1 << 15;
/// The rights that a file can have.
const FILE: u64 = RUN | WRITE | READ | TRUNCATE | CONTROL;
/// All rights of the first version: those above and to remove and make files of each kind.
const FIRST: u64 = (1 << 13) - 1;
/// The right to link and rename from one folder to another.
const MOVE: u64 = 1 << 13;

/// To bind and to connect.
const TCP: u64 = 3;
/// Abstract Unix sockets, and signals.
const SOCKETS: u64 = 1;
const SIGNALS: u64 = 2;

/// The restrictions of a process, as far as this kernel knows them.
pub struct Wall {
    rules: Ruleset,
    /// Size of the kernel's `struct landlock_ruleset_attr`.
    size: usize,
    /// Whether the process has a root that holds nothing but what it may read.
    has_own_root: bool,
}

/// The version of Landlock in the kernel; 0 if there is none.
pub fn version() -> u32 {
    // SAFETY: asks for the version, with no struct.
    let answer = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Ruleset>(), 0, 1)
    };
    u32::try_from(answer).unwrap_or(0)
}

impl Wall {
    /// The restrictions for a process with the `network` or without; `None` where the kernel has no Landlock.
    pub fn new(network: bool, has_own_root: bool) -> Option<Self> {
        let version = version();
        let since = |first: u32, rights: u64| if version >= first { rights } else { 0 };
        let files = FIRST | since(2, MOVE) | since(3, TRUNCATE) | since(5, CONTROL);
        let tcp = if network { 0 } else { since(4, TCP) };
        let scope = since(6, if network { SIGNALS } else { SIGNALS | SOCKETS });
        let size = match version {
            0 => return None,
            1..4 => 8,
            4..6 => 16,
            _ => 24,
        };
        Some(Self { rules: Ruleset { files, tcp, scope }, size, has_own_root })
    }

    /// Restricts this process and its descendants, which requires `PR_SET_NO_NEW_PRIVS`.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enforce(&self, root: &Root) -> io::Result<()> {
        let read = RUN | READ | LIST;
        // SAFETY: system calls on integers and on live structs and strings.
        unsafe {
            let rules = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const self.rules,
                self.size,
                0,
            ) as libc::c_int;
            check(rules)?;
            if self.has_own_root {
                self.allow(rules, c"/", read)?;
            }
            for bound in root.bound() {
                match bound {
                    _ if bound.is_device() => self.allow(rules, bound.target(), FILE & !RUN)?,
                    _ if self.has_own_root => {}
                    Bound { is_folder: true, .. } => self.allow(rules, bound.target(), read)?,
                    _ => self.allow(rules, bound.target(), RUN | READ)?,
                }
            }
            self.allow(rules, root.folder().target(), u64::MAX)?;
            let answer = libc::syscall(libc::SYS_landlock_restrict_self, rules, 0);
            libc::close(rules);
            check(answer as libc::c_int)
        }
    }

    /// Allows `rights` below a path. A path that is not there, or not for this user, needs no rights.
    unsafe fn allow(&self, rules: libc::c_int, path: &CStr, rights: u64) -> io::Result<()> {
        // SAFETY: system calls on integers, a live string and a live struct.
        unsafe {
            let parent = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if parent < 0 {
                return Ok(());
            }
            let rule = Beneath { allowed: rights & self.rules.files, parent };
            // A rule for the paths below a file or folder.
            let answer = libc::syscall(libc::SYS_landlock_add_rule, rules, 1, &raw const rule, 0);
            libc::close(parent);
            check(answer as libc::c_int)
        }
    }
}
