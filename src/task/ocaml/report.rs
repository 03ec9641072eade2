//! The report on a piece of code (type checking, compilation, test results) and its score.

/// The outcome of each stage for a piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeReport {
    /// Result of type checking.
    pub type_check: TypeCheck,
    /// Result of compilation.
    pub compilation: Compilation,
    /// Digests of the calls' values, in order: `None` for a call that raised an exception. Calls that
    /// were not reached are missing.
    pub results: Vec<Option<String>>,
}

/// Result of type checking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeCheck {
    /// A syntax error.
    Syntax,
    /// Number of type errors; 0 if the code is well-typed.
    Errors(u32),
    /// Type checking exceeded its time limit.
    Unknown,
}

/// Result of compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compilation {
    /// The code has errors.
    Failed,
    /// The code uses a forbidden name, or cannot be linked.
    Refused(String),
    /// The code can be run.
    Succeeded,
}

/// The parts of the reward with their weights: the maximum points of each stage, and a penalty for the style.
pub const MAX_POINTS: [(&str, f64); 4] =
    [("types", 0.25), ("compile", 0.10), ("tests", 0.65), ("style", -1.0)];

/// Points for 1, 2, 3, ... type errors.
const TYPE_ERROR_POINTS: [f64; 9] = [0.20, 0.15, 0.10, 0.05, 0.04, 0.03, 0.025, 0.02, 0.015];

impl CodeReport {
    /// The points for types, compilation and tests, given the expected digests of the calls.
    pub fn points(&self, expected: &[String]) -> [f64; 3] {
        let [(_, types), (_, compile), (_, tests), _] = MAX_POINTS;
        let types = match self.type_check {
            TypeCheck::Errors(0) => types,
            TypeCheck::Errors(n) => TYPE_ERROR_POINTS.get(n as usize - 1).copied().unwrap_or(0.01),
            TypeCheck::Syntax | TypeCheck::Unknown => 0.0,
        };
        let compile = match (&self.compilation, self.type_check) {
            (Compilation::Succeeded, _) => compile,
            (Compilation::Refused(_), _) => 0.05,
            (Compilation::Failed, TypeCheck::Errors(_)) => 0.01,
            (Compilation::Failed, _) => 0.0,
        };
        let right =
            |(result, expected): (&Option<String>, &String)| result.as_ref() == Some(expected);
        let num_passed = self.results.iter().zip(expected).filter(|pair| right(*pair)).count();
        let share =
            if expected.is_empty() { 0.0 } else { num_passed as f64 / expected.len() as f64 };
        [types, compile, tests * share]
    }
}

#[cfg(test)]
mod tests {
    use super::Compilation::{Failed, Refused, Succeeded};
    use super::TypeCheck::{Errors, Syntax, Unknown};
    use super::*;

    #[test]
    fn each_stage_earns_its_points() {
        let expected = ["a", "b", "c", "d"].map(str::to_string);
        let all = ["a", "b", "c", "d"].map(Some);
        for (type_check, compilation, results, earned) in [
            (Errors(0), Succeeded, &all[..], [0.25, 0.10, 0.65]),
            (Errors(0), Succeeded, &[Some("a"), None], [0.25, 0.10, 0.1625]),
            (Errors(0), Succeeded, &[Some("b"), Some("a")], [0.25, 0.10, 0.0]),
            // Extra results earn nothing.
            (Errors(0), Succeeded, &[None, None, None, None, Some("a")], [0.25, 0.10, 0.0]),
            (Errors(0), Refused("Unix".to_string()), &[], [0.25, 0.05, 0.0]),
            (Errors(1), Failed, &[], [0.20, 0.01, 0.0]),
            (Errors(9), Failed, &[], [0.015, 0.01, 0.0]),
            (Errors(10), Failed, &[], [0.01, 0.01, 0.0]),
            (Syntax, Failed, &[], [0.0, 0.0, 0.0]),
            (Unknown, Failed, &[], [0.0, 0.0, 0.0]),
        ] {
            let results = results.iter().map(|result| result.map(str::to_string)).collect();
            let report = CodeReport { type_check, compilation, results };
            assert_eq!(report.points(&expected), earned, "{report:?}");
        }
    }
}
