//! Consent to run a verifier, which is a shell command: one in a run or in a settings file may come from another person.

use crate::disk::{self, input};
use crate::task::cache;
use anyhow::{Result, bail};
use std::fs::File;
use std::io::Write;
use toml::{Table, Value};

/// The file of the cache with digests of the verifiers that this user has approved, one per line.
const GIVEN: &str = "verifiers";

/// Permits the verifier in a task's settings if `--verifier` has `given` it, if the command line sets it in another way
/// or has `--trust` (`is_trusted`), or if this user has approved the same command for the same folder before. Otherwise,
/// or if `given` is another command, it returns an error.
pub fn check(own: &Table, given: Option<&str>, is_trusted: bool) -> Result<()> {
    let text = |key| own.get(key).and_then(Value::as_str).unwrap_or_default();
    let (command, folder) = (text("verifier"), text("folder"));
    if let Some(given) = given.filter(|given| *given != command) {
        bail!(
            "the run's verifier is `{command}`, not `{given}`; start a new run to use another verifier"
        );
    }
    if command.is_empty() {
        return Ok(());
    }
    // Lengths keep two pairs of texts apart.
    let line = disk::sha256(format!("{} {command}{folder}", command.len()));
    let file = cache::folder().map(|folder| folder.join(GIVEN));
    let known = file.as_ref().and_then(|file| input::read_description(file).ok());
    if known.is_some_and(|known| known.lines().any(|other| other == line)) {
        return Ok(());
    }
    if given.is_none() && !is_trusted {
        let place = if folder.is_empty() { "this folder" } else { folder };
        bail!(
            "the verifier is a shell command that you have not approved yet: {command:?}, run in {place}; approve it \
             with --trust, or by --verifier with the same command"
        );
    }
    if let Some(file) = file {
        // Where this fails, the user is asked again.
        let opened = File::options().create(true).append(true).open(file);
        let _ = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
    Ok(())
}
