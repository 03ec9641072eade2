//! Results of a sweep's runs, and their file.

use super::SweepConfig;
use crate::disk::{self, input};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// File of results inside a sweep, one line per run.
pub const RESULTS_FILE: &str = "results.jsonl";

/// Words of the error of a run whose numbers went out of range, for which its settings are the reason
/// ([`TrainError::NotFinite`](crate::trainer::TrainError)).
const DIVERGENCE_ERROR: &str = "is not finite in iteration";

/// Result of a run, as stored in the file of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    #[serde(flatten)]
    pub run: RunKey,
    /// Score of the best policy on fresh episodes; `None` if the run failed.
    pub score: Option<f64>,
    pub error: Option<String>,
}

/// A run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    pub trial: usize,
    /// Stage of the search, from 0: a round of halving, or a batch of TPE; 0 for the other searches.
    pub round: u32,
    pub seed: u64,
}

/// Results of a sweep.
#[derive(Default)]
pub struct Results {
    /// The last result of each run that is not tried again.
    pub latest_results: BTreeMap<RunKey, RunResult>,
    /// Number of results of each run so far, those of failures that are tried again among them.
    attempts: BTreeMap<RunKey, u32>,
}

impl Results {
    pub fn insert(&mut self, result: RunResult) {
        *self.attempts.entry(result.run).or_insert(0) += 1;
        self.latest_results.insert(result.run, result);
    }

    /// Scores of a trial by seed; `None` unless all runs have one.
    pub fn scores(&self, trial: usize, round: u32, seeds: &[u64]) -> Option<Vec<f64>> {
        let runs = seeds.iter().map(|seed| RunKey { trial, round, seed: *seed });
        runs.map(|run| self.latest_results.get(&run)?.score).collect()
    }
}

/// Removes the results of failed runs, which are then tried again: a full disk or lack of memory may have been the
/// reason. A failure that TPE already used to choose its next batch stays, since a success would lead to other trials.
/// TPE has not used a lost batch ([`is_lost_batch`]), so all of its failures are removed.
pub fn forget_failures(results: &mut Results, config: &SweepConfig, num_seeds: usize) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    results.latest_results.keys().for_each(|run| *counts.entry(run.round).or_insert(0) += 1);
    let has_next = |round: u32| {
        let is_full = counts[&round] == config.batch * num_seeds;
        config.has_batch_after(round) && is_full && !is_lost_batch(results, round)
    };
    let used: BTreeSet<u32> = counts.keys().copied().filter(|round| has_next(*round)).collect();
    results
        .latest_results
        .retain(|run, result| result.error.is_none() || used.contains(&run.round));
}

/// Whether the TPE batch of this round has to be tried again before TPE can go on. This is so if it is the newest
/// batch, all of its runs failed, and either no run of the sweep has a score yet, or this was the first attempt and no
/// run diverged (a full disk may be the reason).
pub fn is_lost_batch(results: &Results, round: u32) -> bool {
    let runs = || results.latest_results.iter().filter(|(run, _)| run.round == round);
    let errors = || runs().filter_map(|(_, result)| result.error.as_deref());
    let is_last = results.latest_results.keys().all(|run| run.round <= round);
    let have_failed = runs().count() > 0 && errors().count() == runs().count();
    let has_score = results.latest_results.values().any(|result| result.score.is_some());
    let is_first_try = runs().any(|(run, _)| results.attempts[run] < 2);
    let have_diverged = errors().any(|error| error.contains(DIVERGENCE_ERROR));
    is_last && have_failed && (!has_score || is_first_try && !have_diverged)
}

/// Reads the results in a file, and removes an incomplete last line, so that the next one starts on a new line.
pub fn read_results(path: &Path) -> io::Result<Results> {
    let Some(file) = input::allow_missing(input::open(path))? else {
        return Ok(Results::default());
    };
    let mut results = Results::default();
    let mut end = 0;
    for line in input::lines(file) {
        let line = line?;
        if !line.ends_with(b"\n") {
            disk::truncate(path, end)?;
            break;
        }
        end += line.len() as u64;
        if let Ok(result) = serde_json::from_slice(&line) {
            results.insert(result);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::sweep::Search;
    use crate::trainer::TrainError;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_torn_result_costs_no_other() {
        let temp_dir = TempDir::new().unwrap();
        let path = temp_dir.path().join(RESULTS_FILE);
        let latest = || read_results(&path).unwrap().latest_results;
        assert!(latest().is_empty());
        let format_line = |trial: usize, error: Option<&str>| {
            let (score, error) = (error.is_none().then_some(1.0), error.map(str::to_string));
            let result = RunResult { run: RunKey { trial, round: 0, seed: 1 }, score, error };
            serde_json::to_string(&result).unwrap() + "\n"
        };
        let line = |trial: usize| format_line(trial, None);
        let third = format_line(2, Some("é")).into_bytes();
        let middle = third.iter().position(|byte| *byte == 0xc3).unwrap() + 1;
        let torn = [line(0).as_bytes(), line(1).as_bytes(), &third[..middle]].concat();
        fs::write(&path, torn).unwrap();
        assert_eq!(latest().len(), 2);
        let mut file = disk::open_append(&path).unwrap();
        disk::write(&mut file, line(3).as_bytes()).unwrap();
        let trials: Vec<_> = latest().into_keys().map(|run| run.trial).collect();
        assert_eq!(trials, [0, 1, 3]);
        // A run that failed is tried again, until it succeeds.
        let known = || {
            let mut results = read_results(&path).unwrap();
            forget_failures(&mut results, &SweepConfig::default(), 1);
            results.latest_results.len()
        };
        disk::write(&mut file, format_line(4, Some("the disk is full")).as_bytes()).unwrap();
        assert_eq!(known(), 3);
        disk::write(&mut file, line(4).as_bytes()).unwrap();
        assert_eq!(known(), 4);
    }

    /// Results of trials by their errors, in batches of two.
    fn results(errors: &[Option<&str>], attempts: u32) -> Results {
        let mut results = Results::default();
        for (trial, error) in (0..attempts).flat_map(|_| errors.iter().enumerate()) {
            let (score, error) = (error.is_none().then_some(1.0), error.map(str::to_string));
            let run = RunKey { trial, round: trial as u32 / 2, seed: 1 };
            results.insert(RunResult { run, score, error });
        }
        results
    }

    const DISK_FULL: Option<&str> = Some("cannot write x: the disk is full");

    #[test]
    fn a_failure_by_which_tpe_has_chosen_the_next_batch_stays() {
        let known = |search: Search, errors: &[Option<&str>]| -> Vec<usize> {
            let config = SweepConfig { search, trials: 6, batch: 2, ..SweepConfig::default() };
            let mut results = results(errors, 1);
            forget_failures(&mut results, &config, 1);
            results.latest_results.into_keys().map(|run| run.trial).collect()
        };
        let all = [DISK_FULL; 6];
        assert_eq!(known(Search::Tpe, &all[..3]), [0, 1], "the second batch is not complete");
        assert_eq!(known(Search::Tpe, &[DISK_FULL, None, DISK_FULL, None]), [0, 1, 2, 3]);
        assert_eq!(known(Search::Tpe, &all), [0, 1, 2, 3], "no batch follows the third");
        assert_eq!(known(Search::Random, &all), [0; 0]);
        assert_eq!(
            known(Search::Tpe, &[DISK_FULL, None, DISK_FULL, DISK_FULL]),
            [0, 1],
            "the second is lost"
        );
        assert_eq!(known(Search::Tpe, &all[..2]), [0; 0]);
    }

    #[test]
    fn a_batch_is_lost_if_all_of_its_runs_fail_for_another_reason_than_their_settings() {
        let diverged = TrainError::NotFinite { quantity: "loss", iteration: 3 }.to_string();
        let diverged = Some(&*diverged);
        let second = |errors: [Option<&str>; 2], attempts| {
            is_lost_batch(&results(&[None, DISK_FULL, errors[0], errors[1]], attempts), 1)
        };
        assert!(second([DISK_FULL, DISK_FULL], 1));
        assert!(!second([DISK_FULL, DISK_FULL], 2), "a retry did not help");
        assert!(!second([DISK_FULL, None], 1) && !second([DISK_FULL, diverged], 1));
        assert!(is_lost_batch(&results(&[DISK_FULL, diverged], 2), 0), "nothing has a score");
        assert!(!is_lost_batch(&results(&[DISK_FULL; 3], 1), 0), "another batch was chosen by it");
    }
}
