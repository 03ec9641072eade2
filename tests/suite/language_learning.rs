//! What language models learn from texts by hand is what autodiff says.

use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::model::language::{Keep, Reading, Text, TokenDecoder};
use grove::model::{Decoder, DecoderShape, RopeScaling, flatten, named_parameters, unflatten};

/// A small decoder over 13 tokens.
fn shape() -> DecoderShape {
    DecoderShape {
        num_features: 0,
        num_actions: 13,
        hidden_size: 8,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 2,
        intermediate_size: 6,
        context: 64,
        qkv_bias: false,
        qk_norm: false,
        tie_word_embeddings: false,
        rope_theta: 100.0,
        rope_scaling: None,
        rms_norm_eps: 1e-3,
    }
}

/// One of every switch, and one whose sizes fill vectors.
fn shapes() -> Vec<DecoderShape> {
    let scaling = RopeScaling {
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 16.0,
    };
    vec![
        shape(),
        DecoderShape { qkv_bias: true, tie_word_embeddings: true, ..shape() },
        DecoderShape { qk_norm: true, head_dim: 6, num_kv_heads: 1, ..shape() },
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
    ]
}

fn decoder(shape: &DecoderShape, device: &Device) -> Decoder {
    let decoder = Decoder::of_shape(shape.clone(), 1, device);
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

fn by_hand(shape: &DecoderShape, params: Vec<f32>, keep: Keep) -> (Vec<f32>, Vec<f32>) {
    let decoder = TokenDecoder::new(shape.clone(), params);
    let owned = texts();
    let texts: Vec<Text> = owned
        .iter()
        .map(|(prompt, completions)| Text {
            prompt,
            completions: completions.iter().map(Vec::as_slice).collect(),
        })
        .collect();
    let mut reading = Reading::default();
    decoder.read(&texts, keep, &mut reading);
    let hidden = reading.hidden().to_vec();
    let mut logits = Vec::new();
    decoder.logits(&hidden, &mut logits);
    let (mut all, mut of_logits) = (Vec::new(), vec![0.0; logits.len()]);
    for (number, completion) in texts.iter().flat_map(|text| &text.completions).enumerate() {
        for at in 0..completion.len() {
            let row = reading.prediction(number, at) * 13;
            all.extend_from_slice(&logits[row..row + 13]);
            for token in 0..13 {
                of_logits[row + token] += weight(number, at, token);
            }
        }
    }
    let (mut of_hidden, mut gradient) =
        (vec![0.0; hidden.len()], vec![0.0; decoder.params().len()]);
    decoder.learn_logits(&hidden, &of_logits, &mut of_hidden, &mut gradient);
    decoder.learn(&mut reading, &of_hidden, &mut gradient);
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
        let (logits, gradient) = by_hand(&shape, params.clone(), Keep::All);
        let largest = |x: &[f32]| x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let off = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len());
            let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            off / largest(b)
        };
        assert!(off(&logits, &want_logits) < 1e-5, "{shape:?}");
        assert!(off(&gradient, &want) < 2e-5, "{shape:?}: {}", off(&gradient, &want));
        let (_, again) = by_hand(&shape, params.clone(), Keep::Inputs);
        assert!(again == gradient, "{shape:?}");
    }
}
