//! Scripted players, used as demonstrators and as baselines.

use super::PackedState;
use std::fmt::{self, Debug, Formatter};

/// A policy over the packed words of a state.
type PackedPolicy = Box<dyn Fn(&[u32]) -> u32 + Send + Sync>;

/// A hand-written policy for one game. It reads the full state rather than the observation.
pub struct ScriptedPlayer {
    name: &'static str,
    act: PackedPolicy,
}

impl ScriptedPlayer {
    /// Creates a player that takes action `act(state)`.
    pub fn new<S: PackedState>(
        name: &'static str,
        act: impl Fn(&S) -> u32 + Send + Sync + 'static,
    ) -> Self {
        Self { name, act: Box::new(move |words| act(&S::unpack(|w| words[w]))) }
    }

    /// Name on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the action for a state.
    ///
    /// # Panics
    /// If `state` belongs to a different game.
    pub fn act(&self, state: &impl PackedState) -> u32 {
        (self.act)(&state.words())
    }
}

impl Debug for ScriptedPlayer {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.debug_tuple("ScriptedPlayer").field(&self.name).finish()
    }
}
