//! Changes to the settings of a saved run when it is resumed.

use super::{ConfigError, overlay};
use toml::{Table, Value};

/// Settings that a resumed run may change: they do not decide which levels and prompts come next, nor on which of them
/// policies are compared.
const CHANGEABLE: [&str; 24] = [
    "iterations",
    "checkpoint.eval_every",
    "checkpoint.keep",
    "checkpoint.save_every",
    "completions",
    "data.patience",
    "data.resident_mb",
    "fit.patience",
    "generation.slots",
    "launch_size",
    "loss.clip_eps_high",
    "loss.clip_eps_low",
    "loss.entropy_coef",
    "optimizer.learning_rate",
    "optimizer.lr_scheduler_type",
    "optimizer.moments",
    "optimizer.warmup_ratio",
    "optimizer.weight_decay",
    "stop",
    "tracking",
    "update.gradient_accumulation_steps",
    "update.gradient_checkpointing",
    "update.max_grad_norm",
    "update.target_kl",
];

/// Applies the `key=value`s of a command line to the settings of a saved run.
///
/// # Errors
/// The errors of [`overlay::apply`], and [`ConfigError::Fixed`] for a setting that cannot change.
pub fn change(table: &mut Table, assignments: &[String]) -> Result<(), ConfigError> {
    let before = table.clone();
    overlay::apply(table, assignments)?;
    // To apply changes adds no setting.
    overlay::flat(table)
        .zip(overlay::flat(&before))
        .try_for_each(|((path, value), (_, old))| check(&path, value, old))?;
    check_patience(table, &before)
}

/// Checks that the evaluations that patience counts are as far apart as they were.
fn check_patience(table: &Table, before: &Table) -> Result<(), ConfigError> {
    let setting = |table: &Table, section: &str, key: &str| {
        table.get(section).and_then(|section| section.get(key)?.as_integer())
    };
    let every = |table| setting(table, "checkpoint", "eval_every");
    let text = |section: &str, key: &str| table.get(section).and_then(|it| it.get(key)?.as_str());
    // Of other runs, patience counts nothing.
    let is_counted = |section: &&str| match *section {
        "data" => text("data", "path").is_some_and(|path| !path.is_empty()),
        _ => text("loss", "loss_type") == Some("nll"),
    };
    let is_patient = |section: &&str| setting(table, section, "patience").is_some_and(|n| n > 0);
    match ["data", "fit"].into_iter().filter(is_counted).find(is_patient) {
        Some(section) if every(table) != every(before) => Err(ConfigError::OutOfRange(format!(
            "`checkpoint.eval_every` cannot be changed while `{section}.patience` counts evaluations; set that to 0 too"
        ))),
        _ => Ok(()),
    }
}

/// Checks that a setting is as it was, or may change.
fn check(path: &str, value: &Value, old: &Value) -> Result<(), ConfigError> {
    let is_covered = |name: &str| {
        path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if old == value || CHANGEABLE.into_iter().any(is_covered) {
        Ok(())
    } else {
        Err(ConfigError::Fixed {
            key: path.to_string(),
            old: old.to_string(),
            changeable: CHANGEABLE.join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TrainConfig;

    fn changed(assignment: &str) -> Result<Table, ConfigError> {
        let mut table = overlay::to_table(&TrainConfig::default());
        change(&mut table, &[assignment.to_string()])?;
        Ok(table)
    }

    #[test]
    fn a_saved_run_changes_what_does_not_decide_its_course() {
        let table = changed("learning_rate=1e-4").unwrap();
        assert_eq!(table["optimizer"]["learning_rate"].as_float(), Some(1e-4));
        assert_eq!(changed("stop.seconds=5").unwrap()["stop"]["seconds"].as_float(), Some(5.0));
        assert!(changed("eval_every=3").is_ok() && changed("launch_size=0.25").is_ok());
        // The value that it has anyway is not a change.
        let size = TrainConfig::default().rollout.group_size;
        assert!(changed(&format!("group_size={size}")).is_ok());
        let error = changed("group_size=2").unwrap_err().to_string();
        assert!(error.contains("rollout.group_size") && error.contains("checkpoint"), "{error}");
        assert!(changed("no_such_setting=1").is_err());
        let patient = |path: &str, more: &[&str]| {
            let mut table = overlay::to_table(&TrainConfig::default());
            overlay::apply(&mut table, &["data.patience=3", path]).unwrap();
            let set: Vec<String> = more.iter().map(ToString::to_string).collect();
            change(&mut table, &set)
        };
        let error = patient("data.path=shown", &["eval_every=3"]).unwrap_err().to_string();
        assert!(error.contains("`data.patience` counts evaluations"), "{error}");
        patient("data.path=shown", &["eval_every=3", "data.patience=0"]).unwrap();
        patient("data.path=", &["eval_every=3"]).unwrap();
    }

    #[test]
    fn settings_that_may_change_exist() {
        let game = overlay::to_table(&TrainConfig::default());
        let text = overlay::to_table(&crate::settings::LanguageConfig::for_model("tiny"));
        let exists = |table: &Table, path: &str| match path.split_once('.') {
            Some((section, key)) => table.get(section).is_some_and(|it| it.get(key).is_some()),
            None => table.contains_key(path),
        };
        for path in CHANGEABLE {
            assert!(exists(&game, path) || exists(&text, path), "{path}");
        }
    }
}
