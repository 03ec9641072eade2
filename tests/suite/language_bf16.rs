//! Language models with products in bf16 on the CPU: nearly the same as in f32, and as exact.

use crate::language::complete;
use crate::language_device::distance;
use crate::language_training::trainer;
use crate::support::tiny;
use crate::trainers::{assert_resumes, iterate};
use grove::model::DecoderShape;
use grove::settings::Precision;
use grove::text::generate::{Completion, CompletionRequest, Sampling};
use grove::text::{
    Arithmetic, Bf16Instructions, CompletionIndex, KvCache, LanguageModel, Pass, PrefixCache,
    PromptWithCompletions, Retention, Row, TextPass, TokenDecoder,
};
use grove::trainer::text::LanguageConfig;

fn config() -> LanguageConfig {
    let mut config = tiny(2);
    config.precision = Precision::Bf16;
    config.model.tiny.hidden_size = 40;
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

#[test]
fn ratios_of_the_first_update_are_exactly_one() {
    let config = config();
    let mut trainer = trainer(&config);
    for record in iterate(&mut trainer, config.iterations) {
        let text = record.text.as_ref().unwrap();
        if !text.is_sft {
            assert!(text.first_ratio_distance.is_none_or(|distance| distance == 0.0));
            assert_eq!(record.approx_kl, 0.0);
        }
    }
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_with_any_threads() {
    let config = config();
    assert_resumes(|| trainer(&config), config.iterations, &[(1, 2), (2, 1), (3, 3)]);
}

/// A decoder whose products use all threads.
fn large() -> TokenDecoder {
    let shape = DecoderShape {
        num_outputs: 300,
        hidden_size: 256,
        num_layers: 5,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        intermediate_size: 1024,
        ..LanguageConfig::for_model("tiny").tiny_shape()
    };
    let decoder =
        LanguageModel::with_fresh_weights(&shape, "0123456789+-= abcdefghij", 5).new_decoder();
    assert!(!decoder.is_sequential());
    decoder
}

#[test]
fn completions_are_nearly_those_of_single_precision_alone_and_in_a_batch() {
    let sampling = Sampling { max_new_tokens: 12, ..Sampling::default() };
    let prompt = |number: u32| CompletionRequest {
        tokens: (0..3 + 5 * number).map(|i| (i * 7 + number) % 20).collect(),
        num_completions: 1 + number as usize,
        key: number,
    };
    let prompts: Vec<CompletionRequest> = (0..5).map(prompt).collect();
    let single = large();
    for instructions in Bf16Instructions::available() {
        let decoder = single.clone().with_arithmetic(Arithmetic::Bf16(*instructions));
        let batch = complete(&decoder, &prompts, &sampling, 7);
        for (prompt, want) in prompts.iter().zip(&batch) {
            let alone = complete(&decoder, std::slice::from_ref(prompt), &sampling, 1);
            assert!(alone[0] == *want, "{}: alone and in a batch", instructions.name());
        }
        let first = |all: &[Vec<Completion>]| all[4][0].logprobs[0];
        let off = (first(&batch) - first(&complete(&single, &prompts, &sampling, 7))).abs();
        assert!(off > 0.0 && off < 0.05, "{}: off by {off}", instructions.name());
    }
}

/// A decoder whose whole passes run side by side.
fn small() -> TokenDecoder {
    let model =
        LanguageModel::with_fresh_weights(&config().tiny_shape(), "0123456789+-= abcdefghij", 5);
    let decoder = model.new_decoder();
    assert!(decoder.is_sequential());
    decoder
}

fn tokens(count: u32, step: u32) -> Vec<u32> {
    (0..count).map(|i| (i * step + i / 5) % 20).collect()
}

fn text<'a>(prompt: &'a [u32], completions: &'a [Vec<u32>]) -> PromptWithCompletions<'a> {
    PromptWithCompletions { prompt, completions: completions.iter().map(|c| &c[..]).collect() }
}

#[test]
fn learning_reuses_the_keys_and_values_of_generation() {
    // Neither is a multiple of the tokens that a cache keeps side by side, or even.
    let (prompt, completions) = (tokens(37, 7), [tokens(23, 3), tokens(9, 11)]);
    let texts = [text(&prompt, &completions)];
    let arithmetics =
        Bf16Instructions::available().iter().map(|instructions| Arithmetic::Bf16(*instructions));
    for arithmetic in arithmetics.chain([Arithmetic::F32]) {
        for decoder in [small(), large()].map(|decoder| decoder.with_arithmetic(arithmetic)) {
            let size = decoder.shape().hidden_size;
            let mut whole = TextPass::default();
            decoder.forward_texts(&texts, Retention::Inputs, &mut whole);
            let mut caches = vec![KvCache::default(); 3];
            decoder.begin_cache(&mut caches[2], prompt.len(), None);
            let before = PrefixCache { index: 2, num_tokens: prompt.len() };
            for (cache, tokens) in caches.iter_mut().zip(&completions) {
                decoder.begin_cache(cache, tokens.len(), Some(before));
            }
            let mut pass = Pass::default();
            let row = |cache: usize, index: usize, token: &u32| Row { token: *token, cache, index };
            let rows: Vec<Row> =
                prompt.iter().enumerate().map(|(at, token)| row(2, at, token)).collect();
            decoder.forward(&rows, &mut caches, Retention::Nothing, &mut pass);
            assert!(pass.hidden()[(prompt.len() - 1) * size..] == whole.hidden()[..size]);
            for at in 0..22 {
                let next = completions.iter().enumerate();
                let next = next.filter(|(_, tokens)| at + 1 < tokens.len());
                let rows: Vec<Row> =
                    next.map(|(cache, tokens)| row(cache, at, &tokens[at])).collect();
                decoder.forward(&rows, &mut caches, Retention::Nothing, &mut pass);
                for (row, hidden) in rows.iter().zip(pass.hidden().chunks_exact(size)) {
                    let completion = CompletionIndex { prompt: 0, completion: row.cache };
                    let learnt = whole.prediction(completion, at + 1);
                    let learnt = &whole.hidden()[learnt * size..][..size];
                    assert!(hidden == learnt, "{arithmetic:?}: token {at} of {}", row.cache);
                }
            }
        }
    }
}

#[test]
fn gradients_are_nearly_those_of_single_precision() {
    let (prompt, completions) = (tokens(37, 7), [tokens(23, 3), tokens(9, 11)]);
    let texts = [text(&prompt, &completions)];
    let gradient = |arithmetic| {
        let decoder = small().with_arithmetic(arithmetic);
        let mut forward = TextPass::default();
        decoder.forward_texts(&texts, Retention::All, &mut forward);
        let d_hidden: Vec<f32> =
            (0..forward.hidden().len()).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut gradient = vec![0.0; decoder.num_trainable()];
        decoder.backward_texts(&mut forward, &d_hidden, &mut gradient, |_, _| ());
        gradient
    };
    let want = gradient(Arithmetic::F32);
    for instructions in Bf16Instructions::available() {
        let got = gradient(Arithmetic::Bf16(*instructions));
        let off = distance(&got, &want);
        assert!(off > 0.0 && off < 0.02, "{}: off by {off}", instructions.name());
    }
}
