//! `grove completions` and `grove man`: the command line in the forms of shells and of `man`.

use super::output::{eprint_line, print_result};
use crate::task::TASKS;
use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, Resettable};
use clap::{Arg, Args, Command, Id};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;

/// The name of the program.
const NAME: &str = "grove";

/// Commands whose game may also be a language model's task.
pub const TASK_COMMANDS: [&str; 3] = ["train", "bench", "settings"];

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell. For bash: `source <(grove completions bash)`.
    pub shell: Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder to write into.
    #[arg(long, value_name = "DIR", default_value = "man")]
    pub out: PathBuf,
}

/// Prints the script of a shell for a command line.
pub fn print_completions(
    games: &[&'static str],
    args: &CompletionsArgs,
    command: &Command,
) -> Result<()> {
    print_result(generate_script(games, args.shell, command)?.trim_end())
}

/// Generates the script of a shell that completes commands, options, and values that are names.
fn generate_script(games: &[&'static str], shell: Shell, command: &Command) -> Result<String> {
    let mut command = strip_hidden_options(games, command);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, NAME, &mut script);
    let mut script = String::from_utf8(script)?;
    if shell == Shell::Fish {
        script += &format_fish_positionals(&command);
    }
    Ok(script)
}

/// Copies a command and its subcommands without hidden options, which scripts would list, and with the names of games
/// and tasks. The copy is for scripts alone: it lacks rules between options.
fn strip_hidden_options(games: &[&'static str], command: &Command) -> Command {
    let name = command.get_name();
    let arg = |arg: &Arg| {
        // They may refer to hidden options.
        let arg =
            arg.clone().conflicts_with(Resettable::<Id>::Reset).requires(Resettable::<Id>::Reset);
        match find_values(games, name, &arg) {
            Some(values) => arg.value_parser(PossibleValuesParser::new(values)),
            None => arg,
        }
    };
    // Clap takes names that last as long as the program.
    let aliases = command.get_visible_aliases().map(|alias| &*alias.to_string().leak());
    Command::new(&*name.to_string().leak())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .visible_aliases(aliases.collect::<Vec<_>>())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).map(arg))
        .subcommands(command.get_subcommands().map(|inner| strip_hidden_options(games, inner)))
}

/// Finds the names of games and tasks that an argument of a command takes.
fn find_values(games: &[&'static str], command: &str, arg: &Arg) -> Option<Vec<&'static str>> {
    let tasks = || TASKS.iter().map(|task| task.name);
    match arg.get_id().as_str() {
        "game" if TASK_COMMANDS.contains(&command) => {
            Some(games.iter().copied().chain(tasks()).collect())
        }
        "game" => Some(games.to_vec()),
        "task" => Some(tasks().collect()),
        _ => None,
    }
}

/// Formats the lines of arguments without an option, which clap's script for fish leaves out.
fn format_fish_positionals(command: &Command) -> String {
    let mut lines = String::new();
    for inner in command.get_subcommands() {
        let values =
            inner.get_positionals().filter_map(|arg| arg.get_value_parser().possible_values());
        for values in values {
            let names: Vec<_> = values.map(|value| value.get_name().to_string()).collect();
            let command = inner.get_name();
            let names = names.join(" ");
            lines += &format!(
                "complete -c {NAME} -n \"__fish_{NAME}_using_subcommand {command}\" -a \"{names}\"\n"
            );
        }
    }
    lines
}

/// Writes `grove.1` and a page for each subcommand of a command line.
pub fn write_man_pages(args: &ManArgs, command: Command) -> Result<()> {
    let folder = &args.out;
    ensure!(
        folder.is_dir() || !folder.exists(),
        "{} is not a folder, into which the pages go",
        folder.display()
    );
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    eprint_line!("Wrote the pages to {0}; `man -l {0}/grove.1` shows the first.", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::args::Cli;
    use crate::program::dispatch::builtin_games;
    use crate::settings::{EngineChoice, Precision};
    use clap::CommandFactory;

    fn script_of(shell: Shell) -> String {
        let games: Vec<_> = builtin_games().names().collect();
        generate_script(&games, shell, &Cli::command()).unwrap()
    }

    /// Finds the line after the first one that contains `words`, of those after `start`.
    fn line_after<'a>(script: &'a str, start: &str, words: &str) -> &'a str {
        let (_, part) = script.split_once(start).unwrap_or_else(|| panic!("{start}: {script}"));
        let mut lines = part.lines().skip_while(|line| !line.contains(words));
        lines.nth(1).unwrap_or_else(|| panic!("{words}: {part}"))
    }

    #[test]
    fn scripts_offer_the_names_of_games_tasks_and_settings() {
        let names = [builtin_games().joined_names(), crate::task::joined_names()];
        let [games, tasks] = names.map(|names| names.replace(',', ""));
        let [engines, precisions] =
            [EngineChoice::NAMES, Precision::NAMES].map(|names| names.join(" "));
        let bash = script_of(Shell::Bash);
        let train = |words: &str| line_after(&bash, "grove__subcmd__train)\n", words);
        assert!(train("--engine)").contains(&format!("\"{engines}\"")), "{bash}");
        assert!(train("--precision)").contains(&format!("\"{precisions}\"")), "{bash}");
        let generate = line_after(&bash, "grove__subcmd__generate)\n", "--precision)");
        assert!(generate.contains("\"f32 bf16\""), "{generate}");
        let outtype = line_after(&bash, "grove__subcmd__export)\n", "--outtype)");
        assert!(outtype.contains("\"f32 f16 bf16 q8_0\""), "{outtype}");
        assert!(train("--verifier-sandbox)").contains("\"on off\""), "{bash}");
        for (command, values) in [
            ("train", format!("{games} {tasks}\"")),
            ("settings", format!("{games} {tasks}\"")),
            ("demo", format!("{games}\"")),
            ("verify", format!("{tasks}\"")),
        ] {
            let (_, part) = bash.split_once(&format!("grove__subcmd__{command})\n")).unwrap();
            let options = part.lines().find(|line| line.contains("opts=")).unwrap();
            assert!(options.ends_with(&values), "{command}: {options}");
        }
        let zsh = script_of(Shell::Zsh);
        assert!(zsh.contains(&format!("({games} {tasks})")), "{zsh}");
        assert!(zsh.contains(&format!("({engines})")), "{zsh}");
        let fish = script_of(Shell::Fish);
        let line = format!("_using_subcommand train\" -a \"{games} {tasks}\"");
        assert!(fish.contains(&line) && fish.contains("-l engine"), "{fish}");
        assert!(fish.contains("_using_subcommand completions\" -a \"bash "), "{fish}");
    }

    #[test]
    fn scripts_list_no_hidden_option() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let script = script_of(shell);
            assert!(script.contains("run-dir") && !script.contains("stop-with-stdin"), "{script}");
        }
        let bash = script_of(Shell::Bash);
        let (_, fit) = bash.split_once("grove__subcmd__fit)\n").unwrap();
        let options = fit.lines().find(|line| line.contains("opts=")).unwrap();
        assert!(options.contains("--dry-run") && !options.contains("--resume"), "{options}");
    }
}
