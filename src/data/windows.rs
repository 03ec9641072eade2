//! Pieces of what somebody has shown, as a trajectory that is learnt from.

use super::{HostTrajectory, Steps};
use std::ops::Range;
use std::sync::Arc;

/// How episodes are cut into pieces, and what of them is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Steps of a piece that are learnt from.
    pub window: usize,
    /// Steps before them that are seen and not learnt from, as far as the episode has them.
    pub history: usize,
    /// Steps that an observation shows, the present one last and zeros before the episode's first.
    pub stack: usize,
    /// What a step of each action weighs, besides what the steps say themselves: `[num_actions]`.
    pub by_action: Vec<f32>,
}

impl Cut {
    /// Pieces of `window` steps, all actions of the same weight.
    pub fn plain(window: usize, num_actions: usize) -> Self {
        Self { window, history: 0, stack: 1, by_action: vec![1.0; num_actions] }
    }
}

/// A piece of an episode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// Where its episode begins.
    episode: usize,
    /// What is seen of it.
    seen: Range<usize>,
    /// The first step that is learnt from.
    learnt: usize,
}

/// The pieces of some episodes; their steps are copied when they are wanted.
#[derive(Clone, Debug)]
pub struct Pieces {
    steps: Arc<dyn Steps>,
    cut: Cut,
    pieces: Vec<Piece>,
    /// What all weights are multiplied by, so that their mean is 1 over all that is seen.
    scale: f32,
}

impl Pieces {
    /// Cuts `episodes` of `steps`; none reaches across two of them, the last of an episode may be
    /// shorter, and one in which no step weighs anything is left out.
    pub fn new(steps: Arc<dyn Steps>, episodes: &[Range<usize>], cut: Cut) -> Self {
        let piece = |episode: &Range<usize>, learnt: usize| Piece {
            episode: episode.start,
            seen: learnt.saturating_sub(cut.history).max(episode.start)
                ..episode.end.min(learnt + cut.window),
            learnt,
        };
        let pieces: Vec<Piece> = episodes
            .iter()
            .flat_map(|episode| {
                episode.clone().step_by(cut.window).map(|learnt| piece(episode, learnt))
            })
            .filter(|piece| (piece.learnt..piece.seen.end).any(|step| steps.weight(step) > 0.0))
            .collect();
        let seen: usize = pieces.iter().map(|piece| piece.seen.len()).sum();
        let mut all = 0.0;
        for step in pieces.iter().flat_map(|piece| piece.learnt..piece.seen.end) {
            let by_action = cut.by_action[steps.action(step) as usize];
            all += f64::from(steps.weight(step) * by_action);
        }
        let scale = if all > 0.0 { (seen as f64 / all) as f32 } else { 1.0 };
        Self { steps, cut, pieces, scale }
    }

    /// Some of them, which weigh what they weigh among all.
    pub fn some(self, which: Range<usize>) -> Self {
        Self { pieces: self.pieces[which].to_vec(), ..self }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Steps of the longest that there may be.
    pub fn num_steps(&self) -> usize {
        self.cut.window + self.cut.history
    }

    /// Bytes that all of them take in memory.
    pub fn bytes(&self) -> u64 {
        let mut one = HostTrajectory::default();
        one.resize(1, 1, self.steps.num_features() * self.cut.stack);
        // The observation; action, weight, log-probability and reward; the end.
        let step = size_of::<f32>() * (one.obs_stride() + 4) + 1;
        (step * self.num_steps()) as u64 * self.len() as u64
    }

    /// All of them.
    pub fn all(&self) -> Windows {
        let mut windows = Windows::default();
        self.fill(0..self.len(), &mut windows);
        windows
    }

    /// Puts those at these places in place of what `windows` hold.
    pub fn fill(&self, which: impl ExactSizeIterator<Item = usize>, windows: &mut Windows) {
        let Cut { stack, by_action, .. } = &self.cut;
        let (num_steps, width) = (self.num_steps(), self.steps.num_features());
        let Windows { trajectory, counts, weights } = windows;
        trajectory.resize(which.len(), num_steps, width * stack);
        let stride = trajectory.obs_stride();
        trajectory.obs.fill(0.0);
        trajectory.actions.fill(0);
        trajectory.ends.fill(super::End::None);
        weights.clear();
        weights.resize(which.len() * num_steps, 0.0);
        counts.clear();
        for (window, which) in which.enumerate() {
            let piece = &self.pieces[which];
            counts.push(piece.seen.len());
            for (slot, step) in (window * num_steps..).zip(piece.seen.clone()) {
                let obs = &mut trajectory.obs[slot * stride..][..width * stack];
                for (age, obs) in obs.rchunks_exact_mut(width).enumerate() {
                    if step >= piece.episode + age {
                        self.steps.observe(step - age, obs);
                    }
                }
                let action = self.steps.action(step);
                trajectory.actions[slot] = action;
                trajectory.ends[slot] = self.steps.end(step);
                if step >= piece.learnt {
                    let by_action = by_action[action as usize];
                    weights[slot] = self.steps.weight(step) * by_action * self.scale;
                }
            }
        }
    }
}

/// Some pieces, as the games of a trajectory.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        let HostTrajectory { obs, actions, .. } = &self.trajectory;
        // Of a step also the weight, the log-probability, the reward and the end.
        (size_of_val(&obs[..]) + actions.len() * (4 * size_of::<f32>() + 1)) as u64
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
    use super::super::steps::tests::columns;
    use super::*;

    fn pieces(cut: Cut) -> Pieces {
        let columns = columns();
        let episodes = columns.episodes();
        Pieces::new(Arc::new(columns), &episodes, cut)
    }

    #[test]
    fn windows_lie_within_episodes() {
        let cut = Cut { by_action: vec![1.0, 10.0], ..Cut::plain(3, 2) };
        let windows = pieces(cut).all();
        assert_eq!(windows.counts, [3, 1, 3, 1]);
        // Their mean is 1: 72 over 8 steps before they are scaled.
        let ninth = [1.0, 10.0, 20.0, 10.0, 0.0, 0.0].map(|w: f32| w * (8.0 / 72.0) as f32);
        assert_eq!(windows.weights[..6], ninth);
        assert_eq!(windows.mask(), [1., 1., 1., 1., 0., 0., 1., 1., 1., 1., 0., 0.]);
        let stride = windows.trajectory.obs_stride();
        assert_eq!(windows.trajectory.obs[9 * stride..][..3], [14.0, 15.0, 0.0]);
        assert_eq!(windows.trajectory.actions, [0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn history_is_seen_and_not_learnt_from() {
        let windows = pieces(Cut { history: 1, ..Cut::plain(2, 2) }).all();
        // Of the episodes of 3, 1 and 4 steps.
        assert_eq!(windows.counts, [2, 2, 1, 2, 3]);
        let zeros = |row: &[f32]| row.iter().map(|w| *w == 0.0).collect::<Vec<_>>();
        let rows: Vec<_> = windows.weights.chunks(3).map(zeros).collect();
        let (first, later) = (vec![false, false, true], vec![true, false, false]);
        assert_eq!(rows[0], first);
        assert_eq!(rows[1], [true, false, true]);
        assert_eq!(rows[4], later);
        let sum: f32 = windows.weights.iter().sum();
        assert!((sum - windows.counts.iter().sum::<usize>() as f32).abs() < 1e-5);
        let stride = windows.trajectory.obs_stride();
        assert_eq!(windows.trajectory.obs[4 * 3 * stride..][..2], [10.0, 11.0], "step 5");
    }

    #[test]
    fn an_observation_shows_the_steps_before_it() {
        let windows = pieces(Cut { stack: 3, ..Cut::plain(1, 2) }).all();
        assert_eq!(windows.trajectory.num_features, 6);
        let row = |i: usize| &windows.trajectory.obs[i * 8..][..6];
        assert_eq!(row(0), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(row(2), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(row(3), [0.0, 0.0, 0.0, 0.0, 6.0, 7.0], "nothing of the episode before");
        assert_eq!(row(5), [0.0, 0.0, 8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn what_nobody_has_marked_is_left_out() {
        let mut columns = columns();
        columns.weights = vec![0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0];
        let episodes = columns.episodes();
        let pieces = Pieces::new(Arc::new(columns), &episodes, Cut::plain(2, 2));
        let windows = pieces.all();
        assert_eq!(windows.counts, [1, 2]);
        // A mean of 1 over what is seen.
        assert_eq!(windows.weights, [0.75, 0.0, 0.0, 2.25]);
    }

    #[test]
    fn some_windows_are_those_of_all() {
        let pieces = pieces(Cut { history: 1, stack: 2, ..Cut::plain(2, 2) });
        let all = pieces.all();
        let mut some = Windows::default();
        pieces.fill(0..1, &mut some);
        pieces.fill([3, 1].into_iter(), &mut some);
        let stride = all.trajectory.obs_stride() * 3;
        for (at, which) in [3, 1].into_iter().enumerate() {
            let rows = |windows: &Windows, i: usize| {
                let obs = windows.trajectory.obs[i * stride..][..stride].to_vec();
                let weights = windows.weights[i * 3..][..3].to_vec();
                let actions = windows.trajectory.actions[i * 3..][..3].to_vec();
                (obs, weights, actions, windows.counts[i])
            };
            assert_eq!(rows(&some, at), rows(&all, which));
        }
        assert_eq!(pieces.bytes(), 5 * 3 * ((4 + 4) * 4 + 1));
        assert_eq!(pieces.bytes(), all.bytes());
    }
}
