//! Language models learn tasks: they repeat, go on where they were, and depend on no thread.

use crate::support::{Scratch, TINY_SIZES, json, refusal, tiny};
use crate::trainers::{assert_resumes, iterate, snapshot};
use grove::settings::MomentPrecision;
use grove::task::{Completion, Prompt, RewardPart, Rewards, Sort, Split, Task, TaskError};
use grove::text::{LanguageModel, LoraConfig};
use grove::trainer::Validation;
use grove::trainer::text::{LanguageConfig, LanguageTrainer};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// A small model that first imitates and then learns by rewards.
pub fn config() -> LanguageConfig {
    let mut config = tiny(2);
    config.generation.num_prompts = 6;
    config.generation.group_size = 4;
    config.generation.slots = 5;
    config.iterations = 6;
    config.fit.iterations = 2;
    config.loss.kl_coef = 0.05;
    config.loss.entropy_coef = 0.01;
    config.update.num_minibatches = 2;
    config.checkpoint.eval_episodes = 10;
    config
}

pub fn trainer(config: &LanguageConfig) -> LanguageTrainer {
    LanguageTrainer::for_task(Arc::new(Sort { length: 3 }), config.clone(), None).unwrap()
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_with_any_threads() {
    let [f32, bf16, bits8] =
        [MomentPrecision::F32, MomentPrecision::Bf16, MomentPrecision::EightBit];
    for (resample, moments) in [(0, f32), (2, f32), (0, bf16), (0, bits8)] {
        let mut config = config();
        config.generation.resample = resample;
        config.optimizer.moments = moments;
        assert_resumes(|| trainer(&config), config.iterations, &[(1, 1), (2, 3), (3, 5)]);
    }
}

#[test]
fn nothing_is_restored_from_a_damaged_checkpoint() {
    let mut first = trainer(&config());
    iterate(&mut first, 3);
    let saved = snapshot(&first);
    let mut second = trainer(&config());
    iterate(&mut second, 1);
    let before = snapshot(&second);
    for name in ["weights", "first_moment", "second_moment", "reference"] {
        let mut damaged = saved.clone();
        let section = damaged.sections.iter_mut().find(|one| one.name.starts_with(name)).unwrap();
        section.bytes.truncate(section.bytes.len() / 2);
        assert!(second.restore(&damaged).is_err(), "{name}");
        assert!(snapshot(&second) == before, "{name}");
    }
    second.restore(&saved).unwrap();
    assert!(snapshot(&second) == saved);
}

#[test]
fn ratios_of_the_first_update_are_exactly_one() {
    let mut config = config();
    config.update.num_minibatches = 1;
    config.generation.temperature = 0.8;
    let mut trainer = trainer(&config);
    let records = iterate(&mut trainer, 6);
    for record in &records[2..] {
        let text = record.text.as_ref().unwrap();
        assert!(text.first_ratio_distance.is_none_or(|distance| distance == 0.0));
        assert_eq!(record.approx_kl, 0.0);
        assert!(text.num_tokens > 0 && (1.0..=4.0).contains(&text.completion_length));
        assert!(text.rewards.contains_key("exact") && text.sampling_entropy > 0.0);
        assert!(record.score.is_some() && record.episodes == 6 * 4 && record.mean_reward > 0.0);
    }
    let are_sft: Vec<bool> =
        records.iter().map(|record| record.text.as_ref().unwrap().is_sft).collect();
    assert_eq!(are_sft, [true, true, false, false, false, false]);
    assert_eq!(records[1].score, None, "SFT has no rewards");
    assert!(records.is_sorted_by(|a, b| a.env_steps < b.env_steps));
}

#[test]
fn learner_and_sampler_use_the_same_policy() {
    let mut config = config();
    (config.fit.iterations, config.update.num_minibatches) = (0, 1);
    (config.generation.top_k, config.generation.top_p) = (4, 0.8);
    (config.generation.min_p, config.loss.entropy_coef) = (0.1, 0.0);
    let mut trainer = trainer(&config);
    for record in iterate(&mut trainer, 3) {
        let text = record.text.unwrap();
        assert_eq!((text.first_ratio_distance, record.approx_kl), (Some(0.0), 0.0));
        // Among four tokens at most; of all, it is near the logarithm of their number.
        assert!(text.sampling_entropy <= 4f64.ln() && record.entropy <= 4f64.ln());
    }
}

#[test]
fn the_reference_policy_is_that_at_the_start_of_rewards() {
    let mut config = config();
    (config.fit.iterations, config.update.num_minibatches) = (3, 1);
    let mut trainer = trainer(&config);
    let records = iterate(&mut trainer, 5);
    let divergences: Vec<f64> = records.iter().map(|record| record.reference_kl).collect();
    assert_eq!(
        divergences[..4],
        [0.0; 4],
        "SFT has none, and the first update is of the reference"
    );
    assert!(divergences[4] > 0.0);
    let distances = records.iter().map(|record| record.text.as_ref().unwrap().first_ratio_distance);
    assert_eq!(distances.collect::<Vec<_>>()[2..4], [None, Some(0.0)], "SFT compares nothing");
}

#[test]
fn the_learning_rate_goes_by_iterations_whether_they_take_steps_or_not() {
    let mut config = config();
    config.loss.kl_coef = 0.0;
    (config.generation.max_new_tokens, config.reward.mask_truncated_completions) = (1, true);
    (config.fit.iterations, config.optimizer.warmup_ratio) = (1, 0.0);
    let records = iterate(&mut trainer(&config), config.iterations);
    assert!(records[1].text.as_ref().unwrap().truncated_fraction > 0.9, "no token counts");
    let rates: Vec<f64> = records.iter().map(|record| record.learning_rate).collect();
    assert_eq!(rates[0], config.fit.learning_rate);
    // The last of the iteration's two steps, of the ten that rewards have.
    for (i, rate) in rates[1..].iter().enumerate() {
        let want = config.optimizer.learning_rate * (1.0 - (2 * i + 1) as f64 / 10.0);
        assert!((rate - want).abs() < 1e-12, "{rates:?}");
    }
}

#[test]
fn adapters_alone_learn_and_lie_beside_the_model_that_they_are_for() {
    let folder = Scratch::new();
    let base = folder.join("base");
    trainer(&config()).model().save(&base).unwrap();
    let base = LanguageModel::load(&base).unwrap();
    let mut config = config();
    config.lora = LoraConfig::new(2);
    (config.fit.iterations, config.update.num_minibatches) = (0, 1);
    let begin = |model: &LanguageModel| {
        let task = Arc::new(Sort { length: 3 });
        LanguageTrainer::for_task(task, config.clone(), Some(model.clone())).unwrap()
    };
    let mut whole = begin(&base);
    let records = iterate(&mut whole, 6);
    assert!(
        records.iter().any(|record| record.reference_kl > 0.0),
        "the reference keeps the adapters that it began with"
    );
    let records = iterate(&mut begin(&whole.model()), 2);
    assert!(records[0].grad_norm > 0.0);
    assert_eq!(
        records[0].reference_kl, 0.0,
        "the reference of learnt adapters is the adapted model"
    );
    let mut first = begin(&base);
    iterate(&mut first, 2);
    let mut second = begin(&base).with_checkpoint(&snapshot(&first)).unwrap();
    iterate(&mut second, 4);
    assert!(snapshot(&second) == snapshot(&whole));
    let learnt = whole.model();
    assert!(learnt.params == base.params, "the model's own weights stay");
    let adapters = learnt.adapters.as_ref().unwrap();
    assert!(adapters.params() != begin(&base).model().adapters.unwrap().params());

    let saved = folder.join("adapters");
    learnt.save(&saved).unwrap();
    let weights = std::fs::read(saved.join("adapter_model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    assert_eq!(tensors.tensor(name).unwrap().shape(), [16, 2]);
    assert_eq!(tensors.len(), 2 * 2 * 7);
    let again = LanguageModel::load(&saved).unwrap();
    assert!(
        again.params == base.params
            && again.adapters.as_ref().unwrap().params() == adapters.params()
    );
    let mut others: Vec<_> = tensors.iter().collect();
    others.push((
        "base_model.model.model.layers.9.mlp.up_proj.lora_A.weight",
        tensors.tensor(name).unwrap(),
    ));
    let odd = folder.join("odd");
    learnt.save(&odd).unwrap();
    std::fs::write(
        odd.join("adapter_model.safetensors"),
        safetensors::serialize(others, None).unwrap(),
    )
    .unwrap();
    let error = LanguageModel::load(&odd).unwrap_err().to_string();
    let expected = "layers.9.mlp.up_proj.lora_A.weight` belongs to none of the adapters";
    assert!(error.contains(expected), "{error}");
    // A run goes on from them; settings of other adapters are errors, and defaults are not.
    assert_eq!(begin(&again).config().lora, config.lora);
    let with = |lora: LoraConfig| {
        let config = LanguageConfig { lora, ..config.clone() };
        let run = LanguageTrainer::for_task(Arc::new(Sort::default()), config, Some(again.clone()));
        run.map(|run| run.config().lora.clone()).map_err(|error| error.to_string())
    };
    assert_eq!(with(LoraConfig::default()), Ok(config.lora.clone()));
    let error = with(LoraConfig { r: 64, ..config.lora.clone() }).unwrap_err();
    let expected = "lora.r is 64, but the model has adapters with 2; leave lora.r out";
    assert!(error.contains(expected), "{error}");
    let error = with(LoraConfig { lora_alpha: 3.0, ..LoraConfig::default() }).unwrap_err();
    assert!(error.contains("lora.lora_alpha is 3, but"), "{error}");
    let modules = vec!["q_proj".to_string()];
    let error = with(LoraConfig { target_modules: modules, ..LoraConfig::default() }).unwrap_err();
    assert!(error.contains("lora.target_modules is [\"q_proj\"], but"), "{error}");

    let mut longer = config.clone();
    longer.model.tiny.context = 17;
    let model = Some(LanguageModel::load(&saved).unwrap());
    let refused = LanguageTrainer::for_task(Arc::new(Sort::default()), longer, model);
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("model.context = 17 is a size of `tiny`, but the model in"), "{error}");
    std::fs::remove_dir_all(folder.join("base")).unwrap();
    let error = LanguageModel::load(&saved).unwrap_err().to_string();
    assert!(error.contains("there is no model in") && error.contains("base"), "{error}");
    let none = LanguageTrainer::for_task(Arc::new(Sort::default()), config, None);
    assert!(none.err().unwrap().to_string().contains("lora.r needs a pretrained model"));
}

/// Norms decay in no step of a run, unless the settings say so; one step of the whole run tells decay from the
/// gradient, which both weights share.
#[test]
fn weight_decay_spares_norms_through_a_whole_run() {
    let learnt = |weight_decay, decay_norms_and_biases| {
        let mut config = config();
        (config.iterations, config.fit.iterations) = (1, 1);
        (config.update.num_minibatches, config.update.update_epochs) = (1, 1);
        config.optimizer.learning_rate = 1e-2;
        config.optimizer.weight_decay = weight_decay;
        config.optimizer.decay_norms_and_biases = decay_norms_and_biases;
        let mut trainer = trainer(&config);
        iterate(&mut trainer, 1);
        let model = trainer.model();
        let mut at = 0;
        let mut norms = Vec::new();
        let mut matrices = Vec::new();
        for parameter in model.shape.parameters() {
            let count: usize = parameter.shape.iter().product();
            let into = if parameter.shape.len() == 1 { &mut norms } else { &mut matrices };
            into.extend_from_slice(&model.params.values()[at..at + count]);
            at += count;
        }
        assert!(norms.len() >= 5 * 16);
        (norms, matrices)
    };
    let (plain, spared, all) = (learnt(0.0, false), learnt(0.5, false), learnt(0.5, true));
    assert!(spared.0 == plain.0 && spared.1 != plain.1);
    assert!(all.0 != plain.0 && all.1 == spared.1);
    // A norm of about 1 shrinks by the learning rate times the decay, at most 0.005, as in AdamW.
    let shrunk = f64::from(all.0[0]) / f64::from(plain.0[0]);
    assert!((0.99..0.9999).contains(&shrunk), "{shrunk}");
}

#[test]
fn a_completion_ends_before_a_stop_text() {
    let mut config = config();
    config.fit.iterations = 0;
    config.generation.stop = vec!["77".to_string(), "5".to_string(), ">".to_string()];
    let mut stopped = trainer(&config);
    for _ in 0..4 {
        let record = stopped.iterate().unwrap();
        let made = stopped.take_completions();
        let cut = made.iter().filter(|one| one.is_truncated).count();
        assert!(
            (record.text.unwrap().truncated_fraction - cut as f64 / made.len() as f64).abs()
                < 1e-12
        );
        for one in made {
            assert!(!one.completion.contains(['5', '>']) && !one.completion.contains("77"));
            // The learnt tokens include those of the end, which the verifier does not see.
            let end = one.logprobs.len() - one.completion.chars().count();
            assert!(if one.is_truncated { end == 0 } else { (1..=2).contains(&end) }, "{one:?}");
        }
    }
    // A text that never appears changes nothing; one that does ends more of them.
    let ended = |stop: &[&str]| {
        let mut config = config.clone();
        config.generation.stop = stop.iter().map(|text| (*text).to_string()).collect();
        let mut trainer = trainer(&config);
        trainer.iterate().unwrap();
        let made = trainer.take_completions();
        (made.iter().filter(|one| !one.is_truncated).count(), made)
    };
    assert_eq!(ended(&["x"]), ended(&[]));
    assert!(ended(&["5", ">"]).0 > ended(&[]).0);
}

#[test]
fn imitation_alone_learns_to_sort_three_digits() {
    let mut config = config();
    config.loss.kl_coef = 0.0;
    config.update.num_minibatches = 1;
    config.model.tiny.hidden_size = 32;
    config.model.tiny.intermediate_size = 64;
    config.generation.num_prompts = 32;
    config.iterations = 200;
    config.fit.iterations = 200;
    config.fit.learning_rate = 3e-3;
    config.checkpoint.eval_episodes = 100;
    let mut trainer = trainer(&config);
    iterate(&mut trainer, 200);
    let Validation { evaluation, is_best } = trainer.validate().unwrap();
    assert!(is_best && evaluation.text.as_ref().unwrap().pass_at_1 > Some(0.8), "{evaluation:?}");
}

#[test]
fn the_program_trains_resumes_and_evaluates() {
    let folder = Scratch::new();
    let path = folder.join("run");
    let run = path.to_str().unwrap();
    let json = |words: &[&str]| json(&folder, words);
    let small = [
        "fit.iterations=2",
        "num_prompts=4",
        "sort.length=3",
        "eval_episodes=8",
        "save_every=2",
        "eval_every=2",
    ];
    let mut words =
        vec!["train", "sort", "--model", "tiny", "--iterations", "4", "--json", "--run-dir", run];
    TINY_SIZES.iter().chain(&small).for_each(|set| words.extend(["--set", set]));
    let report = json(&words);
    assert_eq!((report["task"].as_str(), report["iteration"].as_u64()), (Some("sort"), Some(4)));
    assert_eq!((&report["device"], &report["seed"]), (&"cpu".into(), &1.into()), "{report}");
    assert_eq!((&report["run"], &report["interrupted"]), (&run.into(), &false.into()), "{report}");
    assert_eq!(report["episodes"], 1000);
    assert!(report["mean_score"].is_number() && report["std_error"].is_number(), "{report}");
    let metadata = std::fs::read_to_string(Path::new(run).join("run.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    assert_eq!((&metadata["task"], &metadata["device"]["name"]), (&"sort".into(), &"cpu".into()));
    assert_eq!(metadata["stages"][1]["name"], "GRPO", "{metadata}");
    let lines =
        |name: &str| std::fs::read_to_string(Path::new(run).join(name)).unwrap().lines().count();
    assert_eq!((lines("metrics.jsonl"), lines("completions.jsonl")), (4, 2 * 4 * 8));
    let report = json(&["train", "--resume", "--run-dir", run, "--iterations", "5", "--json"]);
    assert_eq!(report["iteration"], 5);
    assert_eq!((lines("metrics.jsonl"), lines("completions.jsonl")), (5, 3 * 4 * 8));
    let report = json(&["eval", run, "--episodes", "8", "--k", "3", "--json"]);
    assert_eq!(
        (
            report["sampled"]["completions_per_prompt"].as_u64(),
            report["sampled"]["episodes"].as_u64()
        ),
        (Some(3), Some(8))
    );
    assert_eq!((&report["episodes"], &report["seed"]), (&8.into(), &0.into()), "{report}");
    assert!(report["iteration"].is_u64() && report["std_error"].is_f64(), "{report}");
    // A run stands for its best model.
    let model = Path::new(run).join("model");
    let [by_run, by_folder] = [run, model.to_str().unwrap()]
        .map(|model| json(&["generate", model, "321>", "--max-new-tokens", "4", "--json"]));
    assert_eq!(by_run["prompt_tokens"], 4);
    assert_eq!(by_run["completions"], by_folder["completions"]);
    let refused = refusal(&folder, &["train", "srot", "--model", "tiny"]);
    assert!(refused.contains("unknown task `srot`"), "{refused}");
}

/// A task of six held-out prompts, of which the first three are easy. Its verifier belongs to the thread that made it.
struct Halves {
    parts: Vec<RewardPart>,
    /// The prompts for training.
    text: &'static str,
    max_new_tokens: usize,
    thread: ThreadId,
}

impl Default for Halves {
    fn default() -> Self {
        let (parts, thread) = (vec![RewardPart::new("exact", 1.0)], thread::current().id());
        Self { parts, text: "9", max_new_tokens: 4, thread }
    }
}

impl Task for Halves {
    fn name(&self) -> &str {
        "halves"
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        (split == Split::Test).then_some(6)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        let test = (index % 6).to_string();
        let text = if split == Split::Test { test } else { self.text.to_string() };
        Ok(Prompt { text, ..Prompt::default() })
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        assert_eq!(thread::current().id(), self.thread);
        let is_easy = |one: &Completion| one.prompt.text.as_str() < "3";
        Ok(completions.iter().map(|one| Rewards::new(vec![f64::from(is_easy(one))])).collect())
    }

    fn alphabet(&self) -> Option<String> {
        Some("0123456789".to_string())
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }
}

#[test]
fn a_model_named_in_the_settings_is_not_replaced_by_a_new_one() {
    let mut config = config();
    config.model.path = "a/model".to_string();
    let task = Arc::new(Halves::default());
    let refused = LanguageTrainer::for_task(task, config, None).err().unwrap();
    assert!(refused.to_string().starts_with("model.path is a/model, whose model"), "{refused}");
}

#[test]
fn final_scores_are_of_prompts_that_chose_nothing() {
    let mut config = config();
    config.fit.iterations = 0;
    let task = Arc::new(Halves::default());
    let mut trainer = LanguageTrainer::for_task(task.clone(), config.clone(), None).unwrap();
    let chosen = trainer.validate().unwrap().evaluation;
    assert_eq!((chosen.episodes, chosen.mean_score), (3, Some(1.0)));
    let last = trainer.evaluate_fresh_greedy(1000).unwrap();
    assert_eq!((last.episodes, last.mean_score), (3, Some(0.0)));
    let sampled = trainer.evaluate_fresh(2, 4, &trainer.sampling()).unwrap();
    assert_eq!((sampled.episodes, sampled.mean_score), (2, Some(0.0)));
    // Nor if a resumed run evaluates on fewer.
    config.checkpoint.eval_episodes = 1;
    let resumed = LanguageTrainer::for_task(task, config, None).unwrap();
    let mut resumed = resumed.with_checkpoint(&snapshot(&trainer)).unwrap();
    assert_eq!(resumed.validate().unwrap().evaluation.episodes, 1);
    let last = resumed.evaluate_fresh_greedy(1000).unwrap();
    assert_eq!((last.episodes, last.mean_score), (3, Some(0.0)));
}

#[test]
fn empty_prompts_and_completions_are_rejected() {
    let said = |task: Halves| {
        let run = LanguageTrainer::for_task(Arc::new(task), config(), None);
        run.err().expect("a refusal").to_string()
    };
    assert!(said(Halves { text: "", ..Halves::default() }).ends_with("the prompt is empty"));
    let none = said(Halves { max_new_tokens: 0, ..Halves::default() });
    assert!(none.contains("halves has a max_new_tokens of 0"), "{none}");
}

#[test]
fn verifiers_are_called_on_the_thread_that_trains() {
    let mut config = config();
    config.fit.iterations = 0;
    let mut trainer = LanguageTrainer::for_task(Arc::new(Halves::default()), config, None).unwrap();
    assert!(
        trainer.iterate().unwrap().text.is_some_and(|text| !text.is_sft && text.num_tokens > 0)
    );
    assert_eq!(trainer.validate().unwrap().evaluation.mean_score, Some(1.0));
}
