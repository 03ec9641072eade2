//! Search algorithms: each chooses the trials of a round from the results of earlier rounds.
//!
//! A round depends only on the sweep's file and earlier results, so an interrupted sweep continues to the same table.

use super::SweepConfig;
use super::space::{
    Point, Range, choice_index, count_points, draw_point, grid_points, settings_at,
};
use crate::rng::{draw, uniform};
use crate::run::pluralize;
use crate::schema::names;
use std::collections::HashSet;

names! {
    /// A search algorithm.
    #[derive(Default)]
    pub enum Search {
        /// All combinations.
        Grid = "grid",
        /// Independent draws (Bergstra and Bengio 2012).
        #[default]
        Random = "random",
        /// Successive halving (Jamieson and Talwalkar 2016): random trials start with few iterations, and the best of
        /// each round continue with more.
        Halving = "halving",
        /// Tree-structured Parzen estimators (Bergstra et al. 2011).
        Tpe = "tpe",
    }
}

/// A trial with its score, if it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Position of its settings in the space.
    pub point: Point,
    /// Last stage of the search in which it was trained, from 0: a round of halving, or a batch of TPE; 0 for the other
    /// searches.
    pub round: u32,
    /// Mean score over its seeds; `None` if a run failed, which ranks below all scores.
    pub score: Option<f64>,
}

/// Selects the trials of a round, appending new ones to `trials`. Returns their indices; none if the search is over.
pub fn select_trials(config: &SweepConfig, trials: &mut Vec<Trial>, round: u32) -> Vec<usize> {
    let first = trials.len();
    let points: Vec<Point> = match (config.search, round) {
        (Search::Grid, 0) => grid_points(&config.space, config.steps),
        (Search::Random | Search::Halving, 0) => draw_points(config, trials, config.trials),
        (Search::Halving, 1..) if round < config.rounds => {
            return promote_best(config, trials, round);
        }
        (Search::Tpe, _) => draw_points(config, trials, config.batch.min(config.trials - first)),
        _ => Vec::new(),
    };
    let trial = |point| Trial { point, round, score: None };
    trials.extend(points.into_iter().map(trial));
    (first..trials.len()).collect()
}

/// Returns the indices of the trials of which `is_ranked` holds, from best to worst; equal ones keep their order.
pub fn rank_trials(trials: &[Trial], is_ranked: impl Fn(&Trial) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..trials.len()).filter(|i| is_ranked(&trials[*i])).collect();
    let score = |i: usize| trials[i].score.unwrap_or(f64::NEG_INFINITY);
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    order
}

/// Promotes the best trials of the last round to this one: 1 of `eta` of them, rounded down, but at least one.
fn promote_best(config: &SweepConfig, trials: &mut [Trial], round: u32) -> Vec<usize> {
    let mut best = rank_trials(trials, |trial| trial.round + 1 == round);
    best.truncate((best.len() / config.eta as usize).max(1));
    best.retain(|i| trials[*i].score.is_some());
    best.sort();
    best.iter().for_each(|i| trials[*i].round = round);
    best
}

/// Ends a search when all settings of its space have been tried, if there are fewer than its trials. Returns a note
/// if so.
pub fn limit_trials(config: &mut SweepConfig) -> Option<String> {
    let num_points = count_points(&config.space)
        .filter(|num_points| *num_points < config.trials && config.search != Search::Grid)?;
    let requested = std::mem::replace(&mut config.trials, num_points);
    Some(format!(
        "The space has {}, fewer than trials ({requested}): the search ends when all have been tried.",
        pluralize(num_points, "point")
    ))
}

/// Attempts to draw new settings before repeated ones are accepted.
const MAX_ATTEMPTS: u32 = 1000;

/// Draws `num_points` new points, avoiding the settings of other trials.
fn draw_points(config: &SweepConfig, trials: &[Trial], num_points: usize) -> Vec<Point> {
    let settings_key = |point: &Point| format!("{:?}", settings_at(&config.space, point));
    let mut known: HashSet<String> =
        trials.iter().map(|trial| settings_key(&trial.point)).collect();
    let draw_new = |index: usize| {
        let attempt = |i: u32| {
            let seed = if i == 0 { config.seed } else { draw(config.seed, u32::MAX - i) };
            // Each further attempt of TPE considers fewer candidates, and so leaves more to chance.
            match (config.search, TPE_CANDIDATES.checked_shr(i).unwrap_or(0)) {
                (Search::Tpe, num_candidates @ 1..) => {
                    draw_tpe_point(config, trials, seed, index as u32, num_candidates)
                }
                _ => draw_point(&config.space, seed, index as u32),
            }
        };
        let fresh = (0..MAX_ATTEMPTS).map(attempt).find(|point| known.insert(settings_key(point)));
        fresh.unwrap_or_else(|| attempt(0))
    };
    (trials.len()..trials.len() + num_points).map(draw_new).collect()
}

/// Number of candidates among which TPE chooses.
const TPE_CANDIDATES: u32 = 24;
/// Fraction of trials that count as good; failed ones never do.
const GOOD_FRACTION: f64 = 0.25;

/// Draws a new point: for each setting independently, draws `num_candidates` values near good trials and takes the one
/// that maximizes p(value | good trials) / p(value | other trials).
fn draw_tpe_point(
    config: &SweepConfig,
    trials: &[Trial],
    seed: u32,
    index: u32,
    num_candidates: u32,
) -> Point {
    let order = rank_trials(trials, |_| true);
    if order.len() < config.batch {
        return draw_point(&config.space, seed, index);
    }
    let num_scored = trials.iter().filter(|trial| trial.score.is_some()).count();
    let num_good = ((GOOD_FRACTION * order.len() as f64).ceil() as usize).min(num_scored);
    let (good, bad) = order.split_at(num_good);
    let key = draw(draw(seed, index), u32::MAX);
    let draw_position = |(d, range): (usize, &Range)| {
        let positions_of = |indices: &[usize]| -> Vec<f64> {
            indices.iter().map(|i| trials[*i].point[d]).collect()
        };
        let (good, bad) = (positions_of(good), positions_of(bad));
        let key = draw(key, d as u32);
        let density = |positions: &[f64], x: f64| match range.num_choices() {
            Some(num_choices) => {
                let choice = |position| choice_index(position, num_choices);
                let same = positions.iter().filter(|position| choice(**position) == choice(x));
                (same.count() as f64 + 1.0) / (positions.len() + num_choices) as f64
            }
            None => kernel_density(positions, x),
        };
        let candidates =
            (0..num_candidates).map(|i| draw_candidate(&good, draw(key, i), range.num_choices()));
        let ratio = |x: f64| density(&good, x) / density(&bad, x);
        let best = candidates.max_by(|a, b| ratio(*a).total_cmp(&ratio(*b)));
        best.expect("there are candidates")
    };
    config.space.values().enumerate().map(draw_position).collect()
}

/// Bandwidth of kernels at `count` positions.
fn bandwidth(count: usize) -> f64 {
    (1.0 / (count as f64 + 1.0)).max(0.08)
}

/// Density at `x` of a mixture of normal kernels at these positions and one uniform distribution over [0, 1].
fn kernel_density(positions: &[f64], x: f64) -> f64 {
    let width = bandwidth(positions.len());
    let kernel =
        |position: &f64| (-0.5 * ((x - position) / width).powi(2)).exp() / (width * 2.506_628_3);
    (1.0 + positions.iter().map(kernel).sum::<f64>()) / (positions.len() as f64 + 1.0)
}

/// Draws a position from that density; a choice is drawn uniformly one time in four.
fn draw_candidate(positions: &[f64], key: u32, num_choices: Option<usize>) -> f64 {
    let random = |i: u32| f64::from(uniform(draw(key, i)));
    let at = choice_index(random(0), positions.len() + 1);
    match (positions.get(at), num_choices) {
        (None, _) => random(1),
        (Some(_), Some(_)) if random(1) < 0.25 => random(2),
        (Some(position), Some(_)) => *position,
        // Box and Muller 1958.
        (Some(position), None) => {
            let normal =
                (-2.0 * (1.0 - random(1)).ln()).sqrt() * (std::f64::consts::TAU * random(2)).cos();
            reflect(position + bandwidth(positions.len()) * normal)
        }
    }
}

/// Reflects a number at the ends of [0, 1) until it is inside; clamping would turn many candidates into an end.
fn reflect(x: f64) -> f64 {
    let x = x.rem_euclid(2.0);
    x.min(2.0 - x).min(1.0 - f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_reflected_at_the_ends() {
        for (x, inside) in [(0.25, 0.25), (-0.25, 0.25), (1.25, 0.75), (-1.25, 0.75), (2.5, 0.5)] {
            assert_eq!(reflect(x), inside);
        }
        assert!(reflect(1.0) < 1.0);
    }

    fn config(search: Search, trials: usize, seed: u32) -> SweepConfig {
        let space = toml::from_str("a = { linear = [0.0, 1.0] }\nb = { choices = [1, 2, 3] }");
        let space = space.unwrap();
        SweepConfig { search, trials, steps: 3, seed, space, ..SweepConfig::default() }
    }

    /// Searches to the end, for the least distance of `a` from 0.7 with the second choice of `b`.
    fn search_to_the_end(config: &SweepConfig) -> (Vec<Trial>, Vec<usize>) {
        let (mut trials, mut counts) = (Vec::new(), Vec::new());
        loop {
            let indices = select_trials(config, &mut trials, counts.len() as u32);
            if indices.is_empty() {
                return (trials, counts);
            }
            counts.push(indices.len());
            for i in indices {
                let point = &trials[i].point;
                let choice = f64::from(u8::from(choice_index(point[1], 3) == 1));
                trials[i].score = Some(choice - (point[0] - 0.7).abs());
            }
        }
    }

    #[test]
    fn halving_keeps_the_best_of_each_round() {
        let (trials, counts) = search_to_the_end(&config(Search::Halving, 27, 5));
        assert_eq!(counts, [27, 9, 3]);
        let best = rank_trials(&trials, |_| true);
        assert!(best[..3].iter().all(|i| trials[*i].round == 2));
        assert!(best[9..].iter().all(|i| trials[*i].round == 0));
        assert_eq!(search_to_the_end(&config(Search::Halving, 32, 5)).1, [32, 10, 3]);
        assert_eq!(search_to_the_end(&config(Search::Halving, 4, 5)).1, [4, 1, 1]);
    }

    #[test]
    fn a_grid_has_all_combinations() {
        assert_eq!(search_to_the_end(&config(Search::Grid, 27, 5)).1, [9]);
    }

    #[test]
    fn settings_are_not_repeated_and_the_search_ends_with_the_last() {
        for search in [Search::Random, Search::Tpe] {
            let choices = "{ choices = [1, 2, 3, 4, 5] }";
            let space = toml::from_str(&format!("a = {choices}\nb = {choices}")).unwrap();
            let mut config = SweepConfig { space, ..config(search, 32, 1) };
            let note = limit_trials(&mut config).unwrap();
            assert!(note.starts_with("The space has 25 points, fewer than trials (32)"), "{note}");
            let (trials, _) = search_to_the_end(&config);
            let positions =
                trials.iter().map(|trial| [0, 1].map(|d| choice_index(trial.point[d], 5)));
            assert_eq!(
                (trials.len(), positions.collect::<HashSet<_>>().len()),
                (25, 25),
                "{search:?}"
            );
            assert_eq!(limit_trials(&mut config), None);
        }
        let mut fractions = config(Search::Random, 32, 1);
        assert_eq!(limit_trials(&mut fractions), None);
    }

    #[test]
    fn tpe_finds_better_trials_than_chance() {
        let mut wins = 0;
        for seed in 0..20 {
            let best = |search| {
                let (trials, _) = search_to_the_end(&config(search, 40, seed));
                let late = &trials[8..];
                late.iter().filter_map(|trial| trial.score).sum::<f64>() / late.len() as f64
            };
            wins += u32::from(best(Search::Tpe) > best(Search::Random));
        }
        assert!(wins >= 19, "{wins} of 20");
    }
}
