//! The sizes of a game's benchmark: those of its options, else of `--set`, else the same for all games.

use super::BenchArgs;
use crate::settings::{GroupStart, TrainConfig, overlay};
use anyhow::{Result, ensure};
use toml::Table;

/// Number of parallel games.
const DEFAULT_GAMES: usize = 4096;

/// Returns the settings of a benchmark. `settings` are those of a run with the changes by `--set`, and `table` the same
/// with the game's own.
///
/// # Errors
/// If the games are no whole number of groups, or `--set` names no setting.
pub fn benchmark_config(
    args: &BenchArgs,
    table: &Table,
    settings: &TrainConfig,
) -> Result<TrainConfig> {
    let named = overlay::resolve_assignments(table, &args.set)?;
    let is_set = |path: &str| named.iter().any(|name| name == path);
    let mut config = settings.clone();
    config.engine = args.engine.unwrap_or(config.engine);
    config.precision = args.precision.unwrap_or(config.precision);
    let (rollout, update) = (&mut config.rollout, &mut config.update);
    let hidden = is_set("policy.hidden").then(|| config.policy.hidden.clone());
    config.policy.hidden = choose(args.hidden.clone(), hidden, vec![64]);
    let group_size = is_set("rollout.group_size").then_some(rollout.group_size);
    rollout.group_size = choose(args.group_size, group_size, 8);
    if args.num_envs.is_some() || !is_set("rollout.num_groups") {
        let games = args.num_envs.unwrap_or(DEFAULT_GAMES);
        ensure!(
            games.is_multiple_of(rollout.group_size),
            "--num-envs is {games}, but must be a multiple of --group-size ({})",
            rollout.group_size
        );
        // A group of 0 games is refused with the other settings.
        rollout.num_groups = games.checked_div(rollout.group_size).unwrap_or(0);
    }
    let num_steps = is_set("rollout.num_steps").then_some(rollout.num_steps);
    rollout.num_steps = choose(args.num_steps, num_steps, 100);
    let learn_steps = is_set("rollout.learn_steps").then_some(rollout.learn_steps);
    rollout.learn_steps = choose(args.learn_steps, learn_steps, rollout.num_steps);
    if !is_set("rollout.start") {
        rollout.start = GroupStart::Level;
    }
    let update_epochs = is_set("update.update_epochs").then_some(update.update_epochs);
    update.update_epochs = choose(args.update_epochs, update_epochs, 1);
    let num_minibatches = is_set("update.num_minibatches").then_some(update.num_minibatches);
    update.num_minibatches = choose(args.num_minibatches, num_minibatches, 1);
    // Long enough that no schedule ends during the measurement.
    config.iterations = 1_000_000;
    Ok(config)
}

/// Chooses the value of a setting: that of its option, else that of `--set`, else the default of benchmarks.
fn choose<T>(option: Option<T>, from_set: Option<T>, default: T) -> T {
    option.or(from_set).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Catch;
    use crate::program::args::{Cli, Command};
    use crate::trainer::{config_to_toml, new_settings};
    use clap::Parser;

    /// Applies the sizes of a command line.
    fn apply(words: &str) -> Result<TrainConfig> {
        let words = ["grove", "bench", "catch"].into_iter().chain(words.split_whitespace());
        let Command::Bench(args) = Cli::try_parse_from(words)?.command else {
            unreachable!("the command is `bench`")
        };
        let (game, settings) = new_settings::<Catch>(&Table::new(), &args.set)?;
        benchmark_config(&args, &config_to_toml(&game, &settings).parse()?, &settings)
    }

    #[test]
    fn a_size_is_that_of_its_option_or_of_set_or_the_usual_one() {
        let sizes = |words: &str| {
            let TrainConfig { policy, rollout, update, .. } = apply(words).unwrap();
            let steps = (rollout.num_steps, rollout.learn_steps);
            let updates = (update.update_epochs, update.num_minibatches);
            (policy.hidden, (rollout.num_groups, rollout.group_size), steps, updates)
        };
        assert_eq!(sizes(""), (vec![64], (512, 8), (100, 100), (1, 1)));
        let set = "--set hidden=[64,64] --set group_size=4 --set num_steps=20 --set num_minibatches=2 \
                   --set update.update_epochs=3";
        assert_eq!(sizes(set), (vec![64, 64], (1024, 4), (20, 20), (3, 2)));
        let options = "--hidden 8 --group-size 2 --num-envs 6 --num-steps 30 --num-minibatches 3 \
                       --update-epochs 1";
        assert_eq!(sizes(&format!("{set} {options}")), (vec![8], (3, 2), (30, 30), (1, 3)));
        let few = "--set rollout.num_groups=3 --set learn_steps=7";
        assert_eq!(sizes(few), (vec![64], (3, 8), (100, 7), (1, 1)));
        assert_eq!(sizes(&format!("{few} --learn-steps 9 --num-envs 16")).1, (2, 8));
    }

    #[test]
    fn other_settings_are_those_of_set_too() {
        let config = apply("--set engine=general --set precision=bf16 --set start=branch").unwrap();
        assert_eq!(config.engine.name(), "general");
        assert_eq!((config.precision.name(), config.rollout.start), ("bf16", GroupStart::Branch));
        assert_eq!(apply("--set precision=bf16 --precision f32").unwrap().precision.name(), "f32");
        assert_eq!(apply("").unwrap().rollout.start, GroupStart::Level);
        let error = apply("--set group_size=3").unwrap_err().to_string();
        assert!(error.contains("--num-envs is 4096") && error.contains("(3)"), "{error}");
        assert_eq!(apply("--set group_size=0 --num-envs 0").unwrap().rollout.num_groups, 0);
    }
}
