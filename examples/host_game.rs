//! An environment in plain Rust, which never runs on a GPU: leave a corridor by its right end.
//!
//! ```console
//! $ cargo run --release --example host_game
//! ```

use grove::device;
use grove::env::{HostEnv, HostEnvs, HostGame, HostStepResult, ThreadedEnvs};
use grove::rollout::ActionSelection;
use grove::settings::TrainConfig;
use grove::trainer::GameTrainer;
use std::error::Error;

/// A corridor of ten cells, entered at a cell that depends on the level.
#[derive(Default)]
pub struct Corridor {
    cell: i32,
}

impl HostEnv for Corridor {
    fn num_features(&self) -> usize {
        1
    }

    fn num_actions(&self) -> usize {
        2
    }

    fn reset(&mut self, level: u32, obs: &mut [f32]) {
        self.cell = (level % 8) as i32;
        obs[0] = self.cell as f32 / 10.0;
    }

    /// Walks left or right, at a cost of 1.
    fn step(&mut self, action: u32, obs: &mut [f32]) -> HostStepResult {
        self.cell = (self.cell + if action == 1 { 1 } else { -1 }).max(0);
        obs[0] = self.cell as f32 / 10.0;
        HostStepResult { reward: -1.0, terminated: self.cell == 10, truncated: false }
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let game = HostGame { num_features: 1, num_actions: 2, max_steps: 50 };
    let mut config = TrainConfig { iterations: 20, ..TrainConfig::with_defaults_of(&game)? };
    (config.rollout.num_steps, config.rollout.learn_steps) = (50, 50);
    let envs = ThreadedEnvs::new(config.rollout.num_envs(), Corridor::default);
    let device = device::start("cpu")?.device;
    let mut trainer = GameTrainer::with_envs(game, HostEnvs::new(envs), &config, &device)?;
    for _ in 0..config.iterations {
        let record = trainer.iterate()?;
        println!("iteration {}: score {:.2}", record.iteration, record.score.unwrap_or(f64::NAN));
    }
    println!("greedy: {:.2}", trainer.evaluate_fresh(100, 0, ActionSelection::Greedy)?.mean_score);
    Ok(())
}
