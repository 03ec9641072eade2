//! A user-defined game: cross a windy corridor as fast as possible.
//!
//! The program has all of Grove's commands:
//!
//! ```console
//! $ cargo run --release --example own_game -- train corridor --set corridor.length=20
//! $ cargo run --release --example own_game -- record runs/corridor-1 --out corridor.gif
//! ```

use burn::cubecl;
use burn::cubecl::prelude::*;
use grove::env::{Bits, Env, Outcome, Rules, impl_settings};
use grove::rng::{draw, uniform};
use grove::schema::settings;
use std::process::ExitCode;

settings! {
    /// A corridor in which each step costs 1, and a gust may blow the walker back by a cell.
    pub struct Corridor: Copy, Eq, Hash {
        /// Number of cells from the start to the exit.
        length: u32 = 10, in integer(1..=1000);
    }
}

grove::packed_state! {
    /// The state of the game.
    pub struct Walker {
        cell: Bits<10>,
        /// 1 if there is a gust in this step, which blows the walker back unless it waits.
        gust: Bits<1>,
    }
}

/// The game's name, dimensions and settings.
impl Env for Corridor {
    const NAME: &'static str = "corridor";

    impl_settings!();

    fn training_defaults(&self) -> &'static [&'static str] {
        &["iterations = 40"]
    }

    fn num_features(&self) -> usize {
        2
    }

    /// Wait and walk.
    fn num_actions(&self) -> usize {
        2
    }

    fn max_steps(&self) -> u32 {
        50
    }

    fn feature_name(&self, i: usize) -> String {
        ["cell", "gust"][i].to_string()
    }

    fn action_name(&self, a: usize) -> String {
        ["wait", "walk"][a].to_string()
    }

    /// The optimal policy waits during gusts, and needs 1 / 0.7 steps per cell on average.
    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        if self.length == 10 { &[("optimum", -10.0 / 0.7)] } else { &[] }
    }
}

/// The rules, which run natively on the CPU and in kernels on a GPU.
#[cube]
impl Rules for Corridor {
    type State = Walker;

    fn reset(state: &mut Walker, key: u32, #[comptime] _game: Self) {
        state.cell = 0;
        state.gust = select(uniform(draw(key, 0)) < 0.3f32, 1u32, 0u32);
    }

    fn step(state: &mut Walker, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        if action == 1 {
            if state.gust == 0 {
                state.cell += 1;
            } else if state.cell > 0 {
                state.cell -= 1;
            }
        }
        state.gust = select(uniform(draw(key, 0)) < 0.3f32, 1u32, 0u32);
        let reward = (-1.0f32).runtime();
        Outcome { reward, score: reward, terminated: state.cell >= game.length }
    }

    fn feature(state: &Walker, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(i == 0) {
            state.cell as f32 * comptime!(1.0 / game.length as f32)
        } else {
            state.gust as f32
        }
    }
}

fn main() -> ExitCode {
    grove::program().game::<Corridor>().run()
}
