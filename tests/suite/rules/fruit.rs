//! The fruit catcher against a simulator with positions in plain vectors.

use super::{NEXT_LEVEL, START, assert_packs, episode, features};
use crate::support::fruit;
use grove::env::{Env, Fruit, FruitObservation, FruitState, initial_state, step_with_auto_reset};
use grove::rng::{Stream, below, draw};

/// The fruit catcher with positions in plain vectors.
struct SlowFruit {
    game: Fruit,
    level: u32,
    time: u32,
    score: f64,
    basket: i64,
    /// Column and row, in order of appearance.
    fruits: Vec<(i64, i64)>,
}

/// Result of a step of [`SlowFruit`].
#[derive(Default)]
struct Step {
    caught: i64,
    missed: i64,
    spawned: i64,
    ended: bool,
    score: f64,
}

impl SlowFruit {
    fn new(game: Fruit, level: u32) -> Self {
        let key = draw(level, START);
        let (width, basket) = (i64::from(game.width), i64::from(game.basket));
        let first = basket / 2;
        let starts = (width - basket - first + 1).max(1);
        Self {
            game,
            level,
            time: 0,
            score: 0.0,
            basket: first + i64::from(below(draw(key, 0), starts as u32)),
            fruits: vec![(i64::from(below(draw(key, 1), game.width)), 0)],
        }
    }

    /// Whether a fruit that lands in this column is caught.
    fn covers(&self, column: i64) -> bool {
        let first = self.basket - i64::from(self.game.basket) / 2;
        (first..first + i64::from(self.game.basket)).contains(&column)
    }

    fn play(&mut self, action: u32) -> Step {
        let game = self.game;
        let key = draw(self.level, self.time);
        let mut step = Step::default();
        self.basket = (self.basket + i64::from(action) - 1).clamp(0, i64::from(game.width) - 1);
        for fruit in &mut self.fruits {
            fruit.1 += 1;
        }
        let bottom = i64::from(game.height) - 1;
        for &(column, _) in self.fruits.iter().filter(|f| f.1 == bottom) {
            if self.covers(column) {
                step.caught += 1;
            } else {
                step.missed += 1;
            }
        }
        self.fruits.retain(|f| f.1 != bottom);

        let left = self.fruits.len() as u32;
        let top = self.fruits.iter().map(|f| f.1).min();
        let clear = top.is_none_or(|row| row >= i64::from(game.spawn_interval));
        let landed = step.caught + step.missed > 0;
        let new = if !clear {
            0
        } else if left < game.min_fruits {
            game.min_fruits - left
        } else {
            u32::from(!landed && left < game.max_fruits && key % 2 == 1)
        };
        for k in 0..new {
            let bits = if k == 0 { key } else { draw(key, k) };
            self.fruits.push((i64::from(below(bits, game.width)), 0));
        }

        step.spawned = i64::from(new);
        self.time += 1;
        self.score += (step.caught - step.missed) as f64;
        if self.time == game.max_steps {
            step.ended = true;
            step.score = self.score;
            *self = Self::new(game, draw(self.level, NEXT_LEVEL));
        }
        step
    }

    /// Moves needed from `position` to catch in `column`.
    fn moves(&self, position: i64, column: i64) -> i64 {
        let first = i64::from(self.game.basket) / 2;
        let last = i64::from(self.game.basket) - 1 - first;
        let catches = |p: i64| (p - first..=p + last).contains(&column);
        (0..).find(|k| catches(position - k) || catches(position + k)).unwrap()
    }

    /// Features as documented for the fruit catcher.
    fn features(&self) -> Vec<f64> {
        match self.game.observation {
            FruitObservation::Features => self.relations(),
            FruitObservation::Positions => self.positions(),
        }
    }

    fn positions(&self) -> Vec<f64> {
        let scaled = |at: i64, count: u32| at as f64 / (f64::from(count) - 1.0) * 2.0 - 1.0;
        let mut features = vec![scaled(self.basket, self.game.width)];
        for i in 0..self.game.max_fruits as usize {
            features.extend(self.fruits.get(i).map_or([0.0; 3], |&(column, row)| {
                [scaled(column, self.game.width), scaled(row, self.game.height), 1.0]
            }));
        }
        features
    }

    fn relations(&self) -> Vec<f64> {
        let width = f64::from(self.game.width);
        let bottom = i64::from(self.game.height) - 1;
        let slack = |time: i64, moves: i64| (time - moves).clamp(-2, 2) as f64 / 2.0;
        let places = self.game.max_fruits as usize;
        let mut features = vec![2.0 * self.basket as f64 / (width - 1.0) - 1.0];
        for i in 0..places {
            features.extend(self.fruits.get(i).map_or([0.0; 4], |&(column, row)| {
                let right = column - self.basket;
                let time = bottom - row;
                [
                    right as f64 / (width / 2.0),
                    time as f64 / bottom as f64,
                    slack(time, self.moves(self.basket, column)),
                    right.clamp(-3, 3) as f64 / 3.0,
                ]
            }));
        }
        for apart in [1, 2] {
            for i in 0..places.saturating_sub(apart) {
                features.push(self.fruits.get(i + apart).map_or(0.0, |&(column, row)| {
                    // Minimum number of moves between a position that catches the first and one
                    // that catches the second.
                    let (first, first_row) = self.fruits[i];
                    let reach = i64::from(self.game.basket);
                    let moves = (first - reach..=first + reach)
                        .filter(|&p| self.moves(p, first) == 0)
                        .map(|p| self.moves(p, column))
                        .min();
                    slack(first_row - row, moves.unwrap())
                }));
            }
        }
        features
    }

    fn assert_is(&self, state: &FruitState, context: &str) {
        let found: Vec<(i64, i64)> = (0..state.count as usize)
            .map(|i| (i64::from(state.column(i)), i64::from(state.row(i))))
            .collect();
        assert_eq!(found, self.fruits, "{context}");
        assert_eq!(i64::from(state.basket), self.basket, "{context}");
        for i in 0..8 {
            assert_eq!(state.has_fruit(i), i < self.fruits.len(), "{context}");
        }
        let got = features(state, self.game);
        assert_eq!(got.len(), self.game.num_features());
        for (got, want) in got.iter().zip(self.features()) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{context}: {got}, {want}");
            // Distances in half widths reach 2, all other features 1.
            assert!(got.abs() < 2.0, "{context}: feature {got}");
        }
    }
}

/// Parameter sets that cover every limit, odd and even.
fn fruit_games() -> Vec<Fruit> {
    let default = Fruit::default();
    let odd = fruit([31, 12, default.basket, 8, 2, 1, default.max_steps]);
    vec![
        default,
        Fruit { max_steps: 37, ..default },
        Fruit { observation: FruitObservation::Positions, ..default },
        fruit([default.width, default.height, 4, 5, 2, 2, 211]),
        Fruit { max_fruits: 8, min_fruits: 3, spawn_interval: 1, ..default },
        Fruit { width: 7, basket: 7, max_fruits: 2, ..default },
        Fruit { observation: FruitObservation::Positions, ..odd },
        fruit([3, 2, 2, 4, 4, 1, 50]),
        fruit([255, 255, 101, 8, 8, 1, 1000]),
        fruit([255, 40, 9, 7, 1, 3, 700]),
        fruit([11, 255, 5, 6, 2, 255, 900]),
        fruit([16, 9, 6, 1, 1, 4, 1]),
    ]
}

#[test]
fn fruit_is_the_slow_simulator_step_for_step() {
    for (number, game) in fruit_games().into_iter().enumerate() {
        game.validate().unwrap();
        let key = draw(11, number as u32);
        let (mut caught, mut missed, mut together, mut ends) = (0, 0, 0, 0);
        for start in 0..6 {
            let level = draw(key, start);
            let mut slow = SlowFruit::new(game, level);
            let mut state = initial_state::<Fruit>(level, game);
            let mut episode = episode(level);
            for t in 0..800 {
                let context = format!("{game:?}, level {level}, step {t}");
                slow.assert_is(&state, &context);
                assert_packs(&state, game);
                assert_eq!((episode.level, episode.time), (slow.level, slow.time));
                // Long runs of one action reach the edges, where the basket is clamped.
                let action =
                    if (t / 60) % 3 == 0 { draw(level, t) % 3 } else { (t / 60) % 3 * 2 - 2 };
                let step = slow.play(action);
                let result = step_with_auto_reset::<Fruit>(&mut state, &mut episode, action, game);
                let reward = (step.caught - step.missed) as f32;
                assert_eq!(result.reward, reward, "{context}");
                assert_eq!(result.has_ended(), step.ended, "{context}");
                assert_eq!(f64::from(result.episode_score), step.score, "{context}");
                caught += step.caught;
                missed += step.missed;
                together = together.max(step.spawned);
                ends += i64::from(step.ended);
            }
        }
        // The test covers what the parameters imply; a fruit lands after height - 1 steps.
        let lands = game.max_steps >= game.height;
        assert_eq!(caught > 0, lands, "{game:?}");
        assert_eq!(missed > 0, lands, "{game:?}");
        assert!(together >= i64::from(game.min_fruits) - 1, "{game:?}");
        assert_eq!(ends, 6 * (800 / i64::from(game.max_steps)), "{game:?}");
    }
}

/// Mean and standard error of a player's score over many levels. The player sees the state and a
/// draw.
fn fruit_score(game: Fruit, player: fn(&FruitState, u32) -> u32) -> (f64, f64) {
    let episodes = 20_000;
    let levels = Stream::Evaluation.key(99);
    let scores: Vec<f64> = (0..episodes)
        .map(|i| {
            let level = draw(levels, i);
            let mut state = initial_state::<Fruit>(level, game);
            let mut episode = episode(level);
            loop {
                let bits = draw(draw(level, 0x5eed), episode.time);
                let action = player(&state, bits);
                let result = step_with_auto_reset::<Fruit>(&mut state, &mut episode, action, game);
                if result.has_ended() {
                    break f64::from(result.episode_score);
                }
            }
        })
        .collect();
    let n = f64::from(episodes);
    let mean = scores.iter().sum::<f64>() / n;
    let squares: f64 = scores.iter().map(|s| (s - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

fn stay(_: &FruitState, _: u32) -> u32 {
    1
}

fn random(_: &FruitState, bits: u32) -> u32 {
    below(bits, 3)
}

/// Moves towards the lowest fruit and stays once it is within reach.
fn chase_lowest_fruit(state: &FruitState, _: u32) -> u32 {
    let offset = i64::from(state.column(0)) - i64::from(state.basket);
    if state.count == 0 || offset.abs() <= 1 {
        1
    } else if offset < 0 {
        0
    } else {
        2
    }
}

#[test]
fn simple_players_of_fruit_score_what_is_known() {
    for (max_steps, expected) in [(100, [-10.3, -10.4, 5.6]), (200, [-21.6, -22.0, 11.4])] {
        let game = Fruit { max_steps, ..Fruit::default() };
        for (player, expected) in [stay, random, chase_lowest_fruit].into_iter().zip(expected) {
            let (mean, error) = fruit_score(game, player);
            assert!(
                (mean - expected).abs() < 4.0 * error + 0.1,
                "{max_steps} steps: {mean} +- {error} instead of {expected}"
            );
        }
        let references: Vec<f64> = game.reference_scores().iter().map(|r| r.1).collect();
        assert_eq!(references[..2], expected[1..], "the game's own references");
    }
}
