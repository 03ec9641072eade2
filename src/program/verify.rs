//! `grove verify`: audits a verifier by the rewards of solutions and of worthless answers.

use super::history::figure;
use super::patience::patiently;
use super::say::{tell, tell_json};
use super::text;
use super::verifier::VerifyArgs;
use crate::task::{AttackResult, Split, audit};
use anyhow::Result;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// The result of an audit.
#[derive(Serialize)]
struct Report {
    task: String,
    results: Vec<AttackResult>,
}

pub fn run(args: VerifyArgs) -> Result<()> {
    let task = text::task(args.task, args.task_data, &args.verifier, &args.set)?;
    let results =
        patiently("Verifying answers.", || audit(&*task, Split::Test, args.prompts, args.attack))?;
    let report = Report { task: task.name().to_string(), results };
    if args.json { tell_json(&report) } else { tell(&report) }
}

impl Report {
    /// Conclusions about the verifier from the rewards, a sentence each.
    fn findings(&self) -> Vec<String> {
        let (solutions, worthless): (Vec<_>, Vec<_>) =
            self.results.iter().partition(|result| result.answer == "the solution");
        let mut findings = Vec::new();
        for AttackResult { answers, full, .. } in solutions {
            if full < answers {
                let failing = answers - full;
                findings.push(format!(
                    "Warning: {failing} of {answers} solutions do not get full marks."
                ));
            }
        }
        let earns = |result: &&&AttackResult| result.highest.is_some_and(|highest| highest > 0.0);
        let earning: Vec<&str> =
            worthless.iter().filter(earns).map(|result| result.answer).collect();
        match (self.results.is_empty(), worthless.is_empty(), &earning[..]) {
            (true, ..) => findings
                .push("No prompt has a solution; --attack tries worthless answers.".to_string()),
            (_, true, _) => {}
            (_, _, []) => findings.push("No worthless answer earns a reward.".to_string()),
            _ => findings
                .push(format!("Worthless answers that earn a reward: {}.", earning.join(", "))),
        }
        findings
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = self.results.iter().map(|result| result.answer.len()).max().unwrap_or(0).max(6);
        write!(f, "{:width$}  {:>8} {:>8}  full marks", "answer", "mean", "highest")?;
        for result in &self.results {
            let AttackResult { answer, answers, full, unjudged, .. } = result;
            let (mean, highest) = (figure(result.mean), figure(result.highest));
            write!(f, "\n{answer:width$}  {mean:>8} {highest:>8}  {full} of {answers}")?;
            if let Some(problem) = &result.problem {
                write!(f, " ({unjudged} not judged: {problem})")?;
            }
        }
        match &self.findings()[..] {
            [] => Ok(()),
            findings => write!(f, "\n\n{}", findings.join("\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_about_the_answers_that_were_tried() {
        let result = |answer, full, reward| AttackResult {
            answer,
            answers: 2,
            mean: Some(reward),
            highest: Some(reward),
            full,
            unjudged: 0,
            problem: None,
        };
        let findings = |results| Report { task: "own".to_string(), results }.findings();
        let right = || result("the solution", 2, 1.0);
        assert_eq!(findings(vec![right()]), [""; 0]);
        assert_eq!(
            findings(vec![result("the solution", 1, 1.0)]),
            ["Warning: 1 of 2 solutions do not get full marks."]
        );
        assert_eq!(
            findings(vec![right(), result("empty", 0, 0.0)]),
            ["No worthless answer earns a reward."]
        );
        assert_eq!(
            findings(vec![right(), result("empty", 1, 0.5)]),
            ["Worthless answers that earn a reward: empty."]
        );
        assert!(findings(vec![])[0].contains("--attack"));
    }
}
