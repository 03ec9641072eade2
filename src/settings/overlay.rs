//! Raw settings: a TOML table laid over the defaults, with every key and type checked.
//!
//! The defaults themselves, as a table, are the list of keys and types; other names of a setting come from
//! its declaration.

use super::conversion::convert;
use super::foreign::{NEAREST_SETTINGS, VALUE_FUNCTION_SETTINGS};
use super::{ConfigError, LanguageConfig, RunKind, TrainConfig, declarations};
use crate::env::{self, Env};
pub use crate::schema::table::get;
use crate::schema::{Setting, Settings, ValueRange, declared_range_at, flatten_sections};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::HashSet;
use toml::{Table, Value};

/// The settings as a table.
pub fn to_table<T: Serialize>(settings: &T) -> Table {
    Table::try_from(settings).expect("settings are plain structs, numbers, names and lists")
}

/// Reads settings from a complete table.
///
/// # Errors
/// [`ConfigError::OutOfRange`] for a name that is not allowed, or a number too large for its type.
pub fn from_table<T: DeserializeOwned + Settings>(table: Table) -> Result<T, ConfigError> {
    crate::schema::table::read("", table, T::SETTINGS).map_err(ConfigError::OutOfRange)
}

/// Splits a complete table into the game's own settings, in the table named `game`, and those of the run;
/// `env` is dropped.
///
/// # Errors
/// [`ConfigError::OutOfRange`] for a value of another type, a name that is not allowed, or a number too large for its
/// type.
pub fn split_game<G: DeserializeOwned + Env>(
    mut table: Table,
    game: &str,
) -> Result<(G, TrainConfig), ConfigError> {
    table.remove("env");
    let game_settings = match table.remove(game) {
        Some(Value::Table(settings)) => settings,
        _ => Table::new(),
    };
    let game_settings =
        crate::schema::table::read(&format!("{game}."), game_settings, G::settings());
    Ok((game_settings.map_err(ConfigError::OutOfRange)?, from_table(table)?))
}

/// A setting found by a word.
pub struct SettingMatch {
    /// Full path of the setting.
    pub path: String,
    /// Whether the word is a name of it, rather than similar to one.
    pub is_exact: bool,
}

/// Finds the setting that `word` names, under any trainer's name, or else the most similar one.
pub fn match_setting(word: &str) -> Option<SettingMatch> {
    let (game, text) = (TrainConfig::default(), LanguageConfig::for_model(super::TINY));
    let found = [to_table(&game), to_table(&text)].map(|table| match resolve(&table, word) {
        Ok(path) => Some(SettingMatch { path, is_exact: true }),
        Err(ConfigError::UnknownKey { suggestion, .. }) => {
            Some(SettingMatch { path: suggestion?, is_exact: false })
        }
        Err(ConfigError::AmbiguousKey { candidates, .. }) => {
            Some(SettingMatch { path: candidates.into_iter().next()?, is_exact: true })
        }
        Err(_) => None,
    });
    found.into_iter().flatten().min_by_key(|found| !found.is_exact)
}

/// Parses the content of a settings file.
///
/// # Errors
/// [`ConfigError::Syntax`] with the line.
pub fn parse(what: &str, text: &str) -> Result<Table, ConfigError> {
    text.parse::<Table>().map_err(|e| ConfigError::Syntax {
        what: what.to_string(),
        message: e.to_string().trim().lines().map(shorten).collect::<Vec<_>>().join("\n  "),
    })
}

/// A line of a message, cut where it is longer than a terminal is wide.
fn shorten(line: &str) -> String {
    const WIDTH: usize = 160;
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_string(),
    }
}

/// Lays `changes` over `table`: nested tables by key; a key at the top may also be the short name of a setting in a
/// section, if no other section has that name.
///
/// As in TRL, `epsilon` is the bound on both sides, unless `changes` hold an upper one, and
/// `scale_rewards` may be `true` (`group`) or `false` (`none`).
///
/// # Errors
/// A key that `table` does not have, an ambiguous short name, a setting that is given under two names, or a value of
/// another type.
pub fn lay_over(table: &mut Table, changes: Table) -> Result<(), ConfigError> {
    // An unknown section without settings would go unnoticed below.
    let is_empty = |key: &&String| changes[*key].as_table().is_some_and(Table::is_empty);
    if let Some(key) = changes.keys().find(|key| is_empty(key) && !table.contains_key(*key)) {
        resolve(table, key)?;
    }
    let changes = flatten(&changes).map(|(key, value)| (key, value.clone())).collect();
    let changes = resolve_changes(table, changes);
    let mut paths = HashSet::new();
    // Unknown keys are errors below.
    let mut known = changes.iter().filter_map(|change| change.path.as_ref().ok());
    if let Some(path) = known.find(|path| !paths.insert(*path)) {
        return Err(ConfigError::Conflict(format!("`{path}` is given twice, under two names")));
    }
    changes.into_iter().try_for_each(|change| apply_change(table, change))
}

/// The settings of a table of sections by their full names, `key` or `section.key`.
pub fn flatten(table: &Table) -> impl Iterator<Item = (String, &Value)> {
    table.iter().flat_map(|(key, value)| match value {
        Value::Table(section) => {
            section.iter().map(|(leaf, value)| (format!("{key}.{leaf}"), value)).collect()
        }
        value => vec![(key.clone(), value)],
    })
}

/// The last part of a setting's full name: `path` of `model.path`.
pub fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The text that is the value of the setting at a path; empty if there is none.
pub fn text_at<'a>(table: &'a Table, path: &str) -> &'a str {
    get(table, path).and_then(Value::as_str).unwrap_or_default()
}

/// Merges two tables of settings; where both have a setting, the value in `over` wins.
pub fn merge(mut base: Table, over: Table) -> Table {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(section)), Value::Table(changes)) => section.extend(changes),
            (_, value) => drop(base.insert(key, value)),
        }
    }
    base
}

/// Applies the `key=value`s of a command line, in their order and otherwise as [`lay_over`]. A value is
/// TOML; a bare word is a string.
///
/// # Errors
/// The errors of [`lay_over`], and one for an assignment without `=`.
pub fn apply_assignments<S: AsRef<str>>(
    table: &mut Table,
    assignments: &[S],
) -> Result<(), ConfigError> {
    let parsed: Result<Vec<_>, _> =
        assignments.iter().map(|a| parse_assignment(a.as_ref())).collect();
    resolve_changes(table, parsed?).into_iter().try_for_each(|change| apply_change(table, change))
}

/// The paths of the settings that the `key=value`s of a command line name.
///
/// # Errors
/// If a string is not a `key=value`, or its key is unknown, as in [`apply_assignments`].
pub fn resolve_assignments<S: AsRef<str>>(
    table: &Table,
    assignments: &[S],
) -> Result<Vec<String>, ConfigError> {
    let resolve_key = |text: &S| resolve(table, &parse_assignment(text.as_ref())?.0);
    assignments.iter().map(resolve_key).collect()
}

/// Whether one of the `key=value`s of a command line names the setting at `path`.
pub fn assigns<S: AsRef<str>>(assignments: &[S], path: &str) -> bool {
    let mut keys = assignments.iter().filter_map(|text| text.as_ref().split('=').next());
    keys.any(|key| is_name_of(key.trim(), path))
}

/// Whether `key` is the setting at `path`, with its section or without.
pub fn is_name_of(key: &str, path: &str) -> bool {
    key == path || key == last_part(path)
}

/// The key and the value of a `key=value`.
fn parse_assignment(text: &str) -> Result<(String, Value), ConfigError> {
    let malformed = |what: &str| {
        let advice = "write key=value, for instance learning_rate=1e-3";
        ConfigError::Malformed(format!("`{text}` {what}; {advice}"))
    };
    let (key, value) = text.split_once('=').ok_or_else(|| malformed("has no value"))?;
    let (key, text) = (key.trim(), value.trim());
    if key.is_empty() {
        return Err(malformed("names no setting"));
    }
    let parse = |text: &str| {
        let mut table = format!("value = {text}").parse::<Table>().ok()?;
        if table.len() == 1 { table.remove("value") } else { None }
    };
    // Command lines of other programs take `.5` and `1.`, too, which TOML does not.
    let decimal = || text.parse().ok().filter(|_| text.contains('.')).map(Value::Float);
    let value = parse(text).or_else(decimal).unwrap_or_else(|| Value::String(text.to_string()));
    Ok((key.to_string(), value))
}

/// A setting's new value.
struct Change {
    /// The setting's name as it was written.
    key: String,
    /// The full path of the setting, or why there is none.
    path: Result<String, ConfigError>,
    value: Value,
}

/// Finds the settings of the changes of one source, a file or the command line, up to the first that does not exist.
fn resolve_changes(table: &Table, changes: Vec<(String, Value)>) -> Vec<Change> {
    let mut resolved = Vec::new();
    for (key, value) in add_upper_bounds(changes) {
        let path = resolve(table, &key);
        let is_unknown = path.is_err();
        resolved.push(Change { key, path, value });
        if is_unknown {
            break;
        }
    }
    resolved
}

/// Adds an `epsilon_high` of the same value after each `epsilon` of the loss, unless the source sets the upper bound
/// under any name: TRL's `epsilon` stands for both bounds if `epsilon_high` is not given.
fn add_upper_bounds(changes: Vec<(String, Value)>) -> Vec<(String, Value)> {
    if changes.iter().any(|(key, _)| ["epsilon_high", "clip_eps_high"].contains(&last_part(key))) {
        return changes;
    }
    let with_upper_bound = |(key, value): (String, Value)| {
        let is_of_loss = ["epsilon", "loss.epsilon"].contains(&&*key);
        let above = is_of_loss.then(|| (format!("{key}_high"), value.clone()));
        std::iter::once((key, value)).chain(above)
    };
    changes.into_iter().flat_map(with_upper_bound).collect()
}

/// Converts a value in TRL's spelling to ours.
fn from_trl(path: &str, value: Value) -> Value {
    match value {
        Value::Boolean(is_scaled) if last_part(path) == SCALE_REWARDS => {
            Value::String(if is_scaled { "group" } else { "none" }.to_string())
        }
        value => value,
    }
}

/// The setting that may be a boolean in TRL.
pub(super) const SCALE_REWARDS: &str = "scale_rewards";

/// Other names of the settings of a section, each with ours: those of TRL, and `lr`.
pub(super) fn aliases(section: &Setting) -> impl Iterator<Item = (&'static str, &'static str)> {
    let settings = match section.range {
        ValueRange::Section(settings) => flatten_sections(settings),
        _ => Vec::new(),
    };
    let rate = (section.key == "optimizer").then_some(("lr", "learning_rate"));
    settings.into_iter().filter_map(|setting| Some((setting.alias?, setting.key))).chain(rate)
}

/// Makes a change, if its setting exists and its value has the setting's type.
fn apply_change(table: &mut Table, Change { key, path, value }: Change) -> Result<(), ConfigError> {
    let path = path.map_err(|error| match (error, table.get(&key)) {
        (ConfigError::UnknownKey { .. }, Some(Value::Table(section))) => {
            let leaf = section.keys().next().map_or("a setting", String::as_str);
            let expected = format!("it is a section of settings, such as `{key}.{leaf}`");
            ConfigError::WrongValue { key, value: value.to_string(), expected }
        }
        (error, _) => error,
    })?;
    let range = range_at(table, &path);
    let current = match path.split_once('.') {
        Some((section, leaf)) => table.get_mut(section).and_then(|s| s.get_mut(leaf)),
        None => table.get_mut(&path),
    };
    let current = current.expect("`resolve` gives paths that exist");
    if ["env", "task"].contains(&&*path) && *current != value {
        let what = if path == "env" { "game" } else { "task" };
        let name = value.as_str().unwrap_or("NAME");
        return Err(ConfigError::Malformed(format!(
            "`{path}` is not a setting; name the {what} itself, as in `grove train {name}`"
        )));
    }
    *current = convert(&path, range, current, from_trl(&path, value))?;
    Ok(())
}

/// The range of a setting of a table's run; `None` for those of a game or task.
pub fn range_at(table: &Table, path: &str) -> Option<ValueRange> {
    let (settings, narrowed_ranges) = declarations(table);
    let narrowed = narrowed_ranges.iter().find(|(key, _)| *key == path);
    narrowed.map(|(_, range)| *range).or_else(|| declared_range_at(settings, path))
}

/// The full path of `key`.
pub(super) fn resolve(table: &Table, key: &str) -> Result<String, ConfigError> {
    let paths: Vec<String> = flatten(table).map(|(path, _)| path).collect();
    if paths.iter().any(|path| path == key) {
        return Ok(key.to_string());
    }
    let (section, written) = key.rsplit_once('.').map_or(("", key), |(s, l)| (s, l));
    let is_alias = |(theirs, ours): &(&str, &str)| {
        *theirs == written && paths.iter().any(|path| last_part(path) == *ours)
    };
    let sections = TrainConfig::SETTINGS.iter().chain(LanguageConfig::SETTINGS);
    let leaf = sections.flat_map(aliases).find(is_alias).map_or(written, |(_, ours)| ours);
    let wanted = if section.is_empty() { leaf.to_string() } else { format!("{section}.{leaf}") };
    if paths.contains(&wanted) {
        return Ok(wanted);
    }
    let is_nearest =
        |(theirs, ours): &&(&str, &str)| *theirs == leaf && resolve(table, ours).is_ok();
    let foreign = NEAREST_SETTINGS.iter().find(is_nearest).map(|(_, ours)| *ours);
    // A game may have a setting by a name that TRL gives to one of the run.
    let is_candidate =
        |path: &&String| section.is_empty() && [leaf, written].contains(&last_part(path));
    let mut candidates: Vec<String> = paths.iter().filter(is_candidate).cloned().collect();
    // SFT before GRPO has a learning rate of its own, which is meant by its full name alone.
    let main = format!("optimizer.{leaf}");
    if candidates.contains(&main)
        && candidates.iter().all(|path| *path == main || path.starts_with("fit."))
    {
        candidates = vec![main];
    }
    if candidates.is_empty() {
        return Err(missing_error(table, key, leaf, foreign));
    }
    // A setting of the game has the name that other trainers give to one of the run.
    candidates.splice(0..0, foreign.map(str::to_string));
    match candidates.len() {
        1 => Ok(candidates.remove(0)),
        _ => Err(ConfigError::AmbiguousKey { key: key.to_string(), candidates }),
    }
}

/// The error for a key that names no setting of this table. Its last part is `leaf` in our spelling; `foreign` is the
/// setting that is nearest to another trainer's.
fn missing_error(table: &Table, key: &str, leaf: &str, foreign: Option<&str>) -> ConfigError {
    let section = key.rsplit_once('.').map_or("", |(section, _)| section);
    if env::NAMES.contains(&section) && !table.contains_key(section) {
        let is_language = RunKind::of(table) == Some(RunKind::Language);
        let owner = if is_language { "games" } else { "another game" };
        return other_run_error(table, key, owner);
    }
    if VALUE_FUNCTION_SETTINGS.contains(&leaf) {
        return ConfigError::ValueFunction { key: key.to_string() };
    }
    if foreign.is_none()
        && let Some(kind) = kind_with_setting(table, key)
    {
        return other_run_error(table, key, kind);
    }
    let suggestion = foreign.map(str::to_string).or_else(|| nearest_path(table, key, leaf));
    ConfigError::UnknownKey { key: key.to_string(), suggestion }
}

/// The kind of runs that alone have the setting `key`, if it is not that of this table.
fn kind_with_setting(table: &Table, key: &str) -> Option<&'static str> {
    let (other, kind) = match RunKind::of(table)? {
        RunKind::Game => (to_table(&LanguageConfig::for_model(super::TINY)), "language models"),
        RunKind::Language => (to_table(&TrainConfig::default()), "games"),
    };
    resolve(&other, key).is_ok().then_some(kind)
}

/// The error for a setting that only runs of `owner`, another kind or game, have.
fn other_run_error(table: &Table, key: &str, owner: &'static str) -> ConfigError {
    let run = table.get("env").or(table.get("task")).and_then(Value::as_str);
    let run = run.unwrap_or("another game").to_string();
    ConfigError::OtherRun { key: key.to_string(), owner, run }
}

/// The path most like `key`, whose last part is `leaf`, if they differ in less than a third of their
/// letters.
fn nearest_path(table: &Table, key: &str, leaf: &str) -> Option<String> {
    let distance = strsim::damerau_levenshtein;
    let near = |path: &String| {
        let short = (distance(last_part(path), leaf), leaf.len() / 3);
        let long = (distance(path, key), key.len() / 3);
        [short, long].into_iter().filter(|(off, max)| off <= max).map(|(off, _)| off).min()
    };
    let paths = flatten(table).filter_map(|(path, _)| Some((near(&path)?, path)));
    paths.min().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_written_as_on_other_command_lines() {
        let value = |text: &str| parse_assignment(&format!("a={text}")).unwrap().1;
        let read = [".5", "-1.", "1.5e3", "1e3"].map(value);
        assert_eq!(read, [0.5, -1.0, 1500.0, 1000.0].map(Value::Float));
        assert_eq!(["1.2.3", "run.1"].map(value), ["1.2.3", "run.1"].map(Value::from));
    }

    #[test]
    fn an_unknown_section_is_refused_even_if_it_is_empty() {
        let mut table = to_table(&TrainConfig::for_game("fruit"));
        let empty = |name: &str| format!("[{name}]").parse::<Table>().unwrap();
        lay_over(&mut table, empty("rollout")).unwrap();
        let error = lay_over(&mut table, empty("rollouts")).unwrap_err();
        assert!(matches!(error, ConfigError::UnknownKey { .. }), "{error}");
    }

    #[test]
    fn an_assignment_names_a_setting_with_its_section_or_without() {
        for (assignment, is_given) in [
            ("data.verifier=./v.sh", true),
            ("verifier=./v.sh", true),
            ("data.verifier = ./v.sh", true),
            ("other.verifier=./v.sh", false),
            ("data.folder=verifier=", false),
        ] {
            assert_eq!(assigns(&[assignment], "data.verifier"), is_given, "{assignment}");
        }
        assert!(!assigns(&["fit.iterations=3"], "iterations"));
    }

    #[test]
    fn the_nearest_setting_to_a_name_of_another_trainer_exists() {
        for (theirs, ours) in NEAREST_SETTINGS {
            assert!(match_setting(ours).is_some_and(|found| found.is_exact), "{theirs}: {ours}");
        }
    }

    #[test]
    fn a_game_may_have_settings_by_names_of_trl() {
        let mut table = to_table(&TrainConfig::default());
        let game_settings = Table::from_iter(
            [("epsilon", 0.5), ("beta", 0.5)].map(|(key, value)| (key.to_string(), value.into())),
        );
        table.insert("mygame".to_string(), game_settings.into());
        apply_assignments(&mut table, &["mygame.epsilon=0.1", "loss.epsilon=0.3"]).unwrap();
        assert_eq!(table["mygame"]["epsilon"].as_float(), Some(0.1));
        let loss = ["clip_eps_low", "clip_eps_high"].map(|key| table["loss"][key].as_float());
        assert_eq!(loss, [Some(0.3); 2]);
        for key in ["beta", "epsilon"] {
            let error =
                apply_assignments(&mut table, &[format!("{key}=0.1")]).unwrap_err().to_string();
            assert!(
                error.contains("ambiguous") && error.contains(&format!("mygame.{key}")),
                "{error}"
            );
        }
    }

    #[test]
    fn the_message_of_a_damaged_file_is_short() {
        for text in ["\0".repeat(9000), format!("seed = {}", "é".repeat(9000))] {
            let message = parse("config.toml", &text).unwrap_err().to_string();
            assert!(message.contains("line 1") && message.chars().count() < 1000, "{message}");
        }
    }
}
