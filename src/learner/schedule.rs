//! Values that change over a run.

use crate::config::{LrSchedule, OptimizerConfig, TrainConfig};

/// The learning rate of optimiser step `update` out of `total`, both counted from 0.
///
/// It rises linearly over the first `warmup_ratio` of the run, then follows the schedule to its end.
pub fn learning_rate(config: &OptimizerConfig, update: u64, total: u64) -> f64 {
    let peak = config.learning_rate;
    let warmup = config.warmup_ratio * total as f64;
    let update = update as f64;
    if update < warmup {
        return peak * (update + 1.0) / warmup.max(1.0);
    }
    let progress = ((update - warmup) / (total as f64 - warmup).max(1.0)).clamp(0.0, 1.0);
    peak * match config.lr_scheduler_type {
        LrSchedule::Constant => 1.0,
        LrSchedule::Linear => 1.0 - progress,
        LrSchedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    }
}

/// Optimiser steps of a whole run.
pub fn total_updates(config: &TrainConfig) -> u64 {
    let update = &config.update;
    u64::from(config.iterations) * (update.update_epochs * update.num_minibatches) as u64
}

/// The weight of the entropy in `iteration`, counted from 0.
pub fn entropy_coef(config: &TrainConfig, iteration: u32) -> f64 {
    let loss = &config.loss;
    linear(loss.entropy_coef, loss.entropy_coef_final, iteration, config.iterations)
}

/// From `first` at iteration 0 to `last` at the last of `total` iterations, on a line.
fn linear(first: f64, last: f64, iteration: u32, total: u32) -> f64 {
    let progress = f64::from(iteration) / f64::from(total.max(2) - 1);
    first + (last - first) * progress.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

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
        assert_eq!(linear(0.2, 0.1, 0, 11), 0.2);
        assert!((linear(0.2, 0.1, 5, 11) - 0.15).abs() < 1e-12);
        assert!((linear(0.2, 0.1, 10, 11) - 0.1).abs() < 1e-12);
        assert_eq!(linear(0.2, 0.1, 0, 1), 0.2);
    }
}
