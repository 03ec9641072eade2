//! The list of built-in tasks. To add one, declare its file here, re-export its settings if they are public, and
//! add them to [`TASKS`].

// Imported here, since a task's `super` is this module.
use super::*;
use crate::schema::Setting;
use std::sync::Arc;
use toml::Table;

#[path = "add.rs"]
mod add;
#[path = "countdown.rs"]
mod countdown;
#[path = "reverse.rs"]
mod reverse;
#[path = "sort.rs"]
mod sort;

pub use add::Add;
pub use countdown::Countdown;
pub use reverse::Reverse;
pub use sort::Sort;

/// A task of the program, type-erased.
pub struct RegisteredTask {
    /// The task's name.
    pub name: &'static str,
    /// Returns the default settings.
    pub defaults: fn() -> Table,
    /// SFT iterations after which GRPO starts, for a fresh `tiny` model.
    pub fit_iterations: u32,
    /// The setting with the path of the prompts, if they may be in a file; the setting `digest` has its SHA-256 then.
    pub path_setting: Option<&'static str>,
    /// Declarations of the settings.
    pub settings: &'static [Setting],
    /// Checks a complete table of settings, without opening files.
    pub check: fn(Table) -> Result<(), TaskError>,
    /// Creates the task from a complete table of settings.
    pub open: fn(Table) -> Result<Arc<dyn Task>, TaskError>,
}

impl RegisteredTask {
    const fn new<S: TaskSettings>() -> Self {
        Self {
            name: S::NAME,
            defaults: || Table::try_from(S::default()).expect("numbers, strings and lists"),
            fit_iterations: S::FIT_ITERATIONS,
            path_setting: S::PATH_SETTING,
            settings: S::SETTINGS,
            check: |settings| read::<S>(settings).map(drop),
            open: |settings| read::<S>(settings)?.open(),
        }
    }
}

fn read<S: TaskSettings>(settings: Table) -> Result<S, TaskError> {
    let prefix = format!("{}.", S::NAME);
    let settings: S =
        crate::schema::table::read(&prefix, settings, S::SETTINGS).map_err(TaskError::Setting)?;
    super::settings::check_ranges(&settings)?;
    Ok(settings)
}

/// The built-in tasks.
pub const TASKS: &[RegisteredTask] = &[
    RegisteredTask::new::<Sort>(),
    RegisteredTask::new::<Reverse>(),
    RegisteredTask::new::<Add>(),
    RegisteredTask::new::<Countdown>(),
    #[cfg(unix)]
    RegisteredTask::new::<super::ocaml::OcamlSettings>(),
];

/// The user-defined task, whose prompts are in a file.
const USER_DEFINED: &[RegisteredTask] = &[
    #[cfg(not(target_family = "wasm"))]
    RegisteredTask::new::<super::DataSettings>(),
];

/// The names of the built-in tasks, comma-separated: `sort, reverse, add`.
pub fn joined_names() -> String {
    TASKS.iter().map(|task| task.name).collect::<Vec<_>>().join(", ")
}

/// The name of a task of a Python process in the settings of its run.
pub const PYTHON: &str = "python";

/// Finds a task by name, including the user-defined [`DataTask`](super::DataTask).
///
/// # Errors
/// [`TaskError::Unknown`] with the known names, and [`TaskError::Python`] for [`PYTHON`].
pub fn find(name: &str) -> Result<&'static RegisteredTask, TaskError> {
    TASKS.iter().chain(USER_DEFINED).find(|task| task.name == name).ok_or_else(|| match name {
        PYTHON => TaskError::Python,
        _ => TaskError::Unknown { name: name.to_string(), known: joined_names() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Completion, Split};
    use std::collections::HashSet;

    #[test]
    fn every_task_has_maximal_solutions_and_disjoint_splits() {
        for registered in TASKS {
            let task = (registered.open)((registered.defaults)()).unwrap();
            let best: f64 = task.reward_parts().iter().map(|part| part.weight.max(0.0)).sum();
            assert!((best - 1.0).abs() < 1e-12, "{}: weights add up to {best}", registered.name);
            let mut seen = HashSet::new();
            for split in [Split::Train, Split::Test] {
                for index in 0..200 {
                    let prompt = task.prompt(split, index).unwrap();
                    assert_eq!(prompt, task.prompt(split, index).unwrap());
                    let solution = task.solution(&prompt).unwrap();
                    let completion = Completion::new(&prompt, &solution);
                    let rewards = task.verify(&[completion]).unwrap().remove(0);
                    let total = rewards.score(task.reward_parts());
                    assert!(
                        (total - 1.0).abs() < 1e-9,
                        "{}: {prompt:?} {rewards:?}",
                        registered.name
                    );
                    if let Some(alphabet) = task.alphabet() {
                        let known = |c| alphabet.contains(c);
                        assert!(
                            prompt.text.chars().chain(solution.chars()).all(known),
                            "{prompt:?}"
                        );
                        assert!(solution.chars().count() < task.max_new_tokens());
                    }
                    assert!(!prompt.messages.is_empty());
                    if split == Split::Train {
                        seen.insert(prompt.text);
                    } else {
                        assert!(!seen.contains(&prompt.text), "{} is in both splits", prompt.text);
                    }
                }
            }
        }
    }

    #[test]
    fn settings_are_checked_by_name_and_range() {
        let sort = find("sort").unwrap();
        let open = |text: &str| (sort.open)(text.parse().unwrap()).err().map(|e| e.to_string());
        assert_eq!(open("length = 12"), None);
        assert_eq!(open("length = 0").unwrap(), "sort.length is 0, but must be 2 to 1000");
        assert!(open("length = \"a\"").unwrap().starts_with("`sort.length`: "));
        // Beyond what a clock can add.
        let data = find("data").unwrap();
        for (setting, said) in [
            ("workers = 5000", "data.workers is 5000, but must be 0 to 1024"),
            ("timeout = 1e19", "data.timeout is 1e19, but must be"),
        ] {
            let error = (data.open)(setting.parse().unwrap()).err().unwrap().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        assert_eq!(find(PYTHON).err(), Some(TaskError::Python));
        let said = find("srot").err().unwrap().to_string();
        assert_eq!(said, format!("unknown task `srot`; must be one of: {}", joined_names()));
    }
}
