//! `grove bench --scaling`: measures strong and weak scaling over ranks, and compares it with a model.
//!
//! Runs with 1, 2, 4, ... ranks are measured: the listed devices, MPI processes, or threads of the CPU. *Strong*
//! scaling distributes the same games over more ranks; *weak* scaling keeps the games per rank. The model is
//! Hockney's (1994): computation is divided evenly, and a reduction of `b` bytes takes `latency + b / bandwidth`,
//! with both parameters fitted to a small and a large reduction over all ranks.

use super::args::BenchArgs;
use super::publish;
use super::report::Measurement;
use crate::parallel::Team;
use crate::program::games::ConfigurableGame;
use crate::program::models::Models;
use crate::program::ranks::{self, Rank, Ranks};
use crate::settings::TrainConfig;
use crate::trainer::GameTrainer;
use anyhow::Result;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::time::Instant;

/// Lengths of the two reductions to which the model is fitted, in `f32`s.
const REDUCTION_LENGTHS: [usize; 2] = [1 << 10, 1 << 20];
/// Number of reductions measured per length.
const NUM_REDUCTIONS: usize = 20;
/// Warm-up iterations.
const WARM_UP_ITERATIONS: usize = 3;

/// All results of a benchmark.
#[derive(Serialize)]
struct Scaling {
    env: &'static str,
    #[serde(rename = "ranks")]
    rank_kind: &'static str,
    num_envs: usize,
    reductions_per_iteration: usize,
    bytes_per_reduction: usize,
    /// Parameter of the model; `None` for a single rank.
    latency_seconds: Option<f64>,
    /// Parameter of the model; `None` for a single rank.
    bandwidth_bytes_per_second: Option<f64>,
    strong: Vec<Row>,
    weak: Vec<Row>,
}

/// The results for one number of ranks.
#[derive(Clone, Copy, Serialize)]
struct Row {
    #[serde(rename = "ranks")]
    num_ranks: usize,
    steps_per_second: f64,
    /// Seconds of an iteration.
    seconds: f64,
    /// Seconds of an iteration that rank 0 spent in communication.
    communication_seconds: f64,
    /// Speed relative to that of one rank times the number of ranks.
    efficiency: f64,
    /// Efficiency predicted by the model.
    model_efficiency: f64,
}

/// Measures and prints the scaling of a run.
pub fn bench<G: ConfigurableGame>(
    models: &Models,
    args: &BenchArgs,
    game: G,
    config: &TrainConfig,
) -> Result<()> {
    let ranks = Ranks::on_devices(&args.device);
    let max_ranks = ranks.max_ranks();
    let reduction_cost = ranks.run(max_ranks, max_ranks, &|rank| fit_reduction_cost(&rank.team))?;
    let measure = |num_ranks: usize, num_groups: usize| {
        let mut config = config.clone();
        config.rollout.num_groups = num_groups;
        let train = |rank: Rank| measure_iterations(models, game, &config, rank, args.repeats);
        ranks.run(num_ranks, max_ranks, &train)
    };
    let work = IterationWork::new(game, config);
    let num_groups = config.rollout.num_groups;
    let (mut strong, mut weak) = (Vec::new(), Vec::new());
    for num_ranks in rank_counts(max_ranks) {
        let strong_time = measure(num_ranks, num_groups)?;
        let weak_time =
            if num_ranks == 1 { strong_time } else { measure(num_ranks, num_groups * num_ranks)? };
        let (Some(reduction_cost), Some(strong_time), Some(weak_time)) =
            (reduction_cost, strong_time, weak_time)
        else {
            continue;
        };
        let seconds_alone = strong.first().map_or(strong_time.seconds, |row: &Row| row.seconds);
        let model = ScalingModel { work, seconds_alone, reduction_cost };
        strong.push(model.row(num_ranks, 1.0, strong_time));
        weak.push(model.row(num_ranks, num_ranks as f64, weak_time));
    }
    // The first process alone reports.
    let Some(reduction_cost) = reduction_cost else { return Ok(()) };
    let report = Scaling {
        env: G::NAME,
        rank_kind: ranks.kind(),
        num_envs: config.rollout.num_envs(),
        reductions_per_iteration: work.reductions,
        bytes_per_reduction: work.reduction_bytes,
        latency_seconds: reduction_cost.map(|cost| cost.latency),
        bandwidth_bytes_per_second: reduction_cost.map(|cost| cost.bandwidth),
        strong,
        weak,
    };
    publish(args, &report)
}

/// Numbers of ranks to measure: powers of two below the maximum, and the maximum.
fn rank_counts(max: usize) -> impl Iterator<Item = usize> {
    (0..).map(|i| 1 << i).take_while(move |count| *count < max).chain([max])
}

#[derive(Clone, Copy)]
struct IterationWork {
    steps: f64,
    reductions: usize,
    /// Bytes of each reduction.
    reduction_bytes: usize,
}

impl IterationWork {
    fn new<G: ConfigurableGame>(game: G, config: &TrainConfig) -> Self {
        let params = config.policy.parameters(game.num_features(), game.num_actions());
        let params: usize =
            params.iter().map(|parameter| parameter.shape.iter().product::<usize>()).sum();
        Self {
            steps: (config.rollout.num_envs() * config.rollout.num_steps) as f64,
            reductions: config.update.update_epochs * config.update.num_minibatches,
            reduction_bytes: 4 * params,
        }
    }
}

/// The model of a run.
#[derive(Clone, Copy)]
struct ScalingModel {
    work: IterationWork,
    /// Seconds of an iteration on one rank.
    seconds_alone: f64,
    /// `None` for a single rank.
    reduction_cost: Option<ReductionCost>,
}

impl ScalingModel {
    /// Computes the results for a number of ranks that play `scale` times the games of one rank.
    fn row(&self, num_ranks: usize, scale: f64, time: IterationTime) -> Row {
        let Self { work, seconds_alone, reduction_cost } = *self;
        let IterationTime { seconds, communication_seconds } = time;
        let reduction_seconds = reduction_cost
            .map_or(0.0, |cost| cost.predict_seconds(work.reduction_bytes, num_ranks));
        let predicted_seconds =
            seconds_alone * scale / num_ranks as f64 + work.reductions as f64 * reduction_seconds;
        let efficiency = |seconds: f64| seconds_alone * scale / seconds / num_ranks as f64;
        Row {
            num_ranks,
            steps_per_second: work.steps * scale / seconds,
            seconds,
            communication_seconds,
            efficiency: efficiency(seconds),
            model_efficiency: efficiency(predicted_seconds),
        }
    }
}

/// Median duration of an iteration.
#[derive(Clone, Copy)]
struct IterationTime {
    seconds: f64,
    /// Seconds spent in communication.
    communication_seconds: f64,
}

/// Measures the duration of iterations.
fn measure_iterations<G: ConfigurableGame>(
    models: &Models,
    game: G,
    config: &TrainConfig,
    rank: Rank,
    repeats: usize,
) -> Result<IterationTime> {
    let (chosen, team) = rank.start_device()?;
    let network = models.new_network(game, config, &chosen.device);
    let mut trainer: GameTrainer<G> =
        ranks::create_trainer(game, network, config, &chosen, None, team)?;
    let (mut seconds, mut communication) = (Vec::new(), Vec::new());
    for i in 0..WARM_UP_ITERATIONS + repeats {
        let started = Instant::now();
        let record = trainer.iterate()?;
        if i >= WARM_UP_ITERATIONS {
            seconds.push(started.elapsed().as_secs_f64());
            communication.push(record.communication.map_or(0.0, |cost| cost.seconds));
        }
    }
    // Wait for the next rollout, which is already running: some drivers fail if the process ends meanwhile.
    let _ = chosen.device.sync();
    Ok(IterationTime {
        seconds: Measurement::from_values(seconds).median,
        communication_seconds: Measurement::from_values(communication).median,
    })
}

/// The cost model of a reduction.
#[derive(Clone, Copy)]
struct ReductionCost {
    /// Seconds.
    latency: f64,
    /// Bytes per second.
    bandwidth: f64,
}

impl ReductionCost {
    /// Predicts the seconds of a reduction of `bytes` bytes over `num_ranks` ranks.
    fn predict_seconds(&self, bytes: usize, num_ranks: usize) -> f64 {
        match num_ranks {
            1 => 0.0,
            _ => self.latency + bytes_sent(bytes, num_ranks) / self.bandwidth,
        }
    }
}

/// Bytes that each of `num_ranks` ranks sends in a reduction: `2 (num_ranks - 1) / num_ranks` times the size.
fn bytes_sent(bytes: usize, num_ranks: usize) -> f64 {
    bytes as f64 * 2.0 * (num_ranks - 1) as f64 / num_ranks as f64
}

/// Fits the model to two reductions; `None` for a single rank.
fn fit_reduction_cost(team: &Team) -> Result<Option<ReductionCost>> {
    let num_ranks = team.size();
    if num_ranks == 1 {
        return Ok(None);
    }
    let [small_seconds, large_seconds] = REDUCTION_LENGTHS.map(|len| -> Result<f64> {
        let mut seconds = Vec::new();
        for _ in 0..NUM_REDUCTIONS {
            let vector = vec![1.0; len];
            // Synchronizes the ranks.
            team.all_reduce_counts(&[0.0])?;
            let started = Instant::now();
            team.all_reduce_ranks(vector, Vec::new())?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(Measurement::from_values(seconds).median)
    });
    let (small_seconds, large_seconds) = (small_seconds?, large_seconds?);
    let [small_bytes, large_bytes] = REDUCTION_LENGTHS.map(|len| bytes_sent(4 * len, num_ranks));
    let bandwidth =
        (large_bytes - small_bytes) / (large_seconds - small_seconds).max(f64::MIN_POSITIVE);
    Ok(Some(ReductionCost {
        latency: (small_seconds - small_bytes / bandwidth).max(0.0),
        bandwidth,
    }))
}

impl Display for Scaling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { env, num_envs, reductions_per_iteration, bytes_per_reduction, .. } = self;
        writeln!(f, "{env}, {num_envs} games, ranks: {}", self.rank_kind)?;
        write!(
            f,
            "{reductions_per_iteration} reductions of {bytes_per_reduction} bytes per iteration"
        )?;
        if let (Some(latency), Some(bandwidth)) =
            (self.latency_seconds, self.bandwidth_bytes_per_second)
        {
            let (latency, bandwidth) = (latency * 1e6, bandwidth / 1e9);
            write!(f, ", each {latency:.0} us plus its bytes at {bandwidth:.2} GB/s")?;
        }
        for (name, rows) in [
            ("strong scaling: the same games in total", &self.strong),
            ("weak scaling: the same games per rank", &self.weak),
        ] {
            write!(f, "\n\n{name}\nranks     steps/s  efficiency  predicted  communication")?;
            for row in rows {
                write!(
                    f,
                    "\n{:5}  {:10.3e}  {:8.1} %  {:7.1} %  {:11.1} %",
                    row.num_ranks,
                    row.steps_per_second,
                    100.0 * row.efficiency,
                    100.0 * row.model_efficiency,
                    100.0 * row.communication_seconds / row.seconds
                )?;
            }
        }
        writeln!(f)
    }
}
