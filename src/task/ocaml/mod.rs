//! The task `ocaml`: complete OCaml functions, which are scored by the compiler and by tests.
//!
//! The reward has stages: 0.25 points for type checking, fewer with each error; 0.10 for compilation; 0.65 times
//! the fraction of test calls with the expected value. An answer without code scores 0, a degenerate one
//! (`code.rs`) 0.3 of its points, and untidy presentation costs up to 0.10 of a perfect score.
//!
//! The value of a call is hashed in the process that computes it and compared here. A completion that prints
//! results or ends the program gains nothing, since it would have to know the expected values. All code runs in
//! a [sandbox](super::sandbox).

mod checker;
mod code;
mod folder;
mod problem;
mod report;
mod stages;

pub use checker::Checker;
pub use problem::{Problem, Problems};
pub use report::{Compiled, Report, Types};
pub use stages::Stages;

use super::parallel::{cores, in_order};
use super::registry::within;
use super::{Completion, Part, Prompt, Rewards, Split, Task, TaskError, TaskSettings};
use code::Code;
use report::POINTS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Settings of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OcamlSettings {
    /// A file of problems; empty for the built-in ones.
    pub problems: String,
    /// `server`: the persistent checker; `stages`: a process per stage; `auto`: `server` if it works.
    pub checker: String,
    /// Number of completions checked in parallel; 0 for one per core, at most 64.
    pub workers: u32,
    /// Resource limits of a completion.
    #[serde(flatten)]
    pub limits: OcamlLimits,
}

/// Resource limits of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OcamlLimits {
    /// CPU time, seconds, 0.01 to 60. The wall-clock limit is three times this plus one second.
    pub cpu_seconds: f64,
    /// Memory, MiB, 128 to 16384.
    pub memory_mb: u32,
    /// Number of processes, 1 to 64.
    pub processes: u32,
}

impl Default for OcamlLimits {
    fn default() -> Self {
        Self { cpu_seconds: 2.0, memory_mb: 512, processes: 4 }
    }
}

impl OcamlLimits {
    fn wall_seconds(&self) -> f64 {
        3.0 * self.cpu_seconds + 1.0
    }
}

impl Default for OcamlSettings {
    fn default() -> Self {
        let (problems, checker) = (String::new(), "auto".to_string());
        Self { problems, checker, workers: 0, limits: OcamlLimits::default() }
    }
}

impl TaskSettings for OcamlSettings {
    const NAME: &'static str = "ocaml";

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        Ok(Arc::new(Ocaml::open(&self)?))
    }
}

/// The OCaml compiler of this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Path or name of `ocamlc`.
    pub path: PathBuf,
    /// Path or name of `ocamlrun`, which runs the compiled bytecode.
    pub runtime: PathBuf,
    /// Version of the compiler.
    pub version: String,
}

impl Compiler {
    /// Queries the compiler `command`, usually `ocamlc`.
    ///
    /// # Errors
    /// If there is no such compiler.
    pub fn at(command: &str) -> Result<Self, TaskError> {
        let none = || {
            TaskError::Verifier(format!(
                "the task `ocaml` needs the OCaml compiler, but `{command}` cannot be run; install it (Debian: \
                 apt-get install ocaml-nox)"
            ))
        };
        let output = Command::new(command).arg("-config").output().map_err(|_| none())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim().to_string())
        };
        let version = value("version").ok_or_else(none)?;
        let runtime = value("standard_runtime").map_or_else(|| "ocamlrun".into(), PathBuf::from);
        Ok(Self { path: command.into(), runtime, version })
    }
}

/// A piece of code to check and run.
#[derive(Clone, Debug, Default)]
pub struct Job<'a> {
    /// Type definitions that the code uses.
    pub prelude: &'a str,
    /// The signature that the code must implement.
    pub signature: &'a str,
    /// The code; empty to evaluate calls without it.
    pub code: &'a str,
    /// Expressions to evaluate.
    pub calls: Vec<&'a str>,
    /// Access of the code to the standard library.
    pub access: Access,
}

/// The part of the standard library that code may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Modules without input, output or other effects outside the program.
    #[default]
    Restricted,
    /// All modules, to test the sandbox.
    Full,
}

enum Backend {
    Server(Checker),
    Stages(Stages),
}

/// Attempts to compute the expected values of a problem.
const ATTEMPTS: usize = 3;

/// The task, with its problems and a checker.
pub struct Ocaml {
    problems: Problems,
    backend: Backend,
    parts: Vec<Part>,
    workers: usize,
    notes: Vec<String>,
}

impl Ocaml {
    /// Reads the problems and starts the checker.
    ///
    /// # Errors
    /// If a setting is out of range, the problems cannot be read, or there is no compiler.
    pub fn open(settings: &OcamlSettings) -> Result<Self, TaskError> {
        let limits = settings.limits;
        within("ocaml.workers", settings.workers, 0..=64)?;
        within("ocaml.memory_mb", limits.memory_mb, 128..=16_384)?;
        within("ocaml.processes", limits.processes, 1..=64)?;
        if !(0.01..=60.0).contains(&limits.cpu_seconds) {
            let message =
                format!("`ocaml.cpu_seconds` is {}, but must be 0.01 to 60", limits.cpu_seconds);
            return Err(TaskError::Setting(message));
        }
        let problems = match settings.problems.as_str() {
            "" => Problems::built_in(),
            path => Problems::read(Path::new(path))?,
        };
        let compiler = Compiler::at("ocamlc")?;
        let mut notes = Vec::new();
        let backend = match settings.checker.as_str() {
            "server" => Backend::Server(Checker::start(&compiler, limits)?),
            "stages" => Backend::Stages(Stages::start(&compiler, limits)?),
            "auto" => match Checker::start(&compiler, limits) {
                Ok(checker) => Backend::Server(checker),
                Err(error) => {
                    notes.push(format!(
                        "{error}; falling back to a process per stage, which is ten times as slow."
                    ));
                    Backend::Stages(Stages::start(&compiler, limits)?)
                }
            },
            other => {
                let message =
                    format!("`ocaml.checker` is `{other}`, but must be auto, server or stages");
                return Err(TaskError::Setting(message));
            }
        };
        notes.extend(match &backend {
            Backend::Server(checker) => checker.notes(),
            Backend::Stages(stages) => stages.notes(),
        });
        let workers =
            if settings.workers == 0 { cores().min(64) } else { settings.workers as usize };
        let parts = POINTS.map(|(name, weight)| Part::new(name, weight)).to_vec();
        Ok(Self { problems, backend, parts, workers, notes })
    }

    /// The problems.
    pub fn problems(&self) -> &Problems {
        &self.problems
    }

    /// Checks a piece of code. The inner `Err` describes a failure that concerns this code alone.
    ///
    /// # Errors
    /// If no code can be checked any more.
    pub fn report(&self, job: &Job) -> Result<Result<Report, String>, TaskError> {
        match &self.backend {
            Backend::Server(checker) => checker.report(job),
            Backend::Stages(stages) => Ok(stages.report(job)),
        }
    }

    /// Checks an answer to a problem.
    ///
    /// # Errors
    /// The errors of [`report`](Ocaml::report).
    pub fn try_code(
        &self,
        problem: &Problem,
        code: &str,
        access: Access,
    ) -> Result<Result<Report, String>, TaskError> {
        let calls = problem.tests.iter().map(|(call, _)| call.as_str()).collect();
        let (prelude, signature) = (problem.prelude.as_str(), problem.signature.as_str());
        self.report(&Job { prelude, signature, code, calls, access })
    }

    /// Computes the digests of the expected values of a problem's calls.
    fn expected<'a>(&self, problem: &'a Problem) -> Result<&'a [String], TaskError> {
        if let Some(digests) = problem.digests.get() {
            return Ok(digests);
        }
        let calls = problem.tests.iter().map(|(_, value)| value.as_str()).collect();
        let job = Job { prelude: &problem.prelude, calls, ..Job::default() };
        let mut why = String::new();
        // On a machine under load, correct code may exceed the limits.
        for _ in 0..ATTEMPTS {
            match self.report(&job)? {
                Ok(report) => {
                    let digests: Vec<String> = report.results.into_iter().flatten().collect();
                    let (found, all) = (digests.len(), problem.tests.len());
                    if found == all {
                        return Ok(problem.digests.get_or_init(|| digests));
                    }
                    why = format!("only {found} of its {all} values can be computed");
                }
                Err(message) => why = message,
            }
        }
        Err(TaskError::Verifier(format!(
            "the tests of the OCaml problem {:?} cannot be used: {why}",
            problem.id
        )))
    }

    fn verify_one(&self, completion: &Completion) -> Result<Rewards, TaskError> {
        let num_parts = self.parts.len();
        let Some(problem) = self.problems.of(completion.prompt) else {
            return Ok(Rewards::unknown(
                num_parts,
                "the prompt does not belong to an OCaml problem".to_string(),
            ));
        };
        let Some(code) = Code::of(completion.text, problem.name(), &problem.head) else {
            return Ok(Rewards::new(vec![0.0; num_parts]));
        };
        let expected = self.expected(problem)?;
        let report = match self.try_code(problem, &code.text, Access::Restricted)? {
            Ok(report) => report,
            Err(message) => return Ok(Rewards::unknown(num_parts, message)),
        };
        let points = report.points(expected);
        let full = points.iter().sum::<f64>() > 1.0 - 1e-9;
        let share = if code.degenerate { 0.3 } else { 1.0 };
        let mut parts: Vec<f64> =
            points.iter().zip(POINTS).map(|(points, (_, most))| share * points / most).collect();
        parts.push(if full { code.untidiness } else { 0.0 });
        Ok(Rewards::new(parts))
    }
}

impl Task for Ocaml {
    fn name(&self) -> &str {
        OcamlSettings::NAME
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        Some(self.problems.prompts.of(split).len() as u64)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        let advice = "give some of the problems this `split`";
        self.problems.prompts.prompt(OcamlSettings::NAME, split, index, advice)
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        in_order(completions, self.workers, |completion| self.verify_one(completion))
    }

    /// Printable ASCII, newline, and all other characters of the problems.
    fn alphabet(&self) -> Option<String> {
        let mut characters: BTreeSet<char> = ('\n'..='\n').chain(' '..='~').collect();
        let prompts = &self.problems.prompts;
        for prompt in prompts.train.iter().chain(&prompts.test) {
            characters.extend(prompt.text.chars());
            characters.extend(self.solution(prompt).unwrap_or_default().chars());
        }
        Some(characters.into_iter().collect())
    }

    fn max_new_tokens(&self) -> usize {
        256
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
