//! A seccomp filter that refuses the system calls by which a process reaches out of its sandbox: sockets,
//! the memory and descriptors of other processes, mounts, new namespaces, copies of a pipe's content,
//! and signals that stop a process.

use super::{Access, check_call};
use std::io;
use std::mem::offset_of;

/// `LD`, `JMP` and `RET` instructions of classic BPF.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_GREATER_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Field offsets in the data of a system call that a filter reads.
const NUMBER_AT: u32 = offset_of!(libc::seccomp_data, nr) as u32;
const ARCHITECTURE_AT: u32 = offset_of!(libc::seccomp_data, arch) as u32;
const ARGUMENTS_AT: u32 = offset_of!(libc::seccomp_data, args) as u32;

/// System calls that fail with `EPERM`. `tee` would copy the next request out of the standard input that a verifier's
/// child has inherited, unnoticed by the verifier.
const REFUSED_CALLS: [libc::c_long; 24] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_tee,
];

/// System calls that make memory and queues of System V, which no limit of a process counts. Programs may need them.
const SYSTEM_V_CALLS: [libc::c_long; 3] = [libc::SYS_shmget, libc::SYS_msgget, libc::SYS_semget];

/// System calls that make sockets; `socketpair` comes last, which reaches no other process.
const SOCKET_CALLS: [libc::c_long; 4] =
    [libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_socketpair];

/// Calls that send a signal, with the index of the signal's argument.
const SIGNAL_CALLS: [(libc::c_long, u32); 3] =
    [(libc::SYS_kill, 1), (libc::SYS_tkill, 1), (libc::SYS_tgkill, 2)];

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Builds the filter's program.
pub fn build_filter(access: &Access) -> Vec<libc::sock_filter> {
    let refuse = |error: libc::c_int| statement(RETURN, libc::SECCOMP_RET_ERRNO | error as u32);
    let mut program = vec![
        statement(LOAD, ARCHITECTURE_AT),
        jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(LOAD, NUMBER_AT),
        // The numbers of x32, which the lists below do not name.
        jump(JUMP_GREATER_EQUAL, 0x4000_0000, 0, 1),
        refuse(libc::EPERM),
        // The flags of `clone3` are in memory; libraries fall back to `clone`.
        jump(JUMP_EQUAL, libc::SYS_clone3 as u32, 0, 1),
        refuse(libc::ENOSYS),
    ];
    let (socket_calls, system_v_calls) = match (access.has_programs, access.has_network) {
        (_, true) => (&[][..], &[][..]),
        // Programs wake themselves by connected pairs of sockets.
        (true, false) => (&SOCKET_CALLS[..3], &[][..]),
        (false, false) => (&SOCKET_CALLS[..], &SYSTEM_V_CALLS[..]),
    };
    for &number in REFUSED_CALLS.iter().chain(system_v_calls).chain(socket_calls) {
        program.extend([jump(JUMP_EQUAL, number as u32, 0, 1), refuse(libc::EPERM)]);
    }
    program.extend([
        jump(JUMP_EQUAL, libc::SYS_clone as u32, 0, 4),
        statement(LOAD, ARGUMENTS_AT),
        jump(JUMP_BITS, libc::CLONE_NEWUSER as u32, 0, 1),
        refuse(libc::EPERM),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ]);
    for (number, argument) in SIGNAL_CALLS {
        program.extend([
            jump(JUMP_EQUAL, number as u32, 0, 5),
            statement(LOAD, ARGUMENTS_AT + 8 * argument),
            // SIGSTOP, SIGTSTP, SIGTTIN and SIGTTOU are consecutive.
            jump(JUMP_GREATER_EQUAL, libc::SIGSTOP as u32, 0, 2),
            jump(JUMP_GREATER_EQUAL, libc::SIGTTOU as u32 + 1, 1, 0),
            refuse(libc::EPERM),
            statement(RETURN, libc::SECCOMP_RET_ALLOW),
        ]);
    }
    program.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter for this process and its descendants, which requires `PR_SET_NO_NEW_PRIVS`.
///
/// # Safety
/// Only between `fork` and `exec`.
pub unsafe fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: a system call on a live struct that points to live instructions.
    check_call(unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    })
}
