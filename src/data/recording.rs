//! The same on a device, as fused kernels write and read it.
//!
//! Kernels read these buffers without asking how long they are. So nobody outside can put one together
//! whose shapes do not belong together.

use burn::tensor::{DType, Int, Tensor};

/// A trajectory as the fused kernels write and read it: packed states instead of observations, a few
/// words a step, in parts that a device can bind as a buffer.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Steps of each game.
    pub(crate) num_steps: usize,
    /// Games of all parts.
    pub(crate) num_envs: usize,
    /// The parts, which hold the games in order.
    pub(crate) parts: Vec<Part>,
}

/// The highest bit of an action's word: the game came to an end of its own with the step.
pub const TERMINATED: u32 = 1 << 31;
/// The bit below: the episode was cut off with the step. Of the two bits one is set at most.
pub const TRUNCATED: u32 = 1 << 30;
/// Both bits, of which one is set where the episode ended with the step. A word is at least
/// [`TRUNCATED`] then; the other bits are the action.
pub const ENDED: u32 = TERMINATED | TRUNCATED;

/// Some games of a [`Recording`], neighbours.
#[derive(Clone, Debug)]
pub struct Part {
    /// Words `[num_words + 1, num_steps, games]`, bit by bit: the state before each step, and last the
    /// action taken, with [`TERMINATED`] or [`TRUNCATED`] where the episode ended with the step.
    pub(crate) words: Tensor<3, Int>,
    /// Numbers `[2 or 3, num_steps, games]`: the action's log-probability, the reward; and of games
    /// whose score is not their reward, the score of the episode that ended with the step, else 0.
    pub(crate) values: Tensor<3>,
    /// The score at the first step of the episode then under way: `[games]`.
    pub(crate) first_scores: Tensor<1>,
}

/// Tensors that do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// A tensor of another shape.
    #[error("{what} has the shape {found:?}, but must have {expected}")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that it must have.
        expected: String,
    },
    /// Elements that do not take 4 bytes, as kernels read them.
    #[error("{what} is of {found}, but kernels read {expected}")]
    Elements {
        /// The tensor.
        what: &'static str,
        /// The type of its elements.
        found: String,
        /// The types that kernels read.
        expected: &'static str,
    },
    /// Another number of parts.
    #[error("there are {found} parts, but {expected} are needed")]
    Parts {
        /// Parts.
        found: usize,
        /// What is needed.
        expected: String,
    },
    /// More steps that are learnt from than were played, or none.
    #[error(
        "learn_steps is {learn_steps}, but must be 1 to {num_steps}, the steps of the recording"
    )]
    LearnSteps {
        /// Steps that are learnt from.
        learn_steps: usize,
        /// Steps that were played.
        num_steps: usize,
    },
}

fn shaped(what: &'static str, found: &[usize], expected: &[usize]) -> Result<(), RecordingError> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (found.to_vec(), format!("{expected:?}"));
    Err(RecordingError::Shape { what, found, expected })
}

fn of_floats(what: &'static str, found: DType) -> Result<(), RecordingError> {
    match found {
        DType::F32 => Ok(()),
        found => {
            Err(RecordingError::Elements { what, found: format!("{found:?}"), expected: "f32" })
        }
    }
}

impl Part {
    /// From words `[num_words + 1, num_steps, games]`, values `[2 or 3, num_steps, games]` and first
    /// scores `[games]`, as a fused rollout writes them.
    ///
    /// # Errors
    /// If the shapes do not belong together, or elements do not take 4 bytes.
    pub fn new(
        words: Tensor<3, Int>,
        values: Tensor<3>,
        first_scores: Tensor<1>,
    ) -> Result<Self, RecordingError> {
        let [num_words, steps, games] = words.dims();
        if num_words < 2 || steps == 0 || games == 0 {
            return Err(RecordingError::Shape {
                what: "words",
                found: words.dims().to_vec(),
                expected: "[2 or more, 1 or more, 1 or more]".to_string(),
            });
        }
        let rows = if values.dims()[0] == 3 { 3 } else { 2 };
        shaped("values", &values.dims(), &[rows, steps, games])?;
        shaped("first_scores", &first_scores.dims(), &[games])?;
        if !matches!(words.dtype(), DType::I32 | DType::U32) {
            let found = format!("{:?}", words.dtype());
            let expected = "i32 or u32";
            return Err(RecordingError::Elements { what: "words", found, expected });
        }
        of_floats("values", values.dtype())?;
        of_floats("first_scores", first_scores.dtype())?;
        Ok(Self { words, values, first_scores })
    }

    /// The rows of its words: those of a state, and the action's.
    pub fn num_words(&self) -> usize {
        self.words.dims()[0]
    }

    /// Whether the scores of the episodes that ended are written down; else they are sums of rewards.
    pub fn has_scores(&self) -> bool {
        self.values.dims()[0] > 2
    }

    /// The number of its games.
    pub fn num_envs(&self) -> usize {
        self.first_scores.dims()[0]
    }
}

impl Recording {
    /// From its parts, which hold the games in order.
    ///
    /// # Errors
    /// If there is no part, or their games are not of the same steps and words.
    pub fn new(parts: Vec<Part>) -> Result<Self, RecordingError> {
        let Some(first) = parts.first() else {
            return Err(RecordingError::Parts { found: 0, expected: "1 or more".to_string() });
        };
        let ([words, num_steps, _], [values, ..]) = (first.words.dims(), first.values.dims());
        for part in &parts {
            let games = part.num_envs();
            shaped("the words of a part", &part.words.dims(), &[words, num_steps, games])?;
            shaped("the values of a part", &part.values.dims(), &[values, num_steps, games])?;
        }
        let num_envs = parts.iter().map(Part::num_envs).sum();
        Ok(Self { num_steps, num_envs, parts })
    }

    /// Steps of each game.
    pub fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Games of all parts.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// The parts, which hold the games in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// The advantages of a [`Recording`].
#[derive(Clone, Debug)]
pub struct RecordingAdvantages {
    /// Steps that are learnt from.
    pub(crate) learn_steps: usize,
    /// Of each part `[learn_steps + 2, games]`: the advantages, before they are multiplied by the
    /// scale; the number of these steps that count, which are the first ones; the game's return.
    pub(crate) parts: Vec<Tensor<2>>,
    /// the numbers of [`summary`] of all games.
    pub(crate) summary: Tensor<1>,
}

/// What the numbers of [`RecordingAdvantages::summary`] are, each by its place.
pub mod summary {
    /// The steps of all games that count.
    pub const STEPS: usize = 0;
    /// What the advantages are to be multiplied by.
    pub const SCALE: usize = 1;
    /// The sum of the scores of the episodes that ended.
    pub const SCORE_SUM: usize = 2;
    /// The number of episodes that ended.
    pub const EPISODES: usize = 3;
    /// The sum of all rewards.
    pub const REWARD_SUM: usize = 4;
    /// The groups whose members are credited alike.
    pub const EVEN_GROUPS: usize = 5;
    /// How many numbers these are.
    pub const LEN: usize = 6;
}

impl RecordingAdvantages {
    /// The advantages of the first `learn_steps` steps of a recording: of each part `[learn_steps + 2,
    /// games]`, see [`RecordingAdvantages::parts`]; and the numbers of [`summary`] of all games.
    ///
    /// # Errors
    /// If the shapes are not those of the recording, or elements are no f32.
    pub fn new(
        recording: &Recording,
        learn_steps: usize,
        parts: Vec<Tensor<2>>,
        summary: Tensor<1>,
    ) -> Result<Self, RecordingError> {
        let (num_steps, expected) = (recording.num_steps, recording.parts.len());
        if !(1..=num_steps).contains(&learn_steps) {
            return Err(RecordingError::LearnSteps { learn_steps, num_steps });
        }
        if parts.len() != expected {
            let expected = expected.to_string();
            return Err(RecordingError::Parts { found: parts.len(), expected });
        }
        for (part, values) in recording.parts.iter().zip(&parts) {
            let expected = [learn_steps + 2, part.num_envs()];
            shaped("the advantages of a part", &values.dims(), &expected)?;
            of_floats("the advantages of a part", values.dtype())?;
        }
        shaped("summary", &summary.dims(), &[summary::LEN])?;
        of_floats("summary", summary.dtype())?;
        Ok(Self { learn_steps, parts, summary })
    }

    /// Steps that are learnt from.
    pub fn learn_steps(&self) -> usize {
        self.learn_steps
    }

    /// Of each part `[learn_steps + 2, games]`: the advantages, before they are multiplied by the
    /// scale; the number of these steps that count, which are the first ones; the game's return.
    pub fn parts(&self) -> &[Tensor<2>] {
        &self.parts
    }

    /// the numbers of [`summary`] of all games.
    pub fn summary(&self) -> &Tensor<1> {
        &self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn part(words: [usize; 3], values: [usize; 3], games: usize) -> Result<Part, RecordingError> {
        let device = Device::flex();
        let words = Tensor::<3, Int>::zeros(words, &device).cast(DType::I32);
        Part::new(words, Tensor::zeros(values, &device), Tensor::zeros([games], &device))
    }

    #[test]
    fn what_a_kernel_would_read_beyond_is_refused() {
        let message = |part: Result<Part, RecordingError>| part.unwrap_err().to_string();
        assert!(part([2, 5, 3], [2, 5, 3], 3).is_ok());
        assert!(part([2, 5, 3], [3, 5, 3], 3).is_ok_and(|part| part.has_scores()));
        assert!(message(part([1, 5, 3], [2, 5, 3], 3)).contains("words has the shape [1, 5, 3]"));
        assert!(message(part([2, 5, 3], [2, 4, 3], 3)).contains("must have [2, 5, 3]"));
        assert!(message(part([2, 5, 3], [1, 5, 3], 3)).contains("values has the shape"));
        assert!(message(part([2, 5, 3], [2, 5, 3], 4)).contains("first_scores has the shape [4]"));
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
            RecordingAdvantages::new(
                &recording,
                learn_steps,
                parts,
                Tensor::zeros([summary], &device),
            )
        };
        assert!(advantages(4, &[[6, 3], [6, 7]], summary::LEN).is_ok());
        assert!(
            advantages(6, &[[8, 3], [8, 7]], summary::LEN).is_err(),
            "more steps than were played"
        );
        assert!(advantages(4, &[[6, 3]], summary::LEN).is_err(), "a part is missing");
        assert!(advantages(4, &[[6, 3], [6, 6]], summary::LEN).is_err(), "a game is missing");
        assert!(advantages(4, &[[6, 3], [6, 7]], 5).is_err(), "a fact is missing");
    }
}
