//! The task `reverse`: write letters in reverse order.

use super::split::in_split;
use super::text::{agreement, indicator};
use super::{Completion, Part, Prompt, Rewards, Split, Task, TaskError, TaskSettings};
use crate::schema::settings;
use serde_json::{Map, json};
use std::sync::{Arc, LazyLock};

settings! {
    /// Reverses letters.
    pub struct Reverse: Copy, Eq {
        /// Number of letters in a prompt.
        length: u32 = 8, in whole(2..=1000);
        /// Size of the alphabet, starting with `a`.
        letters: u32 = 26, in whole(2..=26);
    }
}

impl TaskSettings for Reverse {
    const NAME: &'static str = "reverse";

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        Ok(Arc::new(self))
    }
}

/// Exact match; fraction of correct positions; the right number of letters and nothing else.
static PARTS: LazyLock<[Part; 3]> = LazyLock::new(|| {
    [Part::new("exact", 0.5), Part::new("letters", 0.4), Part::new("format", 0.1)]
});

impl Task for Reverse {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        in_split(Self::NAME, split, index, |random| {
            let letter = |i: u64| char::from(b'a' + i as u8);
            let word: String =
                (0..self.length).map(|_| letter(random.below(u64::from(self.letters)))).collect();
            let question = format!(
                "Reverse the letters of {word}. Answer with the reversed letters alone, in lower case."
            );
            let mut fields = Map::new();
            fields.insert("solution".to_string(), json!(word.chars().rev().collect::<String>()));
            Some((word.clone(), Prompt::new(format!("{word}>"), question, fields)))
        })
    }

    fn parts(&self) -> &[Part] {
        &*PARTS
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        Ok(completions.iter().map(|completion| self.rewards(completion)).collect())
    }

    fn alphabet(&self) -> Option<String> {
        Some(('a'..='z').take(self.letters as usize).chain(['>']).collect())
    }

    fn max_new_tokens(&self) -> usize {
        self.length as usize + 1
    }
}

impl Reverse {
    fn rewards(&self, completion: &Completion) -> Rewards {
        let expected = self.solution(completion.prompt).unwrap_or_default();
        let answer = completion.text.trim();
        let format =
            answer.len() == expected.len() && answer.bytes().all(|b| b.is_ascii_lowercase());
        Rewards::new(vec![
            indicator(answer == expected),
            agreement(answer.as_bytes(), expected.as_bytes()),
            indicator(format),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewards(answer: &str) -> Vec<f64> {
        let mut fields = Map::new();
        fields.insert("solution".to_string(), json!("dcba"));
        let prompt = Prompt::new("abcd>".to_string(), String::new(), fields);
        let completion = Completion::new(&prompt, answer);
        Reverse::default().verify(&[completion]).unwrap().remove(0).parts
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
