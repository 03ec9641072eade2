//! Actions that may not be taken: their logits, and what is drawn among the others.

use super::env_lanes::EnvLanes;
use crate::env::Rules;
use crate::math::softmax::ILLEGAL;
use crate::model::{LANES, Lanes, sample_lanes};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The least number that a masked action is drawn by: above what the lanes' exponential makes of
/// [`ILLEGAL`] in place of 0, so that no action before the first legal one is ever drawn.
const LEAST_UNIFORM: f32 = 1e-30;

/// The actions that may be taken in a state, bit by bit, the first action's the lowest.
pub(super) fn legal_bits<G: Rules>(state: &G::State, game: G) -> u32 {
    (0..game.num_actions()).fold(0, |bits, a| bits | u32::from(G::legal(state, a, game)) << a)
}

/// `logit` of action `a`, or [`ILLEGAL`] if the bit of that action is not set.
pub(super) fn masked(legal: u32, a: usize, logit: f32) -> f32 {
    if legal >> a & 1 == 1 { logit } else { ILLEGAL }
}

/// Room for the masked logits of one thread.
#[derive(Debug, Default)]
pub(super) struct MaskedLogits {
    /// The legal actions of each game, bit by bit; all of them where the game has no masks.
    pub legal: [u32; LANES],
    logits: Vec<Lanes>,
}

impl MaskedLogits {
    /// The logits with those of actions that may not be taken in the games of `lanes` masked; the same
    /// ones where the game has no masks.
    pub fn mask<'a, G: Rules>(
        &'a mut self,
        game: G,
        lanes: &EnvLanes<G>,
        logits: &'a [Lanes],
    ) -> &'a [Lanes] {
        if !G::MASKED {
            return logits;
        }
        lanes.legal(game, &mut self.legal);
        self.logits.clear();
        self.logits.extend(logits.iter().enumerate().map(|(a, lanes)| {
            std::array::from_fn(|lane| masked(self.legal[lane], a, lanes[lane]))
        }));
        &self.logits
    }
}

/// Draws an action for each lane by the numbers `u`, from logits that [`MaskedLogits::mask`] gave.
pub(super) fn sample_legal<G: Rules>(
    logits: &[Lanes],
    u: &Lanes,
    actions: &mut [u32; LANES],
    logprobs: &mut Lanes,
) {
    if G::MASKED {
        sample_lanes(logits, &u.map(|u| u.max(LEAST_UNIFORM)), actions, logprobs);
    } else {
        sample_lanes(logits, u, actions, logprobs);
    }
}

/// Draws one of the actions that may be taken by `u`, uniform in [0, 1), each with the same chance.
#[cube]
pub(super) fn random_action<G: Rules>(state: &G::State, u: f32, #[comptime] game: G) -> u32 {
    if comptime!(G::MASKED) {
        let mut count = 0u32.runtime();
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            count += select(G::legal(state, a, game), 1u32, 0u32);
        }
        let chosen = (u * count as f32) as u32;
        let mut action = 0u32.runtime();
        let mut before = 0u32.runtime();
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            let legal = G::legal(state, a, game);
            action = select(legal && before == chosen, comptime!(a as u32), action);
            before += select(legal, 1u32, 0u32);
        }
        action
    } else {
        (u * comptime!(game.num_actions() as f32)) as u32
    }
}
