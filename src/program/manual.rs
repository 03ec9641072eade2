//! `grove completions` and `grove man`: the command line in the forms of shells and of `man`.

use super::say::{say, tell};
use anyhow::{Context, Result};
use clap::{Args, Command};
use std::fs;
use std::path::PathBuf;

/// The name of the program.
const NAME: &str = "grove";

/// Options of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell. For bash: `source <(grove completions bash)`.
    pub shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder to write into.
    #[arg(long, value_name = "DIR", default_value = "man")]
    pub out: PathBuf,
}

/// Prints the script of a shell for a command line.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    tell(String::from_utf8(script)?.trim_end())
}

/// Writes `grove.1` and a page for each subcommand of a command line.
pub fn man(args: &ManArgs, command: Command) -> Result<()> {
    let folder = &args.out;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    say!("Wrote the pages to {0}; `man -l {0}/grove.1` shows the first.", folder.display());
    Ok(())
}
