//! Sets of problems, built in or from files.

use super::problem::Problem;
use super::rows;
use crate::disk::{self, csv, input};
use crate::task::records::{self, read_error};
use crate::task::{Prompt, PromptSet, Split, TaskError};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::io;
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
        let lines = text.lines().zip(1..);
        let problems = lines.map(|(json, line)| Ok((line, parse_line(json.as_bytes()))));
        Self::collect("problems.jsonl".as_ref(), problems).expect("covered by a test")
    }

    /// Reads problems from a file of JSON lines or of a JSON list, compressed by gzip or not, of this form or rows of
    /// prompts and assertions, or from a CSV file of such rows (`.csv`).
    ///
    /// # Errors
    /// If the file cannot be read or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, TaskError> {
        if disk::has_extension(path, "csv") {
            let mut rows = csv::rows(input::open(path).map_err(read_error(path))?);
            let names = rows.next().map_or(Ok(Vec::new()), |(_, names)| names);
            let names = names.map_err(read_error(path))?;
            let is_blank = |cells: &Vec<String>| cells.iter().all(String::is_empty);
            let rows = rows.filter(|(_, cells)| !cells.as_ref().is_ok_and(is_blank));
            let problem = |cells: io::Result<Vec<String>>| {
                rows::parse_cells(&names, cells.map_err(|error| error.to_string())?)
            };
            return Self::collect(path, rows.map(|(line, cells)| Ok((line, problem(cells)))));
        }
        let problem = |(line, json): (usize, Vec<u8>)| (line, parse_line(&json));
        Self::collect(path, records::open(path)?.map(|record| record.map(problem)))
    }

    /// Collects problems with the numbers of their lines.
    fn collect(
        path: &Path,
        all: impl Iterator<Item = Result<(usize, Result<Problem, String>), TaskError>>,
    ) -> Result<Self, TaskError> {
        let mut problems = Self { by_id: HashMap::new(), prompts: PromptSet::default() };
        for each in all {
            let (line, problem) = each?;
            let problem = problem.map_err(|message| line_error(path, line, message))?;
            if problem.tests.is_empty() {
                return Err(line_error(path, line, "`tests` is empty".to_string()));
            }
            match problem.split {
                Split::Train => problems.prompts.train.push(problem.prompt()),
                Split::Test => problems.prompts.test.push(problem.prompt()),
            }
            let id = problem.id.clone();
            if problems.by_id.insert(id.clone(), problem).is_some() {
                return Err(line_error(path, line, format!("duplicate `id` {id:?}")));
            }
        }
        if problems.by_id.is_empty() {
            return Err(read_error(path)(io::Error::other("it has no problems")));
        }
        Ok(problems)
    }

    /// Finds the problem of a prompt.
    pub fn find(&self, prompt: &Prompt) -> Option<&Problem> {
        self.by_id.get(prompt.fields.get("id")?.as_str()?)
    }

    /// All problems, sorted by id.
    pub fn all(&self) -> Vec<&Problem> {
        let mut all: Vec<_> = self.by_id.values().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }
}

fn line_error(path: &Path, line: usize, message: String) -> TaskError {
    TaskError::Line { path: path.to_path_buf(), line, message }
}

/// Parses a problem from a line of JSON; where `tests` is a string, the line is a row of a prompt and assertions.
fn parse_line(line: &[u8]) -> Result<Problem, String> {
    let invalid = |error: serde_json::Error| format!("not a problem: {error}");
    let row: Map<String, Value> = serde_json::from_slice(line).map_err(invalid)?;
    if row.get("tests").is_some_and(Value::is_string) {
        rows::parse_row(&row)
    } else {
        serde_json::from_value(Value::Object(row)).map_err(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn problems_are_read_as_prompts_are() {
        let row = r#"{"id": "a", "prompt": "let f x =", "tests": "assert (f 1 = 1)"}"#;
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in [format!("\n{row}\n \n"), format!("\u{feff}{row}"), format!("[{row}]")] {
            fs::write(file.path(), &text).unwrap();
            assert_eq!(Problems::read(file.path()).unwrap().all().len(), 1, "{text:?}");
        }
        fs::write(file.path(), "\n[]").unwrap();
        let error = Problems::read(file.path()).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read ") && error.ends_with("it has no problems"),
            "{error}"
        );
    }
}
