//! Schedules of the learning rate and the entropy weight.

use crate::settings::{LrSchedule, OptimizerConfig, TrainConfig};

/// Learning rate of optimizer step `step_index` of `total`, counted from 0.
///
/// Linear warmup over the first `warmup_ratio` of the run, in whole steps, the last of which has
/// the peak rate; then the configured schedule.
pub fn learning_rate(config: &OptimizerConfig, step_index: u64, total: u64) -> f64 {
    let peak = config.learning_rate;
    // Compensates for rounding, so that exact products are not rounded up.
    let warmup = (config.warmup_ratio * total as f64 - 1e-6).ceil().max(0.0);
    let step = step_index as f64;
    if step < warmup {
        return peak * ((step + 1.0) / warmup);
    }
    let progress = ((step - warmup) / (total as f64 - warmup).max(1.0)).clamp(0.0, 1.0);
    peak * match config.lr_scheduler_type {
        LrSchedule::Constant => 1.0,
        LrSchedule::Linear => 1.0 - progress,
        LrSchedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    }
}

/// Number of optimizer steps of a run.
pub fn total_optimizer_steps(config: &TrainConfig) -> u64 {
    first_optimizer_step(config, config.iterations)
}

/// Index of an iteration's first optimizer step, if every update takes all of its steps.
pub fn first_optimizer_step(config: &TrainConfig, iteration: u32) -> u64 {
    let update = &config.update;
    u64::from(iteration) * (update.update_epochs * update.num_minibatches) as u64
}

/// Entropy weight in `iteration`, counted from 0.
pub fn entropy_coef(config: &TrainConfig, iteration: u32) -> f64 {
    let loss = &config.loss;
    interpolate(loss.entropy_coef, loss.entropy_coef_final, iteration, config.iterations)
}

/// Linear interpolation from `first` at iteration 0 to `last` at the last of `total` iterations.
fn interpolate(first: f64, last: f64, iteration: u32, total: u32) -> f64 {
    let progress = f64::from(iteration) / f64::from(total.max(2) - 1);
    first + (last - first) * progress.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TrainConfig;

    #[test]
    fn warmup_never_exceeds_the_peak_learning_rate() {
        let mut config = TrainConfig::for_game("any").optimizer;
        config.learning_rate = 3.0;
        for schedule in [LrSchedule::Constant, LrSchedule::Linear, LrSchedule::Cosine] {
            config.lr_scheduler_type = schedule;
            for (ratio, total, warm) in [
                (0.1, 15, 2),
                (0.07, 100, 7),
                (0.001, 15, 1),
                (0.5, 7, 4),
                (1.0, 3, 3),
                (0.0, 9, 0),
            ] {
                config.warmup_ratio = ratio;
                let rate = |update| learning_rate(&config, update, total);
                assert!((0..=total).all(|update| rate(update) <= 3.0), "{ratio} of {total}");
                for update in 0..warm {
                    let want = 3.0 * (update + 1) as f64 / warm as f64;
                    assert!((rate(update) - want).abs() < 1e-12, "{ratio} of {total}: {update}");
                }
                assert!(warm == total || rate(warm) == 3.0, "{ratio} of {total}: the peak");
            }
        }
    }

    #[test]
    fn schedules_start_warm_and_end_as_named() {
        let mut config = TrainConfig::for_game("any").optimizer;
        config.learning_rate = 2.0;
        config.warmup_ratio = 0.1;
        for (schedule, half, end) in [
            (LrSchedule::Constant, 2.0, 2.0),
            (LrSchedule::Linear, 1.0, 0.0),
            (LrSchedule::Cosine, 1.0, 0.0),
        ] {
            config.lr_scheduler_type = schedule;
            let rate = |update| learning_rate(&config, update, 100);
            assert!((rate(0) - 0.2).abs() < 1e-9);
            assert!((rate(9) - 2.0).abs() < 1e-9);
            assert!((rate(10) - 2.0).abs() < 1e-9);
            assert!((rate(55) - half).abs() < 1e-9, "{schedule:?}");
            assert!((rate(100) - end).abs() < 1e-9, "{schedule:?}");
        }
        assert_eq!(interpolate(0.2, 0.1, 0, 11), 0.2);
        assert!((interpolate(0.2, 0.1, 5, 11) - 0.15).abs() < 1e-12);
        assert!((interpolate(0.2, 0.1, 10, 11) - 0.1).abs() < 1e-12);
        assert_eq!(interpolate(0.2, 0.1, 0, 1), 0.2);
    }
}
