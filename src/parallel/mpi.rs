//! Ranks that are MPI processes, started by `mpirun`, `srun` or another launcher.
//!
//! All messages are non-blocking, so that a wait can time out and name the rank that does not respond.

use super::{Link, Team, TeamError};
use crate::clock::Stopwatch;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::traits::*;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Environment variables by which MPI launchers can be recognized.
const LAUNCHER_VARIABLES: [&str; 4] =
    ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS"];

/// Maximum bytes of one MPI message; longer ones are split, since MPI counts in `i32`.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Duration of busy waiting before yielding the core. Most messages arrive within it.
const SPIN_TIME: Duration = Duration::from_micros(200);

static WORLD: OnceLock<World> = OnceLock::new();
/// This process's rank among those on this machine, and their number.
static LOCAL_RANK_AND_SIZE: OnceLock<(usize, usize)> = OnceLock::new();

/// The MPI environment of this process.
struct World(Universe);

// SAFETY: MPI was initialized for calls from any thread, one at a time (MPI_THREAD_SERIALIZED), and the
// lock around the link serializes them. The universe is only stored, so that MPI lives as long as the process.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Whether an MPI launcher started this process.
pub fn is_launched() -> bool {
    LAUNCHER_VARIABLES.iter().any(|name| std::env::var_os(name).is_some())
}

/// Initializes MPI.
///
/// # Errors
/// A message if MPI cannot be initialized here.
pub fn start() -> Result<(), String> {
    let (universe, threading) = mpi::initialize_with_threading(mpi::Threading::Serialized)
        .ok_or("MPI has already been initialized")?;
    if threading < mpi::Threading::Serialized {
        return Err("this MPI does not allow calls from several threads".to_string());
    }
    let world = WORLD.get_or_init(|| World(universe)).0.world();
    // SAFETY: the communicator is valid. Errors are then returned instead of aborting the process.
    unsafe {
        ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN);
    }
    // All processes must take part in this, so it is done where all of them come.
    let machine = world.split_shared(0);
    LOCAL_RANK_AND_SIZE.get_or_init(|| (machine.rank() as usize, machine.size() as usize));
    Ok(())
}

/// The team of the first `size` MPI processes, as seen by this one.
///
/// # Panics
/// If this process's rank is not below `size`, or MPI was not started.
pub fn team(size: usize, timeout: Duration) -> Team {
    let (rank, _) = rank_and_size().expect("MPI was started");
    Team::new(rank, size, Box::new(MpiLink { rank, timeout }))
}

/// This process's rank and the number of processes, if MPI was started.
pub fn rank_and_size() -> Option<(usize, usize)> {
    let world = WORLD.get()?.0.world();
    Some((world.rank() as usize, world.size() as usize))
}

/// This process's rank among those on this machine, and their number.
pub fn local_rank_and_size() -> (usize, usize) {
    LOCAL_RANK_AND_SIZE.get().copied().unwrap_or((0, 1))
}

/// The default number of CPU threads of this process: its share of the machine's cores. `None` if it is the only
/// process here.
pub fn default_threads() -> Option<usize> {
    let (_, local_size) = local_rank_and_size();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: reads a constant of the system.
    let online_cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    (local_size > 1)
        .then(|| if (cores as i64) < online_cores { cores } else { (cores / local_size).max(1) })
}

/// Finalizes MPI, if it was started. All processes must call it.
pub fn finish() {
    if WORLD.get().is_some() {
        // SAFETY: no communication is pending, and none follows.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}

/// Aborts all MPI processes, if MPI was started.
pub fn abort(code: i32) {
    if let Some(world) = WORLD.get() {
        world.0.world().abort(code);
    }
}

/// The link between MPI processes.
struct MpiLink {
    rank: usize,
    timeout: Duration,
}

/// A non-blocking send or receive in progress.
struct Request {
    other: usize,
    raw: ffi::MPI_Request,
}

impl Request {
    /// Whether the send or receive is complete.
    fn is_done(&mut self) -> Result<bool, TeamError> {
        let mut done = 0;
        // SAFETY: the request is active, and no status is requested.
        let code = unsafe { ffi::MPI_Test(&mut self.raw, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        check_code(code, self.other)?;
        Ok(done != 0)
    }
}

/// Checks the MPI error code of a call that involves rank `other`.
fn check_code(code: i32, other: usize) -> Result<(), TeamError> {
    if code == ffi::MPI_SUCCESS as i32 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut len = 0;
    // SAFETY: the buffer has the size that MPI requires.
    unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len);
    }
    text.truncate(len as usize);
    Err(TeamError::Ended { rank: other, reason: String::from_utf8_lossy(&text).into_owned() })
}

impl Link for MpiLink {
    fn exchange(&mut self, outbox: &[&[u8]], lens: &[usize]) -> Result<Vec<Vec<u8>>, TeamError> {
        let mut requests = Vec::new();
        let mut receive_buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        // After an error MPI may still access the buffers, so these are copies, and all are then leaked.
        let send_buffers: Vec<Vec<u8>> = outbox.iter().map(|bytes| bytes.to_vec()).collect();
        let mut start_requests = || -> Result<(), TeamError> {
            // The message to this rank itself is empty.
            for (other, bytes) in receive_buffers.iter_mut().enumerate() {
                for bytes in bytes.chunks_mut(MAX_MESSAGE_BYTES) {
                    requests.push(receive(other, bytes, DATA_TAG)?);
                }
            }
            for (other, bytes) in send_buffers.iter().enumerate() {
                for bytes in bytes.chunks(MAX_MESSAGE_BYTES) {
                    requests.push(send(other, bytes, DATA_TAG)?);
                }
            }
            Ok(())
        };
        let outcome = start_requests().and_then(|()| self.wait(&mut requests, outbox.len()));
        if let Err(error) = outcome {
            receive_buffers.into_iter().chain(send_buffers).for_each(|buffer| _ = buffer.leak());
            return Err(error);
        }
        Ok(receive_buffers)
    }
}

/// Time in which ranks that have timed out report to each other which rank they were waiting for.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

impl MpiLink {
    /// Waits until all requests of a team of `size` ranks are complete, at most for the timeout.
    fn wait(&self, requests: &mut Vec<Request>, size: usize) -> Result<(), TeamError> {
        let mut wait = Stopwatch::start();
        loop {
            let waited = wait.elapsed();
            remove_done(requests)?;
            let Some(first) = requests.iter().map(|request| request.other).min() else {
                return Ok(());
            };
            if waited > self.timeout {
                let rank = self.find_culprit(first, size)?;
                return Err(TeamError::TimedOut { rank, seconds: self.timeout.as_secs() });
            }
            // After a while, leave the core to ranks that compute.
            match waited {
                waited if waited < SPIN_TIME => std::hint::spin_loop(),
                waited if waited < 20 * SPIN_TIME => thread::yield_now(),
                _ => thread::sleep(SPIN_TIME / 4),
            }
        }
    }

    /// Finds the rank at the root of a timeout. This rank waits for `first`, which may itself wait for
    /// another: every rank that times out reports which rank it was waiting for, and a hanging rank
    /// reports nothing.
    fn find_culprit(&self, first: usize, size: usize) -> Result<usize, TeamError> {
        // Leaked, because MPI may access them until the process ends.
        let report: &mut [u8] = Vec::leak((first as u32).to_le_bytes().to_vec());
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for other in (0..size).filter(|other| *other != self.rank) {
            let buffer: &mut [u8] = Vec::leak(vec![u8::MAX; report.len()]);
            answers.push((other, buffer.as_ptr()));
            requests.push(receive(other, buffer, TIMEOUT_TAG)?);
            // Not awaited: only the answers matter.
            send(other, report, TIMEOUT_TAG)?;
        }
        let started = Instant::now();
        while !requests.is_empty() && started.elapsed() < REPORT_TIMEOUT {
            remove_done(&mut requests)?;
            thread::sleep(SPIN_TIME);
        }
        let mut waits_for = vec![None; size];
        for (other, buffer) in answers {
            if requests.iter().all(|request| request.other != other) {
                // SAFETY: the receive is complete, so MPI no longer writes to the buffer.
                let answer = unsafe { buffer.cast::<[u8; 4]>().read() };
                waits_for[other] = Some(u32::from_le_bytes(answer) as usize);
            }
        }
        let mut culprit = first;
        // At most `size` hops: in a cycle of ranks that wait for each other any of them will do.
        for _ in 0..size {
            match waits_for.get(culprit) {
                Some(Some(other)) if *other != self.rank => culprit = *other,
                _ => break,
            }
        }
        Ok(culprit)
    }
}

/// Removes the completed requests.
fn remove_done(requests: &mut Vec<Request>) -> Result<(), TeamError> {
    let mut at = 0;
    while at < requests.len() {
        if requests[at].is_done()? {
            requests.swap_remove(at);
        } else {
            at += 1;
        }
    }
    Ok(())
}

/// Tag of regular messages.
const DATA_TAG: i32 = 0;
/// Tag of the reports of ranks that have timed out.
const TIMEOUT_TAG: i32 = 1;

fn send(other: usize, bytes: &[u8], tag: i32) -> Result<Request, TeamError> {
    // SAFETY: the bytes are neither changed nor freed before the request completes.
    start_request(other, |raw| unsafe {
        ffi::MPI_Isend(
            bytes.as_ptr().cast::<c_void>(),
            bytes.len() as i32,
            ffi::RSMPI_UINT8_T,
            other as i32,
            tag,
            ffi::RSMPI_COMM_WORLD,
            raw,
        )
    })
}

fn receive(other: usize, bytes: &mut [u8], tag: i32) -> Result<Request, TeamError> {
    // SAFETY: the bytes are neither read nor freed before the request completes.
    start_request(other, |raw| unsafe {
        ffi::MPI_Irecv(
            bytes.as_mut_ptr().cast::<c_void>(),
            bytes.len() as i32,
            ffi::RSMPI_UINT8_T,
            other as i32,
            tag,
            ffi::RSMPI_COMM_WORLD,
            raw,
        )
    })
}

/// Starts the request that `call` issues to or from rank `other`.
fn start_request(
    other: usize,
    call: impl FnOnce(&mut ffi::MPI_Request) -> i32,
) -> Result<Request, TeamError> {
    // SAFETY: a constant of the library.
    let mut raw = unsafe { ffi::RSMPI_REQUEST_NULL };
    check_code(call(&mut raw), other)?;
    Ok(Request { other, raw })
}
