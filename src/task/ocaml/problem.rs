//! The problems: OCaml functions to complete, with test calls.

use crate::task::{Prompt, PromptSet, Split, TaskError};
use serde::Deserialize;
use serde_json::{Map, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
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
    pub words: String,
    /// The start of the function, which is prepended to an answer.
    pub head: String,
    /// The function's signature, as in an interface file.
    pub signature: String,
    /// Test calls with expressions of their expected values.
    pub tests: Vec<(String, String)>,
    /// A correct answer.
    #[serde(default)]
    pub solution: Option<String>,
    /// Wrong answers, to test the tests.
    #[serde(default)]
    pub wrong: Vec<String>,
    /// Digests of the expected values, once computed.
    #[serde(skip)]
    pub(super) digests: OnceLock<Vec<String>>,
}

impl Problem {
    /// The name of the function.
    pub fn name(&self) -> &str {
        self.signature.trim_start_matches("val ").split(' ').next().unwrap_or_default()
    }

    /// The prompt: OCaml source to continue, and the same as a question for chat models.
    fn prompt(&self) -> Prompt {
        let mut text = String::new();
        if !self.prelude.is_empty() {
            text += &format!("{}\n", self.prelude);
        }
        text += &format!("(* {} *)\n{}\n", self.words, self.head);
        let question = format!(
            "Complete this OCaml function. Answer with the code alone, in one block.\n\n```ocaml\n{text}```"
        );
        let mut fields = Map::new();
        fields.insert("id".to_string(), json!(self.id));
        fields.insert("family".to_string(), json!(self.family));
        fields.insert("difficulty".to_string(), json!(self.difficulty));
        if let Some(solution) = &self.solution {
            fields.insert("solution".to_string(), json!(format!("  {solution}\n")));
        }
        Prompt::new(text, question, fields)
    }
}

/// A set of problems with their prompts.
#[derive(Debug)]
pub struct Problems {
    by_id: HashMap<String, Problem>,
    /// The problems' prompts.
    pub prompts: PromptSet,
}

impl Problems {
    /// The built-in problems.
    pub fn built_in() -> Self {
        let text = include_str!("../../../assets/ocaml/problems.jsonl");
        Self::parse("problems.jsonl".as_ref(), text).expect("covered by a test")
    }

    /// Reads problems from a file of JSON lines.
    ///
    /// # Errors
    /// If the file cannot be read or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, TaskError> {
        let text = fs::read_to_string(path)
            .map_err(|e| TaskError::File { path: path.to_path_buf(), message: e.to_string() })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TaskError> {
        let mut problems = Self { by_id: HashMap::new(), prompts: PromptSet::default() };
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong =
                |message| TaskError::Line { path: path.to_path_buf(), line: i + 1, message };
            let problem: Problem =
                serde_json::from_str(line).map_err(|e| wrong(format!("not a problem: {e}")))?;
            if problem.tests.is_empty() {
                return Err(wrong("`tests` is empty".to_string()));
            }
            match problem.split {
                Split::Train => problems.prompts.train.push(problem.prompt()),
                Split::Test => problems.prompts.test.push(problem.prompt()),
            }
            let id = problem.id.clone();
            if problems.by_id.insert(id.clone(), problem).is_some() {
                return Err(wrong(format!("duplicate `id` {id:?}")));
            }
        }
        Ok(problems)
    }

    /// Finds the problem of a prompt.
    pub fn of(&self, prompt: &Prompt) -> Option<&Problem> {
        self.by_id.get(prompt.fields.get("id")?.as_str()?)
    }

    /// All problems, sorted by id.
    pub fn all(&self) -> Vec<&Problem> {
        let mut all: Vec<_> = self.by_id.values().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }
}
