//! Policies that are transformers: they train, repeat, resume, act and are saved as all others.

use crate::models::{
    assert_acts_as_by_tensors, assert_any_threads_agree, assert_learns_recall,
    assert_program_takes, assert_repeats_and_resumes,
};
use crate::shared::decoder::{
    decoder_run, first_native_update, first_update, first_updates, one_step, relative_distance,
};
use crate::support::{Scratch, adapter, cpu, json, refusal, train};
use burn::tensor::Device;
use grove::env::Catch;
use grove::settings::{DecoderConfig, EngineChoice, GroupStart, ModelKind, TrainConfig};
use grove::trainer::Trainer;
use pollster::block_on;

fn assert_decoder_repeats_and_resumes(device: &Device) {
    for start in [GroupStart::Branch, GroupStart::Level] {
        let config = decoder_run(start);
        let decoder = Trainer::new(Catch::default(), &config, device).model();
        assert_repeats_and_resumes(&decoder, &config, device);
    }
}

#[test]
fn on_the_cpu_a_decoder_repeats_and_resumes_byte_for_byte() {
    assert_decoder_repeats_and_resumes(&cpu());
}

#[test]
#[ignore = "slow: 85 s of CPU time on a software adapter"]
fn on_an_adapter_a_decoder_repeats_and_resumes_byte_for_byte() {
    let Some(device) = adapter() else { return };
    assert_decoder_repeats_and_resumes(&device);
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    for engine in [EngineChoice::Auto, EngineChoice::General] {
        let mut config = TrainConfig { engine, ..decoder_run(GroupStart::Branch) };
        config.policy.kind_settings.decoder =
            DecoderConfig { context: 8, ..DecoderConfig::default() };
        assert_any_threads_agree(config, 32);
    }
}

#[test]
fn the_first_update_on_an_adapter_equals_the_cpus() {
    let Some(device) = adapter() else { return };
    block_on(first_updates(&device));
}

#[test]
fn the_first_native_update_equals_autodiff() {
    for parts in [1, 4] {
        let config = one_step(parts);
        let by_autodiff = block_on(first_update(&config, &cpu()));
        let off = relative_distance(&first_native_update(&config), &by_autodiff);
        assert!(off > 0.0 && off < 2e-5, "off by {off}");
    }
}

#[test]
fn a_decoder_acts_the_same_natively_and_by_tensors() {
    assert_acts_as_by_tensors(&decoder_run(GroupStart::Branch));
}

#[test]
fn a_decoder_learns_a_task_that_needs_memory() {
    assert_learns_recall(ModelKind::Decoder, 12);
}

#[test]
fn the_program_trains_resumes_evaluates_records_and_measures_a_decoder() {
    let folder = &Scratch::new();
    assert_program_takes(folder, &["--set", "kind=decoder", "--set", "context=4"]);
    let small = ["--num-envs", "32", "--num-steps", "8", "--repeats", "1", "--device", "cpu"];
    let arguments = [&["bench", "catch", "--json", "--set", "kind=decoder"], &small[..]].concat();
    let measured = json(folder, &arguments);
    let policy = "decoder of 2 layers of 64, 4 heads, 32 steps of context";
    assert_eq!(measured["policy"], policy);
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    for (assignment, words) in [
        ("hidden_size=20", "policy.hidden_size is 20, but must be a multiple of twice"),
        (
            "hidden_size=4098 num_heads=1",
            "policy.hidden_size is 4098, but must be at most 4096 times",
        ),
        ("num_kv_heads=3", "policy.num_kv_heads is 3, but must be a divisor of num_heads (4)"),
        ("num_layers=0", "policy.num_layers is 0, but must be 1 to 128"),
        ("context=0", "policy.context is 0, but must be 1 to 8192"),
    ] {
        let folder = Scratch::new();
        let assignments = assignment.split(' ').flat_map(|assignment| ["--set", assignment]);
        let set: Vec<&str> = ["--set", "kind=decoder"].into_iter().chain(assignments).collect();
        let said = refusal(&folder, &train("catch", "run", &set));
        assert!(said.contains(words) && said.trim().lines().count() == 1, "{said}");
    }
}
