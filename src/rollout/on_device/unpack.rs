//! Conversion of recordings to trajectories.

use super::env_kernels::load_state;
use crate::data::{ENDED, Part, Recording, TERMINATED, TRUNCATED, Trajectory};
use crate::env::Rules;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Unpacks a recording of `game` to a trajectory on `device`. Reads the recording back; meant for
/// inspection and for learners that do not support recordings.
///
/// # Panics
/// If the recording's device fails.
pub async fn unpack<G: Rules>(game: G, recording: &Recording, device: &Device) -> Trajectory {
    let mut parts = Vec::new();
    for part in &recording.parts {
        parts.push(unpack_part(game, part, device).await);
    }
    let join = |pick: fn(&Trajectory) -> &Tensor<2>| {
        Tensor::cat(parts.iter().map(|part| pick(part).clone()).collect(), 1)
    };
    Trajectory {
        obs: Tensor::cat(parts.iter().map(|part| part.obs.clone()).collect(), 1),
        actions: Tensor::cat(parts.iter().map(|part| part.actions.clone()).collect(), 1),
        logprobs: join(|part| &part.logprobs),
        rewards: join(|part| &part.rewards),
        terminated: join(|part| &part.terminated),
        truncated: join(|part| &part.truncated),
        scores: join(|part| &part.scores),
        memory: None,
        legal: G::MASKED
            .then(|| Tensor::cat(parts.iter().filter_map(|part| part.legal.clone()).collect(), 1)),
    }
}

async fn unpack_part<G: Rules>(game: G, part: &Part, device: &Device) -> Trajectory {
    let [rows, num_steps, games] = part.words.dims();
    let words = read(part.words.clone().into_data_async().await);
    let words: Vec<u32> = words.iter::<i32>().map(|word| word as u32).collect();
    let values: Vec<f32> = read(part.values.clone().into_data_async().await).iter().collect();
    let first_scores = read(part.first_scores.clone().into_data_async().await);
    let mut under_way: Vec<f32> = first_scores.iter().collect();
    let steps = num_steps * games;
    let (logprobs, rest) = values.split_at(steps);
    let (rewards, own_scores) = rest.split_at(steps);
    let features = game.num_features();
    let mut obs = Vec::with_capacity(steps * features);
    let (mut actions, mut scores, mut legal) = (Vec::new(), Vec::new(), Vec::new());
    let (mut terminated, mut truncated) = (Vec::new(), Vec::new());
    for at in 0..steps {
        let state = load_state(&words, 0, at, steps, game);
        obs.extend((0..features).map(|i| G::feature(&state, i, game)));
        let taken = words[(rows - 1) * steps + at];
        let score = &mut under_way[at % games];
        *score += rewards[at];
        actions.push((taken & !ENDED) as i32);
        terminated.push(f32::from(taken & TERMINATED != 0));
        truncated.push(f32::from(taken & TRUNCATED != 0));
        scores.push(match own_scores.get(at) {
            Some(score) => *score,
            None if taken & ENDED != 0 => std::mem::take(score),
            None => 0.0,
        });
        if G::MASKED {
            let all = 0..game.num_actions();
            legal.extend(all.map(|a| f32::from(G::legal(&state, a, game))));
        }
    }
    let shape = [num_steps, games];
    let tensor = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, shape), device);
    Trajectory {
        obs: Tensor::from_data(TensorData::new(obs, [num_steps, games, features]), device),
        actions: Tensor::<2, Int>::from_data(TensorData::new(actions, shape), device),
        logprobs: tensor(logprobs.to_vec()),
        rewards: tensor(rewards.to_vec()),
        terminated: tensor(terminated),
        truncated: tensor(truncated),
        scores: tensor(scores),
        memory: None,
        legal: G::MASKED.then(|| {
            let shape = [num_steps, games, game.num_actions()];
            Tensor::from_data(TensorData::new(legal, shape), device)
        }),
    }
}

fn read<E: std::fmt::Debug>(data: Result<TensorData, E>) -> TensorData {
    data.unwrap_or_else(|error| panic!("the device failed: {error:?}"))
}
