//! Train and test splits of generated prompts, and their random numbers.

use super::TaskError;
use crate::rng::draw;
use crate::schema::names;

names! {
    /// A disjoint subset of a task's prompts.
    pub enum Split {
        /// Prompts for training.
        Train = "train",
        /// Prompts for evaluation.
        Test = "test",
    }
}

impl Split {
    /// Assigns a generated prompt to a split by a hash of its identity; one in eight is for testing.
    pub(super) fn assign(identity: &str) -> Self {
        if hash(identity) & 7 == 0 { Split::Test } else { Split::Train }
    }
}

/// A 32-bit hash of a string, the same on every machine.
fn hash(text: &str) -> u32 {
    let key = draw(0x7a5c, text.len() as u32);
    text.bytes().fold(key, |key, byte| draw(key, u32::from(byte)))
}

/// The stream of random numbers for one attempt to generate a prompt.
pub(super) struct RandomStream {
    key: u32,
    counter: u32,
}

impl RandomStream {
    fn new(task: &str, split: Split, index: u64, attempt: u32) -> Self {
        let key = draw(hash(task), split as u32);
        let key = draw(draw(key, index as u32), (index >> 32) as u32);
        Self { key: draw(key, attempt), counter: 0 }
    }

    /// A uniform number in `0..n`; the bias is below `n / 2^64`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        let high = u64::from(draw(self.key, self.counter));
        let low = u64::from(draw(self.key, self.counter.wrapping_add(1)));
        self.counter = self.counter.wrapping_add(2);
        ((u128::from((high << 32) | low) * u128::from(n)) >> 64) as u64
    }
}

/// Maximum number of attempts to generate a prompt of the requested split. At least one attempt in eight succeeds for
/// the usual tasks, so that all fail only if there are hardly any valid prompts.
const MAX_ATTEMPTS: u32 = 1_000_000;

/// Generates prompts with `make` until one belongs to `split`, and returns it. `make` returns the prompt's
/// identity, which determines its split, and the prompt, or `None` if its draws give no valid prompt.
pub(super) fn generate_in_split<T>(
    task: &str,
    split: Split,
    index: u64,
    mut make: impl FnMut(&mut RandomStream) -> Option<(String, T)>,
) -> Result<T, TaskError> {
    for attempt in 0..MAX_ATTEMPTS {
        let drawn = make(&mut RandomStream::new(task, split, index, attempt));
        if let Some((identity, prompt)) = drawn
            && Split::assign(&identity) == split
        {
            return Ok(prompt);
        }
    }
    let why = format!(
        "none of {MAX_ATTEMPTS} draws gives one, since valid prompts are rare or too few to split; allow more of them"
    );
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
            let mut random = RandomStream::new("task", Split::Train, u64::from(i), 0);
            random.below(7);
            histogram[random.below(10) as usize] += 1;
            tests += u32::from(Split::assign(&i.to_string()) == Split::Test);
        }
        let expected = f64::from(n) / 10.0;
        let chi2: f64 =
            histogram.iter().map(|&h| (f64::from(h) - expected).powi(2) / expected).sum();
        assert!(chi2 < 33.7, "chi-square {chi2}"); // 99.99 % quantile with 9 degrees of freedom
        assert!((f64::from(tests) / f64::from(n) - 0.125).abs() < 0.005, "{tests}");
    }

    #[test]
    fn large_indices_are_prompts_of_their_own() {
        let at = |index| RandomStream::new("task", Split::Train, index, 0).below(u64::MAX);
        let all = [0, 1, 1 << 32, u64::MAX].map(at);
        assert!((1..4).all(|i| !all[..i].contains(&all[i])), "{all:?}");
    }

    #[test]
    fn an_impossible_split_is_an_error() {
        let only = generate_in_split("few", Split::Test, 0, |_| Some(("same".to_string(), ())));
        let other = generate_in_split("few", Split::Train, 0, |_| Some(("same".to_string(), ())));
        assert!(only.is_err() != other.is_err());
        let none: Result<(), _> = generate_in_split("none", Split::Train, 3, |_| None);
        let said = none.unwrap_err().to_string();
        assert!(said.starts_with("`none` has no train prompt with these settings: "), "{said}");
    }
}
