//! The task `ocaml`: complete OCaml functions, which are scored by the compiler and by tests.
//!
//! The reward has stages: 0.25 points for type checking, fewer with each error; 0.10 for compilation; 0.65 times
//! the fraction of test calls with the expected value. An answer without code scores 0, a degenerate one
//! (`code.rs`) 0.3 of its points, and untidy presentation costs up to 0.10 of a perfect score.
//!
//! The value of a call is hashed in the process that computes it and compared here. A completion that prints
//! results or ends the program gains nothing, since it would have to know the expected values. Assertions that are
//! more than an equation are judged in a process without the completion where the function's type permits it. All
//! code runs in a [sandbox](super::sandbox).

mod assertions;
mod checker;
mod code;
mod job;
mod lexer;
mod problem;
mod problems;
mod report;
mod rows;
mod signature;

pub use checker::Checker;
pub use job::{Compiler, Job, LibraryAccess, OcamlLimits};
pub use problem::Problem;
pub use problems::Problems;
pub use report::{CodeReport, Compilation, TypeCheck};

use super::parallel::{FairSemaphore, map_in_order, num_cores};
use super::records::check_digest;
use super::settings::check_ranges;
use super::{
    Completion, Prompt, RewardPart, Rewards, SCORE_TOLERANCE, Split, Task, TaskError, TaskSettings,
};
use crate::schema::settings;
use code::Code;
use report::MAX_POINTS;
use signature::infer_signature;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

settings! {
    /// Settings of the task.
    pub struct OcamlSettings {
        /// A file of problems, or of rows with a prompt and assertions, as JSON lines or CSV; empty for the built-in
        /// ones.
        problems: String;
        /// SHA-256 of that file, whose content must not change; not checked if empty. Set when a run begins.
        digest: String;
        /// Run code even if this machine cannot enforce all restrictions of the sandbox.
        r#unsafe: bool;
        /// Number of completions checked in parallel; 0 for one per core.
        workers: u32 = 0, in integer(0..=64);
        /// Resource limits of a completion.
        @flatten limits: OcamlLimits;
    }
}

impl TaskSettings for OcamlSettings {
    const NAME: &'static str = "ocaml";
    const PATH_SETTING: Option<&'static str> = Some("problems");

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        Ok(Arc::new(Ocaml::open(&self)?))
    }
}

/// Maximum number of attempts to compute the expected values of a problem.
const MAX_ATTEMPTS: usize = 3;

/// The task, with its problems and a checker.
pub struct Ocaml {
    problems: Problems,
    compiler: Compiler,
    checker: Checker,
    parts: Vec<RewardPart>,
    num_workers: usize,
    /// Permits of pieces of code, each of which keeps one server busy.
    semaphore: FairSemaphore,
    notes: Vec<String>,
}

impl Ocaml {
    /// Reads the problems, starts the checker, and tries the tests of rows.
    ///
    /// # Errors
    /// If a setting is out of range, the problems cannot be read or used, or there is no compiler.
    pub fn open(settings: &OcamlSettings) -> Result<Self, TaskError> {
        let limits = settings.limits;
        check_ranges(settings)?;
        let problems = match settings.problems.as_str() {
            "" => Problems::built_in(),
            path => {
                check_digest(Path::new(path), &settings.digest)?;
                Problems::read(Path::new(path))?
            }
        };
        let compiler = Compiler::find("ocamlc")?;
        let checker = Checker::start(&compiler, limits)?;
        let notes = checker.notes();
        if !notes.is_empty() && !settings.r#unsafe {
            let why = notes.join(" ");
            let message = format!("{why} --set ocaml.unsafe=true runs the code anyway");
            return Err(TaskError::Verifier(message));
        }
        let num_workers =
            if settings.workers == 0 { num_cores().min(64) } else { settings.workers as usize };
        let parts = MAX_POINTS.map(|(name, weight)| RewardPart::new(name, weight)).to_vec();
        let semaphore = FairSemaphore::new(num_workers);
        let task = Self { problems, compiler, checker, parts, num_workers, semaphore, notes };
        // Before a run relies on tests that are written as assertions.
        let mut rows = task.problems.all();
        rows.retain(|problem| problem.signature.is_empty());
        map_in_order(&rows, num_workers, |problem| task.expected_digests(problem).map(|_| ()))?;
        Ok(task)
    }

    /// The problems, for tests.
    #[doc(hidden)]
    pub fn problems(&self) -> &Problems {
        &self.problems
    }

    /// Checks a piece of code, once fewer than `workers` are being checked. The inner `Err` describes a failure that
    /// concerns this code alone.
    ///
    /// # Errors
    /// If no code can be checked any more.
    pub fn check(&self, job: &Job) -> Result<Result<CodeReport, String>, TaskError> {
        let _permit = self.semaphore.acquire();
        self.checker.check(job)
    }

    /// Checks an answer to a problem.
    ///
    /// # Errors
    /// The errors of [`check`](Ocaml::check).
    pub fn check_answer(
        &self,
        problem: &Problem,
        code: &str,
        access: LibraryAccess,
    ) -> Result<Result<CodeReport, String>, TaskError> {
        let calls = problem.tests.iter().map(|(call, _)| call.as_str()).collect();
        let (prelude, signature) = (problem.prelude.as_str(), self.signature(problem)?);
        self.check(&Job { prelude, signature, code, calls, access })
    }

    /// The signature of a problem's function, inferred if the problem does not state it.
    fn signature<'a>(&self, problem: &'a Problem) -> Result<&'a str, TaskError> {
        if let Some(known) = problem.inferred_signature.get() {
            return Ok(known);
        }
        if !problem.signature.is_empty() {
            return Ok(&problem.signature);
        }
        let unusable = |why: &str| {
            let id = &problem.id;
            TaskError::Verifier(format!("the OCaml problem {id:?} cannot be used: {why}"))
        };
        let found = infer_signature(&self.compiler, problem);
        let found = found.map_err(|error| unusable(&error.to_string()))?;
        let none = "the compiler accepts neither its tests, its solution nor its head";
        let found = found.ok_or_else(|| unusable(none))?;
        Ok(problem.inferred_signature.get_or_init(|| found))
    }

    /// Computes the digests of the expected values of a problem's calls, once both sides compile.
    fn expected_digests<'a>(&self, problem: &'a Problem) -> Result<&'a [String], TaskError> {
        if let Some(digests) = problem.expected_digests.get() {
            return Ok(digests);
        }
        let (prelude, signature) = (problem.prelude.as_str(), self.signature(problem)?);
        // A signature without code: the calls are compiled only.
        let equations: Vec<String> =
            problem.tests.iter().map(|(call, value)| format!("({call}) = ({value})")).collect();
        let calls = equations.iter().map(String::as_str).collect();
        let sides = Job { prelude, signature, calls, ..Job::default() };
        let calls = problem.tests.iter().map(|(_, value)| value.as_str()).collect();
        let job = Job { prelude, calls, ..Job::default() };
        let mut why = String::new();
        // On a machine under load, correct code may exceed the limits.
        for _ in 0..MAX_ATTEMPTS {
            if let Err(message) = self.check(&sides)? {
                why = message;
                continue;
            }
            match self.check(&job)? {
                Ok(report) => {
                    let results = &report.results;
                    let failed = results.iter().position(Option::is_none);
                    let (number, how) = match failed {
                        Some(at) => (at + 1, "raises an exception or is not data"),
                        None => (results.len() + 1, "is not computed within the limits"),
                    };
                    why = format!("the expected value of test {number} {how}");
                    let digests: Vec<String> = report.results.into_iter().flatten().collect();
                    if digests.len() == problem.tests.len() {
                        return Ok(problem.expected_digests.get_or_init(|| digests));
                    }
                }
                Err(message) => why = message,
            }
        }
        Err(TaskError::Verifier(format!(
            "the tests of the OCaml problem {:?} cannot be used: {why}",
            problem.id
        )))
    }

    /// Judges the code of a completion by the tests of its problem; its style counts once it has all other points.
    fn verify_one(&self, completion: &Completion) -> Result<Rewards, TaskError> {
        let num_parts = self.parts.len();
        let unjudged = |why: String| Ok(Rewards::unjudged(num_parts, why));
        let Some(problem) = self.problems.find(completion.prompt) else {
            return unjudged("the prompt does not belong to an OCaml problem".to_string());
        };
        let Some(code) = Code::extract(completion.text, problem.name(), &problem.head) else {
            return Ok(Rewards::new(vec![0.0; num_parts]));
        };
        let expected = self.expected_digests(problem)?;
        let report = match self.check_answer(problem, &code.text, LibraryAccess::Restricted)? {
            Ok(report) => report,
            Err(message) => return unjudged(message),
        };
        let points = report.points(expected);
        let is_full = points.iter().sum::<f64>() > 1.0 - SCORE_TOLERANCE;
        let share = if code.is_degenerate || code.is_stub && !is_full { 0.3 } else { 1.0 };
        let mut parts: Vec<f64> = points
            .iter()
            .zip(MAX_POINTS)
            .map(|(points, (_, max_points))| share * points / max_points)
            .collect();
        parts.push(if is_full { code.untidiness } else { 0.0 });
        Ok(Rewards::new(parts))
    }
}

impl Task for Ocaml {
    fn name(&self) -> &str {
        OcamlSettings::NAME
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        Some(self.problems.prompts.in_split(split).len() as u64)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        let advice = "give some of the problems this `split`";
        self.problems.prompts.prompt(OcamlSettings::NAME, split, index, advice)
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        map_in_order(completions, self.num_workers, |completion| self.verify_one(completion))
    }

    fn num_verifier_threads(&self) -> usize {
        self.num_workers
    }

    /// Printable ASCII, newline, and all other characters of the problems.
    fn alphabet(&self) -> Option<String> {
        let mut characters: BTreeSet<char> = ('\n'..='\n').chain(' '..='~').collect();
        for prompt in self.problems.prompts.iter() {
            characters.extend(prompt.text.chars());
            characters.extend(self.solution(prompt).unwrap_or_default().chars());
        }
        Some(characters.into_iter().collect())
    }

    fn max_new_tokens(&self) -> usize {
        let solutions = self.problems.prompts.iter().filter_map(|prompt| self.solution(prompt));
        let longest = solutions.map(|text| text.chars().count() + 1).max();
        longest.unwrap_or(0).max(256)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::report_not_tested;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn runs_that_share_the_task_share_its_servers() {
        if Compiler::find("ocamlc").is_err() {
            return report_not_tested("there is no OCaml compiler");
        }
        let settings = OcamlSettings { workers: 1, r#unsafe: true, ..OcamlSettings::default() };
        let task = Ocaml::open(&settings).unwrap();
        let start = Barrier::new(4);
        let run = || {
            start.wait();
            for _ in 0..4 {
                let (code, signature) = ("let f = 1", "val f : int");
                let job = Job { code, signature, calls: vec!["f"], ..Job::default() };
                let report = task.check(&job).unwrap().unwrap();
                assert!(matches!(report.results[..], [Some(_)]), "{report:?}");
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(run))));
        assert_eq!(task.checker.num_started(), 1);
    }
}
