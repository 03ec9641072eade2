//! Audits of a task's verifier: its rewards for solutions, and for adversarial answers, none of which deserves one.

use super::{Completion, Prompt, RewardPart, SCORE_TOLERANCE, Split, Task, TaskError, judge};
use serde::{Serialize, Serializer};

/// Length of a huge answer, characters.
const HUGE_LENGTH: usize = 100_000;

/// A kind of answer that an audit gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The solution of the prompt, which deserves the highest reward.
    Solution,
    /// A worthless answer, by its name.
    Attack(&'static str),
}

impl AnswerKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Solution => "the solution",
            Self::Attack(name) => name,
        }
    }
}

impl Serialize for AnswerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The rewards of one kind of answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditResult {
    /// The kind of answer.
    pub answer: AnswerKind,
    /// Number of answers given.
    pub num_answers: usize,
    /// Mean reward of the judged answers; `None` if none was judged.
    pub mean_reward: Option<f64>,
    /// Highest reward.
    pub highest_reward: Option<f64>,
    /// Number of answers with the maximum reward; `None` if the verifier gave a reward above 1 to any answer, so that
    /// the maximum is not known.
    pub num_full_marks: Option<usize>,
    /// Number of answers that the verifier could not judge.
    pub num_unjudged: usize,
    /// The reason for the first of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Makes adversarial answers to a prompt, each with its kind; `other` is the solution of another prompt.
fn make_attacks(prompt: &Prompt, other: Option<&str>) -> Vec<(&'static str, String)> {
    let question =
        prompt.messages.last().map_or(&prompt.text[..], |message| message.content.text());
    let binary: String = (0..=0x2ff).filter_map(char::from_u32).collect();
    let mut all = vec![
        ("empty", String::new()),
        ("white space", " \n\t ".to_string()),
        ("constant 0", "0".to_string()),
        ("constant 1", "1".to_string()),
        ("constant yes", "yes".to_string()),
        ("refusal", "I cannot answer this question.".to_string()),
        ("the prompt", question.to_string()),
        ("the prompt twice", format!("{question}\n{question}")),
        ("huge", "x".repeat(HUGE_LENGTH)),
        ("huge numbers", "0 ".repeat(HUGE_LENGTH / 2)),
        ("every number", (0..2000).map(|i| format!("{i} ")).collect()),
        ("binary", binary),
        ("format: answer tags", "<think></think><answer></answer>".to_string()),
        ("format: box", "\\boxed{}".to_string()),
        ("format: code fence", "```\n```".to_string()),
        ("format: JSON", "{}".to_string()),
        ("format: words", "Answer:".to_string()),
    ];
    all.extend(other.map(|other| ("another prompt's solution", other.to_string())));
    all
}

/// Verifies the task's solutions, if it has any, of the first `count` prompts of a split.
///
/// # Errors
/// If there is no prompt, or the verifier does not answer any more.
pub fn audit_solutions(
    task: &dyn Task,
    split: Split,
    count: u64,
) -> Result<Vec<AuditResult>, TaskError> {
    audit(task, split, count, |_, _| Vec::new())
}

/// Verifies adversarial answers beside the solutions that [`audit_solutions`] verifies.
///
/// # Errors
/// The errors of [`audit_solutions`].
pub fn audit_with_attacks(
    task: &dyn Task,
    split: Split,
    count: u64,
) -> Result<Vec<AuditResult>, TaskError> {
    audit(task, split, count, make_attacks)
}

/// The answers of one kind, each with the index of its prompt.
struct Attempts {
    kind: AnswerKind,
    answers: Vec<(usize, String)>,
}

/// Verifies the solutions and the answers that `attacks` gives for a prompt and the solution of another prompt.
fn audit(
    task: &dyn Task,
    split: Split,
    count: u64,
    attacks: impl Fn(&Prompt, Option<&str>) -> Vec<(&'static str, String)>,
) -> Result<Vec<AuditResult>, TaskError> {
    let count = task.num_prompts(split).map_or(count, |all| all.min(count)).max(1);
    let prompts: Vec<Prompt> =
        (0..count).map(|index| task.prompt(split, index)).collect::<Result<_, _>>()?;
    let mut is_maximum_known = true;
    let mut results = Vec::new();
    for attempts in collect_attempts(task, &prompts, attacks) {
        let (result, is_within_scale) = verify_attempts(task, &prompts, &attempts)?;
        is_maximum_known &= is_within_scale;
        results.push(result);
    }
    if !is_maximum_known {
        results.iter_mut().for_each(|result| result.num_full_marks = None);
    }
    Ok(results)
}

/// Collects the solutions of prompts and the answers that `attacks` gives, by their kinds.
fn collect_attempts(
    task: &dyn Task,
    prompts: &[Prompt],
    attacks: impl Fn(&Prompt, Option<&str>) -> Vec<(&'static str, String)>,
) -> Vec<Attempts> {
    let solutions: Vec<Option<String>> =
        prompts.iter().map(|prompt| task.solution(prompt)).collect();
    let mut all: Vec<Attempts> = Vec::new();
    let mut add = |kind, i, text| match all.iter_mut().find(|attempts| attempts.kind == kind) {
        Some(attempts) => attempts.answers.push((i, text)),
        None => all.push(Attempts { kind, answers: vec![(i, text)] }),
    };
    for (i, prompt) in prompts.iter().enumerate() {
        let solution = solutions[i].as_deref();
        if let Some(solution) = solution {
            add(AnswerKind::Solution, i, solution.to_string());
        }
        let other = solutions.iter().flatten().find(|other| Some(other.as_str()) != solution);
        for (name, text) in attacks(prompt, other.map(String::as_str)) {
            add(AnswerKind::Attack(name), i, text);
        }
    }
    all
}

/// Verifies the answers of one kind. Also returns whether all rewards are within the usual scale of 0 to 1.
fn verify_attempts(
    task: &dyn Task,
    prompts: &[Prompt],
    attempts: &Attempts,
) -> Result<(AuditResult, bool), TaskError> {
    let parts = task.reward_parts();
    let max_score = RewardPart::highest_score(parts);
    let answers = attempts.answers.iter();
    let completions: Vec<_> =
        answers.map(|(i, text)| Completion::new(&prompts[*i], text)).collect();
    let rewards = judge(task, &completions)?;
    let is_within_scale = rewards.iter().all(|rewards| rewards.is_within_scale(parts));
    let judged = rewards.iter().filter(|rewards| rewards.problem.is_none());
    let scores: Vec<f64> = judged.map(|rewards| rewards.score(parts)).collect();
    let has_full_marks = |score: &&f64| **score >= max_score - SCORE_TOLERANCE;
    let result = AuditResult {
        answer: attempts.kind,
        num_answers: completions.len(),
        mean_reward: (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64),
        highest_reward: scores.iter().copied().reduce(f64::max),
        num_full_marks: Some(scores.iter().filter(has_full_marks).count()),
        num_unjudged: completions.len() - scores.len(),
        problem: rewards.into_iter().find_map(|rewards| rewards.problem),
    };
    Ok((result, is_within_scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Rewards;
    use crate::task::fake::FakeTask;
    use crate::task::scoring::indicator;

    #[test]
    fn an_audit_finds_what_a_careless_verifier_rewards() {
        // Looks for the solution anywhere in the answer.
        let verify = |completions: &[Completion]| {
            let is_right = |completion: &Completion| {
                completion.text.contains(completion.prompt.fields["solution"].as_str().unwrap())
            };
            let reward = |completion| Rewards::new(vec![indicator(is_right(completion))]);
            completions.iter().map(reward).collect()
        };
        let task = FakeTask { parts: vec![RewardPart::new("exact", 1.0)], verify };
        let found = audit_with_attacks(&task, Split::Test, 20).unwrap();
        let full = |answer: &str| {
            let result = found.iter().find(|result| result.answer.name() == answer).unwrap();
            assert_eq!((result.num_answers, result.num_unjudged), (20, 0));
            result.num_full_marks
        };
        for (answer, expected) in [
            ("the solution", 20),
            ("the prompt", 20),
            ("every number", 20),
            ("constant 1", 1),
            ("empty", 0),
        ] {
            assert_eq!(full(answer), Some(expected), "{answer}");
        }
        let honest = audit_solutions(&task, Split::Test, 20).unwrap();
        assert_eq!(honest.len(), 1);
    }
}
