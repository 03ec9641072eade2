//! `grove fit`: behaviour cloning on a dataset; supervised fine-tuning of a language model is in `text/`.

use super::args::FitArgs;
use super::games::{Games, NewRun};
use super::paths::canonical_path;
use super::table_game::TableGame;
use super::{ranks, text};
use crate::data::{Dataset, MANIFEST_FILE};
use crate::env::Env;
use crate::settings::{IMITATION_DEFAULTS, ModelKind, overlay};
use crate::trainer::layer_settings;
use anyhow::{Context, Result, bail};
use std::path::Path;
use toml::{Table, Value};

/// Trains a policy, or a language model, on data alone. A dataset brings the settings of its game, which are laid below
/// those of the file and the command line.
pub fn run(games: &Games, args: FitArgs) -> Result<()> {
    ranks::start_thread_pool(args.run.threads)?;
    if args.run.resume {
        bail!("`grove train --resume` resumes any run, those of `grove fit` too");
    }
    let is_dataset = args.data.join(MANIFEST_FILE).is_file();
    if args.model.is_some() && is_dataset {
        bail!(
            "{} is a dataset of a game, and --model names a language model; leave --model out",
            args.data.display()
        );
    }
    if text::is_fit_of_texts(&args) {
        return text::fit(games, args);
    }
    let FitArgs { data, run, verifier, .. } = args;
    verifier.refuse_for_games()?;
    if overlay::assigns(&run.set, "data.path") {
        bail!("`grove fit DATASET` names the dataset; leave data.path out");
    }
    if let Some(name) = data.to_str().filter(|name| !data.exists() && games.find(name).is_ok()) {
        bail!(
            "{name} is a game, and `grove fit` learns from a dataset; `grove demo {name} --player NAME --out DIR` records one"
        );
    }
    let manifest = Dataset::open(&data)?.manifest().clone();
    let folder = canonical_path(&data)?;
    let settings = Value::try_from(&manifest.settings).with_context(|| {
        format!("the settings in {}", Path::new(&folder).join(MANIFEST_FILE).display())
    })?;
    let mut defaults = overlay::parse("the defaults of fit", IMITATION_DEFAULTS)?;
    let section = Table::from_iter([("path".to_string(), folder.clone().into())]);
    defaults.insert("data".to_string(), section.into());
    defaults.insert(manifest.env.clone(), settings);
    let mut layers = vec![defaults, replace_dataset(run.read_settings()?, folder)];
    if let (Some(window), true) = (manifest.window, manifest.env == TableGame::NAME) {
        let (_, config) = layer_settings::<TableGame>(&layers, &run.set)?;
        let defaults = series_defaults(window, &config.policy.kind);
        layers.insert(1, overlay::parse("the defaults of a series", &defaults)?);
    }
    let game = games.find_with_table(&manifest.env).with_context(|| {
        format!("the dataset in {} is of a game that this program does not have", data.display())
    })?;
    (game.train)(games, &NewRun { args: &run, layers, from: None })
}

/// Replaces the dataset of a settings file, which may be that of an earlier run, by the one of the command line.
fn replace_dataset(mut file: Table, folder: String) -> Table {
    let is_data_setting =
        |key: &str| ["data.path", "data.digest"].iter().any(|path| overlay::is_name_of(key, path));
    file.retain(|key, _| !is_data_setting(key));
    if let Some(Value::Table(data)) = file.get_mut("data") {
        data.remove("digest");
        data.insert("path".to_string(), folder.into());
    }
    file
}

/// The defaults, as TOML, for a series of labels, each about the last `window` rows: a perceptron sees these rows at
/// once, a network with memory one after the other, with as many before each window as its first label needs.
fn series_defaults(window: usize, kind: &ModelKind) -> String {
    let game = TableGame::NAME;
    let rows = window as i64;
    match kind {
        ModelKind::Mlp => format!("{game}.stack = {rows}"),
        _ => format!(
            "policy.context = {rows}\ndata = {{ window = {rows}, history = {}, batch_size = 16 }}",
            rows - 1
        ),
    }
}
