//! A finite list of prompts per split, iterated in passes.

use super::{Prompt, Split, TaskError};
use crate::rng::draw;

/// The prompts of a task with finitely many of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptSet {
    /// Prompts for training.
    pub train: Vec<Prompt>,
    /// Prompts for evaluation.
    pub test: Vec<Prompt>,
}

impl PromptSet {
    /// The prompts of a split, in list order.
    pub fn in_split(&self, split: Split) -> &[Prompt] {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }

    /// The prompts of both splits, those for training first.
    pub fn iter(&self) -> impl Iterator<Item = &Prompt> {
        self.train.iter().chain(&self.test)
    }

    /// Returns prompt number `index` of a split. Test prompts come in list order; training prompts in a
    /// different order in every pass.
    ///
    /// # Errors
    /// [`TaskError::NoPrompt`], with `advice`, if the split is empty.
    pub fn prompt(
        &self,
        task: &str,
        split: Split,
        index: u64,
        advice: &str,
    ) -> Result<Prompt, TaskError> {
        let prompts = self.in_split(split);
        let len = prompts.len() as u64;
        if len == 0 {
            let why = advice.to_string();
            return Err(TaskError::NoPrompt { task: task.to_string(), split: split.name(), why });
        }
        let (pass, position) = (index / len, index % len);
        let position = match split {
            Split::Train => {
                permute(position, len, draw(draw(0x5e75, pass as u32), (pass >> 32) as u32))
            }
            Split::Test => position,
        };
        Ok(prompts[position as usize].clone())
    }
}

/// Returns the image of `position` under a pseudorandom permutation of `0..len` by `key`, computed without a table: a
/// Feistel network (Luby and Rackoff, 1988) on the smallest even number of bits that holds `len`, iterated until the
/// result is below `len` (cycle walking; Black and Rogaway, 2002).
fn permute(position: u64, len: u64, key: u32) -> u64 {
    let half = (u64::BITS - (len - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut position = position;
    loop {
        let (mut left, mut right) = (position >> half, position & mask);
        for round in 0..4 {
            let mixed = u64::from(draw(draw(key, round), right as u32));
            (left, right) = (right, left ^ (mixed & mask));
        }
        position = (left << half) | right;
        if position < len {
            return position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_each_prompt_once_in_a_new_order() {
        for len in [1u64, 2, 3, 7, 64, 65, 1009] {
            let order = |key| -> Vec<u64> {
                (0..len).map(|position| permute(position, len, key)).collect()
            };
            for key in 0..5 {
                let mut sorted = order(key);
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..len), "{len} positions, key {key}");
            }
            assert!(len < 64 || (order(1) != order(2) && !order(1).into_iter().eq(0..len)));
        }
    }

    #[test]
    fn test_prompts_keep_their_order_and_an_empty_split_is_an_error() {
        let prompt = |i: u64| Prompt { text: i.to_string(), ..Prompt::default() };
        let set = PromptSet { train: vec![], test: (0..5).map(prompt).collect() };
        for index in 0..12 {
            assert_eq!(set.prompt("own", Split::Test, index, "").unwrap(), prompt(index % 5));
        }
        let said = set.prompt("own", Split::Train, 0, "add some").unwrap_err().to_string();
        assert_eq!(said, "`own` has no train prompt with these settings: add some");
    }
}
