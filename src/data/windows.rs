//! Pieces of demonstrated episodes, as a trajectory that is learnt from.

use super::{End, HostTrajectory};
use std::ops::Range;

/// Steps that somebody has shown, one episode after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    /// Features of an observation.
    pub num_features: usize,
    /// What was seen before each step: `[rows, num_features]`.
    pub obs: Vec<f32>,
    /// What was done: `[rows]`.
    pub actions: Vec<i32>,
    /// What each step weighs in the loss: `[rows]`.
    pub weights: Vec<f32>,
    /// How the episode stands after each step: `[rows]`. The last step of all ends one.
    pub ends: Vec<End>,
}

impl Columns {
    /// The rows of each episode, in their order.
    pub fn episodes(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let last = self.ends.len();
        let ends = self.ends.iter().enumerate().filter(|(i, end)| end.ended() || i + 1 == last);
        ends.map(|(i, _)| std::mem::replace(&mut start, i + 1)..i + 1).collect()
    }

    /// The episodes that are learnt from, and those that are held out to measure what is learnt: every
    /// `1 / validation`-th, so that both are spread over the whole.
    pub fn split(&self, validation: f64) -> [Vec<Range<usize>>; 2] {
        let every = (1.0 / validation).round().max(2.0) as usize;
        let (held_out, learnt): (Vec<_>, Vec<_>) =
            self.episodes().into_iter().enumerate().partition(|(i, _)| i % every == every - 1);
        [learnt, held_out].map(|part| part.into_iter().map(|(_, episode)| episode).collect())
    }

    /// What a step of each action must weigh so that all steps of an action together weigh as much as
    /// those of any other: `[num_actions]`, with a mean of 1 over the rows of `episodes`. An action that
    /// never comes weighs 0.
    pub fn balance(&self, episodes: &[Range<usize>], num_actions: usize) -> Vec<f32> {
        let mut counts = vec![0usize; num_actions];
        for row in episodes.iter().flat_map(Clone::clone) {
            counts[self.actions[row] as usize] += 1;
        }
        let rows: usize = counts.iter().sum();
        let present = counts.iter().filter(|count| **count > 0).count();
        let weight = |count: usize| match count {
            0 => 0.0,
            count => rows as f32 / (present * count) as f32,
        };
        counts.into_iter().map(weight).collect()
    }
}

/// Windows of up to `num_steps` steps, none across two episodes, as the games of a trajectory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows {
    /// The steps; the log-probabilities, rewards and scores are 0, as nobody tells them.
    pub trajectory: HostTrajectory,
    /// Steps of each window, from its first on: `[num_envs]`.
    pub counts: Vec<usize>,
    /// What each step weighs in the loss, 0 behind a window's last: `[num_envs, num_steps]`.
    pub weights: Vec<f32>,
}

impl Windows {
    /// Cuts `episodes` of `columns` into windows of `num_steps` steps; the last of an episode may be
    /// shorter. A step weighs what the columns say times what `by_action`, `[num_actions]`, says.
    pub fn new(
        columns: &Columns,
        episodes: &[Range<usize>],
        num_steps: usize,
        by_action: &[f32],
    ) -> Self {
        let pieces: Vec<Range<usize>> = episodes
            .iter()
            .flat_map(|episode| {
                let starts = episode.clone().step_by(num_steps);
                starts.map(|start| start..episode.end.min(start + num_steps))
            })
            .collect();
        let features = columns.num_features;
        let mut trajectory = HostTrajectory::default();
        trajectory.resize(pieces.len(), num_steps, features);
        let stride = trajectory.obs_stride();
        let mut weights = vec![0.0; pieces.len() * num_steps];
        for (window, rows) in pieces.iter().enumerate() {
            for (slot, row) in (window * num_steps..).zip(rows.clone()) {
                let obs = &columns.obs[row * features..][..features];
                trajectory.obs[slot * stride..][..features].copy_from_slice(obs);
                trajectory.actions[slot] = columns.actions[row];
                trajectory.ends[slot] = columns.ends[row];
                weights[slot] = columns.weights[row] * by_action[columns.actions[row] as usize];
            }
        }
        let counts = pieces.iter().map(Range::len).collect();
        Self { trajectory, counts, weights }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// 1 for each step of a window, 0 behind its last: `[num_envs, num_steps]`.
    pub fn mask(&self) -> Vec<f32> {
        let steps = self.trajectory.num_steps;
        let row = |count: &usize| (0..steps).map(|t| f32::from(t < *count)).collect::<Vec<_>>();
        self.counts.iter().flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Episodes of 3, 1 and 4 steps; the last has no mark of its end.
    fn columns() -> Columns {
        let ends = [0, 0, 1, 2, 0, 0, 0, 0];
        Columns {
            num_features: 2,
            obs: (0..16).map(|i| i as f32).collect(),
            actions: vec![0, 1, 1, 1, 0, 1, 1, 1],
            weights: vec![1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            ends: ends.map(|end| [End::None, End::Terminated, End::Truncated][end]).to_vec(),
        }
    }

    #[test]
    fn windows_lie_within_episodes() {
        let columns = columns();
        assert_eq!(columns.episodes(), [0..3, 3..4, 4..8]);
        let windows = Windows::new(&columns, &columns.episodes(), 3, &[1.0, 10.0]);
        assert_eq!(windows.counts, [3, 1, 3, 1]);
        assert_eq!(windows.weights[..6], [1.0, 10.0, 20.0, 10.0, 0.0, 0.0]);
        assert_eq!(windows.mask(), [1., 1., 1., 1., 0., 0., 1., 1., 1., 1., 0., 0.]);
        let stride = windows.trajectory.obs_stride();
        assert_eq!(windows.trajectory.obs[9 * stride..][..3], [14.0, 15.0, 0.0]);
        assert_eq!(windows.trajectory.actions, [0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn no_episode_is_learnt_from_and_held_out() {
        let [learnt, held_out] = columns().split(0.34);
        assert_eq!(learnt, [0..3, 3..4]);
        assert_eq!((held_out.len(), held_out[0].clone()), (1, 4..8));
    }

    #[test]
    fn balanced_weights_make_actions_equal() {
        let columns = columns();
        // Two steps of the first action, six of the second.
        assert_eq!(columns.balance(&columns.episodes(), 3), [2.0, 8.0 / 12.0, 0.0]);
    }
}
