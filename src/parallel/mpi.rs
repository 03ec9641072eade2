//! Members that are processes, started by `mpirun`, `srun` or whatever else speaks MPI.
//!
//! Messages go from one to another without blocking, so that whoever is silent can be named and nobody waits
//! for ever.

use super::{Link, Team, TeamError};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::traits::*;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// What launchers of MPI put into the environment of the processes that they start.
const MARKS: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALNRANKS"];

/// Bytes of a message at most; more go in several.
const MOST: usize = 1 << 30;

/// How long is waited in a loop without a break: most messages are there by then.
const SPIN: Duration = Duration::from_micros(200);

static WORLD: OnceLock<World> = OnceLock::new();

/// The processes that MPI has started with this one.
struct World(Universe);

// SAFETY: MPI is asked for calls from any thread, one at a time (MPI_THREAD_SERIALIZED), and the link's lock
// sees to that. The universe itself is only kept, so that MPI ends with the process.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Whether this process was started as one of several.
pub fn is_launched() -> bool {
    MARKS.iter().any(|mark| std::env::var_os(mark).is_some())
}

/// Finds the processes that were started with this one.
///
/// # Errors
/// If MPI does not start here, in words.
pub fn start() -> Result<(), String> {
    let (universe, threading) = mpi::initialize_with_threading(mpi::Threading::Serialized)
        .ok_or("MPI has been started before")?;
    if threading < mpi::Threading::Serialized {
        return Err("this MPI does not allow calls from several threads".to_string());
    }
    let world = WORLD.get_or_init(|| World(universe)).0.world();
    // SAFETY: the communicator is the world's; an error is then told instead of ending the process.
    unsafe {
        ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN);
    }
    Ok(())
}

/// This process among the first `size` of those that were started, who wait for each other so long at most.
///
/// # Panics
/// If it is none of them, or MPI was not started.
pub fn team(size: usize, timeout: Duration) -> Team {
    let (rank, _) = rank().expect("MPI was started");
    Team::new(rank, size, Box::new(Processes { rank, timeout }))
}

/// The rank of this process and how many there are, if it was started as one of several and has found them.
pub fn rank() -> Option<(usize, usize)> {
    let world = WORLD.get()?.0.world();
    Some((world.rank() as usize, world.size() as usize))
}

/// Which of the processes on this machine this one is, and how many there are.
pub fn on_this_machine() -> (usize, usize) {
    let Some(world) = WORLD.get() else { return (0, 1) };
    let here = world.0.world().split_shared(0);
    (here.rank() as usize, here.size() as usize)
}

/// Ends MPI in good order, if it was started; all processes must.
pub fn finish() {
    if WORLD.get().is_some() {
        // SAFETY: nothing is under way any more, and nothing will be.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}

/// Ends all processes that were started with this one, if any were.
pub fn abort(code: i32) {
    if let Some(world) = WORLD.get() {
        world.0.world().abort(code);
    }
}

/// The way to the other processes.
struct Processes {
    rank: usize,
    timeout: Duration,
}

/// A message on its way.
struct Request {
    other: usize,
    raw: ffi::MPI_Request,
}

impl Request {
    /// Whether the message has arrived, or left.
    fn is_done(&mut self) -> Result<bool, TeamError> {
        let mut done = 0;
        // SAFETY: the request was started and is not done yet, and no status is wanted.
        let code = unsafe { ffi::MPI_Test(&mut self.raw, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        check(code, self.other)?;
        Ok(done != 0)
    }
}

/// What MPI says of a call that concerns another process.
fn check(code: i32, other: usize) -> Result<(), TeamError> {
    if code == ffi::MPI_SUCCESS as i32 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut len = 0;
    // SAFETY: the text has as much room as MPI asks for.
    unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len);
    }
    text.truncate(len as usize);
    Err(TeamError::Gone { rank: other, why: String::from_utf8_lossy(&text).into_owned() })
}

impl Link for Processes {
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), TeamError> {
        let mut requests = Vec::new();
        // A buffer that MPI may still write to, or read from, must outlive an error; so these are copies that
        // are not freed then.
        let mut arriving: Vec<Vec<u8>> =
            incoming.iter().map(|bytes| vec![0; bytes.len()]).collect();
        let leaving: Vec<Vec<u8>> = outgoing.iter().map(|bytes| bytes.to_vec()).collect();
        let mut start = || -> Result<(), TeamError> {
            for (other, bytes) in arriving.iter_mut().enumerate().filter(|(i, _)| *i != self.rank) {
                for bytes in bytes.chunks_mut(MOST) {
                    requests.push(receive(other, bytes, WORKS)?);
                }
            }
            for (other, bytes) in leaving.iter().enumerate().filter(|(i, _)| *i != self.rank) {
                for bytes in bytes.chunks(MOST) {
                    requests.push(send(other, bytes, WORKS)?);
                }
            }
            Ok(())
        };
        let done = start().and_then(|()| self.wait(&mut requests, outgoing.len()));
        if let Err(error) = done {
            std::mem::forget((arriving, leaving));
            return Err(error);
        }
        for (to, from) in incoming.iter_mut().zip(&arriving) {
            to.copy_from_slice(from);
        }
        Ok(())
    }
}

/// Between two looks at the messages there is never so much time, unless the process was stopped.
const STOPPED: Duration = Duration::from_secs(1);

/// How long those who have waited in vain have to say so to each other.
const TELL: Duration = Duration::from_secs(2);

impl Processes {
    /// Waits until all messages have come and gone, for so long at most; there are so many members.
    fn wait(&self, requests: &mut Vec<Request>, size: usize) -> Result<(), TeamError> {
        let (mut started, mut last) = (Instant::now(), Instant::now());
        loop {
            // Who was stopped has not waited meanwhile.
            let gap = last.elapsed();
            if gap > STOPPED {
                started += gap;
            }
            last = Instant::now();
            remove_done(requests)?;
            let Some(first) = requests.iter().map(|request| request.other).min() else {
                return Ok(());
            };
            let waited = started.elapsed();
            if waited > self.timeout {
                let rank = self.who_hangs(first, size)?;
                return Err(TeamError::Silent { rank, seconds: self.timeout.as_secs() });
            }
            // Whoever waits long leaves its core to those who work.
            match waited {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < 20 * SPIN => thread::yield_now(),
                _ => thread::sleep(SPIN / 4),
            }
        }
    }

    /// Who keeps this member waiting, `first` or whoever that one waits for: those who wait in vain tell all others
    /// for whom, and who hangs tells nothing.
    fn who_hangs(&self, first: usize, size: usize) -> Result<usize, TeamError> {
        // MPI may look at these for as long as the process lives.
        let told: &mut [u8] = Vec::leak((first as u32).to_le_bytes().to_vec());
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for other in (0..size).filter(|other| *other != self.rank) {
            let room: &mut [u8] = Vec::leak(vec![u8::MAX; told.len()]);
            answers.push((other, room.as_ptr()));
            requests.push(receive(other, room, WAITS)?);
            // The answers are what counts: these need not arrive.
            send(other, told, WAITS)?;
        }
        let started = Instant::now();
        while !requests.is_empty() && started.elapsed() < TELL {
            remove_done(&mut requests)?;
            thread::sleep(SPIN);
        }
        let mut waits_for = vec![None; size];
        for (other, room) in answers {
            if requests.iter().all(|request| request.other != other) {
                // SAFETY: the message has arrived, so nobody writes here any more.
                let answer = unsafe { room.cast::<[u8; 4]>().read() };
                waits_for[other] = Some(u32::from_le_bytes(answer) as usize);
            }
        }
        let mut hangs = first;
        // No further than everyone in turn: those who wait for each other are all as good.
        for _ in 0..size {
            match waits_for.get(hangs) {
                Some(Some(other)) if *other != self.rank => hangs = *other,
                _ => break,
            }
        }
        Ok(hangs)
    }
}

/// Takes out the messages that have come or gone.
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

/// What marks messages between members that compute.
const WORKS: i32 = 0;
/// And those of members that have waited too long.
const WAITS: i32 = 1;

fn send(other: usize, bytes: &[u8], tag: i32) -> Result<Request, TeamError> {
    // SAFETY: the bytes are neither changed nor freed before the request is done.
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
    // SAFETY: the bytes are neither looked at nor freed before the request is done.
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

/// The message to or from another process that `call` begins.
fn start_request(
    other: usize,
    call: impl FnOnce(&mut ffi::MPI_Request) -> i32,
) -> Result<Request, TeamError> {
    // SAFETY: a constant of the library.
    let mut raw = unsafe { ffi::RSMPI_REQUEST_NULL };
    check(call(&mut raw), other)?;
    Ok(Request { other, raw })
}
