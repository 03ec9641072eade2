//! Whole training runs on a device through the trainer's asynchronous API.

use super::cpu;
use super::updates::{error, norm};
use burn::tensor::Device;
use grove::checkpoint::Checkpoint;
use grove::env::{Catch, Env};
use grove::metrics::IterationRecord;
use grove::model::policy_file::{read_header, read_params};
use grove::settings::{GroupStart, TrainConfig};
use grove::trainer::Trainer;

/// Settings of a run of four short iterations.
pub fn short_run(start: GroupStart) -> TrainConfig {
    let mut config = TrainConfig::for_game(Catch::NAME);
    config.iterations = 4;
    config.policy.hidden = vec![16];
    config.rollout.num_groups = 6;
    config.rollout.group_size = 5;
    config.rollout.num_steps = 12;
    config.rollout.learn_steps = 7;
    config.rollout.start = start;
    config.loss.kl_coef = 0.01;
    config.update.num_minibatches = 3;
    config.checkpoint.eval_episodes = 100;
    config
}

/// Bytes of a section of a checkpoint.
pub fn section<'a>(checkpoint: &'a Checkpoint, name: &str) -> &'a [u8] {
    let section = checkpoint.sections.iter().find(|section| section.name == name);
    &section.expect("a checkpoint has it").bytes
}

/// Asserts that the records of an iteration agree within 0.1 %.
pub fn assert_near(got: &IterationRecord, want: &IterationRecord) {
    for (name, got, want) in [
        ("mean reward", got.mean_reward, want.mean_reward),
        ("entropy", got.entropy, want.entropy),
        ("gradient norm", got.grad_norm, want.grad_norm),
        ("zero variance", got.zero_variance_fraction, want.zero_variance_fraction),
    ] {
        assert!((got - want).abs() <= 1e-3 * want.abs(), "{name}: {got} and {want}");
    }
}

/// Compares training runs and checkpoints on `device` with those on the CPU. Returns the largest
/// error of the parameters relative to their change.
pub async fn whole_runs(device: &Device) -> f64 {
    let mut largest = 0.0f64;
    for start in [GroupStart::Branch, GroupStart::Level] {
        let config = short_run(start);
        let mut run = Trainer::new(Catch::default(), &config, device);
        let mut native = Trainer::new(Catch::default(), &config, &cpu());
        let features = Catch::default().num_features();
        let parameters = config.policy.parameters(features, 3);
        let params = |file: &[u8]| -> Vec<f64> {
            let params = read_params(file, &parameters).expect("it is a policy");
            params.into_iter().map(f64::from).collect()
        };
        let before = params(&run.encode_policy_file_async().await);
        for _ in 0..config.iterations {
            let got = run.iterate_async().await.expect("all values are finite");
            let want = native.iterate().expect("all values are finite");
            assert_eq!((got.iteration, got.env_steps), (want.iteration, want.env_steps));
            assert_eq!((got.score, got.episodes), (want.score, want.episodes));
            assert_eq!(got.mean_length, want.mean_length);
            assert_eq!((got.read_backs, want.read_backs), (1, 0));
            assert!(got.seconds.total > 0.0 && want.seconds.phases.is_some());
            assert_near(&got, &want);
        }
        let (got, want) = (run.snapshot_async().await.unwrap(), native.snapshot().unwrap());
        assert_eq!(section(&got, "games.safetensors"), section(&want, "games.safetensors"));
        let file = run.encode_policy_file_async().await;
        assert_eq!(file, section(&got, "weights.safetensors"));
        assert_eq!(read_header(&file).expect("it has one").iteration, 4);
        let (got, want) = (params(&file), params(section(&want, "weights.safetensors")));
        let change = error(&want, &before, 1.0);
        let off = error(&got, &want, change);
        assert!(change > 1e-2 * norm(&before), "{start:?}: {change}");
        assert!(off < 1e-3, "{start:?}: parameters off by {off} of their change");
        largest = largest.max(off);
        assert_eq!(run.validate_async().await.unwrap(), native.validate().unwrap(), "{start:?}");
    }
    largest
}
