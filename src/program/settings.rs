//! `grove settings`: every setting with what it is, and the same as a file's comments.

use super::say::{tell, tell_json};
use super::{Games, Playable, SettingsArgs};
use crate::config::{Description, describe};
use crate::task;
use crate::trainer::language::{self, LanguageConfig, TINY, language_settings};
use crate::trainer::{config_toml, new_settings};
use anyhow::Result;
use serde::Serialize;
use std::borrow::Cow;
use toml::{Table, Value};

/// What is known of a setting, by its full name.
type Describe = fn(&str) -> Option<Description>;

pub fn run(games: &Games, args: SettingsArgs) -> Result<()> {
    match args.game.as_deref() {
        Some(name) if games.find(name).is_err() && task::find(name).is_ok() => of_task(name, &args),
        Some(name) => games.find(name)?.settings(&args),
        None => games.find(games.default_name()?)?.settings(&args),
    }
}

/// A setting with its default for a game.
#[derive(Serialize)]
struct Setting {
    key: String,
    default: Value,
    range: Option<Cow<'static, str>>,
    meaning: Option<&'static str>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    settings: Vec<Setting>,
}

/// Lists the settings of a game's run.
pub fn list<G: Playable>(args: &SettingsArgs) -> Result<()> {
    let (game, config) = new_settings::<G>(&Table::new(), &[])?;
    let text = config_toml(&game, &config);
    if args.json {
        let settings = all(&text.parse()?, describe);
        return tell_json(&Report { env: Some(G::NAME), task: None, settings });
    }
    tell(commented(&text, describe).trim_end())
}

/// Lists the settings of a task's run, for a fresh model.
fn of_task(name: &str, args: &SettingsArgs) -> Result<()> {
    let own = (task::find(name)?.defaults)();
    let table = language_settings(name, &own, &LanguageConfig::for_model(TINY));
    if args.json {
        let settings = all(&table, language::describe);
        return tell_json(&Report { env: None, task: Some(name), settings });
    }
    tell(commented(&table.to_string(), language::describe).trim_end())
}

/// The settings of a complete table, in its order.
fn all(table: &Table, describe: Describe) -> Vec<Setting> {
    let setting = |key: String, default: &Value| {
        let about = describe(&key);
        let (range, meaning) = about.map(|a| (a.range, a.meaning)).unzip();
        Setting { key, default: default.clone(), range, meaning }
    };
    let mut found = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(section) => {
                found.extend(section.iter().map(|(k, v)| setting(format!("{key}.{k}"), v)));
            }
            _ if key == "env" || key == "task" => {}
            value => found.push(setting(key.clone(), value)),
        }
    }
    found
}

/// A file of settings with a comment before each that says what it does, and what it may be.
pub fn commented(text: &str, describe: Describe) -> String {
    let mut commented = String::new();
    let mut section = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = line.split_once(" = ") {
            let dot = if section.is_empty() { "" } else { "." };
            if let Some(about) = describe(&format!("{section}{dot}{key}")) {
                commented += &format!("# {}\n# {}: {}\n", about.meaning, key, about.range);
            }
        }
        commented += line;
        commented.push('\n');
    }
    commented
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TrainConfig, descriptions};
    use crate::env::Fruit;

    #[test]
    fn comments_change_no_setting_and_every_one_of_a_run_has_one() {
        let plain = config_toml(&Fruit::default(), &TrainConfig::for_game("fruit"));
        let text = commented(&plain, describe);
        assert_eq!(text.parse::<Table>().unwrap(), plain.parse::<Table>().unwrap());
        assert_eq!(
            text.lines().filter(|line| line.starts_with('#')).count(),
            2 * descriptions().count()
        );
        let words =
            "# The highest learning rate of the run.\n# learning_rate: above 0\nlearning_rate = ";
        assert!(text.contains(words), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
    }

    #[test]
    fn settings_of_a_task_have_comments_too() {
        let own = (task::find("sort").unwrap().defaults)();
        let table = language_settings("sort", &own, &LanguageConfig::for_model(TINY));
        let text = commented(&table.to_string(), language::describe);
        assert_eq!(text.parse::<Table>().unwrap(), table);
        let comments = text.lines().filter(|line| line.starts_with('#')).count();
        assert_eq!(comments, 2 * (all(&table, language::describe).len() - own.len()));
    }
}
