//! Changes to the settings of a saved run when it is resumed.

use super::{ConfigError, LanguageConfig, RunKind, TrainConfig, overlay};
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
/// The errors of [`overlay::apply_assignments`], and [`ConfigError::Fixed`] for a setting that cannot change.
pub fn change_saved_settings(table: &mut Table, assignments: &[String]) -> Result<(), ConfigError> {
    let before = table.clone();
    overlay::apply_assignments(table, assignments)?;
    // To apply changes adds no setting.
    overlay::flatten(table)
        .zip(overlay::flatten(&before))
        .try_for_each(|((path, value), (_, old))| check_setting(&path, value, old))?;
    check_patience(table, &before)
}

/// Checks that the evaluations that patience counts are as far apart as they were.
fn check_patience(table: &Table, before: &Table) -> Result<(), ConfigError> {
    let (key, patience, eval_every) = read_patience(table)?;
    let (_, _, eval_every_before) = read_patience(before)?;
    if patience == 0 || eval_every == eval_every_before {
        return Ok(());
    }
    Err(ConfigError::Conflict(format!(
        "`checkpoint.eval_every` cannot be changed while `{key}` counts evaluations; set that to 0 too"
    )))
}

/// Reads the patience of a run: the key of the setting, the number of evaluations without improvement after which the
/// run ends (0 for no limit), and the iterations between evaluations.
fn read_patience(table: &Table) -> Result<(&'static str, u32, u32), ConfigError> {
    let table = table.clone();
    Ok(if RunKind::of(&table) == Some(RunKind::Language) {
        let config: LanguageConfig = overlay::from_table(table)?;
        ("fit.patience", config.patience(), config.checkpoint.eval_every)
    } else {
        let config: TrainConfig = overlay::from_table(table)?;
        ("data.patience", config.patience(), config.checkpoint.eval_every)
    })
}

/// Checks that a setting is as it was, or may change.
fn check_setting(path: &str, value: &Value, old: &Value) -> Result<(), ConfigError> {
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

    fn change(assignment: &str) -> Result<Table, ConfigError> {
        let mut table = overlay::to_table(&TrainConfig::default());
        change_saved_settings(&mut table, &[assignment.to_string()])?;
        Ok(table)
    }

    #[test]
    fn a_saved_run_changes_what_does_not_decide_its_course() {
        let table = change("learning_rate=1e-4").unwrap();
        assert_eq!(table["optimizer"]["learning_rate"].as_float(), Some(1e-4));
        assert_eq!(change("stop.seconds=5").unwrap()["stop"]["seconds"].as_float(), Some(5.0));
        assert!(change("eval_every=3").is_ok() && change("launch_size=0.25").is_ok());
        // The value that it has anyway is not a change.
        let size = TrainConfig::default().rollout.group_size;
        assert!(change(&format!("group_size={size}")).is_ok());
        let error = change("group_size=2").unwrap_err().to_string();
        assert!(error.contains("rollout.group_size") && error.contains("checkpoint"), "{error}");
        assert!(change("no_such_setting=1").is_err());
        let change_patient = |path: &str, more: &[&str]| {
            let mut table = overlay::to_table(&TrainConfig::default());
            overlay::apply_assignments(&mut table, &["data.patience=3", path]).unwrap();
            let assignments: Vec<String> = more.iter().map(ToString::to_string).collect();
            change_saved_settings(&mut table, &assignments)
        };
        let error = change_patient("data.path=shown", &["eval_every=3"]).unwrap_err().to_string();
        assert!(error.contains("`data.patience` counts evaluations"), "{error}");
        change_patient("data.path=shown", &["eval_every=3", "data.patience=0"]).unwrap();
        change_patient("data.path=", &["eval_every=3"]).unwrap();
        let text = |changes: &[&str]| {
            let mut table = overlay::to_table(&LanguageConfig::for_model("tiny"));
            table.insert("task".to_string(), "sort".into());
            overlay::apply_assignments(&mut table, changes).unwrap();
            change_saved_settings(&mut table, &["eval_every=3".to_string()])
        };
        let error = text(&["fit.patience=3", "loss_type=nll"]).unwrap_err().to_string();
        assert!(error.contains("`fit.patience` counts evaluations"), "{error}");
        text(&["fit.patience=3"]).unwrap();
    }

    #[test]
    fn settings_that_may_change_exist() {
        let game = overlay::to_table(&TrainConfig::default());
        let text = overlay::to_table(&LanguageConfig::for_model("tiny"));
        for path in CHANGEABLE {
            let found = overlay::get(&game, path).or(overlay::get(&text, path));
            assert!(found.is_some(), "{path}");
        }
    }
}
