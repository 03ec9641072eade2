//! Results of a sweep's runs, and their file.

use super::{Search, SweepFile};
use crate::disk::{self, input};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// File of results inside a sweep, one line per run.
pub const RESULTS: &str = "results.jsonl";

/// Result of a run, as stored in the file of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    pub trial: usize,
    pub round: u32,
    pub seed: u64,
    /// Score of the best policy on fresh episodes; `None` if the run failed.
    pub score: Option<f64>,
    pub error: Option<String>,
}

/// Results by trial, round and seed.
pub type Results = BTreeMap<(usize, u32, u64), RunResult>;

/// Scores of a trial by seed; `None` unless all runs have one.
pub fn scores(results: &Results, trial: usize, round: u32, seeds: &[u64]) -> Option<Vec<f64>> {
    seeds.iter().map(|seed| results.get(&(trial, round, *seed))?.score).collect()
}

/// Removes the results of failed runs, which are then tried again: a full disk or lack of memory may have been the
/// reason. A failure that TPE already used to choose its next batch stays, since a success would lead to other trials.
pub fn forget_failures(results: &mut Results, file: &SweepFile, seeds: usize) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    results.keys().for_each(|(_, batch, _)| *counts.entry(*batch).or_insert(0) += 1);
    let has_next = |batch: u32| {
        let is_last = (batch as usize + 1).saturating_mul(file.batch) >= file.trials;
        file.search == Search::Tpe && !is_last && counts[&batch] == file.batch * seeds
    };
    results.retain(|(_, batch, _), result| result.error.is_none() || has_next(*batch));
}

/// Reads the results in a file, and removes an incomplete last line, so that the next one starts on a new line.
pub fn read_results(path: &Path) -> io::Result<Results> {
    let Some(file) = input::if_present(input::open(path))? else { return Ok(Results::new()) };
    let (mut results, mut end) = (Results::new(), 0);
    for line in input::lines(file) {
        let line = line?;
        if !line.ends_with(b"\n") {
            disk::truncate(path, end)?;
            break;
        }
        end += line.len() as u64;
        if let Ok(result) = serde_json::from_slice::<RunResult>(&line) {
            results.insert((result.trial, result.round, result.seed), result);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_torn_result_costs_no_other() {
        let place = TempDir::new().unwrap();
        let path = place.path().join(RESULTS);
        assert!(read_results(&path).unwrap().is_empty());
        let written = |trial: usize, error: Option<&str>| {
            let (score, error) = (error.is_none().then_some(1.0), error.map(str::to_string));
            let result = RunResult { trial, round: 0, seed: 1, score, error };
            serde_json::to_string(&result).unwrap() + "\n"
        };
        let line = |trial: usize| written(trial, None);
        let third = written(2, Some("é")).into_bytes();
        let middle = third.iter().position(|byte| *byte == 0xc3).unwrap() + 1;
        let torn = [line(0).as_bytes(), line(1).as_bytes(), &third[..middle]].concat();
        fs::write(&path, torn).unwrap();
        assert_eq!(read_results(&path).unwrap().len(), 2);
        let mut file = disk::open_append(&path).unwrap();
        disk::write(&mut file, line(3).as_bytes()).unwrap();
        let trials: Vec<_> = read_results(&path).unwrap().into_keys().map(|key| key.0).collect();
        assert_eq!(trials, [0, 1, 3]);
        // A run that failed is tried again, until it succeeds.
        let known = || {
            let mut results = read_results(&path).unwrap();
            forget_failures(&mut results, &SweepFile::default(), 1);
            results.len()
        };
        disk::write(&mut file, written(4, Some("the disk is full")).as_bytes()).unwrap();
        assert_eq!(known(), 3);
        disk::write(&mut file, line(4).as_bytes()).unwrap();
        assert_eq!(known(), 4);
    }

    #[test]
    fn a_failure_by_which_tpe_has_chosen_the_next_batch_stays() {
        let result = |trial: usize| {
            let (round, error) = (trial as u32 / 2, Some("out of memory".to_string()));
            let seed = 1;
            ((trial, round, seed), RunResult { trial, round, seed, score: None, error })
        };
        let known = |search: Search, count: usize| -> Vec<usize> {
            let file = SweepFile { search, trials: 6, batch: 2, ..SweepFile::default() };
            let mut results: Results = (0..count).map(result).collect();
            forget_failures(&mut results, &file, 1);
            results.into_keys().map(|(trial, ..)| trial).collect()
        };
        assert_eq!(known(Search::Tpe, 3), [0, 1], "the second batch is not complete");
        assert_eq!(known(Search::Tpe, 4), [0, 1, 2, 3]);
        assert_eq!(known(Search::Tpe, 6), [0, 1, 2, 3], "no batch follows the third");
        assert_eq!(known(Search::Random, 6), [0; 0]);
    }
}
