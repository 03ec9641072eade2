//! Training runs in memory, as tests of games and of language models share them.

use crate::support::floats;
use burn::tensor::Device;
use grove::checkpoint::Checkpoint;
use grove::data::{Steps, WindowOptions, WindowSet, hold_out};
use grove::env::Rules;
use grove::metrics::IterationRecord;
use grove::model::Network;
use grove::parallel::Team;
use grove::settings::TrainConfig;
use grove::trainer::{Demonstrations, Engine, GameTrainer, Persistent, Trainer};
use std::fmt::Debug;
use std::sync::Arc;

/// Trains so many iterations.
pub fn iterate<E: Engine<Error: Debug>>(
    trainer: &mut Trainer<E>,
    count: u32,
) -> Vec<IterationRecord> {
    (0..count).map(|_| trainer.iterate().unwrap()).collect()
}

pub fn snapshot<E: Persistent>(trainer: &Trainer<E>) -> Checkpoint {
    trainer.snapshot().unwrap()
}

/// The parameters of a run's policy.
pub fn params<G: Rules>(trainer: &GameTrainer<G>) -> Vec<f32> {
    floats(trainer.model().flatten().without_autodiff())
}

/// Does work in a pool of so many threads.
pub fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// Checks that a run saves the same bytes with any of these numbers of threads, interrupted after the iteration beside
/// each.
pub fn assert_resumes<E: Persistent<Error: Debug>>(
    new: impl Fn() -> Trainer<E> + Sync,
    iterations: u32,
    cuts: &[(usize, u32)],
) {
    let run = |threads, cut| {
        on_threads(threads, || {
            let mut first = new();
            iterate(&mut first, cut);
            let mut second = new().with_checkpoint(&snapshot(&first)).unwrap();
            iterate(&mut second, iterations - cut);
            snapshot(&second)
        })
    };
    let whole = run(1, 0);
    for &(threads, cut) in cuts {
        assert!(run(threads, cut) == whole, "{threads} threads, cut at {cut}");
    }
}

/// A run that learns from demonstrations, of which some are held out.
pub fn imitator<G: Rules>(
    game: G,
    steps: Arc<dyn Steps>,
    config: &TrainConfig,
    device: &Device,
) -> GameTrainer<G> {
    let (features, actions) = (game.num_features(), game.num_actions());
    let options = WindowOptions {
        history: config.data.history,
        ..WindowOptions::new(config.data.window, actions)
    };
    let [train, validation] = hold_out(steps.episodes(), config.data.validation)
        .map(|episodes| WindowSet::new(steps.clone(), &episodes, options.clone()));
    let data = Some(Demonstrations { train, validation });
    let network = Network::new(features, actions, &config.policy, 7, device);
    Trainer::with_team(game, network, config, device, data, Team::alone()).unwrap()
}
