//! Settings: what a file and a command line ask for is what a run gets.

use grove::config::{TrainConfig, overlay};

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
