//! Engines are reproducible, resume exactly, and agree with each other.

use crate::shared::training::{assert_near, section, short_run, whole_runs};
use crate::support::{adapter, cpu};
use crate::trainers::{iterate, on_threads, snapshot};
use burn::tensor::Device;
use grove::checkpoint::Section;
use grove::device::max_addressable_bytes;
use grove::env::{CartPole, Catch};
use grove::metrics::IterationRecord;
use grove::model::policy_file::{Header, replace_header};
use grove::settings::{EngineChoice, GroupStart, RolloutConfig, TrainConfig};
use grove::trainer::{GameTrainer, Trainer};
use pollster::block_on;

fn config(engine: EngineChoice, start: GroupStart) -> TrainConfig {
    TrainConfig { engine, ..short_run(start) }
}

fn assert_repeats_and_resumes(device: &Device, engine: EngineChoice) {
    for start in [GroupStart::Branch, GroupStart::Level] {
        let config = config(engine, start);
        let new = || Trainer::new(Catch::default(), &config, device);
        let mut whole = new();
        for record in iterate(&mut whole, 4) {
            // The native engine reads nothing back.
            let expected = u64::from(!whole.describe_engine().contains("native"));
            assert_eq!(record.read_backs, expected, "{}", whole.describe_engine());
        }
        let mut again = new();
        iterate(&mut again, 4);
        assert!(snapshot(&whole) == snapshot(&again), "{} repeats itself", whole.describe_engine());

        let mut broken = new();
        iterate(&mut broken, 2);
        let saved = snapshot(&broken);
        let mut resumed = new().with_checkpoint(&saved).unwrap();
        iterate(&mut resumed, 2);
        assert!(
            snapshot(&whole) == snapshot(&resumed),
            "{} goes on exactly",
            whole.describe_engine()
        );
    }
}

#[test]
fn on_the_cpu_both_ways_repeat_and_resume_byte_for_byte() {
    assert_repeats_and_resumes(&cpu(), EngineChoice::Auto);
    assert_repeats_and_resumes(&cpu(), EngineChoice::General);
}

#[test]
fn on_an_adapter_runs_repeat_and_resume_byte_for_byte() {
    let Some(device) = adapter() else { return };
    assert_repeats_and_resumes(&device, EngineChoice::Auto);
}

#[test]
#[ignore = "slow: 10 s of CPU time on a software adapter"]
fn on_an_adapter_the_general_engine_repeats_and_resumes_byte_for_byte() {
    let Some(device) = adapter() else { return };
    assert_repeats_and_resumes(&device, EngineChoice::General);
}

#[test]
fn a_run_resumed_with_smaller_launches_learns_the_same() {
    let Some(device) = adapter() else { return };
    let usual = config(EngineChoice::Fused, GroupStart::Branch);
    let smaller = TrainConfig { launch_size: 1e-6, ..usual.clone() };
    let mut whole = Trainer::new(Catch::default(), &usual, &device);
    iterate(&mut whole, 2);
    let saved = snapshot(&whole);
    iterate(&mut whole, 2);
    let resumed = Trainer::new(Catch::default(), &smaller, &device);
    let mut resumed = resumed.with_checkpoint(&saved).unwrap();
    iterate(&mut resumed, 2);
    // The weights carry the settings in their header.
    let header = Header { iteration: 4, config: String::new(), dataset: None };
    let without_settings = |trainer: &GameTrainer<Catch>| {
        let sections = snapshot(trainer).sections.into_iter().filter(|it| it.name != "config.toml");
        let of = |Section { name, bytes, .. }| match name.as_str() {
            "weights.safetensors" => (name, replace_header(&bytes, &header).unwrap()),
            _ => (name, bytes),
        };
        sections.map(of).collect::<Vec<_>>()
    };
    assert!(without_settings(&whole) == without_settings(&resumed));
}

#[test]
fn blocking_and_async_forms_give_the_same_bytes() {
    // The general engine awaits the same read-backs on every device.
    let on_adapter = adapter().map(|device| (device, vec![EngineChoice::Auto]));
    let on_cpu = (cpu(), vec![EngineChoice::Auto, EngineChoice::General]);
    for (device, engines) in [Some(on_cpu), on_adapter].into_iter().flatten() {
        for engine in engines {
            let config = config(engine, GroupStart::Branch);
            let new = || Trainer::new(Catch::default(), &config, &device);
            let (mut waits, mut awaited) = (new(), new());
            for _ in 0..3 {
                let want = waits.iterate().unwrap();
                let got = block_on(awaited.iterate_async()).unwrap();
                // Everything except measurements of time and memory.
                let IterationRecord { seconds, memory, steps_per_second, utilization, .. } = want;
                assert_eq!(
                    IterationRecord { seconds, memory, steps_per_second, utilization, ..got },
                    want
                );
            }
            assert_eq!(block_on(awaited.validate_async()).unwrap(), waits.validate().unwrap());
            let saved = block_on(awaited.snapshot_async()).unwrap();
            assert!(saved == waits.snapshot().unwrap(), "{}", waits.describe_engine());
            let file = block_on(awaited.encode_policy_file_async());
            assert_eq!(file, section(&saved, "weights.safetensors"));
        }
    }
}

#[test]
fn whole_runs_on_an_adapter_equal_those_on_the_cpu() {
    let Some(device) = adapter() else { return };
    block_on(whole_runs(&device));
}

/// Compares two runs that differ in rounding: equal games at first, values within 0.1 %.
fn assert_agree(a: (&Device, EngineChoice), b: (&Device, EngineChoice), auto_reset: bool) {
    let mut runs = [a, b].map(|(device, engine)| {
        let mut config = config(engine, GroupStart::Branch);
        config.rollout.auto_reset = auto_reset;
        Trainer::new(Catch::default(), &config, device)
    });
    for iteration in 1..=3 {
        let [a, b] = [0, 1].map(|i| runs[i].iterate().unwrap());
        assert_eq!((a.score, a.episodes, a.env_steps), (b.score, b.episodes, b.env_steps));
        assert_eq!(a.mean_length, b.mean_length);
        let recorded =
            iteration * runs[0].config().steps_per_iteration(runs[0].shards().num_items());
        assert_eq!(a.env_steps == recorded, auto_reset, "{} of {recorded}", a.env_steps);
        assert_near(&a, &b);
    }
    assert_ne!(runs[0].describe_engine(), runs[1].describe_engine());
}

#[test]
fn all_engines_agree() {
    let cpu = cpu();
    for auto_reset in [true, false] {
        assert_agree((&cpu, EngineChoice::Auto), (&cpu, EngineChoice::General), auto_reset);
        let Some(device) = adapter() else { continue };
        assert_agree((&device, EngineChoice::Auto), (&cpu, EngineChoice::Auto), auto_reset);
        if auto_reset {
            assert_agree((&device, EngineChoice::Auto), (&device, EngineChoice::General), true);
        }
    }
}

/// CartPole rewards each step with 1, so that an episode's score is its length.
#[test]
fn the_length_of_an_episode_is_the_number_of_its_steps() {
    let lengths = |device: &Device, engine, start, auto_reset| {
        let mut config = TrainConfig::with_defaults_of(&CartPole::default()).unwrap();
        (config.engine, config.policy.hidden) = (engine, vec![16]);
        config.update.num_minibatches = 1;
        let (num_groups, group_size, num_steps, learn_steps) = (5, 4, 40, 30);
        config.rollout =
            RolloutConfig { num_groups, group_size, num_steps, learn_steps, start, auto_reset };
        let new = || Trainer::new(CartPole::default(), &config, device);
        let mut trainer = new();
        let mut iterate = |iteration: u32| {
            if iteration == 3 {
                trainer = new().with_checkpoint(&snapshot(&trainer)).unwrap();
            }
            let record = trainer.iterate().unwrap();
            assert_eq!(record.mean_length, record.score, "iteration {iteration}, {start:?}");
            record.mean_length.expect("episodes ended")
        };
        (0..6).map(&mut iterate).collect::<Vec<_>>()
    };
    for (start, auto_reset) in
        [(GroupStart::Branch, true), (GroupStart::Level, true), (GroupStart::Branch, false)]
    {
        let expected = lengths(&cpu(), EngineChoice::Auto, start, auto_reset);
        assert!(expected.iter().any(|length| *length != expected[0]), "{expected:?}");
        for threads in [1, 2] {
            let again =
                on_threads(threads, || lengths(&cpu(), EngineChoice::Auto, start, auto_reset));
            assert_eq!(again, expected, "{threads} threads");
        }
        lengths(&cpu(), EngineChoice::General, start, auto_reset);
    }
    // On a device the fused kernels count, or those of the trajectory.
    if let Some(device) = adapter() {
        lengths(&device, EngineChoice::Auto, GroupStart::Branch, true);
        lengths(&device, EngineChoice::General, GroupStart::Branch, false);
    }
}

#[test]
fn a_policy_too_wide_for_the_kernels_uses_the_general_engine_and_says_why() {
    let Some(device) = adapter() else { return };
    let mut config = config(EngineChoice::Auto, GroupStart::Branch);
    config.policy.hidden = vec![300];
    let trainer = Trainer::new(Catch::default(), &config, &device);
    assert!(trainer.fallback_reason().unwrap().contains("256 units"));
    assert!(trainer.describe_engine().contains("autodiff"), "{}", trainer.describe_engine());
    config.policy.hidden = vec![64];
    assert_eq!(Trainer::new(Catch::default(), &config, &device).fallback_reason(), None);
    config.policy.hidden = vec![300];
    assert_eq!(Trainer::new(Catch::default(), &config, &cpu()).fallback_reason(), None);
}

#[test]
fn a_rollout_too_large_for_the_device_is_rejected_before_the_run() {
    let Some(device) = adapter() else { return };
    let most = max_addressable_bytes(&device).unwrap() as usize;
    let missing =
        |config: &TrainConfig| Trainer::new(Catch::default(), config, &device).unsupported_reason();
    // Words of catch, and the quantities that are recorded beside its four features, in each step of a game.
    for (engine, numbers) in [(EngineChoice::Auto, 2), (EngineChoice::General, 5)] {
        let mut config = config(engine, GroupStart::Level);
        (config.rollout.num_groups, config.update.num_minibatches) = (1, 1);
        config.rollout.group_size = most / (4 * numbers * config.rollout.num_steps);
        assert_eq!(missing(&config), None);
        config.rollout.group_size += 1;
        let text = missing(&config).unwrap();
        assert!(text.contains("rollout takes"), "{text}");
        assert!(text.contains("rollout.group_size or rollout.num_steps, or use"), "{text}");
    }
    assert_eq!(missing(&config(EngineChoice::Auto, GroupStart::Level)), None);
}
