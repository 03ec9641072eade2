//! The task `sort`: write digits in ascending order.

use super::split::in_split;
use super::text::{agreement, digits, indicator};
use super::{Completion, Part, Prompt, Rewards, Split, Task, TaskError, TaskSettings};
use crate::schema::settings;
use serde_json::{Map, json};
use std::sync::{Arc, LazyLock};

settings! {
    /// Sorts digits.
    pub struct Sort: Copy, Eq {
        /// Number of digits in a prompt.
        length: u32 = 8, in whole(2..=1000);
    }
}

impl TaskSettings for Sort {
    const NAME: &'static str = "sort";

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        Ok(Arc::new(self))
    }
}

/// Exact match; fraction of correct positions; the right number of digits and nothing else.
static PARTS: LazyLock<[Part; 3]> =
    LazyLock::new(|| [Part::new("exact", 0.5), Part::new("digits", 0.4), Part::new("format", 0.1)]);

impl Task for Sort {
    fn name(&self) -> &str {
        Self::NAME
    }

    /// Prompts with the same digits in any order belong to the same split.
    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        in_split(Self::NAME, split, index, |random| {
            let digits: String =
                (0..self.length).map(|_| char::from(b'0' + random.below(10) as u8)).collect();
            let mut sorted: Vec<char> = digits.chars().collect();
            sorted.sort_unstable();
            let sorted: String = sorted.into_iter().collect();
            let question = format!(
                "Sort the digits of {digits} in ascending order. Keep every digit. Answer with the sorted \
                 digits alone."
            );
            let mut fields = Map::new();
            fields.insert("solution".to_string(), json!(sorted));
            Some((sorted, Prompt::new(format!("{digits}>"), question, fields)))
        })
    }

    fn parts(&self) -> &[Part] {
        &*PARTS
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        Ok(completions.iter().map(|completion| self.rewards(completion)).collect())
    }

    fn alphabet(&self) -> Option<String> {
        Some("0123456789>".to_string())
    }

    fn max_new_tokens(&self) -> usize {
        self.length as usize + 1
    }
}

impl Sort {
    /// Accepts spaces and commas between digits, since many models write lists that way.
    fn rewards(&self, completion: &Completion) -> Rewards {
        let expected = self.solution(completion.prompt).unwrap_or_default().into_bytes();
        let answer = digits(completion.text);
        let plain = completion.text.chars().all(|c| c.is_ascii_digit() || " ,\n".contains(c));
        let format = plain && answer.len() == expected.len();
        let exact = format && answer == expected;
        Rewards::new(vec![indicator(exact), agreement(&answer, &expected), indicator(format)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewards(answer: &str) -> Vec<f64> {
        let mut fields = Map::new();
        fields.insert("solution".to_string(), json!("0123"));
        let prompt = Prompt::new("3120>".to_string(), String::new(), fields);
        Sort { length: 4 }.verify(&[Completion::new(&prompt, answer)]).unwrap().remove(0).parts
    }

    #[test]
    fn answers_are_scored_strictly() {
        assert_eq!(rewards("0123"), [1.0, 1.0, 1.0]);
        assert_eq!(rewards(" 0, 1, 2, 3\n"), [1.0, 1.0, 1.0]);
        assert_eq!(rewards(""), [0.0, 0.0, 0.0]);
        assert_eq!(rewards("0132"), [0.0, 0.5, 1.0]);
        assert_eq!(rewards("0123 0123"), [0.0, 0.5, 0.0]);
        assert_eq!(rewards("00123"), [0.0, 0.2, 0.0]);
        assert_eq!(rewards("The answer is 0123"), [0.0, 1.0, 0.0]);
        // Digits of other scripts and full-width digits do not count.
        assert_eq!(rewards("٠١٢٣"), [0.0, 0.0, 0.0]);
        assert_eq!(rewards("０１２３"), [0.0, 0.0, 0.0]);
        let huge = rewards(&"0123".repeat(1 << 18));
        assert!(huge[0] == 0.0 && huge[1] < 1e-5 && huge[2] == 0.0, "{huge:?}");
    }
}
