//! Environments on the host: trained by every engine, alike for any number of threads, and with errors of their own.

use burn::tensor::Device;
use grove::env::{HostEnvError, HostEnvs, HostGame, HostVecEnv, ThreadedEnvs, Transition};
use grove::rollout::Player;
use grove::settings::{Engine, ModelKind, Start, TrainConfig};
use grove::trainer::{GameTrainer, HostSetupError, TrainError};
use host_game::Corridor;
use std::thread::{self, ThreadId};

#[path = "../../examples/host_game.rs"]
mod host_game;

const GAME: HostGame = HostGame { num_features: 1, num_actions: 2, max_steps: 40 };

fn config() -> TrainConfig {
    let mut config = TrainConfig { iterations: 15, ..TrainConfig::of(&GAME).unwrap() };
    (config.rollout.num_steps, config.rollout.learn_steps) = (40, 40);
    config.rollout.num_groups = 4;
    config
}

fn trainer(config: &TrainConfig) -> GameTrainer<HostGame> {
    let envs = ThreadedEnvs::new(config.rollout.num_envs(), Corridor::default);
    GameTrainer::with_envs(GAME, HostEnvs::new(envs), config, &Device::flex()).unwrap()
}

fn train(config: &TrainConfig) -> GameTrainer<HostGame> {
    let mut trainer = trainer(config);
    (0..config.iterations).for_each(|_| drop(trainer.iterate().unwrap()));
    trainer
}

#[test]
fn every_engine_and_model_learns_the_way_out() {
    let general = TrainConfig { engine: Engine::General, ..config() };
    let mut recurrent = config();
    recurrent.policy.kind = ModelKind::Gru;
    for config in [config(), general, recurrent] {
        let trainer = train(&config);
        let greedy = trainer.evaluate_fresh(64, 0, Player::Greedy).unwrap();
        // From cells 0 to 7 it is 6.5 steps on average, and never more than 10.
        assert!(greedy.mean_score > -7.5, "{}: {greedy:?}", trainer.describe());
        assert!(greedy.min_score >= -10.0, "{}: {greedy:?}", trainer.describe());
        assert_eq!(greedy.mean_score, -greedy.mean_length);
    }
}

#[test]
fn the_example_runs() {
    host_game::main().unwrap();
}

#[test]
fn threads_do_not_change_the_result() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let config = TrainConfig { iterations: 2, ..config() };
            train(&config).model().flatten().into_data().try_into_vec::<f32>().unwrap()
        })
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn later_episodes_count_where_environments_reset_themselves() {
    let mut config = config();
    config.rollout.auto_reset = true;
    let mut resetting = trainer(&config);
    let once = trainer(&self::config()).iterate().unwrap().episodes;
    let often = resetting.iterate().unwrap().episodes;
    assert!(often > once, "{often} episodes, {once} without");
    // An episode that lasts as long as the rollout is truncated there.
    assert_eq!(once, config.rollout.num_envs() as u64);
}

#[test]
fn environments_that_do_not_fit_are_refused() {
    let refused = |game, config: &TrainConfig| {
        let envs = HostEnvs::new(ThreadedEnvs::new(32, Corridor::default));
        GameTrainer::with_envs(game, envs, config, &Device::flex()).unwrap_err()
    };
    let wider = HostGame { num_features: 2, ..GAME };
    let sizes = HostSetupError::Sizes { expected: [32, 2, 2], found: [32, 1, 2] };
    assert_eq!(refused(wider, &config()), sizes);
    let mut branching = config();
    branching.rollout.start = Start::Branch;
    assert_eq!(refused(GAME, &branching), HostSetupError::Start);
}

/// Environments that fail with their third step.
struct Failing(u32);

impl HostVecEnv for Failing {
    fn num_envs(&self) -> usize {
        32
    }

    fn num_features(&self) -> usize {
        1
    }

    fn num_actions(&self) -> usize {
        2
    }

    fn reset(&mut self, _levels: &[Option<u32>], _obs: &mut [f32]) -> Result<(), HostEnvError> {
        Ok(())
    }

    fn step(
        &mut self,
        _actions: &[Option<u32>],
        _obs: &mut [f32],
        _results: &mut [Transition],
    ) -> Result<(), HostEnvError> {
        self.0 += 1;
        if self.0 < 3 { Ok(()) } else { Err(HostEnvError("out of fuel".into())) }
    }
}

#[test]
fn a_failure_of_an_environment_ends_the_run() {
    let envs = HostEnvs::new(Failing(0));
    let mut trainer = GameTrainer::with_envs(GAME, envs, &config(), &Device::flex()).unwrap();
    let error = trainer.iterate().unwrap_err();
    assert!(matches!(error, TrainError::Env(_)));
    assert_eq!(error.to_string(), "an environment failed: out of fuel");
}

/// Environments that belong to the thread that made them, such as those with a window.
struct Bound(ThreadId, ThreadedEnvs<Corridor>);

impl HostVecEnv for Bound {
    fn num_envs(&self) -> usize {
        self.1.num_envs()
    }

    fn num_features(&self) -> usize {
        self.1.num_features()
    }

    fn num_actions(&self) -> usize {
        self.1.num_actions()
    }

    fn reset(&mut self, levels: &[Option<u32>], obs: &mut [f32]) -> Result<(), HostEnvError> {
        assert_eq!(thread::current().id(), self.0);
        self.1.reset(levels, obs)
    }

    fn step(
        &mut self,
        actions: &[Option<u32>],
        obs: &mut [f32],
        results: &mut [Transition],
    ) -> Result<(), HostEnvError> {
        assert_eq!(thread::current().id(), self.0);
        self.1.step(actions, obs, results)
    }
}

#[test]
fn environments_are_called_on_the_thread_that_trains() {
    for engine in [Engine::Auto, Engine::General] {
        let config = TrainConfig { engine, ..config() };
        let envs = ThreadedEnvs::new(config.rollout.num_envs(), Corridor::default);
        let envs = HostEnvs::new(Bound(thread::current().id(), envs));
        let mut trainer = GameTrainer::with_envs(GAME, envs, &config, &Device::flex()).unwrap();
        assert!(trainer.iterate().unwrap().episodes > 0);
        assert!(trainer.measure().unwrap().0.episodes > 0);
    }
}
