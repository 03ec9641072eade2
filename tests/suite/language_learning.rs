//! Gradients of language models by hand, against autodiff.

use crate::language_device::rule;
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::learner::text::{
    Group, LanguageLearner, LanguageUpdateSettings, Sample, compute_gradient, compute_logprobs,
};
use grove::math::Activation;
use grove::model::{Decoder, DecoderShape, RopeScaling, flatten, named_parameters, unflatten};
use grove::nn::arch::{NormPlacement, QkNorm, SlidingWindow};
use grove::objective::{LossConfig, LossSteps, LossType, TensorStepDenominators, loss};
use grove::settings::{MomentPrecision, UpdateConfig};
use grove::text::{
    Adapters, CompletionIndex, LoraConfig, PromptWithCompletions, Retention, TextPass, TokenDecoder,
};

/// A small decoder over 13 tokens.
fn shape() -> DecoderShape {
    DecoderShape {
        num_outputs: 13,
        hidden_size: 8,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 2,
        intermediate_size: 6,
        context: 64,
        rope_theta: 100.0,
        rms_norm_eps: 1e-3,
        ..DecoderShape::default()
    }
}

/// One of every switch, and one whose sizes fill vectors.
fn shapes() -> Vec<DecoderShape> {
    let scaling = RopeScaling::Llama3 {
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 16.0,
    };
    vec![
        shape(),
        DecoderShape { qkv_bias: true, tie_word_embeddings: true, ..shape() },
        DecoderShape { qk_norm: QkNorm::PerHead, head_dim: 6, num_kv_heads: 1, ..shape() },
        DecoderShape { rope_scaling: Some(scaling), head_dim: 8, ..shape() },
        DecoderShape {
            hidden_size: 96,
            head_dim: 64,
            intermediate_size: 80,
            num_heads: 3,
            num_kv_heads: 3,
            tie_word_embeddings: true,
            ..shape()
        },
        // The switches of Gemma 3, and of OLMo 2 with biases and a part of each head rotated.
        DecoderShape {
            norm_placement: NormPlacement::Around,
            norm_offset: 1.0,
            qk_norm: QkNorm::PerHead,
            activation: Activation::Gelu,
            embedding_scale: 2.5,
            query_pre_attn_scalar: Some(5.0),
            sliding: Some(SlidingWindow {
                size: 5,
                layers: vec![true, false],
                rope_theta: Some(30.0),
            }),
            tie_word_embeddings: true,
            ..shape()
        },
        // SmolLM3's: a layer does not rotate.
        DecoderShape { rope_layers: Some(vec![true, false]), ..shape() },
        DecoderShape {
            norm_placement: NormPlacement::After,
            qk_norm: QkNorm::AllHeads,
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            head_dim: 6,
            partial_rotary_factor: 0.7,
            rope_scaling: Some(RopeScaling::Linear { factor: 2.0 }),
            ..shape()
        },
    ]
}

fn decoder(shape: &DecoderShape, device: &Device) -> Decoder {
    let decoder = Decoder::from_shape(shape.clone(), 1, device);
    let params = flatten(&decoder);
    let count = params.dims()[0];
    let waves: Vec<f32> = (0..count).map(|i| (i as f32 * 0.77).sin() * 0.2).collect();
    unflatten(decoder, &(params + Tensor::from_data(TensorData::new(waves, [count]), device)))
}

/// Prompts with completions, of one token and of many.
fn texts() -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let tokens = |seed: u32, count: u32| (0..count).map(|i| (i * i + seed * 5 + i) % 13).collect();
    vec![
        (tokens(1, 20), vec![tokens(2, 5), tokens(3, 1), tokens(4, 19)]),
        (tokens(5, 1), vec![tokens(6, 2)]),
        (tokens(7, 4), vec![tokens(8, 1), tokens(9, 1)]),
    ]
}

/// The weight of the logit of a token after token `at` of a completion, in the loss.
fn weight(completion: usize, at: usize, token: usize) -> f32 {
    ((completion * 131 + at * 17 + token) as f32 * 0.37).sin()
}

fn by_autodiff(decoder: &Decoder, device: &Device) -> (Vec<f32>, Vec<f32>) {
    let leaf = flatten(decoder).autodiff().require_grad();
    let model = unflatten(decoder.clone(), &leaf);
    let mut loss = Tensor::<1>::zeros([1], device).autodiff();
    let mut first = Vec::new();
    let mut number = 0;
    for (prompt, completions) in texts() {
        for completion in completions {
            let text: Vec<i32> = prompt.iter().chain(&completion).map(|t| *t as i32).collect();
            let count = text.len() - 1;
            let tokens = Tensor::<1, Int>::from_ints(&text[..count], device);
            let logits = model.token_logits(tokens.autodiff().reshape([1, count]));
            let start = prompt.len() - 1;
            let logits = logits.narrow(1, start, completion.len());
            first.extend(logits.clone().without_autodiff().into_data().iter::<f32>());
            let weights: Vec<f32> = (0..completion.len())
                .flat_map(|at| (0..13).map(move |token| weight(number, at, token)))
                .collect();
            let weights = TensorData::new(weights, [1, completion.len(), 13]);
            let weights = Tensor::<3>::from_data(weights, device).autodiff();
            loss = loss + (logits * weights).sum();
            number += 1;
        }
    }
    let mut gradients = loss.backward();
    let gradient = leaf.grad_remove(&mut gradients).unwrap();
    (first, gradient.into_data().iter::<f32>().collect())
}

fn by_hand(decoder: &TokenDecoder, retention: Retention) -> (Vec<f32>, Vec<f32>) {
    let owned = texts();
    let texts: Vec<PromptWithCompletions> = owned
        .iter()
        .map(|(prompt, completions)| PromptWithCompletions {
            prompt,
            completions: completions.iter().map(Vec::as_slice).collect(),
        })
        .collect();
    let mut forward = TextPass::default();
    decoder.forward_texts(&texts, retention, &mut forward);
    let hidden = forward.hidden().to_vec();
    let mut logits = Vec::new();
    decoder.compute_logits(&hidden, &mut logits);
    let (mut all, mut of_logits) = (Vec::new(), vec![0.0; logits.len()]);
    let places = texts.iter().enumerate().flat_map(|(prompt, all)| {
        let index = move |completion| CompletionIndex { prompt, completion };
        all.completions.iter().enumerate().map(move |(i, tokens)| (index(i), tokens))
    });
    for (number, (place, completion)) in places.enumerate() {
        for at in 0..completion.len() {
            let row = forward.prediction(place, at) * 13;
            all.extend_from_slice(&logits[row..row + 13]);
            for token in 0..13 {
                of_logits[row + token] += weight(number, at, token);
            }
        }
    }
    let (mut of_hidden, mut gradient) =
        (vec![0.0; hidden.len()], vec![0.0; decoder.trainable().len()]);
    decoder.backward_head(&hidden, &of_logits, &mut of_hidden, &mut gradient);
    decoder.backward_texts(&mut forward, &of_hidden, &mut gradient, |_, _| {});
    (all, gradient)
}

#[test]
fn gradients_by_hand_are_those_of_autodiff() {
    let device = Device::flex();
    for shape in shapes() {
        let decoder = decoder(&shape, &device);
        assert_eq!(named_parameters(&decoder), shape.parameters());
        let params: Vec<f32> = flatten(&decoder).into_data().iter::<f32>().collect();
        let (want_logits, want) = by_autodiff(&decoder, &device);
        let mut decoder = TokenDecoder::new(shape.clone(), params);
        let (logits, gradient) = by_hand(&decoder, Retention::All);
        assert!(relative_distance(&logits, &want_logits) < 1e-5, "{shape:?}");
        let off = relative_distance(&gradient, &want);
        assert!(off < 2e-5, "{shape:?}: {off}");
        let (_, again) = by_hand(&decoder, Retention::Inputs);
        assert!(again == gradient, "{shape:?}");
        // Copies of the weights are made anew where these change.
        decoder.update(|params| params.iter_mut().for_each(|x| *x *= -1.0));
        assert!(by_hand(&decoder, Retention::All).1 != gradient, "{shape:?}");
        decoder.update(|params| params.iter_mut().for_each(|x| *x *= -1.0));
        assert!(by_hand(&decoder, Retention::All).1 == gradient, "{shape:?}");
    }
}

/// The largest distance of two lists, over the largest number of the second.
fn relative_distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// The rows of a matrix times those of another: `[rows, inner]`, `[inner, columns]`.
fn times(a: &[f32], b: &[f32], inner: usize) -> Vec<f32> {
    let columns = b.len() / inner;
    let one = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        let terms =
            (0..inner).map(|k| f64::from(a[row * inner + k]) * f64::from(b[k * columns + column]));
        terms.sum::<f64>() as f32
    };
    (0..a.len() / inner * columns).map(one).collect()
}

/// The columns of a matrix as rows.
fn transposed(a: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|j| a[j..].iter().step_by(columns)).copied().collect()
}

#[test]
fn adapters_equal_their_products_merged_into_the_matrices() {
    let targets = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    for (shape, config) in [
        (shape(), LoraConfig::new(3)),
        (
            shapes()[1].clone(),
            LoraConfig { target_modules: targets(&["q_proj", "down_proj"]), ..LoraConfig::new(2) },
        ),
        (shapes()[4].clone(), LoraConfig { lora_alpha: 5.0, ..LoraConfig::new(16) }),
    ] {
        let wave =
            |count: usize, rate: f32| (0..count).map(|i| (i as f32 * rate).sin() * 0.2).collect();
        let params: Vec<f32> = wave(shape.num_params(), 0.71);
        let plain = TokenDecoder::new(shape.clone(), params.clone());
        let fresh = Adapters::new(&shape, &config, 7);
        let same = plain.clone().with_adapters(Some(fresh.clone()));
        assert!(
            by_hand(&same, Retention::All).0 == by_hand(&plain, Retention::All).0,
            "fresh ones change nothing"
        );
        let adapters = fresh.clone().with_params(wave(fresh.params().len(), 0.43));
        let adapted = plain.with_adapters(Some(adapters.clone()));
        let (logits, gradient) = by_hand(&adapted, Retention::All);
        assert!(by_hand(&adapted, Retention::Inputs) == (logits.clone(), gradient.clone()));

        // The same as a matrix, and its gradient on the way to those of the adapters.
        let scale = config.lora_alpha / config.r as f32;
        let mut merged = params;
        let places = |name: &str| {
            let mut start = 0;
            let all = shape.parameters();
            let parameter = all.iter().take_while(|one| one.name != name);
            parameter.for_each(|one| start += one.shape.iter().product::<usize>());
            start
        };
        let mut pairs = Vec::new();
        let mut at = 0;
        for pair in adapters.parameters().chunks(2) {
            let (inputs, outputs) = (pair[0].shape[0], pair[1].shape[1]);
            let (a, b) = (
                at..at + inputs * config.r,
                at + inputs * config.r..at + (inputs + outputs) * config.r,
            );
            at = b.end;
            let start = places(&pair[0].name.replace("lora_A.", ""));
            let added =
                times(&adapters.params()[a.clone()], &adapters.params()[b.clone()], config.r);
            merged[start..start + added.len()]
                .iter_mut()
                .zip(&added)
                .for_each(|(w, x)| *w += scale * x);
            pairs.push((a, b, start..start + added.len(), inputs, outputs));
        }
        assert_eq!((pairs.len(), at), (config.target_modules.len() * 2, adapters.params().len()));
        let (want_logits, of_matrices) =
            by_hand(&TokenDecoder::new(shape.clone(), merged), Retention::All);
        let off = relative_distance(&logits, &want_logits);
        assert!(off < 1e-5, "{off}");
        let mut want = vec![0.0; at];
        for (a, b, place, inputs, outputs) in pairs {
            let of = &of_matrices[place];
            let first = times(of, &transposed(&adapters.params()[b.clone()], outputs), outputs);
            let second = times(&transposed(&adapters.params()[a.clone()], config.r), of, inputs);
            want[a].iter_mut().zip(first).for_each(|(to, x)| *to = scale * x);
            want[b].iter_mut().zip(second).for_each(|(to, x)| *to = scale * x);
        }
        let off = relative_distance(&gradient, &want);
        assert!(off < 2e-5, "{off}");
    }
}

/// The loss of some groups and the gradient of the parameters, in tensors.
fn loss_by_autodiff(
    decoder: &Decoder,
    groups: &[Group],
    references: &[Vec<f32>],
    config: &LossConfig,
    device: &Device,
) -> Vec<f32> {
    let leaf = flatten(decoder).autodiff().require_grad();
    let model = unflatten(decoder.clone(), &leaf);
    let samples: Vec<(&Group, &Sample)> =
        groups.iter().flat_map(|group| group.samples.iter().map(move |one| (group, one))).collect();
    let steps = samples.iter().map(|(_, one)| one.tokens.len()).max().unwrap();
    let (mut logprobs, mut entropies) = (Vec::new(), Vec::new());
    for (group, sample) in &samples {
        let count = sample.tokens.len();
        let text: Vec<i32> =
            group.prompt.iter().chain(&sample.tokens).map(|token| *token as i32).collect();
        let tokens = Tensor::<1, Int>::from_ints(&text[..text.len() - 1], device);
        let tokens = tokens.autodiff().reshape([1, text.len() - 1]);
        let logits = model.token_logits(tokens).narrow(1, group.prompt.len() - 1, count);
        let all = burn::tensor::activation::log_softmax(logits.reshape([count, 13]), 1);
        let taken = Tensor::<1, Int>::from_ints(&text[group.prompt.len()..], device).autodiff();
        let chosen = all.clone().gather(1, taken.reshape([count, 1]));
        let entropy = -(all.clone().exp() * all).sum_dim(1);
        let rest = Tensor::<2>::zeros([steps - count, 1], device).autodiff();
        logprobs.push(Tensor::cat(vec![chosen, rest.clone()], 0));
        entropies.push(Tensor::cat(vec![entropy, rest], 0));
    }
    let table = |of: &dyn Fn(usize, usize) -> f32| {
        let values: Vec<f32> = (0..steps)
            .flat_map(|t| (0..samples.len()).map(move |i| (t, i)))
            .map(|(t, i)| if t < samples[i].1.tokens.len() { of(i, t) } else { 0.0 })
            .collect();
        Tensor::<2>::from_data(TensorData::new(values, [steps, samples.len()]), device).autodiff()
    };
    let selected = |i: usize, t: usize| {
        let sample = samples[i].1;
        f32::from(sample.mask[t] && sample.selected[t])
    };
    let mask = table(&|i, t| f32::from(samples[i].1.mask[t]));
    let counted = mask.clone().sum();
    let steps = LossSteps {
        logprobs: Tensor::cat(logprobs, 1),
        entropy: Tensor::cat(entropies, 1),
        old_logprobs: table(&|i, t| samples[i].1.logprobs[t]),
        reference_logprobs: Some(table(&|i, t| references[i][t])),
        mean_logprobs: None,
        advantages: table(&|i, t| samples[i].1.advantages[t] * selected(i, t)),
        mask,
    };
    // The bonus is the mean entropy of the tokens selected, for every loss.
    let selected = table(&selected);
    let bonus = (steps.entropy.clone() * selected.clone()).sum() / selected.sum();
    let denominators = TensorStepDenominators {
        sequences: samples.len(),
        steps: counted.clone(),
        rollout_steps_per_minibatch: counted,
    };
    let loss = loss(config, 0.0, &steps, &denominators).value - bonus * config.entropy_coef;
    let mut gradients = loss.backward();
    leaf.grad_remove(&mut gradients).unwrap().into_data().iter::<f32>().collect()
}

#[test]
fn losses_of_texts_are_those_of_tensors() {
    let device = Device::flex();
    let shape = DecoderShape { qkv_bias: true, tie_word_embeddings: true, ..shape() };
    let decoder = decoder(&shape, &device);
    let params: Vec<f32> = flatten(&decoder).into_data().iter::<f32>().collect();
    let native = TokenDecoder::new(shape, params);
    let wave = |i: usize| (i as f32 * 1.7).sin();
    let mut groups = Vec::new();
    for (g, (prompt, mut completions)) in texts().into_iter().enumerate() {
        // Samples that are alike go through once, though what is learnt from them differs.
        completions.insert(1, completions[0].clone());
        let sample = |(s, tokens): (usize, Vec<u32>)| Sample {
            logprobs: vec![0.0; tokens.len()],
            advantages: (0..tokens.len()).map(|t| wave(7 * g + s + 1 + t / 3)).collect(),
            mask: (0..tokens.len()).map(|t| t == 0 || (t + s) % 4 != 1).collect(),
            selected: (0..tokens.len()).map(|t| t == 0 || (t + g) % 3 != 1).collect(),
            entropies: Vec::new(),
            candidates: Vec::new(),
            tokens,
        };
        groups.push(Group {
            prompt,
            samples: completions.into_iter().enumerate().map(sample).collect(),
        });
    }
    let mut references = Vec::new();
    for group in &mut groups {
        let now = compute_logprobs(&native, std::slice::from_ref(group), 1.0).remove(0);
        for (sample, now) in group.samples.iter_mut().zip(now) {
            sample.logprobs = now.iter().enumerate().map(|(t, x)| x + 0.3 * wave(t + 3)).collect();
            references.push(now.iter().enumerate().map(|(t, x)| x + 0.4 * wave(t + 9)).collect());
        }
    }
    for loss_type in LossType::ALL {
        let mut loss = LossConfig { loss_type: *loss_type, ..LossConfig::default() };
        (loss.kl_coef, loss.entropy_coef, loss.dual_clip) = (0.2, 0.1, 3.0);
        let want = loss_by_autodiff(&decoder, &groups, &references, &loss, &device);
        let longest = groups.iter().flat_map(|group| &group.samples).map(|one| one.tokens.len());
        let max_new_tokens = longest.max().unwrap();
        let rule = LanguageUpdateSettings { temperature: 1.0, max_new_tokens, ..rule(loss) };
        let mut of_groups = references.iter().cloned();
        let of_groups: Vec<Vec<Vec<f32>>> = groups
            .iter()
            .map(|group| of_groups.by_ref().take(group.samples.len()).collect())
            .collect();
        let got = compute_gradient(&native, &rule, &groups, Some(&of_groups));
        let largest = want.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                (got - want).abs() < 3e-5 * largest,
                "{loss_type} {i}: {got} instead of {want}"
            );
        }
    }
}

fn small_decoder() -> TokenDecoder {
    let params: Vec<f32> = (0..shape().num_params()).map(|i| (i as f32).sin()).collect();
    TokenDecoder::new(shape(), params)
}

/// A prompt with two completions of three tokens.
fn pair(advantages: [f32; 2]) -> Group {
    let sample = |(s, advantage): (usize, f32)| Sample {
        tokens: vec![1 + s as u32, 4, 2],
        logprobs: vec![-1.5; 3],
        advantages: vec![advantage; 3],
        mask: vec![true; 3],
        ..Sample::default()
    };
    Group { prompt: vec![3, 5], samples: advantages.into_iter().enumerate().map(sample).collect() }
}

/// Settings of updates on all of such prompts at once.
fn three_tokens(update_epochs: usize) -> LanguageUpdateSettings {
    let rule = rule(LossConfig::default());
    let update = UpdateConfig { num_minibatches: 1, update_epochs, ..rule.update };
    LanguageUpdateSettings { update, temperature: 1.0, max_new_tokens: 3, ..rule }
}

/// An update ends before the step whose tokens have diverged, at the first of which nothing has.
#[test]
fn an_update_ends_at_its_divergence() {
    let decoder = small_decoder();
    let mut groups = vec![pair([1.0, -1.0])];
    let old = compute_logprobs(&decoder, &groups, 1.0).remove(0);
    groups[0].samples.iter_mut().zip(old).for_each(|(sample, old)| sample.logprobs = old);
    let learnt = |target_kl: f64, update_epochs: usize| {
        let mut rule = three_tokens(update_epochs);
        rule.update.target_kl = target_kl;
        let mut learner = LanguageLearner::new(decoder.clone(), 1, MomentPrecision::F32);
        let means = learner.update(&rule, &groups, 0, &[1e-2; 4]).unwrap();
        (learner.decoder.trainable().to_vec(), learner.read_moments().steps, means)
    };
    let (whole, steps, means) = learnt(0.0, 4);
    assert!(steps == 4 && means.update.approx_kl > 1e-4, "{means:?}");
    assert!(learnt(1e3, 4) == (whole, steps, means));
    let (cut, steps, means) = learnt(1e-5, 4);
    assert_eq!((steps, means.tokens), (1, 6.0));
    assert!(means.update.approx_kl > 1e-5 && cut == learnt(0.0, 1).0, "{means:?}");
}

/// Groups without a gradient are skipped, and a divergence of no weight, with which all are evaluated, changes no mean.
#[test]
fn means_are_over_all_tokens_that_count() {
    let decoder = small_decoder();
    let means = |groups: &[Group], kl_coef: f64| {
        let mut rule = three_tokens(1);
        rule.loss.kl_coef = kl_coef;
        let mut learner = LanguageLearner::new(decoder.clone(), 1, MomentPrecision::F32);
        learner.update(&rule, groups, 0, &[1e-3]).unwrap()
    };
    let mut even = Group { prompt: vec![2, 1], ..pair([0.0; 2]) };
    let none = means(std::slice::from_ref(&even), 0.0);
    assert_eq!((none.tokens, none.counted_tokens, none.first_ratio_distance), (0.0, 6.0, None));
    let entropy = means(std::slice::from_ref(&even), 1e-12).update.entropy;
    for sample in &mut even.samples {
        sample.entropies = vec![entropy as f32; 3];
    }
    let alone = means(&[pair([1.0, -1.0])], 0.0);
    let groups = [pair([1.0, -1.0]), even.clone(), even.clone()];
    let [beside, all] = [0.0, 1e-12].map(|kl_coef| means(&groups, kl_coef));
    assert_eq!([alone, beside, all].map(|means| means.tokens), [6.0, 6.0, 18.0]);
    assert_eq!([alone, beside, all].map(|means| means.counted_tokens), [6.0, 18.0, 18.0]);
    assert_eq!(alone.first_ratio_distance, beside.first_ratio_distance);
    assert_eq!(alone.update.approx_kl, beside.update.approx_kl);
    let off = |other: f64| (beside.update.entropy - other).abs();
    assert!(off(all.update.entropy) < 1e-6 && off(alone.update.entropy) > 1e-3, "{beside:?}");
    let clipped = beside.update.clip_fraction;
    assert!(clipped > 0.0 && (clipped - all.update.clip_fraction).abs() < 1e-12, "{beside:?}");
    let skipped = means(&[even], 0.0).update.entropy;
    assert!((skipped - entropy).abs() < 1e-6, "{skipped}");
}
