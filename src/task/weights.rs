//! Reward weights other than a task's own.

use super::{RewardPart, Task, TaskError};

/// Returns the parts of a task's reward with other weights (TRL: `reward_weights`), for instance `tests=0.9,types=0.1`.
/// Parts that are not listed keep their weights.
///
/// # Errors
/// If the list is malformed, names an unknown part, or leaves no part with a positive weight.
pub fn reweight_parts(task: &dyn Task, weights: &str) -> Result<Vec<RewardPart>, TaskError> {
    let wrong = |message: String| Err(TaskError::Setting(message));
    let mut parts = task.reward_parts().to_vec();
    if weights.is_empty() {
        return Ok(parts);
    }
    for RewardPart { name, weight } in RewardPart::parse_list(weights)? {
        let Some(part) = parts.iter_mut().find(|part| part.name == name) else {
            let known: Vec<_> = parts.iter().map(|part| &*part.name).collect();
            let task = task.name();
            let known = known.join(", ");
            return wrong(format!("`{task}` has no reward part `{name}`; must be one of: {known}"));
        };
        part.weight = weight;
    }
    RewardPart::require_positive(&parts, weights)?;
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Sort;

    #[test]
    fn listed_weights_replace_the_task_s() {
        let task = Sort::default();
        let own: Vec<f64> = task.reward_parts().iter().map(|part| part.weight).collect();
        let weights = |text: &str| -> Vec<f64> {
            reweight_parts(&task, text).unwrap().iter().map(|part| part.weight).collect()
        };
        assert_eq!(weights(""), own);
        assert_eq!(weights("exact=3"), [&[3.0], &own[1..]].concat());
    }

    #[test]
    fn invalid_weights_are_rejected() {
        let task = Sort::default();
        let said = |weights: &str| reweight_parts(&task, weights).unwrap_err().to_string();
        assert!(
            said("nonsense=1")
                .starts_with("`sort` has no reward part `nonsense`; must be one of: exact, ")
        );
        assert!(said("exact=much").contains("`exact=much` is not a reward part"));
        let names: Vec<_> = task.reward_parts().iter().map(|p| format!("{}=0", p.name)).collect();
        assert!(said(&names.join(",")).contains("leave no part with a positive weight"));
    }
}
