//! Batches of games for other languages: the same games as single environments, in every mode of autoreset.

use crate::shared::ledge::Ledge;
use crate::shared::rollouts::LEDGE;
use crate::support::for_every_game;
use grove::env::{Catch, Episode, Rules, StepResult, initial_state, step_with_auto_reset};
use grove::rng::{Stream, draw};
use grove::rollout::{Autoreset, StepBuffers, VecEnv, VecEnvError};

/// Results of a step.
#[derive(Default)]
struct Step {
    obs: Vec<f32>,
    final_obs: Vec<f32>,
    rewards: Vec<f64>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    ended: Vec<u8>,
    scores: Vec<f32>,
}

impl Step {
    fn new(envs: usize, features: usize, mode: Autoreset) -> Self {
        let kept = if mode == Autoreset::SameStep { envs * features } else { 0 };
        Self {
            obs: vec![0.0; envs * features],
            final_obs: vec![0.0; kept],
            rewards: vec![0.0; envs],
            terminated: vec![0; envs],
            truncated: vec![0; envs],
            ended: vec![0; envs],
            scores: vec![0.0; envs],
        }
    }

    fn buffers(&mut self) -> StepBuffers<'_> {
        let Self { obs, final_obs, rewards, terminated, truncated, ended, scores } = self;
        StepBuffers { obs, final_obs, rewards, terminated, truncated, ended, scores }
    }

    fn ended(&self, env: usize) -> bool {
        assert_eq!(self.ended[env], self.terminated[env] + self.truncated[env]);
        self.ended[env] > 0
    }
}

/// Draws an action of those that a mask allows.
fn choose(mask: impl Iterator<Item = bool>, t: u32, env: usize) -> usize {
    let choices: Vec<usize> =
        mask.enumerate().filter_map(|(a, legal)| legal.then_some(a)).collect();
    choices[draw(t, env as u32) as usize % choices.len()]
}

/// Games one by one, as the rules play them.
struct Singles<G: Rules> {
    game: G,
    envs: Vec<(G::State, Episode)>,
}

impl<G: Rules> Singles<G> {
    fn new(game: G, num_envs: u32, seed: u64) -> Self {
        let levels = draw(Stream::Evaluation.key(seed), 0);
        let start = |env| {
            let level = draw(levels, env);
            (initial_state::<G>(level, game), Episode { level, ..Episode::default() })
        };
        Self { game, envs: (0..num_envs).map(start).collect() }
    }

    fn observe(&self) -> Vec<f32> {
        let features = 0..self.game.num_features();
        let of = |(state, _): &(G::State, Episode)| {
            features.clone().map(|i| G::feature(state, i, self.game)).collect::<Vec<_>>()
        };
        self.envs.iter().flat_map(of).collect()
    }

    fn legal(&self, env: usize) -> Vec<bool> {
        let actions = 0..self.game.num_actions();
        actions
            .map(|a| !G::HAS_ILLEGAL_ACTIONS || G::is_legal(&self.envs[env].0, a, self.game))
            .collect()
    }

    /// A legal action of every game.
    fn actions(&self, t: u32) -> Vec<u32> {
        let envs = 0..self.envs.len();
        envs.map(|env| choose(self.legal(env).into_iter(), t, env) as u32).collect()
    }

    fn step(&mut self, actions: &[u32]) -> Vec<StepResult> {
        let envs = self.envs.iter_mut().zip(actions);
        envs.map(|((state, episode), a)| step_with_auto_reset::<G>(state, episode, *a, self.game))
            .collect()
    }
}

/// Plays a batch and single games until one has ended, and for 150 steps at least.
fn assert_steps_like_singles<G: Rules>(game: G) {
    let (envs, features) = (37, game.num_features());
    let mut single = Singles::new(game, 37, 5);
    let mut batch = VecEnv::new(game, envs, Autoreset::SameStep, 5);
    let mut step = Step::new(envs, features, Autoreset::SameStep);
    batch.observe(&mut step.obs);
    assert_eq!(step.obs, single.observe());
    let (mut t, mut episodes) = (0, 0);
    while t < 150 || episodes == 0 {
        assert!(t < game.max_steps().max(150), "{} never ends", G::NAME);
        let actions = single.actions(t);
        let expected = single.step(&actions);
        let taken: Vec<i64> = actions.iter().map(|a| i64::from(*a)).collect();
        batch.step(&taken, step.buffers()).unwrap();
        assert_eq!(step.obs, single.observe(), "{} after step {t}", G::NAME);
        for (env, result) in expected.iter().enumerate() {
            assert_eq!(step.rewards[env], f64::from(result.reward));
            assert_eq!(step.scores[env], result.episode_score);
            let ends = (step.terminated[env] == 1, step.truncated[env] == 1);
            assert_eq!(ends, (result.terminated, result.truncated));
            episodes += usize::from(result.has_ended());
        }
        let mut masks = vec![0; envs * game.num_actions()];
        batch.write_legal_actions(&mut masks);
        let legal = (0..envs).flat_map(|env| single.legal(env)).map(u8::from);
        assert!(legal.eq(masks));
        t += 1;
    }
}

#[test]
fn a_batch_plays_the_games_of_single_environments() {
    for_every_game!(game => assert_steps_like_singles(game));
    assert_steps_like_singles(LEDGE);
}

#[test]
fn next_step_autoreset_follows_its_mode() {
    let (game, envs) = (Catch::default(), 20);
    let features = 4;
    let mut same = VecEnv::new(game, envs, Autoreset::SameStep, 3);
    let mut next = VecEnv::new(game, envs, Autoreset::NextStep, 3);
    let mut at_once = Step::new(envs, features, Autoreset::SameStep);
    let mut later = Step::new(envs, features, Autoreset::NextStep);
    let actions = vec![1; envs];
    // All episodes of Catch are equally long, so that all games end at once.
    for _ in 0..5 {
        loop {
            same.step(&actions, at_once.buffers()).unwrap();
            next.step(&actions, later.buffers()).unwrap();
            assert_eq!(at_once.rewards, later.rewards);
            if later.ended(0) {
                break;
            }
            assert_eq!(at_once.obs, later.obs);
        }
        assert_eq!(later.obs, at_once.final_obs);
        next.step(&actions, later.buffers()).unwrap();
        assert_eq!(later.obs, at_once.obs);
        assert!((0..envs).all(|env| !later.ended(env) && later.rewards[env] == 0.0));
    }
}

#[test]
fn without_autoreset_an_ended_game_waits_for_its_reset() {
    let mut batch = VecEnv::new(Catch::default(), 2, Autoreset::Disabled, 3);
    let mut step = Step::new(2, 4, Autoreset::Disabled);
    while !step.ended(0) {
        batch.step(&[1, 1], step.buffers()).unwrap();
    }
    let refused = batch.step(&[1, 1], step.buffers()).unwrap_err();
    assert_eq!(refused, VecEnvError::EpisodeEnded { env: 0 });
    (0..2).for_each(|env| batch.reset_env(env, 8, 0));
    batch.observe(&mut step.obs);
    assert_eq!(step.obs[..4], Singles::new(Catch::default(), 1, 8).observe());
    assert_eq!(step.obs[..4], step.obs[4..]);
    (0..2).for_each(|env| batch.reset_env(env, 8, env as u32));
    batch.observe(&mut step.obs);
    assert_eq!(step.obs, Singles::new(Catch::default(), 2, 8).observe());
    batch.step(&[1, 1], step.buffers()).unwrap();
}

#[test]
fn wrong_actions_are_rejected_and_change_nothing() {
    let mut batch = VecEnv::new(Catch::default(), 2, Autoreset::NextStep, 3);
    let mut step = Step::new(2, 4, Autoreset::NextStep);
    let mut refused = |actions: &[i64]| batch.step(actions, step.buffers()).unwrap_err();
    assert_eq!(refused(&[1]), VecEnvError::ActionCount { expected: 2, found: 1 });
    let unknown =
        |env, action| VecEnvError::ActionOutOfRange { game: "catch", env, action, last: 2 };
    assert_eq!(refused(&[0, 3]), unknown(1, 3));
    assert_eq!(refused(&[-1, 0]), unknown(0, -1));
    let mut obs = vec![0.0; 8];
    batch.observe(&mut obs);
    assert_eq!(obs, Singles::new(Catch::default(), 2, 3).observe());
}

#[test]
fn illegal_actions_are_rejected_and_change_nothing() {
    let mut batch = VecEnv::new(LEDGE, 2, Autoreset::NextStep, 1);
    let mut step = Step::new(2, 3, Autoreset::NextStep);
    let unknown = batch.step(&[0, 4], step.buffers()).unwrap_err().to_string();
    assert_eq!(unknown, "action 4 of environment 1 is none of ledge's, which are 0 to 3");
    let is_first_cell = |seed: &u64| Singles::<Ledge>::new(LEDGE, 1, *seed).envs[0].0.cell == 0;
    batch.reset_env(0, (0..).find(is_first_cell).unwrap(), 0);
    let mut mask = [0; 8];
    batch.write_legal_actions(&mut mask);
    assert_eq!(mask[..4], [1, 0, 1, 0]);
    let (mut before, mut after) = ([0.0; 6], [0.0; 6]);
    batch.observe(&mut before);
    for action in [1, 3] {
        let refused = batch.step(&[action, 0], step.buffers()).unwrap_err();
        assert_eq!(refused, VecEnvError::IllegalAction { env: 0, action: action as u32 });
    }
    batch.observe(&mut after);
    assert_eq!(before, after);
    batch.step(&[2, 0], step.buffers()).unwrap();
}

/// Restores a batch from a saved one in the middle of an episode, and at its end.
fn assert_restores<G: Rules>(game: G, mode: Autoreset) {
    let (envs, features) = (19, game.num_features());
    let mut batch = VecEnv::new(game, envs, mode, 4);
    let [mut step, mut again] = [0; 2].map(|_| Step::new(envs, features, mode));
    let play = |batch: &mut VecEnv<G>, t: u32, step: &mut Step| {
        let mut masks = vec![0; envs * game.num_actions()];
        batch.write_legal_actions(&mut masks);
        let legal =
            |(env, mask): (usize, &[u8])| choose(mask.iter().map(|m| *m == 1), t, env) as i64;
        let actions: Vec<i64> = masks.chunks(game.num_actions()).enumerate().map(legal).collect();
        batch.step(&actions, step.buffers()).unwrap()
    };
    let mut cuts = 0;
    for t in 0..60 {
        let has_ended = play(&mut batch, t, &mut step);
        if !has_ended && t % 16 != 5 {
            continue;
        }
        cuts += 1;
        let mut other = VecEnv::new(game, envs, mode, 9);
        other.import_state(&batch.export_state()).unwrap();
        let mut same = batch.clone();
        for t in 100..110 {
            let ends = [play(&mut same, t, &mut step), play(&mut other, t, &mut again)];
            assert_eq!(ends[0], ends[1]);
            assert_eq!((&step.obs, &step.rewards), (&again.obs, &again.rewards), "{}", G::NAME);
            assert_eq!((&step.ended, &step.scores), (&again.ended, &again.scores));
        }
    }
    assert!(cuts > 3, "{}", G::NAME);
}

#[test]
fn a_restored_batch_goes_on_as_the_saved_one() {
    for mode in [Autoreset::NextStep, Autoreset::SameStep] {
        for_every_game!(game => assert_restores(game, mode));
        assert_restores(LEDGE, mode);
    }
}

#[test]
fn states_of_other_games_are_rejected_and_change_nothing() {
    let mut batch = VecEnv::new(Catch::default(), 3, Autoreset::NextStep, 3);
    let before = batch.export_state();
    let fewer = VecEnv::new(Catch::default(), 2, Autoreset::NextStep, 3).export_state();
    for words in [&fewer[..], &[]] {
        let refused = batch.import_state(words).unwrap_err().to_string();
        let expected = format!(
            "the saved states have {} words, but must have {} for a batch of 3 of catch",
            words.len(),
            before.len()
        );
        assert_eq!(refused, expected);
    }
    assert_eq!(batch.export_state(), before);
}
