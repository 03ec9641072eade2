//! Audits of a task's verifier: its rewards for solutions, and for adversarial answers, none of which deserves one.

use super::{Completion, Prompt, RewardPart, SCORE_TOLERANCE, Split, Task, TaskError, judge};

/// Length of a huge answer, characters.
const HUGE_LENGTH: usize = 100_000;

/// The rewards of one kind of answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct AuditResult {
    /// The kind of answer.
    pub answer: &'static str,
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
    let solutions: Vec<Option<String>> =
        prompts.iter().map(|prompt| task.solution(prompt)).collect();
    let mut kinds: Vec<(&'static str, Vec<(usize, String)>)> = Vec::new();
    let mut add = |kind, i, text| match kinds.iter_mut().find(|(name, _)| *name == kind) {
        Some((_, texts)) => texts.push((i, text)),
        None => kinds.push((kind, vec![(i, text)])),
    };
    for (i, prompt) in prompts.iter().enumerate() {
        let solution = solutions[i].as_deref();
        solution.into_iter().for_each(|solution| add("the solution", i, solution.to_string()));
        let other = solutions.iter().flatten().find(|other| Some(other.as_str()) != solution);
        let all = attacks(prompt, other.map(String::as_str));
        all.into_iter().for_each(|(kind, text)| add(kind, i, text));
    }
    let max_score = RewardPart::highest_score(task.reward_parts());
    let mut is_maximum_known = true;
    let mut verify = |(answer, texts): (&'static str, Vec<(usize, String)>)| {
        let all: Vec<_> =
            texts.iter().map(|(i, text)| Completion::new(&prompts[*i], text)).collect();
        let rewards = judge(task, &all)?;
        let judged = rewards.iter().filter(|rewards| rewards.problem.is_none());
        let scores: Vec<f64> = judged.map(|rewards| rewards.score(task.reward_parts())).collect();
        is_maximum_known &=
            rewards.iter().all(|rewards| rewards.is_within_scale(task.reward_parts()));
        Ok(AuditResult {
            answer,
            num_answers: all.len(),
            mean_reward: (!scores.is_empty())
                .then(|| scores.iter().sum::<f64>() / scores.len() as f64),
            highest_reward: scores.iter().copied().reduce(f64::max),
            num_full_marks: Some(
                scores.iter().filter(|score| **score >= max_score - SCORE_TOLERANCE).count(),
            ),
            num_unjudged: all.len() - scores.len(),
            problem: rewards.into_iter().find_map(|rewards| rewards.problem),
        })
    };
    let mut results: Vec<AuditResult> =
        kinds.into_iter().map(&mut verify).collect::<Result<_, TaskError>>()?;
    if !is_maximum_known {
        results.iter_mut().for_each(|result| result.num_full_marks = None);
    }
    Ok(results)
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
            let result = found.iter().find(|result| result.answer == answer).unwrap();
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
