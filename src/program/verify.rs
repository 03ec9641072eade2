//! `grove verify`: audits a verifier by its rewards for solutions and worthless answers.

use super::args::VerifyArgs;
use super::output::{print_json, print_result};
use super::progress_note::with_note;
use super::text;
use super::text_table::format_number;
use crate::task::{AnswerKind, AuditResult, Split, audit_solutions, audit_with_attacks};
use anyhow::Result;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// Result of an audit.
#[derive(Serialize)]
struct Report {
    task: String,
    results: Vec<AuditResult>,
}

/// Passes answers to a task's verifier, and prints its rewards.
pub fn run(args: VerifyArgs) -> Result<()> {
    let task = text::open_requested_task(args.task, args.task_data, &args.verifier, &args.set)?;
    let audit = if args.attack { audit_with_attacks } else { audit_solutions };
    let results = with_note("Verifying answers.", || audit(&*task, Split::Test, args.prompts))?;
    let report = Report { task: task.name().to_string(), results };
    if args.json { print_json(&report) } else { print_result(&report) }
}

impl Report {
    /// Conclusions about the verifier from its rewards, one sentence each.
    fn findings(&self) -> Vec<String> {
        let (solutions, worthless): (Vec<_>, Vec<_>) =
            self.results.iter().partition(|result| result.answer == AnswerKind::Solution);
        let mut findings = Vec::new();
        for AuditResult { num_answers, num_full_marks, .. } in solutions {
            let num_failing = num_full_marks.map(|full| num_answers - full);
            if let Some(failing) = num_failing.filter(|failing| *failing > 0) {
                findings.push(format!(
                    "Warning: {failing} of {num_answers} solutions do not get full marks."
                ));
            }
        }
        let highest = worthless
            .iter()
            .map(|result| (result.highest_reward.unwrap_or(0.0), result.answer.name()));
        let is_maximum_known = self.results.iter().all(|result| result.num_full_marks.is_some());
        let full = worthless.iter().filter(|result| result.num_full_marks > Some(0));
        let full: Vec<&str> = full.map(|result| result.answer.name()).collect();
        match highest.max_by(|a, b| a.0.total_cmp(&b.0)) {
            None if self.results.is_empty() => findings
                .push("No prompt has a solution; --attack tries worthless answers.".to_string()),
            None => {}
            Some((highest, _)) if highest <= 0.0 => {
                findings.push("No worthless answer earns a reward.".to_string());
            }
            Some((highest, answer)) if !is_maximum_known => findings.push(format!(
                "Rewards exceed 1, so that full marks are not known; the highest reward of a worthless answer is {} ({answer}).",
                format_reward(Some(highest))
            )),
            Some((highest, answer)) if full.is_empty() => findings.push(format!(
                "No worthless answer gets full marks; the highest reward is {} ({answer}).",
                format_reward(Some(highest))
            )),
            Some(_) => findings.push(format!(
                "Warning: worthless answers that get full marks: {}.",
                full.join(", ")
            )),
        }
        findings
    }
}

/// Formats a reward; a small nonzero one is not shown as 0.
fn format_reward(value: Option<f64>) -> String {
    match value {
        Some(value) if value > 0.0 && value < 5e-4 => "<0.001".to_string(),
        value => format_number(value),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let lengths = self.results.iter().map(|result| result.answer.name().len());
        let width = lengths.max().unwrap_or(0).max(6);
        write!(f, "{:width$}  {:>8} {:>8}  full marks", "answer", "mean", "highest")?;
        for result in &self.results {
            let AuditResult { answer, num_answers, num_full_marks, num_unjudged, .. } = result;
            let answer = answer.name();
            let mean = format_reward(result.mean_reward);
            let highest = format_reward(result.highest_reward);
            let full_marks = num_full_marks
                .map_or("unknown".to_string(), |full| format!("{full} of {num_answers}"));
            write!(f, "\n{answer:width$}  {mean:>8} {highest:>8}  {full_marks}")?;
            if let Some(problem) = &result.problem {
                write!(f, " ({num_unjudged} not judged: {problem})")?;
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
        let result = |answer, full, reward| AuditResult {
            answer,
            num_answers: 2,
            mean_reward: Some(reward),
            highest_reward: Some(reward),
            num_full_marks: Some(full),
            num_unjudged: 0,
            problem: None,
        };
        let findings = |results| Report { task: "own".to_string(), results }.findings();
        let attack = AnswerKind::Attack;
        let right = || result(AnswerKind::Solution, 2, 1.0);
        assert_eq!(findings(vec![right()]), [""; 0]);
        let some =
            || vec![right(), result(attack("empty"), 0, 0.0), result(attack("huge"), 0, 1e-5)];
        let full = "Warning: worthless answers that get full marks: empty.";
        for (results, finding) in [
            (
                vec![result(AnswerKind::Solution, 1, 1.0)],
                "Warning: 1 of 2 solutions do not get full marks.",
            ),
            (vec![right(), result(attack("empty"), 0, 0.0)], "No worthless answer earns a reward."),
            (vec![right(), result(attack("empty"), 1, 0.5)], full),
            (some(), "No worthless answer gets full marks; the highest reward is <0.001 (huge)."),
        ] {
            assert_eq!(findings(results), [finding]);
        }
        let table = Report { task: "own".to_string(), results: some() }.to_string();
        assert!(table.contains("huge            <0.001   <0.001  0 of 2"), "{table}");
        assert!(findings(vec![])[0].contains("--attack"));
        let unknown =
            |answer, reward| AuditResult { num_full_marks: None, ..result(answer, 0, reward) };
        let found =
            findings(vec![unknown(AnswerKind::Solution, 10.0), unknown(attack("empty"), 2.0)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].ends_with("the highest reward of a worthless answer is 2.000 (empty)."),
            "{found:?}"
        );
    }
}
