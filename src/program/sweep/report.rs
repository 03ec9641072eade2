//! Report of a sweep: trials from best to worst (for halving by round, last round first), the importance of each
//! setting, and the best settings.

use super::search::{Trial, ranked};
use super::space::{Point, Range, Space, index};
use super::{Search, Sweep, space};
use crate::disk;
use crate::plot::statistics::{interval, mean};
use crate::program::history::{aligned, figure, words};
use crate::program::say::{say, tell, tell_json};
use crate::program::session::quoted;
use anyhow::{Context, Result};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// Number of parts of a range of numbers that are compared for a setting's importance.
const PARTS: usize = 4;

/// Report of a sweep.
#[derive(Serialize)]
pub struct Report {
    trials: Vec<Ranked>,
    /// Fraction of the variance of scores that each setting explains by itself.
    importance: BTreeMap<String, f64>,
    best: String,
}

/// A trial with its scores.
#[derive(Serialize)]
struct Ranked {
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
        let order = best_first(sweep.file.search, trials);
        let row = |i: usize| {
            let scores = sweep.scores(i, trials[i].round);
            Ranked {
                trial: i,
                round: trials[i].round,
                settings: space::settings(&sweep.file.space, &trials[i].point),
                mean: trials[i].score,
                interval: scores.as_ref().and_then(|scores| interval(scores, mean)),
                scores: scores.unwrap_or_default(),
            }
        };
        let scored = trials.iter().zip(&first_scores);
        let scored: Vec<(&Point, f64)> =
            scored.filter_map(|(trial, score)| Some((&trial.point, (*score)?))).collect();
        Self {
            trials: order.into_iter().map(row).collect(),
            importance: importance(&sweep.file.space, &scored),
            best: sweep.folder.join("best.toml").display().to_string(),
        }
    }

    /// Writes the best settings and prints the report.
    pub fn print(&self, sweep: &Sweep) -> Result<()> {
        disk::replace(Path::new(&self.best), self.best_settings(sweep)?.as_bytes())
            .with_context(|| format!("cannot write {}", self.best))?;
        if sweep.args.json {
            return tell_json(self);
        }
        let is_halving = sweep.file.search == Search::Halving;
        let cells = |row: &Ranked| {
            let [low, high] = row.interval.map_or([None; 2], |ends| ends.map(Some));
            let score = row.mean.map_or("failed".to_string(), |mean| figure(Some(mean)));
            let mut cells = vec![words(&row.settings, &row.settings), row.trial.to_string()];
            if is_halving {
                cells.push(sweep.iterations_of(row.round).to_string());
            }
            cells.extend([score, figure(low), figure(high)]);
            cells
        };
        let rows: Vec<_> = self.trials.iter().map(cells).collect();
        let header: &[&str] = match is_halving {
            true => &["settings", "trial", "iterations", "score", "95 % low", "high"],
            false => &["settings", "trial", "score", "95 % low", "high"],
        };
        tell(aligned(header, &rows, 1..))?;
        let mut shares: Vec<_> = self.importance.iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(a.1));
        let rows: Vec<_> = shares
            .iter()
            .map(|(name, share)| vec![name.to_string(), format!("{share:.2}")])
            .collect();
        tell(format!("\n{}", aligned(&["setting", "importance"], &rows, 1..)))?;
        let file = quoted(Path::new(&self.best));
        say!("Best settings: {}. Next: grove train --config {file}", self.best);
        Ok(())
    }

    /// Settings of the best trial as a settings file.
    fn best_settings(&self, sweep: &Sweep) -> Result<String> {
        let best = &self.trials[0];
        let all = sweep.completed(best.settings.clone(), best.round);
        let lines: String = all.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let mut file: Table = lines.parse()?;
        let subject = if crate::task::find(&sweep.file.game).is_ok() { "task" } else { "env" };
        file.insert(subject.to_string(), sweep.file.game.as_str().into());
        Ok(toml::to_string(&file)?)
    }
}

/// Sorts trials from best to worst: those of later rounds of halving first, since they had more iterations; failed ones
/// last.
fn best_first(search: Search, trials: &[Trial]) -> Vec<usize> {
    let mut order = ranked(trials, |_| true);
    order.sort_by_key(|i| {
        let Trial { round, score, .. } = trials[*i];
        (score.is_none(), Reverse(if search == Search::Halving { round } else { 0 }))
    });
    order
}

/// Fraction of the variance of scores that lies between the parts of each setting's range (the correlation ratio, or
/// first-order Sobol index, estimated in bins), at most 1.
fn importance(space: &Space, scored: &[(&Point, f64)]) -> BTreeMap<String, f64> {
    let scores: Vec<f64> = scored.iter().map(|(_, score)| *score).collect();
    let centre = mean(&scores);
    let total: f64 = scores.iter().map(|score| (score - centre).powi(2)).sum();
    let share = |d: usize, range: &Range| {
        let parts = range.choices().unwrap_or(PARTS);
        let between = |part: usize| {
            let own = scored.iter().filter(|(point, _)| index(point[d], parts) == part);
            let own: Vec<f64> = own.map(|(_, score)| *score).collect();
            if own.is_empty() { 0.0 } else { own.len() as f64 * (mean(&own) - centre).powi(2) }
        };
        if total > 0.0 { (0..parts).map(between).sum::<f64>() / total } else { 0.0 }
    };
    space.iter().enumerate().map(|(d, (name, range))| (name.clone(), share(d, range))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_round_is_better_and_a_failed_trial_last() {
        let trial = |round, score| Trial { point: Point::new(), round, score };
        let trials =
            [trial(0, Some(3.0)), trial(2, None), trial(1, Some(1.0)), trial(1, Some(2.0))];
        assert_eq!(best_first(Search::Halving, &trials), [3, 2, 0, 1]);
        assert_eq!(best_first(Search::Random, &trials), [0, 3, 2, 1]);
    }

    #[test]
    fn a_setting_that_alone_decides_the_score_has_full_importance() {
        let space: Space =
            toml::from_str("a = { linear = [0, 1] }\nb = { choices = [1, 2] }").unwrap();
        let points: Vec<Point> =
            (0..64).map(|i| vec![f64::from(i / 2) / 32.0, f64::from(i % 2) / 2.0]).collect();
        let scored: Vec<(&Point, f64)> = points.iter().map(|point| (point, point[1])).collect();
        let importance = importance(&space, &scored);
        assert!(importance["a"] < 1e-9 && (importance["b"] - 1.0).abs() < 1e-9, "{importance:?}");
        let flat: Vec<(&Point, f64)> = points.iter().map(|point| (point, 3.0)).collect();
        assert!(super::importance(&space, &flat).values().all(|share| *share == 0.0));
    }
}
