//! Verification with a check of what the task returns, so that a mistake in a task does not reach the learner.

use super::{Completion, MAX_REWARD, Rewards, Task, TaskError};

/// Computes the rewards of completions, in their order. A reward with a part that is not finite, or beyond
/// 1e15 in size, becomes one that could not be judged.
///
/// # Errors
/// The errors of [`Task::verify`], and one if the task returns another number of rewards than there are completions, or
/// rewards of another number of parts than it has.
pub fn judge(task: &dyn Task, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
    let (name, parts) = (task.name(), task.reward_parts());
    let mut all = task.verify(completions)?;
    if all.len() != completions.len() {
        let (found, expected) = (all.len(), completions.len());
        return Err(TaskError::Verifier(format!(
            "the task `{name}` must return a reward for each of {expected} completions, but it returned {found}"
        )));
    }
    for rewards in all.iter_mut().filter(|rewards| rewards.problem.is_none()) {
        let (found, expected) = (rewards.parts.len(), parts.len());
        if found != expected {
            return Err(TaskError::Verifier(format!(
                "the task `{name}` has rewards of {expected} parts, but it returned one of {found}"
            )));
        }
        let is_usable = |reward: f64| reward.abs() <= MAX_REWARD;
        let wrong = rewards.parts.iter().zip(parts).find(|(reward, _)| !is_usable(**reward));
        if let Some((reward, part)) = wrong {
            let problem = format!(
                "the reward `{}` is {reward:e}, but must be a finite number, at most {MAX_REWARD:e} in size",
                part.name
            );
            *rewards = Rewards::unjudged(expected, problem);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Prompt, RewardPart, Split};

    /// A task that returns these rewards.
    struct FixedRewards {
        parts: Vec<RewardPart>,
        rewards: Vec<Vec<f64>>,
    }

    impl Task for FixedRewards {
        fn name(&self) -> &str {
            "given"
        }

        fn prompt(&self, _: Split, _: u64) -> Result<Prompt, TaskError> {
            Ok(Prompt { text: "?".to_string(), ..Prompt::default() })
        }

        fn reward_parts(&self) -> &[RewardPart] {
            &self.parts
        }

        fn verify(&self, _: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
            Ok(self.rewards.iter().cloned().map(Rewards::new).collect())
        }

        fn max_new_tokens(&self) -> usize {
            4
        }
    }

    fn judge_two(rewards: &[&[f64]]) -> Result<Vec<Rewards>, TaskError> {
        let parts = vec![RewardPart::new("exact", 1.0), RewardPart::new("format", 0.5)];
        let rewards = rewards.iter().map(|parts| parts.to_vec()).collect();
        let task = FixedRewards { parts, rewards };
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
