//! The fruit catcher: fruits fall from the top of a grid and a basket on the bottom row catches
//! them.
//!
//! One step, in this order:
//!
//! 1. The basket moves one cell, clamped to the grid, so it may overhang the edge.
//! 2. Every fruit falls one row.
//! 3. A fruit that reaches the basket's row is caught (+1) or missed (-1) and removed.
//! 4. New fruits appear in the top row, if none is left or the newest has fallen `spawn_interval` rows: enough to reach
//!    `min_fruits`; otherwise, if no fruit landed in this step and there are fewer than `max_fruits`, one with
//!    probability 1/2.
//!
//! At one cell per step not every fruit can be caught.

mod look;
mod players;

use super::{Bits, Env, Outcome, Rules, ScriptedPlayer, impl_settings};
use crate::rng::{below, draw};
use crate::schema::{OutOfRange, ensure, names, settings};
use burn::cubecl;
use burn::cubecl::prelude::*;

settings! {
    /// Parameters of the fruit catcher.
    pub struct Fruit: Copy, Eq, Hash {
        /// Columns of the grid.
        width: u32 = Self::DEFAULT.width, in integer(3..=255);
        /// Rows of the grid; the basket is on the last one.
        height: u32 = Self::DEFAULT.height, in integer(2..=255);
        /// Columns of the basket, at most `width`.
        basket: u32 = Self::DEFAULT.basket, in integer(1..=255);
        /// Maximum number of fruits at a time.
        max_fruits: u32 = Self::DEFAULT.max_fruits, in integer(1..=8);
        /// Number of fruits below which new ones appear as soon as `spawn_interval` allows, at most
        /// `max_fruits`.
        min_fruits: u32 = Self::DEFAULT.min_fruits, in integer(1..=8);
        /// Rows that the newest fruit must have fallen before the next one appears.
        spawn_interval: u32 = Self::DEFAULT.spawn_interval, in integer(1..=255);
        /// Episode length in steps.
        max_steps: u32 = Self::DEFAULT.max_steps, in integer(1..=1_000_000);
        /// Observation of the policy: `features` relative to the basket, or raw `positions`.
        observation: FruitObservation = Self::DEFAULT.observation;
    }
    check = Fruit::check_settings;
}

names! {
    /// Observation of the fruit catcher.
    #[derive(Default)]
    pub enum FruitObservation {
        /// The basket's column; for each fruit its position relative to the basket and its slack (steps
        /// until it lands minus moves needed to catch it); and slacks of pairs of fruits.
        #[default]
        Features = "features",
        /// The basket's column; for each fruit, lowest first, its column, its row and a presence flag.
        /// The policy has to derive the relations itself.
        Positions = "positions",
    }
}

impl Fruit {
    const DEFAULT: Self = Self {
        width: 20,
        height: 15,
        basket: 3,
        max_fruits: 3,
        min_fruits: 1,
        spawn_interval: 5,
        max_steps: 100,
        observation: FruitObservation::Features,
    };

    fn check_settings(&self) -> Result<(), OutOfRange> {
        let Self { width, basket, max_fruits, min_fruits, .. } = self;
        let within = |what: &str, max: &u32| format!("1 to {max} ({what})");
        ensure(basket <= width, "basket", basket, within("fruit.width", width))?;
        let range = within("fruit.max_fruits", max_fruits);
        ensure(min_fruits <= max_fruits, "min_fruits", min_fruits, range)
    }

    /// Number of columns of the basket to the left of its centre.
    fn num_left_columns(&self) -> u32 {
        self.basket / 2
    }

    /// Maximum number of fruits that land in one step. Fruits share a row only if they appeared
    /// together.
    fn max_landings(&self) -> usize {
        self.min_fruits as usize
    }
}

impl Env for Fruit {
    const NAME: &'static str = "fruit";
    const COMMON_PARAMETERS: Option<Self> = Some(Self::DEFAULT);
    const SCORE_IS_REWARD: bool = true;

    /// Wide grids need longer training, and raw positions need longer still and a larger network.
    fn training_defaults(&self) -> &'static [&'static str] {
        const USUAL: &str = include_str!("defaults.toml");
        match self.observation {
            FruitObservation::Positions => &[USUAL, include_str!("positions.toml")],
            FruitObservation::Features if self.width > 20 => &[USUAL, include_str!("wide.toml")],
            FruitObservation::Features => &[USUAL],
        }
    }

    fn players(&self) -> Vec<ScriptedPlayer> {
        let game = *self;
        vec![
            ScriptedPlayer::new("lowest-fruit", move |state| players::move_to_lowest(state, &game)),
            ScriptedPlayer::new("planner", move |state| players::plan(state, &game)),
        ]
    }

    /// The basket's column, four features per fruit (lowest first), and one per pair of fruits with at most one other
    /// between them in landing order; or, for positions, the column and three features per fruit. See the
    /// implementation of [`Rules::feature`].
    fn num_features(&self) -> usize {
        let max_fruits = self.max_fruits as usize;
        match self.observation {
            FruitObservation::Features => {
                1 + 4 * max_fruits + max_fruits.saturating_sub(1) + max_fruits.saturating_sub(2)
            }
            FruitObservation::Positions => 1 + 3 * max_fruits,
        }
    }

    /// Left, stay, right.
    fn num_actions(&self) -> usize {
        3
    }

    /// The basket's word and the used words of the queue, two fruits per word.
    fn used_words(&self) -> usize {
        1 + (self.max_fruits as usize).div_ceil(2)
    }

    impl_settings!();

    fn max_steps(&self) -> u32 {
        self.max_steps
    }

    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        // Simulated players; the optimum is from value iteration over all 3,565,600 states. These
        // players read the full state, so the observation does not matter.
        let game = Self { observation: FruitObservation::Features, ..*self };
        if game == Self::DEFAULT {
            &[("random", -10.4), ("lowest-fruit", 5.6), ("optimum", 7.750)]
        } else if game == (Self { max_steps: 200, ..Self::DEFAULT }) {
            &[("random", -22.0), ("lowest-fruit", 11.4), ("optimum", 16.045)]
        } else {
            &[]
        }
    }

    fn feature_name(&self, i: usize) -> String {
        let max_fruits = self.max_fruits as usize;
        let Some(i) = i.checked_sub(1) else { return "basket: column".to_string() };
        if self.observation == FruitObservation::Positions {
            return format!("fruit {}: {}", 1 + i / 3, ["column", "row", "there"][i % 3]);
        }
        if let Some(pair) = i.checked_sub(4 * max_fruits) {
            let apart = if pair < max_fruits - 1 { 1 } else { 2 };
            let first = 1 + pair - (apart - 1) * (max_fruits - 1);
            return format!("fruits {first} and {}: slack", first + apart);
        }
        let kind = ["to the right", "height", "slack", "close by"][i % 4];
        format!("fruit {}: {kind}", 1 + i / 4)
    }

    fn action_name(&self, a: usize) -> String {
        ["left", "stay", "right"][a].to_string()
    }
}

crate::packed_state! {
    /// State of the fruit catcher.
    ///
    /// Fruits form a queue, lowest first, which is also their order of appearance. A fruit takes 16
    /// bits, its column and the tick of its appearance; unused slots are zero. Falling thus costs
    /// nothing, and the next fruit to land is always the first.
    pub struct FruitState {
        /// Column of the basket's centre.
        pub basket: Bits<8>,
        /// Number of fruits in the queue.
        pub count: Bits<8>,
        /// Steps since the start, modulo 256.
        pub tick: Bits<8>,
        /// Tick at which the newest fruit appeared.
        pub newest: Bits<8>,
        /// Fruits 0 and 1.
        pub fruits01: u32,
        /// Fruits 2 and 3.
        pub fruits23: u32,
        /// Fruits 4 and 5.
        pub fruits45: u32,
        /// Fruits 6 and 7.
        pub fruits67: u32,
    }
}

#[cube]
impl FruitState {
    /// Slot `i` of the queue: column in the lower 8 bits, tick in the upper.
    #[inline(always)]
    fn slot(&self, #[comptime] i: usize) -> u32 {
        let pair = if comptime!(i / 2 == 0) {
            self.fruits01
        } else if comptime!(i / 2 == 1) {
            self.fruits23
        } else if comptime!(i / 2 == 2) {
            self.fruits45
        } else {
            self.fruits67
        };
        (pair >> comptime!(16 * (i as u32 % 2))) & 0xffff
    }

    /// Whether slot `i` holds a fruit.
    #[inline(always)]
    pub fn has_fruit(&self, #[comptime] i: usize) -> bool {
        comptime!(i as u32) < self.count
    }

    /// Column of fruit `i`; 0 is the lowest fruit.
    #[inline(always)]
    pub fn column(&self, #[comptime] i: usize) -> u32 {
        self.slot(i) & 0xff
    }

    /// Row of fruit `i`, counted from the top.
    #[inline(always)]
    pub fn row(&self, #[comptime] i: usize) -> u32 {
        (self.tick + 256 - (self.slot(i) >> 8)) & 0xff
    }

    /// Removes the lowest fruit.
    #[inline(always)]
    fn pop(&mut self) {
        self.fruits01 = (self.fruits01 >> 16) | (self.fruits23 << 16);
        self.fruits23 = (self.fruits23 >> 16) | (self.fruits45 << 16);
        self.fruits45 = (self.fruits45 >> 16) | (self.fruits67 << 16);
        self.fruits67 >>= 16;
        self.count -= 1;
    }

    /// Adds a fruit in the top row.
    #[inline(always)]
    fn push(&mut self, column: u32) {
        let fruit = (column | (self.tick << 8)) << ((self.count & 1) * 16);
        let pair = self.count >> 1;
        self.fruits01 |= select(pair == 0, fruit, 0);
        self.fruits23 |= select(pair == 1, fruit, 0);
        self.fruits45 |= select(pair == 2, fruit, 0);
        self.fruits67 |= select(pair == 3, fruit, 0);
        self.newest = self.tick;
        self.count += 1;
    }
}

/// Maximum of two numbers.
#[cube]
#[inline(always)]
fn maximum(a: f32, b: f32) -> f32 {
    select(a > b, a, b)
}

/// `max(x, 0)`.
#[cube]
#[inline(always)]
fn positive_part(x: f32) -> f32 {
    maximum(x, 0.0f32)
}

/// `x` clipped to `-limit..=limit`.
#[cube]
#[inline(always)]
fn clip(x: f32, limit: f32) -> f32 {
    let low = maximum(x, -limit);
    select(low > limit, limit, low)
}

/// Feature `i` of [`FruitObservation::Features`]; see the implementation of [`Rules::feature`].
#[cube]
#[inline(always)]
fn relative_feature(state: &FruitState, #[comptime] i: usize, #[comptime] game: Fruit) -> f32 {
    let max_fruits = comptime!(game.max_fruits as usize);
    let pairs_start = comptime!(1 + 4 * max_fruits);
    if comptime!(i == 0) {
        state.basket as f32 * comptime!(2.0 / (game.width - 1) as f32) - 1.0f32
    } else if comptime!(i < pairs_start) {
        let fruit = comptime!((i - 1) / 4);
        let kind = comptime!((i - 1) % 4);
        let right = state.column(fruit) as f32 - state.basket as f32;
        let height = comptime!((game.height - 1) as f32) - state.row(fruit) as f32;
        let value = if comptime!(kind == 0) {
            right * comptime!(2.0 / game.width as f32)
        } else if comptime!(kind == 1) {
            height * comptime!(1.0 / (game.height - 1) as f32)
        } else if comptime!(kind == 2) {
            // Moves until the nearest cell of the basket is under the fruit.
            let from_left = right - comptime!((game.basket - game.num_left_columns() - 1) as f32);
            let from_right = -right - comptime!(game.num_left_columns() as f32);
            clip(height - positive_part(maximum(from_left, from_right)), 2.0f32) * 0.5f32
        } else {
            clip(right, 3.0f32) * comptime!(1.0f32 / 3.0)
        };
        select(state.has_fruit(fruit), value, 0.0f32)
    } else {
        let pair = comptime!(i - pairs_start);
        let first = comptime!(if pair < max_fruits - 1 { pair } else { pair + 1 - max_fruits });
        let second = comptime!(if pair < max_fruits - 1 { first + 1 } else { first + 2 });
        let right = state.column(second) as f32 - state.column(first) as f32;
        let time = state.row(first) as f32 - state.row(second) as f32;
        let moves = positive_part(maximum(right, -right) - comptime!((game.basket - 1) as f32));
        let value = clip(time - moves, 2.0f32) * 0.5f32;
        select(state.has_fruit(second), value, 0.0f32)
    }
}

/// Feature `i` of [`FruitObservation::Positions`].
#[cube]
#[inline(always)]
fn position_feature(state: &FruitState, #[comptime] i: usize, #[comptime] game: Fruit) -> f32 {
    let column_scale = comptime!(2.0 / (game.width - 1) as f32);
    if comptime!(i == 0) {
        state.basket as f32 * column_scale - 1.0f32
    } else {
        let fruit = comptime!((i - 1) / 3);
        let value = if comptime!((i - 1).is_multiple_of(3)) {
            state.column(fruit) as f32 * column_scale - 1.0f32
        } else if comptime!((i - 1) % 3 == 1) {
            state.row(fruit) as f32 * comptime!(2.0 / (game.height - 1) as f32) - 1.0f32
        } else {
            1.0f32.runtime()
        };
        select(state.has_fruit(fruit), value, 0.0f32)
    }
}

#[cube]
impl Rules for Fruit {
    type State = FruitState;

    #[inline(always)]
    fn reset(state: &mut FruitState, key: u32, #[comptime] game: Self) {
        // The initial basket lies within the grid, at least two cells from the right edge:
        // `left..=width - basket`, 17 columns by default.
        let starts = comptime!(
            (game.width + 1).saturating_sub(game.basket + game.num_left_columns()).max(1)
        );
        state.basket = below(draw(key, 0), starts) + comptime!(game.num_left_columns());
        state.count = 0;
        state.tick = 0;
        state.fruits01 = 0;
        state.fruits23 = 0;
        state.fruits45 = 0;
        state.fruits67 = 0;
        state.push(below(draw(key, 1), game.width));
    }

    /// Moves the basket, scores the fruits that land, and lets new ones begin to fall.
    #[inline(always)]
    fn step(state: &mut FruitState, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        // Actions 0, 1, 2 move by -1, 0, 1; one is added to avoid unsigned underflow.
        let moved = select(state.basket + action < 1, 1, state.basket + action);
        state.basket = select(moved > game.width, game.width, moved) - 1;
        state.tick = (state.tick + 1) & 0xff;

        let mut reward = 0.0f32.runtime();
        let mut landed = false.runtime();
        #[unroll]
        for _ in 0..comptime!(game.max_landings()) {
            if state.count > 0 && state.row(0usize) == comptime!(game.height - 1) {
                let offset = state.column(0usize) + comptime!(game.num_left_columns());
                let caught = offset >= state.basket && offset < state.basket + game.basket;
                reward += select(caught, 1.0f32, -1.0f32);
                landed = true;
                state.pop();
            }
        }

        // The lowest bit of the key is the coin flip; columns use the upper 24 bits.
        let fallen = (state.tick + 256 - state.newest) & 0xff;
        let may_spawn = state.count == 0 || fallen >= game.spawn_interval;
        let adds_one = key & 1 == 1 && !landed && state.count < game.max_fruits;
        let wanted = select(
            state.count < game.min_fruits,
            game.min_fruits,
            select(adds_one, state.count + 1, state.count),
        );
        let num_spawned = select(may_spawn, wanted - state.count, 0);
        #[unroll]
        for k in 0..comptime!(game.min_fruits) {
            if k < num_spawned {
                let bits = if comptime!(k == 0) { key } else { draw(key, k) };
                state.push(below(bits, game.width));
            }
        }
        Outcome { reward, score: reward, terminated: false.runtime() }
    }

    /// Feature 0 is the basket's column, scaled to -1..=1. Fruit `i` has four features, from `1 + 4 i` on:
    ///
    /// - its offset to the right of the basket, in half grid widths (within +-2);
    /// - its height;
    /// - its slack: the steps until it lands minus the moves needed to catch it;
    /// - its offset again, clipped to +-3 cells and scaled to +-1.
    ///
    /// The remaining features are slacks of pairs: the steps between two landings minus the moves between them. A
    /// negative slack means that a fruit, or a second one after the first, cannot be caught. Slack is clipped to +-2
    /// and halved. Features of missing fruits are 0.
    ///
    /// With [`FruitObservation::Positions`], feature 0 is the same and fruit `i` has features `1 +
    /// 3 i` onwards: its column and row, each scaled to -1..=1, and 1 if it exists.
    #[inline(always)]
    fn feature(state: &FruitState, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(game.observation == FruitObservation::Positions) {
            position_feature(state, i, game)
        } else {
            relative_feature(state, i, game)
        }
    }
}
