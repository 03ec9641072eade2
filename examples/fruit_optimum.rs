//! The best possible mean score of the fruit catcher, by value iteration over all of its states.
//!
//! ```console
//! $ cargo run --release --example fruit_optimum                   # 100 and 200 steps, 3,565,600 states
//! $ cargo run --release --example fruit_optimum -- width=30 spawn_interval=8
//! ```
//!
//! The states and their transitions are found by playing the library's own rules with one key for each
//! thing that chance can do. What is computed is exact but for the rounding of doubles: the value of a
//! state with n steps to go is the best mean over its three moves of the reward and the value with n - 1.

use grove::config::overlay;
use grove::env::{Env, Fruit, FruitState, Rules, new_game};
use grove::rng::{below, draw};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Levels whose starts are looked at: far more than there are starts, which are equally likely.
const LEVELS: u32 = 1 << 18;
/// Stay.
const STAY: u32 = 1;

/// Where the fruits are, apart from the basket: columns and rows in 16 bits each, and how many.
type Fruits = (u128, u32);

/// A game as a Markov decision process. A state is a pair of fruits and a basket's column; the fruits
/// move by themselves, the basket decides on the reward.
pub struct Process {
    width: usize,
    /// Columns where the basket can be after a step from each column.
    reach: Vec<[usize; 3]>,
    number: HashMap<Fruits, u32>,
    /// `rewards[fruits * width + basket]`, the basket being where it is after its move.
    rewards: Vec<i8>,
    /// What follows `fruits` is `outcomes[first[fruits]..first[fruits + 1]]`: fruits and probability.
    first: Vec<usize>,
    outcomes: Vec<(u32, f64)>,
    /// The starts of an episode, each as likely as the others.
    starts: BTreeSet<(u32, u32)>,
}

/// Where a state's fruits are.
pub fn fruits(state: &FruitState) -> Fruits {
    let one = |i: usize| u128::from(state.column(i) | state.row(i) << 8) << (16 * i);
    ((0..state.count as usize).map(one).sum(), state.count)
}

/// A step from `state` with the basket at `basket` after its move: the state after it, and the reward.
fn step(game: Fruit, state: &FruitState, basket: u32, key: u32) -> (FruitState, i8) {
    let mut next = FruitState { basket, ..*state };
    let reward = Fruit::step(&mut next, STAY, key, game).reward;
    (next, reward as i8)
}

impl Process {
    /// All states that the rules lead to.
    ///
    /// # Errors
    /// Parameters that are out of range, or several fruits at a time, of which one key does not decide.
    pub fn new(game: Fruit) -> Result<Self, String> {
        game.validate()?;
        if game.min_fruits > 1 {
            return Err("min_fruits must be 1: several fruits would appear in one step".to_string());
        }
        let width = game.width as usize;
        // The coin is the lowest bit of a key, the column comes from its upper 24.
        let column = |x: u32| (u64::from(x) << 24).div_ceil(u64::from(game.width)) as u32;
        let chance: Vec<u32> = [0, 1]
            .iter()
            .flat_map(|coin| (0..game.width).map(move |x| column(x) << 8 | coin))
            .collect();
        for (i, key) in chance.iter().enumerate() {
            assert_eq!(below(*key, game.width) as usize, i % width);
        }

        let mut process = Self {
            width,
            reach: Vec::new(),
            number: HashMap::new(),
            rewards: Vec::new(),
            first: vec![0],
            outcomes: Vec::new(),
            starts: BTreeSet::new(),
        };
        let mut found: Vec<FruitState> = Vec::new();
        for level in 0..LEVELS {
            let state = new_game::<Fruit>(draw(0, level), game);
            let start = process.enter(&state, &mut found);
            process.starts.insert((start, state.basket));
        }
        process.reach = (0..game.width)
            .map(|basket| {
                [0, 1, 2].map(|action| {
                    let mut state = FruitState { basket, ..found[0] };
                    Fruit::step(&mut state, action, 0, game);
                    state.basket as usize
                })
            })
            .collect();
        // States are found while earlier ones are worked off.
        let mut done = 0;
        while done < found.len() {
            let state = found[done];
            let from = process.outcomes.len();
            for key in &chance {
                let next = process.enter(&step(game, &state, 0, *key).0, &mut found);
                let share = 1.0 / chance.len() as f64;
                match process.outcomes[from..].iter_mut().find(|(number, _)| *number == next) {
                    Some((_, probability)) => *probability += share,
                    None => process.outcomes.push((next, share)),
                }
            }
            process.first.push(process.outcomes.len());
            let rewards = (0..game.width).map(|basket| step(game, &state, basket, 0).1);
            process.rewards.extend(rewards);
            done += 1;
        }
        Ok(process)
    }

    /// The number of a state's fruits, a new one if they are new.
    fn enter(&mut self, state: &FruitState, found: &mut Vec<FruitState>) -> u32 {
        *self.number.entry(fruits(state)).or_insert_with(|| {
            found.push(*state);
            found.len() as u32 - 1
        })
    }

    /// How many states there are.
    pub fn num_states(&self) -> usize {
        self.number.len() * self.width
    }

    /// The probability of these fruits after those, and the reward of a step that ends at `basket`.
    pub fn transition(&self, before: Fruits, after: Fruits, basket: u32) -> (f64, i8) {
        let (before, after) = (self.number[&before] as usize, self.number[&after]);
        let outcomes = &self.outcomes[self.first[before]..self.first[before + 1]];
        let probability = outcomes.iter().find(|(number, _)| *number == after).map_or(0.0, |o| o.1);
        (probability, self.rewards[before * self.width + basket as usize])
    }

    /// How much is open about what follows these fruits, in nats.
    pub fn entropy(&self, before: Fruits) -> f64 {
        let before = self.number[&before] as usize;
        let outcomes = &self.outcomes[self.first[before]..self.first[before + 1]];
        -outcomes.iter().map(|(_, p)| p * p.ln()).sum::<f64>()
    }

    /// The best mean score of an episode of so many steps, over all starts.
    pub fn optimum(&self, steps: u32) -> f64 {
        let mut values = vec![0.0; self.num_states()];
        let mut next = values.clone();
        for _ in 0..steps {
            self.back_up(&values, &mut next);
            std::mem::swap(&mut values, &mut next);
        }
        let at = |(fruits, basket): &(u32, u32)| {
            values[*fruits as usize * self.width + *basket as usize]
        };
        self.starts.iter().map(at).sum::<f64>() / self.starts.len() as f64
    }

    /// Values with one more step to go.
    fn back_up(&self, values: &[f64], to: &mut [f64]) {
        let width = self.width;
        to.par_chunks_mut(width).with_min_len(256).enumerate().for_each(|(fruits, to)| {
            // By the column of the basket after its move.
            let mut moved = [0.0; 256];
            let moved = &mut moved[..width];
            let rewards = &self.rewards[fruits * width..][..width];
            moved.iter_mut().zip(rewards).for_each(|(sum, reward)| *sum = f64::from(*reward));
            for (next, probability) in &self.outcomes[self.first[fruits]..self.first[fruits + 1]] {
                let values = &values[*next as usize * width..][..width];
                moved.iter_mut().zip(values).for_each(|(sum, value)| *sum += probability * value);
            }
            for (best, reach) in to.iter_mut().zip(&self.reach) {
                *best = reach.map(|basket| moved[basket]).into_iter().fold(f64::MIN, f64::max);
            }
        });
    }
}

/// The default game with the settings of the command line, such as `width=10`.
fn game(settings: &[String]) -> Result<Fruit, grove::config::ConfigError> {
    let mut table = overlay::to_table(&Fruit::default());
    overlay::apply(&mut table, settings)?;
    overlay::from_table(table)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings: Vec<String> = std::env::args().skip(1).collect();
    let game = game(&settings)?;
    let started = Instant::now();
    let process = Process::new(game)?;
    println!("{} states, {} starts", process.num_states(), process.starts.len());
    let lengths = if settings.is_empty() { vec![100, 200] } else { vec![game.max_steps] };
    for steps in lengths {
        println!("the optimum of {steps} steps: {:.4}", process.optimum(steps));
    }
    println!("{:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
