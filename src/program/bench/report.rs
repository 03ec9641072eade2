//! The results of a benchmark, as JSON and as a table.

use super::peak::DevicePeak;
use super::work::StepWork;
use crate::device::DeviceInfo;
use crate::run::pluralize;
use anyhow::Result;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// Warm-up repeats of each measurement.
const WARM_UP_REPEATS: usize = 2;
/// Minimum duration of a measurement, seconds; shorter work is repeated within it.
const MIN_SECONDS: f64 = 0.1;
/// Iterations between evaluations of the score.
pub(super) const EVAL_EVERY: u32 = 5;
/// Episodes of an evaluation.
pub(super) const EVAL_EPISODES: usize = 10_000;

/// The median and range of several measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Measurement {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Measurement {
    /// Summarizes one or more values.
    pub fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        let median = (values[last / 2] + values[values.len() / 2]) / 2.0;
        Self { median, min: values[0], max: values[last] }
    }

    /// Measures steps per second `repeats` times, after a warm-up. `work` performs `num_steps` steps and
    /// returns the seconds taken; it is called until a measurement has lasted [`MIN_SECONDS`].
    pub fn measure_rate(
        repeats: usize,
        num_steps: usize,
        mut work: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        let mut rates = Vec::new();
        for i in 0..WARM_UP_REPEATS + repeats {
            let (mut steps_done, mut seconds) = (0, 0.0);
            while seconds < MIN_SECONDS {
                seconds += work()?;
                steps_done += num_steps;
            }
            if i >= WARM_UP_REPEATS {
                rates.push(steps_done as f64 / seconds);
            }
        }
        Ok(Self::from_values(rates))
    }
}

/// Writes rates in this unit as a table, each with its range over the repeats.
pub(super) fn write_table(
    f: &mut Formatter<'_>,
    unit: &str,
    repeats: usize,
    rows: [(&str, Measurement); 3],
) -> fmt::Result {
    let range = if repeats > 1 { format!("  range of {repeats}") } else { String::new() };
    writeln!(f, "{unit:28}  {:>12}{range}", "median")?;
    rows.into_iter().try_for_each(|(work, Measurement { median, min, max })| {
        write!(f, "{work:28}  {median:>12.3e}")?;
        if repeats > 1 { writeln!(f, "  {min:.3e} to {max:.3e}") } else { writeln!(f) }
    })
}

/// Writes the peak memory, if it is known.
pub(super) fn write_memory(f: &mut Formatter<'_>, bytes: Option<u64>) -> fmt::Result {
    bytes.map_or(Ok(()), |bytes| {
        writeln!(f, "peak memory: {:.1} MiB", bytes as f64 / f64::from(1 << 20))
    })
}

/// The times that several runs took to reach a score.
#[derive(Debug, Serialize)]
pub(super) struct ScoreRuns {
    score: f64,
    /// Seed of the first run; the seeds are consecutive.
    first_seed: u64,
    /// Seconds of the runs that reached the score; `None` if none did.
    seconds: Option<Measurement>,
    /// Seconds of each run; `None` if it did not reach the score.
    runs: Vec<Option<f64>>,
}

impl ScoreRuns {
    /// Summarizes runs by their seconds to the score.
    pub fn new(score: f64, first_seed: u64, runs: Vec<Option<f64>>) -> Self {
        let reached: Vec<f64> = runs.iter().copied().flatten().collect();
        let seconds = (!reached.is_empty()).then(|| Measurement::from_values(reached));
        Self { score, first_seed, seconds, runs }
    }
}

/// All results of a benchmark.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub env: &'a str,
    pub device: &'a DeviceInfo,
    pub engine: String,
    pub threads: usize,
    pub num_envs: usize,
    pub num_steps: usize,
    pub learn_steps: usize,
    pub num_features: usize,
    pub hidden: &'a [usize],
    pub policy: String,
    pub update_epochs: usize,
    #[serde(rename = "updates_per_iteration")]
    pub optimizer_steps_per_iteration: usize,
    pub repeats: usize,
    pub rules_steps_per_second: Measurement,
    pub policy_steps_per_second: Measurement,
    pub trained_steps_per_second: Measurement,
    pub seconds_to_first_update: f64,
    pub peak_memory_bytes: Option<u64>,
    /// Unknown for user-defined models.
    pub work_per_step: Option<StepWork>,
    pub device_peak: Option<DevicePeak>,
    pub seconds_to_score: Option<ScoreRuns>,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { env, device, engine, num_envs, num_steps, policy, .. } = self;
        let Self { learn_steps, update_epochs, .. } = self;
        let features = pluralize(self.num_features, "feature");
        let threads = pluralize(self.threads, "CPU thread");
        let updates = pluralize(self.optimizer_steps_per_iteration, "optimizer step");
        writeln!(f, "{env} on {device}: {engine}")?;
        writeln!(f, "{num_envs} games x {num_steps} steps, {features}, {policy}, {threads}")?;
        writeln!(
            f,
            "per iteration: {updates}; epochs over the first {learn_steps} steps: {update_epochs}\n"
        )?;
        let rows = [
            ("rules, random actions", self.rules_steps_per_second),
            ("rules and policy", self.policy_steps_per_second),
            ("training", self.trained_steps_per_second),
        ];
        write_table(f, "steps per second", self.repeats, rows)?;
        writeln!(f)?;
        writeln!(f, "time to the first update: {:.2} s", self.seconds_to_first_update)?;
        if let Some(runs) = &self.seconds_to_score {
            write!(f, "{runs}")?;
        }
        write_memory(f, self.peak_memory_bytes)?;
        self.fmt_shares(f)
    }
}

impl Report<'_> {
    /// Formats the device's peak and the fractions of it that are reached.
    fn fmt_shares(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(work) = self.work_per_step else { return Ok(()) };
        let StepWork { policy_flops, policy_bytes, trained_flops, trained_bytes } = work;
        writeln!(
            f,
            "minimum work per step: {policy_flops:.0} FLOP and {policy_bytes:.0} bytes played, {trained_flops:.0} and \
             {trained_bytes:.0} trained"
        )?;
        let Some(peak) = &self.device_peak else { return Ok(()) };
        let format_peak = |value: Option<f64>, scale: f64, unit: &str| match value {
            Some(value) => format!("{:.3} {unit}", value / scale),
            None => format!("unknown {unit}"),
        };
        let arithmetic = format_peak(peak.flops_per_second, 1e12, "TFLOP/s");
        let bandwidth = format_peak(peak.bytes_per_second, 1e9, "GB/s");
        writeln!(f, "measured peak of the device: {arithmetic}, {bandwidth}")?;
        for (name, rate, flops, bytes) in [
            ("rules and policy", self.policy_steps_per_second, policy_flops, policy_bytes),
            ("training", self.trained_steps_per_second, trained_flops, trained_bytes),
        ] {
            let share = |work_per_step: f64, peak: Option<f64>| match peak {
                Some(peak) => format!("{:.2} %", 100.0 * rate.median * work_per_step / peak),
                None => "unknown".to_string(),
            };
            let arithmetic = share(flops, peak.flops_per_second);
            let bandwidth = share(bytes, peak.bytes_per_second);
            writeln!(
                f,
                "  {name}: {arithmetic} of peak arithmetic, {bandwidth} of peak bandwidth"
            )?;
        }
        Ok(())
    }
}

impl Display for ScoreRuns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (reached, all) = (self.runs.iter().flatten().count(), self.runs.len());
        let Some(Measurement { median, min, max }) = self.seconds else {
            let all = pluralize(all, "run");
            return writeln!(f, "none of {all} reached a greedy score of {}", self.score);
        };
        writeln!(
            f,
            "time to a greedy score of {}, evaluated every {EVAL_EVERY} iterations over \
             {EVAL_EPISODES} episodes (included in the time):",
            self.score
        )?;
        if all == 1 {
            return writeln!(f, "  {median:.2} s");
        }
        let first =
            self.runs[0].map_or("did not reach it".to_string(), |s| format!("took {s:.2} s"));
        writeln!(
            f,
            "  {median:.2} s ({min:.2} to {max:.2}), {reached} of {all} runs; the first run, with a cold start, {first}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_the_median_and_range_after_the_warm_up() {
        let mut seconds = [0.2, 9.0, 0.5, 0.1, 1.0, 0.25].into_iter();
        let rate = Measurement::measure_rate(4, 6, || Ok(seconds.next().unwrap())).unwrap();
        assert_eq!(rate, Measurement { median: 18.0, min: 6.0, max: 60.0 });
        assert_eq!(Measurement::from_values(vec![3.0, 1.0, 7.0]).median, 3.0);
    }

    #[test]
    fn short_work_is_repeated_within_a_measurement() {
        let mut seconds = [1.0, 1.0, 0.0625, 0.0625].into_iter();
        let rate = Measurement::measure_rate(1, 6, || Ok(seconds.next().unwrap())).unwrap();
        assert_eq!(rate.median, 96.0);
        assert_eq!(seconds.next(), None);
    }

    #[test]
    fn runs_that_miss_the_score_are_excluded() {
        let runs = ScoreRuns::new(1.0, 4, vec![Some(2.0), None, Some(4.0)]);
        assert_eq!(runs.seconds, Some(Measurement { median: 3.0, min: 2.0, max: 4.0 }));
        assert!(
            runs.to_string().contains("3.00 s (2.00 to 4.00), 2 of 3 runs; the first run"),
            "{runs}"
        );
        let one = ScoreRuns::new(1.0, 4, vec![Some(2.0)]).to_string();
        assert!(one.ends_with("  2.00 s\n"), "{one}");
        let missed = ScoreRuns::new(1.0, 4, vec![None]);
        assert_eq!(missed.seconds, None);
        assert_eq!(missed.to_string(), "none of 1 run reached a greedy score of 1\n");
    }
}
