//! Settings of a new run of a language model: defaults, those of a file, and those of the command line.

use crate::program::paths::utf8_path;
use crate::program::settings::language_defaults;
use crate::settings::{Precision, overlay};
use crate::task;
use crate::trainer::text::{
    LanguageConfig, LanguageSettings, TINY, join_language_settings, split_language_settings,
};
use anyhow::{Result, bail};
use std::path::Path;
use toml::Table;

/// Resolves the path of a new run's model: from `--model`, otherwise from the settings in a file or of `--set`. A path
/// without a name, such as `.`, becomes an absolute one.
pub fn resolve_model_path(
    task: &str,
    model: Option<&Path>,
    file: &Table,
    assignments: &[String],
) -> Result<String> {
    let with_name = |path: &Path| {
        let whole = path.file_name().is_none().then(|| path.canonicalize().ok()).flatten();
        utf8_path(whole.as_deref().unwrap_or(path))
    };
    if let Some(path) = model {
        return with_name(path);
    }
    let defaults = LanguageConfig::for_model(TINY);
    let mut table = join_language_settings(task, &(task::find(task)?.defaults)(), &defaults);
    overlay::lay_over(&mut table, file.clone())?;
    overlay::apply_assignments(&mut table, assignments)?;
    with_name(Path::new(overlay::text_at(&table, "model.path")))
}

/// Resolves the settings of a new run, the task's and its own: defaults, file, command line.
pub fn resolve_settings(
    name: &str,
    requested: Table,
    defaults: LanguageConfig,
    file: Table,
    assignments: &[String],
) -> Result<LanguageSettings> {
    for key in requested.keys().filter(|key| !["digest", "folder"].contains(&&***key)) {
        let setting = format!("{name}.{key}");
        if overlay::assigns(assignments, &setting) {
            bail!(
                "`{setting}` is given twice, by --set and otherwise on the command line; leave one out"
            );
        }
    }
    let path = defaults.model.path.clone();
    let mut table = join_language_settings(name, &(task::find(name)?.defaults)(), &defaults);
    overlay::lay_over(&mut table, file)?;
    overlay::lay_over(&mut table, Table::from_iter([(name.to_string(), requested.into())]))?;
    overlay::apply_assignments(&mut table, assignments)?;
    let mut settings = split_language_settings(table)?;
    let config = &mut settings.config;
    config.model.path = path;
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate()?;
    Ok(settings)
}

/// Checks the settings of a new run of a task with these assignments of `--set`. The model, whose size decides the
/// defaults, is not loaded; it is enough that the settings are valid for one size.
pub fn validate(name: &str, assignments: &[String]) -> Result<()> {
    let path = resolve_model_path(name, None, &Table::new(), assignments)?;
    let sizes = if path == TINY { vec![None] } else { vec![Some(0), Some(usize::MAX)] };
    let check = |size: Option<usize>| -> Result<()> {
        let defaults = language_defaults(name, &path, size, Precision::F32)?;
        let settings = resolve_settings(name, Table::new(), defaults, Table::new(), assignments)?;
        Ok((task::find(name)?.check)(settings.task_settings)?)
    };
    sizes.into_iter().map(check).reduce(Result::or).unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_named_by_its_place_alone_has_a_name() {
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let resolve = |model: Option<&str>, set: &[&str]| {
            let set: Vec<String> = set.iter().map(ToString::to_string).collect();
            resolve_model_path("sort", model.map(Path::new), &Table::new(), &set).unwrap()
        };
        assert_eq!(Path::new(&resolve(Some("."), &[])), here);
        assert_eq!(Path::new(&resolve(None, &["model.path=."])), here);
        assert_eq!([resolve(Some("src/"), &[]), resolve(None, &[])], ["src/", TINY]);
    }
}
