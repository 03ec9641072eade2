//! User-defined problems: rows of prompts with tests, as CSV or JSON lines.

use super::assertions;
use super::lexer::is_word_char;
use super::problem::Problem;
use crate::task::Split;
use serde_json::{Map, Value};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// Parses a problem from a row with an `id`, a `prompt` or `problem` that ends in the function's head, and `tests`;
/// `solution`, `difficulty`, `family` and `split` are optional.
///
/// # Errors
/// A sentence about what the row lacks.
pub fn parse_row(row: &Map<String, Value>) -> Result<Problem, String> {
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
        split: text("split").map_or(Ok(Split::assign(&id)), |name| {
            name.parse().map_err(|_| format!("`split` is {name:?}, but must be train or test"))
        })?,
        id,
        prelude: prelude.to_string(),
        description: String::new(),
        head: head.to_string(),
        signature: String::new(),
        tests: Vec::new(),
        solution: text("solution"),
        wrong_answers: Vec::new(),
        expected_digests: OnceLock::new(),
        inferred_signature: OnceLock::new(),
    };
    // Random in each process, so that no answer can have learnt it.
    let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
    problem.tests = assertions::parse(&tests, problem.name(), &mark)?;
    Ok(problem)
}

/// Splits a prompt before the head of the function that is to be completed: the last definition at the start of a line.
fn split_head(prompt: &str) -> Option<(&str, &str)> {
    let prompt = prompt.trim_end();
    let starts = prompt.match_indices("let").filter(|(at, word)| {
        let is_first = *at == 0 || prompt[..*at].ends_with('\n');
        is_first && !prompt[at + word.len()..].starts_with(is_word_char)
    });
    let (at, _) = starts.last()?;
    prompt.ends_with('=').then(|| prompt.split_at(at))
}

/// Parses a problem from the cells of a row by the names of their columns.
///
/// # Errors
/// A sentence about what the row lacks.
pub fn parse_cells(names: &[String], cells: Vec<String>) -> Result<Problem, String> {
    if cells.len() != names.len() {
        return Err(format!("{} cells, but {} columns", cells.len(), names.len()));
    }
    let cells = cells.into_iter().map(Value::String);
    parse_row(&names.iter().map(|name| name.trim().to_string()).zip(cells).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_cells_as_columns() {
        let names = ["id", "prompt"].map(str::to_string);
        let error = parse_cells(&names, vec!["1".to_string()]).unwrap_err();
        assert_eq!(error, "1 cells, but 2 columns");
    }

    #[test]
    fn the_name_of_a_function_follows_in_any_form_of_its_head() {
        for head in [
            "let f x =",
            "let f\n    (x : int) : int =",
            "let f\t(x : int) : int =",
            "let\n  rec\n  f(x) =",
            "let  rec  f: int -> int =",
            "let f=",
            "let[@inline] f x =",
            "let[@inline]rec f x =",
            "let (* g *) f (* h *) x =",
        ] {
            let row = serde_json::json!({"id": "a", "prompt": head, "tests": "assert (f 1 = 1)"});
            let found = parse_row(row.as_object().unwrap()).unwrap();
            assert_eq!((found.name(), found.head.as_str()), ("f", head));
            assert!(found.tests[0].0.starts_with("(f 1"), "{:?}", found.tests);
        }
    }

    #[test]
    fn a_prompt_ends_in_the_head_of_its_function() {
        let prompt = "(* Doubles.\n   let it be *)\ntype t = int\nlet f (x : t) : t =\n";
        let (before, head) = split_head(prompt).unwrap();
        assert_eq!(
            (before, head),
            ("(* Doubles.\n   let it be *)\ntype t = int\n", "let f (x : t) : t =")
        );
        for head in ["let\n  f x =", "let\tf x =", "let[@inline] f x ="] {
            let prompt = format!("let x = 1\n{head}\n");
            assert_eq!(split_head(&prompt), Some(("let x = 1\n", head)));
        }
        assert_eq!(split_head("letter =\nlet f x"), None);
        assert_eq!(split_head("letter ="), None);
        assert_eq!(split_head("Write a function."), None);
    }
}
