//! CartPole: push a cart left or right to balance a pole.
//!
//! Gymnasium's CartPole-v1 (Barto, Sutton & Anderson 1983): the same constants, explicit Euler
//! integration in the same order (positions advance with the old velocities), the same limits, +1
//! per step. Sine and cosine are Taylor polynomials, accurate to f32 rounding over the reachable
//! angles, because GPUs do not guarantee the precision of theirs.

mod look;

use super::{Env, Outcome, Rules, ScriptedPlayer, impl_settings};
use crate::rng::{draw, uniform};
use crate::schema::settings;
use burn::cubecl;
use burn::cubecl::prelude::*;

const GRAVITY: f32 = 9.8;
const MASS_POLE: f32 = 0.1;
const MASS_TOTAL: f32 = 1.1;
/// Half the length of the pole in metres.
const HALF_LENGTH: f32 = 0.5;
/// Magnitude of a push in newtons.
const FORCE: f32 = 10.0;
/// Time step in seconds.
const STEP_SECONDS: f32 = 0.02;
/// Cart position at which the episode ends, in metres.
const X_LIMIT: f32 = 2.4;
/// Pole angle at which the episode ends: 12 degrees, in radians.
const THETA_LIMIT: f32 = 0.209_439_51;

settings! {
    /// Parameters of CartPole.
    pub struct CartPole: Copy, Eq, Hash {
        /// Episode length in steps; 500 in Gymnasium's CartPole-v1.
        max_steps: u32 = 500, in integer(1..=1_000_000);
    }
}

impl Env for CartPole {
    const NAME: &'static str = "cartpole";
    const SCORE_IS_REWARD: bool = true;

    fn training_defaults(&self) -> &'static [&'static str] {
        &[include_str!("defaults.toml")]
    }

    impl_settings!();

    /// `balancer` is a linear controller that keeps the pole upright until truncation.
    fn players(&self) -> Vec<ScriptedPlayer> {
        let balance = |state: &CartPoleState| {
            let CartPoleState { x, x_dot, theta, theta_dot } = *state;
            u32::from(theta + 0.4 * theta_dot + 0.03 * x + 0.08 * x_dot > 0.0)
        };
        vec![ScriptedPlayer::new("balancer", balance)]
    }

    /// Position / 2.4 m, velocity / 3 m/s, angle / 12 degrees, angular velocity / 3 rad/s.
    fn num_features(&self) -> usize {
        4
    }

    /// Push left, push right.
    fn num_actions(&self) -> usize {
        2
    }

    fn max_steps(&self) -> u32 {
        self.max_steps
    }

    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        // The random score is the mean of 100,000 episodes.
        if self.max_steps == 500 { &[("random", 22.3), ("optimum", 500.0)] } else { &[] }
    }

    fn feature_name(&self, i: usize) -> String {
        ["position", "velocity", "angle", "angular velocity"][i].to_string()
    }

    fn action_name(&self, a: usize) -> String {
        ["push left", "push right"][a].to_string()
    }
}

crate::packed_state! {
    /// State of CartPole.
    pub struct CartPoleState {
        /// Position of the cart in metres.
        pub x: f32,
        /// Velocity of the cart in metres per second.
        pub x_dot: f32,
        /// Angle of the pole from the vertical in radians.
        pub theta: f32,
        /// Angular velocity of the pole in radians per second.
        pub theta_dot: f32,
    }
}

/// Sine of a small angle, accurate to f32 rounding for |x| <= 0.5.
#[cube]
fn sin_small(x: f32) -> f32 {
    let y = x * x;
    let high = -1.984_127e-4f32 + y * 2.755_732e-6f32;
    let low = -1.666_666_7e-1f32 + y * (8.333_334e-3f32 + y * high);
    x * (1.0f32 + y * low)
}

/// Cosine of a small angle, accurate to f32 rounding for |x| <= 0.5.
#[cube]
fn cos_small(x: f32) -> f32 {
    let y = x * x;
    let high = -1.388_888_9e-3f32 + y * 2.480_158_7e-5f32;
    1.0f32 + y * (-0.5f32 + y * (4.166_666_8e-2f32 + y * high))
}

#[cube]
impl Rules for CartPole {
    type State = CartPoleState;

    #[inline(always)]
    fn reset(state: &mut CartPoleState, key: u32, #[comptime] _game: Self) {
        state.x = uniform(draw(key, 0)) * 0.1f32 - 0.05f32;
        state.x_dot = uniform(draw(key, 1)) * 0.1f32 - 0.05f32;
        state.theta = uniform(draw(key, 2)) * 0.1f32 - 0.05f32;
        state.theta_dot = uniform(draw(key, 3)) * 0.1f32 - 0.05f32;
    }

    #[inline(always)]
    fn step(state: &mut CartPoleState, action: u32, _key: u32, #[comptime] _game: Self) -> Outcome {
        let force = select(action == 1, FORCE, -FORCE);
        let sin = sin_small(state.theta);
        let cos = cos_small(state.theta);
        let push = (force
            + comptime!(MASS_POLE * HALF_LENGTH) * state.theta_dot * state.theta_dot * sin)
            * comptime!(1.0f32 / MASS_TOTAL);
        let theta_acc = (GRAVITY * sin - cos * push)
            / (comptime!(HALF_LENGTH * 4.0 / 3.0)
                - comptime!(HALF_LENGTH * MASS_POLE / MASS_TOTAL) * cos * cos);
        let x_acc = push - comptime!(MASS_POLE * HALF_LENGTH / MASS_TOTAL) * theta_acc * cos;
        state.x += STEP_SECONDS * state.x_dot;
        state.x_dot += STEP_SECONDS * x_acc;
        state.theta += STEP_SECONDS * state.theta_dot;
        state.theta_dot += STEP_SECONDS * theta_acc;
        let terminated = state.x < -X_LIMIT
            || state.x > X_LIMIT
            || state.theta < -THETA_LIMIT
            || state.theta > THETA_LIMIT;
        let reward = 1.0f32.runtime();
        Outcome { reward, score: reward, terminated }
    }

    #[inline(always)]
    fn feature(state: &CartPoleState, #[comptime] i: usize, #[comptime] _game: Self) -> f32 {
        if comptime!(i == 0) {
            state.x * comptime!(1.0 / X_LIMIT)
        } else if comptime!(i == 1) {
            state.x_dot * comptime!(1.0f32 / 3.0)
        } else if comptime!(i == 2) {
            state.theta * comptime!(1.0 / THETA_LIMIT)
        } else {
            state.theta_dot * comptime!(1.0f32 / 3.0)
        }
    }
}
