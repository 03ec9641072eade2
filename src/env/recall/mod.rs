//! Recall: the cue shown in the first step must be chosen in the last.
//!
//! In the first step of an episode one of `cues` lights is on: the cue. In every later step, up to
//! and including the last, a random light is on as a distractor, and actions before the last have
//! no effect. The last action is the answer: +1 if it equals the cue, else 0. A policy without
//! memory scores `1 / cues` at best, one with memory scores 1. This is the delayed-recall task
//! commonly used to measure recurrent policies (like the T-maze of Bakker 2001, with distractors).

mod look;

use super::look::NUM_FRUIT_KINDS;
use super::{Bits, Env, Outcome, Rules, ScriptedPlayer, impl_settings};
use crate::rng::{below, draw, uniform};
use crate::schema::settings;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Maximum number of cues, limited by the number of fruit tiles.
const MAX_CUES: u32 = NUM_FRUIT_KINDS;

settings! {
    /// Parameters of Recall.
    pub struct Recall: Copy, Eq, Hash {
        /// Episode length in steps, from the cue to the answer.
        steps: u32 = 32, in integer(2..=10_000);
        /// Number of cues and of actions.
        cues: u32 = 4, in integer(2..=MAX_CUES as u64);
    }
}

/// Reference scores for 2 cues and more.
static REFERENCE_SCORES: [[(&str, f64); 2]; MAX_CUES as usize - 1] = [
    [("chance", 1.0 / 2.0), ("optimum", 1.0)],
    [("chance", 1.0 / 3.0), ("optimum", 1.0)],
    [("chance", 1.0 / 4.0), ("optimum", 1.0)],
    [("chance", 1.0 / 5.0), ("optimum", 1.0)],
    [("chance", 1.0 / 6.0), ("optimum", 1.0)],
];

impl Env for Recall {
    const NAME: &'static str = "recall";
    const SCORE_IS_REWARD: bool = true;

    fn training_defaults(&self) -> &'static [&'static str] {
        &[include_str!("defaults.toml")]
    }

    impl_settings!();

    /// `rememberer` always answers with the cue, which it reads from the state.
    fn players(&self) -> Vec<ScriptedPlayer> {
        vec![ScriptedPlayer::new("rememberer", |state: &RecallState| state.cue)]
    }

    /// One feature per light, 1 if it is on; first-step flag; last-step flag; uniform noise in
    /// -1..1.
    fn num_features(&self) -> usize {
        self.cues as usize + 3
    }

    /// One action per cue.
    fn num_actions(&self) -> usize {
        self.cues as usize
    }

    fn max_steps(&self) -> u32 {
        self.steps
    }

    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        REFERENCE_SCORES.get(self.cues as usize - 2).map_or(&[], |scores| scores)
    }

    fn feature_name(&self, i: usize) -> String {
        match i.checked_sub(self.cues as usize) {
            None => format!("light {}", i + 1),
            Some(rest) => ["first step", "last step", "noise"][rest].to_string(),
        }
    }

    fn action_name(&self, a: usize) -> String {
        format!("cue {}", a + 1)
    }
}

crate::packed_state! {
    /// State of Recall.
    pub struct RecallState {
        /// The correct final action.
        pub cue: Bits<8>,
        /// The lit light: the cue in the first step, random afterwards.
        pub light: Bits<8>,
        /// Steps played.
        pub time: Bits<16>,
        /// Noise of this step, 32 random bits.
        pub noise: u32,
    }
}

#[cube]
impl Rules for Recall {
    type State = RecallState;

    #[inline(always)]
    fn reset(state: &mut RecallState, key: u32, #[comptime] game: Self) {
        state.cue = below(draw(key, 0), game.cues);
        state.light = state.cue;
        state.time = 0u32.runtime();
        state.noise = draw(key, 1);
    }

    #[inline(always)]
    fn step(state: &mut RecallState, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        state.time += 1;
        state.light = below(draw(key, 0), game.cues);
        state.noise = draw(key, 1);
        let is_over = state.time >= game.steps;
        let is_right = is_over && action == state.cue;
        let reward = select(is_right, 1.0f32, 0.0f32);
        Outcome { reward, score: reward, terminated: is_over }
    }

    #[inline(always)]
    fn feature(state: &RecallState, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        let num_lights = comptime!(game.cues as usize);
        if comptime!(i < num_lights) {
            select(state.light == comptime!(i as u32), 1.0f32, 0.0f32)
        } else if comptime!(i == num_lights) {
            select(state.time == 0, 1.0f32, 0.0f32)
        } else if comptime!(i == num_lights + 1) {
            select(state.time == comptime!(game.steps - 1), 1.0f32, 0.0f32)
        } else {
            uniform(state.noise) * 2.0f32 - 1.0f32
        }
    }
}
