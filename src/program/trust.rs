//! Consent to run a verifier, which is a shell command: one in a run or in a settings file may come from another person.

use super::verifier::VerifierArgs;
use crate::disk::{self, input};
use crate::task::cache;
use anyhow::{Result, bail};
use std::fs::File;
use std::io::Write;
use toml::{Table, Value};

/// The file of the cache with digests of the verifiers that this user has approved, one per line.
const GIVEN: &str = "verifiers";
/// The settings that are approved: the command, its folder, and what its sandbox permits.
const COVERED: [&str; 5] = ["verifier", "folder", SANDBOX[0], SANDBOX[1], SANDBOX[2]];
/// The settings of a verifier's sandbox.
const SANDBOX: [&str; 3] = ["sandbox", "network", "readable"];

/// Permits the verifier in a task's settings if the command line has `--trust`, or gives the verifier and all that its
/// sandbox permits, by options or by `--set`, or if this user has approved the same settings before. Otherwise, or if
/// `--verifier` is another command, it returns an error.
pub fn check(own: &Table, args: &VerifierArgs, set: &[String]) -> Result<()> {
    let text = |key| own.get(key).and_then(Value::as_str).unwrap_or_default();
    let (command, folder) = (text("verifier"), text("folder"));
    if let Some(given) = args.verifier.as_deref().filter(|given| *given != command) {
        bail!(
            "the run's verifier is `{command}`, not `{given}`; start a new run to use another verifier"
        );
    }
    if command.is_empty() {
        return Ok(());
    }
    let covered =
        COVERED.into_iter().filter_map(|key| Some((key.to_string(), own.get(key)?.clone())));
    let line = disk::sha256(covered.collect::<Table>().to_string());
    let file = cache::folder().map(|folder| folder.join(GIVEN));
    let known = file.as_ref().and_then(|file| input::read_description(file).ok());
    if known.is_some_and(|known| known.lines().any(|other| other == line)) {
        return Ok(());
    }
    let restrictions = args.restrictions();
    let gives = |key: &str| restrictions.contains_key(key) || is_set(set, key);
    let loose: Vec<&str> = SANDBOX.into_iter().filter(|key| !is_strict(own, key)).collect();
    let is_given = args.verifier.is_some() || is_set(set, "verifier");
    if !(args.trust || is_given && loose.iter().all(|key| gives(key))) {
        let place = if folder.is_empty() { "this folder" } else { folder };
        let loose =
            loose.into_iter().filter_map(|key| Some(format!(", {key} = {}", own.get(key)?)));
        let loose: String = loose.collect();
        bail!(
            "the verifier is a shell command that you have not approved yet: {command:?}, run in {place}{loose}; approve \
             it with --trust, or by --verifier with the same command{}",
            if loose.is_empty() { "" } else { " and by --verifier-sandbox and --verifier-allow" }
        );
    }
    if let Some(file) = file {
        // Where this fails, the user is asked again.
        let opened = File::options().create(true).append(true).open(file);
        let _ = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
    Ok(())
}

/// Whether a setting of the sandbox permits no more than its default.
fn is_strict(own: &Table, key: &str) -> bool {
    match own.get(key) {
        None => true,
        Some(Value::Boolean(is_on)) => *is_on == (key == "sandbox"),
        Some(Value::Array(paths)) => paths.is_empty(),
        Some(_) => false,
    }
}

/// Whether `--set` names a setting of the verifier.
fn is_set(set: &[String], key: &str) -> bool {
    let name = |set: &String| set.split('=').next().unwrap_or_default().trim().to_string();
    set.iter().map(name).any(|name| name.strip_prefix("data.").unwrap_or(&name) == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_that_is_set_by_any_of_its_names_is_given() {
        for (set, is_given) in [
            ("data.verifier=./v.sh", true),
            ("verifier=./v.sh", true),
            ("data.verifier = ./v.sh", true),
            ("data.folder=verifier=", false),
        ] {
            assert_eq!(is_set(&[set.to_string()], "verifier"), is_given, "{set}");
        }
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
            let own = Table::from_iter([(key.to_string(), value)]);
            assert_eq!(is_strict(&own, key), expected, "{own}");
            assert!(SANDBOX.iter().all(|other| *other == key || is_strict(&own, other)));
        }
    }
}
