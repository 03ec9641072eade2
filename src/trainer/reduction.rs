//! What it costs that members share a run, and whether they still have the same policy.

use crate::metrics::Reduction;
use crate::parallel::{Team, TeamError};
use sha2::{Digest, Sha256};

/// Iterations after which members compare their policies.
const COMPARE_EVERY: u32 = 32;

/// What the members of `team` told each other in an iteration of so many seconds; `None` where there is but
/// one.
///
/// # Errors
/// If another member is gone or silent.
pub(super) fn reduction(team: &Team, seconds: f64) -> Result<Option<Reduction>, TeamError> {
    if team.size() == 1 {
        return Ok(None);
    }
    let traffic = team.take_traffic();
    let busy = team.all_gather_numbers(&[seconds - (traffic.seconds - traffic.hidden)])?.concat();
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    let most = busy.iter().copied().fold(0.0, f64::max);
    Ok(Some(Reduction {
        ranks: team.size(),
        seconds: traffic.seconds,
        hidden: if traffic.seconds > 0.0 { traffic.hidden / traffic.seconds } else { 0.0 },
        bytes: traffic.vectors,
        other_bytes: traffic.others,
        imbalance: most / mean - 1.0,
    }))
}

/// Whether members are to [`compare`] their policies after an iteration, counted from 1: the first, now and then,
/// and the last.
pub(super) fn is_compared(iteration: u32, iterations: u32) -> bool {
    iteration % COMPARE_EVERY == 1 || iteration == iterations
}

/// Checks that all members of `team` have these parameters.
///
/// # Errors
/// If they have not, or one of them is gone or silent.
pub(super) fn compare(team: &Team, params: &[f32]) -> Result<(), TeamError> {
    let hash = Sha256::digest(bytemuck::cast_slice::<f32, u8>(params));
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    team.agree("policy, by its SHA-256", &hash)
}
