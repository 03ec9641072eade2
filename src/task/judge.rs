//! Verification with a check of what the task returns, so that a mistake in a task does not reach the learner.

use super::{Completion, MAX_REWARD_PART, Rewards, Task, TaskError};

/// Computes the rewards of completions, in their order. A reward with a part that is not finite, or beyond
/// 1e15 in size, or without a part that applies, becomes one that could not be judged.
///
/// # Errors
/// The errors of [`Task::verify`], and one if the task returns another number of rewards than there are completions, or
/// rewards of another number of parts than it has.
pub fn judge(task: &dyn Task, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
    let name = task.name();
    let parts = task.reward_parts();
    let mut all = task.verify(completions)?;
    if all.len() != completions.len() {
        let (found, expected) = (all.len(), completions.len());
        return Err(TaskError::Verifier(format!(
            "the task `{name}` must return a reward for each of {expected} completions, but it returned {found}"
        )));
    }
    for rewards in &mut all {
        let Rewards { values: earned, problem, not_applicable } = rewards;
        let (found, expected) = (earned.len(), parts.len());
        if problem.is_none() && found != expected {
            return Err(TaskError::Verifier(format!(
                "the task `{name}` has rewards of {expected} parts, but it returned one of {found}"
            )));
        }
        let is_usable = |reward: f64| reward.abs() <= MAX_REWARD_PART;
        let wrong = earned.iter().zip(parts).find(|(reward, _)| !is_usable(**reward));
        let unusable = wrong.map(|(reward, part)| {
            format!(
                "the reward `{}` is {reward:e}, but must be a finite number, at most {MAX_REWARD_PART:e} in size",
                part.name
            )
        });
        // What a task has put there nevertheless is not earned.
        let of_missing = earned.iter_mut().enumerate().filter(|(i, _)| not_applicable.contains(i));
        let num_missing = of_missing.map(|(_, reward)| *reward = 0.0).count();
        let all_missing = (num_missing == expected && expected > 0)
            .then(|| "no part of the reward applies to it".to_string());
        if let Some(problem) = problem.take().or(unusable).or(all_missing) {
            *rewards = Rewards::unjudged(expected, problem);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::fake::FakeTask;
    use crate::task::{RewardPart, Split};

    fn judge_two(rewards: &[&[f64]]) -> Result<Vec<Rewards>, TaskError> {
        judge_rewards(rewards.iter().map(|parts| Rewards::new(parts.to_vec())).collect())
    }

    fn judge_rewards(rewards: Vec<Rewards>) -> Result<Vec<Rewards>, TaskError> {
        let parts = vec![RewardPart::new("exact", 1.0), RewardPart::new("format", 0.5)];
        let task = FakeTask { parts, verify: |_: &[Completion]| rewards.clone() };
        let prompt = task.prompt(Split::Train, 0)?;
        judge(&task, &[Completion::new(&prompt, "a"), Completion::new(&prompt, "b")])
    }

    #[test]
    fn rewards_that_cannot_be_learnt_from_are_problems_and_leave_the_others() {
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -2e15] {
            let rewards = judge_two(&[&[1e15, 0.25], &[0.0, wrong]]).unwrap();
            assert_eq!(rewards[0], Rewards::new(vec![1e15, 0.25]));
            let problem = format!(
                "the reward `format` is {wrong:e}, but must be a finite number, at most 1e15 in size"
            );
            assert_eq!(rewards[1], Rewards::unjudged(2, problem));
        }
    }

    #[test]
    fn parts_that_do_not_apply_and_rewards_that_were_not_judged_earn_nothing() {
        let with_missing = |not_applicable: &[usize]| Rewards {
            not_applicable: not_applicable.to_vec(),
            ..Rewards::new(vec![1.0, 0.5])
        };
        let failed = Rewards { problem: Some("late".to_string()), ..Rewards::new(vec![1.0; 3]) };
        let rewards = judge_rewards(vec![with_missing(&[0]), failed]).unwrap();
        assert_eq!(rewards[0].values, [0.0, 0.5]);
        assert_eq!(rewards[1], Rewards::unjudged(2, "late".to_string()));
        let rewards = judge_rewards(vec![with_missing(&[0, 1]), with_missing(&[])]).unwrap();
        assert_eq!(rewards[0].problem.as_deref(), Some("no part of the reward applies to it"));
        assert_eq!(rewards[1].values, [1.0, 0.5]);
    }

    #[test]
    fn wrong_numbers_of_rewards_and_of_parts_are_errors() {
        let said = |rewards: &[&[f64]]| judge_two(rewards).unwrap_err().to_string();
        let cases: [&[&[f64]]; 3] = [&[], &[&[1.0, 0.0]], &[&[1.0, 0.0][..]; 3]];
        for rewards in cases {
            let count = format!("for each of 2 completions, but it returned {}", rewards.len());
            assert!(said(rewards).ends_with(&count), "{}", said(rewards));
        }
        let cases: [&[f64]; 3] = [&[], &[1.0], &[1.0; 3]];
        for parts in cases {
            let count = format!("has rewards of 2 parts, but it returned one of {}", parts.len());
            assert!(said(&[&[1.0, 0.0], parts]).ends_with(&count));
        }
    }
}
