//! Choices among the likeliest tokens on a device are those of the CPU, candidates included.

use crate::language::complete;
use crate::language_device::{are_alike, long_prompts, wide};
use crate::support::adapter;
use burn::tensor::Device;
use grove::rng::{draw, uniform};
use grove::settings::Precision;
use grove::text::generate::{Completion, CompletionRequest, Generator, Sampling};
use grove::text::{CompletionIndex, TokenDecoder};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A decoder in whose head each token is as likely as its neighbour.
fn twin_token_decoder() -> TokenDecoder {
    let mut decoder = wide(1);
    let vocabulary = decoder.shape().vocab_size();
    let head = vocabulary * decoder.shape().hidden_size;
    decoder.update(|params| {
        let first = params.len() - head;
        params[first..].chunks_exact_mut(2).for_each(|twins| twins[1] = twins[0]);
    });
    decoder
}

/// The sum of the weights is made in several orders, and the largest draw may exceed one of them.
#[test]
fn the_largest_random_number_chooses_a_possible_token() {
    let Some(device) = adapter() else { return };
    let largest = |key: &u32| uniform(draw(draw(*key, 0), 0)) == 1.0 - f32::EPSILON / 2.0;
    let key = (0..=u32::MAX).find(largest).unwrap();
    let prompt =
        |i: u32| CompletionRequest { tokens: vec![i, i * i % 1000, 7], num_completions: 1, key };
    let prompts: Vec<CompletionRequest> = (0..200).map(prompt).collect();
    let decoder = &wide(1).with_device(Some(device), Precision::F32);
    for top_k in [5, 50, 500] {
        let sampling = &Sampling { top_k, max_new_tokens: 1, ..Sampling::default() };
        let found = complete(decoder, &prompts, sampling, 200);
        for one in found.iter().flatten() {
            assert!(one.candidates[0].contains(&one.tokens[0]), "{one:?}");
        }
    }
}

#[test]
fn choices_among_the_likeliest_tokens_are_those_of_the_cpu() {
    let Some(device) = adapter() else { return };
    let all = Sampling { temperature: 0.9, max_new_tokens: 9, ..Sampling::default() };
    let ways = [
        Sampling { top_k: 5, ..all.clone() },
        Sampling { top_k: 1000, ..all.clone() },
        Sampling { top_p: 0.6, ..all.clone() },
        Sampling { top_p: 1e-6, ..all.clone() },
        Sampling { min_p: 0.05, ..all.clone() },
        Sampling { top_k: 51, top_p: 0.7, min_p: 0.02, ..all },
    ];
    // Twins matter where a set of tokens ends: by number, or by probability.
    for (decoder, ways) in [(wide(1), &ways[..]), (twin_token_decoder(), &ways[..3])] {
        let there = decoder.clone().with_device(Some(device.clone()), Precision::F32);
        for sampling in ways {
            let [want, got] =
                [&decoder, &there].map(|decoder| complete(decoder, &long_prompts(), sampling, 6));
            let both = want.iter().flatten().zip(got.iter().flatten());
            for (want, got) in both {
                assert_eq!(want.tokens, got.tokens, "{sampling:?}");
                let sets = |one: &Completion| -> Vec<Vec<u32>> {
                    let sorted = |candidates: &Vec<u32>| {
                        let mut sorted = candidates.clone();
                        sorted.sort_unstable();
                        sorted
                    };
                    one.candidates.iter().map(sorted).collect()
                };
                assert_eq!(sets(want), sets(got), "{sampling:?}");
                assert!(are_alike(got, want, 1e-4), "{sampling:?} {want:?} {got:?}");
            }
        }
    }
}

#[test]
fn the_completions_of_a_prompt_are_the_same_if_they_are_more_than_the_slots() {
    let sampling = Sampling { temperature: 0.9, max_new_tokens: 9, ..Sampling::default() };
    for device in [Some(Device::flex()), adapter()].into_iter().flatten() {
        let there = wide(1).with_device(Some(device), Precision::F32);
        let generate = |slots| {
            let heard = Mutex::new(BTreeMap::new());
            let listener = |index: CompletionIndex, one: &Completion| {
                if one.is_finished(&sampling) {
                    let before = heard
                        .lock()
                        .unwrap()
                        .insert([index.prompt, index.completion], one.tokens.clone());
                    assert_eq!(before, None, "it is over once");
                }
            };
            let (decoder, sampling) = (&there, &sampling);
            let by = Generator {
                decoder,
                sampling,
                num_slots: slots,
                stop: None,
                listener: Some(&listener),
            };
            let completions = by.generate(&long_prompts());
            let tokens = |group: Vec<Completion>| group.into_iter().map(|one| one.tokens).collect();
            let completions: Vec<Vec<Vec<u32>>> = completions.into_iter().map(tokens).collect();
            for (prompt, group) in completions.iter().enumerate() {
                for (number, tokens) in group.iter().enumerate() {
                    assert_eq!(heard.lock().unwrap()[&[prompt, number]], *tokens, "{slots} slots");
                }
            }
            completions
        };
        let want = generate(6);
        assert_eq!(want.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        for slots in [1, 2] {
            assert_eq!(generate(slots), want, "{slots} slots");
        }
    }
}
