//! `grove train --seeds 1..5`: trains the same run with several seeds and summarizes the scores.

use super::args::{Seeds, TrainArgs};
use super::games::Games;
use super::interrupt::Interrupt;
use super::jobs::{Concurrency, JobReport, JobRunner, format_command_line, option_argument};
use super::output::{eprint_line, print_json, print_result};
use super::progress::RunBoard;
use super::text;
use super::text_table::{align_columns, format_number};
use crate::plot::statistics::{bootstrap_interval, interquartile_mean, mean};
use crate::run::pluralize;
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;

/// Answer to Ctrl-C.
const INTERRUPT_ANSWER: &str =
    "Waiting for the running processes to finish their iteration and save.";

/// Summary over all seeds.
#[derive(Serialize)]
struct Summary<'a> {
    /// Reports of the runs, in order of their seeds.
    runs: Vec<&'a Value>,
    /// Mean score; this and the next two are `None` if a run has no score.
    mean: Option<f64>,
    interquartile_mean: Option<f64>,
    /// 95 % bootstrap interval of the interquartile mean; `None` for a single run.
    interval: Option<[f64; 2]>,
}

/// Trains a run for each seed, side by side in processes, and prints their scores with the means over all seeds.
pub fn run(games: &Games, args: &TrainArgs, Seeds(seeds): &Seeds) -> Result<()> {
    let device = &args.run.device;
    let is_text = text::is_requested(args);
    let concurrency = Concurrency::new(device, args.run.threads, is_text, seeds.len())?;
    let jobs = format_command_lines(args, seeds);
    eprint_line!("Training {}, {}.", pluralize(seeds.len(), "seed"), concurrency.describe());
    let interrupt = Interrupt::listen(Some(INTERRUPT_ANSWER))?;
    let mut reports: Vec<Option<JobReport>> = vec![None; seeds.len()];
    let mut failed = Vec::new();
    let board = RunBoard::new(args.run.quiet, 0, seeds.len());
    let start_command = &games.start_command;
    let runner = JobRunner { start_command, concurrency, interrupt: &interrupt, board: &board };
    let outcome = runner.run(&jobs, |job, report| {
        board.print_ended(&describe_end(seeds[job], &report), String::new);
        match report {
            Ok(report) => reports[job] = report,
            Err(_) => failed.push(seeds[job]),
        }
        Ok(())
    });
    drop(board);
    failed.sort_unstable();
    let has_begun = |(i, seed): &(usize, &u64)| reports[*i].is_some() || failed.contains(seed);
    let not_begun = seeds.iter().enumerate().filter(|seed| !has_begun(seed));
    let not_begun: Vec<u64> = not_begun.map(|(_, seed)| *seed).collect();
    let runs: Vec<JobReport> = reports.into_iter().flatten().collect();
    let remaining = describe_remaining_work(&runs, &not_begun);
    let problem = match (outcome, failed.len()) {
        (Err(error), _) => format!("{error:#}"),
        (Ok(()), 0) if remaining.is_none() => return print_summary(runs, args.run.json),
        (Ok(()), 0) => bail!("interrupted; {}", remaining.unwrap_or_default()),
        (Ok(()), count) => format!(
            "{count} of {} failed (seeds {}). Continue those with a checkpoint by `grove train --resume RUN`, and train \
             the others again with --seeds",
            pluralize(seeds.len(), "run"),
            join_seeds(&failed)
        ),
    };
    if !runs.is_empty() {
        print_summary(runs, args.run.json)?;
    }
    bail!("{problem}{}", remaining.map_or(String::new(), |remaining| format!("; {remaining}")))
}

/// Describes the end of a run on one line.
fn describe_end(seed: u64, report: &Result<Option<JobReport>>) -> String {
    match report {
        Ok(None) => format!("seed {seed}: interrupted"),
        Ok(Some(report)) => {
            let score = format_number(report.mean_score);
            format!("seed {seed}: {score} in {}", report.run)
        }
        Err(error) => format!("seed {seed} failed: {error:#}"),
    }
}

/// Describes how to train what is left: interrupted runs, and seeds that have `not_begun`; `None` if nothing is left.
fn describe_remaining_work(runs: &[JobReport], not_begun: &[u64]) -> Option<String> {
    let interrupted = runs.iter().filter(|report| report.interrupted);
    let interrupted: Vec<&str> = interrupted.map(|report| &*report.run).collect();
    let parts = [
        (interrupted.join(", "), "`grove train --resume RUN` continues: "),
        (join_seeds(not_begun), "these have not begun: --seeds "),
    ];
    let parts = parts.iter().filter(|(names, _)| !names.is_empty());
    let parts: Vec<String> = parts.map(|(names, advice)| format!("{advice}{names}")).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Formats seeds as `--seeds` takes them.
fn join_seeds(seeds: &[u64]) -> String {
    seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Formats the command lines of the runs, one for each seed.
fn format_command_lines(args: &TrainArgs, seeds: &[u64]) -> Vec<Vec<OsString>> {
    let common = format_command_line(args);
    let command_line = |seed: &u64| {
        let folder = args.run.run_dir.as_ref().map(|folder| folder.join(format!("seed-{seed}")));
        let folder = folder.map(|folder| option_argument("run-dir", folder));
        let seed = option_argument("seed", seed.to_string());
        common.iter().cloned().chain([seed]).chain(folder).collect()
    };
    seeds.iter().map(command_line).collect()
}

/// Prints the runs of all seeds as a table, with the mean and the interquartile mean of their scores below, or as JSON.
fn print_summary(runs: Vec<JobReport>, is_json: bool) -> Result<()> {
    let scores: Option<Vec<f64>> = runs.iter().map(|report| report.mean_score).collect();
    let scores = scores.as_deref();
    let summary = Summary {
        mean: scores.map(mean),
        interquartile_mean: scores.map(interquartile_mean),
        interval: scores.and_then(|scores| bootstrap_interval(scores, interquartile_mean)),
        runs: runs.iter().map(|report| &report.json).collect(),
    };
    if is_json {
        return print_json(&summary);
    }
    let row = |report: &JobReport| {
        let JobReport { run, seed, mean_score, best_iteration, seconds, .. } = report;
        let score = format_number(*mean_score);
        vec![
            seed.to_string(),
            run.clone(),
            score,
            best_iteration.to_string(),
            format!("{seconds:.1}"),
        ]
    };
    let rows: Vec<_> = runs.iter().map(row).collect();
    let header = ["seed", "run", "score", "best iteration", "elapsed seconds"];
    print_result(align_columns(&header, &rows, 2..))?;
    let Summary { mean: Some(mean), interquartile_mean: Some(iqm), interval, .. } = summary else {
        return Ok(());
    };
    let interval = interval.map_or("-".to_string(), |[low, high]| {
        format!("{low:.3} to {high:.3} (bootstrap over {} seeds)", runs.len())
    });
    print_result(format!(
        "\nmean {mean:.3}, interquartile mean {iqm:.3}, 95 % interval of the interquartile mean {interval}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_names_the_runs_to_continue_and_the_seeds_to_begin() {
        let run = |name: &str, interrupted: bool| JobReport {
            run: name.to_string(),
            seed: 1,
            mean_score: None,
            best_iteration: 1,
            seconds: 1.0,
            interrupted,
            json: Value::Null,
        };
        let runs = [run("a", false), run("b", true), run("c", true)];
        let continued = "`grove train --resume RUN` continues: b, c";
        assert_eq!(describe_remaining_work(&runs, &[]), Some(continued.to_string()));
        let both = format!("{continued}; these have not begun: --seeds 3,4");
        assert_eq!(describe_remaining_work(&runs, &[3, 4]), Some(both));
        assert_eq!(
            describe_remaining_work(&runs[..1], &[3]),
            Some("these have not begun: --seeds 3".to_string())
        );
        assert_eq!(describe_remaining_work(&runs[..1], &[]), None);
    }
}
