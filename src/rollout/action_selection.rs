//! Action selection of a policy for games side by side.

use super::env_lanes::{EnvLanes, action_uniforms};
use super::masks::mask_logit;
use crate::env::Rules;
use crate::model::{Actor, LANES, Lanes, argmax_lane, sample_lanes};

/// The way in which a policy's actions are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionSelection {
    /// The most likely action.
    Greedy,
    /// An action sampled from the policy.
    Sampling,
}

impl ActionSelection {
    /// Chooses the action of each lane at step `t`; `keys` are the lanes' action keys.
    #[inline(always)]
    pub(super) fn choose(self, logits: &[Lanes], keys: &[u32; LANES], t: u32) -> ActionLanes {
        let (mut actions, mut logprobs) = ([0; LANES], [0.0; LANES]);
        match self {
            Self::Greedy => actions = std::array::from_fn(|lane| argmax_lane(logits, lane)),
            Self::Sampling => {
                sample_lanes(logits, &action_uniforms(keys, t), &mut actions, &mut logprobs);
            }
        }
        ActionLanes { actions, logprobs }
    }
}

/// Chosen actions, one per lane.
pub(super) struct ActionLanes {
    pub actions: [u32; LANES],
    /// Their log-probabilities if they were sampled, else 0.
    pub logprobs: Lanes,
}

/// A policy with the buffers of one thread, for blocks of games.
pub(super) struct LanePolicy<'a, A: Actor> {
    policy: &'a A,
    /// Observations of the last block: `[num_features][LANES]`.
    pub obs: Vec<Lanes>,
    /// Legal actions of the last block as bit masks; only valid for games with masks.
    pub legal: [u32; LANES],
    masked_logits: Vec<Lanes>,
    scratch: A::Scratch,
}

impl<'a, A: Actor> LanePolicy<'a, A> {
    /// Allocates the buffers of a policy for a game.
    pub fn new(policy: &'a A, game: impl Rules) -> Self {
        Self {
            policy,
            obs: vec![[0.0; LANES]; game.num_features()],
            legal: [0; LANES],
            masked_logits: Vec::new(),
            scratch: policy.new_scratch(),
        }
    }

    /// Computes the logits of a block, `[num_actions][LANES]`, those of illegal actions masked; updates `memory` in
    /// place.
    #[inline(always)]
    pub fn compute_logits<G: Rules>(
        &mut self,
        game: G,
        games: &EnvLanes<G>,
        memory: &mut [Lanes],
    ) -> &[Lanes] {
        games.observe(game, &mut self.obs);
        let logits = self.policy.compute_logits(&self.obs, memory, &mut self.scratch);
        if !G::HAS_ILLEGAL_ACTIONS {
            return logits;
        }
        games.write_legal(game, &mut self.legal);
        self.masked_logits.clear();
        self.masked_logits.extend(logits.iter().enumerate().map(|(a, lanes)| {
            std::array::from_fn(|lane| mask_logit(self.legal[lane], a, lanes[lane]))
        }));
        &self.masked_logits
    }

    /// The features that were not 0 in some lane of the last block, as [`Actor::active_features`].
    #[inline(always)]
    pub fn active_features(&self) -> Option<&[usize]> {
        self.policy.active_features(&self.scratch)
    }
}
