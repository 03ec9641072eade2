//! Communication cost of a shared run, and the check that its ranks agree.

use super::engine::Engine;
use crate::disk;
use crate::metrics::Communication;
use crate::parallel::{Team, TeamError};

/// Iterations between comparisons of the ranks' policies.
const COMPARE_EVERY: u32 = 32;

/// Measures the communication cost of iteration `iteration`, counted from 1, which took `seconds`; `None` for one rank.
/// Also checks that all ranks have the same parameters: after the first iteration, every [`COMPARE_EVERY`] iterations
/// from there, and after the last.
pub(super) async fn measure<E: Engine>(
    engine: &E,
    iteration: u32,
    seconds: f64,
) -> Result<Option<Communication>, TeamError> {
    let team = engine.team();
    if team.size() == 1 {
        return Ok(None);
    }
    let traffic = team.take_traffic();
    let busy_seconds =
        team.all_gather_numbers(&[seconds - (traffic.seconds - traffic.hidden_seconds)])?.concat();
    let mean = busy_seconds.iter().sum::<f64>() / busy_seconds.len() as f64;
    let max = busy_seconds.iter().copied().fold(0.0, f64::max);
    if iteration % COMPARE_EVERY == 1 || iteration == engine.iterations() {
        compare_policies(team, &engine.params().await)?;
    }
    Ok(Some(Communication {
        num_ranks: team.size(),
        seconds: traffic.seconds,
        hidden_fraction: if traffic.seconds > 0.0 {
            traffic.hidden_seconds / traffic.seconds
        } else {
            0.0
        },
        bytes: traffic.vector_bytes,
        other_bytes: traffic.other_bytes,
        imbalance: max / mean - 1.0,
    }))
}

/// Checks that all ranks of `team` have the same parameters.
///
/// # Errors
/// If they differ, or a rank fails or does not respond.
fn compare_policies(team: &Team, params: &[f32]) -> Result<(), TeamError> {
    let bytes = bytemuck::cast_slice::<f32, u8>(params);
    team.check_identical("policy, by its SHA-256", &disk::sha256(bytes))
}
