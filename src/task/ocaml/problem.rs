//! The problems: functions to be completed, with the calls that say whether they are right.

use crate::task::{Prompt, PromptSet, Split, TaskError};
use serde::Deserialize;
use serde_json::{Map, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// A function to be completed.
#[derive(Debug, Deserialize)]
pub struct Problem {
    /// Its name among all.
    pub id: String,
    /// What it has in common with others.
    pub family: String,
    /// 1 to 3, from easy to hard.
    pub difficulty: u32,
    /// Whether it is learnt from.
    pub split: Split,
    /// Types that it is about.
    #[serde(default)]
    pub prelude: String,
    /// What the function does.
    pub words: String,
    /// The start of the function, which is put before an answer.
    pub head: String,
    /// What an interface says of it.
    pub signature: String,
    /// Calls, and expressions of what they come to.
    pub tests: Vec<(String, String)>,
    /// An answer that is right.
    #[serde(default)]
    pub solution: Option<String>,
    /// Answers that are wrong.
    #[serde(default)]
    pub wrong: Vec<String>,
    /// The digests of what the calls come to.
    #[serde(skip)]
    pub(super) digests: OnceLock<Vec<String>>,
}

impl Problem {
    /// The name of the function.
    pub fn name(&self) -> &str {
        self.signature.trim_start_matches("val ").split(' ').next().unwrap_or_default()
    }

    /// What is asked: what goes on as OCaml does, and the same as a question.
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

/// Problems by name, and their prompts.
#[derive(Debug)]
pub struct Problems {
    by_id: HashMap<String, Problem>,
    /// Their prompts.
    pub prompts: PromptSet,
}

impl Problems {
    /// Grove's own.
    pub fn own() -> Self {
        let text = include_str!("../../../assets/ocaml/problems.jsonl");
        Self::parse("problems.jsonl".as_ref(), text).expect("tested")
    }

    /// Those of a file.
    ///
    /// # Errors
    /// A file that cannot be read, or the first line that is no problem.
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
                serde_json::from_str(line).map_err(|e| wrong(format!("it is no problem: {e}")))?;
            if problem.tests.is_empty() {
                return Err(wrong("it has no `tests`".to_string()));
            }
            match problem.split {
                Split::Train => problems.prompts.train.push(problem.prompt()),
                Split::Test => problems.prompts.test.push(problem.prompt()),
            }
            let id = problem.id.clone();
            if problems.by_id.insert(id.clone(), problem).is_some() {
                return Err(wrong(format!("the id {id:?} is on another line too")));
            }
        }
        Ok(problems)
    }

    /// The problem that a prompt puts.
    pub fn of(&self, prompt: &Prompt) -> Option<&Problem> {
        self.by_id.get(prompt.fields.get("id")?.as_str()?)
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<&Problem> {
        let mut all: Vec<_> = self.by_id.values().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }
}
