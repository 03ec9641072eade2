//! The user's approval of code: a run or settings file may come from someone else, and name a verifier (a shell
//! command) or permit code without a sandbox.

use super::args::VerifierArgs;
use crate::disk::{self, input};
use crate::settings::overlay;
use crate::task::cache;
use anyhow::{Result, bail, ensure};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use toml::{Table, Value};

/// Cache file with digests of the settings that this user has approved, one per line.
const APPROVALS_FILE: &str = "verifiers";
/// Approved settings: the command, its folder, and the permissions of its sandbox.
const APPROVED_SETTINGS: [&str; 5] =
    ["verifier", "folder", SANDBOX_SETTINGS[0], SANDBOX_SETTINGS[1], SANDBOX_SETTINGS[2]];
/// Settings of a verifier's sandbox.
const SANDBOX_SETTINGS: [&str; 3] = ["sandbox", "network", "readable"];
/// Setting of a task that permits code without a sandbox.
const UNSAFE_SETTING: &str = "unsafe";

/// Parts of a refusal about other ways to approve than `--trust`.
#[derive(Default)]
struct RefusalHints {
    /// How to approve the command.
    command: &'static str,
    /// How to approve permissions beyond the default.
    permissions: &'static str,
}

/// The arguments of a command line that concern a task's code.
struct CommandLine<'a> {
    args: &'a VerifierArgs,
    /// The values of `--set`.
    assignments: &'a [String],
    /// The name of the task, which begins the names of its settings.
    task: &'a str,
}

impl CommandLine<'_> {
    /// Whether `--set` gives this setting of the task.
    fn sets(&self, key: &str) -> bool {
        overlay::assigns(self.assignments, &format!("{}.{key}", self.task))
    }
}

/// Requires that the user approves the code in a task's settings: by `--trust`, by giving the command and its sandbox
/// permissions on the command line (by options or `--set`), or by an earlier approval of the same settings.
///
/// # Errors
/// If none of these holds, or if `--verifier` differs from the run's command.
pub fn require_approval(
    task: &str,
    task_settings: &Table,
    args: &VerifierArgs,
    assignments: &[String],
) -> Result<()> {
    let hints = RefusalHints {
        command: ", or by --verifier with the same command in that folder",
        permissions: " and by --verifier-sandbox and --verifier-allow",
    };
    require(task_settings, &CommandLine { args, assignments, task }, &hints)
}

/// Requires that the user approves the code in a task's settings, where `--trust` (`is_trusted`) is the only option
/// for it.
///
/// # Errors
/// If the user does not, and has not approved the same settings before.
pub fn require_approval_by_flag(task: &str, task_settings: &Table, is_trusted: bool) -> Result<()> {
    let args = &VerifierArgs { trust: is_trusted, ..VerifierArgs::default() };
    let command_line = CommandLine { args, assignments: &[], task };
    require(task_settings, &command_line, &RefusalHints::default())
}

/// Requires approval of everything in a task's settings that decides which code runs, or with which rights.
fn require(task_settings: &Table, command_line: &CommandLine, hints: &RefusalHints) -> Result<()> {
    let command = overlay::text_at(task_settings, "verifier");
    check_same_command(command, command_line.args)?;
    if task_settings.get(UNSAFE_SETTING).and_then(Value::as_bool) == Some(true) {
        return require_approval_of_unsafe(command_line);
    }
    if command.is_empty() {
        return Ok(());
    }
    require_approval_of_verifier(task_settings, command_line, hints)
}

/// Checks that `--verifier`, if it is given, is the `command` of the settings.
fn check_same_command(command: &str, args: &VerifierArgs) -> Result<()> {
    let Some(given) = args.verifier.as_deref().filter(|given| *given != command) else {
        return Ok(());
    };
    if command.is_empty() {
        bail!(
            "the run compares completions with solutions and has no verifier; leave --verifier out, or start a new run \
             with it"
        );
    }
    bail!(
        "the run's verifier is `{command}`, not `{given}`; start a new run to use another verifier"
    )
}

/// Requires approval of completions' code that runs even where it cannot be confined.
fn require_approval_of_unsafe(command_line: &CommandLine) -> Result<()> {
    let setting = format!("{}.{UNSAFE_SETTING}", command_line.task);
    let is_approved = command_line.args.trust || command_line.sets(UNSAFE_SETTING);
    check_approval(&setting, is_approved, || {
        format!(
            "the settings run the code of completions even where it cannot be confined ({setting} = true), which you \
             have not approved yet; approve it with --trust"
        )
    })
}

/// Requires approval of the verifier's command, its folder, and the permissions of its sandbox.
fn require_approval_of_verifier(
    task_settings: &Table,
    command_line: &CommandLine,
    hints: &RefusalHints,
) -> Result<()> {
    let args = command_line.args;
    let folder = overlay::text_at(task_settings, "folder");
    let restrictions = args.restrictions();
    let is_on_command_line = |key: &str| restrictions.contains_key(key) || command_line.sets(key);
    let loose_settings: Vec<&str> =
        SANDBOX_SETTINGS.into_iter().filter(|key| !is_strict(task_settings, key)).collect();
    let current_folder = std::env::current_dir().unwrap_or_default();
    // A folder that only a file or a run names decides which program the command is.
    let is_current_folder =
        folder.is_empty() || command_line.sets("folder") || Path::new(folder) == current_folder;
    let is_command_given =
        is_current_folder && (args.verifier.is_some() || command_line.sets("verifier"));
    let is_approved =
        args.trust || is_command_given && loose_settings.iter().all(|key| is_on_command_line(key));
    // Without a folder, or with a relative one, the same command can mean another program elsewhere.
    let absolute_folder = current_folder.join(folder);
    let settings = format_approved_settings(task_settings, &absolute_folder);
    check_approval(&settings, is_approved, || format_refusal(task_settings, &loose_settings, hints))
}

/// Formats the error for a verifier that is not approved, whose `loose_settings` permit more than by default.
fn format_refusal(task_settings: &Table, loose_settings: &[&str], hints: &RefusalHints) -> String {
    let [command, folder] = ["verifier", "folder"].map(|key| overlay::text_at(task_settings, key));
    let folder = if folder.is_empty() { "this folder".to_string() } else { format!("{folder:?}") };
    let permissions = loose_settings
        .iter()
        .filter_map(|key| Some(format!(", {key} = {}", task_settings.get(*key)?)));
    let permissions: String = permissions.collect();
    format!(
        "the verifier is a shell command that you have not approved yet: {command:?}, run in {folder}{permissions}; \
         approve it with --trust{}{}",
        hints.command,
        if permissions.is_empty() { "" } else { hints.permissions }
    )
}

/// Formats the settings that an approval covers, with the folder in which the command runs.
fn format_approved_settings(task_settings: &Table, folder: &Path) -> String {
    let values = APPROVED_SETTINGS.into_iter();
    let mut values: Table =
        values.filter_map(|key| Some((key.to_string(), task_settings.get(key)?.clone()))).collect();
    values.insert("folder".to_string(), folder.display().to_string().into());
    values.to_string()
}

/// Checks that this user approves `subject`, now (`is_approved`) or in an earlier command. An approval is remembered in
/// the cache.
///
/// # Errors
/// The `refusal`.
fn check_approval(
    subject: &str,
    is_approved: bool,
    refusal: impl FnOnce() -> String,
) -> Result<()> {
    let line = disk::sha256(subject);
    let file = cache::folder().map(|folder| folder.join(APPROVALS_FILE));
    let approvals = file.as_ref().and_then(|file| input::read_description(file).ok());
    if approvals.is_some_and(|approvals| approvals.lines().any(|other| other == line)) {
        return Ok(());
    }
    ensure!(is_approved, refusal());
    if let Some(file) = file {
        // If this fails, the user is asked again.
        let opened = File::options().create(true).append(true).open(file);
        let _ = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
    Ok(())
}

/// Whether a sandbox setting permits no more than its default.
fn is_strict(task_settings: &Table, key: &str) -> bool {
    match task_settings.get(key) {
        None => true,
        Some(Value::Boolean(is_on)) => *is_on == (key == "sandbox"),
        Some(Value::Array(paths)) => paths.is_empty(),
        Some(_) => false,
    }
}

/// Whether a setting, by any of its names, decides which code runs, or with which rights.
pub fn is_about_code(name: &str) -> bool {
    let key = overlay::last_part(name).trim();
    key == UNSAFE_SETTING || APPROVED_SETTINGS.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_for_the_folder_in_which_the_command_runs() {
        let text = |folder: &str, here: &str| {
            let task_settings = [("verifier", "./v.sh"), ("folder", folder)];
            let task_settings =
                task_settings.map(|(key, value)| (key.to_string(), Value::from(value)));
            let folder = Path::new(here).join(folder);
            format_approved_settings(&Table::from_iter(task_settings), &folder)
        };
        assert_ne!(text("", "/mine"), text("", "/theirs"));
        assert_ne!(text("sub", "/mine"), text("sub", "/theirs"));
        assert_eq!(text("/mine", "/mine"), text("/mine", "/theirs"));
    }

    #[test]
    fn a_run_without_a_verifier_is_said_to_have_none() {
        let args = VerifierArgs { verifier: Some("cat".to_string()), ..VerifierArgs::default() };
        let of_run = |command: &str| {
            let settings = Table::from_iter([("verifier".to_string(), command.into())]);
            require_approval("data", &settings, &args, &[]).unwrap_err().to_string()
        };
        assert!(of_run("").contains("has no verifier"), "{}", of_run(""));
        assert!(of_run("tac").starts_with("the run's verifier is `tac`, not `cat`"));
    }

    #[test]
    fn a_sandbox_is_strict_unless_it_permits_more_than_by_default() {
        for (key, value, expected) in [
            ("sandbox", Value::from(true), true),
            ("sandbox", Value::from(false), false),
            ("sandbox", Value::from("no"), false),
            ("network", Value::from(false), true),
            ("network", Value::from(true), false),
            ("readable", Value::Array(vec![]), true),
            ("readable", Value::Array(vec!["/".into()]), false),
        ] {
            let task_settings = Table::from_iter([(key.to_string(), value)]);
            assert_eq!(is_strict(&task_settings, key), expected, "{task_settings}");
            let mut others = SANDBOX_SETTINGS.iter().filter(|other| **other != key);
            assert!(others.all(|other| is_strict(&task_settings, other)));
        }
    }
}
