//! Rollouts on CubeCL devices: the rules of a game, and in fused rollouts the policy too, in kernels.

mod branches;
mod check;
mod device_games;
mod env_kernels;
mod fused;
mod fused_kernels;
mod fused_layers;
mod random_kernels;
mod stepwise_kernels;

pub use branches::DeviceBranches;
pub use check::check_on_device;
pub use device_games::DeviceGames;
pub(crate) use env_kernels::{load_env_state, load_episode};
pub use fused::FusedRollout;
pub use fused_kernels::PackedStates;
pub(super) use random_kernels::play_at_random_on_device;
pub(super) use stepwise_kernels::{StepwiseBuffers, largest_stepwise_buffer_bytes};

use super::{
    BranchEpisode, EnvStatesError, RolloutKeys, action_key, action_uniform, branch_episode,
    branch_member, branch_step, env_state, env_words, masks, play_at_random, staggered_time,
};
