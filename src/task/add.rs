//! The task `add`: add two numbers. Partial rewards give small models a start.

use super::generated::GeneratedTask;
use super::scoring::{agreement, find_last_number, indicator};
use super::split::RandomStream;
use super::{Completion, Prompt, RewardPart, Task};
use crate::schema::settings;

settings! {
    /// Adds two numbers.
    pub struct Add: Copy, Eq {
        /// Maximum number of digits of a summand.
        digits: u32 = 2, in integer(1..=18);
    }
}

impl GeneratedTask for Add {
    const NAME: &'static str = "add";
    // After 100, as for the other tasks, a tenth of the sums are right, and rewards alone teach no more carries.
    const FIT_ITERATIONS: u32 = 300;
    /// Exact sum; fraction of its digits that are right; any number; one number and nothing else.
    const PARTS: &'static [RewardPart] = &[
        RewardPart::named("exact", 0.5),
        RewardPart::named("digits", 0.3),
        RewardPart::named("number", 0.1),
        RewardPart::named("format", 0.1),
    ];

    /// `a + b` and `b + a` belong to the same split.
    fn draw(&self, random: &mut RandomStream) -> Option<(String, Prompt)> {
        let bound = 10u64.pow(self.digits);
        let (a, b) = (random.below(bound), random.below(bound));
        let question = format!("What is {a} + {b}? Answer with the number alone.");
        let prompt = Prompt::with_solution(format!("{a}+{b}="), question, &(a + b).to_string());
        Some((format!("{} {}", a.min(b), a.max(b)), prompt))
    }

    /// Takes the last number as the answer: 58 in "15 + 43 = 58", but neither in "-58" nor in "1,058" or "0.58".
    /// Listing many numbers gains nothing.
    fn score(&self, completion: &Completion) -> Vec<f64> {
        let expected = self.solution(completion.prompt).unwrap_or_default();
        let found = find_last_number(completion.text);
        let answer = found.unwrap_or_default();
        let units_first = |number: &str| number.chars().rev().collect::<Vec<_>>();
        let is_plain = found.is_some() && answer.bytes().all(|byte| byte.is_ascii_digit());
        vec![
            indicator(answer == expected),
            agreement(&units_first(answer), &units_first(&expected)),
            indicator(found.is_some()),
            indicator(is_plain && completion.text.trim() == answer),
        ]
    }

    fn characters(&self) -> String {
        "0123456789+=".to_string()
    }

    fn max_solution_chars(&self) -> usize {
        self.digits as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Split;
    use crate::task::generated::score_answer;
    use serde_json::json;

    fn rewards(answer: &str) -> Vec<f64> {
        score_answer(&Add::default(), json!({ "solution": "158" }), answer)
    }

    #[test]
    fn answers_are_scored_strictly() {
        assert_eq!(rewards("158"), [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rewards(" 158\n"), [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rewards("60 + 98 = 158."), [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(rewards(""), [0.0, 0.0, 0.0, 0.0]);
        assert_eq!(rewards("I do not know"), [0.0, 0.0, 0.0, 0.0]);
        // The last of two answers counts.
        assert_eq!(rewards("158 159"), [0.0, 2.0 / 3.0, 1.0, 0.0]);
        assert_eq!(rewards("0158"), [0.0, 0.75, 1.0, 1.0]);
        assert_eq!(rewards("58"), [0.0, 2.0 / 3.0, 1.0, 1.0]);
        // Another number with the same digits.
        assert_eq!(rewards("-158"), [0.0, 0.75, 1.0, 0.0]);
        assert_eq!(rewards("1,158"), [0.0, 0.6, 1.0, 0.0]);
        assert_eq!(rewards("0.158"), [0.0, 0.6, 1.0, 0.0]);
        assert_eq!(rewards("١٥٨"), [0.0, 0.0, 0.0, 0.0]);
        let huge = rewards(&"158".repeat(1 << 18));
        assert!(huge[0] == 0.0 && huge[1] < 1e-5, "{huge:?}");
    }

    #[test]
    fn eighteen_digits_do_not_overflow() {
        let task = Add { digits: 18 };
        for index in 0..100 {
            let prompt = task.prompt(Split::Train, index).unwrap();
            let (a, b) = prompt.text.trim_end_matches('=').split_once('+').unwrap();
            let sum = a.parse::<u128>().unwrap() + b.parse::<u128>().unwrap();
            assert_eq!(task.solution(&prompt).unwrap(), sum.to_string());
        }
    }
}
