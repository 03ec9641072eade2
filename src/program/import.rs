//! `grove import`: builds a dataset from a labelled time series, or from games played on the page.

use super::args::ImportArgs;
use super::games::Games;
use super::output::{eprint_line, print_json, print_result};
use super::progress_note::with_note;
use super::table_game::TableGame;
use crate::data::{
    AnnotatedTable, DatasetWriter, Manifest, StepColumns, Steps, TableOptions, deserialize_games,
};
use crate::disk::{self, input};
use crate::env::Env;
use crate::run::pluralize;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

/// Statistics of one part of a table.
#[derive(Serialize)]
struct SplitStats {
    rows: usize,
    labelled_rows: usize,
}

impl SplitStats {
    fn new(columns: &StepColumns) -> Self {
        let labelled_rows = columns.weights.iter().filter(|weight| **weight > 0.0).count();
        Self { rows: columns.weights.len(), labelled_rows }
    }
}

/// Builds a dataset of a table, if its labels and window are named, and of games otherwise.
pub fn run(games: &Games, args: ImportArgs) -> Result<()> {
    match (&args.label, args.window) {
        (Some(label), Some(window)) => import_table(&args, label, window),
        _ => import_games(games, &args),
    }
}

/// Imports a labelled time series.
fn import_table(args: &ImportArgs, label: &str, window: usize) -> Result<()> {
    let ImportArgs { file, time, time_format, validation, out, json, .. } = args;
    if !(*validation > 0.0 && *validation <= 0.5) {
        bail!("--validation is {validation}, but must be above 0 and at most 0.5");
    }
    let (time, time_format) = (time.as_deref(), time_format.as_deref());
    let options = TableOptions { label, time, time_format, window, validation: *validation };
    let AnnotatedTable { features, unnamed_columns, scales, labels, training, held_out } =
        with_note("Reading the table.", || AnnotatedTable::read(file, &options))?;
    for column in unnamed_columns {
        eprint_line!("Column {column} has no name (row numbers?) and is skipped.");
    }
    let sizes = [("columns", features.len()), ("labels", labels.len())];
    let sizes = sizes.map(|(name, size)| (name.to_string(), Value::from(size)));
    let manifest = Manifest {
        settings: sizes.into_iter().collect(),
        features: features.clone(),
        actions: labels.clone(),
        window: Some(window),
        scales,
        ..Manifest::new(TableGame::NAME)
    };
    let mut writer = DatasetWriter::create(out, manifest)?;
    with_note("Writing the dataset.", || {
        writer.write(&training)?;
        writer.write_held_out(&held_out)?;
        writer.finish()
    })?;
    let out = out.display();
    let learnt = SplitStats::new(&training);
    let held_out = SplitStats::new(&held_out);
    if *json {
        return print_json(&json!({
            "out": out.to_string(),
            "features": features,
            "labels": labels,
            "learnt": learnt,
            "held_out": held_out,
        }));
    }
    print_result(format_args!(
        "Wrote {} rows of {} to {out}: {} are labelled ({}). The last {} rows, {} of them labelled, are \
         held out for validation.",
        learnt.rows + held_out.rows,
        pluralize(features.len(), "column"),
        learnt.labelled_rows + held_out.labelled_rows,
        labels.join(", "),
        held_out.rows,
        held_out.labelled_rows
    ))
}

/// Imports games played on the page.
fn import_games(games: &Games, args: &ImportArgs) -> Result<()> {
    let ImportArgs { file, out, json, .. } = args;
    if disk::has_extension(file, "csv") {
        bail!(
            "a CSV file needs --label, the column of the labels, and --window, the number of rows per label"
        );
    }
    let bytes = input::read(file, input::MAX_DATA_BYTES)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let (manifest, steps) = deserialize_games(file.clone(), bytes)?;
    games.find(&manifest.env)?;
    let env = manifest.env.clone();
    let episodes = steps.episodes().len();
    let num_steps = steps.len();
    let mut writer = DatasetWriter::create(out, manifest)?;
    writer.write(&StepColumns::from_steps(&steps))?;
    writer.finish()?;
    let out = out.display();
    if *json {
        let out = out.to_string();
        return print_json(
            &json!({ "out": out, "env": env, "episodes": episodes, "steps": num_steps }),
        );
    }
    print_result(format_args!("Wrote {episodes} games of {env} ({num_steps} steps) to {out}."))
}
