//! The minimum arithmetic and memory traffic of a step, derived from sizes alone (a roofline model).
//!
//! With `f` features, hidden layers of `h1` (and `h2`) units and `a` actions, a perceptron has
//! `m = f h1 + h1 a` (or `f h1 + h1 h2 + h2 a`) weights; a recurrent layer of `h2` units has
//! `3 (h1 h2 + h2 h2)` instead of `h1 h2`. For a decoder only the weight matrices count; attention scores,
//! whose number varies from step to step, are left out.
//!
//! - *Arithmetic*: floating-point operations (a multiply-add counts as two) of the matrix products alone.
//!   Forward: `2 m`. Backward: `2 m` for the weight gradients and `2 (m - f h1)` for the input gradients;
//!   the observation needs none. A rollout step costs one forward pass. Training adds a forward and a
//!   backward pass per epoch, times the fraction of steps that are learnt from.
//! - *Traffic*: bytes that must be written and read at least once per step. A rollout writes the packed
//!   state, the action with the episode's end, the log-probability and the reward, in 4-byte words.
//!   Computing advantages reads actions and rewards and writes an advantage. Each epoch reads the state,
//!   the action, the log-probability and the advantage. Weights, which stay in caches, and other traffic
//!   of an engine are left out.
//!
//! A device at 100 % of its peak by these counts would be at its limit. One at 10 % may be limited by other
//! work (rules, random numbers, exponentials, launches), which the counts ignore.

use crate::env::{Rules, num_words};
use crate::settings::TrainConfig;
use serde::Serialize;

/// Arithmetic and traffic of a step of one game.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct StepWork {
    /// Floating-point operations of a step of a rollout.
    pub policy_flops: f64,
    /// Floating-point operations of a step of training.
    pub trained_flops: f64,
    /// Bytes of a step of a rollout.
    pub policy_bytes: f64,
    /// Bytes of a step of training.
    pub trained_bytes: f64,
}

impl StepWork {
    /// Computes the work of a step of a game with the settings of a run.
    pub fn new<G: Rules>(game: G, config: &TrainConfig) -> Self {
        let matrices = count_weights(game, config);
        let weights: f64 = matrices.iter().sum();
        let forward = 2.0 * weights;
        let backward = 2.0 * weights + 2.0 * (weights - matrices[0]);
        let rollout = &config.rollout;
        let learnt_fraction = rollout.learn_steps as f64 / rollout.num_steps as f64;
        let passes = config.update.update_epochs as f64 * learnt_fraction;
        let word = size_of::<u32>() as f64;
        let state = num_words(game) as f64 * word;
        let policy_bytes = state + 3.0 * word;
        Self {
            policy_flops: forward,
            trained_flops: forward + passes * (forward + backward),
            policy_bytes,
            trained_bytes: policy_bytes + 3.0 * word + passes * (state + 3.0 * word),
        }
    }
}

/// Counts the weights in each matrix of a policy; the first one takes the observation.
fn count_weights<G: Rules>(game: G, config: &TrainConfig) -> Vec<f64> {
    let parameters = config.policy.parameters(game.num_features(), game.num_actions());
    let matrices = parameters.iter().filter(|parameter| parameter.shape.len() == 2);
    matrices.map(|matrix| matrix.shape.iter().product::<usize>() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Env, Fruit};
    use crate::settings::ModelKind;

    #[test]
    fn work_agrees_with_a_count_by_hand() {
        let game = Fruit::default();
        assert_eq!(game.num_features(), 16);
        let mut config = TrainConfig::for_game("fruit");
        config.policy.hidden = vec![64];
        config.rollout.num_steps = 100;
        config.rollout.learn_steps = 50;
        config.update.update_epochs = 4;
        // 16 x 64 and 64 x 3 weights; two epochs.
        let work = StepWork::new(game, &config);
        assert_eq!(work.policy_flops, 2.0 * 1216.0);
        assert_eq!(work.trained_flops, 2432.0 + 2.0 * (2432.0 + 2432.0 + 2.0 * 192.0));
        // Three words of state.
        assert_eq!(work.policy_bytes, 24.0);
        assert_eq!(work.trained_bytes, 24.0 + 12.0 + 2.0 * 24.0);
        config.policy.hidden = vec![64, 32];
        assert_eq!(StepWork::new(game, &config).policy_flops, 2.0 * (1024.0 + 2048.0 + 96.0));
        config.policy.kind = ModelKind::Gru;
        let gates = 3.0 * (2048.0 + 1024.0);
        assert_eq!(StepWork::new(game, &config).policy_flops, 2.0 * (1024.0 + gates + 96.0));
        config.policy.kind = ModelKind::Decoder;
        // Two layers: queries and outputs, keys and values of half as many heads, SwiGLU.
        let layer = 2.0 * 64.0 * 64.0 + 2.0 * 64.0 * 32.0 + 3.0 * 64.0 * 128.0;
        let all = 16.0 * 64.0 + 2.0 * layer + 64.0 * 3.0;
        assert_eq!(StepWork::new(game, &config).policy_flops, 2.0 * all);
    }
}
