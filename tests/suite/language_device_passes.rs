//! Whole texts in kernels: their gradient beside the CPU's, the same bits each time, in few launches.

use crate::language::{folder, folders};
use crate::language_device::{
    architectures, decoder, decoders, distance, groups, length, long_prompts, rule, wide,
};
use crate::support::{adapter, launches};
use burn::tensor::Device;
use grove::learner::text::{
    Group, LanguageLearner, LanguageUpdateSettings, Sample, compute_gradient,
};
use grove::model::DecoderShape;
use grove::nn::arch::FAMILIES;
use grove::objective::LossConfig;
use grove::settings::{MomentPrecision, Precision};
use grove::text::{LanguageModel, TokenDecoder};

/// Groups of long prompts, whose completions are longer than a cube of the kernels, or a single token.
fn long_groups() -> Vec<Group> {
    let sample = |number: u32, count: u32| Sample {
        tokens: (0..count).map(|i| (i * i * 3 + number * 91) % 1000).collect(),
        logprobs: vec![-6.9; count as usize],
        advantages: vec![(number as f32 * 1.3 + 0.5).cos(); count as usize],
        mask: vec![true; count as usize],
        ..Sample::default()
    };
    let group = |(number, prompt): (usize, &[u32])| Group {
        prompt: prompt.to_vec(),
        samples: [70, 1, 13]
            .into_iter()
            .zip(3 * number as u32..)
            .map(|(n, i)| sample(i, n))
            .collect(),
    };
    let prompts = long_prompts();
    prompts.iter().map(|prompt| &prompt.tokens[..]).enumerate().map(group).collect()
}

/// Checks that the gradient on a device is the CPU's but for `limit` of its length, and has the same bits each time.
fn check_gradient(decoder: &TokenDecoder, groups: &[Group], limit: f64, device: &Device) {
    let there = decoder.clone().with_device(Some(device.clone()), Precision::F32);
    let mut rule = rule(LossConfig { entropy_coef: 0.1, ..LossConfig::default() });
    let of = |decoder: &TokenDecoder, rule: &LanguageUpdateSettings| {
        compute_gradient(decoder, rule, groups, None)
    };
    let [want, got] = [decoder, &there].map(|decoder| of(decoder, &rule));
    let off = distance(&got, &want);
    assert!(length(&want) > 0.0 && off < limit, "{:?}: off by {off}", decoder.shape());
    assert!(of(&there, &rule) == got, "other bits");
    rule.update.gradient_checkpointing = true;
    assert!(of(&there, &rule) == got, "other bits where layers are recomputed");
}

#[test]
fn gradients_in_kernels_are_those_of_the_cpu_and_the_same_bits_each_time() {
    let Some(device) = adapter() else { return };
    // Weights that are larger than those of models: more of the difference is rounding.
    // The switches of Gemma 3 and OLMo 2.
    for decoder in architectures().into_iter().take(2) {
        check_gradient(&decoder, &groups(&decoder), 5e-5, &device);
    }
    check_gradient(&wide(2), &long_groups(), 1e-3, &device);
}

#[test]
#[ignore = "slow: 50 s of CPU time on a software adapter"]
fn gradients_of_every_architecture_in_kernels_are_those_of_the_cpu() {
    let Some(device) = adapter() else { return };
    for decoder in architectures().into_iter().skip(2).chain(decoders().into_iter().take(2)) {
        check_gradient(&decoder, &groups(&decoder), 5e-5, &device);
    }
    // The others are variants of Llama.
    let has_name =
        |name: &String| FAMILIES.iter().any(|family| family.model_type.starts_with(name));
    for name in folders().into_iter().filter(has_name) {
        let decoder = LanguageModel::load(&folder(&name)).unwrap().new_decoder();
        check_gradient(&decoder, &groups(&decoder), 1e-5, &device);
    }
}

/// A tile holds all heads that share keys, for which a cube has 64 units.
#[test]
fn more_heads_than_units_may_share_keys() {
    let Some(device) = adapter() else { return };
    let plain = decoders()[0].shape().clone();
    let shape =
        DecoderShape { num_heads: 128, num_kv_heads: 1, head_dim: 2, num_layers: 1, ..plain };
    let decoder = decoder(shape, 0.4);
    let there = decoder.clone().with_device(Some(device), Precision::F32);
    let (groups, rule) =
        (groups(&decoder), rule(LossConfig { entropy_coef: 0.1, ..LossConfig::default() }));
    let [want, got] = [&decoder, &there].map(|by| compute_gradient(by, &rule, &groups, None));
    let off = distance(&got, &want);
    assert!(length(&want) > 0.0 && off < 5e-5, "off by {off}");
}

#[test]
fn launches_of_learning_are_few() {
    let Some(device) = adapter() else { return };
    let groups = &long_groups()[..1];
    let learn = |layers: usize, how: &str| {
        let decoder = wide(layers);
        let mut rule = rule(LossConfig { entropy_coef: 0.1, ..LossConfig::default() });
        rule.update.gradient_checkpointing = how == "recomputed";
        if how == "stepped" {
            (rule.update.update_epochs, rule.update.num_minibatches) = (1, 1);
            let mut learner = LanguageLearner::new(decoder, 1, MomentPrecision::F32)
                .with_device(device.clone(), Precision::F32);
            learner.update(&rule, groups, 0, &[1e-3]).unwrap();
            return;
        }
        let decoder = decoder.with_device(Some(device.clone()), Precision::F32);
        compute_gradient(&decoder, &rule, groups, None);
    };
    // Launches that happen once in a process do not belong to a layer.
    learn(1, "stepped");
    let launches = |layers: usize, how: &str| launches(|| learn(layers, how));
    let a_layer = |how: &str| launches(2, how) - launches(1, how);
    let [kept, recomputed, stepped] = ["kept", "recomputed", "stepped"].map(a_layer);
    assert!((39..=43).contains(&kept), "{kept} launches a layer");
    assert!((44..=54).contains(&recomputed), "{recomputed} launches a layer, recomputed");
    assert_eq!(stepped, kept, "launches a layer and step");
}
