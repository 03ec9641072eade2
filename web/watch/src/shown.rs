//! Games on the screen, without their type, and the scores of their episodes.

use grove::env::ConfigurableGame;
use grove::model::NativePolicy;
use grove::rollout::{ActionSelection, Choice, LiveGames};
use grove::viewer::{Scene, Sprite};
use std::rc::Rc;

/// Running statistics of the scores of finished episodes.
#[derive(Clone, Copy, Default)]
pub struct Scores {
    /// The number of scores.
    pub count: u32,
    sum: f64,
    squares: f64,
}

impl Scores {
    /// Adds a score.
    pub fn add(&mut self, score: f64) {
        self.count += 1;
        self.sum += score;
        self.squares += score * score;
    }

    /// The mean; `None` without a score.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// The standard error of the mean; `None` with fewer than two scores.
    pub fn error(&self) -> Option<f64> {
        let (count, mean) = (f64::from(self.count), self.mean()?);
        let variance = (self.squares - count * mean * mean).max(0.0) / (count - 1.0);
        (self.count > 1).then(|| (variance / count).sqrt())
    }
}

/// The state of one game, for reports.
pub struct Standing {
    /// Steps since the episode began.
    pub time: u32,
    /// The score so far.
    pub score: f32,
    /// Whether the episode has ended.
    pub ended: bool,
    /// The number of the level.
    pub level: u32,
}

/// [`LiveGames`] games and their scene, without their type.
pub trait Boards {
    /// The number of games.
    fn count(&self) -> usize;
    /// Two copies of a game in its present state.
    fn duel(&self, game: usize) -> Box<dyn Boards>;
    /// The choices of a policy, one for each game.
    fn choose(&mut self, network: &NativePolicy, player: ActionSelection) -> Vec<Choice>;
    /// Plays a step of each; `person` is the action in game 1, if a person plays it. Finished games `wait`, or start
    /// the next level.
    fn step(&mut self, choices: &[Choice], person: Option<u32>, wait: bool);
    /// The state of game `i`.
    fn standing(&self, i: usize) -> Standing;
    /// The observation of game `i`.
    fn observe(&self, i: usize) -> Vec<f32>;
    /// Replaces the contents of `into` by the sprites, after `progress` (0 to 1) of the motion of the last step.
    fn compute_sprites(&self, progress: f32, into: &mut Vec<Sprite>);
}

/// Games and their scene.
struct GameBoards<G: ConfigurableGame> {
    scene: Rc<Scene<G>>,
    games: LiveGames<G>,
}

/// `count` games, from the first levels of a seed.
pub fn boards<G: ConfigurableGame>(
    scene: Scene<G>,
    game: G,
    count: usize,
    seed: u64,
) -> Box<dyn Boards> {
    Box::new(GameBoards { scene: Rc::new(scene), games: LiveGames::new(game, count, seed) })
}

impl<G: ConfigurableGame> Boards for GameBoards<G> {
    fn count(&self) -> usize {
        self.games.count()
    }

    fn duel(&self, game: usize) -> Box<dyn Boards> {
        Box::new(Self { scene: self.scene.clone(), games: self.games.duel(game, 2) })
    }

    fn choose(&mut self, network: &NativePolicy, player: ActionSelection) -> Vec<Choice> {
        self.games.choose(network, player)
    }

    fn step(&mut self, choices: &[Choice], person: Option<u32>, wait: bool) {
        let mut actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
        if let Some(action) = person {
            actions[1] = action;
        }
        if wait { self.games.step_unless_ended(&actions) } else { self.games.step(&actions) }
    }

    fn standing(&self, i: usize) -> Standing {
        let episode = self.games.episode(i);
        Standing {
            time: episode.time,
            score: episode.score,
            ended: self.games.has_ended(i),
            level: episode.level,
        }
    }

    fn observe(&self, i: usize) -> Vec<f32> {
        self.games.observe(i)
    }

    fn compute_sprites(&self, progress: f32, into: &mut Vec<Sprite>) {
        let (previous, current) = (self.games.previous_states(), self.games.states());
        self.scene.compute_sprites(previous, &current, progress, into);
    }
}
