//! Checks of a sweep's file, before anything is trained.

use super::SweepConfig;
use super::space::{self, Space};
use crate::program::args::SweepArgs;
use crate::program::trust;
use crate::settings::overlay::{self, last_part};
use anyhow::{Result, bail};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A value that is invalid beside the defaults is tried together with the other settings of this many random trials.
const CHECKED_TRIALS: u32 = 256;

/// Reads the seeds of a sweep's file, a string.
pub fn read_seeds<'de, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    match Value::deserialize(source)? {
        Value::String(seeds) => Ok(seeds),
        other => Err(de::Error::custom(format!(
            "`seeds` is {other}, but must be a string such as \"1..5\" or \"1,2\""
        ))),
    }
}

/// Describes, in a clause, the first key in which the text of a sweep's file differs from the one `before`; `None` if
/// there is none.
pub fn describe_difference(before: &str, now: &str) -> Option<String> {
    let [before, now] = [before, now].map(|text| text.parse::<Table>().unwrap_or_default());
    let value = |table: &Table, key: &str| {
        overlay::flatten(table).find(|(path, _)| path == key).map(|(_, value)| value.to_string())
    };
    let keys = overlay::flatten(&before).chain(overlay::flatten(&now)).map(|(key, _)| key);
    let mut values = keys.map(|key| (value(&before, &key), value(&now, &key), key));
    let (before, now, key) = values.find(|(before, now, _)| before != now)?;
    Some(match (before, now) {
        (Some(before), Some(now)) => format!(", with {key} = {before}, not {now}"),
        (Some(before), None) => format!(", with {key} = {before}, which is not in the file"),
        _ => format!(", without {key}"),
    })
}

/// Makes the ranges of fractional settings fractional even if their ends are written as integers.
pub fn allow_fractions(space: &mut Space, settings: &Table) {
    for (name, range) in space {
        let fraction = Table::from_iter([(name.clone(), Value::Float(0.5))]);
        if overlay::lay_over(&mut settings.clone(), fraction).is_ok() {
            range.allow_fractions();
        }
    }
}

/// Checks that no setting has two names in the file, of which one would silently win.
pub fn check_names(config: &SweepConfig) -> Result<()> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let fixed_names = overlay::flatten(&config.settings).map(|(name, _)| name);
    for name in config.space.keys().cloned().chain(fixed_names) {
        match names.insert(full_name(&name), name.clone()) {
            None => {}
            Some(known) if known == name => {
                bail!("`{name}` is in [settings] and in [space]; leave one of them out")
            }
            Some(known) => {
                bail!("`{known}` and `{name}` are the same setting; leave one of them out")
            }
        }
    }
    Ok(())
}

/// Checks that the user approves the code that a task's settings name, since the file may come from someone else.
pub fn check_code_is_approved(
    config: &SweepConfig,
    settings: &Table,
    args: &SweepArgs,
) -> Result<()> {
    let task_settings = settings.get(&config.game).and_then(Value::as_table);
    trust::require_approval_by_flag(
        &config.game,
        task_settings.unwrap_or(&Table::new()),
        args.trust,
    )?;
    match config.space.keys().find(|name| trust::is_about_code(name)) {
        Some(name) => bail!("`{name}` decides which code runs, and cannot be searched"),
        None => Ok(()),
    }
}

/// Checks that the runs of the first round of halving get to GRPO, without which most settings have no effect.
pub fn check_first_round(settings: &Table, iterations: u32) -> Result<()> {
    let sft = overlay::get(settings, "fit.iterations").and_then(Value::as_integer);
    if let Some(sft) = sft.filter(|sft| *sft >= i64::from(iterations)) {
        bail!(
            "the first round has {iterations} iterations, all of them SFT (fit.iterations = {sft}): lower \
             settings.fit.iterations, or search with more iterations or fewer rounds"
        );
    }
    Ok(())
}

/// Whether a sweep searches one of these settings, given by their full names.
pub fn is_any_searched(config: &SweepConfig, settings: &[&str]) -> bool {
    config.space.keys().any(|name| settings.contains(&&*full_name(name)))
}

/// The full name of a setting that may be written otherwise; a game's own settings stay as written.
fn full_name(name: &str) -> String {
    let found = overlay::match_setting(name).filter(|found| found.is_exact);
    found.map_or_else(|| name.to_string(), |found| found.path)
}

/// Checks every choice and both ends of every range with `validate`, which takes the `--set`s of a run. A value that
/// is invalid beside the default settings is still accepted if it is valid in at least one of [`CHECKED_TRIALS`] random
/// trials.
///
/// # Errors
/// The reason against the first value that no trial may have.
pub fn check_values(
    config: &SweepConfig,
    validate: impl Fn(&[String]) -> Result<()>,
) -> Result<()> {
    let check = |searched: BTreeMap<String, Value>| {
        validate(&format_assignments(&complete_settings(config, searched)))
            .map_err(|error| format!("{error:#}"))
    };
    let error_of_defaults = check(BTreeMap::new()).err();
    for (name, range) in &config.space {
        for value in range.extremes() {
            let Err(error) = check(BTreeMap::from([(name.clone(), value.clone())])) else {
                continue;
            };
            let is_possible = |trial| {
                let point = space::draw_point(&config.space, config.seed, trial);
                let mut settings = space::settings_at(&config.space, &point);
                settings.insert(name.clone(), value.clone());
                check(settings).is_ok()
            };
            if (0..CHECKED_TRIALS).any(is_possible) {
                continue;
            }
            if is_about(&error, name) || error_of_defaults.as_ref() == Some(&error) {
                bail!(error);
            }
            bail!("{name} = {value}: {error}");
        }
    }
    Ok(())
}

/// Whether an error begins with the full name of this setting, or quotes it as written.
fn is_about(error: &str, setting: &str) -> bool {
    let subject = error.trim_start_matches('`').split([' ', '`']).next();
    subject.map(last_part) == Some(last_part(&full_name(setting)))
        || error.contains(&format!("`{setting}`"))
}

/// Completes searched settings with those common to all trials. Keys are full names.
pub fn complete_settings(config: &SweepConfig, searched: BTreeMap<String, Value>) -> Table {
    let common = overlay::flatten(&config.settings);
    let mut settings: Table = common.map(|(path, value)| (path, value.clone())).collect();
    settings.extend(searched);
    settings
}

/// Formats settings as values of `--set`.
pub fn format_assignments(settings: &Table) -> Vec<String> {
    settings.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Sweep;
    use super::*;
    use crate::program::dispatch::builtin_games;
    use crate::program::text;

    /// The error about a sweep's file; empty if it is accepted.
    fn refusal(text: &str) -> String {
        let config = toml::from_str(text).unwrap();
        let file_path = "none/sweep.toml".into();
        let device = "cpu".to_string();
        let args = SweepArgs { file: file_path, device, ..SweepArgs::default() };
        let sweep = Sweep::new(&builtin_games(), config, &args).map(drop);
        sweep.err().map(|error| format!("{error:#}")).unwrap_or_default()
    }

    #[test]
    fn code_of_another_person_needs_approval() {
        let space = "[space]\n\"optimizer.learning_rate\" = { log = [1e-4, 1e-3] }";
        for settings in [
            "\"data.path\" = 'p.jsonl'\n\"data.verifier\" = 'touch pwned'",
            "data.path = 'p.jsonl'\nverifier = 'touch pwned'\nsandbox = false",
        ] {
            let error = refusal(&format!("game = 'data'\n[settings]\n{settings}\n{space}"));
            assert!(error.contains("approve it with --trust"), "{settings}: {error}");
        }
        for name in ["data.verifier", "verifier", "data.sandbox"] {
            let error = refusal(&format!(
                "game = 'data'\n[space]\n\"{name}\" = {{ choices = ['a', 'b'] }}"
            ));
            assert!(error.contains("cannot be searched"), "{name}: {error}");
        }
    }

    #[test]
    fn the_first_round_of_halving_must_get_to_grpo() {
        let halving = |rest: &str| {
            refusal(&format!(
                "game = 'sort'\nsearch = 'halving'\nrounds = 3\neta = 2\nsettings.iterations = 200\n{rest}\n"
            ))
        };
        let rate = "space.\"optimizer.learning_rate\" = { log = [1e-4, 1e-3] }";
        let error = halving(rate);
        assert!(error.contains("50 iterations, all of them SFT (fit.iterations = 100)"), "{error}");
        for searched in [
            "settings.fit.iterations = 10\nspace.\"optimizer.learning_rate\" = { log = [1e-4, 1e-3] }",
            "space.\"fit.iterations\" = { linear = [0, 60] }",
        ] {
            assert_eq!(halving(searched), "", "{searched}");
        }
    }

    /// The error about a `--set` of `grove train`.
    fn refusal_of_set(game: &str, assignment: &str) -> String {
        let games = builtin_games();
        let assignments = [assignment.to_string()];
        let checked = match games.find(game) {
            Ok(game) => (game.validate)(&games.models, &assignments),
            Err(_) => text::validate(game, &assignments),
        };
        format!("{:#}", checked.unwrap_err())
    }

    #[test]
    fn wrong_choices_and_ends_are_refused_in_the_words_of_set() {
        for (game, name, values, wrong) in [
            ("catch", "precision", "choices = ['f32', 'f64']", "'f64'"),
            ("catch", "precision", "choices = ['f32', 16]", "16"),
            ("catch", "learning_rate", "linear = [-1, 1]", "-1.0"),
            ("catch", "lr", "linear = [0.5, 1e39]", "1e39"),
            ("catch", "epsilon", "choices = [0.2, -0.5]", "-0.5"),
            ("catch", "num_groups", "choices = [8, 0]", "0"),
            ("catch", "num_groups", "linear = [1.5, 8]", "1.5"),
            ("catch", "policy.hidden", "choices = [[32], [0]]", "[0]"),
            ("catch", "policy.kind", "choices = ['gru', 'gruu']", "'gruu'"),
            ("catch", "catch.rows", "linear = [1, 8]", "1"),
            ("catch", "loss.label_smoothing", "linear = [0, 0.1]", "0.1"),
            ("catch", "num_minibatches", "choices = [1, 7]", "7"),
            ("sort", "sort.length", "linear = [1, 8]", "1"),
            ("sort", "group_size", "choices = [1, 8]", "1"),
            ("sort", "precision", "choices = ['f64']", "'f64'"),
            ("sort", "learnin_rate", "linear = [0, 1]", "0"),
        ] {
            let file = format!("game = '{game}'\n[space]\n'{name}' = {{ {values} }}");
            let words = refusal_of_set(game, &format!("{name}={wrong}"));
            assert_eq!(refusal(&file), words, "{file}");
        }
        let words = refusal("game = 'catch'\n[space]\nlearning_rate = { linear = [-1, 1] }");
        assert_eq!(words, "optimizer.learning_rate is -1, but must be 0 or more");
    }

    #[test]
    fn a_value_that_fits_some_trial_passes() {
        let with = |groups: &str| {
            let minibatches = "num_minibatches = { choices = [1, 7] }";
            refusal(&format!("game = 'catch'\n[space]\n{minibatches}\n{groups}"))
        };
        assert_eq!(with("num_groups = { choices = [8, 7] }"), "");
        let words = "update.num_minibatches is 7, but must be a divisor of the number of games (";
        assert!(with("num_groups = { choices = [8, 16] }").starts_with(words));
    }

    #[test]
    fn a_value_that_breaks_a_rule_about_another_setting_is_named() {
        let with = |settings: &str| {
            let space = "num_groups = { choices = [8, 9] }";
            refusal(&format!("game = 'catch'\n[settings]\n{settings}\n[space]\n{space}"))
        };
        let words = "num_groups = 9: update.num_minibatches is 8, but must be a divisor of the number of games (18 = \
                     num_groups * group_size)";
        assert_eq!(with("group_size = 2\nnum_minibatches = 8"), words);
        // The value has no part in this one.
        assert_eq!(with("group_size = 1"), refusal_of_set("catch", "group_size=1"));
    }

    #[test]
    fn settings_of_a_model_of_any_size_pass() {
        let check = |minibatches: &str| {
            let assignments =
                ["model.path=a".to_string(), format!("update.num_minibatches={minibatches}")];
            text::validate("sort", &assignments)
        };
        assert!(check("8").is_ok() && check("32").is_ok() && check("64").is_err());
    }

    #[test]
    fn ranges_of_integer_settings_give_integers() {
        let text = "entropy_coef = { linear = [0, 1] }\niterations = { linear = [1, 4] }";
        let mut space: Space = toml::from_str(text).unwrap();
        let settings = overlay::to_table(&crate::settings::TrainConfig::for_game("catch"));
        allow_fractions(&mut space, &settings);
        assert_eq!(space["entropy_coef"].value_at(0.25), Value::Float(0.25));
        assert_eq!(space["iterations"].value_at(0.25), Value::Integer(2));
    }

    #[test]
    fn a_setting_is_named_once() {
        let check = |settings: &str| {
            let space = "[space]\nlearning_rate = { log = [1e-4, 1e-2] }";
            let config =
                toml::from_str(&format!("game = 'catch'\n[settings]\n{settings}\n{space}"));
            check_names(&config.unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(check("num_groups = 8\n'rollout.group_size' = 4"), Ok(()));
        let error = check("optimizer = { learning_rate = 1e-3 }").unwrap_err();
        assert!(error.contains("`learning_rate` and `optimizer.learning_rate`"), "{error}");
        assert!(check("lr = 1e-3").is_err());
    }
}
