//! A page with a user-defined game: keep a drifting boat in the channel.
//!
//! ```console
//! $ web/build.sh --crate examples/own_page
//! $ python3 -m http.server --directory examples/own_page/dist
//! ```

use burn::cubecl;
use burn::cubecl::prelude::*;
use grove::env::{Bits, Env, Outcome, Rules, impl_settings};
use grove::rng::draw;
use grove::schema::settings;
use grove_web::{Page, page};

page!(Page::default().game::<Boat>());

settings! {
    /// A channel whose current changes at random; the score is the number of steps within it.
    pub struct Boat: Copy, Eq, Hash {
        /// Number of cells from the middle to either bank.
        half: u32 = 3, in integer(1..=100);
    }
}

grove::packed_state! {
    /// The boat's distance from one bank, and the current: 0 towards that bank, 1 none, 2 away from it.
    pub struct Afloat {
        cell: Bits<8>,
        current: Bits<2>,
    }
}

impl Env for Boat {
    const NAME: &'static str = "boat";

    impl_settings!();

    fn training_defaults(&self) -> &'static [&'static str] {
        &["iterations = 40\nrollout = { num_groups = 32, group_size = 8 }"]
    }

    fn num_features(&self) -> usize {
        2
    }

    fn num_actions(&self) -> usize {
        3
    }

    fn max_steps(&self) -> u32 {
        50
    }

    fn feature_name(&self, i: usize) -> String {
        ["boat", "current"][i].to_string()
    }

    fn action_name(&self, a: usize) -> String {
        ["left", "stay", "right"][a].to_string()
    }

    /// The optimal policy steers against the current and never leaves the channel.
    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        &[("optimum", 50.0)]
    }
}

#[cube]
impl Rules for Boat {
    type State = Afloat;

    fn reset(state: &mut Afloat, key: u32, #[comptime] game: Self) {
        state.cell = game.half + 1;
        state.current = draw(key, 0) % 3;
    }

    fn step(state: &mut Afloat, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        // The action and the current each move it by -1, 0 or 1.
        let moved = state.cell + action + state.current;
        state.cell = select(moved < 2, 2u32, moved) - 2;
        state.current = draw(key, 0) % 3;
        let ashore = state.cell == 0 || state.cell > 2 * game.half + 1;
        let reward = select(ashore, 0.0f32, 1.0f32);
        Outcome { reward, score: reward, terminated: ashore }
    }

    fn feature(state: &Afloat, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(i == 0) {
            state.cell as f32 * comptime!(1.0 / (game.half + 1) as f32) - 1.0f32
        } else {
            state.current as f32 - 1.0f32
        }
    }
}
