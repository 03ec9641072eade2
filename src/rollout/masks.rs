//! Action masks: masking of logits and sampling of legal actions.

use crate::env::Rules;
use crate::math::softmax::MASKED_LOGIT;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Returns `logit`, or [`MASKED_LOGIT`] if bit `a` of the mask is not set.
pub(super) fn mask_logit(legal: u32, a: usize, logit: f32) -> f32 {
    if legal >> a & 1 == 1 { logit } else { MASKED_LOGIT }
}

/// Samples a legal action with equal probabilities, by `u` uniform in [0, 1).
#[cube]
pub(super) fn sample_legal_action<G: Rules>(state: &G::State, u: f32, #[comptime] game: G) -> u32 {
    if comptime!(G::HAS_ILLEGAL_ACTIONS) {
        let mut num_legal = 0u32.runtime();
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            num_legal += select(G::is_legal(state, a, game), 1u32, 0u32);
        }
        let chosen = (u * num_legal as f32) as u32;
        let mut action = 0u32.runtime();
        let mut num_passed = 0u32.runtime();
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            let is_legal = G::is_legal(state, a, game);
            action = select(is_legal && num_passed == chosen, comptime!(a as u32), action);
            num_passed += select(is_legal, 1u32, 0u32);
        }
        action
    } else {
        (u * comptime!(game.num_actions() as f32)) as u32
    }
}
