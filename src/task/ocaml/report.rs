//! What the compiler and the tests say of a piece of code, and the points for it.

/// What became of a piece of code, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether it has types.
    pub types: Types,
    /// Whether it can be run.
    pub compiled: Compiled,
    /// The digest of what each call came to. Calls that failed have `None`, those that were not come to are
    /// missing.
    pub results: Vec<Option<String>>,
}

/// Whether a piece of code has types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// It cannot be read.
    Syntax,
    /// It has so many errors, 0 if all is right.
    Errors(u32),
    /// It takes too long to say.
    Unknown,
}

/// Whether a piece of code can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// It has errors.
    No,
    /// It uses something that it may not use, or cannot be linked.
    Refused(String),
    /// It can be.
    Yes,
}

/// The parts of the reward, and the points that there are for each.
pub const POINTS: [(&str, f64); 4] =
    [("types", 0.25), ("compile", 0.10), ("tests", 0.65), ("style", -1.0)];

/// Points for 1 error, 2, 3 and so on.
const ERRORS: [f64; 9] = [0.20, 0.15, 0.10, 0.05, 0.04, 0.03, 0.025, 0.02, 0.015];

impl Report {
    /// The points for types, compiling and tests, where the calls should come to these digests.
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
    fn points_are_those_of_the_stages() {
        let expected = ["a", "b", "c", "d"].map(str::to_string);
        let points = |types, compiled, results: &[Option<&str>]| {
            let results = results.iter().map(|result| result.map(str::to_string)).collect();
            Report { types, compiled, results }.points(&expected)
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
        // More results than calls are worth nothing.
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
