//! `grove export`: writes a trained policy in a format of other tools.

use super::args::{ExportArgs, ExportFormat, name_of};
use super::export_model::{self, output_stem};
use super::games::{ConfigurableGame, Games};
use super::models::Models;
use super::output::{eprint_line, print_json, write_file};
use super::session::load_policy_checkpoint;
use super::validation::read_valid_settings;
use crate::checkpoint::Checkpoint;
use crate::disk::input;
use crate::env::{Env, HostGame};
use crate::export::onnx;
use crate::model::policy_file::{Header, read_header, write_params};
use crate::model::{Actor, LANES, Lanes, Parameter};
use crate::rng::{draw, uniform};
use crate::run::{RunFolder, is_of_language_model};
use crate::settings::TrainConfig;
use crate::trainer::{config_to_toml, read_game_name, read_policy_params};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

#[derive(Serialize)]
struct JsonPolicy<'a> {
    env: &'a str,
    iteration: u64,
    kind: String,
    activation: String,
    features: Vec<String>,
    actions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataset: Option<&'a Value>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    /// In row-major order.
    values: &'a [f32],
}

/// Error for options of language models with a game.
const LANGUAGE_OPTIONS_ERROR: &str =
    "--merge, --outtype and the format gguf are for language models";

/// A description of the written file.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    out: String,
    iteration: u64,
    bytes: usize,
}

/// Writes a policy or a language model to a file or folder.
pub fn run(games: &Games, args: ExportArgs) -> Result<()> {
    if export_model::is_model(&args.run) {
        return export_model::write(games, &args, None);
    }
    if let Some(run) = RunFolder::find(&args.run).ok().filter(RunFolder::has_language_model) {
        return export_model::write(games, &args, Some(&run));
    }
    let checkpoint = load_policy_checkpoint(&args.run)?;
    if is_of_language_model(&checkpoint) {
        bail!(
            "{} is a checkpoint of a language model; name its run, whose folder `model` has the best one",
            args.run.display()
        );
    }
    let name = read_game_name(&checkpoint)?;
    let write = match games.find_with_table(&name) {
        // The policy of environments that this program lacks is a network like any other.
        Err(_) if name == HostGame::NAME => write::<HostGame>,
        found => found?.export,
    };
    write(&games.models, &args, &checkpoint)
}

/// Writes the policy of a checkpoint.
pub fn write<G: ConfigurableGame>(
    models: &Models,
    args: &ExportArgs,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let (game, config) = read_valid_settings::<G>(models, checkpoint)?;
    let (layout, values) = read_policy_params(checkpoint, game, &config)?;
    let iteration = checkpoint.iteration;
    let format = args.format.unwrap_or(ExportFormat::Onnx);
    ensure!(!args.merge && args.outtype.is_none(), LANGUAGE_OPTIONS_ERROR);
    let dataset = find_dataset(&args.run);
    let bytes = encode(format, game, &config, iteration, &layout, &values, dataset.as_ref())?;
    let stem = output_stem(&args.run);
    let out = args.out.clone().unwrap_or_else(|| format!("{stem}.{}", name_of(&format)).into());
    args.samples.iter().chain([&out]).try_for_each(|path| RunFolder::check_output(path))?;
    if args.samples.as_ref() == Some(&out) {
        bail!("--samples and the policy would be the same file, {}; give two paths", out.display());
    }
    write_file(&out, &bytes)?;
    if let Some(path) = &args.samples {
        let policy = models.load_policy(checkpoint, game, &config)?;
        write_file(path, &encode_samples(&policy))?;
    }
    let out = out.display().to_string();
    if args.json {
        print_json(&Report { env: G::NAME, out, iteration, bytes: bytes.len() })
    } else {
        eprint_line!("Wrote the policy of iteration {iteration} to {out}.");
        Ok(())
    }
}

/// Encodes a policy as a file in a format of games' policies.
fn encode<G: ConfigurableGame>(
    format: ExportFormat,
    game: G,
    config: &TrainConfig,
    iteration: u64,
    layout: &[Parameter],
    values: &[f32],
    dataset: Option<&Value>,
) -> Result<Vec<u8>> {
    let (features, actions) = (feature_names(&game, dataset), action_names(&game, dataset));
    Ok(match format {
        ExportFormat::Onnx => onnx::encode(&onnx::Policy {
            name: G::NAME,
            config: &config.policy,
            num_features: game.num_features(),
            num_actions: game.num_actions(),
            params: values,
            metadata: &[
                ("features", serde_json::to_string(&features)?),
                ("actions", serde_json::to_string(&actions)?),
                ("dataset", dataset.map(Value::to_string).unwrap_or_default()),
            ],
        })?,
        ExportFormat::Safetensors => {
            let header = Header {
                iteration,
                config: config_to_toml(&game, config),
                dataset: dataset.cloned(),
            };
            write_params(layout, values, Some(&header))
        }
        ExportFormat::Gguf => bail!(LANGUAGE_OPTIONS_ERROR),
        ExportFormat::Json => serde_json::to_vec(&JsonPolicy {
            env: G::NAME,
            iteration,
            kind: config.policy.kind.to_string(),
            activation: config.policy.activation.to_string(),
            features,
            actions,
            dataset,
            tensors: split_into_tensors(layout, values),
        })?,
    })
}

/// The description of the dataset that a policy is fitted to: that in its file's header, or in its run.
fn find_dataset(policy: &Path) -> Option<Value> {
    let file = policy.is_file().then(|| input::read(policy, input::MAX_DATA_BYTES).ok()).flatten();
    let in_header = file.and_then(|bytes| read_header(&bytes).ok()?.dataset);
    in_header.or_else(|| RunFolder::find_dataset(policy))
}

/// Names in a list of a dataset's description.
fn names_in(dataset: Option<&Value>, list: &str) -> Vec<String> {
    let names = dataset.and_then(|dataset| dataset[list].as_array()).into_iter().flatten();
    names.filter_map(|name| Some(name.as_str()?.to_string())).collect()
}

/// Names of the numbers of an observation: those of a table's columns for each of its rows, `x[-1]` for the row before
/// the last one, otherwise the game's.
fn feature_names(game: &impl ConfigurableGame, dataset: Option<&Value>) -> Vec<String> {
    let (columns, count) = (names_in(dataset, "features"), game.num_features());
    if columns.is_empty() || !count.is_multiple_of(columns.len()) {
        return game.feature_names();
    }
    let names_of_row = |age: usize| {
        let name = move |column: &String| match age {
            0 => column.clone(),
            _ => format!("{column}[-{age}]"),
        };
        columns.iter().map(name)
    };
    (0..count / columns.len()).rev().flat_map(names_of_row).collect()
}

/// Names of the actions: the dataset's, otherwise the game's.
fn action_names(game: &impl ConfigurableGame, dataset: Option<&Value>) -> Vec<String> {
    let names = names_in(dataset, "actions");
    if names.len() == game.num_actions() { names } else { game.action_names() }
}

fn split_into_tensors<'a>(layout: &'a [Parameter], mut values_left: &'a [f32]) -> Vec<Tensor<'a>> {
    let tensor = |Parameter { name, shape }: &'a Parameter| {
        let (values, rest) = values_left.split_at(shape.iter().product());
        values_left = rest;
        Tensor { name, shape, values }
    };
    layout.iter().map(tensor).collect()
}

/// Random observations, and memories after up to 49 steps, with the policy's logits and next memories, as a safetensors
/// file.
fn encode_samples(policy: &impl Actor) -> Vec<u8> {
    /// Groups of [`LANES`] observations.
    const GROUPS: usize = 640;
    let (num_features, memory_size) = (policy.num_features(), policy.memory_size());
    let mut scratch = policy.new_scratch();
    let mut columns: [Vec<f32>; 4] = Default::default();
    for group in 0..GROUPS {
        let random_obs = |step: usize| -> Vec<Lanes> {
            let key = draw(group as u32, step as u32);
            let value =
                |i: usize, lane: usize| 2.0 * uniform(draw(draw(key, i as u32), lane as u32)) - 1.0;
            (0..num_features).map(|i| std::array::from_fn(|lane| value(i, lane))).collect()
        };
        let mut memory: Vec<Lanes> = vec![[0.0; LANES]; memory_size];
        let num_past_steps = if memory_size == 0 { 0 } else { group % 50 };
        for step in 0..num_past_steps {
            policy.compute_logits(&random_obs(step), &mut memory, &mut scratch);
        }
        let obs = random_obs(num_past_steps);
        let memory_before = memory.clone();
        let logits = policy.compute_logits(&obs, &mut memory, &mut scratch).to_vec();
        for (column, rows) in columns.iter_mut().zip([&obs, &logits, &memory_before, &memory]) {
            let rows = (0..LANES).flat_map(|lane| rows.iter().map(move |row| row[lane]));
            column.extend(rows);
        }
    }
    let widths = [
        ("obs", num_features),
        ("logits", policy.num_actions()),
        ("memory", memory_size),
        ("next_memory", memory_size),
    ];
    let shape = |(name, width): (&str, usize)| Parameter {
        name: name.to_string(),
        shape: vec![GROUPS * LANES, width],
    };
    write_params(&widths.map(shape), &columns.concat(), None)
}
