//! The task `reverse`: write letters in reverse order.

use super::generated::GeneratedTask;
use super::scoring::{agreement, indicator};
use super::split::RandomStream;
use super::{Completion, Prompt, RewardPart, Task};
use crate::schema::settings;

settings! {
    /// Reverses letters.
    pub struct Reverse: Copy, Eq {
        /// Number of letters in a prompt.
        length: u32 = 8, in integer(2..=1000);
        /// Size of the alphabet, starting with `a`.
        letters: u32 = 26, in integer(2..=26);
    }
}

impl GeneratedTask for Reverse {
    const NAME: &'static str = "reverse";
    /// Exact match; fraction of correct positions; the right number of letters and nothing else.
    const PARTS: &'static [RewardPart] = &[
        RewardPart::named("exact", 0.5),
        RewardPart::named("letters", 0.4),
        RewardPart::named("format", 0.1),
    ];

    fn draw(&self, random: &mut RandomStream) -> Option<(String, Prompt)> {
        let letter = |i: u64| char::from(b'a' + i as u8);
        let word: String =
            (0..self.length).map(|_| letter(random.below(u64::from(self.letters)))).collect();
        let question = format!(
            "Reverse the letters of {word}. Answer with the reversed letters alone, in lower case."
        );
        let reversed: String = word.chars().rev().collect();
        let prompt = Prompt::with_solution(format!("{word}>"), question, &reversed);
        Some((word, prompt))
    }

    fn score(&self, completion: &Completion) -> Vec<f64> {
        let expected = self.solution(completion.prompt).unwrap_or_default();
        let answer = completion.text.trim();
        let has_format =
            answer.len() == expected.len() && answer.bytes().all(|b| b.is_ascii_lowercase());
        vec![
            indicator(answer == expected),
            agreement(answer.as_bytes(), expected.as_bytes()),
            indicator(has_format),
        ]
    }

    fn characters(&self) -> String {
        ('a'..='z').take(self.letters as usize).chain(['>']).collect()
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
        score_answer(&Reverse::default(), json!({ "solution": "dcba" }), answer)
    }

    #[test]
    fn answers_are_scored_strictly() {
        assert_eq!(rewards("dcba"), [1.0, 1.0, 1.0]);
        assert_eq!(rewards(" dcba\n"), [1.0, 1.0, 1.0]);
        assert_eq!(rewards(""), [0.0, 0.0, 0.0]);
        assert_eq!(rewards("abcd"), [0.0, 0.0, 1.0]);
        assert_eq!(rewards("dcba dcba"), [0.0, 4.0 / 9.0, 0.0]);
        assert_eq!(rewards("DCBA"), [0.0, 0.0, 0.0]);
        assert_eq!(rewards("ｄｃｂａ"), [0.0, 0.0, 0.0]);
        let huge = rewards(&"dcba".repeat(1 << 18));
        assert!(huge[0] == 0.0 && huge[1] < 1e-5 && huge[2] == 0.0, "{huge:?}");
    }
}
