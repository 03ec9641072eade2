//! Scalars: the metrics of a record by the names that CleanRL and TRL use.

use crate::metrics::IterationRecord;

/// A scalar: its name and value; `None` in iterations without it.
pub type Scalar = (String, Option<f64>);

/// Lists the scalars of a record, in a fixed order.
///
/// Groups before the slash are TensorBoard's sections: `charts` and `losses` as in CleanRL, `completions` and
/// `rewards` as in TRL, `eval` for the greedy policy.
pub fn list_scalars(record: &IterationRecord) -> Vec<Scalar> {
    let phases = record.seconds.phases;
    let evaluation = record.evaluation.as_ref();
    let played = evaluation.filter(|evaluation| evaluation.episodes > 0);
    let scored = evaluation.filter(|evaluation| evaluation.score().is_some());
    let held_out = evaluation.and_then(|evaluation| evaluation.held_out);
    // SFT has no completions, and a verifier may judge none.
    let has_rewards = record.text.is_none() || record.score.is_some();
    let mut scalars = vec![
        ("charts/episodic_return", record.score),
        ("charts/episodic_length", record.mean_length),
        ("charts/episodes", Some(record.episodes as f64)),
        ("charts/mean_reward", has_rewards.then_some(record.mean_reward)),
        ("charts/SPS", Some(record.steps_per_second)),
        ("charts/learning_rate", Some(record.learning_rate)),
        ("charts/frac_reward_zero_std", Some(record.zero_variance_fraction)),
        ("losses/policy_loss", Some(record.loss)),
        ("losses/entropy", Some(record.entropy)),
        ("losses/approx_kl", Some(record.approx_kl)),
        ("losses/clipfrac", Some(record.clip_fraction)),
        ("losses/reference_kl", Some(record.reference_kl)),
        ("losses/grad_norm", Some(record.grad_norm)),
        ("eval/mean_score", scored.and_then(|scored| scored.mean_score)),
        ("eval/std_error", scored.and_then(|scored| scored.std_error)),
        ("eval/mean_length", played.map(|played| played.mean_length)),
        ("eval/held_out_loss", held_out.map(|held_out| held_out.loss)),
        ("eval/held_out_accuracy", held_out.and_then(|held_out| held_out.accuracy)),
        ("time/iteration", Some(record.seconds.total)),
        ("time/rollout", phases.map(|phases| phases.rollout)),
        ("time/advantage", phases.map(|phases| phases.advantage)),
        ("time/update", phases.map(|phases| phases.update)),
        ("time/verify", phases.and_then(|phases| phases.verify)),
        ("system/memory", record.memory.in_use.map(|bytes| bytes as f64)),
        ("system/utilization", record.utilization),
    ];
    if let Some(text) = &record.text {
        let generated = |value: f64| (!text.is_sft).then_some(value);
        let evaluated = evaluation.and_then(|evaluation| evaluation.text.as_ref());
        scalars.extend([
            ("completions/mean_length", generated(text.completion_length)),
            ("completions/clipped_ratio", generated(text.truncated_fraction)),
            ("completions/distinct", generated(text.distinct_fraction)),
            ("completions/unverified", generated(text.num_unjudged as f64)),
            ("eval/pass_at_1", evaluated.and_then(|evaluated| evaluated.pass_at_1)),
            ("eval/pass_at_k", evaluated.and_then(|evaluated| evaluated.pass_at_k)),
        ]);
    }
    let rewards = record.text.iter().flat_map(|text| &text.rewards);
    let rewards = rewards.map(|(part, mean)| (format!("rewards/{part}"), Some(*mean)));
    scalars.into_iter().map(|(name, value)| (name.to_string(), value)).chain(rewards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LanguageRecord;

    #[test]
    fn a_mean_of_no_rewards_is_left_out() {
        let mean = |score: Option<f64>, text: Option<LanguageRecord>| {
            let all = list_scalars(&IterationRecord { score, text, ..IterationRecord::default() });
            all.into_iter().find(|(name, _)| name == "charts/mean_reward").unwrap().1
        };
        let text = || Some(LanguageRecord::default());
        assert_eq!((mean(None, None), mean(Some(0.5), text())), (Some(0.0), Some(0.0)));
        assert_eq!(mean(None, text()), None);
    }
}
