//! Report of a sweep: trials from best to worst (for halving by round, last round first), the importance of each
//! setting, and the best settings.

use super::search::{Trial, rank_trials};
use super::space::{Point, Range, Space};
use super::{Results, Search, Sweep, SweepConfig, space};
use crate::disk;
use crate::plot::statistics::{bootstrap_interval, mean};
use crate::program::output::{eprint_line, print_json, print_result};
use crate::program::paths::{canonical_path, quote_path};
use crate::program::recorded_run::format_settings;
use crate::program::text_table::{align_columns, format_number};
use anyhow::{Context, Result};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// Number of trials of the table during a sweep.
const LEADING_TRIALS: usize = 5;
/// Maximum number of parts of a range of numbers that are compared for a setting's importance.
const RANGE_PARTS: usize = 4;

#[derive(Serialize)]
pub struct Report {
    trials: Vec<RankedTrial>,
    /// Fraction of the variance of scores that each setting explains by itself.
    importance: Shares,
    /// Fraction to expect by chance of a setting without influence.
    importance_by_chance: Shares,
    /// Path of the file with the best settings.
    #[serde(rename = "best")]
    best_path: String,
}

/// Shares of a variance by settings.
type Shares = BTreeMap<String, f64>;

/// A trial with its scores.
#[derive(Serialize)]
struct RankedTrial {
    trial: usize,
    round: u32,
    settings: BTreeMap<String, Value>,
    scores: Vec<f64>,
    mean: Option<f64>,
    /// 95 % bootstrap interval of the mean over seeds; `None` for a single seed.
    interval: Option<[f64; 2]>,
}

impl Report {
    /// Creates the report of these trials, with importance measured by their scores in the first round.
    pub fn new(sweep: &Sweep, trials: &[Trial], first_scores: Vec<Option<f64>>) -> Self {
        let order = sort_best_first(sweep.config.search, trials);
        let row = |i: usize| {
            let scores = sweep.results.scores(i, trials[i].round, &sweep.seeds);
            RankedTrial {
                trial: i,
                round: trials[i].round,
                settings: space::settings_at(&sweep.config.space, &trials[i].point),
                mean: trials[i].score,
                interval: scores.as_ref().and_then(|scores| bootstrap_interval(scores, mean)),
                scores: scores.unwrap_or_default(),
            }
        };
        let scored = trials.iter().zip(&first_scores);
        let scored: Vec<(&Point, f64)> =
            scored.filter_map(|(trial, score)| Some((&trial.point, (*score)?))).collect();
        let (importance, importance_by_chance) = measure_importance(&sweep.config.space, &scored);
        Self {
            trials: order.into_iter().map(row).collect(),
            importance,
            importance_by_chance,
            best_path: sweep.folder.join("best.toml").display().to_string(),
        }
    }

    /// Writes the settings of the best trial as a settings file.
    pub fn write_best_settings(&self, sweep: &Sweep) -> Result<()> {
        disk::replace(Path::new(&self.best_path), self.best_settings(sweep)?.as_bytes())
            .with_context(|| format!("cannot write {}", self.best_path))
    }

    pub fn print(&self, sweep: &Sweep) -> Result<()> {
        if sweep.args.json {
            return print_json(self);
        }
        let is_halving = sweep.config.search == Search::Halving;
        let cells = |row: &RankedTrial| {
            let [low, high] = row.interval.map_or([None; 2], |ends| ends.map(Some));
            let score = row.mean.map_or("failed".to_string(), |mean| format_number(Some(mean)));
            let mut cells =
                vec![format_settings(&row.settings, &row.settings), row.trial.to_string()];
            if is_halving {
                let iterations = sweep.config.iterations_in_round(sweep.iterations, row.round);
                cells.push(iterations.to_string());
            }
            cells.extend([score, format_number(low), format_number(high)]);
            cells
        };
        let rows: Vec<_> = self.trials.iter().map(cells).collect();
        let header: &[&str] = if is_halving {
            &["settings", "trial", "iterations", "score", "95 % low", "high"]
        } else {
            &["settings", "trial", "score", "95 % low", "high"]
        };
        print_result(align_columns(header, &rows, 1..))?;
        let mut shares: Vec<_> = self.importance.iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(a.1));
        let rows: Vec<_> = shares
            .iter()
            .map(|(name, share)| {
                let by_chance = self.importance_by_chance[*name];
                vec![name.to_string(), format!("{share:.2}"), format!("{by_chance:.2}")]
            })
            .collect();
        let table = align_columns(&["setting", "importance", "by chance"], &rows, 1..);
        print_result(format!("\n{table}"))?;
        let file = quote_path(Path::new(&self.best_path));
        eprint_line!("Best settings: {}. Next: grove train --config {file}", self.best_path);
        Ok(())
    }

    /// Settings of the best trial as a settings file.
    fn best_settings(&self, sweep: &Sweep) -> Result<String> {
        let best = &self.trials[0];
        let mut settings = sweep.complete_settings(best.settings.clone(), best.round);
        // The data are found from any folder, as in the settings of the trials.
        let data = if sweep.is_task { sweep.config.game.as_str() } else { "data" };
        if let Some(Value::String(path)) = settings.get_mut(&format!("{data}.path"))
            && let Ok(whole) = canonical_path(Path::new(path))
        {
            *path = whole;
        }
        let lines: String =
            settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let mut file: Table = lines.parse()?;
        let subject = if sweep.is_task { "task" } else { "env" };
        file.insert(subject.to_string(), sweep.config.game.as_str().into());
        Ok(toml::to_string(&file)?)
    }
}

/// Formats a table of the best trials so far whose runs have all ended; with halving, of this round.
pub fn format_leaders(
    config: &SweepConfig,
    trials: &[Trial],
    results: &Results,
    seeds: &[u64],
    round: u32,
) -> String {
    let score = |index: usize| {
        let last_round = trials[index].round;
        if last_round != round && config.search == Search::Halving {
            return None;
        }
        Some((index, mean(&results.scores(index, last_round, seeds)?)))
    };
    let mut best: Vec<(usize, f64)> = (0..trials.len()).filter_map(score).collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1));
    best.truncate(LEADING_TRIALS);
    let row = |(index, score): &(usize, f64)| {
        let settings = space::settings_at(&config.space, &trials[*index].point);
        vec![format_settings(&settings, &settings), index.to_string(), format_number(Some(*score))]
    };
    let rows: Vec<_> = best.iter().map(row).collect();
    align_columns(&["best so far", "trial", "score"], &rows, 1..)
}

/// Returns the indices of trials from best to worst: trials of later rounds of halving first, since they had more
/// iterations; failed trials last.
fn sort_best_first(search: Search, trials: &[Trial]) -> Vec<usize> {
    let mut order = rank_trials(trials, |_| true);
    order.sort_by_key(|i| {
        let Trial { round, score, .. } = trials[*i];
        (score.is_none(), Reverse(if search == Search::Halving { round } else { 0 }))
    });
    order
}

/// Measures the fraction of the variance of scores that lies between the parts of each setting's range (the correlation
/// ratio, or first-order Sobol index, estimated in bins), at most 1. Also returns the expectation of that fraction for
/// scores in random order, `(parts - 1) / (trials - 1)`.
fn measure_importance(space: &Space, scored: &[(&Point, f64)]) -> (Shares, Shares) {
    let scores: Vec<f64> = scored.iter().map(|(_, score)| *score).collect();
    let centre = mean(&scores);
    let total: f64 = scores.iter().map(|score| (score - centre).powi(2)).sum();
    let share = |d: usize, range: &Range| {
        let mut used: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (point, score) in scored {
            used.entry(range.part_at(point[d], RANGE_PARTS)).or_default().push(*score);
        }
        let between = |scores: &Vec<f64>| scores.len() as f64 * (mean(scores) - centre).powi(2);
        if total > 0.0 {
            // Scores that differ are two or more.
            (
                used.values().map(between).sum::<f64>() / total,
                (used.len() - 1) as f64 / (scores.len() - 1) as f64,
            )
        } else {
            (0.0, 0.0)
        }
    };
    let shares = space.iter().enumerate().map(|(d, (name, range))| {
        let (share, by_chance) = share(d, range);
        ((name.clone(), share), (name.clone(), by_chance))
    });
    shares.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::sweep::{RunKey, RunResult};

    #[test]
    fn the_table_during_a_sweep_has_the_best_of_what_has_ended() {
        let space = toml::from_str("a = { choices = [1, 2, 3] }").unwrap();
        let config = SweepConfig { space, ..SweepConfig::default() };
        let trial = |i: u32| Trial { point: vec![f64::from(i) / 3.0], round: 0, score: None };
        let trials: Vec<Trial> = (0..3).map(trial).collect();
        let scores = [(0, 1, 0.5), (0, 2, 0.5), (1, 1, 0.9), (2, 1, 0.4), (2, 2, 0.8)];
        let mut results = Results::default();
        for (trial, seed, score) in scores {
            let run = RunKey { trial, round: 0, seed };
            results.insert(RunResult { run, score: Some(score), error: None });
        }
        let table = format_leaders(&config, &trials, &results, &[1, 2], 0);
        let rows: Vec<Vec<&str>> =
            table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows, [["a=3", "2", "0.600"], ["a=1", "0", "0.500"]], "{table}");
    }

    #[test]
    fn a_later_round_is_better_and_a_failed_trial_last() {
        let trial = |round, score| Trial { point: Point::new(), round, score };
        let trials =
            [trial(0, Some(3.0)), trial(2, None), trial(1, Some(1.0)), trial(1, Some(2.0))];
        assert_eq!(sort_best_first(Search::Halving, &trials), [3, 2, 0, 1]);
        assert_eq!(sort_best_first(Search::Random, &trials), [0, 3, 2, 1]);
    }

    #[test]
    fn a_setting_that_alone_decides_the_score_has_full_importance() {
        let space: Space =
            toml::from_str("a = { linear = [0.0, 1.0] }\nb = { choices = [1, 2] }").unwrap();
        let points: Vec<Point> =
            (0..64).map(|i| vec![f64::from(i / 2) / 32.0, f64::from(i % 2) / 2.0]).collect();
        let scored: Vec<(&Point, f64)> = points.iter().map(|point| (point, point[1])).collect();
        let (importance, by_chance) = measure_importance(&space, &scored);
        assert_eq!((by_chance["a"], by_chance["b"]), (3.0 / 63.0, 1.0 / 63.0));
        assert!(importance["a"] < 1e-9 && (importance["b"] - 1.0).abs() < 1e-9, "{importance:?}");
        let flat: Vec<(&Point, f64)> = points.iter().map(|point| (point, 3.0)).collect();
        assert!(measure_importance(&space, &flat).0.values().all(|share| *share == 0.0));
    }

    /// Equal values are one part, wherever they were drawn: the example has the scores of a sweep of epochs.
    #[test]
    fn the_importance_of_whole_numbers_is_that_of_their_values() {
        let importance = |range: &str, scored: &[(f64, f64)]| {
            let space: Space = toml::from_str(&format!("a = {range}")).unwrap();
            let points: Vec<Point> = scored.iter().map(|(position, _)| vec![*position]).collect();
            let scores = scored.iter().map(|(_, score)| *score);
            let scored: Vec<(&Point, f64)> = points.iter().zip(scores).collect();
            let (share, by_chance) = measure_importance(&space, &scored);
            (share["a"], by_chance["a"])
        };
        let drawn = [0.1, 0.35, 0.45, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9];
        let scores = [-0.19, 0.206, 0.079, -0.056, -0.056, -0.194, 0.734, -0.056, -0.325];
        let scored: Vec<(f64, f64)> = drawn.into_iter().zip(scores).collect();
        for range in ["{ linear = [1, 3] }", "{ choices = [1, 2, 3] }"] {
            let (share, by_chance) = importance(range, &scored);
            assert!((share - 0.0975).abs() < 1e-4 && by_chance == 0.25, "{range}: {share}");
        }
        // Of 7 values the one in the middle, whose draws lie on both sides of it; and a choice that is listed twice.
        assert_eq!(importance("{ linear = [1, 7] }", &[(0.45, 0.0), (0.55, 1.0)]), (0.0, 0.0));
        assert_eq!(importance("{ choices = [8, 8] }", &[(0.2, 0.0), (0.7, 1.0)]), (0.0, 0.0));
        // Few values of a logarithmic range, and many.
        assert_eq!(importance("{ log = [1, 4] }", &[(0.75, 0.0), (0.99, 1.0)]), (1.0, 1.0));
        assert_eq!(importance("{ log = [8, 512] }", &[(0.1, 0.0), (0.9, 1.0)]), (1.0, 1.0));
    }

    /// Scores that are unrelated to a setting vary between its parts by the expected share.
    #[test]
    fn a_setting_that_does_nothing_has_its_importance_by_chance() {
        let space: Space = toml::from_str("a = { linear = [0.0, 1.0] }").unwrap();
        let uniform = |key: u32, i: u32| f64::from(crate::rng::uniform(crate::rng::draw(key, i)));
        let excess = |key: u32| {
            let points: Vec<Point> = (0..16).map(|i| vec![uniform(key, i)]).collect();
            let scores = (0..16).map(|i| uniform(key, 100 + i));
            let scored: Vec<(&Point, f64)> = points.iter().zip(scores).collect();
            let (share, by_chance) = measure_importance(&space, &scored);
            share["a"] - by_chance["a"]
        };
        let mean_excess = (0..400).map(excess).sum::<f64>() / 400.0;
        assert!(mean_excess.abs() < 0.03, "{mean_excess}");
    }
}
