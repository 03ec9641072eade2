//! `grove fit`: a policy that does what a dataset shows.

use super::train::{self, settings_file};
use super::{FitArgs, Games};
use crate::config::overlay;
use crate::data::{Dataset, MANIFEST};
use anyhow::{Context, Result, bail};
use toml::{Table, Value};

/// What imitation needs that reinforcement does not, laid over a game's defaults.
const DEFAULTS: &str = include_str!("fit.toml");

pub fn run(games: &Games, args: FitArgs) -> Result<()> {
    let FitArgs { data, run } = args;
    super::use_threads(run.threads)?;
    if run.resume {
        bail!("`grove train --resume` goes on with a run, whatever it learns from");
    }
    let manifest = Dataset::open(&data)?.manifest().clone();
    let folder = data.canonicalize().with_context(|| format!("cannot find {}", data.display()))?;
    let mut file = overlay::parse("the defaults of fit", DEFAULTS)?;
    let path = folder.display().to_string();
    let section = Table::from_iter([("path".to_string(), path.into())]);
    file.insert("data".to_string(), section.into());
    let settings = Value::try_from(&manifest.settings)
        .with_context(|| format!("the settings in {}", folder.join(MANIFEST).display()))?;
    file.insert(manifest.env.clone(), settings);
    let file = overlay::merged(file, settings_file(&run)?);
    let game = games.find(&manifest.env).with_context(|| {
        format!("the dataset in {} is of a game that this program does not have", data.display())
    })?;
    game.train(games, &train::Start { run: &run, file, from: None })
}
