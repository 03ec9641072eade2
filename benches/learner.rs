//! Samples per second of the CPU learners: the general one (autodiff) and the native one.
//!
//! `cargo bench --bench learner`; `RAYON_NUM_THREADS=1` for one thread.

use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::data::{HostTrajectory, Trajectory};
use grove::learner::{AutodiffLearner, HostExperience, HostLearner, PerceptronLearner};
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
    let (trajectory, advantages, mask) = experience();
    let host = HostTrajectory::from_tensors(&trajectory);
    let judged = advantages.clone().transpose().into_data();
    let (judged, counts) = (judged.as_slice().expect("f32"), [STEPS; GAMES]);
    for hidden in [vec![64], vec![64, 64], vec![128, 128]] {
        let mut config = TrainConfig::for_game("fruit");
        config.policy.hidden = hidden.clone();
        let passes = STEPS * GAMES * config.update.update_epochs;
        let policy = Mlp::new(FEATURES, ACTIONS, &config.policy, 1, &Device::flex());

        let mut native = PerceptronLearner::new(&policy, &config);
        let experience = HostExperience::new(&host, judged, &counts, STEPS);
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

/// A trajectory with advantages and mask.
fn experience() -> (Trajectory, Tensor<2>, Tensor<2>) {
    let device = Device::flex();
    let (count, shape) = (STEPS * GAMES, [STEPS, GAMES]);
    let noise = |count: usize, key: u32| -> Vec<f32> {
        (0..count).map(|i| 2.0 * uniform(draw(key, i as u32)) - 1.0).collect()
    };
    let rows = |values| Tensor::<2>::from_data(TensorData::new(values, shape), &device);
    let actions: Vec<i32> =
        (0..count).map(|i| (draw(1, i as u32) % ACTIONS as u32) as i32).collect();
    let obs = TensorData::new(noise(count * FEATURES, 2), [STEPS, GAMES, FEATURES]);
    let zeros = || Tensor::<2>::zeros(shape, &device);
    let trajectory = Trajectory {
        memory: None,
        elapsed: None,
        obs: Tensor::from_data(obs, &device),
        actions: Tensor::<2, Int>::from_data(TensorData::new(actions, shape), &device),
        logprobs: zeros() - (ACTIONS as f32).ln(),
        rewards: zeros(),
        terminated: zeros(),
        truncated: zeros(),
        scores: zeros(),
        legal: None,
    };
    (trajectory, rows(noise(count, 3)), zeros() + 1.0)
}
