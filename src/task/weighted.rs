//! A wrapper that changes a task's rewards: their weights, or the verifier.

use super::{Completion, Part, Prompt, Rewards, Split, Task, TaskError};
use std::sync::Arc;

/// Overrides reward weights of a task (TRL: `reward_weights`), for instance with `tests=0.9,types=0.1`.
/// Parts that are not listed keep their weights; an empty text returns the task unchanged.
///
/// # Errors
/// If the list is malformed, names an unknown part, or leaves no part with a positive weight.
pub fn weighted(task: Arc<dyn Task>, weights: &str) -> Result<Arc<dyn Task>, TaskError> {
    if weights.is_empty() {
        return Ok(task);
    }
    let wrong = |message: String| Err(TaskError::Setting(message));
    let mut parts = task.parts().to_vec();
    for Part { name, weight } in Part::list(weights)? {
        let Some(part) = parts.iter_mut().find(|part| part.name == name) else {
            let known: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
            let (task, known) = (task.name(), known.join(", "));
            return wrong(format!("`{task}` has no reward part `{name}`; must be one of: {known}"));
        };
        part.weight = weight;
    }
    if parts.iter().all(|part| part.weight <= 0.0) {
        return wrong(format!("the reward weights {weights} leave no part with a positive weight"));
    }
    Ok(Arc::new(Altered { task, parts, verify: None }))
}

/// A verifier that cannot fail.
type Verify = fn(&[Completion]) -> Vec<Rewards>;

/// A task with other parts of its rewards.
pub(crate) struct Altered {
    pub task: Arc<dyn Task>,
    pub parts: Vec<Part>,
    /// The verifier in place of the task's.
    pub verify: Option<Verify>,
}

impl Task for Altered {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        self.task.num_prompts(split)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        self.task.prompt(split, index)
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        match self.verify {
            Some(verify) => Ok(verify(completions)),
            None => self.task.verify(completions),
        }
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        self.task.solution(prompt)
    }

    fn alphabet(&self) -> Option<String> {
        self.task.alphabet()
    }

    fn max_new_tokens(&self) -> usize {
        self.task.max_new_tokens()
    }

    fn notes(&self) -> Vec<String> {
        self.task.notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Sort;

    #[test]
    fn listed_weights_replace_the_task_s() {
        let task = weighted(Arc::new(Sort::default()), "exact=3").unwrap();
        let of = |name: &str| task.parts().iter().find(|part| part.name == name).unwrap().weight;
        assert_eq!(of("exact"), 3.0);
        let before: Vec<_> = Sort::default().parts().to_vec();
        for part in before.iter().filter(|part| part.name != "exact") {
            assert_eq!(of(&part.name), part.weight);
        }
        let prompt = task.prompt(Split::Train, 0).unwrap();
        let answer = task.solution(&prompt).unwrap();
        let rewards = task.verify(&[Completion::new(&prompt, &answer)]).unwrap();
        let best: f64 = task.parts().iter().map(|part| part.weight.max(0.0)).sum();
        assert_eq!(rewards[0].total(task.parts()), best);
    }

    #[test]
    fn invalid_weights_are_refused() {
        let said = |weights: &str| match weighted(Arc::new(Sort::default()), weights) {
            Ok(_) => panic!("{weights} is taken"),
            Err(error) => error.to_string(),
        };
        assert!(
            said("nonsense=1")
                .starts_with("`sort` has no reward part `nonsense`; must be one of: exact, ")
        );
        assert!(said("exact=much").contains("`exact=much` is not a reward part"));
        let names: Vec<_> =
            Sort::default().parts().iter().map(|p| format!("{}=0", p.name)).collect();
        assert!(said(&names.join(",")).contains("leave no part with a positive weight"));
    }
}
