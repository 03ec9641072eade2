//! `grove bench --scaling`: how a run grows with its members, beside what latency and bandwidth alone would allow.
//!
//! One member, then two, four, ... of the devices that are listed, of the processes that MPI has started, or of
//! threads on the CPU's cores. *Strong*: the same games shared among more members; *weak*: as many games for each.
//! The model is that of latency and bandwidth (Hockney 1994): computing takes what one member needs for its share,
//! and a reduction of `b` bytes takes `latency + b / bandwidth`, both from two measured reductions, a small and a
//! large one, of all members.

use super::report::Figure;
use crate::config::TrainConfig;
use crate::parallel::Team;
use crate::program::members::{self, Crew, Member};
use crate::program::say::{tell, tell_json};
use crate::program::{BenchArgs, Models, Playable};
use crate::trainer::Trainer;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::Instant;

/// Numbers in the reductions that the model is fitted to.
const LENGTHS: [usize; 2] = [1 << 10, 1 << 20];
/// Reductions of each length.
const REDUCTIONS: usize = 20;
/// Iterations before those that are measured.
const WARM_UP: usize = 3;

/// What was measured.
#[derive(Serialize)]
struct Scaling {
    env: &'static str,
    members: &'static str,
    num_envs: usize,
    reductions_per_iteration: usize,
    bytes_per_reduction: usize,
    /// Of the model; `None` where there is but one member.
    latency_seconds: Option<f64>,
    bandwidth_bytes_per_second: Option<f64>,
    strong: Vec<Row>,
    weak: Vec<Row>,
}

/// A number of members.
#[derive(Clone, Copy, Serialize)]
struct Row {
    members: usize,
    steps_per_second: f64,
    /// Seconds of an iteration, and of them those in which the first member told the others something.
    seconds: f64,
    reduction_seconds: f64,
    /// The speed as a share of that of one member, times their number.
    efficiency: f64,
    /// The same by the model.
    model_efficiency: f64,
}

/// Measures all numbers of members that there can be.
pub fn bench<G: Playable>(
    models: &Models,
    args: &BenchArgs,
    game: G,
    config: &TrainConfig,
) -> Result<()> {
    let crew = Crew::of(&args.device);
    let most = crew.most();
    let counts: Vec<usize> =
        (0..).map(|i| 1 << i).take_while(|count| *count < most).chain([most]).collect();
    let link = crew.run(most, most, &|member| fit(member.team()))?;
    let measure = |count: usize, groups: usize| {
        let mut config = config.clone();
        config.rollout.num_groups = groups;
        let work = |member: Member| iterations(models, game, &config, member, args.repeats);
        crew.run(count, most, &work)
    };
    let groups = config.rollout.num_groups;
    let (mut strong, mut weak) = (Vec::new(), Vec::new());
    for count in &counts {
        strong.push((*count, measure(*count, groups)?));
        weak.push((
            *count,
            if *count == 1 { strong[0].1 } else { measure(*count, groups * count)? },
        ));
    }
    let Some(link) = link else { return Ok(()) };
    let params = config.policy.parameters(game.num_features(), game.num_actions());
    let params: usize = params.iter().map(|one| one.shape.iter().product::<usize>()).sum();
    let reductions = config.update.update_epochs * config.update.num_minibatches;
    let steps = (config.rollout.num_envs() * config.rollout.num_steps) as f64;
    let rows = |measured: &[(usize, Option<[f64; 2]>)], is_weak: bool| -> Option<Vec<Row>> {
        let alone = measured.first()?.1?[0];
        let row = |(members, measured): &(usize, Option<[f64; 2]>)| {
            let [seconds, reduction_seconds] = (*measured)?;
            let games = if is_weak { *members as f64 } else { 1.0 };
            let told = link.map_or(0.0, |link| link.seconds(4 * params, *members));
            let model = alone * games / *members as f64 + reductions as f64 * told;
            let efficiency = |seconds: f64| alone * games / seconds / *members as f64;
            Some(Row {
                members: *members,
                steps_per_second: steps * games / seconds,
                seconds,
                reduction_seconds,
                efficiency: efficiency(seconds),
                model_efficiency: efficiency(model),
            })
        };
        measured.iter().map(row).collect()
    };
    let (Some(strong), Some(weak)) = (rows(&strong, false), rows(&weak, true)) else {
        return Ok(());
    };
    let report = Scaling {
        env: G::NAME,
        members: crew.name(),
        num_envs: config.rollout.num_envs(),
        reductions_per_iteration: reductions,
        bytes_per_reduction: 4 * params,
        latency_seconds: link.map(|link| link.latency),
        bandwidth_bytes_per_second: link.map(|link| link.bandwidth),
        strong,
        weak,
    };
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json { tell_json(&report) } else { tell(report.to_string().trim_end()) }
}

/// The median seconds of an iteration, and of those spent with other members in it.
fn iterations<G: Playable>(
    models: &Models,
    game: G,
    config: &TrainConfig,
    member: Member,
    repeats: usize,
) -> Result<[f64; 2]> {
    let (chosen, team) = member.choose()?;
    let network = models.network(game, config, &chosen.device);
    let mut trainer: Trainer<G> = members::trainer(game, network, config, &chosen, None, team)?;
    let (mut seconds, mut told) = (Vec::new(), Vec::new());
    for i in 0..WARM_UP + repeats {
        let started = Instant::now();
        let record = trainer.iterate()?;
        if i >= WARM_UP {
            seconds.push(started.elapsed().as_secs_f64());
            told.push(record.reduction.map_or(0.0, |reduction| reduction.seconds));
        }
    }
    // The next rollout is under way already; a driver may not like the process to end meanwhile.
    let _ = chosen.device.sync();
    Ok([Figure::of(seconds).median, Figure::of(told).median])
}

/// What a reduction costs.
#[derive(Clone, Copy)]
struct Link {
    latency: f64,
    /// Bytes a second.
    bandwidth: f64,
}

impl Link {
    /// Seconds of a reduction of so many bytes, of which each member sends `2 (n - 1) / n`.
    fn seconds(&self, bytes: usize, members: usize) -> f64 {
        match members {
            1 => 0.0,
            _ => self.latency + sent(bytes, members) / self.bandwidth,
        }
    }
}

/// Bytes that a member sends to reduce so many.
fn sent(bytes: usize, members: usize) -> f64 {
    bytes as f64 * 2.0 * (members - 1) as f64 / members as f64
}

/// The model, fitted to two reductions; `None` for one member.
fn fit(team: &Team) -> Result<Option<Link>> {
    let size = team.size();
    if size == 1 {
        return Ok(None);
    }
    let [few, many] = LENGTHS.map(|len| -> Result<f64> {
        let mut seconds = Vec::new();
        for _ in 0..REDUCTIONS {
            let vector = vec![1.0; len];
            // All begin at once.
            team.total(&[0.0])?;
            let started = Instant::now();
            team.sum_ranks(vector, Vec::new())?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(Figure::of(seconds).median)
    });
    let (few, many) = (few?, many?);
    let [less, more] = LENGTHS.map(|len| sent(4 * len, size));
    let bandwidth = (more - less) / (many - few).max(f64::MIN_POSITIVE);
    Ok(Some(Link { latency: (few - less / bandwidth).max(0.0), bandwidth }))
}

impl Display for Scaling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { env, members, num_envs, reductions_per_iteration, bytes_per_reduction, .. } =
            self;
        writeln!(f, "{env}, {num_envs} games, members: {members}")?;
        write!(
            f,
            "{reductions_per_iteration} reductions of {bytes_per_reduction} bytes an iteration"
        )?;
        if let (Some(latency), Some(bandwidth)) =
            (self.latency_seconds, self.bandwidth_bytes_per_second)
        {
            let (latency, bandwidth) = (latency * 1e6, bandwidth / 1e9);
            write!(
                f,
                "; one takes {latency:.0} us and the time of its bytes at {bandwidth:.2} GB/s"
            )?;
        }
        for (name, rows) in [
            ("strong: the same games shared", &self.strong),
            ("weak: as many games for each", &self.weak),
        ] {
            write!(
                f,
                "\n\n{name}\nmembers     steps/s  efficiency  by the model  telling each other"
            )?;
            for row in rows {
                write!(
                    f,
                    "\n{:7}  {:10.3e}  {:8.1} %  {:10.1} %  {:15.1} %",
                    row.members,
                    row.steps_per_second,
                    100.0 * row.efficiency,
                    100.0 * row.model_efficiency,
                    100.0 * row.reduction_seconds / row.seconds
                )?;
            }
        }
        writeln!(f)
    }
}
