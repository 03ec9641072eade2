//! Sets of problems, built in or from files.

use super::problem::Problem;
use super::rows::{self, Row};
use crate::disk::input;
use crate::task::{Prompt, PromptSet, Split, TaskError};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

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

    /// Reads problems from a file of JSON lines, of this form or rows of prompts and assertions, or from a CSV
    /// file of such rows (`.csv`).
    ///
    /// # Errors
    /// If the file cannot be read or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, TaskError> {
        let text = input::read_text(path, input::DATA)
            .map_err(|e| TaskError::File { path: path.to_path_buf(), message: e.to_string() })?;
        if path.extension().is_none_or(|end| !end.eq_ignore_ascii_case("csv")) {
            return Self::parse(path, &text);
        }
        let wrong = |Row { line, content: message }: Row<String>| TaskError::Line {
            path: path.to_path_buf(),
            line,
            message,
        };
        let rows = rows::csv(&text).map_err(wrong)?;
        let problem = |Row { line, content }: Row<_>| match rows::problem(&content) {
            Ok(problem) => Ok((line, problem)),
            Err(content) => Err(wrong(Row { line, content })),
        };
        Self::collect(path, rows.into_iter().map(problem))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TaskError> {
        let problem = |(i, line): (usize, &str)| match read_line(line) {
            Ok(problem) => Ok((i + 1, problem)),
            Err(message) => Err(TaskError::Line { path: path.to_path_buf(), line: i + 1, message }),
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        Self::collect(path, lines.map(problem))
    }

    /// Collects problems with the numbers of their lines.
    fn collect(
        path: &Path,
        all: impl Iterator<Item = Result<(usize, Problem), TaskError>>,
    ) -> Result<Self, TaskError> {
        let mut problems = Self { by_id: HashMap::new(), prompts: PromptSet::default() };
        for each in all {
            let (line, problem) = each?;
            let wrong = |message| TaskError::Line { path: path.to_path_buf(), line, message };
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

/// Reads a problem from a line of JSON; where `tests` is a text, the line is a row of a prompt and assertions.
fn read_line(line: &str) -> Result<Problem, String> {
    let not = |error: serde_json::Error| format!("not a problem: {error}");
    let row: Map<String, Value> = serde_json::from_str(line).map_err(not)?;
    match row.get("tests").is_some_and(Value::is_string) {
        true => rows::problem(&row),
        false => serde_json::from_value(Value::Object(row)).map_err(not),
    }
}
