//! Built-in networks: their settings, modules and native forms describe one network.

use crate::support::cpu;
use burn::tensor::{Tensor, TensorData};
use grove::model::{
    Actor, DecoderConfig, LANES, Lanes, ModelKind, NativePolicy, Network, PolicyConfig, TensorActor,
};
use grove::settings::Activation;

/// Networks of odd sizes: their features, actions and settings.
fn networks() -> Vec<(usize, usize, PolicyConfig)> {
    let mlp = |hidden: &[usize], activation| PolicyConfig::mlp(hidden, activation);
    let gru = |hidden: &[usize]| PolicyConfig::gru(hidden, Activation::Silu);
    let decoder = |num_layers, num_heads, num_kv_heads, context| {
        let sizes = DecoderConfig { hidden_size: 16, intermediate_size: 6, ..Default::default() };
        PolicyConfig::decoder(DecoderConfig {
            num_layers,
            num_heads,
            num_kv_heads,
            context,
            ..sizes
        })
    };
    vec![
        (10, 3, mlp(&[64, 64], Activation::Relu)),
        (4, 2, mlp(&[17], Activation::Tanh)),
        (7, 6, mlp(&[128, 5], Activation::Silu)),
        (3, 4, mlp(&[9, 17, 6, 5], Activation::Gelu)),
        (1, 1, mlp(&[1], Activation::Relu)),
        (64, 3, mlp(&[19], Activation::Tanh)),
        (3, 2, gru(&[5])),
        (6, 4, gru(&[16, 9])),
        (1, 1, gru(&[3, 4, 7])),
        (3, 4, decoder(1, 1, 1, 16)),
        (3, 4, decoder(2, 4, 2, 5)),
        (5, 2, decoder(3, 4, 4, 1)),
    ]
}

#[test]
fn the_networks_are_of_every_kind() {
    let kinds: Vec<String> =
        networks().iter().map(|(.., config)| config.kind.to_string()).collect();
    assert!(ModelKind::NAMES.iter().all(|name| kinds.iter().any(|kind| kind == name)), "{kinds:?}");
}

/// A network whose weights, biases and norms are all different.
fn network(features: usize, actions: usize, config: &PolicyConfig) -> Network {
    let network = Network::new(features, actions, config, 3, &cpu());
    let count = network.num_params();
    let waves: Vec<f32> = (0..count).map(|i| (i as f32 * 0.77).sin() * 0.3).collect();
    network.unflatten(
        &(network.flatten() + Tensor::from_data(TensorData::new(waves, [count]), &cpu())),
    )
}

/// The first lane in which two blocks of numbers differ, of numbers of order 1.
fn differs(got: &[Lanes], want: &[Lanes]) -> Option<(f32, f32)> {
    assert_eq!(got.len(), want.len());
    let mut pairs = got.as_flattened().iter().copied().zip(want.as_flattened().iter().copied());
    pairs.find(|(got, want)| (got - want).abs() >= 1e-5 * want.abs().max(1.0))
}

#[test]
fn parameters_of_settings_are_those_of_the_module() {
    for (features, actions, config) in networks() {
        let network = network(features, actions, &config);
        assert_eq!(network.parameters(), config.parameters(features, actions), "{config:?}");
    }
}

#[test]
fn native_and_burn_act_the_same_wherever_the_episodes_of_the_lanes_begin() {
    for (features, actions, config) in networks() {
        let network = network(features, actions, &config);
        let native = NativePolicy::new(&network, features, actions);
        let burn = TensorActor::new(&network, features, actions);
        assert_eq!(native.memory_size(), burn.memory_size(), "{config:?}");
        let mut memories = [(); 2].map(|()| vec![[0.0; LANES]; native.memory_size()]);
        let (mut scratch, mut tensors) = (native.new_scratch(), burn.new_scratch());
        for t in 0..24 {
            for memory in memories.iter_mut().flatten() {
                for lane in (0..LANES).filter(|lane| (t + lane).is_multiple_of(5 + lane % 4)) {
                    memory[lane] = 0.0;
                }
            }
            let wave = |f: usize, lane: usize| ((t * 91 + f * 17 + lane) as f32).cos();
            let obs: Vec<Lanes> =
                (0..features).map(|f| std::array::from_fn(|lane| wave(f, lane))).collect();
            let [memory, want_memory] = &mut memories;
            let got = native.compute_logits(&obs, memory, &mut scratch);
            let want = burn.compute_logits(&obs, want_memory, &mut tensors);
            assert_eq!(differs(got, want), None, "{config:?}: logits of step {t}");
            assert_eq!(differs(memory, want_memory), None, "{config:?}: memory of step {t}");
        }
    }
}
