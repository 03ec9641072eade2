//! Language models with products in bf16 on the CPU: nearly the same as in f32, and as exact.

use grove::checkpoint::Checkpoint;
use grove::model::DecoderShape;
use grove::settings::Precision;
use grove::task::find;
use grove::text::generate::{Generator, Prompt, Sampling};
use grove::text::{Arithmetic, Kernel, LanguageModel, TokenDecoder};
use grove::trainer::text::{LanguageConfig, LanguageTrainer};

fn config() -> LanguageConfig {
    let mut config = LanguageConfig::for_model("tiny");
    config.precision = Precision::Bf16;
    config.model.tiny.hidden_size = 40;
    config.model.tiny.num_layers = 2;
    config.model.tiny.num_heads = 2;
    config.model.tiny.num_kv_heads = 1;
    config.model.tiny.intermediate_size = 72;
    config.generation.num_prompts = 6;
    config.generation.group_size = 4;
    config.generation.slots = 5;
    config.iterations = 4;
    config.fit.iterations = 1;
    config.loss.kl_coef = 0.05;
    config.update.num_minibatches = 1;
    config
}

fn trainer(config: &LanguageConfig) -> LanguageTrainer {
    let sort = find("sort").unwrap();
    let task = (sort.open)((sort.defaults)()).unwrap();
    LanguageTrainer::for_task(task, config.clone(), None).unwrap()
}

fn iterate(trainer: &mut LanguageTrainer, count: u32) {
    (0..count).for_each(|_| drop(trainer.iterate().unwrap()));
}

#[test]
fn the_first_update_is_of_the_very_policy_that_acted() {
    let config = config();
    let mut trainer = trainer(&config);
    for _ in 0..config.iterations {
        let record = trainer.iterate().unwrap();
        let text = record.text.as_ref().unwrap();
        if !text.fit {
            assert!(text.first_ratio_distance.is_none_or(|distance| distance == 0.0));
            assert_eq!(record.approx_kl, 0.0);
        }
    }
}

#[test]
fn a_run_goes_on_where_it_was_and_depends_on_no_thread() {
    let config = config();
    let run = |threads: usize, cut: u32| -> Checkpoint {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut first = trainer(&config);
            iterate(&mut first, cut);
            let mut second = trainer(&config).restored(&first.snapshot().unwrap()).unwrap();
            iterate(&mut second, config.iterations - cut);
            second.snapshot().unwrap()
        })
    };
    let whole = run(1, 0);
    for (threads, cut) in [(1, 2), (2, 1), (3, 3)] {
        assert!(run(threads, cut) == whole, "{threads} threads, cut at {cut}");
    }
}

/// A decoder whose products use all threads.
fn large() -> TokenDecoder {
    let shape = DecoderShape {
        num_actions: 300,
        hidden_size: 256,
        num_layers: 5,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        intermediate_size: 1024,
        ..LanguageConfig::for_model("tiny").tiny_shape()
    };
    let decoder = LanguageModel::tiny(&shape, "0123456789+-= abcdefghij", 5).decoder();
    assert!(!decoder.is_small());
    decoder
}

#[test]
fn completions_are_nearly_those_of_single_precision_alone_and_in_a_batch() {
    let sampling = Sampling { max_new_tokens: 12, ..Sampling::default() };
    let prompt = |number: u32| Prompt {
        tokens: (0..3 + 5 * number).map(|i| (i * 7 + number) % 20).collect(),
        completions: 1 + number as usize,
        key: number,
    };
    let prompts: Vec<Prompt> = (0..5).map(prompt).collect();
    let single = large();
    for kernel in Kernel::available() {
        let decoder = single.clone().with_arithmetic(Arithmetic::Bf16(*kernel));
        let generate = |decoder: &TokenDecoder, prompts: &[Prompt], slots: usize| {
            let generator =
                Generator { decoder, sampling: &sampling, slots, stop: None, listener: None };
            generator.generate(prompts)
        };
        let batch = generate(&decoder, &prompts, 7);
        for (prompt, want) in prompts.iter().zip(&batch) {
            let alone = generate(&decoder, std::slice::from_ref(prompt), 1);
            assert!(alone[0] == *want, "{}: alone and in a batch", kernel.name());
        }
        let first = |all: &[Vec<grove::text::generate::Completion>]| all[4][0].logprobs[0];
        let off = (first(&batch) - first(&generate(&single, &prompts, 7))).abs();
        assert!(off > 0.0 && off < 0.05, "{}: off by {off}", kernel.name());
    }
}
