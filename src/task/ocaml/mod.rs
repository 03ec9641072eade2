//! `ocaml`: functions are to be completed in OCaml; the compiler and tests say what an answer is worth.
//!
//! The reward has stages: 0.25 points for types, fewer with each error; 0.10 for compiling; 0.65 for the share of the
//! calls that come to what they should. An answer without code is worth 0, a degenerate one (`code.rs`) 0.3 of its
//! points, and what is untidy takes up to 0.10 off a full score.
//!
//! What a call comes to is digested where it is computed, and compared here: a completion that prints results, ends the
//! program or breaks it earns nothing by that, since it would have to know the right values. Whatever it does, it
//! does in a [sandbox](super::sandbox).

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

/// The settings of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OcamlSettings {
    /// A file of problems; empty for Grove's own.
    pub problems: String,
    /// `server`: the persistent checker; `stages`: a process per stage; `auto`: the first where it can be had.
    pub checker: String,
    /// Completions that are checked at a time; 0 for as many as the machine has cores, at most 64.
    pub workers: u32,
    /// How much a completion may take.
    #[serde(flatten)]
    pub limits: OcamlLimits,
}

/// How much a completion may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OcamlLimits {
    /// Seconds of CPU time, 0.01 to 60; three times as long by the clock, and a second.
    pub cpu_seconds: f64,
    /// Megabytes of memory, 128 to 16384.
    pub memory_mb: u32,
    /// Processes, 1 to 64.
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

/// The compiler of this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// `ocamlc`.
    pub path: PathBuf,
    /// `ocamlrun`, which runs what it compiles.
    pub runtime: PathBuf,
    /// Its version.
    pub version: String,
}

impl Compiler {
    /// The compiler that a command starts, usually `ocamlc`.
    ///
    /// # Errors
    /// One sentence where there is none.
    pub fn at(command: &str) -> Result<Self, TaskError> {
        let none = || {
            TaskError::Verifier(format!(
                "`ocaml` needs the OCaml compiler, and `{command}` does not start; install it (Debian: apt-get \
                 install ocaml-nox)"
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

/// A piece of code to be tried.
#[derive(Clone, Debug, Default)]
pub struct Job<'a> {
    /// Types that it is about.
    pub prelude: &'a str,
    /// What its interface says.
    pub signature: &'a str,
    /// The code; empty for calls that need none.
    pub code: &'a str,
    /// Expressions whose values are wanted.
    pub calls: Vec<&'a str>,
    /// Whether the code may use what there is, also to reach outside. Only tests of the sandbox want that.
    pub ungated: bool,
}

enum Backend {
    Server(Checker),
    Stages(Stages),
}

/// How often what a problem's calls should come to is asked for.
const ATTEMPTS: usize = 3;

/// The task.
pub struct Ocaml {
    problems: Problems,
    backend: Backend,
    parts: Vec<Part>,
    workers: usize,
    notes: Vec<String>,
}

impl Ocaml {
    /// Reads the problems and starts what checks answers.
    ///
    /// # Errors
    /// A setting out of its range, problems that cannot be read, no compiler.
    pub fn open(settings: &OcamlSettings) -> Result<Self, TaskError> {
        let limits = settings.limits;
        within("ocaml.workers", settings.workers, 0..=64)?;
        within("ocaml.memory_mb", limits.memory_mb, 128..=16_384)?;
        within("ocaml.processes", limits.processes, 1..=64)?;
        if !(0.01..=60.0).contains(&limits.cpu_seconds) {
            let message =
                format!("`ocaml.cpu_seconds` is {}; it may be 0.01 to 60", limits.cpu_seconds);
            return Err(TaskError::Setting(message));
        }
        let problems = match settings.problems.as_str() {
            "" => Problems::own(),
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
                        "{error}; a process per stage takes its place, ten times as slow."
                    ));
                    Backend::Stages(Stages::start(&compiler, limits)?)
                }
            },
            other => {
                let message =
                    format!("`ocaml.checker` is `{other}`; it may be auto, server or stages");
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

    /// What becomes of a piece of code; a sentence where nothing can be said.
    ///
    /// # Errors
    /// Where nothing can be checked any more.
    pub fn report(&self, job: &Job) -> Result<Result<Report, String>, TaskError> {
        match &self.backend {
            Backend::Server(checker) => checker.report(job),
            Backend::Stages(stages) => Ok(stages.report(job)),
        }
    }

    /// What becomes of an answer to a problem.
    ///
    /// # Errors
    /// Those of [`report`](Ocaml::report).
    pub fn try_code(
        &self,
        problem: &Problem,
        code: &str,
        ungated: bool,
    ) -> Result<Result<Report, String>, TaskError> {
        let calls = problem.tests.iter().map(|(call, _)| call.as_str()).collect();
        let (prelude, signature) = (problem.prelude.as_str(), problem.signature.as_str());
        self.report(&Job { prelude, signature, code, calls, ungated })
    }

    /// The digests of what a problem's calls should come to.
    fn expected<'a>(&self, problem: &'a Problem) -> Result<&'a [String], TaskError> {
        if let Some(digests) = problem.digests.get() {
            return Ok(digests);
        }
        let calls = problem.tests.iter().map(|(_, value)| value.as_str()).collect();
        let job = Job { prelude: &problem.prelude, calls, ..Job::default() };
        let mut why = String::new();
        // A machine under load may run out of time or of processes over what is right.
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

    fn one(&self, completion: &Completion) -> Result<Rewards, TaskError> {
        let num_parts = self.parts.len();
        let Some(problem) = self.problems.of(completion.prompt) else {
            return Ok(Rewards::unknown(
                num_parts,
                "the prompt is none of the OCaml problems".to_string(),
            ));
        };
        let Some(code) = Code::of(completion.text, problem.name(), &problem.head) else {
            return Ok(Rewards::new(vec![0.0; num_parts]));
        };
        let expected = self.expected(problem)?;
        let report = match self.try_code(problem, &code.text, false)? {
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
        in_order(completions, self.workers, |completion| self.one(completion))
    }

    /// ASCII that can be seen, spaces and ends of lines, and whatever else the problems have.
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
