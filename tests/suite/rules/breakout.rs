//! Breakout against recorded steps of MinAtar's package and a simulator with a board of cells.

use super::{NEXT_LEVEL, START, assert_packs, episode, features};
use grove::env::{
    Breakout, BreakoutActions, BreakoutObservation, BreakoutState, Env, Rules, initial_state,
    step_with_auto_reset,
};
use grove::rng::{below, draw};

/// Output of tests/minatar/play.py: boards, rewards and ends of some episodes.
const BY_THE_PACKAGE: &str = include_str!("../../minatar/breakout.txt");

/// Cells of paddle, ball and trail, and the bricks, decoded from a board.
fn seen(board: &[f32]) -> ([usize; 3], u32) {
    let cells = |channel: usize| -> Vec<usize> {
        let values = board.chunks_exact(4).map(|cell| cell[channel]);
        values.enumerate().filter(|(_, x)| *x == 1.0).map(|(cell, _)| cell).collect()
    };
    assert!(board.iter().all(|x| [0.0, 1.0].contains(x)), "{board:?}");
    let one = |channel: usize| match cells(channel)[..] {
        [cell] => cell,
        ref cells => panic!("channel {channel}: {cells:?}"),
    };
    let bricks = cells(3).iter().map(|cell| 1 << (cell - 10)).sum();
    ([one(0), one(1), one(2)], bricks)
}

/// A start from a side: 0 for left, 1 for right.
fn start(side: u32, game: Breakout) -> BreakoutState {
    let from_side = |level: &u32| below(draw(*level, START), 2) == side;
    initial_state::<Breakout>((0..).find(from_side).unwrap(), game)
}

#[test]
fn breakout_is_minatars() {
    let more = std::env::var("GROVE_MINATAR").ok();
    let text = more.map_or(BY_THE_PACKAGE.to_string(), |path| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    });
    let full = Breakout { actions: BreakoutActions::Full, ..Breakout::default() };
    let minimal = Breakout::default();
    assert_eq!((full.num_actions(), minimal.num_actions()), (6, 3));
    let mut states = [start(0, full); 2];
    let (mut steps, mut episodes, mut rewards, mut ends, mut walls) = (0, 0, 0, 0, 0);
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let at = |i: usize| words[i].parse::<usize>().unwrap();
        if words[0] == "side" {
            states = [start(at(1) as u32, full), start(at(1) as u32, minimal)];
            episodes += 1;
            continue;
        }
        let (action, reward, end) = (at(0), at(1), at(2) == 1);
        // Up, down and fire are no-ops.
        let actions = [action as u32, [0, 1, 0, 2, 0, 0][action]];
        let expected = ([at(3), at(4), at(5)], u32::from_str_radix(words[6], 16).unwrap());
        let before = states[0].bricks.count_ones();
        for ((state, game), action) in states.iter_mut().zip([full, minimal]).zip(actions) {
            let outcome = Breakout::step(state, action, 0, game);
            let got = (outcome.reward, outcome.terminated);
            assert_eq!(got, (reward as f32, end), "line {}", number + 1);
            assert_eq!(seen(&features(state, game)), expected, "line {}", number + 1);
            assert_packs(state, game);
        }
        (steps, rewards) = (steps + 1, rewards + reward);
        ends += usize::from(end);
        walls += usize::from(before == 0 && states[0].bricks.count_ones() == 30);
    }
    println!(
        "{episodes} episodes, {steps} steps, {rewards} bricks, {ends} ends, {walls} new walls"
    );
    assert!(episodes >= 10 && steps >= 500 && rewards >= 30 && ends >= 10 && walls >= 1);
}

/// MinAtar's Breakout as in its source, with a board of cells and signed values.
struct SlowBreakout {
    game: Breakout,
    level: u32,
    time: u32,
    score: f32,
    bricks: [[bool; 10]; 10],
    ball: (i32, i32),
    last: (i32, i32),
    /// Movement of the ball per step to the right and down.
    way: (i32, i32),
    paddle: i32,
    strike: bool,
    last_action: u32,
}

impl SlowBreakout {
    fn new(game: Breakout, level: u32) -> Self {
        let right = below(draw(level, START), 2) == 1;
        let (ball, way) = if right { ((9, 3), (-1, 1)) } else { ((0, 3), (1, 1)) };
        let (paddle, strike, last_action) = (4, false, 0);
        let mut game = Self {
            game,
            level,
            time: 0,
            score: 0.0,
            bricks: [[false; 10]; 10],
            ball,
            last: ball,
            way,
            paddle,
            strike,
            last_action,
        };
        game.build();
        game
    }

    fn build(&mut self) {
        self.bricks[1..4].fill([true; 10]);
    }

    /// Plays a step; returns the reward, whether the episode ended, and its score.
    fn play(&mut self, action: u32) -> (f32, bool, f32) {
        let key = draw(self.level, self.time);
        let repeats = below(draw(key, 0), 100) < self.game.sticky;
        let action = if repeats { self.last_action } else { action };
        self.last_action = action;
        let right = if self.game.actions == BreakoutActions::Full { 3 } else { 2 };
        if action == 1 {
            self.paddle = (self.paddle - 1).max(0);
        } else if action == right {
            self.paddle = (self.paddle + 1).min(9);
        }
        self.last = self.ball;
        let (mut x, mut y) = (self.ball.0 + self.way.0, self.ball.1 + self.way.1);
        let (mut met, mut reward, mut lost) = (false, 0.0, false);
        if !(0..10).contains(&x) {
            x = x.clamp(0, 9);
            self.way.0 = -self.way.0;
        }
        if y < 0 {
            y = 0;
            self.way.1 = 1;
        } else if self.bricks[y as usize][x as usize] {
            met = true;
            if !self.strike {
                reward = 1.0;
                self.bricks[y as usize][x as usize] = false;
                y = self.last.1;
                self.way.1 = -self.way.1;
            }
        } else if y == 9 {
            if !self.bricks.iter().flatten().any(|brick| *brick) {
                self.build();
            }
            if self.paddle == self.ball.0 {
                self.way.1 = -1;
                y = self.last.1;
            } else if self.paddle == x {
                self.way = (-self.way.0, -1);
                y = self.last.1;
            } else {
                lost = true;
            }
        }
        self.strike = met;
        self.ball = (x, y);
        self.time += 1;
        self.score += reward;
        let ended = lost || self.time == self.game.max_steps;
        let score = if ended { self.score } else { 0.0 };
        if ended {
            *self = Self::new(self.game, draw(self.level, NEXT_LEVEL));
        }
        (reward, ended, score)
    }

    /// Features of the state.
    fn features(&self) -> Vec<f32> {
        let ((x, y), bricks) = (self.ball, self.bricks.iter().flatten().map(|b| f32::from(*b)));
        match self.game.observation {
            BreakoutObservation::Board => {
                let is = |at: (i32, i32), cell: usize| f32::from(cell as i32 == at.1 * 10 + at.0);
                let channels = |(cell, brick): (usize, f32)| {
                    [is((self.paddle, 9), cell), is(self.ball, cell), is(self.last, cell), brick]
                };
                bricks.enumerate().flat_map(channels).collect()
            }
            BreakoutObservation::Features => {
                let scale = |x: i32| x as f32 * (2.0 / 9.0) - 1.0;
                let way = [self.way.0 as f32, self.way.1 as f32];
                let to_ball = (x - self.paddle) as f32 / 9.0;
                let strike = f32::from(self.strike);
                let rest = [scale(self.paddle), to_ball, strike];
                let positions = [scale(x), scale(y)].into_iter().chain(way).chain(rest);
                positions.chain(bricks.skip(10).take(30)).collect()
            }
        }
    }

    /// The action that keeps the paddle under the ball.
    fn follow(&self) -> u32 {
        match (self.ball.0 - self.paddle).signum() {
            -1 => 1,
            0 => 0,
            _ => self.game.num_actions() as u32 / 3 + 1,
        }
    }
}

#[test]
fn breakout_is_the_slow_simulator_step_for_step() {
    let default = Breakout::default();
    let observation = BreakoutObservation::Features;
    let actions = BreakoutActions::Full;
    let games = [
        default,
        Breakout { sticky: 10, actions, ..default },
        Breakout { sticky: 35, observation, ..default },
        Breakout { max_steps: 57, observation, actions, ..default },
    ];
    for (number, game) in games.into_iter().enumerate() {
        game.validate().unwrap();
        let (mut bricks, mut ends, mut starts) = (0.0, 0, [false; 2]);
        for start in 0..8 {
            let level = draw(draw(21, number as u32), start);
            let mut slow = SlowBreakout::new(game, level);
            let mut state = initial_state::<Breakout>(level, game);
            let mut counted = episode(level);
            for t in 0..1500 {
                let context = format!("{game:?}, level {level}, step {t}");
                starts[usize::from(slow.way.0 > 0)] |= slow.time == 0;
                assert_eq!((counted.level, counted.time), (slow.level, slow.time), "{context}");
                assert_packs(&state, game);
                for (got, want) in features(&state, game).into_iter().zip(slow.features()) {
                    assert!((got - want).abs() < 1e-6 && got.abs() < 1.001, "{context}");
                }
                // Some games follow the ball with occasional slips; the others are random.
                let bits = draw(level, t);
                let slips = below(bits, 100) < [0, 5, 100, 100][start as usize % 4];
                let random = draw(bits, 1) % game.num_actions() as u32;
                let action = if slips { random } else { slow.follow() };
                let (reward, ended, score) = slow.play(action);
                let result =
                    step_with_auto_reset::<Breakout>(&mut state, &mut counted, action, game);
                assert_eq!((result.reward, result.has_ended()), (reward, ended), "{context}");
                assert_eq!(result.episode_score, score, "{context}");
                bricks += reward;
                ends += u32::from(ended);
            }
        }
        assert!(bricks > 100.0 && ends > 100 && starts == [true; 2], "{game:?}: {bricks}, {ends}");
    }
}

#[test]
fn parameters_of_breakout_out_of_range_are_rejected_by_name() {
    let default = Breakout::default();
    for (name, game) in [
        ("sticky", Breakout { sticky: 100, ..default }),
        ("max_steps", Breakout { max_steps: 0, ..default }),
    ] {
        let message = game.validate().unwrap_err();
        assert!(message.contains(&format!("breakout.{name}")), "{message}");
    }
}
