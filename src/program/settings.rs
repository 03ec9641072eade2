//! `grove settings`: every setting with what it is, and the same as a file's comments.

use super::say::{tell, tell_json};
use super::{Games, Playable, SettingsArgs};
use crate::config::describe;
use crate::trainer::{config_toml, new_settings};
use anyhow::Result;
use serde::Serialize;
use std::borrow::Cow;
use toml::{Table, Value};

pub fn run(games: &Games, args: SettingsArgs) -> Result<()> {
    games.find(args.game.as_deref().map_or_else(|| games.usual(), Ok)?)?.settings(&args)
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
    env: &'a str,
    settings: Vec<Setting>,
}

/// Lists the settings of a game's run.
pub fn list<G: Playable>(args: &SettingsArgs) -> Result<()> {
    let (game, config) = new_settings::<G>(&Table::new(), &[])?;
    let text = config_toml(&game, &config);
    if args.json {
        return tell_json(&Report { env: G::NAME, settings: all(&text.parse()?) });
    }
    tell(commented(&text).trim_end())
}

/// The settings of a complete table, in its order.
fn all(table: &Table) -> Vec<Setting> {
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
            _ if key == "env" => {}
            value => found.push(setting(key.clone(), value)),
        }
    }
    found
}

/// A file of settings with a comment before each that says what it does, and what it may be.
pub fn commented(text: &str) -> String {
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
        let text = commented(&plain);
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
}
