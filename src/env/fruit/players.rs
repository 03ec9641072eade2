//! Players of the fruit catcher that follow a plan.

use super::{Fruit, FruitState};

/// Moves towards the lowest fruit, and stays where that is within reach.
pub fn to_the_lowest(state: &FruitState, game: &Fruit) -> u32 {
    if state.count == 0 {
        return STAY;
    }
    let (low, high) = game.catching(state.column(0));
    let basket = i64::from(state.basket);
    match () {
        () if basket < low => RIGHT,
        () if basket > high => LEFT,
        () => STAY,
    }
}

/// Plans which of the fruits in sight to catch: as many as can be, and of plans that catch as many the one
/// that ends nearest to the middle, where what comes next is likeliest within reach.
pub fn plan(state: &FruitState, game: &Fruit) -> u32 {
    let fruits: Vec<Sighted> = (0..state.count as usize)
        .map(|i| Sighted {
            steps: i64::from(game.height - 1) - i64::from(state.row(i)),
            catching: game.catching(state.column(i)),
        })
        .collect();
    let last = i64::from(game.width) - 1;
    let value = |action: u32| {
        let at = (i64::from(state.basket) + i64::from(action) - 1).clamp(0, last);
        best_plan(at, &fruits, last)
    };
    // Of equal plans the one that stays, then the one to the left.
    [RIGHT, LEFT, STAY].into_iter().max_by_key(|action| value(*action)).unwrap_or(STAY)
}

const LEFT: u32 = 0;
const STAY: u32 = 1;
const RIGHT: u32 = 2;

impl Fruit {
    /// The first and the last place of the basket that catch what lands in a column.
    fn catching(&self, column: u32) -> (i64, i64) {
        let (column, left) = (i64::from(column), i64::from(self.left()));
        (column - (i64::from(self.basket) - left - 1), column + left)
    }
}

/// A fruit as a plan sees it.
struct Sighted {
    /// Steps until it lands.
    steps: i64,
    /// Where the basket catches it.
    catching: (i64, i64),
}

/// What the best plan is worth to a basket at `at` that has made the first of the steps: fruits that it
/// catches, and then how near to the middle of `0..=last` it may be at their end.
fn best_plan(at: i64, fruits: &[Sighted], last: i64) -> (u32, i64) {
    let plans = (0..1u32 << fruits.len()).filter_map(|chosen| {
        // Where the basket may be, if it catches all that is chosen so far.
        let (mut low, mut high, mut time) = (at, at, 1);
        for (i, fruit) in fruits.iter().enumerate() {
            let moves = fruit.steps - time;
            (low, high, time) = ((low - moves).max(0), (high + moves).min(last), fruit.steps);
            if chosen >> i & 1 == 1 {
                (low, high) = (low.max(fruit.catching.0), high.min(fruit.catching.1));
            }
            if low > high {
                return None;
            }
        }
        let middle = last / 2;
        let away = (low - middle).max(middle - high).max(0);
        Some((chosen.count_ones(), -away))
    });
    plans.max().expect("to catch nothing is always possible")
}
