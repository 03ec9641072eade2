//! Players that follow a plan of their own: to learn from, and to compare with.

use super::PackedState;
use std::fmt::{self, Debug, Formatter};

/// Chooses an action by a state's words.
type Act = Box<dyn Fn(&[u32]) -> u32 + Send + Sync>;

/// A player of one game that looks at its state, not at its features, and learns nothing.
pub struct Scripted {
    name: &'static str,
    act: Act,
}

impl Scripted {
    /// A player who does in each state what `act` says.
    pub fn new<S: PackedState>(
        name: &'static str,
        act: impl Fn(&S) -> u32 + Send + Sync + 'static,
    ) -> Self {
        Self { name, act: Box::new(move |words| act(&S::unpack(|w| words[w]))) }
    }

    /// What it is called on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it does in a state.
    ///
    /// # Panics
    /// If the state is not of the game that the player is of.
    pub fn act(&self, state: &impl PackedState) -> u32 {
        (self.act)(&state.words())
    }
}

impl Debug for Scripted {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.debug_tuple("Scripted").field(&self.name).finish()
    }
}
