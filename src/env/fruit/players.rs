//! Scripted players for the fruit catcher.

use super::{Fruit, FruitState};
use std::ops::RangeInclusive;

const LEFT: u32 = 0;
const STAY: u32 = 1;
const RIGHT: u32 = 2;

/// Moves towards the lowest fruit and stays once it is within reach.
pub fn move_to_lowest(state: &FruitState, game: &Fruit) -> u32 {
    if state.count == 0 {
        return STAY;
    }
    let positions = game.catch_positions(state.column(0));
    let basket = i64::from(state.basket);
    if basket < *positions.start() {
        RIGHT
    } else if basket > *positions.end() {
        LEFT
    } else {
        STAY
    }
}

/// Chooses the largest catchable subset of the visible fruits. Ties go to the plan that ends
/// nearest to the middle, from where the next fruits are most likely within reach.
pub fn plan(state: &FruitState, game: &Fruit) -> u32 {
    let fruits: Vec<VisibleFruit> = (0..state.count as usize)
        .map(|i| VisibleFruit {
            steps: i64::from(game.height - 1) - i64::from(state.row(i)),
            catch_positions: game.catch_positions(state.column(i)),
        })
        .collect();
    let last_column = i64::from(game.width) - 1;
    let value = |action: u32| {
        let position = (i64::from(state.basket) + i64::from(action) - 1).clamp(0, last_column);
        best_plan_value(position, &fruits, last_column)
    };
    // `max_by_key` returns the last of equal elements: ties prefer staying, then left.
    [RIGHT, LEFT, STAY].into_iter().max_by_key(|action| value(*action)).unwrap_or(STAY)
}

impl Fruit {
    /// Positions of the basket that catch a fruit in `column`.
    fn catch_positions(&self, column: u32) -> RangeInclusive<i64> {
        let (column, left) = (i64::from(column), i64::from(self.num_left_columns()));
        column - (i64::from(self.basket) - left - 1)..=column + left
    }
}

/// A visible fruit.
struct VisibleFruit {
    /// Steps until it lands.
    steps: i64,
    catch_positions: RangeInclusive<i64>,
}

/// Value of the best plan after a first step to `position`: the number of fruits caught, then the
/// negative distance from the middle of `0..=last_column` at the end.
fn best_plan_value(position: i64, fruits: &[VisibleFruit], last_column: i64) -> (u32, i64) {
    let plans = (0..1u32 << fruits.len()).filter_map(|chosen| {
        // Range of positions that the basket can reach while catching all fruits chosen so far.
        let (mut low, mut high, mut time) = (position, position, 1);
        for (i, fruit) in fruits.iter().enumerate() {
            let moves = fruit.steps - time;
            (low, high, time) =
                ((low - moves).max(0), (high + moves).min(last_column), fruit.steps);
            if chosen >> i & 1 == 1 {
                let positions = &fruit.catch_positions;
                (low, high) = (low.max(*positions.start()), high.min(*positions.end()));
            }
            if low > high {
                return None;
            }
        }
        let middle = last_column / 2;
        let away = (low - middle).max(middle - high).max(0);
        Some((chosen.count_ones(), -away))
    });
    plans.max().expect("to catch nothing is always possible")
}
