//! Landlock, where the kernel has it: a second confinement of a sandboxed process, and the only one of its file
//! accesses where there are no namespaces. The process reads and runs what its root lists, writes to its own folder,
//! and reaches neither TCP nor processes and abstract sockets outside of the sandbox.

use super::namespaces::{BindMount, Root};
use super::{Sandbox, check_call};
use std::ffi::CStr;
use std::io;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetRights {
    files: u64,
    tcp: u64,
    scope: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathRule {
    allowed_access: u64,
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
const FILE_RIGHTS: u64 = RUN | WRITE | READ | TRUNCATE | CONTROL;
/// All rights of the first version: those above, and the rights to remove and to make files of each kind.
const VERSION_1_RIGHTS: u64 = (1 << 13) - 1;
/// The right to link and rename from one folder to another.
const MOVE: u64 = 1 << 13;

/// The rights to bind and connect TCP sockets.
const TCP_RIGHTS: u64 = 3;
/// The scopes of abstract Unix sockets and of signals.
const SOCKET_SCOPE: u64 = 1;
const SIGNAL_SCOPE: u64 = 2;

/// The restrictions of a process, as far as this kernel knows them.
pub struct LandlockRuleset {
    rights: RulesetRights,
    /// Size of the kernel's `struct landlock_ruleset_attr`.
    size: usize,
    /// Whether the process has a root of its own, which holds nothing but what it may read.
    has_own_root: bool,
}

/// The version of Landlock in the kernel; 0 if there is none.
pub fn version() -> u32 {
    // SAFETY: asks for the version, with no struct.
    let answer = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<RulesetRights>(), 0, 1)
    };
    u32::try_from(answer).unwrap_or(0)
}

impl LandlockRuleset {
    /// The restrictions of a sandbox's processes; `None` where the kernel has no Landlock.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        let version = version();
        let since = |first: u32, rights: u64| if version >= first { rights } else { 0 };
        let files = VERSION_1_RIGHTS | since(2, MOVE) | since(3, TRUNCATE) | since(5, CONTROL);
        let (tcp, scope) = if sandbox.access.has_network {
            (0, since(6, SIGNAL_SCOPE))
        } else {
            (since(4, TCP_RIGHTS), since(6, SIGNAL_SCOPE | SOCKET_SCOPE))
        };
        let size = match version {
            0 => return None,
            1..4 => 8,
            4..6 => 16,
            _ => 24,
        };
        Some(Self {
            rights: RulesetRights { files, tcp, scope },
            size,
            has_own_root: sandbox.has_namespaces,
        })
    }

    /// Restricts this process and its descendants, which requires `PR_SET_NO_NEW_PRIVS`.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn enforce(&self, root: &Root) -> io::Result<()> {
        let read = RUN | READ | LIST;
        // SAFETY: system calls on integers and on live structs and strings.
        unsafe {
            let ruleset = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const self.rights,
                self.size,
                0,
            ) as libc::c_int;
            check_call(ruleset)?;
            if self.has_own_root {
                self.allow(ruleset, c"/", read)?;
            }
            for mount in &root.mounts {
                let target = &mount.target;
                match mount {
                    _ if mount.is_device() => self.allow(ruleset, target, FILE_RIGHTS & !RUN)?,
                    _ if self.has_own_root => {}
                    BindMount { is_folder: true, .. } => self.allow(ruleset, target, read)?,
                    _ => self.allow(ruleset, target, RUN | READ)?,
                }
            }
            self.allow(ruleset, &root.scratch_folder.target, u64::MAX)?;
            let answer = libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0);
            libc::close(ruleset);
            check_call(answer as libc::c_int)
        }
    }

    /// Allows `rights` below a path. A path that is not there, or not for this user, needs no rights.
    unsafe fn allow(&self, ruleset: libc::c_int, path: &CStr, rights: u64) -> io::Result<()> {
        // SAFETY: system calls on integers, a live string and a live struct.
        unsafe {
            let parent = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if parent < 0 {
                return Ok(());
            }
            let rule = PathRule { allowed_access: rights & self.rights.files, parent };
            // A rule for the paths below a file or folder.
            let answer = libc::syscall(libc::SYS_landlock_add_rule, ruleset, 1, &raw const rule, 0);
            libc::close(parent);
            check_call(answer as libc::c_int)
        }
    }
}
