//! Prompts by number: which split a prompt belongs to, and what it is drawn from.

use super::TaskError;
use crate::rng::draw;
use serde::{Deserialize, Serialize};

/// Prompts to learn from, and others to measure with. No prompt is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// To learn from.
    Train,
    /// To measure with.
    Test,
}

impl Split {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "test",
        }
    }

    /// The split that a generated prompt belongs to, by what makes it itself: one in eight is for testing.
    pub(super) fn of(identity: &str) -> Self {
        if hash(identity) & 7 == 0 { Split::Test } else { Split::Train }
    }
}

/// 32 bits of a text, by our draws: the same on every machine.
fn hash(text: &str) -> u32 {
    let key = draw(0x7a5c, text.len() as u32);
    text.bytes().fold(key, |key, byte| draw(key, u32::from(byte)))
}

/// What one attempt at a prompt is drawn from, a number after the other.
pub(super) struct Random {
    key: u32,
    counter: u32,
}

impl Random {
    /// The draws of the path `task`, split, index, attempt.
    fn new(task: &str, split: Split, index: u64, attempt: u32) -> Self {
        let key = draw(hash(task), split as u32);
        let key = draw(draw(key, index as u32), (index >> 32) as u32);
        Self { key: draw(key, attempt), counter: 0 }
    }

    /// Uniform in `0..n`; the bias is below `n / 2^64`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        let high = u64::from(draw(self.key, self.counter));
        let low = u64::from(draw(self.key, self.counter.wrapping_add(1)));
        self.counter = self.counter.wrapping_add(2);
        ((u128::from((high << 32) | low) * u128::from(n)) >> 64) as u64
    }
}

/// Attempts at a prompt until one is in the split that is asked for. Half of them do where the other half
/// is in the wrong split, so that this many fail only where hardly any prompt is right.
const ATTEMPTS: u32 = 10_000;

/// The first prompt that `make` draws which is in `split` by what it calls itself. `make` gives `None`
/// where the draws make no prompt.
pub(super) fn in_split<T>(
    task: &str,
    split: Split,
    index: u64,
    mut make: impl FnMut(&mut Random) -> Option<(String, T)>,
) -> Result<T, TaskError> {
    for attempt in 0..ATTEMPTS {
        let made = make(&mut Random::new(task, split, index, attempt));
        if let Some((identity, prompt)) = made
            && Split::of(&identity) == split
        {
            return Ok(prompt);
        }
    }
    let why = "there are too few prompts to divide; make them longer".to_string();
    Err(TaskError::NoPrompt { task: task.to_string(), split: split.name(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_the_splits_have_their_shares() {
        let n = 100_000u32;
        let mut histogram = [0u32; 10];
        let mut tests = 0;
        for i in 0..n {
            let mut random = Random::new("task", Split::Train, u64::from(i), 0);
            random.below(7);
            histogram[random.below(10) as usize] += 1;
            tests += u32::from(Split::of(&i.to_string()) == Split::Test);
        }
        let expected = f64::from(n) / 10.0;
        let chi2: f64 =
            histogram.iter().map(|&h| (f64::from(h) - expected).powi(2) / expected).sum();
        assert!(chi2 < 33.7, "chi-square {chi2}"); // 99.99 % quantile with 9 degrees of freedom
        assert!((f64::from(tests) / f64::from(n) - 0.125).abs() < 0.005, "{tests}");
    }

    #[test]
    fn large_indices_are_prompts_of_their_own() {
        let at = |index| Random::new("task", Split::Train, index, 0).below(u64::MAX);
        let all = [0, 1, 1 << 32, u64::MAX].map(at);
        assert!((1..4).all(|i| !all[..i].contains(&all[i])), "{all:?}");
    }

    #[test]
    fn a_split_that_cannot_be_is_an_error_and_no_endless_loop() {
        let only = in_split("few", Split::Test, 0, |_| Some(("same".to_string(), ())));
        let other = in_split("few", Split::Train, 0, |_| Some(("same".to_string(), ())));
        assert!(only.is_err() != other.is_err());
        let none: Result<(), _> = in_split("none", Split::Train, 3, |_| None);
        let said = none.unwrap_err().to_string();
        assert!(said.starts_with("`none` has no train prompt with these settings: "), "{said}");
    }
}
