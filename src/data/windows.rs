//! Fixed-size windows of demonstrated episodes, batched as trajectories.

use super::{EpisodeStatus, NativeTrajectory, OBS_MULTIPLE, Steps};
use std::ops::Range;
use std::sync::Arc;

/// Options for cutting episodes into windows.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowOptions {
    /// Steps per window that contribute to the loss, at least 1.
    pub window: usize,
    /// Context steps before those, at most back to the start of the episode; they have weight 0.
    pub history: usize,
    /// Number of stacked observations per step, at least 1, the current one last, zero-padded before the episode.
    pub stack: usize,
    /// Weight of each action, multiplied with the weights of the steps: `[num_actions]`.
    pub action_weights: Vec<f32>,
}

impl WindowOptions {
    /// Windows of `window` steps without context and with equal action weights.
    pub fn new(window: usize, num_actions: usize) -> Self {
        Self { window, history: 0, stack: 1, action_weights: vec![1.0; num_actions] }
    }
}

/// Windows over some episodes, as indices; steps are copied on demand.
#[derive(Clone, Debug)]
pub struct WindowSet {
    steps: Arc<dyn Steps>,
    options: WindowOptions,
    /// All windows in order. Only the start of each span is stored; the end of a window is found from the ends of the
    /// episodes. A dataset of many windows thus takes little memory.
    spans: Vec<WindowSpan>,
    /// The indices of the selected windows among those of `spans`.
    selected: Range<usize>,
    /// Factor on all weights that makes their mean 1 over all steps, context included.
    scale: f32,
}

/// Windows whose losses start at steps of equal distance, the length of a window.
#[derive(Clone, Copy, Debug)]
struct WindowSpan {
    first_window: usize,
    /// The first step of that window that contributes to the loss.
    first_step: usize,
}

impl WindowSet {
    /// Cuts `episodes` of `steps`, each one whole, into windows. Windows do not cross episodes, the last one of an
    /// episode may be shorter, and windows of total weight 0 are dropped.
    ///
    /// # Panics
    /// If `options.window` is 0, or an action has no weight.
    pub fn new(steps: Arc<dyn Steps>, episodes: &[Range<usize>], options: WindowOptions) -> Self {
        let mut this = Self { steps, options, spans: Vec::new(), selected: 0..0, scale: 1.0 };
        // Steps of the windows, context included, and their total weight.
        let mut num_steps = 0;
        let mut total_weight = 0.0;
        for episode in episodes {
            for first in episode.clone().step_by(this.options.window) {
                let learnt = first..episode.end.min(first.saturating_add(this.options.window));
                if !learnt.clone().any(|step| this.steps.weight(step) > 0.0) {
                    continue;
                }
                num_steps += learnt.len() + this.options.history.min(first - episode.start);
                for step in learnt {
                    let action_weight =
                        this.options.action_weights[this.steps.action(step) as usize];
                    total_weight += f64::from(this.steps.weight(step) * action_weight);
                }
                this.push(first);
            }
        }
        if total_weight > 0.0 {
            this.scale = (num_steps as f64 / total_weight) as f32;
        }
        this
    }

    /// Appends a window whose loss starts at step `first`.
    fn push(&mut self, first: usize) {
        let window = self.selected.end;
        if self.spans.is_empty() || self.first_learnt_step(window) != first {
            self.spans.push(WindowSpan { first_window: window, first_step: first });
        }
        self.selected.end += 1;
    }

    /// The step at which the loss of the window at `index` starts.
    fn first_learnt_step(&self, index: usize) -> usize {
        let span = self.spans[self.spans.partition_point(|span| span.first_window <= index) - 1];
        span.first_step + (index - span.first_window) * self.options.window
    }

    /// Keeps the windows of this range; their weights do not change.
    pub fn select(mut self, range: Range<usize>) -> Self {
        let Range { start, end } = self.selected;
        self.selected = (start + range.start).min(end)..(start + range.end).min(end);
        self
    }

    /// The steps that contribute to the loss of the window that learns from step `first` on.
    fn learnt_steps(&self, first: usize) -> Range<usize> {
        let range = first..self.steps.len().min(first.saturating_add(self.options.window));
        let last = range.clone().find(|step| self.steps.status(*step).has_ended());
        first..last.map_or(range.end, |last| last + 1)
    }

    /// The number of steps before `first` in its episode, at most `max`.
    fn num_context_steps(&self, first: usize, max: usize) -> usize {
        let earlier = (first.saturating_sub(max)..first).rev();
        earlier.take_while(|step| !self.steps.status(*step).has_ended()).count()
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.selected.len()
    }

    /// Whether there are no windows.
    pub fn is_empty(&self) -> bool {
        self.selected.is_empty()
    }

    /// Maximum number of steps per window.
    pub fn num_steps(&self) -> usize {
        self.options.window + self.options.history
    }

    /// Size of all windows in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let features = self.steps.num_features() * self.options.stack;
        let stride = features.next_multiple_of(OBS_MULTIPLE);
        (step_bytes(stride) * self.num_steps()) as u64 * self.len() as u64
    }

    /// Copies all windows into one batch.
    pub fn copy_all(&self) -> WindowBatch {
        let mut windows = WindowBatch::default();
        self.fill(0..self.len(), &mut windows);
        windows
    }

    /// Replaces the contents of `windows` with the windows of the given indices.
    pub fn fill(&self, indices: impl ExactSizeIterator<Item = usize>, windows: &mut WindowBatch) {
        let (num_windows, num_steps) = (indices.len(), self.num_steps());
        let WindowBatch { trajectory, counts, weights } = windows;
        trajectory.resize(num_windows, num_steps, self.steps.num_features() * self.options.stack);
        trajectory.obs.fill(0.0);
        trajectory.actions.fill(0);
        trajectory.statuses.fill(EpisodeStatus::Running);
        weights.clear();
        weights.resize(num_windows * num_steps, 0.0);
        counts.clear();
        for (window, index) in indices.enumerate() {
            counts.push(self.fill_window(index, window * num_steps, trajectory, weights));
        }
    }

    /// Copies the window at `index` to the steps of `trajectory` and `weights` from `first_slot` on. Returns its number
    /// of steps.
    fn fill_window(
        &self,
        index: usize,
        first_slot: usize,
        trajectory: &mut NativeTrajectory,
        weights: &mut [f32],
    ) -> usize {
        let WindowOptions { stack, history, ref action_weights, .. } = self.options;
        let (width, stride) = (self.steps.num_features(), trajectory.obs_stride());
        let learnt = self.learnt_steps(self.first_learnt_step(self.selected.start + index));
        // The first step of the episode that an observation of the window may show.
        let first_shown = learnt.start - self.num_context_steps(learnt.start, history + stack - 1);
        let steps = learnt.start - history.min(learnt.start - first_shown)..learnt.end;
        for (slot, step) in (first_slot..).zip(steps.clone()) {
            let obs = &mut trajectory.obs[slot * stride..][..width * stack];
            for (age, obs) in obs.rchunks_exact_mut(width).enumerate() {
                if step >= first_shown + age {
                    self.steps.observe(step - age, obs);
                }
            }
            let action = self.steps.action(step);
            trajectory.actions[slot] = action;
            trajectory.statuses[slot] = self.steps.status(step);
            if learnt.contains(&step) {
                let action_weight = action_weights[action as usize];
                weights[slot] = self.steps.weight(step) * action_weight * self.scale;
            }
        }
        steps.len()
    }
}

/// Size in bytes of a step in memory: the observation, `[obs_stride]`; action, weight, log-probability and reward; the
/// end.
const fn step_bytes(obs_stride: usize) -> usize {
    size_of::<f32>() * (obs_stride + 4) + 1
}

/// A batch of windows, in the layout of a trajectory with one window per game.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowBatch {
    /// Steps; log-probabilities, rewards and scores are 0.
    pub trajectory: NativeTrajectory,
    /// Number of steps of each window: `[num_envs]`.
    pub counts: Vec<usize>,
    /// Weight of each step in the loss, 0 past the end of a window: `[num_envs, num_steps]`.
    pub weights: Vec<f32>,
}

impl WindowBatch {
    /// Number of windows.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there are no windows.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.trajectory.actions.len() * step_bytes(self.trajectory.obs_stride())) as u64
    }

    /// 1 for each step of a window, 0 past its end: `[num_envs, num_steps]`.
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

    fn window_set(options: WindowOptions) -> WindowSet {
        let columns = columns();
        let episodes = columns.episodes();
        WindowSet::new(Arc::new(columns), &episodes, options)
    }

    #[test]
    fn windows_lie_within_episodes() {
        let options = WindowOptions { action_weights: vec![1.0, 10.0], ..WindowOptions::new(3, 2) };
        let windows = window_set(options).copy_all();
        assert_eq!(windows.counts, [3, 1, 3, 1]);
        // Scaled to mean 1: the raw weights of 8 steps sum to 72.
        let ninth = [1.0, 10.0, 20.0, 10.0, 0.0, 0.0].map(|w: f32| w * (8.0 / 72.0) as f32);
        assert_eq!(windows.weights[..6], ninth);
        assert_eq!(windows.mask(), [1., 1., 1., 1., 0., 0., 1., 1., 1., 1., 0., 0.]);
        let stride = windows.trajectory.obs_stride();
        assert_eq!(windows.trajectory.obs[9 * stride..][..3], [14.0, 15.0, 0.0]);
        assert_eq!(windows.trajectory.actions, [0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn history_is_seen_and_not_learnt_from() {
        let windows =
            window_set(WindowOptions { history: 1, ..WindowOptions::new(2, 2) }).copy_all();
        // Windows of the episodes of 3, 1 and 4 steps.
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
        let windows = window_set(WindowOptions { stack: 3, ..WindowOptions::new(1, 2) }).copy_all();
        assert_eq!(windows.trajectory.num_features, 6);
        let row = |i: usize| &windows.trajectory.obs[i * 8..][..6];
        assert_eq!(row(0), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(row(2), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(row(3), [0.0, 0.0, 0.0, 0.0, 6.0, 7.0], "nothing of the episode before");
        assert_eq!(row(5), [0.0, 0.0, 8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn unlabelled_rows_are_left_out() {
        let mut columns = columns();
        columns.weights = vec![0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0];
        let episodes = columns.episodes();
        let window_set = WindowSet::new(Arc::new(columns), &episodes, WindowOptions::new(2, 2));
        let windows = window_set.copy_all();
        assert_eq!(windows.counts, [1, 2]);
        // Mean 1 over all steps of the windows.
        assert_eq!(windows.weights, [0.75, 0.0, 0.0, 2.25]);
    }

    #[test]
    fn some_windows_are_those_of_all() {
        let window_set =
            window_set(WindowOptions { history: 1, stack: 2, ..WindowOptions::new(2, 2) });
        let all = window_set.copy_all();
        let mut some = WindowBatch::default();
        window_set.fill(0..1, &mut some);
        window_set.fill([3, 1].into_iter(), &mut some);
        let stride = all.trajectory.obs_stride() * 3;
        for (at, which) in [3, 1].into_iter().enumerate() {
            let rows = |windows: &WindowBatch, i: usize| {
                let obs = windows.trajectory.obs[i * stride..][..stride].to_vec();
                let weights = windows.weights[i * 3..][..3].to_vec();
                let actions = windows.trajectory.actions[i * 3..][..3].to_vec();
                (obs, weights, actions, windows.counts[i])
            };
            assert_eq!(rows(&some, at), rows(&all, which));
        }
        assert_eq!(window_set.bytes(), 5 * 3 * ((4 + 4) * 4 + 1));
        assert_eq!(window_set.bytes(), all.bytes());
    }
}
