//! Samples per second of the CPU learners: the general one (autodiff) and the native one.
//!
//! `cargo bench --bench learner`; `RAYON_NUM_THREADS=1` for one thread.

use burn::tensor::{Device, Tensor, TensorData};
use grove::data::NativeTrajectory;
use grove::learner::{AutodiffLearner, NativeExperience, NativeLearner, PerceptronLearner};
use grove::model::Mlp;
use grove::rng::{draw, uniform};
use grove::settings::TrainConfig;
use std::time::Instant;

const STEPS: usize = 16;
const GAMES: usize = 4096;
const FEATURES: usize = 16;
const ACTIONS: usize = 3;

fn main() {
    println!("{} threads", rayon::current_num_threads());
    let (host, judged) = experience();
    let (device, counts) = (Device::flex(), [STEPS; GAMES]);
    let trajectory = host.to_tensors(&device);
    let advantages = TensorData::new(judged.clone(), [GAMES, STEPS]);
    let advantages = Tensor::<2>::from_data(advantages, &device).transpose();
    let mask = advantages.ones_like();
    for hidden in [vec![64], vec![64, 64], vec![128, 128]] {
        let mut config = TrainConfig::for_game("fruit");
        config.policy.hidden = hidden.clone();
        let passes = STEPS * GAMES * config.update.update_epochs;
        let policy = Mlp::new(FEATURES, ACTIONS, &config.policy, 1, &device);

        let mut native = PerceptronLearner::new(&policy, &config);
        let experience = NativeExperience::new(&host, &judged, &counts, STEPS);
        let native = best_of(10, |i| {
            native.update(&experience, i).expect("alone");
        });
        let mut general = AutodiffLearner::new(policy, &config);
        let general = best_of(2, |i| {
            let stats = general.update(&trajectory, &advantages, &mask, i).expect("alone");
            stats.into_data();
        });
        let rate = |seconds: f64| passes as f64 / seconds / 1e6;
        println!(
            "hidden {hidden:?}: M passes/s: general {:.2}, native {:.2}",
            rate(general),
            rate(native)
        );
    }
}

/// Minimum seconds over several runs.
fn best_of(runs: u32, mut run: impl FnMut(u32)) -> f64 {
    (0..runs)
        .map(|i| {
            let start = Instant::now();
            run(i);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// A trajectory with advantages, `[num_envs, num_steps]`.
fn experience() -> (NativeTrajectory, Vec<f32>) {
    let noise = |i: u32, key: u32| 2.0 * uniform(draw(key, i)) - 1.0;
    let mut games = NativeTrajectory::default();
    games.resize(GAMES, STEPS, FEATURES);
    let count = (STEPS * GAMES) as u32;
    games.obs = (0..count * FEATURES as u32).map(|i| noise(i, 2)).collect();
    games.actions = (0..count).map(|i| (draw(1, i) % ACTIONS as u32) as i32).collect();
    games.logprobs.fill(-(ACTIONS as f32).ln());
    (games, (0..count).map(|i| noise(i, 3)).collect())
}
