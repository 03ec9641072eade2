//! The report on a piece of code (type checking, compilation, test results) and its score.

/// The outcome of each stage for a piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeReport {
    /// Result of type checking.
    pub types: Types,
    /// Result of compilation.
    pub compiled: Compiled,
    /// Digests of the calls' values, in order: `None` for a call that raised an exception. Calls that
    /// were not reached are missing.
    pub results: Vec<Option<String>>,
}

/// Result of type checking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// A syntax error.
    Syntax,
    /// Number of type errors; 0 if the code is well-typed.
    Errors(u32),
    /// Type checking exceeded its time limit.
    Unknown,
}

/// Result of compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// The code has errors.
    No,
    /// The code uses a forbidden name, or cannot be linked.
    Refused(String),
    /// The code can be run.
    Yes,
}

/// The parts of the reward, with the maximum points of each.
pub const POINTS: [(&str, f64); 4] =
    [("types", 0.25), ("compile", 0.10), ("tests", 0.65), ("style", -1.0)];

/// Points for 1, 2, 3, ... type errors.
const ERRORS: [f64; 9] = [0.20, 0.15, 0.10, 0.05, 0.04, 0.03, 0.025, 0.02, 0.015];

impl CodeReport {
    /// The points for types, compilation and tests, given the expected digests of the calls.
    pub fn points(&self, expected: &[String]) -> [f64; 3] {
        let [(_, types), (_, compile), (_, tests), _] = POINTS;
        let types = match self.types {
            Types::Errors(0) => types,
            Types::Errors(n) => ERRORS.get(n as usize - 1).copied().unwrap_or(0.01),
            Types::Syntax | Types::Unknown => 0.0,
        };
        let compile = match (&self.compiled, self.types) {
            (Compiled::Yes, _) => compile,
            (Compiled::Refused(_), _) => 0.05,
            (Compiled::No, Types::Errors(_)) => 0.01,
            (Compiled::No, _) => 0.0,
        };
        let right =
            |(result, expected): (&Option<String>, &String)| result.as_ref() == Some(expected);
        let held = self.results.iter().zip(expected).filter(|pair| right(*pair)).count();
        let share = if expected.is_empty() { 0.0 } else { held as f64 / expected.len() as f64 };
        [types, compile, tests * share]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_earns_its_points() {
        let expected = ["a", "b", "c", "d"].map(str::to_string);
        let points = |types, compiled, results: &[Option<&str>]| {
            let results = results.iter().map(|result| result.map(str::to_string)).collect();
            CodeReport { types, compiled, results }.points(&expected)
        };
        let all = [Some("a"), Some("b"), Some("c"), Some("d")];
        assert_eq!(points(Types::Errors(0), Compiled::Yes, &all), [0.25, 0.10, 0.65]);
        assert_eq!(
            points(Types::Errors(0), Compiled::Yes, &[Some("a"), None]),
            [0.25, 0.10, 0.1625]
        );
        assert_eq!(
            points(Types::Errors(0), Compiled::Yes, &[Some("b"), Some("a")]),
            [0.25, 0.10, 0.0]
        );
        // Extra results earn nothing.
        assert_eq!(
            points(Types::Errors(0), Compiled::Yes, &[None, None, None, None, Some("a")])[2],
            0.0
        );
        let refused = Compiled::Refused("Unix".to_string());
        assert_eq!(points(Types::Errors(0), refused, &[]), [0.25, 0.05, 0.0]);
        assert_eq!(points(Types::Errors(1), Compiled::No, &[]), [0.20, 0.01, 0.0]);
        assert_eq!(points(Types::Errors(9), Compiled::No, &[]), [0.015, 0.01, 0.0]);
        assert_eq!(points(Types::Errors(10), Compiled::No, &[]), [0.01, 0.01, 0.0]);
        assert_eq!(points(Types::Syntax, Compiled::No, &[]), [0.0, 0.0, 0.0]);
        assert_eq!(points(Types::Unknown, Compiled::No, &[]), [0.0, 0.0, 0.0]);
    }
}
