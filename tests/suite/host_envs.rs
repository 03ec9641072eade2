//! Environments on the host: trained by every engine, alike for any number of threads, and with errors of their own.

use crate::support::adapter;
use crate::trainers::{iterate, on_threads};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use grove::env::{
    HostEnv, HostEnvError, HostEnvs, HostGame, HostStepResult, HostVecEnv, ThreadedEnvs,
};
use grove::model::Memoryless;
use grove::rollout::ActionSelection;
use grove::settings::{EngineChoice, GroupStart, ModelKind, TrainConfig};
use grove::trainer::{BatchSizes, GameTrainer, HostSetupError, TrainError};
use host_game::Corridor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

#[path = "../../examples/host_game.rs"]
mod host_game;

const GAME: HostGame = HostGame { num_features: 1, num_actions: 2, max_steps: 40 };

fn config() -> TrainConfig {
    let mut config =
        TrainConfig { iterations: 15, ..TrainConfig::with_defaults_of(&GAME).unwrap() };
    (config.rollout.num_steps, config.rollout.learn_steps) = (40, 40);
    config.rollout.num_groups = 4;
    config
}

/// The environments of a run.
fn corridors(config: &TrainConfig) -> ThreadedEnvs<Corridor> {
    ThreadedEnvs::new(config.rollout.num_envs(), Corridor::default)
}

fn trainer_of(envs: impl HostVecEnv + 'static, config: &TrainConfig) -> GameTrainer<HostGame> {
    GameTrainer::with_envs(GAME, HostEnvs::new(envs), config, &Device::flex()).unwrap()
}

fn trainer(config: &TrainConfig) -> GameTrainer<HostGame> {
    trainer_of(corridors(config), config)
}

#[test]
fn a_device_has_no_fused_engine_for_environments_on_the_host() {
    let Some(device) = adapter() else { return };
    let config = TrainConfig { engine: EngineChoice::Fused, ..config() };
    let envs = HostEnvs::new(corridors(&config));
    let run = GameTrainer::with_envs(GAME, envs, &config, &device).unwrap();
    let said = run.unsupported_reason().unwrap();
    assert!(said.ends_with("environments on the host have no kernels"), "{said}");
    assert_eq!(trainer(&config).unsupported_reason(), None, "the CPU has it");
}

fn train(config: &TrainConfig) -> GameTrainer<HostGame> {
    let mut trainer = trainer(config);
    iterate(&mut trainer, config.iterations);
    trainer
}

#[test]
fn every_engine_and_model_learns_a_host_environment() {
    let general = TrainConfig { engine: EngineChoice::General, ..config() };
    let mut recurrent = config();
    recurrent.policy.kind = ModelKind::Gru;
    for config in [config(), general, recurrent] {
        let trainer = train(&config);
        let greedy = trainer.evaluate_fresh(64, 0, ActionSelection::Greedy).unwrap();
        // From cells 0 to 7 it is 6.5 steps on average, and never more than 10.
        assert!(greedy.mean_score > -7.5, "{}: {greedy:?}", trainer.describe_engine());
        assert!(greedy.min_score >= -10.0, "{}: {greedy:?}", trainer.describe_engine());
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
        on_threads(threads, || {
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

/// A corridor that counts the steps of all of its kind.
struct Counted {
    corridor: Corridor,
    steps: Arc<AtomicU64>,
}

impl HostEnv for Counted {
    fn num_features(&self) -> usize {
        1
    }

    fn num_actions(&self) -> usize {
        2
    }

    fn reset(&mut self, level: u32, obs: &mut [f32]) {
        self.corridor.reset(level, obs);
    }

    fn step(&mut self, action: u32, obs: &mut [f32]) -> HostStepResult {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.corridor.step(action, obs)
    }
}

#[test]
fn a_run_counts_the_steps_of_its_environments() {
    for (engine, auto_reset) in [EngineChoice::Auto, EngineChoice::General]
        .into_iter()
        .flat_map(|engine| [(engine, false), (engine, true)])
    {
        let mut config = TrainConfig { engine, ..config() };
        config.rollout.auto_reset = auto_reset;
        let recorded = 3 * config.steps_per_iteration(config.rollout.num_groups);
        let steps = Arc::new(AtomicU64::new(0));
        let new = || {
            let env = || Counted { corridor: Corridor::default(), steps: steps.clone() };
            trainer_of(ThreadedEnvs::new(config.rollout.num_envs(), env), &config)
        };
        let taken = || steps.load(Ordering::Relaxed);
        let mut trainer = new();
        for _ in 0..3 {
            let record = trainer.iterate().unwrap();
            assert_eq!(record.env_steps, taken());
            assert!((record.mean_reward + 1.0).abs() < 1e-6, "{}", record.mean_reward);
            // A step costs 1.
            assert_eq!(record.mean_length, record.score.map(|score| -score));
        }
        let three = taken();
        assert_eq!(three == recorded, auto_reset, "{three} of {recorded}");

        // A resumed run counts on.
        let mut saved = trainer.snapshot().unwrap();
        assert_eq!(new().with_checkpoint(&saved).unwrap().iterate().unwrap().env_steps, taken());
        let state = saved.sections.iter_mut().find(|one| one.name == "state.json").unwrap();
        let mut counters: serde_json::Value = serde_json::from_slice(&state.bytes).unwrap();
        let kept = counters.as_object_mut().unwrap().remove("played_steps");
        assert_eq!(kept, (!auto_reset).then(|| serde_json::Value::from(three)));
        // Older checkpoints have no count.
        state.bytes = counters.to_string().into_bytes();
        let before = taken();
        let record = new().with_checkpoint(&saved).unwrap().iterate().unwrap();
        assert_eq!(record.env_steps, recorded + taken() - before);
    }
}

/// An environment whose episodes take two steps, with these numbers for the observations at the start and at the end,
/// and for the reward.
#[derive(Clone, Copy)]
struct Numbers {
    first: f32,
    last: f32,
    reward: f32,
    time: u32,
}

impl HostEnv for Numbers {
    fn num_features(&self) -> usize {
        1
    }

    fn num_actions(&self) -> usize {
        2
    }

    fn reset(&mut self, _level: u32, obs: &mut [f32]) {
        self.time = 0;
        obs[0] = self.first;
    }

    fn step(&mut self, _action: u32, obs: &mut [f32]) -> HostStepResult {
        self.time += 1;
        obs[0] = if self.time == 2 { self.last } else { 0.5 };
        HostStepResult { reward: self.reward, terminated: self.time == 2, truncated: false }
    }
}

#[test]
fn numbers_that_cannot_be_learnt_from_are_those_of_their_environment() {
    let fine = Numbers { first: 0.0, last: 1.0, reward: 1.0, time: 0 };
    let run = |numbers: Numbers, config: &TrainConfig| {
        trainer_of(ThreadedEnvs::new(config.rollout.num_envs(), || numbers), config)
    };
    let nothing = "an environment failed: environment 0 gave NaN as feature 0 of its observation";
    let rewards = |what: &str| {
        format!(
            "an environment failed: environment 0 gave {what}, but it must be a finite number, at most 1e15 in size"
        )
    };
    for (numbers, expected) in [
        (Numbers { first: f32::NAN, ..fine }, nothing.to_string()),
        (Numbers { reward: f32::INFINITY, ..fine }, rewards("a reward of inf")),
        (Numbers { reward: 2e15, ..fine }, rewards("a reward of 2e15")),
        (Numbers { reward: -8e14, ..fine }, rewards("rewards with the sum -1.6e15")),
    ] {
        let mut trainer = run(numbers, &config());
        let errors = [
            trainer.evaluate_on_validation(3, ActionSelection::Greedy).unwrap_err(),
            trainer.evaluate_fresh(3, 0, ActionSelection::Greedy).unwrap_err(),
            trainer.iterate().unwrap_err(),
        ];
        errors.iter().for_each(|error| assert_eq!(error.to_string(), expected));
    }
    // No action follows the last observation of an episode.
    for (engine, auto_reset) in
        [(EngineChoice::Auto, false), (EngineChoice::Auto, true), (EngineChoice::General, false)]
    {
        let mut config = TrainConfig { engine, ..config() };
        config.rollout.auto_reset = auto_reset;
        let mut trainer = run(Numbers { last: f32::NAN, ..fine }, &config);
        assert_eq!(trainer.iterate().unwrap().score, Some(2.0));
        assert_eq!(trainer.evaluate_fresh(3, 0, ActionSelection::Greedy).unwrap().mean_score, 2.0);
    }
}

/// A user-defined network.
#[derive(Module, Debug)]
struct Line {
    weight: Param<Tensor<2>>,
}

impl Memoryless for Line {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        obs.matmul(self.weight.val())
    }
}

#[test]
fn a_user_defined_network_plays_in_host_environments() {
    let mut config = config();
    config.policy.kind = ModelKind::UserDefined("line".to_string());
    let device = Device::flex();
    let envs = || HostEnvs::new(ThreadedEnvs::new(32, Corridor::default));
    let refused = GameTrainer::with_envs(GAME, envs(), &config, &device).unwrap_err();
    assert_eq!(refused, HostSetupError::UserDefinedModel("line".to_string()));
    let line = Line { weight: Param::from_data([[0.1f32, 0.2]], &device) };
    let before = line.weight.val().into_data();
    let trainer = GameTrainer::with_envs_and_model(GAME, envs(), line, &config, &device);
    let mut trainer = trainer.unwrap();
    assert!(trainer.iterate().unwrap().grad_norm > 0.0);
    let after = trainer.model().get::<Line>().unwrap().weight.val().into_data();
    assert_ne!(before, after);
}

#[test]
#[should_panic(expected = "the game `host` cannot be played: it needs environments")]
fn a_run_is_not_made_without_its_environments() {
    let _ = GameTrainer::new(GAME, &config(), &Device::flex());
}

#[test]
fn environments_that_do_not_fit_are_rejected() {
    let refused = |game, config: &TrainConfig| {
        let envs = HostEnvs::new(ThreadedEnvs::new(32, Corridor::default));
        GameTrainer::with_envs(game, envs, config, &Device::flex()).unwrap_err()
    };
    let wider = HostGame { num_features: 2, ..GAME };
    let sizes = |features| BatchSizes { envs: 32, features, actions: 2 };
    let sizes = HostSetupError::SizeMismatch { expected: sizes(2), found: sizes(1) };
    assert_eq!(refused(wider, &config()), sizes);
    let empty = HostGame { num_features: 0, ..GAME };
    let range = "host.num_features is 0, but must be 1 to 2^20";
    assert_eq!(refused(empty, &config()).to_string(), range);
    let mut branching = config();
    branching.rollout.start = GroupStart::Branch;
    assert_eq!(refused(GAME, &branching), HostSetupError::BranchStart);
}

/// Corridors before each call of which a function is called.
struct Guarded<F>(ThreadedEnvs<Corridor>, F);

impl<F: FnMut() -> Result<(), HostEnvError> + Send> HostVecEnv for Guarded<F> {
    fn num_envs(&self) -> usize {
        self.0.num_envs()
    }

    fn num_features(&self) -> usize {
        self.0.num_features()
    }

    fn num_actions(&self) -> usize {
        self.0.num_actions()
    }

    fn reset(&mut self, levels: &[Option<u32>], obs: &mut [f32]) -> Result<(), HostEnvError> {
        (self.1)()?;
        self.0.reset(levels, obs)
    }

    fn step(
        &mut self,
        actions: &[Option<u32>],
        obs: &mut [f32],
        results: &mut [HostStepResult],
    ) -> Result<(), HostEnvError> {
        (self.1)()?;
        self.0.step(actions, obs, results)
    }
}

#[test]
fn a_failure_of_an_environment_ends_the_run() {
    let mut calls = 0;
    let fail = move || {
        calls += 1;
        if calls < 4 { Ok(()) } else { Err(HostEnvError("out of fuel".into())) }
    };
    let mut trainer = trainer_of(Guarded(corridors(&config()), fail), &config());
    let error = trainer.iterate().unwrap_err();
    assert!(matches!(error, TrainError::Env(_)));
    assert_eq!(error.to_string(), "an environment failed: out of fuel");
}

#[test]
fn runs_that_share_environments_take_turns() {
    let config = TrainConfig { iterations: 4, ..config() };
    let envs = HostEnvs::new(corridors(&config));
    let train = |seed: u64| {
        let config = TrainConfig { seed, ..config.clone() };
        let trainer = GameTrainer::with_envs(GAME, envs.clone(), &config, &Device::flex());
        let mut trainer = trainer.unwrap();
        (0..4).map(|_| trainer.iterate().unwrap().score).collect::<Vec<_>>()
    };
    let train = &train;
    let alone = [1, 2].map(train);
    let beside = std::thread::scope(|scope| {
        let runs = [1, 2].map(|seed| scope.spawn(move || train(seed)));
        runs.map(|run| run.join().unwrap())
    });
    assert_eq!(beside, alone);
}

#[test]
fn threads_of_a_pool_do_not_wait_for_environments() {
    let envs = HostEnvs::new(ThreadedEnvs::new(1, Corridor::default));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let lock = || pool.install(|| drop(envs.lock()));
    let guard = envs.lock();
    let panic = catch_unwind(AssertUnwindSafe(lock)).unwrap_err();
    let said = panic.downcast_ref::<&str>().unwrap();
    assert!(said.contains("give each run environments of its own"), "{said}");
    drop(guard);
    lock();
}

#[test]
fn environments_are_called_on_the_thread_that_trains() {
    for engine in [EngineChoice::Auto, EngineChoice::General] {
        let config = TrainConfig { engine, ..config() };
        let id = thread::current().id();
        let check = move || {
            assert_eq!(thread::current().id(), id);
            Ok(())
        };
        let mut trainer = trainer_of(Guarded(corridors(&config), check), &config);
        assert!(trainer.iterate().unwrap().episodes > 0);
        assert!(trainer.validate().unwrap().evaluation.episodes > 0);
    }
}
