//! Type-erased games and models of a program, as the commands receive them.

use super::args::{
    CheckArgs, DemoArgs, EvalArgs, ExportArgs, RecordArgs, RunArgs, SettingsArgs, TrainArgs,
};
use super::bench::BenchArgs;
use super::models::Models;
use super::table_game::TableGame;
use crate::checkpoint::Checkpoint;
pub use crate::env::ConfigurableGame;
use crate::env::{Catalog, Env, HostGame};
use crate::run::{Run, RunFiles, RunFolder, RunLock, Subject, catch_panic};
use crate::schema::Settings;
use crate::settings::TrainConfig;
use crate::task;
use crate::track::Animation;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Mean scores of reference players, lowest first.
pub type ReferenceScores = &'static [(&'static str, f64)];

/// A new run of a game.
pub struct NewRun<'a> {
    pub args: &'a RunArgs,
    /// Settings that override the game's defaults, those of a later table over those of an earlier one.
    pub layers: Vec<toml::Table>,
    /// Run or policy file that provides the initial weights; `None` for fresh ones.
    pub from: Option<&'a Path>,
}

/// Lock of a resumed run, until its first rank takes it.
pub type PendingLock = Mutex<Option<RunLock>>;

/// A saved run to resume.
#[derive(Clone, Copy)]
pub struct SavedRun<'a> {
    pub folder: &'a RunFolder,
    pub lock: &'a PendingLock,
    pub checkpoint: &'a Checkpoint,
}

/// The commands for one game, type-erased.
#[derive(Clone, Copy)]
pub struct GameCommands {
    pub train: fn(&Games, &NewRun) -> Result<()>,
    pub resume: fn(&Games, &TrainArgs, SavedRun) -> Result<()>,
    pub demo: fn(&Models, &DemoArgs) -> Result<()>,
    pub eval: fn(&Models, &EvalArgs, &Checkpoint) -> Result<()>,
    pub record: fn(&Models, &RecordArgs, &Checkpoint) -> Result<()>,
    /// Renders a policy at play, for trackers.
    pub render_animation: fn(&Models, &Checkpoint) -> Result<Animation>,
    pub bench: fn(&Models, &BenchArgs) -> Result<()>,
    pub settings: fn(&SettingsArgs) -> Result<()>,
    pub check: fn(&CheckArgs) -> Result<()>,
    pub export: fn(&Models, &ExportArgs, &Checkpoint) -> Result<()>,
    /// Complete default settings of a run.
    pub defaults: fn() -> Result<toml::Table>,
    /// Checks the settings of a new run that has these `--set`s.
    pub validate: fn(&Models, &[String]) -> Result<()>,
    /// Reference scores for the game's parameters in these settings.
    pub reference_scores: fn(toml::Table) -> Result<ReferenceScores>,
}

/// The games of a program, in order, its user-defined models, and the command that starts it. Cloning is cheap: clones
/// share the games.
#[derive(Clone)]
pub struct Games {
    entries: Arc<Catalog<GameCommands>>,
    /// Placeholder game for datasets imported from tables.
    table_commands: GameCommands,
    pub models: Models,
    /// Command line that starts this program again, without a subcommand; empty for the executable of this process.
    pub start_command: Vec<OsString>,
}

impl Games {
    /// Creates an empty list of games, with the commands for datasets imported from tables.
    pub fn new(table_commands: GameCommands) -> Self {
        Self {
            entries: Arc::default(),
            table_commands,
            models: Models::default(),
            start_command: Vec::new(),
        }
    }

    /// Removes the built-in games.
    pub fn remove_builtin(&mut self) {
        self.entries_mut().remove_builtin();
    }

    /// Adds a game, or replaces the one of the same name.
    ///
    /// # Panics
    /// If its name has other characters than [`Env::NAME`](crate::env::Env::NAME) permits, or is that of a task, or of
    /// a setting or section of runs, which would clash with its own section of settings.
    pub fn add<G: ConfigurableGame>(&mut self, commands: GameCommands) {
        if let Some(rule) = broken_name_rule(G::NAME) {
            panic!("a game cannot be called `{}`: {rule}", G::NAME);
        }
        self.entries_mut().add::<G>(Box::new(commands));
    }

    fn entries_mut(&mut self) -> &mut Catalog<GameCommands> {
        Arc::get_mut(&mut self.entries).expect("games are not shared before the program runs")
    }

    /// Names of the games in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.names()
    }

    /// Names of the games, comma-separated: `fruit, catch, cartpole`.
    pub fn joined_names(&self) -> String {
        self.entries.joined_names()
    }

    /// Finds a game by name; the placeholder for tables does not count.
    pub fn find(&self, name: &str) -> Result<&GameCommands> {
        match self.entries.find(name) {
            Some(game) => Ok(game),
            None if name == TableGame::NAME => bail!(
                "this command is for games, and a labelled table is not one: `grove fit` trains a policy on it and \
                 reports its held-out accuracy; the weights are in the run's best/weights.safetensors"
            ),
            None if name == HostGame::NAME => bail!(
                "`host` stands for environments in a Python process or a `HostEnv`; this program has none of them, so \
                 it cannot resume or evaluate their runs; in Python `grove_rl.Policy.load` loads the policy"
            ),
            None => bail!(
                "unknown game `{name}`; must be one of: {}; a game of your own needs the program that defines it",
                self.joined_names()
            ),
        }
    }

    /// Finds a game by name, or the default game.
    pub fn find_or_default(&self, name: Option<&str>) -> Result<&GameCommands> {
        self.find(name.map_or_else(|| self.default_name(), Ok)?)
    }

    /// Finds a game by name, or the default game, for a command that takes a language model's task as well. The error
    /// for an unknown name suggests the nearest game or task.
    pub fn find_beside_tasks(&self, name: Option<&str>) -> Result<&GameCommands> {
        let is_known = |name: &str| [TableGame::NAME, HostGame::NAME].contains(&name);
        let is_unknown = |name: &&str| self.entries.find(name).is_none() && !is_known(name);
        let Some(name) = name.filter(is_unknown) else { return self.find_or_default(name) };
        // IDs in Gymnasium end in a version.
        let lower = name.to_lowercase();
        let (plain, version) = lower.rsplit_once("-v").unwrap_or((lower.as_str(), ""));
        let known = self.names().chain(task::TASKS.iter().map(|task| task.name));
        let nearest = known
            .map(|known| (strsim::damerau_levenshtein(known, plain), known))
            .filter(|(distance, known)| 2 * distance <= known.len())
            .min();
        let hint = match nearest {
            Some((_, known)) => format!(" (did you mean `{known}`?)"),
            None if version.parse::<u32>().is_ok() => {
                "; Python trains in environments of Gymnasium: grove_rl.train".to_string()
            }
            None => String::new(),
        };
        bail!(
            "unknown game `{name}`; must be one of: {}, or a language model's task: {}{hint}",
            self.joined_names(),
            task::joined_names()
        )
    }

    /// Finds the game of a dataset by name; the placeholder for tables counts, too.
    pub fn find_with_table(&self, name: &str) -> Result<&GameCommands> {
        match self.find(name) {
            Err(_) if name == TableGame::NAME => Ok(&self.table_commands),
            found => found,
        }
    }

    /// Gives a run's trackers an animation of its best policy after `env_steps` environment steps, if they take one and
    /// the program has the game. Returns warnings: a tracker that fails does not stop a run.
    pub fn animate(
        &self,
        run: &dyn Run,
        files: &mut RunFiles,
        env_steps: u64,
        best: Option<&Checkpoint>,
    ) -> Vec<String> {
        let Subject::Env(name) = run.subject() else { return Vec::new() };
        let game = self.entries.find(&name).filter(|_| files.takes_animations());
        let (Some(game), Some(best)) = (game, best) else { return Vec::new() };
        let animation = catch_panic(|| (game.render_animation)(&self.models, best));
        match animation.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(animation) => files.write_animation(env_steps, &animation),
            Err(error) => vec![format!("TensorBoard gets no animation: {error:#}")],
        }
    }

    /// The name of the default game: the first.
    pub fn default_name(&self) -> Result<&'static str> {
        self.entries.names().next().context("this program has no game")
    }
}

/// The rule about names of games that a name breaks; `None` if it breaks none.
fn broken_name_rule(name: &str) -> Option<&'static str> {
    let is_portable = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_portable) {
        return Some("a name has ASCII letters, digits, `-` and `_`, a letter first");
    }
    let mut settings = TrainConfig::SETTINGS.iter().map(|setting| setting.key);
    if settings.any(|key| key == name) || ["env", "task"].contains(&name) {
        return Some("a setting has this name");
    }
    task::find(name).is_ok().then_some("a task has this name")
}

#[cfg(test)]
mod tests {
    use super::broken_name_rule;

    #[test]
    fn names_of_games_are_portable_and_their_own() {
        for name in ["corridor", "Grid_2-x"] {
            assert_eq!(broken_name_rule(name), None, "{name}");
        }
        for (name, word) in [
            ("", "ASCII letters"),
            ("../corridor", "ASCII letters"),
            ("a b", "ASCII letters"),
            ("-1", "a letter first"),
            ("rollout", "a setting"),
            ("task", "a setting"),
            ("sort", "a task"),
        ] {
            assert!(broken_name_rule(name).is_some_and(|rule| rule.contains(word)), "{name}");
        }
    }
}
