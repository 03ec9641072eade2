//! The maximum expected score of the fruit catcher, by value iteration over all states.
//!
//! ```console
//! $ cargo run --release --example fruit_optimum                   # 100 and 200 steps, 3,565,600 states
//! $ cargo run --release --example fruit_optimum -- width=30 spawn_interval=8
//! ```
//!
//! States and transitions are enumerated by running the library's rules with one key per random outcome. The
//! result is exact up to floating-point rounding: the value of a state with n steps to go is the maximum over the
//! three moves of the expected reward plus value with n - 1 steps to go.

use grove::env::{Env, Fruit, FruitState, Rules, initial_state};
use grove::rng::{below, draw};
use grove::settings::overlay;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Number of levels that are sampled to find all initial states, which are equally likely.
const LEVELS: u32 = 1 << 18;
/// Stay.
const STAY: u32 = 1;

/// The fruits without the basket: columns and rows in 16 bits each, and their number.
type Fruits = (u128, u32);

/// The game as a Markov decision process. A state consists of the fruits and the basket's column. The fruits
/// evolve independently of the basket, which determines the reward.
pub struct Process {
    width: usize,
    /// Columns that the basket can reach in one step from each column.
    reach: Vec<[usize; 3]>,
    number: HashMap<Fruits, u32>,
    /// `rewards[fruits * width + basket]`, with the basket's column after its move.
    rewards: Vec<i8>,
    /// Successors of `fruits`, with probabilities: `outcomes[first[fruits]..first[fruits + 1]]`.
    first: Vec<usize>,
    outcomes: Vec<(u32, f64)>,
    /// The equally likely initial states.
    starts: BTreeSet<(u32, u32)>,
}

/// The fruits of a state.
pub fn fruits(state: &FruitState) -> Fruits {
    let one = |i: usize| u128::from(state.column(i) | state.row(i) << 8) << (16 * i);
    ((0..state.count as usize).map(one).sum(), state.count)
}

/// Steps from `state` with the basket at `basket` after its move. Returns the next state and the reward.
fn step(game: Fruit, state: &FruitState, basket: u32, key: u32) -> (FruitState, i8) {
    let mut next = FruitState { basket, ..*state };
    let reward = Fruit::step(&mut next, STAY, key, game).reward;
    (next, reward as i8)
}

impl Process {
    /// Enumerates all reachable states.
    ///
    /// # Errors
    /// If a parameter is out of range, or several fruits spawn at a time, which one key cannot enumerate.
    pub fn new(game: Fruit) -> Result<Self, String> {
        game.validate()?;
        if game.min_fruits > 1 {
            return Err("min_fruits must be 1: several fruits would appear in one step".to_string());
        }
        let width = game.width as usize;
        // A key's lowest bit decides the coin flip, its upper 24 bits the column.
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
            let state = initial_state::<Fruit>(draw(0, level), game);
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
        // Breadth-first search: new states are appended while earlier ones are expanded.
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

    /// Returns the index of a state's fruits, adding them if they are new.
    fn enter(&mut self, state: &FruitState, found: &mut Vec<FruitState>) -> u32 {
        *self.number.entry(fruits(state)).or_insert_with(|| {
            found.push(*state);
            found.len() as u32 - 1
        })
    }

    /// Number of states.
    pub fn num_states(&self) -> usize {
        self.number.len() * self.width
    }

    /// The probability that `after` follows `before`, and the reward of a step from `before` to `basket`.
    pub fn transition(&self, before: Fruits, after: Fruits, basket: u32) -> (f64, i8) {
        let (before, after) = (self.number[&before] as usize, self.number[&after]);
        let outcomes = &self.outcomes[self.first[before]..self.first[before + 1]];
        let probability = outcomes.iter().find(|(number, _)| *number == after).map_or(0.0, |o| o.1);
        (probability, self.rewards[before * self.width + basket as usize])
    }

    /// Entropy of the successors of `before`, nats.
    pub fn entropy(&self, before: Fruits) -> f64 {
        let before = self.number[&before] as usize;
        let outcomes = &self.outcomes[self.first[before]..self.first[before + 1]];
        -outcomes.iter().map(|(_, p)| p * p.ln()).sum::<f64>()
    }

    /// The maximum expected score of an episode of `steps` steps, over all initial states.
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

    /// Computes the values with one more step to go.
    fn back_up(&self, values: &[f64], to: &mut [f64]) {
        let width = self.width;
        to.par_chunks_mut(width).with_min_len(256).enumerate().for_each(|(fruits, to)| {
            // Indexed by the basket's column after its move.
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

/// The default game, changed by settings of the command line such as `width=10`.
fn game(settings: &[String]) -> Result<Fruit, grove::settings::ConfigError> {
    let mut table = overlay::to_table(&Fruit::default());
    overlay::apply_assignments(&mut table, settings)?;
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
