//! Optimizer steps of language models on a device: what they make of weights and moments, and what crosses the bus.

use crate::language_device::{decoders, devices, distance, groups, length, rule, tiny, wide};
use crate::support::adapter;
use crate::trainers::{iterate, snapshot};
use burn::tensor::Device;
use grove::device::TransferCount;
use grove::learner::Moments;
use grove::learner::text::{Group, LanguageLearner, LanguageUpdateSettings, Sample};
use grove::objective::LossConfig;
use grove::settings::{MomentPrecision, Precision};
use grove::text::TokenDecoder;

/// Settings with which a small error of the gradient stays a small error of the step.
fn smooth(kl_coef: f64) -> LanguageUpdateSettings {
    let mut rule = rule(LossConfig { kl_coef, entropy_coef: 0.1, ..LossConfig::default() });
    (rule.update.update_epochs, rule.update.num_minibatches) = (1, 2);
    rule.update.max_grad_norm = 0.5;
    (rule.optimizer.adam_epsilon, rule.optimizer.weight_decay) = (1e-2, 0.1);
    rule
}

/// A learner on a device, or on the CPU.
fn learner(decoder: &TokenDecoder, device: Option<&Device>) -> LanguageLearner {
    let learner = LanguageLearner::new(decoder.clone(), 1, MomentPrecision::F32);
    match device {
        Some(device) => learner.with_device(device.clone(), Precision::F32),
        None => learner,
    }
}

#[test]
fn steps_on_a_device_are_those_of_the_cpu() {
    for (device, all) in devices() {
        for decoder in decoders().into_iter().skip(if all { 0 } else { 2 }) {
            let groups = groups(&decoder);
            let rule = smooth(0.2);
            let [mut here, mut there] = [None, Some(&device)].map(|on| learner(&decoder, on));
            for iteration in 0..2 {
                let [want, got] = [&mut here, &mut there].map(|learner| {
                    learner.update(&rule, &groups, iteration, &[1e-2; 2]).unwrap().update
                });
                assert!((got.grad_norm - want.grad_norm).abs() < 1e-4 * want.grad_norm);
                assert!((got.loss - want.loss).abs() < 1e-4 * want.loss.abs().max(0.1));
            }
            let changed = |learner: &LanguageLearner| -> Vec<f32> {
                let trained = learner.decoder.trainable().iter();
                trained.zip(decoder.trainable()).map(|(now, before)| now - before).collect()
            };
            let [want, got] = [&here, &there].map(changed);
            let off: Vec<f32> = want.iter().zip(&got).map(|(a, b)| a - b).collect();
            let most = off.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(length(&want) > 1e-2 && most < 1e-6, "off by {most} of {}", length(&want));
            let [want, got] = [&here, &there].map(|learner| learner.read_moments().into_owned());
            assert_eq!((want.steps, got.steps), (4, 4));
            assert!(distance(&got.first_moment, &want.first_moment) < 2e-5);
            assert!(distance(&got.second_moment, &want.second_moment) < 2e-5);
            // The reference is what the policy was before, although a step changes tensors in their own memory.
            assert_eq!(there.reference.unwrap().trainable(), decoder.trainable());
        }
    }
}

#[test]
fn a_learner_continues_on_a_device_from_what_was_saved_to_the_byte() {
    for (device, all) in devices() {
        for decoder in decoders().into_iter().skip(if all { 0 } else { 2 }) {
            let (groups, rule) = (groups(&decoder), smooth(0.0));
            let mut whole = learner(&decoder, Some(&device));
            let update = |learner: &mut LanguageLearner, iteration| {
                learner.update(&rule, &groups, iteration, &[1e-2; 2]).unwrap();
            };
            let saved = |learner: &LanguageLearner| -> (Vec<f32>, Moments) {
                (learner.decoder.trainable().to_vec(), learner.read_moments().into_owned())
            };
            update(&mut whole, 0);
            let (trained, moments) = saved(&whole);
            let mut copy = whole.clone();
            update(&mut whole, 1);
            assert!(saved(&copy) == (trained.clone(), moments.clone()), "a copy is on its own");
            update(&mut copy, 1);
            let mut resumed = learner(&decoder, Some(&device));
            resumed.decoder.update(|params| params.copy_from_slice(&trained));
            resumed.restore_moments(moments, MomentPrecision::F32);
            update(&mut resumed, 1);
            assert!(saved(&whole).0 != trained);
            assert!(saved(&copy) == saved(&whole) && saved(&resumed) == saved(&whole));
        }
    }
}

#[test]
fn a_run_continues_on_a_device_to_the_byte() {
    let begin = || tiny(Some(Device::flex()), 1);
    let mut whole = begin();
    iterate(&mut whole, 2);
    let saved = snapshot(&whole);
    let mut resumed = begin().with_checkpoint(&saved).unwrap();
    for run in [&mut whole, &mut resumed] {
        run.iterate().unwrap();
    }
    assert!(snapshot(&resumed) == snapshot(&whole));
    assert!(saved != snapshot(&whole));
}

/// Two groups of two completions of eight tokens.
fn short_groups() -> Vec<Group> {
    let sample = |number: u32| Sample {
        tokens: (0..8).map(|i| (i * 37 + number * 91) % 1000).collect(),
        logprobs: vec![-6.9; 8],
        advantages: vec![if number.is_multiple_of(2) { 1.0 } else { -1.0 }; 8],
        mask: vec![true; 8],
        ..Sample::default()
    };
    let group = |number: u32| Group {
        prompt: (0..5 + number).collect(),
        samples: (2 * number..2 * number + 2).map(sample).collect(),
    };
    (0..2).map(group).collect()
}

#[test]
fn weights_moments_and_gradients_do_not_cross_the_bus() {
    let Some(device) = adapter() else { return };
    let decoder = wide(1);
    let mut learner = learner(&decoder, Some(&device));
    let weights = size_of_val(decoder.trainable()) as u64;
    assert!(weights > 8 << 16, "the weights are {weights} bytes");
    let mut update = |iteration| {
        let mut rule = smooth(0.0);
        rule.loss.entropy_coef = 0.0;
        let transfers = TransferCount::start();
        learner.update(&rule, &short_groups(), iteration, &[1e-3; 2]).unwrap();
        let moved = transfers.stop();
        moved.downloaded_bytes + moved.uploaded_bytes
    };
    let first = update(0);
    assert!(first > weights && first < weights + (2 << 16), "{first} of {weights}");
    let a_step = update(1) / 2;
    assert!(a_step > 0 && a_step <= 1 << 16, "{a_step} bytes a step");
}
