//! Games side by side in the CPU's vector units: one value of each game, and sampling of their actions.

use crate::math::at_least;
use crate::math::softmax::{compute_normalizer, lies_before, logprob, unnormalized_prob};
pub use crate::math::{LANES, Lanes};
use multiversion::multiversion;

/// Samples an action for each lane by the uniform numbers `u`, as [`sample`](super::sample), and computes the
/// log-probabilities.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub(crate) fn sample_lanes(
    logits: &[Lanes],
    u: &Lanes,
    actions: &mut [u32; LANES],
    logprobs: &mut Lanes,
) {
    let mut max = logits[0];
    for logits in &logits[1..] {
        for (max, z) in max.iter_mut().zip(logits) {
            *max = at_least(*z, *max);
        }
    }
    let mut total = [0.0f32; LANES];
    for logits in logits {
        for lane in 0..LANES {
            total[lane] += unnormalized_prob(logits[lane], max[lane]);
        }
    }
    let mut sum = [0.0f32; LANES];
    *actions = [0; LANES];
    for logits in logits {
        for lane in 0..LANES {
            sum[lane] += unnormalized_prob(logits[lane], max[lane]);
            actions[lane] += lies_before(sum[lane], u[lane], total[lane]);
        }
    }
    let last = logits.len() as u32 - 1;
    let mut chosen = [0.0f32; LANES];
    for (action, logits) in logits.iter().enumerate() {
        // An unconditional read, so that the loop vectorizes.
        let logits = *logits;
        for lane in 0..LANES {
            let is_chosen = actions[lane].min(last) == action as u32;
            chosen[lane] = if is_chosen { logits[lane] } else { chosen[lane] };
        }
    }
    for lane in 0..LANES {
        actions[lane] = actions[lane].min(last);
        logprobs[lane] = logprob(chosen[lane], &compute_normalizer(max[lane], total[lane]));
    }
}

/// The same values, `[width]`, in all lanes.
pub(crate) fn splat(row: &[f32]) -> Vec<Lanes> {
    row.iter().map(|x| [*x; LANES]).collect()
}

/// Sets the values of one lane, `[width]`.
pub(crate) fn set_lane(lanes: &mut [Lanes], lane: usize, row: &[f32]) {
    lanes.iter_mut().zip(row).for_each(|(lanes, x)| lanes[lane] = *x);
}

/// The most likely action of one lane; the first one if several are equally likely.
pub(crate) fn argmax_lane(logits: &[Lanes], lane: usize) -> u32 {
    let mut best = 0;
    for (action, logit) in logits.iter().enumerate() {
        if logit[lane] > logits[best][lane] {
            best = action;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sample;

    #[test]
    fn lanes_are_sampled_as_single_games() {
        for actions in [1, 2, 3, 7] {
            for round in 0..500 {
                let draw = |i: usize| ((round * 131 + i * 17) as f32 * 0.734).sin() * 4.0;
                let logits: Vec<Lanes> =
                    (0..actions).map(|a| std::array::from_fn(|l| draw(a * LANES + l))).collect();
                let u: Lanes = std::array::from_fn(|l| (draw(900 + l) * 0.125 + 0.5).fract());
                let (mut picked, mut logprobs) = ([0; LANES], [0.0; LANES]);
                sample_lanes(&logits, &u, &mut picked, &mut logprobs);
                for lane in 0..LANES {
                    let own: Vec<f32> = logits.iter().map(|l| l[lane]).collect();
                    let alone = sample(&own, u[lane]);
                    assert_eq!(picked[lane], alone.action);
                    assert!((logprobs[lane] - alone.logprob).abs() < 1e-5);
                }
            }
        }
    }
}
