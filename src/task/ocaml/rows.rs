//! User-defined problems: rows of prompts with tests, as CSV or JSON lines.

use super::assertions;
use super::problem::Problem;
use crate::task::Split;
use serde_json::{Map, Value};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// Makes a problem from a row with an `id`, a `prompt` or `problem` that ends in the function's head, and `tests`;
/// `solution`, `difficulty`, `family` and `split` are optional.
///
/// # Errors
/// A sentence about what the row lacks.
pub fn problem(row: &Map<String, Value>) -> Result<Problem, String> {
    let text = |key: &str| match row.get(key) {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let id = text("id").ok_or("a row needs an `id`")?;
    let prompt = text("prompt").or_else(|| text("problem"));
    let prompt = prompt.ok_or("a row needs a `prompt` or a `problem`")?;
    let (prelude, head) = split_head(&prompt).ok_or(
        "the prompt does not end in the head of a function, such as `let rec f (x : int) : int =`",
    )?;
    let tests = text("tests").ok_or("a row needs `tests`")?;
    let mut problem = Problem {
        family: text("family").unwrap_or_else(|| id.clone()),
        difficulty: text("difficulty").and_then(|text| text.parse().ok()).unwrap_or(1),
        split: match text("split").as_deref() {
            None => Split::assign(&id),
            Some("train") => Split::Train,
            Some("test") => Split::Test,
            Some(other) => return Err(format!("`split` is {other:?}, but must be train or test")),
        },
        id,
        prelude: prelude.to_string(),
        words: String::new(),
        head: head.to_string(),
        signature: String::new(),
        tests: Vec::new(),
        solution: text("solution"),
        wrong: Vec::new(),
        digests: OnceLock::new(),
        inferred: OnceLock::new(),
    };
    // Drawn anew in each process, so that no answer can have learnt it.
    let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
    problem.tests = assertions::parse(&tests, problem.name(), &mark)?;
    Ok(problem)
}

/// Splits a prompt before the head of the function that is to be completed: the last definition at the start of a line.
fn split_head(prompt: &str) -> Option<(&str, &str)> {
    let prompt = prompt.trim_end();
    let starts = prompt.match_indices("let ").map(|(at, _)| at);
    let at = starts.filter(|&at| at == 0 || prompt[..at].ends_with('\n')).last()?;
    prompt.ends_with('=').then(|| prompt.split_at(at))
}

/// A row of a file, with the number of the line on which it begins.
#[derive(Debug, PartialEq)]
pub struct Row<T> {
    /// The line, from 1.
    pub line: usize,
    /// The row, or a sentence about it.
    pub content: T,
}

/// The rows of a CSV file (RFC 4180) by the names in its first line.
///
/// # Errors
/// A sentence about the first malformed row.
pub fn csv(text: &str) -> Result<Vec<Row<Map<String, Value>>>, Row<String>> {
    let mut records = records(text)?.into_iter();
    let names = records.next().map_or_else(Vec::new, |names| names.content);
    let row = |Row { line, content: cells }: Row<Vec<String>>| {
        if cells.len() != names.len() {
            let content = format!("{} cells, but {} columns", cells.len(), names.len());
            return Err(Row { line, content });
        }
        let cells = cells.into_iter().map(Value::String);
        let content = names.iter().map(|name| name.trim().to_string()).zip(cells).collect();
        Ok(Row { line, content })
    };
    records.map(row).collect()
}

/// The cells of each record.
fn records(text: &str) -> Result<Vec<Row<Vec<String>>>, Row<String>> {
    let mut records = Vec::new();
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    let (mut line, mut first) = (1, 1);
    let mut characters = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    while let Some(c) = characters.next() {
        line += usize::from(c == '\n');
        match (is_quoted, c) {
            (true, '"') if characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            (true, '"') => is_quoted = false,
            (false, '"') if cell.is_empty() => is_quoted = true,
            (false, ',') => cells.push(std::mem::take(&mut cell)),
            (false, '\r') if characters.peek() == Some(&'\n') => {}
            (false, '\n') => {
                cells.push(std::mem::take(&mut cell));
                let content = std::mem::take(&mut cells);
                if content.iter().any(|cell| !cell.is_empty()) {
                    records.push(Row { line: first, content });
                }
                first = line;
            }
            (_, c) => cell.push(c),
        }
    }
    if is_quoted {
        return Err(Row { line: first, content: "a quoted cell has no end".to_string() });
    }
    if !cell.is_empty() || !cells.is_empty() {
        cells.push(cell);
        records.push(Row { line: first, content: cells });
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_cells_may_hold_quotes_commas_and_lines() {
        let found = csv("id,prompt\r\n1,\"a \"\"b\"\", c\nd\"\n\n2,e\n").unwrap();
        let cells: Vec<_> = found
            .iter()
            .map(|Row { line, content }| {
                (*line, content["id"].as_str().unwrap(), content["prompt"].as_str().unwrap())
            })
            .collect();
        assert_eq!(cells, [(2, "1", "a \"b\", c\nd"), (5, "2", "e")]);
        let error = csv("id,prompt\n1\n").unwrap_err();
        assert_eq!((error.line, error.content.as_str()), (2, "1 cells, but 2 columns"));
        assert_eq!(csv("id\n\"a\n").unwrap_err().line, 2);
    }

    #[test]
    fn a_prompt_ends_in_the_head_of_its_function() {
        let prompt = "(* Doubles.\n   let it be *)\ntype t = int\nlet f (x : t) : t =\n";
        let (before, head) = split_head(prompt).unwrap();
        assert_eq!(
            (before, head),
            ("(* Doubles.\n   let it be *)\ntype t = int\n", "let f (x : t) : t =")
        );
        assert_eq!(split_head("let f x"), None);
        assert_eq!(split_head("Write a function."), None);
    }
}
