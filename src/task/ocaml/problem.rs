//! The problems: OCaml functions to complete, with test calls.

use super::lexer::Lexer;
use crate::task::{Prompt, Split};
use serde::Deserialize;
use serde_json::{Map, json};
use std::sync::OnceLock;

/// A function to complete.
#[derive(Debug, Deserialize)]
pub struct Problem {
    /// Unique identifier.
    pub id: String,
    /// The group of similar problems to which it belongs.
    pub family: String,
    /// Difficulty, from 1 (easy) to 3 (hard).
    pub difficulty: u32,
    /// The split to which it belongs.
    pub split: Split,
    /// Type definitions that the function uses.
    #[serde(default)]
    pub prelude: String,
    /// Description of the function.
    #[serde(rename = "words")]
    pub description: String,
    /// The start of the function, which is prepended to an answer.
    pub head: String,
    /// The function's signature, as in an interface file; empty if it is inferred.
    pub signature: String,
    /// Test calls with expressions of their expected values.
    pub tests: Vec<(String, String)>,
    /// A correct answer.
    #[serde(default)]
    pub solution: Option<String>,
    /// Wrong answers, to test the tests.
    #[serde(default)]
    #[serde(rename = "wrong")]
    pub wrong_answers: Vec<String>,
    /// Digests of the expected values, once computed.
    #[serde(skip)]
    pub(super) expected_digests: OnceLock<Vec<String>>,
    /// The signature, once inferred.
    #[serde(skip)]
    pub(super) inferred_signature: OnceLock<String>,
}

impl Problem {
    /// The name of the function.
    pub fn name(&self) -> &str {
        let text = if self.signature.is_empty() { &self.head } else { &self.signature };
        let mut tokens = Lexer::new(text).filter(|token| token.depth == 0);
        // An attribute, such as `[@inline]`, may come first.
        let name = tokens.find(|token| !matches!(token.text, "let" | "rec" | "val" | "[" | "]"));
        name.map_or("", |token| token.text)
    }

    /// The prompt: OCaml source to continue, and the same as a question for chat models.
    pub(super) fn prompt(&self) -> Prompt {
        let mut text = String::new();
        if !self.prelude.is_empty() {
            text += &format!("{}\n", self.prelude.trim_end());
        }
        if !self.description.is_empty() {
            text += &format!("(* {} *)\n", self.description);
        }
        text += &format!("{}\n", self.head);
        let question = format!(
            "Complete this OCaml function. Answer with the code alone, in one block.\n\n```ocaml\n{text}```"
        );
        let mut fields = Map::new();
        fields.insert("id".to_string(), json!(self.id));
        fields.insert("family".to_string(), json!(self.family));
        fields.insert("difficulty".to_string(), json!(self.difficulty));
        if let Some(solution) = &self.solution {
            let indent = if solution.starts_with("let ") { "" } else { "  " };
            fields.insert("solution".to_string(), json!(format!("{indent}{solution}\n")));
        }
        Prompt::new(text, question, fields)
    }
}
