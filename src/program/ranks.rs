//! Ranks of a run: this process alone, its threads with a device each, or MPI processes.

use super::args::RunArgs;
use super::games::ConfigurableGame;
use super::output::{eprint_line, set_muted};
use super::text::device::device_name;
use crate::device::{self, ChosenDevice};
use crate::disk::input;
use crate::model::Network;
use crate::parallel::{DEFAULT_TIMEOUT, Hardware, NcclGroup, Team, TeamError, mpi, thread_teams};
use crate::run::{Panic, RunError};
use crate::settings::TrainConfig;
use crate::text::Bf16Instructions;
use crate::trainer::text::LanguageTrainError;
use crate::trainer::{Demonstrations, GameTrainer, TrainError, Trainer};
use anyhow::{Context, Error, Result, anyhow, bail};
use std::any::Any;
use std::path::Path;
use std::time::Duration;

/// Error for `--dry-run` with more than one rank.
const DRY_RUN_ERROR: &str = "--dry-run is for one rank: name one device, and start one process";

/// Advice where the system starts no more threads or processes.
pub const PROCESS_LIMIT_ADVICE: &str =
    "lower --threads, or raise the limit on processes (ulimit -u, or that of the container)";

/// A rank of a run in this process.
pub struct Rank {
    pub team: Team,
    /// Name of its device.
    device: String,
}

impl Rank {
    /// The same rank for a language model, for which [`auto`](device_name) is the CPU.
    pub fn for_language_model(self) -> Self {
        Self { device: device_name(&self.device).to_string(), ..self }
    }

    /// Starts its device. Returns it with the team, which then knows the hardware of all ranks.
    pub fn start_device(self) -> Result<(ChosenDevice, Team)> {
        let chosen = device::start(&self.device)?;
        self.with_hardware_of(chosen)
    }

    /// Starts its device like [`Rank::start_device`]. If `auto` finds a GPU that may be slower than the CPU, the run
    /// is rehearsed on both: `rehearse` returns the seconds that a part of it takes, `None` if the run is
    /// impossible there.
    pub fn start_faster_device(
        self,
        rehearse: impl FnMut(&ChosenDevice) -> Result<Option<f64>>,
    ) -> Result<(ChosenDevice, Team)> {
        let mut chosen = device::start(&self.device)?;
        if self.device == "auto" && self.team.size() == 1 {
            chosen = device::choose_faster(chosen, rehearse)?;
        }
        self.with_hardware_of(chosen)
    }

    fn with_hardware_of(self, chosen: ChosenDevice) -> Result<(ChosenDevice, Team)> {
        let has_kernels = device::has_kernels(&chosen.device);
        let gather = |text: &str| -> Result<Vec<String>, TeamError> {
            let texts = self.team.all_gather(text.as_bytes())?;
            Ok(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
        };
        let matrix_kernel = Bf16Instructions::best().name();
        let numerics =
            gather(&format!("{} {matrix_kernel}", device::numerics_fingerprint(&chosen.info)))?;
        let names = gather(&chosen.info.name)?;
        let hardware = Hardware {
            nccl: create_nccl_group(&names, self.team.is_root())?,
            device_names: names,
            has_devices: self.team.any(has_kernels)?,
            has_cpus: self.team.any(!has_kernels)?,
            rounds_differently: numerics.iter().any(|other| *other != numerics[0]),
        };
        Ok((chosen, self.team.with_hardware(hardware)))
    }
}

/// Creates the NCCL group that sums vectors on the devices, if several CUDA devices belong to this process.
fn create_nccl_group(names: &[String], is_root: bool) -> Result<Option<NcclGroup>> {
    let is_cuda =
        |(at, name): (usize, &String)| name.starts_with("cuda:") && !names[..at].contains(name);
    if names.len() < 2 || num_processes().is_some() || !names.iter().enumerate().all(is_cuda) {
        return Ok(None);
    }
    if !NcclGroup::is_available() {
        if is_root {
            eprint_line!("NCCL was not found; gradients go through the host's memory.");
        }
        return Ok(None);
    }
    let devices = names.iter().map(|name| Ok(device::start(name)?.device));
    Ok(Some(NcclGroup::new(devices.collect::<Result<_>>()?)))
}

/// Creates this rank's trainer. If devices differ, each gets a share in proportion to its measured speed.
pub fn create_trainer<G: ConfigurableGame>(
    game: G,
    network: Network,
    config: &TrainConfig,
    chosen: &ChosenDevice,
    data: Option<Demonstrations>,
    team: Team,
) -> Result<GameTrainer<G>> {
    let create =
        |network, data, team| Trainer::with_team(game, network, config, &chosen.device, data, team);
    if !team.rounds_differently() || data.is_some() {
        return Ok(create(network, data, team)?);
    }
    let mut trial = create(network.clone(), None, team.clone())?;
    // The first rehearsal compiles kernels.
    trial.rehearse();
    let speed = trial.shards().own_items().len() as f64 / trial.rehearse();
    let speeds = team.all_gather_numbers(&[speed])?.concat();
    let team = team.with_speeds(&speeds);
    Ok(create(network, None, team)?)
}

/// Ranks that can share a run here: MPI processes or threads.
pub struct Ranks<'a> {
    /// A device per thread, or per process on a machine.
    devices: Vec<&'a str>,
    timeout: Duration,
}

impl<'a> Ranks<'a> {
    /// Creates the ranks on a comma-separated list of devices.
    pub fn on_devices(devices: &'a str) -> Self {
        Self { devices: devices.split(',').map(str::trim).collect(), timeout: DEFAULT_TIMEOUT }
    }

    /// Kind of the ranks, for reports.
    pub fn kind(&self) -> &'static str {
        match (num_processes(), &self.devices[..]) {
            (Some(_), _) => "processes under MPI",
            (None, [_]) => "threads on the CPU",
            (None, _) => "devices",
        }
    }

    /// Maximum number of ranks; those of a single device are threads of the CPU.
    pub fn max_ranks(&self) -> usize {
        num_processes().unwrap_or(match self.devices[..] {
            [_] => rayon::current_num_threads(),
            _ => self.devices.len(),
        })
    }

    /// Runs `work` on each of `num_ranks` ranks. Returns the first one's result; `None` in the other processes. Each
    /// thread gets the share of the CPU that it would have among `max_ranks` threads.
    pub fn run<T: Send>(
        &self,
        num_ranks: usize,
        max_ranks: usize,
        work: &(impl Fn(Rank) -> Result<T> + Sync),
    ) -> Result<Option<T>> {
        if self.devices.contains(&"") {
            let devices = self.devices.join(",");
            bail!(
                "the list of devices `{devices}` has an empty name: put one comma between two names"
            );
        }
        if let Some((rank, size)) = mpi_rank() {
            let team = |size| mpi::team(size, self.timeout);
            check_same_program(&team(size))?;
            let (local_rank, _) = mpi::local_rank_and_size();
            let device = self.devices[local_rank % self.devices.len()].to_string();
            let result = (rank < num_ranks)
                .then(|| work(Rank { team: team(num_ranks), device }))
                .transpose()?;
            if num_ranks < size {
                // Processes beyond `num_ranks` wait as long as necessary.
                mpi::team(size, Duration::from_secs(86_400)).all_reduce_counts(&[0.0])?;
            }
            return Ok(result.filter(|_| rank == 0));
        }
        if max_ranks == 1 {
            let device = self.devices[0].to_string();
            return work(Rank { team: Team::alone(), device }).map(Some);
        }
        let devices: Vec<&str> = self.devices.iter().copied().cycle().take(num_ranks).collect();
        run_on_threads(&devices, max_ranks, self.timeout, work).map(Some)
    }
}

/// Rank of this process and number of processes, if MPI has started several.
fn mpi_rank() -> Option<(usize, usize)> {
    mpi::rank_and_size().filter(|(_, size)| *size > 1)
}

/// Number of processes that MPI has started, if several.
fn num_processes() -> Option<usize> {
    mpi_rank().map(|(_, size)| size)
}

/// Runs `work` for each rank of a run in this process: a thread per requested device, or one rank. If MPI has started
/// several processes, each is a rank and uses the device of its index among those on its machine. A rank waits at most
/// `timeout` for another, unless the command line says otherwise.
pub fn run(
    args: &RunArgs,
    timeout: Duration,
    work: impl Fn(Rank) -> Result<()> + Sync,
) -> Result<()> {
    let timeout = args.timeout.map_or(timeout, Duration::from_secs);
    let ranks = Ranks { timeout, ..Ranks::on_devices(&args.device) };
    let num_ranks = num_processes().unwrap_or(ranks.devices.len());
    if args.dry_run && num_ranks > 1 {
        // Only the first rank reports it.
        return if is_root_process() { Err(anyhow!(DRY_RUN_ERROR)) } else { Ok(()) };
    }
    ranks.run(num_ranks, num_ranks, &work).map(drop)
}

/// Runs `work` on a thread per device, each with the share of the CPU's threads that it would have among `max_ranks`.
/// Returns the first one's result.
fn run_on_threads<T: Send>(
    devices: &[&str],
    max_ranks: usize,
    timeout: Duration,
    work: &(impl Fn(Rank) -> Result<T> + Sync),
) -> Result<T> {
    let threads_per_rank = (rayon::current_num_threads() / max_ranks).max(1);
    device::forbid_graph_recording();
    let mut results: Vec<Result<T>> = std::thread::scope(|scope| {
        let start = |(team, device): (Team, &&str)| {
            let rank = Rank { team, device: device.to_string() };
            scope.spawn(move || {
                let context = format!("on {}", rank.device);
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads_per_rank).build();
                pool.context("the threads do not start")?.install(|| work(rank)).context(context)
            })
        };
        let ranks: Vec<_> =
            thread_teams(devices.len(), timeout).into_iter().zip(devices).map(start).collect();
        let panicked = |payload: Box<dyn Any + Send>| Err(Panic::new(&*payload).into());
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect()
    });
    // An error about another rank is less specific than that rank's own.
    let is_own_error =
        |result: &Result<T>| result.as_ref().is_err_and(|error| !is_about_others(error));
    let failed =
        results.iter().position(is_own_error).or_else(|| results.iter().position(Result::is_err));
    results.swap_remove(failed.unwrap_or(0))
}

/// Whether an error is about another rank, or the same on all of them.
fn is_about_others(error: &Error) -> bool {
    let is_about_team = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<TeamError>()
            || matches!(cause.downcast_ref(), Some(TrainError::Team(_)))
            || cause.downcast_ref().is_some_and(LanguageTrainError::is_about_another_rank)
            || cause.downcast_ref().is_some_and(RunError::is_about_another_rank)
    };
    error.chain().any(is_about_team)
}

/// Connects to the other processes that MPI has started, if any. Only the first of them prints.
pub fn connect() -> Result<()> {
    if mpi::is_launched() {
        mpi::start().map_err(Error::msg)?;
        set_muted(!is_root_process());
    }
    Ok(())
}

/// Whether this process is the one that prints and writes.
pub fn is_root_process() -> bool {
    mpi::rank_and_size().is_none_or(|(rank, _)| rank == 0)
}

/// Whether all ranks of a run are threads of this process, as without MPI.
pub fn are_threads() -> bool {
    num_processes().is_none()
}

/// Checks that all processes run the same program.
fn check_same_program(team: &Team) -> Result<()> {
    team.check_identical("version of Grove", env!("CARGO_PKG_VERSION"))?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    Ok(team.check_identical("build of the program", &short_digest(&program)?)?)
}

/// Checks that all processes learn from the same files; threads of one process always do.
pub fn check_same_data(team: &Team, files: &[impl AsRef<Path>]) -> Result<()> {
    if are_threads() {
        return Ok(());
    }
    let line = |file: &Path| -> Result<String> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{name} with the SHA-256 {}", short_digest(file)?))
    };
    let lines: Vec<String> = files.iter().map(|file| line(file.as_ref())).collect::<Result<_>>()?;
    Ok(team.check_identical("dataset", &lines.join("\n"))?)
}

/// First half of a file's SHA-256, hexadecimal.
fn short_digest(file: &Path) -> Result<String> {
    let digest =
        input::sha256(file, u64::MAX).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(digest[..32].to_string())
}

/// Starts the global thread pool with this many threads; by default, a process under MPI takes its share.
pub fn start_thread_pool(threads: Option<u32>) -> Result<()> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads.map(|threads| threads as usize).or_else(mpi::default_threads) {
        pool = pool.num_threads(threads);
    }
    // The error's own source would repeat its text.
    pool.build_global()
        .map_err(|error| anyhow!("cannot start the thread pool: {error}; {PROCESS_LIMIT_ADVICE}"))
}

/// Prints an error, and ends the other processes of the run, which would wait in vain.
pub fn report_failure(error: &Error) {
    let Some((rank, size)) = mpi_rank() else {
        eprint_line!("error: {error:#}");
        return;
    };
    // An error of several ranks is printed by the first one that can.
    let is_common = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<TrainError>() || matches!(cause.downcast_ref(), Some(RunError::Train(_)))
    };
    if rank > 0 && (is_about_others(error) || error.chain().any(is_common)) {
        // Long enough for another process to end this one.
        std::thread::sleep(Duration::from_secs((3 * rank as u64).min(10)));
    }
    set_muted(false);
    match rank {
        0 => eprint_line!("error: {error:#}"),
        _ => eprint_line!("error at rank {rank} of {size}: {error:#}"),
    }
    mpi::abort(1);
}
