//! Games that are shown, whichever they are, and the scores that came of them.

use crate::games::Playable;
use grove::model::NativePolicy;
use grove::rollout::{Choice, Player, Watched};
use grove::viewer::{Instance, Scene};
use std::rc::Rc;

/// The scores of episodes that ended.
#[derive(Clone, Copy, Default)]
pub struct Scores {
    /// How many.
    pub count: u32,
    sum: f64,
    squares: f64,
}

impl Scores {
    /// One more.
    pub fn add(&mut self, score: f64) {
        self.count += 1;
        self.sum += score;
        self.squares += score * score;
    }

    /// Their mean; none of none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// The standard error of the mean; none of a single score.
    pub fn error(&self) -> Option<f64> {
        let (count, mean) = (f64::from(self.count), self.mean()?);
        let variance = (self.squares - count * mean * mean).max(0.0) / (count - 1.0);
        (self.count > 1).then(|| (variance / count).sqrt())
    }
}

/// How a game stands.
pub struct Standing {
    /// Steps of its episode.
    pub time: u32,
    /// The score so far.
    pub score: f32,
    /// Whether the episode has ended.
    pub ended: bool,
    /// Which level it is.
    pub level: u32,
}

/// [`Watched`] games and how they are drawn, whichever they are.
pub trait Shown {
    /// How many.
    fn count(&self) -> usize;
    /// A game twice, as it stands.
    fn duel(&self, game: usize) -> Box<dyn Shown>;
    /// What a policy does in each.
    fn choose(&mut self, network: &NativePolicy, player: Player) -> Vec<Choice>;
    /// A step of each; game 1 is a person's, if there is one. Games at their end `wait`, or begin anew.
    fn step(&mut self, choices: &[Choice], person: Option<u32>, wait: bool);
    /// How one stands.
    fn standing(&self, i: usize) -> Standing;
    /// What is seen of one.
    fn observe(&self, i: usize) -> Vec<f32>;
    /// Their sprites, in place of what `into` holds.
    fn instances(&self, part: f32, into: &mut Vec<Instance>);
}

/// Games, and how they are drawn.
struct Drawn<G: Playable> {
    scene: Rc<Scene<G>>,
    games: Watched<G>,
}

/// So many games, from the first levels of a seed.
pub fn show<G: Playable>(scene: Scene<G>, game: G, count: usize, seed: u64) -> Box<dyn Shown> {
    Box::new(Drawn { scene: Rc::new(scene), games: Watched::new(game, count, seed) })
}

impl<G: Playable> Shown for Drawn<G> {
    fn count(&self) -> usize {
        self.games.count()
    }

    fn duel(&self, game: usize) -> Box<dyn Shown> {
        Box::new(Self { scene: self.scene.clone(), games: self.games.duel(game, 2) })
    }

    fn choose(&mut self, network: &NativePolicy, player: Player) -> Vec<Choice> {
        self.games.choose(network, player)
    }

    fn step(&mut self, choices: &[Choice], person: Option<u32>, wait: bool) {
        let mut actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
        if let Some(action) = person {
            actions[1] = action;
        }
        match wait {
            true => self.games.step_unless_ended(&actions),
            false => self.games.step(&actions),
        }
    }

    fn standing(&self, i: usize) -> Standing {
        let episode = self.games.episode(i);
        Standing {
            time: episode.time,
            score: episode.score,
            ended: self.games.ended(i),
            level: episode.level,
        }
    }

    fn observe(&self, i: usize) -> Vec<f32> {
        self.games.observe(i)
    }

    fn instances(&self, part: f32, into: &mut Vec<Instance>) {
        self.scene.sprites(self.games.before(), &self.games.now(), part, into);
    }
}
