//! Demonstrated steps, in memory here or on disk in `shards.rs`.

use super::EpisodeStatus;
use std::fmt::Debug;
use std::ops::Range;

/// Demonstrated steps in order, one episode after another.
pub trait Steps: Debug + Send + Sync {
    /// Features per observation.
    fn num_features(&self) -> usize;

    /// Number of steps.
    fn len(&self) -> usize;

    /// Whether there are no steps.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the observation before a step to `obs`, `[num_features]`.
    fn observe(&self, step: usize, obs: &mut [f32]);

    /// Action of a step.
    fn action(&self, step: usize) -> i32;

    /// Weight of a step in the loss; 0 if the step has no label.
    fn weight(&self, step: usize) -> f32;

    /// Episode status after a step. The last step always ends an episode.
    fn status(&self, step: usize) -> EpisodeStatus;

    /// Step range of each episode in order.
    fn episodes(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let last = self.len();
        let ends = (0..last).filter(|i| self.status(*i).has_ended() || i + 1 == last);
        ends.map(|i| std::mem::replace(&mut start, i + 1)..i + 1).collect()
    }

    /// Action weights that give every action the same total weight: `[num_actions]`, with mean 1
    /// over the weighted steps of `episodes`. Actions that do not occur have weight 0.
    fn balanced_action_weights(&self, episodes: &[Range<usize>], num_actions: usize) -> Vec<f32> {
        let mut sums = vec![0.0f64; num_actions];
        for step in episodes.iter().flat_map(Clone::clone) {
            sums[self.action(step) as usize] += f64::from(self.weight(step));
        }
        let total: f64 = sums.iter().sum();
        let present = sums.iter().filter(|sum| **sum > 0.0).count() as f64;
        let weight = |sum: f64| if sum > 0.0 { (total / (present * sum)) as f32 } else { 0.0 };
        sums.into_iter().map(weight).collect()
    }
}

/// Splits episodes into training and held-out ones. `validation`, above 0 and at most 0.5, is the fraction to hold out:
/// of the first `n` episodes `n * validation`, rounded down, so that both are spread over the whole dataset.
pub fn hold_out(episodes: Vec<Range<usize>>, validation: f64) -> [Vec<Range<usize>>; 2] {
    // 49 times the 49th part is slightly less than 1 in floating point.
    let num_held_out = |first: usize| (first as f64 * validation + 1e-9) as usize;
    let (mut learnt, mut held_out) = (Vec::new(), Vec::new());
    for (i, episode) in episodes.into_iter().enumerate() {
        let is_held_out = num_held_out(i + 1) > num_held_out(i);
        let part = if is_held_out { &mut held_out } else { &mut learnt };
        part.push(episode);
    }
    [learnt, held_out]
}

/// Steps in memory, column by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepColumns {
    /// Features per observation.
    pub num_features: usize,
    /// Observations: `[steps, num_features]`.
    pub obs: Vec<f32>,
    /// Actions: `[steps]`.
    pub actions: Vec<i32>,
    /// Weights in the loss: `[steps]`.
    pub weights: Vec<f32>,
    /// Episode status after each step: `[steps]`. The last step always ends an episode.
    pub statuses: Vec<EpisodeStatus>,
}

impl StepColumns {
    /// Copies steps from any source.
    pub fn from_steps(steps: &dyn Steps) -> Self {
        let count = steps.len();
        let num_features = steps.num_features();
        let mut obs = vec![0.0; count * num_features];
        obs.chunks_mut(num_features).enumerate().for_each(|(step, obs)| steps.observe(step, obs));
        Self {
            num_features,
            obs,
            actions: (0..count).map(|step| steps.action(step)).collect(),
            weights: (0..count).map(|step| steps.weight(step)).collect(),
            statuses: (0..count).map(|step| steps.status(step)).collect(),
        }
    }

    /// Appends the steps of `other`.
    pub fn append(&mut self, other: Self) {
        self.obs.extend(other.obs);
        self.actions.extend(other.actions);
        self.weights.extend(other.weights);
        self.statuses.extend(other.statuses);
    }
}

impl Steps for StepColumns {
    fn num_features(&self) -> usize {
        self.num_features
    }

    fn len(&self) -> usize {
        self.actions.len()
    }

    fn observe(&self, step: usize, obs: &mut [f32]) {
        obs.copy_from_slice(&self.obs[step * self.num_features..][..self.num_features]);
    }

    fn action(&self, step: usize) -> i32 {
        self.actions[step]
    }

    fn weight(&self, step: usize) -> f32 {
        self.weights[step]
    }

    fn status(&self, step: usize) -> EpisodeStatus {
        self.statuses[step]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Episodes of 3, 1 and 4 steps; the last one lacks an end.
    pub fn columns() -> StepColumns {
        use EpisodeStatus::{Running, Terminated, Truncated};
        StepColumns {
            num_features: 2,
            obs: (0..16).map(|i| i as f32).collect(),
            actions: vec![0, 1, 1, 1, 0, 1, 1, 1],
            weights: vec![1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            statuses: [vec![Running, Running, Terminated, Truncated], vec![Running; 4]].concat(),
        }
    }

    #[test]
    fn training_and_held_out_episodes_are_disjoint() {
        assert_eq!(columns().episodes(), [0..3, 3..4, 4..8]);
        let [learnt, held_out] = hold_out(columns().episodes(), 0.34);
        assert_eq!(learnt, [0..3, 3..4]);
        assert_eq!((held_out.len(), held_out[0].clone()), (1, 4..8));
    }

    #[test]
    fn the_share_that_is_asked_for_is_held_out() {
        let split = |share: f64| {
            hold_out((0..100).map(|i| i..i + 1).collect(), share).map(|part| part.len())
        };
        for percent in 1..=50 {
            let [learnt, held_out] = split(percent as f64 / 100.0);
            assert_eq!((learnt, held_out), (100 - percent, percent));
        }
        for every in 2..=99 {
            let [_, held_out] = hold_out((0..1000).map(|i| i..i + 1).collect(), 1.0 / every as f64);
            let expected = (1..=1000).filter(|n| n % every == 0).map(|n| n - 1..n);
            assert!(held_out.into_iter().eq(expected), "every {every}");
        }
    }

    #[test]
    fn balanced_weights_make_actions_equal() {
        let mut columns = columns();
        columns.weights[2] = 1.0;
        // Two steps of the first action, six of the second.
        assert_eq!(columns.balanced_action_weights(&columns.episodes(), 3), [2.0, 8.0 / 12.0, 0.0]);
        // Steps of weight 0 do not count.
        columns.weights[4] = 0.0;
        assert_eq!(
            columns.balanced_action_weights(&columns.episodes(), 2),
            [7.0 / 2.0, 7.0 / 12.0]
        );
    }
}
