//! Settings: what a file and a command line ask for is what a run gets.

use grove::config::{TrainConfig, overlay};
use grove::env::{Fruit, FruitObservation};
use grove::trainer::{config_toml, new_settings};
use toml::Table;

/// The bounds of the ratio below and above after a file, then a command line.
fn bounds(file: &str, command_line: &[&str]) -> (f64, f64) {
    let mut table = overlay::to_table(&TrainConfig::for_game("fruit"));
    overlay::lay_over(&mut table, overlay::parse("the file", file).unwrap()).unwrap();
    overlay::apply(&mut table, command_line).unwrap();
    let config: TrainConfig = overlay::from_table(table).unwrap();
    (config.loss.clip_eps_low, config.loss.clip_eps_high)
}

#[test]
fn epsilon_is_both_bounds_unless_epsilon_high_is_given() {
    let cases: [(&str, &[&str], (f64, f64)); 12] = [
        ("", &[], (0.2, 0.2)),
        ("", &["epsilon=0.1"], (0.1, 0.1)),
        ("", &["loss.epsilon=0.1"], (0.1, 0.1)),
        ("", &["epsilon=0.1", "epsilon_high=0.3"], (0.1, 0.3)),
        ("", &["epsilon_high=0.3", "epsilon=0.1"], (0.1, 0.3)),
        ("", &["clip_eps_high=0.3", "loss.epsilon=0.1"], (0.1, 0.3)),
        ("", &["epsilon_high=0.3"], (0.2, 0.3)),
        ("", &["clip_eps_low=0.1"], (0.1, 0.2)),
        ("epsilon = 0.1", &[], (0.1, 0.1)),
        ("[loss]\nepsilon = 0.1\nepsilon_high = 0.28", &[], (0.1, 0.28)),
        ("epsilon_high = 0.28\nepsilon = 0.1", &["learning_rate=1e-3"], (0.1, 0.28)),
        // The command line goes before the file.
        ("clip_eps_low = 0.3\nclip_eps_high = 0.3", &["epsilon=0.1"], (0.1, 0.1)),
    ];
    for (file, command_line, expected) in cases {
        assert_eq!(bounds(file, command_line), expected, "{file:?}, {command_line:?}");
    }
}

/// The settings of the fruit catcher after `key=value`s, or what is said to them.
fn settings(command_line: &[&str]) -> Result<toml::Table, String> {
    let defaults = config_toml(&Fruit::default(), &TrainConfig::for_game("fruit"));
    let mut table = overlay::parse("the defaults", &defaults).unwrap();
    overlay::apply(&mut table, command_line).map_err(|error| error.to_string())?;
    Ok(table)
}

#[test]
fn words_of_other_trainers_never_mean_something_else() {
    // The game's, by its whole name; as TRL means it, it would be a length of the run.
    let steps = settings(&["fruit.max_steps=7"]).unwrap();
    assert_eq!(steps["fruit"]["max_steps"].as_integer(), Some(7));
    let said = settings(&["max_steps=7"]).unwrap_err();
    let words = "the setting `max_steps` is ambiguous; write one of: iterations, fruit.max_steps";
    assert_eq!(said, words);
    for (value, ours) in [("false", "none"), ("true", "group"), ("batch", "batch")] {
        let table = settings(&[&format!("scale_rewards={value}")]).unwrap();
        assert_eq!(table["advantage"]["scale_rewards"].as_str(), Some(ours));
    }
}

#[test]
fn an_unknown_setting_gets_a_likely_name_or_none() {
    for (key, likely) in [
        ("lr", Some("optimizer.learning_rate")),
        ("ent_coef", Some("loss.entropy_coef")),
        ("optimizer.lr", Some("optimizer.learning_rate")),
        ("lerning_rate", Some("optimizer.learning_rate")),
        ("optimiser.learning_rate", Some("optimizer.learning_rate")),
        ("sede", Some("seed")),
        ("fruit.widht", Some("fruit.width")),
        ("nonsense.a", None),
        ("a", None),
        ("xy", None),
        ("catch.rows", None),
        ("temperature", None),
    ] {
        let likely = likely.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let said = settings(&[&format!("{key}=1")]).unwrap_err();
        assert_eq!(said, format!("unknown setting `{key}`{likely}"));
    }
}

#[test]
fn the_defaults_are_those_of_the_game_as_it_is_set() {
    let settings = |set: &[&str]| {
        let set: Vec<String> = set.iter().map(|s| s.to_string()).collect();
        new_settings::<Fruit>(&Table::new(), &set).unwrap()
    };
    let iterations = |set: &[&str]| settings(set).1.iterations;
    assert_eq!(iterations(&[]), 100);
    assert_eq!(iterations(&["fruit.width=20"]), 100);
    assert_eq!(iterations(&["fruit.width=21"]), 300);
    let (game, config) = settings(&["fruit.observation=positions", "seed=7"]);
    assert_eq!(game.observation, FruitObservation::Positions);
    assert_eq!((config.iterations, config.seed), (600, 7));
    assert_eq!(config.policy.hidden, [128, 128]);
    // What is asked for goes before any default.
    assert_eq!(iterations(&["fruit.observation=positions", "iterations=5"]), 5);
}
