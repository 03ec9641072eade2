//! Live games for display: they advance step by step and pause for one step after an episode ended.

use super::action_selection::LanePolicy;
use super::env_lanes::EnvLanes;
use super::env_state::EnvState;
use super::{ActionSelection, EpisodeKeys};
use crate::env::{Episode, Rules, start_next_level, step_episode};
use crate::math::softmax::{compute_normalizer, prob, unnormalized_prob};
use crate::model::{Actor, LANES, Lanes, set_lane, splat};
use crate::rng::Stream;

/// A policy's action probabilities and chosen action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The chosen action.
    pub action: u32,
    /// Probability of each action, `[num_actions]`.
    pub probabilities: Vec<f32>,
}

/// Games on the CPU with their states before the last step.
#[derive(Clone, Debug)]
pub struct LiveGames<G: Rules> {
    game: G,
    envs: Vec<EnvState<G>>,
    previous_states: Vec<G::State>,
    ended: Vec<bool>,
    /// Key of each game's sampled actions.
    action_keys: Vec<u32>,
    /// Number of steps since the start, over all episodes.
    time: u32,
    /// The policy's memory of each game, `[memory_size]`; empty at the start of an episode.
    memory: Vec<Vec<f32>>,
    /// The memory after the choice of actions, kept apart so that a choice can be repeated before the games advance;
    /// empty without a choice.
    next_memory: Vec<Vec<f32>>,
}

/// Behaviour of a game in the step after its episode has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterEnd {
    /// Stays as it is.
    Wait,
    /// Starts the next level.
    Restart,
}

impl<G: Rules> LiveGames<G> {
    /// Creates games on the first levels of an [`evaluate`](super::evaluate()) with
    /// [`Stream::Evaluation`] and this seed: game `i` starts on level `i`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(game: G, count: usize, seed: u64) -> Self {
        assert!(count > 0, "one game or more is shown");
        let keys = EpisodeKeys::new(Stream::Evaluation, seed);
        let indices = 0..count as u32;
        let envs: Vec<_> =
            indices.clone().map(|i| EnvState::<G>::new(keys.level(i), game)).collect();
        Self {
            game,
            previous_states: envs.iter().map(|env| env.state).collect(),
            ended: vec![false; count],
            action_keys: indices.map(|i| keys.action_key(i)).collect(),
            memory: vec![Vec::new(); count],
            next_memory: Vec::new(),
            envs,
            time: 0,
        }
    }

    /// Copies the current position of a game for each of `players` players.
    pub fn duel(&self, env: usize, players: usize) -> Self {
        let repeat = |rows: &[Vec<f32>]| -> Vec<Vec<f32>> {
            rows.get(env).map(|row| vec![row.clone(); players]).unwrap_or_default()
        };
        Self {
            game: self.game,
            envs: vec![self.envs[env]; players],
            previous_states: vec![self.previous_states[env]; players],
            ended: vec![self.ended[env]; players],
            action_keys: vec![self.action_keys[env]; players],
            time: self.time,
            memory: repeat(&self.memory),
            next_memory: repeat(&self.next_memory),
        }
    }

    /// Steps every game; where the episode has ended, the next level starts instead.
    ///
    /// # Panics
    /// If the number of `actions` differs from the number of games.
    pub fn step(&mut self, actions: &[u32]) {
        self.advance(actions, AfterEnd::Restart);
    }

    /// Steps every game whose episode has not ended.
    ///
    /// # Panics
    /// If the number of `actions` differs from the number of games.
    pub fn step_unless_ended(&mut self, actions: &[u32]) {
        self.advance(actions, AfterEnd::Wait);
    }

    fn advance(&mut self, actions: &[u32], after_end: AfterEnd) {
        assert_eq!(actions.len(), self.envs.len(), "actions: [count]");
        if !self.next_memory.is_empty() {
            self.memory = std::mem::take(&mut self.next_memory);
        }
        for (i, EnvState { state, episode }) in self.envs.iter_mut().enumerate() {
            if self.ended[i] && after_end == AfterEnd::Wait {
                self.previous_states[i] = *state;
            } else if self.ended[i] {
                start_next_level::<G>(state, episode, self.game);
                self.memory[i].clear();
                self.previous_states[i] = *state;
                self.ended[i] = false;
            } else {
                self.previous_states[i] = *state;
                self.ended[i] =
                    step_episode::<G>(state, episode, actions[i], self.game).has_ended();
            }
        }
        self.time += 1;
    }

    /// Returns a policy's choice in every game, `[count]`. A policy with memory remembers the
    /// previous step if it was asked then.
    pub fn choose<A: Actor>(&mut self, policy: &A, selection: ActionSelection) -> Vec<Choice> {
        let initial_memory = policy.initial_memory();
        self.next_memory.clear();
        let mut choices = Vec::with_capacity(self.envs.len());
        let mut policy = LanePolicy::new(policy, self.game);
        let blocks = self.envs.chunks(LANES).zip(self.action_keys.chunks(LANES));
        for ((envs, keys), rows) in blocks.zip(self.memory.chunks(LANES)) {
            let mut memory = splat(&initial_memory);
            for (lane, row) in rows.iter().enumerate() {
                // A different policy has not seen this episode.
                if row.len() == initial_memory.len() {
                    set_lane(&mut memory, lane, row);
                }
            }
            let logits = policy.compute_logits(self.game, &EnvLanes::new(envs), &mut memory);
            let keys = std::array::from_fn(|lane| keys.get(lane).copied().unwrap_or(0));
            let chosen = selection.choose(logits, &keys, self.time);
            choices.extend((0..envs.len()).map(|lane| Choice {
                action: chosen.actions[lane],
                probabilities: action_probs(logits, lane),
            }));
            let row = |lane: usize| memory.iter().map(|lanes| lanes[lane]).collect();
            self.next_memory.extend((0..envs.len()).map(row));
        }
        choices
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// Number of games.
    pub fn count(&self) -> usize {
        self.envs.len()
    }

    /// States before the last step, `[count]`; equal to [`LiveGames::states`] if there was none.
    pub fn previous_states(&self) -> &[G::State] {
        &self.previous_states
    }

    /// Current states, `[count]`.
    pub fn states(&self) -> Vec<G::State> {
        self.envs.iter().map(|env| env.state).collect()
    }

    /// Episode progress of a game.
    pub fn episode(&self, i: usize) -> Episode {
        self.envs[i].episode
    }

    /// Whether a game's episode ended with its last step.
    pub fn has_ended(&self, i: usize) -> bool {
        self.ended[i]
    }

    /// Observation of a game, `[num_features]`.
    pub fn observe(&self, i: usize) -> Vec<f32> {
        let features = 0..self.game.num_features();
        features.map(|f| G::feature(&self.envs[i].state, f, self.game)).collect()
    }
}

/// Action probabilities of a lane, `[num_actions]`.
fn action_probs(logits: &[Lanes], lane: usize) -> Vec<f32> {
    let logits = logits.iter().map(|lanes| lanes[lane]);
    let max = logits.clone().fold(f32::NEG_INFINITY, f32::max);
    let sum = logits.clone().map(|logit| unnormalized_prob(logit, max)).sum();
    let normalizer = compute_normalizer(max, sum);
    logits.map(|logit| prob(logit, &normalizer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Catch, Fruit};
    use crate::model::{NativePolicy, Network};
    use crate::rollout::evaluate;
    use crate::settings::{Activation, PolicyConfig};
    use burn::tensor::Device;

    fn policies<G: Rules>(game: G) -> [NativePolicy; 2] {
        let (features, actions) = (game.num_features(), game.num_actions());
        [PolicyConfig::mlp, PolicyConfig::gru].map(|kind| {
            let config = kind(&[9], Activation::Tanh);
            let network = Network::new(features, actions, &config, 5, &Device::flex());
            NativePolicy::new(&network, features, actions)
        })
    }

    #[test]
    fn first_episodes_are_those_of_an_evaluation() {
        fn holds<G: Rules>(game: G) {
            let selections = [ActionSelection::Greedy, ActionSelection::Sampling];
            let policies = policies(game);
            for (policy, selection) in
                policies.iter().flat_map(|policy| selections.map(|selection| (policy, selection)))
            {
                let mut games = LiveGames::new(game, 19, 7);
                let mut scores = vec![None; 19];
                while scores.iter().any(Option::is_none) {
                    let choices = games.choose(policy, selection);
                    assert_eq!(games.choose(policy, selection), choices, "asked again");
                    let actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
                    games.step(&actions);
                    for (i, score) in scores.iter_mut().enumerate() {
                        if games.has_ended(i) && score.is_none() {
                            *score = Some(f64::from(games.episode(i).score));
                        }
                    }
                }
                let mean = scores.into_iter().flatten().sum::<f64>() / 19.0;
                let expected = evaluate(policy, game, 19, Stream::Evaluation, 7, selection);
                assert!((mean - expected.mean_score).abs() < 1e-9, "{selection:?}");
            }
        }
        holds(Fruit::default());
        holds(Catch::default());
    }

    #[test]
    fn an_ended_game_pauses_for_a_step_and_starts_its_next_level() {
        let game = Catch::default();
        let mut games = LiveGames::new(game, 1, 3);
        let level = games.episode(0).level;
        for _ in 0..game.rows - 1 {
            assert!(!games.has_ended(0));
            games.step(&[1]);
        }
        assert!(games.has_ended(0) && games.states()[0].ball_row == game.rows - 1);
        assert_eq!(games.episode(0).level, level);
        games.step(&[1]);
        assert!(!games.has_ended(0) && games.episode(0).time == 0);
        assert_ne!(games.episode(0).level, level);
        assert_eq!(games.states()[0], games.previous_states()[0]);
    }

    #[test]
    fn a_duel_continues_from_a_games_state_and_waits_at_the_end() {
        let mut games = LiveGames::new(Catch::default(), 19, 3);
        let [_, policy] = policies(Catch::default());
        for _ in 0..5 {
            let choices = games.choose(&policy, ActionSelection::Greedy);
            games.step(&choices.iter().map(|choice| choice.action).collect::<Vec<_>>());
        }
        // Both also start with the memory of the game.
        let alone = games.choose(&policy, ActionSelection::Greedy)[17].clone();
        let mut duel = games.duel(17, 2);
        assert_eq!(duel.choose(&policy, ActionSelection::Greedy), vec![alone.clone(), alone]);
        assert_eq!([duel.episode(0), duel.episode(1)], [games.episode(17); 2]);
        duel.step_unless_ended(&[0, 2]);
        let [left, right] = duel.states()[..] else { panic!("two games") };
        assert!(left.paddle < right.paddle && left.ball_row == right.ball_row);
        for _ in 0..Catch::default().rows {
            duel.step_unless_ended(&[0, 2]);
        }
        assert!(duel.has_ended(0) && duel.has_ended(1));
        assert_eq!(duel.episode(0).level, games.episode(17).level);
        duel.step(&[0, 2]);
        assert_eq!(duel.episode(0), duel.episode(1));
        assert_ne!(duel.episode(0).level, games.episode(17).level);
    }
}
