//! Live games for display: they advance step by step and pause for one step after an episode ended.

use super::action_selection::LanePolicy;
use super::env_lanes::EnvLanes;
use super::env_state::EnvState;
use super::{ActionSelection, EpisodeKeys};
use crate::env::{Episode, Rules, advance, start_next_level};
use crate::math::softmax::{compute_normalizer, prob, unnormalized_prob};
use crate::model::{Actor, LANES, Lanes, set_lane};
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
    memory: PolicyMemory,
}

/// Behaviour of a game in the step after its episode has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterEnd {
    /// Stays as it is.
    Wait,
    /// Starts the next level.
    Restart,
}

/// The policy's memory of the games, `[memory_size]` lanes per block of [`LANES`] games.
#[derive(Clone, Debug, Default)]
struct PolicyMemory {
    /// Memory before the choice of an action.
    current: Vec<Lanes>,
    /// Memory after it, kept apart so that a choice can be repeated before the games advance.
    next: Vec<Lanes>,
    /// Whether each game's memory is to be reset before the next choice.
    needs_reset: Vec<bool>,
}

impl PolicyMemory {
    /// Creates empty memory for `count` games.
    fn new(count: usize) -> Self {
        Self { needs_reset: vec![true; count], ..Self::default() }
    }

    /// Prepares the memory of a policy whose memory begins with `initial`, `[memory_size]`.
    fn prepare(&mut self, initial: &[f32]) {
        let (size, count) = (initial.len(), self.needs_reset.len());
        if self.current.len() != count.div_ceil(LANES) * size {
            // A different policy, which has not seen these episodes.
            self.current = vec![[0.0; LANES]; count.div_ceil(LANES) * size];
            self.needs_reset.fill(true);
        }
        for (i, needs_reset) in self.needs_reset.iter_mut().enumerate() {
            if std::mem::take(needs_reset) {
                let block = &mut self.current[i / LANES * size..][..size];
                set_lane(block, i % LANES, initial);
            }
        }
        self.next.clone_from(&self.current);
    }

    /// Replicates the memory of one game.
    fn replicate(&self, env: usize, count: usize) -> Self {
        let size = self.current.len() / self.needs_reset.len().div_ceil(LANES);
        let replicate = |memory: &[Lanes]| {
            let block = memory.get(env / LANES * size..).and_then(|rest| rest.get(..size));
            let lanes = block.unwrap_or_default().iter().map(|lanes| [lanes[env % LANES]; LANES]);
            lanes.collect::<Vec<_>>().repeat(count.div_ceil(LANES))
        };
        Self {
            current: replicate(&self.current),
            next: replicate(&self.next),
            needs_reset: vec![self.needs_reset[env]; count],
        }
    }

    /// Commits the memory after a step of the games.
    fn commit(&mut self) {
        if !self.next.is_empty() {
            self.current = std::mem::take(&mut self.next);
        }
    }
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
            memory: PolicyMemory::new(count),
            envs,
            time: 0,
        }
    }

    /// Copies the current position of a game for each of `players` players.
    pub fn duel(&self, env: usize, players: usize) -> Self {
        Self {
            game: self.game,
            envs: vec![self.envs[env]; players],
            previous_states: vec![self.previous_states[env]; players],
            ended: vec![self.ended[env]; players],
            action_keys: vec![self.action_keys[env]; players],
            time: self.time,
            memory: self.memory.replicate(env, players),
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
        self.memory.commit();
        for (i, EnvState { state, episode }) in self.envs.iter_mut().enumerate() {
            if self.ended[i] && after_end == AfterEnd::Wait {
                self.previous_states[i] = *state;
            } else if self.ended[i] {
                start_next_level::<G>(state, episode, self.game);
                self.memory.needs_reset[i] = true;
                self.previous_states[i] = *state;
                self.ended[i] = false;
            } else {
                self.previous_states[i] = *state;
                self.ended[i] = advance::<G>(state, episode, actions[i], self.game).has_ended();
            }
        }
        self.time += 1;
    }

    /// Returns a policy's choice in every game, `[count]`. A policy with memory remembers the
    /// previous step if it was asked then.
    pub fn choose<A: Actor>(&mut self, policy: &A, selection: ActionSelection) -> Vec<Choice> {
        let size = policy.memory_size();
        self.memory.prepare(&policy.initial_memory());
        let mut choices = Vec::with_capacity(self.envs.len());
        let mut policy = LanePolicy::new(policy, self.game);
        let blocks = self.envs.chunks(LANES).zip(self.action_keys.chunks(LANES));
        for (block, (envs, keys)) in blocks.enumerate() {
            let memory = &mut self.memory.next[block * size..][..size];
            let logits = policy.compute_logits(self.game, &EnvLanes::new(envs), memory);
            let keys = std::array::from_fn(|lane| keys.get(lane).copied().unwrap_or(0));
            let chosen = selection.choose(logits, &keys, self.time);
            choices.extend((0..envs.len()).map(|lane| Choice {
                action: chosen.actions[lane],
                probabilities: action_probs(logits, lane),
            }));
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
