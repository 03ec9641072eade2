//! `grove settings`: every setting with its default, range and meaning, as a settings file, as JSON or as a
//! JSON Schema.

use super::args::SettingsArgs;
use super::games::{ConfigurableGame, Games};
use super::output::{print_json, print_result};
use crate::schema::{Setting, ValueRange, flatten_sections};
use crate::settings::{LanguageConfig, Precision, TINY, declarations, file_schema, overlay};
use crate::task::{self, TaskError};
use crate::trainer::text::join_language_settings;
use crate::trainer::{config_to_toml, new_settings};
use anyhow::Result;
use serde::Serialize;
use toml::{Table, Value};

/// Maximum number of characters of a line of a comment.
const COMMENT_COLUMNS: usize = 88;

/// Prints the settings of a game's or a task's run.
pub fn run(games: &Games, args: SettingsArgs) -> Result<()> {
    match args.game.as_deref() {
        Some(name) if task::find(name).is_ok() => list_task(name, &args),
        name => (games.find_beside_tasks(name)?.settings)(&args),
    }
}

/// Prints the settings of a game's run.
pub fn list<G: ConfigurableGame>(args: &SettingsArgs) -> Result<()> {
    let (game, config) = new_settings::<G>(&Table::new(), &[])?;
    print(&config_to_toml(&game, &config).parse()?, G::settings(), args)
}

/// Prints the settings of a task's run, for a new model.
fn list_task(name: &str, args: &SettingsArgs) -> Result<()> {
    let task = task::find(name)?;
    let task_settings = (task.defaults)();
    let config = language_defaults(name, TINY, None, Precision::F32)?;
    print(&join_language_settings(name, &task_settings, &config), task.settings, args)
}

/// Default settings of a run on a task for the model at `path`, or `tiny`, of `num_params` parameters; `None` for new
/// weights.
pub fn language_defaults(
    task: &str,
    path: &str,
    num_params: Option<usize>,
    precision: Precision,
) -> Result<LanguageConfig> {
    Ok(match num_params {
        Some(num_params) => LanguageConfig::for_pretrained(path, num_params, precision),
        None => match task::find(task) {
            Err(TaskError::Python) => LanguageConfig::for_model(path),
            found => LanguageConfig::for_task(path, found?.fit_iterations),
        },
    })
}

/// A setting as `grove settings` lists it.
#[derive(Serialize)]
struct SettingRow {
    key: String,
    default: Value,
    range: Option<String>,
    meaning: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a Value>,
    settings: Vec<SettingRow>,
}

/// Prints settings; those of the game or task come with their own declarations.
fn print(table: &Table, own_settings: Declarations, args: &SettingsArgs) -> Result<()> {
    if args.schema {
        return print_json(&file_schema(table, own_settings));
    }
    if args.json {
        let (env, task) = (table.get("env"), table.get("task"));
        let settings =
            collect_sections(table, own_settings).into_iter().flat_map(|section| section.rows());
        return print_json(&Report { env, task, settings: settings.collect() });
    }
    print_result(add_comments(table, own_settings).trim_end())
}

/// Declarations of settings.
type Declarations = &'static [Setting];

/// Settings of a table.
struct Section<'a> {
    name: &'a str,
    settings: Vec<SectionSetting<'a>>,
}

struct SectionSetting<'a> {
    key: &'a str,
    value: &'a Value,
    declaration: Option<Setting>,
}

impl Section<'_> {
    fn rows(&self) -> Vec<SettingRow> {
        let name = self.name;
        let row = |&SectionSetting { key, value, declaration }: &SectionSetting| SettingRow {
            key: if name.is_empty() { key.to_string() } else { format!("{name}.{key}") },
            default: value.clone(),
            range: declaration.map(|setting| setting.range.to_string()),
            meaning: declaration.map(|setting| setting.meaning()),
        };
        let is_listed = |key: &str| !name.is_empty() || !["env", "task"].contains(&key);
        self.settings.iter().filter(|setting| is_listed(setting.key)).map(row).collect()
    }
}

/// Collects the sections of a complete table in order of declaration: settings without a section, the game's or task's
/// own, and those of the run.
fn collect_sections(table: &Table, own_settings: Declarations) -> Vec<Section<'_>> {
    let (declared, _) = declarations(table);
    let position = |name: &str| declared.iter().position(|setting| setting.key == name);
    let inner = table.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_table()?)));
    let mut sections: Vec<_> = inner.collect();
    sections.sort_by_key(|(name, _)| position(name).map_or(0, |index| index + 1));
    sections.insert(0, ("", table));
    let collect = |(name, section)| match position(name).map(|index| declared[index].range) {
        _ if name.is_empty() => collect_section(table, name, section, declared),
        Some(ValueRange::Section(settings)) => collect_section(table, name, section, settings),
        _ => collect_section(table, name, section, own_settings),
    };
    sections.into_iter().map(collect).collect()
}

/// Collects the values of a section of `table` in order of declaration, preceded by undeclared ones.
fn collect_section<'a>(
    table: &Table,
    name: &'a str,
    section: &'a Table,
    declared: Declarations,
) -> Section<'a> {
    let declared = flatten_sections(declared);
    let position = |key: &str| declared.iter().position(|setting| setting.key == key);
    let find_declaration = |key: &str| {
        let setting = declared[position(key)?];
        let range = overlay::range_at(table, &format!("{name}.{key}"));
        Some(Setting { range: range.unwrap_or(setting.range), ..*setting })
    };
    let mut settings = Vec::new();
    for (key, value) in section.iter().filter(|(_, value)| !value.is_table()) {
        settings.push(SectionSetting { key, value, declaration: find_declaration(key) });
    }
    settings.sort_by_key(|setting| position(setting.key).map_or(0, |index| index + 1));
    Section { name, settings }
}

/// Formats a settings file in order of declaration, with the meaning and range of each setting in a comment before it.
/// `own_settings` are the declarations of the game or task.
pub fn add_comments(table: &Table, own_settings: Declarations) -> String {
    let mut text = String::new();
    for Section { name, settings } in collect_sections(table, own_settings) {
        if !name.is_empty() {
            text += &format!("\n[{name}]\n");
        }
        for SectionSetting { key, value, declaration } in settings {
            if let Some(declaration) = declaration {
                text += &format_comment(&declaration.meaning());
                text += &format_comment(&format!("{key}: {}", declaration.range));
            }
            text += &format!("{key} = {value}\n");
        }
    }
    text
}

/// Formats a comment with lines of at most [`COMMENT_COLUMNS`] characters.
fn format_comment(text: &str) -> String {
    let mut comment = "#".to_string();
    let mut length = 1;
    for word in text.split(' ') {
        if length + 1 + word.chars().count() > COMMENT_COLUMNS {
            comment += "\n#";
            length = 1;
        }
        comment += " ";
        comment += word;
        length += 1 + word.chars().count();
    }
    comment + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Env, Fruit};
    use crate::settings::TrainConfig;

    #[test]
    fn a_commented_file_has_the_same_settings_in_the_order_of_declaration() {
        let plain = config_to_toml(&Fruit::default(), &TrainConfig::for_game("fruit"));
        let plain: Table = plain.parse().unwrap();
        let text = add_comments(&plain, Fruit::settings());
        assert_eq!(text.parse::<Table>().unwrap(), plain);
        let words = "# learning_rate: 0 or more\nlearning_rate = ";
        assert!(text.contains(words), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COMMENT_COLUMNS), "{text}");
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
        assert!(text.contains("# num_shards: 1 to 4096\n"), "{text}");
        let order =
            ["seed = ", "iterations = ", "[fruit]", "[policy]", "[rollout]", "num_groups = "];
        assert!(order.map(at).is_sorted(), "{text}");
    }

    #[test]
    fn every_setting_of_a_run_has_a_description() {
        let mut runs = Vec::new();
        for task in task::TASKS.iter().chain([task::find("data").unwrap()]) {
            let own = (task.defaults)();
            let table = join_language_settings(task.name, &own, &LanguageConfig::for_model(TINY));
            runs.push((table, task.settings));
        }
        macro_rules! games {
            ($($Game:ident),*) => {$({
                use crate::env::$Game;
                let config = TrainConfig::for_game($Game::NAME);
                let table = config_to_toml(&$Game::default(), &config).parse().unwrap();
                runs.push((table, $Game::settings()));
            })*};
        }
        crate::for_each_game!(games);
        assert!(runs.len() > 8);
        for (table, own) in runs {
            let listed: Vec<_> =
                collect_sections(&table, own).iter().flat_map(Section::rows).collect();
            assert!(listed.len() > 40);
            for SettingRow { key, meaning, range, .. } in &listed {
                assert!(
                    meaning.as_deref().is_some_and(|text| !text.is_empty()),
                    "{key} has no meaning"
                );
                assert!(range.is_some(), "{key} has no range");
            }
        }
    }
}
