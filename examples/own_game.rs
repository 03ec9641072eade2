//! A game of one's own, complete: cross a windy corridor, as fast as possible.
//!
//! ```console
//! $ cargo run --release --example own_game
//! ```

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Device;
use grove::config::TrainConfig;
use grove::env::{Game, Outcome, Rules, Words};
use grove::rng::{draw, uniform};
use grove::rollout::Player;
use grove::trainer::Trainer;

/// A corridor: each step costs 1, and a gust may blow the walker back a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Corridor {
    /// Cells from the start to the exit.
    length: u32,
}

/// Where the walker is.
#[derive(CubeType, Clone, Copy, Debug)]
struct Walker {
    cell: u32,
    /// 1 where a gust comes in this step; one waits it out, or is blown back.
    gust: u32,
}

/// What the trainer must know.
impl Game for Corridor {
    const NAME: &'static str = "corridor";

    fn num_features(&self) -> usize {
        2
    }

    /// Wait, walk.
    fn num_actions(&self) -> usize {
        2
    }

    fn num_words(&self) -> usize {
        2
    }

    fn max_steps(&self) -> u32 {
        50
    }

    fn validate(&self) -> Result<(), String> {
        if (1..=1000).contains(&self.length) {
            Ok(())
        } else {
            Err(format!("the length is {}, but must be 1 to 1000", self.length))
        }
    }
}

/// The rules. They run natively here, and in kernels on a GPU.
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
        Outcome { reward: (-1.0f32).runtime(), terminated: state.cell >= game.length }
    }

    fn feature(state: &Walker, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(i == 0) {
            state.cell as f32 * comptime!(1.0 / game.length as f32)
        } else {
            state.gust as f32
        }
    }

    fn pack(state: &Walker, #[comptime] _game: Self) -> Words {
        let mut words = Words::zero();
        words.w0 = state.cell;
        words.w1 = state.gust;
        words
    }

    fn unpack(words: &Words, #[comptime] _game: Self) -> Walker {
        Walker { cell: words.w0, gust: words.w1 }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let game = Corridor { length: 10 };
    game.validate()?;
    let config = TrainConfig { iterations: 40, ..TrainConfig::for_game(Corridor::NAME) };
    let mut trainer = Trainer::new(game, &config, &Device::flex());
    println!("untrained: {:.2}", trainer.evaluate(5000, Player::Sampling).mean_score);
    for _ in 0..config.iterations {
        trainer.iterate()?;
    }
    // Waiting out every gust takes 10 / 0.7 steps on average.
    println!("trained:   {:.2}", trainer.evaluate(5000, Player::Greedy).mean_score);
    println!("optimum:   {:.2}", -10.0 / 0.7);
    Ok(())
}
