//! Hints for options that do not exist: settings are changed by `--set`, under names of their own.

use crate::settings::overlay;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// The commands that take `--set` with the settings of a run.
const WITH_SETTINGS: [&str; 3] = ["train", "fit", "bench"];
/// Settings that have an option of their own.
const OPTIONS: [&str; 4] = ["engine", "iterations", "precision", "seed"];

/// The parser's error for a command line, with a better hint if an unknown option means a setting.
pub fn improved(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    let has_settings =
        words.get(1).is_some_and(|command| WITH_SETTINGS.iter().any(|it| command == it));
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let (option, names_similar) = (option.clone(), error.get(ContextKind::SuggestedArg).is_some());
    if !is_unknown || !has_settings || names_similar || !option.starts_with('-') {
        return error;
    }
    // Passing the option as a value, which the parser proposes, is never meant here.
    error.remove(ContextKind::Suggested);
    if let Some(hint) = hint(&option, words) {
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

/// The hint for an option that does not exist; `None` if no setting is like it.
fn hint(option: &str, words: &[OsString]) -> Option<String> {
    let name = option.trim_start_matches('-').replace('-', "_");
    if ["env", "env_id", "game", "task"].contains(&&*name) {
        return Some("the game or the task has no option: `grove train catch`".to_string());
    }
    if ["n", "total_timesteps", "num_iterations"].contains(&&*name) {
        return Some("the length of a run is set by `--iterations`".to_string());
    }
    let (setting, is_exact) = overlay::meant(&name)?;
    if OPTIONS.contains(&&*setting) {
        return Some(format!("did you mean `--{setting}`?"));
    }
    let value = value(option, words).filter(|_| is_exact).unwrap_or_else(|| "VALUE".to_string());
    Some(format!("settings are changed by `--set`: did you mean `--set {setting}={value}`?"))
}

/// The value of an option: after `=`, or the next word.
fn value(option: &str, words: &[OsString]) -> Option<String> {
    let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
    let with = format!("{option}=");
    if let Some(value) = words.iter().find_map(|word| word.strip_prefix(&with)) {
        return Some(value.to_string());
    }
    let at = words.iter().position(|word| *word == option)?;
    words.get(at + 1).filter(|word| !word.starts_with("--")).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_for(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let option = words.iter().find_map(|word| word.to_str().filter(|it| it.starts_with('-')));
        hint(option?.split('=').next()?, &words)
    }

    #[test]
    fn an_option_that_means_a_setting_is_answered_by_its_name() {
        let set = |text: &str| {
            Some(format!("settings are changed by `--set`: did you mean `--set {text}`?"))
        };
        let length = Some("the length of a run is set by `--iterations`".to_string());
        for (line, said) in [
            ("grove train catch --learning-rate 1e-3", set("optimizer.learning_rate=1e-3")),
            ("grove train --num_generations=8", set("rollout.group_size=8")),
            ("grove train catch --lr 1e-3", set("optimizer.learning_rate=VALUE")),
            ("grove train catch --num-envs 64", set("rollout.num_groups=VALUE")),
            ("grove train --total-timesteps 9", length.clone()),
            ("grove train -n 3", length),
            ("grove train --nonsense", None),
        ] {
            assert_eq!(hint_for(line), said, "{line}");
        }
        assert!(hint_for("grove train --env catch").unwrap().contains("grove train catch"));
    }
}
