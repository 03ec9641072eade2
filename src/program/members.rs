//! The members of a run: this process alone, threads of it with a device each, or processes under MPI.

use super::say::say;
use super::{Playable, RunArgs};
use crate::config::TrainConfig;
use crate::device::{self, Chosen};
use crate::model::Network;
use crate::parallel::{Collective, Hardware, TIMEOUT, Team, TeamError, threads};
use crate::trainer::language::LanguageTrainError;
use crate::trainer::{Demonstrations, TrainError, Trainer};
use anyhow::{Context, Error, Result, anyhow};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// What whoever wants several members to try something out is told.
const ONE_TRIES: &str =
    "--dry-run tries a run with one member: name one device, and start one process";

/// One of them, in this process.
pub struct Member {
    /// All of them, as it sees them.
    team: Team,
    /// The name of its device.
    device: String,
}

impl Member {
    /// All of them, as it sees them.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// What texts go through, nothing for the CPU, which `auto` is; and the team, which knows of it.
    pub fn for_texts(mut self) -> Result<(Option<Chosen>, Team)> {
        if self.device == "auto" {
            self.device = "cpu".into();
        }
        let (chosen, team) = self.choose()?;
        Ok(((chosen.info.name != "cpu").then_some(chosen), team))
    }

    /// Its device; and the team, which knows now what its members compute with.
    pub fn choose(self) -> Result<(Chosen, Team)> {
        let chosen = device::choose(&self.device)?;
        let is_device = device::has_kernels(&chosen.device);
        let gather = |text: &str| -> Result<Vec<String>, TeamError> {
            let all = self.team.all_gather(text.as_bytes())?;
            Ok(all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
        };
        let all = gather(&device::numerics(&chosen.info))?;
        let names = gather(&chosen.info.name)?;
        let hardware = Hardware {
            collective: collective(&names, self.team.is_root())?,
            names,
            has_devices: self.team.any(is_device)?,
            has_cpus: self.team.any(!is_device)?,
            rounds_differently: all.iter().any(|one| *one != all[0]),
        };
        Ok((chosen, self.team.with_hardware(hardware)))
    }
}

/// What adds up vectors where they lie, if these devices are several of CUDA in this process.
fn collective(names: &[String], speaks: bool) -> Result<Option<Collective>> {
    let is_cuda =
        |(at, name): (usize, &String)| name.starts_with("cuda:") && !names[..at].contains(name);
    if names.len() < 2 || ranks().is_some() || !names.iter().enumerate().all(is_cuda) {
        return Ok(None);
    }
    if !Collective::is_available() {
        if speaks {
            say!("NCCL is not on this machine; gradients go through the host's memory.");
        }
        return Ok(None);
    }
    let devices = names.iter().map(|name| Ok(device::choose(name)?.device));
    Ok(Some(Collective::new(devices.collect::<Result<_>>()?)))
}

/// The run as this member trains it. Where devices differ, each gets a share by how fast it plays.
pub fn trainer<G: Playable>(
    game: G,
    network: Network,
    config: &TrainConfig,
    chosen: &Chosen,
    data: Option<Demonstrations>,
    team: Team,
) -> Result<Trainer<G>> {
    let make =
        |network, data, team| Trainer::with_team(game, network, config, &chosen.device, data, team);
    if !team.rounds_differently() || data.is_some() {
        return Ok(make(network, data, team)?);
    }
    let mut trial = make(network.clone(), None, team.clone())?;
    // The first time, kernels are compiled.
    trial.rehearse();
    let speed = trial.shards().own_items().len() as f64 / trial.rehearse();
    let speeds = team.all_gather_numbers(&[speed])?.concat();
    let team = team.with_speeds(&speeds);
    Ok(make(network, None, team)?)
}

/// Who can share a run here: processes that MPI has started, or threads.
pub struct Crew<'a> {
    /// A device for each thread, or for each process on a machine.
    devices: Vec<&'a str>,
    timeout: Duration,
}

impl<'a> Crew<'a> {
    /// On the devices of this list, with commas between them.
    pub fn of(devices: &'a str) -> Self {
        Self { devices: devices.split(',').map(str::trim).collect(), timeout: TIMEOUT }
    }

    /// What they are.
    pub fn name(&self) -> &'static str {
        match (ranks(), &self.devices[..]) {
            (Some(_), _) => "processes under MPI",
            (None, [_]) => "threads on the CPU",
            (None, _) => "devices",
        }
    }

    /// How many there can be: the threads of one device are the CPU's.
    pub fn most(&self) -> usize {
        ranks().unwrap_or(match self.devices[..] {
            [_] => rayon::current_num_threads(),
            _ => self.devices.len(),
        })
    }

    /// What `work` gives at the first of `count` members; `None` at the processes that are others. Threads have
    /// the share of the CPU that they would have if they were `most`.
    pub fn run<T: Send>(
        &self,
        count: usize,
        most: usize,
        work: &(impl Fn(Member) -> Result<T> + Sync),
    ) -> Result<Option<T>> {
        #[cfg(feature = "mpi")]
        if let Some((rank, size)) = crate::parallel::mpi::rank().filter(|(_, size)| *size > 1) {
            let team = |size| crate::parallel::mpi::team(size, self.timeout);
            same_program(&team(size))?;
            let (here, _) = crate::parallel::mpi::local_rank();
            let device = self.devices[here % self.devices.len()].to_string();
            let result =
                (rank < count).then(|| work(Member { team: team(count), device })).transpose()?;
            if count < size {
                // Those who are not among them wait as long as it takes.
                crate::parallel::mpi::team(size, Duration::from_secs(86_400)).total(&[0.0])?;
            }
            return Ok(result.filter(|_| rank == 0));
        }
        if most == 1 {
            let device = self.devices[0].to_string();
            return work(Member { team: Team::alone(), device }).map(Some);
        }
        let devices: Vec<&str> = self.devices.iter().copied().cycle().take(count).collect();
        on_threads(&devices, most, self.timeout, work).map(Some)
    }
}

/// How many processes MPI has started, if several.
fn ranks() -> Option<usize> {
    #[cfg(feature = "mpi")]
    return crate::parallel::mpi::rank().map(|(_, size)| size).filter(|size| *size > 1);
    #[cfg(not(feature = "mpi"))]
    None
}

/// Runs `work` for each member of a run that this process is: a thread for each device that is asked for, or
/// one member. Where MPI has started several processes, each is a member, and takes the device of its number
/// among those on its machine. Each waits `timeout` for another where the command line says nothing else.
pub fn run(
    args: &RunArgs,
    timeout: Duration,
    work: impl Fn(Member) -> Result<()> + Sync,
) -> Result<()> {
    let timeout = args.timeout.map_or(timeout, Duration::from_secs);
    let crew = Crew { timeout, ..Crew::of(&args.device) };
    let count = ranks().unwrap_or(crew.devices.len());
    if args.dry_run && count > 1 {
        // The others leave it to the first to say so.
        return if is_first() { Err(anyhow!(ONE_TRIES)) } else { Ok(()) };
    }
    crew.run(count, count, &work).map(drop)
}

/// A thread for each device, with its share of the CPU's threads where there are `most` of them; gives what the
/// first one's work does.
fn on_threads<T: Send>(
    devices: &[&str],
    most: usize,
    timeout: Duration,
    work: &(impl Fn(Member) -> Result<T> + Sync),
) -> Result<T> {
    let each = (rayon::current_num_threads() / most).max(1);
    let results: Vec<Result<T>> = std::thread::scope(|scope| {
        let member = |(team, device): (Team, &&str)| {
            let member = Member { team, device: device.to_string() };
            scope.spawn(move || {
                let named = format!("on {}", member.device);
                let pool = rayon::ThreadPoolBuilder::new().num_threads(each).build();
                pool.context("the threads do not start")?.install(|| work(member)).context(named)
            })
        };
        let members: Vec<_> =
            threads(devices.len(), timeout).into_iter().zip(devices).map(member).collect();
        members.into_iter().map(|member| member.join().unwrap_or_else(panicked)).collect()
    });
    let (mut done, mut of_others, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(result) => done.push(result),
            // Whoever lost another says less than the one who was lost.
            Err(error) if is_about_others(&error) => of_others.push(error),
            Err(error) => own.push(error),
        }
    }
    match own.into_iter().chain(of_others).next() {
        Some(error) => Err(error),
        None => Ok(done.swap_remove(0)),
    }
}

fn panicked<T>(panic: Box<dyn std::any::Any + Send>) -> Result<T> {
    std::panic::resume_unwind(panic)
}

/// Whether an error tells of another member, or is the same at all of them.
fn is_about_others(error: &Error) -> bool {
    let team = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<TeamError>()
            || matches!(cause.downcast_ref(), Some(TrainError::Team(_)))
            || matches!(cause.downcast_ref(), Some(LanguageTrainError::Team(_)))
    };
    error.chain().any(team)
}

/// Finds the processes that MPI has started with this one, if it has. Only the first of them speaks, and a
/// panic in one of them ends all.
///
/// # Errors
/// If MPI does not start, or this build has none and is one of several.
pub fn start() -> Result<()> {
    #[cfg(feature = "mpi")]
    if crate::parallel::mpi::is_launched() {
        crate::parallel::mpi::start().map_err(Error::msg)?;
        if !is_first() {
            super::say::be_silent();
        }
        std::panic::set_hook(Box::new(|panic| fail(&Error::msg(panic.to_string()))));
    }
    #[cfg(not(feature = "mpi"))]
    for name in SIZES {
        let size = std::env::var(name).ok().and_then(|size| size.parse::<usize>().ok());
        if let Some(size) = size.filter(|size| *size > 1) {
            anyhow::bail!(
                "MPI has started {size} processes, but this program was built without the feature `mpi`, and \
                 each would do all of the work: build it with `--features mpi`, or start one"
            );
        }
    }
    Ok(())
}

/// Where launchers of MPI tell a process how many it is of.
#[cfg(not(feature = "mpi"))]
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"];

/// Whether this process is the one that speaks and writes.
pub fn is_first() -> bool {
    #[cfg(feature = "mpi")]
    return crate::parallel::mpi::rank().is_none_or(|(rank, _)| rank == 0);
    #[cfg(not(feature = "mpi"))]
    true
}

/// Checks that all processes run the same program.
#[cfg(feature = "mpi")]
fn same_program(team: &Team) -> Result<()> {
    team.agree("version of Grove", env!("CARGO_PKG_VERSION"))?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    Ok(team.agree("build of the program", &sha256(&program)?)?)
}

/// Checks that all processes learn from the same files; threads of one process do in any case.
pub fn same_data(team: &Team, files: &[&Path]) -> Result<()> {
    if ranks().is_none() {
        return Ok(());
    }
    let line = |file: &&Path| -> Result<String> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{name} with the SHA-256 {}", sha256(file)?))
    };
    let lines: Vec<String> = files.iter().map(line).collect::<Result<_>>()?;
    Ok(team.agree("dataset", &lines.join("\n"))?)
}

/// The first half of a file's SHA-256, in hexadecimal digits.
fn sha256(file: &Path) -> Result<String> {
    let context = || format!("cannot read {}", file.display());
    let mut bytes = BufReader::with_capacity(1 << 20, File::open(file).with_context(context)?);
    let mut hash = Sha256::new();
    loop {
        let part = bytes.fill_buf().with_context(context)?;
        if part.is_empty() {
            break;
        }
        hash.update(part);
        let read = part.len();
        bytes.consume(read);
    }
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Threads of the CPU for this process where none are asked for: its share of the machine, if it does not have
/// cores of its own.
pub fn default_threads() -> Option<usize> {
    #[cfg(feature = "mpi")]
    {
        let (_, here) = crate::parallel::mpi::local_rank();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: a question without arguments that matter.
        let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        (here > 1).then(|| if (cores as i64) < all { cores } else { (cores / here).max(1) })
    }
    #[cfg(not(feature = "mpi"))]
    None
}

/// Says what went wrong, and ends the other processes of the run too, where there are any: they would wait in
/// vain.
pub fn fail(error: &Error) {
    #[cfg(feature = "mpi")]
    if let Some((rank, size)) = crate::parallel::mpi::rank().filter(|(_, size)| *size > 1) {
        // What all know, or several notice, is said by the first who can.
        let is_known =
            is_about_others(error) || error.chain().any(|cause| cause.is::<TrainError>());
        if is_known && rank > 0 {
            // Long enough to be ended by another.
            std::thread::sleep(Duration::from_secs((3 * rank as u64).min(10)));
        }
        super::say::speak();
        match rank {
            0 => say!("error: {error:#}"),
            _ => say!("error at rank {rank} of {size}: {error:#}"),
        }
        crate::parallel::mpi::abort(1);
        return;
    }
    say!("error: {error:#}");
}
