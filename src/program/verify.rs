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

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = self.results.iter().map(|result| result.answer.len()).max().unwrap_or(0).max(6);
        writeln!(f, "{:width$}  {:>8} {:>8}  full marks", "answer", "mean", "highest")?;
        for result in &self.results {
            let AttackResult { answer, answers, full, unjudged, .. } = result;
            let (mean, highest) = (figure(result.mean), figure(result.highest));
            write!(f, "{answer:width$}  {mean:>8} {highest:>8}  {full} of {answers}")?;
            if let Some(problem) = &result.problem {
                write!(f, " ({unjudged} not judged: {problem})")?;
            }
            writeln!(f)?;
        }
        let earns = |result: &&AttackResult| {
            result.answer != "the solution" && result.highest.is_some_and(|highest| highest > 0.0)
        };
        let earning: Vec<&str> =
            self.results.iter().filter(earns).map(|result| result.answer).collect();
        match earning[..] {
            [] => write!(f, "\nNo worthless answer earns a reward."),
            _ => write!(f, "\nWorthless answers that earn a reward: {}.", earning.join(", ")),
        }
    }
}
