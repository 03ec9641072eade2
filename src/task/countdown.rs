//! The task `countdown`: write an expression of given numbers, each used at most once, that equals a target.

use super::generated::GeneratedTask;
use super::scoring::indicator;
use super::split::RandomStream;
use super::{Completion, Expression, Prompt, Rational, RewardPart};
use crate::schema::settings;
use serde_json::{Map, json};

settings! {
    /// Reaches a target number by arithmetic.
    pub struct Countdown: Copy, Eq {
        /// Count of numbers in a prompt.
        numbers: u32 = 4, in integer(2..=8);
        /// Largest of these numbers.
        largest: u32 = 25, in integer(5..=1000);
        /// Largest target, the number to reach.
        target: u32 = 100, in integer(10..=100_000);
    }
}

impl GeneratedTask for Countdown {
    const NAME: &'static str = "countdown";
    /// The target is reached; a valid expression of the given numbers, each used at most once.
    const PARTS: &'static [RewardPart] =
        &[RewardPart::named("exact", 0.8), RewardPart::named("format", 0.2)];

    /// Prompts with the same target and the same numbers in any order belong to the same split.
    fn draw(&self, random: &mut RandomStream) -> Option<(String, Prompt)> {
        let numbers: Vec<u64> =
            (0..self.numbers).map(|_| 1 + random.below(u64::from(self.largest))).collect();
        let (target, solution) = self.draw_target(&numbers, random)?;
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        let list =
            |separator| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(separator);
        let question = format!(
            "Make {target} out of the numbers {}. Use each at most once, with + - * / and brackets. \
             Answer with the expression alone.",
            list(", ")
        );
        let mut fields = Map::new();
        fields.insert("numbers".to_string(), json!(numbers));
        fields.insert("target".to_string(), json!(target));
        fields.insert("solution".to_string(), json!(solution));
        let text = format!("{}:{target}>", list(" "));
        Some((format!("{sorted:?} {target}"), Prompt::new(text, question, fields)))
    }

    /// Scores an answer, which must be an expression, optionally followed by `= target`.
    fn score(&self, completion: &Completion) -> Vec<f64> {
        let fields = &completion.prompt.fields;
        let target = fields.get("target").and_then(|target| target.as_u64());
        let target_text = target.map(|target| target.to_string());
        let given = fields.get("numbers").and_then(|numbers| numbers.as_array());
        let mut unused: Vec<u64> = given.into_iter().flatten().filter_map(|n| n.as_u64()).collect();
        let text = match completion.text.rsplit_once('=') {
            Some((expression, value)) if Some(value.trim_ascii()) == target_text.as_deref() => {
                expression
            }
            _ => completion.text,
        };
        let expression = Expression::parse(text).filter(|expression| {
            expression.numbers.iter().all(|number| {
                let position = unused.iter().position(|unused| unused == number);
                position.map(|position| unused.swap_remove(position)).is_some()
            })
        });
        let value = expression.as_ref().and_then(|expression| expression.value.to_integer());
        vec![indicator(value.is_some() && value == target), indicator(expression.is_some())]
    }

    fn characters(&self) -> String {
        "0123456789+-*/() :>".to_string()
    }

    /// Counts brackets around every pair, and the operators.
    fn max_solution_chars(&self) -> usize {
        let digits = self.largest.to_string().len();
        self.numbers as usize * (digits + 3)
    }
}

impl Countdown {
    /// Draws a reachable target and its solution: combines random pairs until a random stop, or until one
    /// value is left. `None` if the result is not a valid target.
    fn draw_target(&self, numbers: &[u64], random: &mut RandomStream) -> Option<(u64, String)> {
        let mut pieces: Vec<(Rational, String)> =
            numbers.iter().map(|&n| (Rational::from_integer(n), n.to_string())).collect();
        loop {
            let (a, left) = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
            let (b, right) = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
            let operator = ['+', '-', '*', '/'][random.below(4) as usize];
            let value = a.apply(operator, b)?;
            let is_last = pieces.is_empty() || random.below(self.numbers.into()) == 0;
            if is_last {
                let target = value.to_integer()?;
                let is_valid =
                    (10..=u64::from(self.target)).contains(&target) && !numbers.contains(&target);
                return is_valid.then(|| (target, format!("{left}{operator}{right}")));
            }
            pieces.push((value, format!("({left}{operator}{right})")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::generated::score_answer;
    use crate::task::{Split, Task};

    fn rewards(answer: &str) -> Vec<f64> {
        let fields = json!({ "numbers": [3, 8, 8, 3], "target": 24 });
        score_answer(&Countdown::default(), fields, answer)
    }

    #[test]
    fn expressions_are_checked_exactly() {
        assert_eq!(rewards("8/(3-8/3)"), [1.0, 1.0]);
        assert_eq!(rewards(" 3 * 8 \n"), [1.0, 1.0]);
        assert_eq!(rewards("3 * 8 = 24"), [1.0, 1.0]);
        assert_eq!(rewards("3 + 8"), [0.0, 1.0]);
        assert_eq!(rewards("3 + 8 = 24"), [0.0, 1.0]);
        assert_eq!(rewards("3 * 8 = 25"), [0.0, 0.0]);
    }

    #[test]
    fn rare_targets_are_found() {
        let task = Countdown { numbers: 4, largest: 1000, target: 40 };
        for index in 0..50 {
            let prompt = task.prompt(Split::Test, index).unwrap();
            assert!(prompt.fields["target"].as_u64().unwrap() <= 40);
        }
    }

    #[test]
    fn tricks_earn_no_reward() {
        for answer in [
            "",
            "24",
            "3*8 3*8",
            "3*8=24=24",
            "3*8=٢٤",
            "3*8=+24",
            "3*8=024",
            "3*8=24.0",
            "3*8=\u{a0}24",
            "3*8=",
            "3*8*1",
            "8+8+8",
            "03*8",
            "3×8",
            "12*2",
            "3*8+0",
            "x",
            "((3*8)",
            "3*8 # because",
            "8*3;",
            "8*3\0",
        ] {
            assert_eq!(rewards(answer), [0.0, 0.0], "{answer:?}");
        }
        assert_eq!(rewards(&"8*".repeat(1 << 20)), [0.0, 0.0]);
    }

    #[test]
    fn targets_are_in_range_and_not_among_the_numbers() {
        for numbers in [2, 8] {
            let task = Countdown { numbers, ..Countdown::default() };
            for index in 0..200 {
                let prompt = task.prompt(Split::Train, index).unwrap();
                let target = prompt.fields["target"].as_u64().unwrap();
                let given = prompt.fields["numbers"].as_array().unwrap();
                assert!((10..=100).contains(&target) && given.len() == numbers as usize);
                assert!(!given.contains(&json!(target)));
            }
        }
    }
}
