//! Rules of the games against slow simulators written from their descriptions.

mod breakout;
mod fruit;
mod recall;

use crate::support::for_every_game;
use grove::env::{
    Breakout, BreakoutActions, BreakoutObservation, CartPole, CartPoleState, Catch,
    CatchObservation, CatchState, Env, Episode, Fruit, FruitObservation, PackedState, Recall,
    Rules, draw_legal_action, initial_state, num_words, step_with_auto_reset,
};
use grove::rng::{below, draw, uniform};

/// Counter under a level's key from which the initial state is drawn.
const START: u32 = 0xffff_fffe;
/// Counter under a level's key from which the next level's key is drawn.
const NEXT_LEVEL: u32 = 0xffff_ffff;

/// A new episode of a level.
fn episode(level: u32) -> Episode {
    Episode { level, time: 0, score: 0.0 }
}

/// All features of a state.
fn features<G: Rules>(state: &G::State, game: G) -> Vec<f32> {
    (0..game.num_features()).map(|i| G::feature(state, i, game)).collect()
}

/// Checks the round trip through packed words, and that unused words are zero.
fn assert_packs<G: Rules<State: PartialEq>>(state: &G::State, game: G) {
    let words = state.words();
    assert_eq!(G::State::unpack(|w| words[w]), *state, "{game:?}");
    assert!(words[num_words(game)..].iter().all(|word| *word == 0), "{game:?}: {words:?}");
}

#[test]
fn catch_follows_bsuite() {
    for (rows, columns) in [(10, 5), (2, 1), (3, 8), (256, 256), (7, 4)] {
        let game = Catch { rows, columns, ..Catch::default() };
        game.validate().unwrap();
        let mut rewards = Vec::new();
        let mut level = draw(5, rows);
        let mut state = initial_state::<Catch>(level, game);
        let mut counted = episode(level);
        for number in 0..60 {
            // bsuite: a ball in a random column of the top row, the paddle in the middle.
            let ball_x = i64::from(below(draw(level, START), columns));
            let (mut ball_y, mut paddle_x) = (0, i64::from(columns / 2));
            loop {
                let expected = CatchState {
                    ball_column: ball_x as u32,
                    ball_row: ball_y,
                    paddle: paddle_x as u32,
                };
                assert_eq!(state, expected, "{game:?}");
                assert_packs(&state, game);
                let scale = |x: f64, n: u32| 2.0 * x / (f64::from(n.max(2)) - 1.0);
                let want = [
                    scale(ball_x as f64, columns) - 1.0,
                    scale(f64::from(ball_y), rows) - 1.0,
                    scale(paddle_x as f64, columns) - 1.0,
                    scale((ball_x - paddle_x) as f64, columns) / 2.0,
                ];
                for (got, want) in features(&state, game).into_iter().zip(want) {
                    assert!((f64::from(got) - want).abs() < 1e-6, "{game:?}");
                    assert!(got.abs() <= 1.0 + 1e-6, "{game:?}: feature {got}");
                }

                // Every third episode follows the ball; the others are random.
                let action = if number % 3 == 0 {
                    (1 + (ball_x - paddle_x).signum()) as u32
                } else {
                    draw(level, 77 + ball_y) % 3
                };
                paddle_x = (paddle_x + i64::from(action) - 1).clamp(0, i64::from(columns) - 1);
                ball_y += 1;
                let done = ball_y == rows - 1;
                let reward = match (done, paddle_x == ball_x) {
                    (false, _) => 0.0,
                    (true, true) => 1.0,
                    (true, false) => -1.0,
                };
                let result = step_with_auto_reset::<Catch>(&mut state, &mut counted, action, game);
                assert_eq!((result.reward, result.has_ended()), (reward, done), "{game:?}");
                assert_eq!(result.episode_score, reward, "{game:?}");
                if done {
                    rewards.push(reward);
                    break;
                }
            }
            level = draw(level, NEXT_LEVEL);
        }
        assert!(rewards.contains(&1.0), "{game:?}");
        assert!(columns == 1 || rewards.contains(&-1.0), "{game:?}");
    }
}

#[test]
fn catch_shows_its_board() {
    let game = Catch { rows: 4, columns: 5, observation: CatchObservation::Board };
    let picture = |ball_column, ball_row, paddle| -> Vec<String> {
        let cells = features(&CatchState { ball_column, ball_row, paddle }, game);
        assert!(cells.iter().all(|cell| [0.0, 1.0].contains(cell)), "{cells:?}");
        let row = |row: &[f32]| row.iter().map(|c| if *c == 1.0 { 'o' } else { '.' }).collect();
        cells.chunks(5).map(row).collect()
    };
    assert_eq!(picture(1, 0, 3), [".o...", ".....", ".....", "...o."]);
    assert_eq!(picture(4, 2, 0), [".....", ".....", "....o", "o...."]);
    assert_eq!(picture(2, 3, 4), [".....", ".....", ".....", "..o.o"]);
    assert_eq!(picture(2, 3, 2), [".....", ".....", ".....", "..o.."], "caught");
}

#[test]
fn a_board_of_catch_has_its_limit() {
    let largest = Catch { rows: 2, columns: 256, observation: CatchObservation::Board };
    assert_eq!(largest.num_features(), 512);
    largest.validate().unwrap();
    let message = Catch { rows: 3, ..largest }.validate().unwrap_err();
    assert!(message.contains("768") && message.contains("catch.observation"), "{message}");
    Catch { rows: 256, observation: CatchObservation::Features, ..largest }.validate().unwrap();
}

/// State of Gymnasium's CartPole-v1: position, velocity, angle, angular velocity.
type Cart = [f64; 4];

/// One step of Gymnasium's CartPole-v1 with Euler kinematics; true if the episode terminates.
fn gymnasium_step([x, x_dot, theta, theta_dot]: Cart, action: u32) -> (Cart, bool) {
    let (gravity, masscart, masspole, length, force_mag, tau) = (9.8, 1.0, 0.1, 0.5, 10.0, 0.02);
    let total_mass = masspole + masscart;
    let polemass_length = masspole * length;
    let force = if action == 1 { force_mag } else { -force_mag };
    let (sintheta, costheta) = theta.sin_cos();
    let temp = (force + polemass_length * theta_dot * theta_dot * sintheta) / total_mass;
    let thetaacc = (gravity * sintheta - costheta * temp)
        / (length * (4.0 / 3.0 - masspole * costheta * costheta / total_mass));
    let xacc = temp - polemass_length * thetaacc * costheta / total_mass;
    let next =
        [x + tau * x_dot, x_dot + tau * xacc, theta + tau * theta_dot, theta_dot + tau * thetaacc];
    (next, cart_margin(next) < 0.0)
}

/// Distance to Gymnasium's limits; negative outside.
fn cart_margin([x, _, theta, _]: Cart) -> f64 {
    let theta_limit = 12.0 * 2.0 * std::f64::consts::PI / 360.0;
    (2.4 - x.abs()).min(theta_limit - theta.abs())
}

fn cart(state: &CartPoleState) -> Cart {
    [state.x, state.x_dot, state.theta, state.theta_dot].map(f64::from)
}

/// Start of a level: each component uniform in [-0.05, 0.05).
fn cart_start(level: u32) -> Cart {
    let key = draw(level, START);
    std::array::from_fn(|i| f64::from(uniform(draw(key, i as u32))) * 0.1 - 0.05)
}

fn assert_cart(got: &CartPoleState, want: Cart, tolerance: f64) {
    for (got, want) in cart(got).into_iter().zip(want) {
        let error = (got - want).abs();
        assert!(error < tolerance * (1.0 + want.abs()), "{got}, not {want}");
    }
}

#[test]
fn cartpole_follows_gymnasium_over_random_episodes() {
    let game = CartPole::default();
    let mut lengths = Vec::new();
    let mut level = 3;
    let mut state = initial_state::<CartPole>(level, game);
    let mut counted = episode(level);
    for _ in 0..300 {
        let mut want = cart_start(level);
        for t in 1.. {
            assert_cart(&state, want, 1e-4);
            assert_packs(&state, game);
            let scales = [2.4, 3.0, 12f64.to_radians(), 3.0];
            for ((got, want), scale) in features(&state, game).into_iter().zip(want).zip(scales) {
                assert!((f64::from(got) - want / scale).abs() < 1e-3);
                assert!(got.abs() < 1.5, "feature {got}");
            }
            let action = draw(level, t) & 1;
            let (next, terminated) = gymnasium_step(want, action);
            assert!(cart_margin(next).abs() > 2e-6, "too close to tell");
            let result = step_with_auto_reset::<CartPole>(&mut state, &mut counted, action, game);
            assert_eq!((result.reward, result.has_ended()), (1.0, terminated));
            if terminated {
                assert_eq!(result.episode_score, t as f32);
                lengths.push(t);
                break;
            }
            want = next;
        }
        level = draw(level, NEXT_LEVEL);
    }
    // Gymnasium's random player lasts 22 steps on average.
    let mean = lengths.iter().sum::<u32>() as f64 / lengths.len() as f64;
    assert!((mean - 22.0).abs() < 3.0, "random player: {mean} steps");
}

#[test]
fn cartpole_steps_and_limits_are_gymnasiums_anywhere() {
    let game = CartPole::default();
    let mut terminations = 0;
    for i in 0..20_000 {
        let at = |k: u32, range: f32| (uniform(draw(draw(8, i), k)) * 2.0 - 1.0) * range;
        let mut state = CartPoleState {
            x: at(0, 2.4),
            x_dot: at(1, 4.0),
            theta: at(2, 0.2094),
            theta_dot: at(3, 4.0),
        };
        let action = i & 1;
        let (next, terminated) = gymnasium_step(cart(&state), action);
        assert_packs(&state, game);
        let outcome = CartPole::step(&mut state, action, 0, game);
        assert_cart(&state, next, 1e-6);
        if cart_margin(next).abs() > 1e-6 {
            assert_eq!(outcome.terminated, terminated, "{state:?}");
        }
        terminations += u32::from(terminated);
    }
    assert!((500..15_000).contains(&terminations), "{terminations}");
}

#[test]
fn cartpole_is_truncated_at_its_last_step() {
    for max_steps in [500, 7, 1] {
        let game = CartPole { max_steps };
        for level in 0..20 {
            let mut state = initial_state::<CartPole>(level, game);
            let mut episode = episode(level);
            for t in 1..=max_steps {
                let [x, x_dot, theta, theta_dot] = cart(&state);
                let lean = x + 2.1 * x_dot + 35.0 * theta + 10.0 * theta_dot;
                let action = u32::from(lean > 0.0);
                let result =
                    step_with_auto_reset::<CartPole>(&mut state, &mut episode, action, game);
                assert_eq!(result.has_ended(), t == max_steps, "level {level}, step {t}");
                let score = if result.has_ended() { max_steps as f32 } else { 0.0 };
                assert_eq!(result.episode_score, score);
            }
            assert_eq!(episode.level, draw(level, NEXT_LEVEL));
            assert_eq!((episode.time, episode.score), (0, 0.0));
            assert_cart(&state, cart_start(episode.level), 1e-6);
        }
    }
}

#[test]
fn parameters_out_of_range_are_rejected_by_name() {
    type Change = fn(&mut Fruit);
    let refused: [(&str, Change); 11] = [
        ("width", |f| f.width = 2),
        ("width", |f| f.width = 256),
        ("height", |f| f.height = 1),
        ("height", |f| f.height = 256),
        ("basket", |f| f.basket = 0),
        ("basket", |f| f.basket = f.width + 1),
        ("max_fruits", |f| f.max_fruits = 9),
        ("min_fruits", |f| f.min_fruits = 0),
        ("min_fruits", |f| f.min_fruits = f.max_fruits + 1),
        ("spawn_interval", |f| f.spawn_interval = 0),
        ("max_steps", |f| f.max_steps = 0),
    ];
    for (name, change) in refused {
        let mut game = Fruit::default();
        change(&mut game);
        let message = game.validate().unwrap_err();
        assert!(message.contains(&format!("fruit.{name}")), "{message}");
    }
    for (name, rows, columns) in
        [("rows", 1, 5), ("rows", 257, 5), ("columns", 5, 0), ("columns", 5, 257)]
    {
        let message = Catch { rows, columns, ..Catch::default() }.validate().unwrap_err();
        assert!(message.contains(&format!("catch.{name}")), "{message}");
    }
    assert!(CartPole { max_steps: 0 }.validate().is_err());
}

/// Mean and standard error of the score of a random player.
fn random_score<G: Rules>(game: G, episodes: u32) -> (f64, f64) {
    let score = |number: u32| {
        let level = draw(77, number);
        let mut state = initial_state::<G>(level, game);
        let mut counted = episode(level);
        loop {
            let bits = draw(draw(level, 0x5eed), counted.time);
            let action = draw_legal_action(&state, bits, game).unwrap();
            let result = step_with_auto_reset::<G>(&mut state, &mut counted, action, game);
            if result.has_ended() {
                break f64::from(result.episode_score);
            }
        }
    };
    let scores: Vec<f64> = (0..episodes).map(score).collect();
    let n = f64::from(episodes);
    let mean = scores.iter().sum::<f64>() / n;
    let squares: f64 = scores.iter().map(|s| (s - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

#[test]
fn random_players_score_what_the_references_say() {
    fn check<G: Rules>(game: G) {
        let (mean, error) = random_score(game, 100_000);
        println!("{game:?}: {mean:.4} +- {error:.4}");
        let references = game.reference_scores();
        let (player, reference) = *references.first().expect("that of the random player");
        assert!(["random", "chance"].contains(&player), "{game:?}: {player}");
        // References have about three digits.
        let tolerance = 4.0 * error + 0.006 * reference.abs();
        assert!((mean - reference).abs() < tolerance, "{game:?}: {mean}, not {reference}");
    }
    for_every_game!(game => check(game));
    check(Breakout { actions: BreakoutActions::Full, ..Breakout::default() });
}

#[test]
fn features_and_actions_have_unique_names() {
    fn assert_unique<G: Env>(game: G) {
        for names in [game.feature_names(), game.action_names()] {
            let distinct: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{game:?}: {names:?}");
        }
    }
    fn check<G: Env>(game: G, first: &str, last: &str) {
        let names = game.feature_names();
        assert_eq!([names[0].as_str(), names[names.len() - 1].as_str()], [first, last], "{game:?}");
        assert_unique(game);
    }
    for_every_game!(game => assert_unique(game));
    let positions = FruitObservation::Positions;
    check(Fruit::default(), "basket: column", "fruits 1 and 3: slack");
    check(Fruit { max_fruits: 1, ..Fruit::default() }, "basket: column", "fruit 1: close by");
    check(Fruit { max_fruits: 8, ..Fruit::default() }, "basket: column", "fruits 6 and 8: slack");
    check(Fruit { observation: positions, ..Fruit::default() }, "basket: column", "fruit 3: there");
    check(Catch::default(), "ball: column", "ball: to the right");
    let board = Catch { rows: 4, columns: 5, observation: CatchObservation::Board };
    check(board, "column 0, row 0", "column 4, row 3");
    check(CartPole::default(), "position", "angular velocity");
    let (first, last) = ("paddle: column 0, row 0", "brick: column 9, row 9");
    check(Breakout::default(), first, last);
    let observation = BreakoutObservation::Features;
    let features = Breakout { observation, actions: BreakoutActions::Full, ..Breakout::default() };
    check(features, "ball: column", "brick: column 9, row 3");
    check(Recall::default(), "light 1", "noise");
}
