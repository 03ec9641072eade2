//! Hints for unknown options; the name of a setting is rewritten as `--set`.

use crate::settings::foreign::{NEAREST_SETTINGS, VALUE_FUNCTION_SETTINGS};
use crate::settings::overlay;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Commands that take `--set` with settings of a run.
const COMMANDS_WITH_SETTINGS: [&str; 3] = ["train", "fit", "bench"];
/// Settings that have their own option.
const SETTINGS_WITH_OPTIONS: [&str; 4] = ["engine", "iterations", "precision", "seed"];

/// Names of other programs that have no setting here, with the answer to each.
const ANSWERS: [(&[&str], &str); 9] = [
    (&["env", "env_id", "game", "task"], "the game or the task has no option: `grove train catch`"),
    (&["output_dir", "run_name", "exp_name"], "the run directory is named by `--run-dir`"),
    (&["n", "total_timesteps"], "the length of a run is set by `--iterations`"),
    (
        &["num_iterations"],
        "the length of a run is set by `--iterations`, and what TRL calls so by `--set update.update_epochs=VALUE`",
    ),
    (&VALUE_FUNCTION_SETTINGS, "GRPO has no value function; see docs/coming-from.md"),
    (
        &["logging_steps", "logging_strategy", "log_interval"],
        "it has no counterpart: every iteration is recorded",
    ),
    (&["dataset_name", "train_dataset"], "the file of prompts is named by `--task-data`"),
    (&["reward_funcs"], "completions are judged by the program of `--verifier`"),
    (&["use_peft"], "adapters are trained by `--set lora.r=VALUE`"),
];

/// Rewrites the unknown option of a command line as `--set` if it is the name of a setting and has a value: `--lr 1e-3`
/// becomes `--set lr=1e-3`.
pub fn rewrite_setting(error: &clap::Error, argv: &[OsString]) -> Option<Vec<OsString>> {
    rewrite_as_set(&unknown_option(error, argv)?, argv)
}

fn rewrite_as_set(option: &str, argv: &[OsString]) -> Option<Vec<OsString>> {
    let name = option.trim_start_matches('-').replace('-', "_");
    let found = overlay::match_setting(&name)?;
    if !found.is_exact
        || SETTINGS_WITH_OPTIONS.contains(&&*found.path)
        || find_answer(&name).is_some()
    {
        return None;
    }
    let word = |at: usize| argv.get(at)?.to_str();
    let is_here = |at: &usize| word(*at).is_some_and(|word| word.split('=').next() == Some(option));
    let at = (0..argv.len()).find(is_here)?;
    let (value, num_words) = match word(at)?.split_once('=') {
        Some((_, value)) => (value, 1),
        None => (word(at + 1).filter(|next| !next.starts_with("--"))?, 2),
    };
    let mut argv = argv.to_vec();
    argv.splice(at..at + num_words, ["--set".into(), format!("{name}={value}").into()]);
    Some(argv)
}

/// The unknown option in the parser's error, if the command has settings.
fn unknown_option(error: &clap::Error, argv: &[OsString]) -> Option<String> {
    let has_settings = argv
        .get(1)
        .is_some_and(|command| COMMANDS_WITH_SETTINGS.iter().any(|known| command == known));
    let is_unknown = has_settings && error.kind() == ErrorKind::UnknownArgument;
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if is_unknown && option.starts_with('-') => {
            Some(option.clone())
        }
        _ => None,
    }
}

/// Whether the parser refuses a second name beside `--resume`.
fn has_game_and_run(error: &clap::Error, argv: &[OsString]) -> bool {
    let is_name = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if !word.starts_with('-'));
    is_name
        && error.kind() == ErrorKind::UnknownArgument
        && argv.iter().any(|word| word == "--resume")
}

/// Adds a better hint to the parser's error if an unknown option means a setting.
pub fn add_hint(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    if has_game_and_run(&error, argv) {
        let hint = "a run takes the place of the game: `grove train --resume RUN`";
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
        return error;
    }
    let Some(option) = unknown_option(&error, argv) else { return error };
    let suggested = error.get(ContextKind::SuggestedArg);
    let has_similar =
        matches!(suggested, Some(ContextValue::String(suggested)) if is_like(&option, suggested));
    let hint = find_hint(&option, has_similar);
    if hint.is_none() && has_similar {
        return error;
    }
    if error.remove(ContextKind::SuggestedArg).is_some() {
        // It contains the suggested option, too.
        error.remove(ContextKind::Usage);
    }
    // The parser suggests passing the option as a value, which is never meant here.
    error.remove(ContextKind::Suggested);
    if let Some(hint) = hint {
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

/// Whether an unknown option may mean the one that the parser suggests: one contains the other, or they differ in at
/// most a third of its letters.
fn is_like(option: &str, suggested: &str) -> bool {
    let [name, suggested] = [option, suggested].map(|name| name.trim_start_matches('-'));
    name.contains(suggested)
        || suggested.contains(name)
        || strsim::damerau_levenshtein(name, suggested) <= name.len() / 3
}

/// Finds the answer to another program's name that has no setting here.
fn find_answer(name: &str) -> Option<&'static str> {
    ANSWERS.iter().find(|(names, _)| names.contains(&name)).map(|(_, answer)| *answer)
}

/// Finds the hint for an unknown option; `None` if it resembles no setting or, beside a similar option, names none.
fn find_hint(option: &str, has_similar: bool) -> Option<String> {
    let name = option.trim_start_matches('-').replace('-', "_");
    if let Some(answer) = find_answer(&name) {
        return Some(answer.to_string());
    }
    let nearest = NEAREST_SETTINGS.iter().filter(|(theirs, _)| *theirs == name);
    let mut settings: Vec<String> = nearest.map(|(_, ours)| ours.to_string()).collect();
    if settings.is_empty() {
        let found = overlay::match_setting(&name);
        let found = found.filter(|found| found.is_exact || !has_similar);
        settings.push(found?.path);
    }
    if let [setting] = &*settings
        && SETTINGS_WITH_OPTIONS.contains(&&**setting)
    {
        return Some(format!("did you mean `--{setting}`?"));
    }
    let suggestions: Vec<String> =
        settings.iter().map(|path| format!("`--set {path}=VALUE`")).collect();
    Some(format!("settings are changed by `--set`: did you mean {}?", suggestions.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::args::Cli;
    use clap::CommandFactory;

    fn argv_and_option(line: &str) -> (Vec<OsString>, String) {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let options = line.split([' ', '=']).find(|word| word.starts_with('-'));
        (argv, options.unwrap().to_string())
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
            let (argv, option) = argv_and_option(line);
            let found = rewrite_as_set(&option, &argv);
            let found = found.map(|argv| argv.join(std::ffi::OsStr::new(" ")));
            assert_eq!(found, taken.map(OsString::from), "{line}");
        }
    }

    #[test]
    fn an_option_that_means_a_setting_is_answered_by_its_name() {
        let set = |text: &str| {
            Some(format!("settings are changed by `--set`: did you mean `--set {text}`?"))
        };
        let length = Some("the length of a run is set by `--iterations`".to_string());
        for (option, message) in [
            ("--num_generations", set("rollout.group_size=VALUE")),
            ("--num-envs", set("rollout.num_groups=VALUE")),
            ("--clip-coef", set("loss.epsilon=VALUE")),
            ("--total-timesteps", length.clone()),
            ("-n", length),
            ("--nonsense", None),
        ] {
            assert_eq!(find_hint(option, false), message, "{option}");
        }
        let either = "`--set rollout.num_groups=VALUE` or `--set generation.num_prompts=VALUE`?";
        let message = find_hint("--per-device-train-batch-size", false).unwrap();
        assert!(message.ends_with(either), "{message}");
        for (option, words) in [
            ("--vf-coef", "no value function"),
            ("--output-dir", "--run-dir"),
            ("--env", "grove train catch"),
            ("--num-iterations", "update.update_epochs"),
            ("--logging-steps", "no counterpart"),
        ] {
            let message = find_hint(option, true).unwrap();
            assert!(message.contains(words), "{option}: {message}");
        }
    }

    #[test]
    fn a_name_of_another_trainer_comes_before_an_option_that_is_like_it() {
        let answer = |option: &str| {
            let line = ["grove", "train", "fruit", option, "5"];
            let error = Cli::command().try_get_matches_from(line).unwrap_err();
            add_hint(error, &line.map(OsString::from)).to_string()
        };
        for (option, setting) in [
            ("--clip-range", Some("loss.epsilon")),
            ("--save-steps", Some("checkpoint.save_every")),
            ("--save-total-limit", Some("checkpoint.keep")),
            ("--warmup-steps", Some("optimizer.warmup_ratio")),
            ("--importance-sampling-level", Some("loss.loss_type")),
            ("--save-strategy", None),
            ("--use-sde", None),
        ] {
            let message = answer(option);
            assert!(!message.contains("similar") && !message.contains("Usage"), "{message}");
            let hint = setting.map(|setting| format!("did you mean `--set {setting}=VALUE`?"));
            assert!(hint.is_none_or(|hint| message.contains(&hint)), "{message}");
        }
        for (option, similar) in
            [("--iteratoins", "--iterations"), ("--model-name-or-path", "--model")]
        {
            let text = answer(option);
            assert!(text.contains(&format!("a similar argument exists: '{similar}'")), "{text}");
        }
    }
}
