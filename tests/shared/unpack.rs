//! Conversion of recordings to trajectories.

use burn::tensor::{Device, TensorData};
use grove::data::{
    ENDED, EpisodeStatus, NativeTrajectory, Recording, TERMINATED, TRUNCATED, Trajectory,
};
use grove::env::{PackedState, Rules};
use std::fmt::Debug;

/// Unpacks a recording of `game`, which is read back, to a trajectory on `device`.
pub async fn unpack<G: Rules>(game: G, recording: &Recording, device: &Device) -> Trajectory {
    let (num_steps, features) = (recording.num_steps(), game.num_features());
    let mut all = NativeTrajectory::default();
    all.resize(recording.num_envs(), num_steps, features);
    all.enable_scores();
    all.enable_masks(if G::HAS_ILLEGAL_ACTIONS { game.num_actions() } else { 0 });
    let stride = all.obs_stride();
    let mut first = 0;
    for part in recording.parts() {
        let (words, values, initial_episodes) = part.tensors();
        let (used, games) = (part.num_words() - 1, part.num_envs());
        let words = read(words.clone().into_data_async().await);
        let words: Vec<u32> = words.iter::<i32>().map(|word| word as u32).collect();
        let values: Vec<f32> = read(values.clone().into_data_async().await).iter().collect();
        let mut under_way: Vec<f32> =
            read(initial_episodes.clone().into_data_async().await).iter().collect();
        all.elapsed.extend(under_way.split_off(games).into_iter().map(|steps| steps as u32));
        let steps = num_steps * games;
        for at in 0..steps {
            let slot = (first + at % games) * num_steps + at / games;
            let state = G::State::unpack(|w| if w < used { words[w * steps + at] } else { 0 });
            for i in 0..features {
                all.obs[slot * stride + i] = G::feature(&state, i, game);
            }
            let taken = words[used * steps + at];
            let score = &mut under_way[at % games];
            all.actions[slot] = (taken & !ENDED) as i32;
            all.logprobs[slot] = values[at];
            all.rewards[slot] = values[steps + at];
            all.statuses[slot] =
                EpisodeStatus::new(taken & TERMINATED != 0, taken & TRUNCATED != 0);
            *score += values[steps + at];
            all.scores[slot] = match values.get(2 * steps + at) {
                Some(score) => *score,
                None if taken & ENDED != 0 => std::mem::take(score),
                None => 0.0,
            };
            if G::HAS_ILLEGAL_ACTIONS {
                let bit = |a| u32::from(G::is_legal(&state, a, game)) << a;
                all.legal[slot] = (0..game.num_actions()).map(bit).sum();
            }
        }
        first += games;
    }
    all.to_tensors(device)
}

fn read<E: Debug>(data: Result<TensorData, E>) -> TensorData {
    data.unwrap_or_else(|error| panic!("the device failed: {error:?}"))
}
