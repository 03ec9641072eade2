//! Sample completions of a language model in training: of held-out prompts, and of a user's.

use crate::support::tiny;
use grove::task::{Sort, Split};
use grove::text::generate::Sampling;
use grove::trainer::text::LanguageTrainer;
use std::sync::Arc;

fn trainer() -> LanguageTrainer {
    let mut config = tiny(1);
    config.model.tiny.context = 24;
    config.generation.num_prompts = 4;
    config.fit.iterations = 3;
    LanguageTrainer::for_task(Arc::new(Sort::default()), config, None).unwrap()
}

#[test]
fn sample_completions_use_held_out_prompts_and_do_not_change_the_run() {
    let mut trainer = trainer();
    let mut other = self::trainer();
    trainer.iterate().unwrap();
    other.iterate().unwrap();
    let samples = trainer.sample_held_out(3, 2).unwrap();
    assert_eq!(samples.len(), 6);
    for (i, one) in samples.iter().enumerate() {
        let prompt = trainer.task().prompt(Split::Test, i as u64 / 2).unwrap();
        assert_eq!((&one.prompt, one.group, one.iteration), (&prompt.text, i / 2, 1));
        assert_eq!(one.rewards.keys().collect::<Vec<_>>(), ["digits", "exact", "format"]);
        // The tokens of this completion are its characters and, if it was not truncated, the end token.
        assert!(one.tokens.is_empty());
        assert_eq!(one.logprobs.len(), one.completion.len() + usize::from(!one.is_truncated));
    }
    let (mut one, mut two) = (trainer.iterate().unwrap(), other.iterate().unwrap());
    for record in [&mut one, &mut two] {
        record.seconds = Default::default();
        record.memory = Default::default();
        (record.steps_per_second, record.utilization) = (0.0, None);
        record.text.as_mut().unwrap().learnt_tokens_per_second = 0.0;
    }
    assert_eq!(one, two);
}

#[test]
fn a_users_prompt_is_completed_or_rejected() {
    let trainer = trainer();
    let sampling = trainer.sampling();
    let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
    let surest = trainer.complete_text("31452>", 1, &greedy).unwrap();
    assert_eq!(surest, trainer.complete_text("31452>", 1, &greedy).unwrap());
    let drawn = trainer.complete_text("31452>", 4, &sampling).unwrap();
    assert_eq!(drawn.len(), 4);
    assert!(drawn.iter().any(|one| one.completion != drawn[0].completion), "{drawn:?}");
    let refused = |text: &str| trainer.complete_text(text, 1, &sampling).unwrap_err().to_string();
    assert_eq!(refused("a>"), "the model's vocabulary has no 'a'");
    assert!(refused("").contains("it must have at least one"));
    assert!(refused(&"1".repeat(30)).contains("no more than the model's context of 24"));
}
