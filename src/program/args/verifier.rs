//! Options of the command that verifies completions, and of `grove verify`.

use super::parsers::{OneOf, count_in};
use crate::task::DataTask;
use anyhow::{Result, bail};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use std::path::PathBuf;
use toml::{Table, Value};

/// Options of the command that verifies completions.
#[derive(Args, Debug, Default)]
pub struct VerifierArgs {
    /// The command that verifies completions of prompts of your own.
    ///
    /// Without it, a completion scores 1 if it equals the prompt's `solution`, otherwise 0. `grove fit` uses
    /// it in evaluations only.
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    pub verifier: Option<String>,
    /// Whether the verifier runs in a sandbox [default: on].
    ///
    /// It has no network there, and reads only the system's programs, its folder, and what its command names.
    #[arg(long, value_name = "on|off",
        value_parser = OneOf(&[true, false], |is_on| if is_on { "on" } else { "off" }))]
    pub verifier_sandbox: Option<bool>,
    /// A further path that the sandboxed verifier may read, or `network`; may be repeated.
    #[arg(long, value_name = "PATH|network")]
    pub verifier_allow: Vec<String>,
    /// Run the verifier of a run or of a settings file, even if you have not approved it before.
    #[arg(long)]
    pub trust: bool,
}

#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The language task, such as `sort`; without one, --task-data names the prompts.
    pub task: Option<String>,
    /// A file of prompts, as for `train`.
    #[arg(long, value_name = "FILE")]
    pub task_data: Option<PathBuf>,
    #[command(flatten)]
    pub verifier: VerifierArgs,
    /// Also try worthless answers: empty, constant, echoes of the prompt, huge, binary, or format alone.
    #[arg(long)]
    pub attack: bool,
    /// Number of held-out prompts.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = count_in::<u64>(1..=100_000))]
    pub prompts: u64,
    /// Change a setting of the task, for instance sort.length=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

impl VerifierArgs {
    /// Whether the command line has any of these options.
    pub fn is_given(&self) -> bool {
        let Self { verifier, verifier_sandbox, verifier_allow, trust } = self;
        verifier.is_some() || verifier_sandbox.is_some() || !verifier_allow.is_empty() || *trust
    }

    /// Checks that none of these options is given for a game.
    pub fn refuse_for_games(&self) -> Result<()> {
        if self.is_given() {
            bail!("--verifier and its options are for language models; a game has its own score");
        }
        Ok(())
    }

    /// Checks that neither a command nor a sandbox is given for a task that has its own verifier.
    pub fn refuse_for_built_in(&self, task: &str) -> Result<()> {
        let is_given = self.verifier.is_some() || !self.restrictions().is_empty();
        if is_given && task != DataTask::NAME {
            bail!("the task `{task}` has a built-in verifier that takes no options");
        }
        Ok(())
    }

    /// The settings of a verifier's sandbox on the command line.
    pub fn restrictions(&self) -> Table {
        let mut restrictions = Table::new();
        if let Some(is_on) = self.verifier_sandbox {
            restrictions.insert("sandbox".to_string(), is_on.into());
        }
        let (network, paths): (Vec<_>, Vec<_>) =
            self.verifier_allow.iter().partition(|allowed| *allowed == "network");
        if !network.is_empty() {
            restrictions.insert("network".to_string(), true.into());
        }
        if !paths.is_empty() {
            let paths = paths.into_iter().map(|path| {
                std::path::absolute(path)
                    .map_or(path.clone(), |path| path.display().to_string())
                    .into()
            });
            restrictions.insert("readable".to_string(), Value::Array(paths.collect()));
        }
        restrictions
    }
}
