//! The task `sort`: write digits in ascending order.

use super::generated::GeneratedTask;
use super::scoring::{agreement, indicator};
use super::split::RandomStream;
use super::{Completion, Prompt, RewardPart, Task};
use crate::schema::settings;

settings! {
    /// Sorts digits.
    pub struct Sort: Copy, Eq {
        /// Number of digits in a prompt.
        length: u32 = 8, in integer(2..=1000);
    }
}

impl GeneratedTask for Sort {
    const NAME: &'static str = "sort";
    /// Exact match; fraction of correct positions; the right number of digits and nothing else.
    const PARTS: &'static [RewardPart] = &[
        RewardPart::named("exact", 0.5),
        RewardPart::named("digits", 0.4),
        RewardPart::named("format", 0.1),
    ];

    /// Prompts with the same digits in any order belong to the same split.
    fn draw(&self, random: &mut RandomStream) -> Option<(String, Prompt)> {
        let digits: String =
            (0..self.length).map(|_| char::from(b'0' + random.below(10) as u8)).collect();
        let mut sorted: Vec<char> = digits.chars().collect();
        sorted.sort_unstable();
        let sorted: String = sorted.into_iter().collect();
        let question = format!(
            "Sort the digits of {digits} in ascending order. Keep every digit. Answer with the sorted \
             digits alone."
        );
        let prompt = Prompt::with_solution(format!("{digits}>"), question, &sorted);
        Some((sorted, prompt))
    }

    /// Accepts spaces and commas between digits, since many models write lists that way.
    fn score(&self, completion: &Completion) -> Vec<f64> {
        let expected = self.solution(completion.prompt).unwrap_or_default().into_bytes();
        let answer: Vec<u8> = completion.text.bytes().filter(u8::is_ascii_digit).collect();
        let is_plain = completion.text.chars().all(|c| c.is_ascii_digit() || " ,\n".contains(c));
        let has_format = is_plain && answer.len() == expected.len();
        let is_exact = has_format && answer == expected;
        vec![indicator(is_exact), agreement(&answer, &expected), indicator(has_format)]
    }

    fn characters(&self) -> String {
        "0123456789>".to_string()
    }

    fn max_solution_chars(&self) -> usize {
        self.length as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::generated::score_answer;
    use serde_json::json;

    fn rewards(answer: &str) -> Vec<f64> {
        score_answer(&Sort { length: 4 }, json!({ "solution": "0123" }), answer)
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
