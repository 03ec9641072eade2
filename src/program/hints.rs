//! Hints for unknown options; the name of a setting is rewritten as `--set`.

use crate::settings::overlay;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Commands that take `--set` with settings of a run.
const COMMANDS_WITH_SETTINGS: [&str; 3] = ["train", "fit", "bench"];
/// Settings that have their own option.
const SETTINGS_WITH_OPTIONS: [&str; 4] = ["engine", "iterations", "precision", "seed"];
/// Names of other programs for the number of iterations.
const NAMES_FOR_ITERATIONS: [&str; 3] = ["n", "total_timesteps", "num_iterations"];

/// Rewrites the unknown option of a command line as `--set` if it is the name of a setting and has a value: `--lr 1e-3`
/// becomes `--set lr=1e-3`.
pub fn with_setting(error: &clap::Error, words: &[OsString]) -> Option<Vec<OsString>> {
    rewrite_as_set(&unknown_option(error, words)?, words)
}

fn rewrite_as_set(option: &str, words: &[OsString]) -> Option<Vec<OsString>> {
    let name = option.trim_start_matches('-').replace('-', "_");
    let found = overlay::match_setting(&name)?;
    if !found.is_exact
        || SETTINGS_WITH_OPTIONS.contains(&&*found.path)
        || NAMES_FOR_ITERATIONS.contains(&&*name)
    {
        return None;
    }
    let word = |at: usize| words.get(at)?.to_str();
    let is_here = |at: &usize| word(*at).is_some_and(|it| it.split('=').next() == Some(option));
    let at = (0..words.len()).find(is_here)?;
    let (value, taken) = match word(at)?.split_once('=') {
        Some((_, value)) => (value, 1),
        None => (word(at + 1).filter(|next| !next.starts_with("--"))?, 2),
    };
    let mut words = words.to_vec();
    words.splice(at..at + taken, ["--set".into(), format!("{name}={value}").into()]);
    Some(words)
}

/// The unknown option in the parser's error, if the command has settings.
fn unknown_option(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let has_settings =
        words.get(1).is_some_and(|command| COMMANDS_WITH_SETTINGS.iter().any(|it| command == it));
    let is_unknown = has_settings && error.kind() == ErrorKind::UnknownArgument;
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if is_unknown => Some(option.clone()),
        _ => None,
    }
    .filter(|option| option.starts_with('-'))
}

/// Whether the parser refuses a second name beside `--resume`.
fn names_game_and_run(error: &clap::Error, words: &[OsString]) -> bool {
    let is_name = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(it)) if !it.starts_with('-'));
    is_name
        && error.kind() == ErrorKind::UnknownArgument
        && words.iter().any(|word| word == "--resume")
}

/// Adds a better hint to the parser's error if an unknown option means a setting.
pub fn with_hint(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if names_game_and_run(&error, words) {
        let hint = "a run takes the place of the game: `grove train --resume RUN`";
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
        return error;
    }
    let names_similar = error.get(ContextKind::SuggestedArg).is_some();
    let option = unknown_option(&error, words).filter(|_| !names_similar);
    let Some(option) = option else { return error };
    // The parser suggests passing the option as a value, which is never meant here.
    error.remove(ContextKind::Suggested);
    if let Some(hint) = hint_for(&option) {
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

/// The hint for an unknown option; `None` if it resembles no setting.
fn hint_for(option: &str) -> Option<String> {
    let name = option.trim_start_matches('-').replace('-', "_");
    if ["env", "env_id", "game", "task"].contains(&&*name) {
        return Some("the game or the task has no option: `grove train catch`".to_string());
    }
    if name == "output_dir" {
        return Some("the run directory is named by `--run-dir`".to_string());
    }
    if NAMES_FOR_ITERATIONS.contains(&&*name) {
        return Some("the length of a run is set by `--iterations`".to_string());
    }
    if overlay::VALUE_FUNCTION.contains(&&*name) {
        return Some("GRPO has no value function; see docs/coming-from.md".to_string());
    }
    let setting = overlay::match_setting(&name)?.path;
    if SETTINGS_WITH_OPTIONS.contains(&&*setting) {
        return Some(format!("did you mean `--{setting}`?"));
    }
    Some(format!("settings are changed by `--set`: did you mean `--set {setting}=VALUE`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> (Vec<OsString>, String) {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let options = line.split([' ', '=']).find(|word| word.starts_with('-'));
        (words, options.unwrap().to_string())
    }

    #[test]
    fn the_name_of_a_setting_is_taken_as_an_option() {
        for (line, taken) in [
            ("grove train --lr 1e-3 --watch", Some("grove train --set lr=1e-3 --watch")),
            ("grove train --learning-rate=1e-3", Some("grove train --set learning_rate=1e-3")),
            ("grove train --num_generations=8", Some("grove train --set num_generations=8")),
            ("grove train --beta", None),
            ("grove train --num-envs 64", None),
            ("grove train --total-timesteps 9", None),
            ("grove train --nonsense 3", None),
        ] {
            let (words, option) = words(line);
            let found = rewrite_as_set(&option, &words);
            let found = found.map(|words| words.join(std::ffi::OsStr::new(" ")));
            assert_eq!(found, taken.map(OsString::from), "{line}");
        }
    }

    #[test]
    fn an_option_that_means_a_setting_is_answered_by_its_name() {
        let set = |text: &str| {
            Some(format!("settings are changed by `--set`: did you mean `--set {text}`?"))
        };
        let length = Some("the length of a run is set by `--iterations`".to_string());
        for (option, said) in [
            ("--num_generations", set("rollout.group_size=VALUE")),
            ("--num-envs", set("rollout.num_groups=VALUE")),
            ("--clip-coef", set("loss.epsilon=VALUE")),
            ("--total-timesteps", length.clone()),
            ("-n", length),
            ("--nonsense", None),
        ] {
            assert_eq!(hint_for(option), said, "{option}");
        }
        assert!(hint_for("--vf-coef").unwrap().contains("no value function"));
        assert!(hint_for("--output-dir").unwrap().contains("--run-dir"));
        assert!(hint_for("--env").unwrap().contains("grove train catch"));
    }
}
