//! Trajectories on a device in the packed layout of the fused kernels.
//!
//! Kernels access these buffers without bounds checks. The constructors therefore validate all
//! shapes.

use burn::tensor::{DType, Int, Tensor};

/// A trajectory as written and read by the fused kernels: packed states instead of observations, in
/// parts small enough to bind as buffers.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(crate) num_steps: usize,
    pub(crate) num_envs: usize,
    pub(crate) parts: Vec<RecordingPart>,
}

/// Flag in the highest bit of an action word: the game terminated with the step.
pub const TERMINATED: u32 = 1 << 31;
/// Flag in the second highest bit: the episode was truncated with the step. At most one flag is
/// set.
pub const TRUNCATED: u32 = 1 << 30;
/// Both flags. A word is at least [`TRUNCATED`] if and only if the episode ended with the step; the
/// remaining bits are the action.
pub const ENDED: u32 = TERMINATED | TRUNCATED;

/// Consecutive games of a [`Recording`].
#[derive(Clone, Debug)]
pub struct RecordingPart {
    /// Words `[num_words + 1, num_steps, games]`: the state before each step, then the action with
    /// [`TERMINATED`] or [`TRUNCATED`].
    pub(crate) words: Tensor<3, Int>,
    /// Values `[2 or 3, num_steps, games]`: log-probability of the action, reward and, for games
    /// whose score differs from the reward, the score of the episode that ended with the step, else
    /// 0.
    pub(crate) values: Tensor<3>,
    /// Score of the current episode before the first step, and the number of its steps played before it: `[2, games]`.
    pub(crate) initial_episodes: Tensor<2>,
}

/// Inconsistent tensors, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordingError(String);

fn check_shape(what: &str, found: &[usize], expected: &[usize]) -> Result<(), RecordingError> {
    let expected_text = format!("{expected:?}");
    if found == expected { Ok(()) } else { Err(shape_error(what, found, &expected_text)) }
}

fn shape_error(what: &str, found: &[usize], expected: &str) -> RecordingError {
    RecordingError(format!("{what} has the shape {found:?}, but must have {expected}"))
}

/// Checks that elements are of a type that kernels read.
fn check_element_type(what: &str, found: DType, expected: &[DType]) -> Result<(), RecordingError> {
    if expected.contains(&found) {
        return Ok(());
    }
    let names: Vec<String> = expected.iter().map(|kind| format!("{kind:?}")).collect();
    let names = names.join(" or ").to_lowercase();
    Err(RecordingError(format!("{what} is of {found:?}, but kernels read {names}")))
}

impl RecordingPart {
    /// Creates a part from words `[num_words + 1, num_steps, games]`, values `[2 or 3, num_steps,
    /// games]`, and the scores and steps of the current episodes before the first step `[2, games]`, as written by a
    /// fused rollout.
    ///
    /// # Errors
    /// If the shapes are inconsistent or an element type is not supported.
    pub fn new(
        words: Tensor<3, Int>,
        values: Tensor<3>,
        initial_episodes: Tensor<2>,
    ) -> Result<Self, RecordingError> {
        let [num_words, steps, games] = words.dims();
        if num_words < 2 || steps == 0 || games == 0 {
            let expected = "[2 or more, 1 or more, 1 or more]";
            return Err(shape_error("words", &words.dims(), expected));
        }
        let rows = if values.dims()[0] == 3 { 3 } else { 2 };
        check_shape("values", &values.dims(), &[rows, steps, games])?;
        check_shape("initial_episodes", &initial_episodes.dims(), &[2, games])?;
        check_element_type("words", words.dtype(), &[DType::I32, DType::U32])?;
        check_element_type("values", values.dtype(), &[DType::F32])?;
        check_element_type("initial_episodes", initial_episodes.dtype(), &[DType::F32])?;
        Ok(Self { words, values, initial_episodes })
    }

    /// The words, the values, and the scores and steps before the first step, as [`RecordingPart::new`] takes them.
    pub fn tensors(&self) -> (&Tensor<3, Int>, &Tensor<3>, &Tensor<2>) {
        (&self.words, &self.values, &self.initial_episodes)
    }

    /// Number of word rows: those of a state plus one for the action.
    pub fn num_words(&self) -> usize {
        self.words.dims()[0]
    }

    /// Whether scores of finished episodes are stored; otherwise they are sums of rewards.
    pub fn has_scores(&self) -> bool {
        self.values.dims()[0] > 2
    }

    /// Number of games.
    pub fn num_envs(&self) -> usize {
        self.initial_episodes.dims()[1]
    }
}

impl Recording {
    /// Creates a recording from parts that hold the games in order.
    ///
    /// # Errors
    /// If there are no parts, or they differ in the number of steps or words.
    pub fn new(parts: Vec<RecordingPart>) -> Result<Self, RecordingError> {
        let Some(first) = parts.first() else {
            return Err(RecordingError("there are no parts, but 1 or more are needed".to_string()));
        };
        let ([words, num_steps, _], [values, ..]) = (first.words.dims(), first.values.dims());
        for part in &parts {
            let games = part.num_envs();
            check_shape("the words of a part", &part.words.dims(), &[words, num_steps, games])?;
            check_shape("the values of a part", &part.values.dims(), &[values, num_steps, games])?;
        }
        let num_envs = parts.iter().map(RecordingPart::num_envs).sum();
        Ok(Self { num_steps, num_envs, parts })
    }

    /// Steps per game.
    pub fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Number of games in all parts.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Parts, which hold the games in order.
    pub fn parts(&self) -> &[RecordingPart] {
        &self.parts
    }
}

/// Advantages of a [`Recording`].
#[derive(Clone, Debug)]
pub struct RecordingAdvantages {
    pub(crate) learn_steps: usize,
    pub(crate) parts: Vec<Tensor<2>>,
    pub(crate) summary: Tensor<1>,
}

/// Indices of [`RecordingAdvantages::summary`].
pub mod summary {
    /// Number of steps that count and are learnt from.
    pub const LEARNT_STEPS: usize = 0;
    /// Scale to apply to the advantages.
    pub const SCALE: usize = 1;
    /// Sum of the scores of finished episodes.
    pub const SCORE_SUM: usize = 2;
    /// Number of finished episodes.
    pub const EPISODES: usize = 3;
    /// Sum of the rewards of all steps that count, beyond the learnt ones too.
    pub const REWARD_SUM: usize = 4;
    /// Number of groups whose games all have the same credits.
    pub const ZERO_VARIANCE_GROUPS: usize = 5;
    /// Number of all steps that count, beyond the learnt ones too.
    pub const COUNTED_STEPS: usize = 6;
    /// Number of steps of finished episodes, with those played before the recording.
    pub const ENDED_STEPS: usize = 7;
    /// Length of the summary.
    pub const LEN: usize = 8;
}

impl RecordingAdvantages {
    /// Creates the advantages of the first `learn_steps` steps of a recording: `[learn_steps + 2,
    /// games]` per part, see [`RecordingAdvantages::parts`], and the [`summary`] of all games.
    ///
    /// # Errors
    /// If the shapes do not match the recording, or an element type is not f32.
    pub fn new(
        recording: &Recording,
        learn_steps: usize,
        parts: Vec<Tensor<2>>,
        summary: Tensor<1>,
    ) -> Result<Self, RecordingError> {
        let (num_steps, expected) = (recording.num_steps, recording.parts.len());
        if !(1..=num_steps).contains(&learn_steps) {
            return Err(RecordingError(format!(
                "learn_steps is {learn_steps}, but must be 1 to {num_steps}, the steps of the recording"
            )));
        }
        if parts.len() != expected {
            let message = format!("there are {} parts, but {expected} are needed", parts.len());
            return Err(RecordingError(message));
        }
        for (part, values) in recording.parts.iter().zip(&parts) {
            let expected = [learn_steps + 2, part.num_envs()];
            check_shape("the advantages of a part", &values.dims(), &expected)?;
            check_element_type("the advantages of a part", values.dtype(), &[DType::F32])?;
        }
        check_shape("summary", &summary.dims(), &[summary::LEN])?;
        check_element_type("summary", summary.dtype(), &[DType::F32])?;
        Ok(Self { learn_steps, parts, summary })
    }

    /// Number of steps to learn from.
    pub fn learn_steps(&self) -> usize {
        self.learn_steps
    }

    /// The unscaled advantages, then the number of leading steps that count, then the return of each
    /// game: `[learn_steps + 2, games]` for each part.
    pub fn parts(&self) -> &[Tensor<2>] {
        &self.parts
    }

    /// Totals over all games, indexed by [`summary`].
    pub fn summary(&self) -> &Tensor<1> {
        &self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn part(
        words: [usize; 3],
        values: [usize; 3],
        games: usize,
    ) -> Result<RecordingPart, RecordingError> {
        let device = Device::flex();
        let words = Tensor::<3, Int>::zeros(words, &device).cast(DType::I32);
        let initial_episodes = Tensor::zeros([2, games], &device);
        RecordingPart::new(words, Tensor::zeros(values, &device), initial_episodes)
    }

    #[test]
    fn out_of_bounds_recordings_are_rejected() {
        let message = |part: Result<RecordingPart, RecordingError>| part.unwrap_err().to_string();
        assert!(part([2, 5, 3], [2, 5, 3], 3).is_ok());
        assert!(part([2, 5, 3], [3, 5, 3], 3).is_ok_and(|part| part.has_scores()));
        assert!(message(part([1, 5, 3], [2, 5, 3], 3)).contains("words has the shape [1, 5, 3]"));
        assert!(message(part([2, 5, 3], [2, 4, 3], 3)).contains("must have [2, 5, 3]"));
        assert!(message(part([2, 5, 3], [1, 5, 3], 3)).contains("values has the shape"));
        let games = message(part([2, 5, 3], [2, 5, 3], 4));
        assert!(games.contains("initial_episodes has the shape [2, 4]"));
    }

    #[test]
    fn parts_and_advantages_are_of_one_recording() {
        let (long, short) = (part([2, 5, 3], [2, 5, 3], 3), part([2, 4, 3], [2, 4, 3], 3));
        let (long, short) = (long.unwrap(), short.unwrap());
        assert!(Recording::new(Vec::new()).is_err());
        assert!(Recording::new(vec![long.clone(), short]).is_err());
        let wide = part([2, 5, 7], [2, 5, 7], 7).unwrap();
        let recording = Recording::new(vec![long, wide]).unwrap();
        assert_eq!([recording.num_steps(), recording.num_envs()], [5, 10]);
        let device = Device::flex();
        let advantages = |learn_steps, shapes: &[[usize; 2]], summary: usize| {
            let parts = shapes.iter().map(|shape| Tensor::zeros(*shape, &device)).collect();
            let summary = Tensor::zeros([summary], &device);
            RecordingAdvantages::new(&recording, learn_steps, parts, summary)
        };
        assert!(advantages(4, &[[6, 3], [6, 7]], summary::LEN).is_ok());
        assert!(advantages(6, &[[8, 3], [8, 7]], summary::LEN).is_err(), "steps are missing");
        assert!(advantages(4, &[[6, 3]], summary::LEN).is_err(), "a part is missing");
        assert!(advantages(4, &[[6, 3], [6, 6]], summary::LEN).is_err(), "a game is missing");
        assert!(advantages(4, &[[6, 3], [6, 7]], 5).is_err(), "a fact is missing");
    }
}
