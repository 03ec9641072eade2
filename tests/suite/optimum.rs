//! The fruit catcher's optimum: value iteration against exhaustive search, and the published
//! scores.

#[allow(dead_code)]
#[path = "../../examples/fruit_optimum.rs"]
mod fruit_optimum;

use self::fruit_optimum::{Process, fruits};
use crate::support::fruit;
use grove::env::{Env, Episode, Fruit, initial_state, step_with_auto_reset};
use grove::rng::draw;

/// Games small enough for exhaustive search.
const SMALL: [Fruit; 3] =
    [fruit([5, 4, 1, 2, 1, 2, 5]), fruit([4, 5, 2, 2, 1, 1, 5]), fruit([3, 3, 1, 2, 1, 1, 6])];

/// Best mean score of the rest of a game by exhaustive search over moves and chance. Fruits are
/// columns and rows in order of appearance.
fn try_everything(game: &Fruit, basket: i64, fruits: &[(i64, i64)], steps: u32) -> f64 {
    if steps == 0 {
        return 0.0;
    }
    let (width, bottom) = (i64::from(game.width), i64::from(game.height) - 1);
    let left = i64::from(game.basket) / 2;
    let mut best = f64::MIN;
    for shift in [-1, 0, 1] {
        let basket = (basket + shift).clamp(0, width - 1);
        let covered = basket - left..basket - left + i64::from(game.basket);
        let fallen: Vec<_> = fruits.iter().map(|(column, row)| (*column, row + 1)).collect();
        let (landed, kept): (Vec<_>, Vec<_>) = fallen.into_iter().partition(|f| f.1 == bottom);
        let reward: f64 =
            landed.iter().map(|f| if covered.contains(&f.0) { 1.0 } else { -1.0 }).sum();
        let clear = kept.iter().all(|f| f.1 >= i64::from(game.spawn_interval));
        let count = kept.len() as u32;
        let chance = match () {
            () if clear && count < game.min_fruits => 1.0,
            () if clear && count < game.max_fruits && landed.is_empty() => 0.5,
            () => 0.0,
        };
        let mut value = reward;
        if chance < 1.0 {
            value += (1.0 - chance) * try_everything(game, basket, &kept, steps - 1);
        }
        if chance > 0.0 {
            for column in 0..width {
                let mut more = kept.clone();
                more.push((column, 0));
                value += chance / width as f64 * try_everything(game, basket, &more, steps - 1);
            }
        }
        best = best.max(value);
    }
    best
}

#[test]
fn value_iteration_agrees_with_exhaustive_search() {
    for game in SMALL {
        let left = i64::from(game.basket) / 2;
        let (mut sum, mut starts) = (0.0, 0.0);
        for basket in left..=i64::from(game.width - game.basket) {
            for column in 0..i64::from(game.width) {
                sum += try_everything(&game, basket, &[(column, 0)], game.max_steps);
                starts += 1.0;
            }
        }
        let found = Process::new(game).unwrap().optimum(game.max_steps);
        assert!((found - sum / starts).abs() < 1e-9, "{game:?}: {found}, {}", sum / starts);
        assert!(found.abs() > 0.01, "{game:?}: nothing lands");
    }
}

#[test]
fn transitions_are_those_of_games_as_they_are_played() {
    let default = Fruit { max_steps: 1_000_000, ..Fruit::default() };
    for game in [
        Fruit { width: 6, height: 8, spawn_interval: 2, ..default },
        Fruit { width: 5, basket: 2, ..default },
    ] {
        let process = Process::new(game).unwrap();
        let mut state = initial_state::<Fruit>(7, game);
        let mut episode = Episode { level: 7, time: 0, score: 0.0 };
        let (mut surprise, mut expected) = (0.0, 0.0);
        for t in 0..50_000 {
            let before = fruits(&state);
            let result =
                step_with_auto_reset::<Fruit>(&mut state, &mut episode, draw(3, t) % 3, game);
            let (probability, reward) = process.transition(before, fruits(&state), state.basket);
            assert!(probability > 0.0, "{game:?}, step {t}");
            assert_eq!(result.reward, f32::from(reward), "{game:?}, step {t}");
            surprise -= probability.ln();
            expected += process.entropy(before);
        }
        // The mean surprise equals the entropy if the probabilities are correct.
        assert!((surprise / expected - 1.0).abs() < 0.02, "{game:?}: {surprise}, {expected}");
    }
}

#[test]
fn the_reported_optimum_is_exact() {
    let process = Process::new(Fruit::default()).unwrap();
    assert_eq!(process.num_states(), 3_565_600);
    for (max_steps, value) in [(100, 7.7502), (200, 16.0452)] {
        let optimum = process.optimum(max_steps);
        assert!((optimum - value).abs() < 1e-4, "{max_steps} steps: {optimum}");
        let reference =
            Fruit { max_steps, ..Fruit::default() }.reference_scores().last().copied().unwrap();
        assert_eq!(reference.0, "optimum");
        assert!((reference.1 - optimum).abs() < 0.001, "{reference:?}");
    }
}
