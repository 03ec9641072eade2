//! Language models on a device do what they do on the CPU.

use crate::language::complete;
use crate::support::{adapter, adapter_kind, floats, is_alone, launches};
use burn::tensor::{Device, Tensor};
use grove::learner::text::{
    Group, LanguageUpdateSettings, Sample, compute_gradient, compute_logprobs,
};
use grove::math::Activation;
use grove::model::DecoderShape;
use grove::nn::arch::{NormPlacement, QkNorm, SlidingWindow};
use grove::objective::{LossConfig, LossType};
use grove::settings::{Precision, TrainConfig};
use grove::task::Sort;
use grove::text::generate::{Completion, CompletionRequest, Sampling};
use grove::text::{Adapters, LoraConfig, TokenDecoder};
use grove::trainer::text::{LanguageConfig, LanguageTrainer, TINY};
use std::sync::Arc;

/// Burn's tensors in the host's memory, which are a device too, where everything is tried; and an adapter, which
/// takes its time.
pub fn devices() -> Vec<(Device, bool)> {
    let adapter = adapter().map(|device| (device, false));
    [Some((Device::flex(), true)), adapter].into_iter().flatten().collect()
}

fn waves(count: usize, rate: f32, scale: f32) -> Vec<f32> {
    let wave = |i: usize| (i as f32 * rate + (i as f32 * 0.013).cos() * 9.0).sin() * scale;
    (0..count).map(wave).collect()
}

/// A decoder whose weights are waves of this height.
pub fn decoder(shape: DecoderShape, scale: f32) -> TokenDecoder {
    let params = waves(shape.num_params(), 0.71, scale);
    TokenDecoder::new(shape, params)
}

/// Decoders of every switch over 40 tokens, with adapters and without.
pub fn decoders() -> Vec<TokenDecoder> {
    let plain = DecoderShape {
        num_outputs: 40,
        hidden_size: 16,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 4,
        intermediate_size: 24,
        context: 64,
        ..DecoderShape::default()
    };
    let qwen2 = DecoderShape { qkv_bias: true, tie_word_embeddings: true, ..plain.clone() };
    let qwen3 = DecoderShape { qk_norm: QkNorm::PerHead, num_kv_heads: 1, ..plain.clone() };
    let lora = LoraConfig {
        target_modules: ["q_proj", "o_proj", "up_proj"].map(str::to_string).to_vec(),
        ..LoraConfig::new(3)
    };
    let adapters = Adapters::new(&qwen2, &lora, 7);
    let adapters = adapters.clone().with_params(waves(adapters.params().len(), 0.43, 0.1));
    let [plain, qwen2, qwen3] = [plain, qwen2, qwen3].map(|shape| decoder(shape, 0.4));
    let adapted = qwen2.clone().with_adapters(Some(adapters));
    vec![plain, qwen2, qwen3, adapted]
}

/// Decoders with the switches of Gemma 3, OLMo 2, SmolLM3 and Mistral, over 40 tokens.
pub fn architectures() -> Vec<TokenDecoder> {
    let plain = decoders()[0].shape().clone();
    let window = |layers: [bool; 2], rope_theta| {
        Some(SlidingWindow { size: 4, layers: layers.to_vec(), rope_theta })
    };
    let gemma3 = DecoderShape {
        norm_placement: NormPlacement::Around,
        norm_offset: 1.0,
        qk_norm: QkNorm::PerHead,
        activation: Activation::Gelu,
        embedding_scale: 4.0,
        query_pre_attn_scalar: Some(6.0),
        sliding: window([true, false], Some(1e2)),
        tie_word_embeddings: true,
        ..plain.clone()
    };
    let olmo2 = DecoderShape {
        norm_placement: NormPlacement::After,
        qk_norm: QkNorm::AllHeads,
        output_bias: true,
        mlp_bias: true,
        ..plain.clone()
    };
    let smollm3 = DecoderShape {
        rope_layers: Some(vec![true, false]),
        sliding: window([true, false], Some(1e2)),
        ..plain.clone()
    };
    let mistral = DecoderShape { sliding: window([true; 2], None), ..plain };
    [gemma3, olmo2, smollm3, mistral].map(|shape| decoder(shape, 0.4)).into()
}

#[test]
fn architectures_generate_and_learn_on_a_device_as_on_the_cpu() {
    let greedy = Sampling { temperature: 0.0, max_new_tokens: 19, ..Sampling::default() };
    for decoder in architectures() {
        let there = decoder.clone().with_device(Some(Device::flex()), Precision::F32);
        let tokens = |all: Vec<Vec<Completion>>| -> Vec<Vec<u32>> {
            all.into_iter().flatten().map(|one| one.tokens).collect()
        };
        let want = tokens(generate(&decoder, &greedy, 64));
        assert_eq!(tokens(generate(&there, &greedy, 64)), want, "{:?}", decoder.shape());
        if let Some(device) = adapter() {
            let there = decoder.clone().with_device(Some(device), Precision::F32);
            assert_eq!(tokens(generate(&there, &greedy, 64)), want, "{:?}", decoder.shape());
        }
        let groups = groups(&decoder);
        let rule = rule(LossConfig { entropy_coef: 0.1, ..LossConfig::default() });
        let [want, got] =
            [&decoder, &there].map(|decoder| compute_gradient(decoder, &rule, &groups, None));
        let off = distance(&got, &want);
        assert!(length(&want) > 0.0 && off < 5e-5, "{:?}: off by {off}", decoder.shape());
    }
}

fn prompts() -> [CompletionRequest; 4] {
    let prompt = |number: u32, count: u32, completions: usize| CompletionRequest {
        tokens: (0..count).map(|i| (i * i + number * 7 + i) % 40).collect(),
        num_completions: completions,
        key: number,
    };
    [prompt(1, 9, 4), prompt(2, 1, 4), prompt(3, 17, 4), prompt(4, 5, 2)]
}

pub fn generate(decoder: &TokenDecoder, sampling: &Sampling, slots: usize) -> Vec<Vec<Completion>> {
    complete(decoder, &prompts(), sampling, slots)
}

#[test]
#[ignore = "slow: 20 s of CPU time on a software adapter"]
fn devices_choose_the_tokens_that_the_cpu_does() {
    let drawn = Sampling { max_new_tokens: 19, stop_tokens: vec![3, 30], ..Sampling::default() };
    let ways = [
        Sampling { temperature: 0.0, ..drawn.clone() },
        Sampling { temperature: 0.7, top_k: 9, top_p: 0.9, ..drawn.clone() },
        drawn,
    ];
    for (device, all) in devices() {
        for decoder in decoders().into_iter().skip(if all { 0 } else { 2 }) {
            let there = decoder.clone().with_device(Some(device.clone()), Precision::F32);
            for sampling in &ways {
                let want = generate(&decoder, sampling, 64);
                let ended = want.iter().flatten().filter(|one| one.has_stopped).count();
                assert!(sampling.temperature == 0.0 || (1..14).contains(&ended), "{ended}");
                for slots in if all { vec![64, 5, 3] } else { vec![64] } {
                    let got = generate(&there, sampling, slots);
                    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                        assert_eq!(
                            (&got.tokens, got.has_stopped),
                            (&want.tokens, want.has_stopped)
                        );
                        assert!(are_alike(got, want, 1e-4), "{got:?} {want:?}");
                    }
                    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 2]);
                }
            }
        }
    }
}

/// Groups of samples of different lengths, some of whose tokens do not count.
pub fn groups(by: &TokenDecoder) -> Vec<Group> {
    let stop_tokens = vec![3, 30];
    let sampling = Sampling { max_new_tokens: 11, top_k: 9, stop_tokens, ..Sampling::default() };
    let made = generate(by, &sampling, 64);
    let sample = |(number, one): (usize, &Completion)| Sample {
        tokens: one.tokens.clone(),
        logprobs: one.logprobs.iter().map(|x| x + 0.3 * (number as f32).sin()).collect(),
        advantages: vec![(number as f32 * 1.3 + 0.5).cos(); one.tokens.len()],
        mask: (0..one.tokens.len()).map(|at| at == 0 || at % 4 != 1).collect(),
        entropies: one.entropies.clone(),
        candidates: one.candidates.clone(),
        selected: (0..one.tokens.len()).map(|at| at % 5 != 2).collect(),
    };
    let mut groups: Vec<Group> = made
        .iter()
        .enumerate()
        .map(|(i, group)| Group {
            prompt: (0..4 + 3 * i as u32).collect(),
            samples: group.iter().enumerate().map(sample).collect(),
        })
        .collect();
    // In two groups every token can be drawn.
    for group in groups.iter_mut().step_by(2) {
        group.samples.iter_mut().for_each(|sample| sample.candidates.clear());
    }
    // One that is as another, but for what it is worth.
    let mut twin = groups[1].samples[0].clone();
    twin.advantages.fill(0.7);
    groups[1].samples.push(twin);
    groups
}

pub fn rule(loss: LossConfig) -> LanguageUpdateSettings {
    let config = TrainConfig::for_game("any");
    LanguageUpdateSettings {
        loss,
        update: config.update,
        optimizer: config.optimizer,
        temperature: 0.9,
        max_new_tokens: 11,
    }
}

#[test]
fn gradients_on_devices_are_those_of_the_cpu() {
    for (device, all) in devices() {
        for (number, decoder) in decoders().into_iter().enumerate().skip(if all { 0 } else { 2 }) {
            let there = decoder.clone().with_device(Some(device.clone()), Precision::F32);
            let groups = groups(&decoder);
            let reference = compute_logprobs(&decoder, &groups, 0.9);
            for (got, want) in compute_logprobs(&there, &groups, 0.9)
                .iter()
                .flatten()
                .zip(reference.iter().flatten())
            {
                assert!(are_near(got, want, 1e-4), "{got:?} {want:?}");
            }
            for loss_type in LossType::ALL.iter().take(if all { usize::MAX } else { 1 }) {
                let mut loss = LossConfig { loss_type: *loss_type, ..LossConfig::default() };
                (loss.kl_coef, loss.entropy_coef, loss.dual_clip) = (0.2, 0.1, 3.0);
                let (rule, references) = (rule(loss), Some(&reference[..]));
                let want = compute_gradient(&decoder, &rule, &groups, references);
                let got = compute_gradient(&there, &rule, &groups, references);
                let off = distance(&got, &want);
                assert!(length(&want) > 0.0 && off < 1e-5, "{number} {loss_type}: off by {off}");
            }
        }
    }
}

/// The length of a vector.
pub fn length(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// The distance of two vectors, over the length of the second.
pub fn distance(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let apart: Vec<f32> = got.iter().zip(want).map(|(a, b)| a - b).collect();
    length(&apart) / length(want)
}

/// Whether log-probabilities and entropies are equal but for `limit`.
pub fn are_alike(a: &Completion, b: &Completion, limit: f32) -> bool {
    are_near(&a.logprobs, &b.logprobs, limit) && are_near(&a.entropies, &b.entropies, limit)
}

/// Whether numbers are equal but for `limit`.
fn are_near(a: &[f32], b: &[f32], limit: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < limit)
}

#[test]
fn groups_without_completions_have_no_log_probabilities() {
    let decoder = decoders().remove(0);
    let there = decoder.clone().with_device(Some(Device::flex()), Precision::F32);
    let group = Group { prompt: vec![1, 2, 3], samples: Vec::new() };
    for decoder in [&decoder, &there] {
        let found = compute_logprobs(decoder, std::slice::from_ref(&group), 1.0);
        assert_eq!(found, [Vec::<Vec<f32>>::new()]);
    }
}

#[test]
fn half_precision_products_learn_from_small_gradients() {
    let device = Device::flex();
    for (precision, unit) in [(Precision::F16, 1e-3), (Precision::Bf16, 8e-3)] {
        for (number, decoder) in decoders().into_iter().enumerate() {
            let there = decoder.clone().with_device(Some(device.clone()), precision);
            let mut groups = groups(&decoder);
            let both = [&decoder, &there].map(|decoder| compute_logprobs(decoder, &groups, 0.9));
            let [want, got] = both.each_ref().map(|all| all.concat().concat());
            let off = got.iter().zip(&want).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(off > 1e-6 && f64::from(off) < 40.0 * unit, "{precision} {number}: {off}");
            for worth in [1.0, 1e-6] {
                for sample in groups.iter_mut().flat_map(|group| &mut group.samples) {
                    sample.advantages.iter_mut().for_each(|x| *x *= worth);
                }
                let rule = rule(LossConfig::default());
                let want = compute_gradient(&decoder, &rule, &groups, None);
                let got = compute_gradient(&there, &rule, &groups, None);
                let off = distance(&got, &want);
                assert!(off > 1e-5 && off < 20.0 * unit, "{precision} {number} {worth}: {off}");
            }
        }
    }
}

/// A tiny model that sorts, on a device or on the CPU.
pub fn tiny(device: Option<Device>, fit: u32) -> LanguageTrainer {
    let task = Arc::new(Sort::default());
    let mut config = LanguageConfig::for_model(TINY);
    (config.iterations, config.fit.iterations) = (8, fit);
    (config.generation.num_prompts, config.generation.group_size) = (8, 4);
    LanguageTrainer::for_task(task, config, None).unwrap().with_device(device).unwrap()
}

#[test]
fn heads_too_wide_for_the_device_are_rejected_before_the_run() {
    // No device of wgpu has more than 64 KiB of workgroup memory.
    let Some(device) = adapter().filter(|_| adapter_kind() == "wgpu") else { return };
    let task = Arc::new(Sort::default());
    let mut config = LanguageConfig::for_model(TINY);
    let tiny = &mut config.model.tiny;
    (tiny.hidden_size, tiny.num_heads, tiny.num_kv_heads) = (1024, 1, 1);
    (tiny.num_layers, tiny.intermediate_size) = (1, 8);
    let trainer = LanguageTrainer::for_task(task, config, None).unwrap();
    let error = trainer.with_device(Some(device)).err().expect("tiles have no room").to_string();
    let needed = "the model's attention needs 65952 bytes of workgroup memory, but the device has";
    assert!(error.starts_with(needed) && error.contains("the CPU"), "{error}");
}

#[test]
#[ignore = "slow: three minutes of CPU time on a software adapter"]
fn a_run_begins_on_a_device_as_on_the_cpu() {
    let Some(device) = adapter() else { return };
    let [mut here, mut there] = [tiny(None, 0), tiny(Some(device.clone()), 0)];
    let [(record, want), (other, got)] = [&mut here, &mut there].map(|run| {
        let record = run.iterate().unwrap();
        (record, run.take_completions())
    });
    assert_eq!(want.len(), 32);
    for (got, want) in got.iter().zip(&want) {
        assert_eq!((&got.tokens, got.reward), (&want.tokens, want.reward));
    }
    let off = (other.grad_norm - record.grad_norm).abs() / record.grad_norm;
    assert!(off < 1e-4, "{} instead of {}", other.grad_norm, record.grad_norm);
    let distance = other.text.unwrap().first_ratio_distance.unwrap();
    assert!(distance < 1e-4, "{distance}");

    // It learns: texts that it is shown become likelier.
    let mut shown = tiny(Some(device), 8);
    let losses: Vec<f64> = (0..8).map(|_| shown.iterate().unwrap().loss).collect();
    assert!(losses[7] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn room_for_long_completions_takes_no_square_of_their_length() {
    // A mask of all pairs of tokens would be 40 GB.
    let decoder = decoders().swap_remove(2).with_device(Some(Device::flex()), Precision::F32);
    let on = decoder.on_device().unwrap();
    let prompts = on.prefill(&[&[1, 2, 3]]);
    let mut room = on.allocate_completions(1, 100_000);
    let hidden = on.step(&prompts, &mut room, Tensor::from_ints([4], &Device::flex()));
    let want = on.step(
        &prompts,
        &mut on.allocate_completions(1, 3),
        Tensor::from_ints([4], &Device::flex()),
    );
    assert!(are_near(&floats(hidden), &floats(want), 1e-5));
}

#[test]
fn half_precision_policies_learn_and_act_alike() {
    let device = Device::flex();
    let sampling = Sampling { max_new_tokens: 11, ..Sampling::default() };
    for (precision, unit) in [(Precision::F16, 1e-3), (Precision::Bf16, 8e-3)] {
        for (number, decoder) in decoders().into_iter().enumerate() {
            let there = decoder.with_device(Some(device.clone()), precision);
            let made = generate(&there, &sampling, 64);
            let sample = |one: &Completion| Sample {
                tokens: one.tokens.clone(),
                logprobs: one.logprobs.clone(),
                mask: vec![true; one.tokens.len()],
                ..Sample::default()
            };
            let prompts = prompts().into_iter().map(|prompt| prompt.tokens);
            let groups: Vec<Group> = prompts
                .zip(&made)
                .map(|(prompt, group)| Group {
                    prompt,
                    samples: group.iter().map(sample).collect(),
                })
                .collect();
            let learnt = compute_logprobs(&there, &groups, 1.0).concat().concat();
            let acted = made.concat().into_iter().flat_map(|one| one.logprobs);
            let off = learnt.iter().zip(acted).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            println!("{precision} {number}: {off}");
            assert!(off < 0.2 * unit, "{precision} {number}: {off}");
        }
    }
}

/// A decoder whose heads, texts and vocabulary are larger than a cube of the kernels.
pub fn wide(num_layers: usize) -> TokenDecoder {
    let shape = DecoderShape {
        num_outputs: 1000,
        hidden_size: 96,
        num_layers,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 96,
        partial_rotary_factor: 0.5,
        intermediate_size: 80,
        context: 256,
        sliding: Some(SlidingWindow {
            size: 50,
            layers: (0..num_layers).map(|layer| layer % 2 == 1).collect(),
            rope_theta: None,
        }),
        ..decoders()[0].shape().clone()
    };
    decoder(shape, 0.3)
}

/// Two prompts of different lengths, with three completions each.
pub fn long_prompts() -> [CompletionRequest; 2] {
    [70, 3].map(|count| CompletionRequest {
        tokens: (0..count).map(|i| (i * i + count) % 1000).collect(),
        num_completions: 3,
        key: count,
    })
}

#[test]
fn long_texts_are_generated_on_a_device_as_on_the_cpu() {
    let Some(device) = adapter() else { return };
    let decoder = wide(2);
    let there = decoder.clone().with_device(Some(device), Precision::F32);
    for temperature in [0.0, 0.8] {
        let sampling = Sampling { temperature, max_new_tokens: 40, ..Sampling::default() };
        let [want, got] =
            [&decoder, &there].map(|decoder| complete(decoder, &long_prompts(), &sampling, 6));
        let both = want.iter().flatten().zip(got.iter().flatten());
        for (want, got) in both {
            assert_eq!(want.tokens, got.tokens, "temperature {temperature}");
            let is_alike = are_alike(got, want, 1e-3);
            assert!(is_alike, "temperature {temperature}: {got:?} {want:?}");
        }
    }
}

/// The test needs its own process, in which no other work disturbs the recording of a graph.
#[test]
fn launches_of_a_token_step_are_few() {
    let Some(device) = adapter() else { return };
    if !is_alone("language_device::launches_of_a_token_step_are_few") {
        return;
    }
    let launches = |layers: usize, tokens: usize| {
        let decoder = &wide(layers).with_device(Some(device.clone()), Precision::F32);
        let sampling = &Sampling { max_new_tokens: tokens, ..Sampling::default() };
        launches(|| drop(complete(decoder, &long_prompts(), sampling, 6)))
    };
    // Launches that happen once in a process do not belong to a step.
    launches(1, 2);
    // So few steps are not worth a graph.
    let a_step = |layers| launches(layers, 3) - launches(layers, 2);
    let [one, two] = [a_step(1), a_step(2)];
    let [a_layer, fixed] = [two - one, one - (two - one)];
    // The matrices of one input are a launch, and attention, two norms, the gate and the caches one each.
    assert_eq!(a_layer, 9, "launches a layer, {fixed} besides");
    assert!(fixed <= 12, "{a_layer} launches a layer, {fixed} besides");
    // The launches of all later steps are those of a graph that was recorded once.
    assert_eq!(launches(1, 16), launches(1, 32), "{a_layer} launches a layer, {fixed} besides");
}
