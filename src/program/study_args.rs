//! Options of the commands that compare runs.

use super::choices::one_of;
use crate::text::GgufType;
use clap::{Args, ValueEnum};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Options of `runs`.
#[derive(Args, Debug)]
pub struct RunsArgs {
    /// The folder of runs, or a run.
    #[arg(default_value = "runs", value_name = "DIR")]
    pub folder: PathBuf,
    /// Print the list as a JSON array on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `plot`.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Run directories, or folders of runs.
    ///
    /// Runs with the same settings but for the seed become one line, the mean, with its 95 % bootstrap interval.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The horizontal axis.
    #[arg(long, default_value = "env_steps", value_name = "NAME")]
    pub x: Axis,
    /// The vertical axis: `score` (of training episodes), `greedy` (of evaluations), or a recorded figure.
    ///
    /// Figures have TensorBoard's names, for instance losses/entropy or eval/held_out_loss, or those of the fields of
    /// metrics.jsonl, for instance entropy or seconds.total.
    #[arg(long, default_value = "score", value_name = "NAME")]
    pub y: String,
    /// Also draw the curves into this .svg or .png file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the table as a JSON array on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Axis {
    /// Environment steps; tokens for language models.
    EnvSteps,
    /// Seconds of training, without evaluations.
    Seconds,
    /// Iterations.
    Iterations,
}

/// Options of `export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`); for
    /// a language model a run, a Hugging Face folder or a GGUF file.
    pub run: PathBuf,
    /// The format: onnx, safetensors or json for games; gguf or safetensors (a Hugging Face folder) for language models
    /// [default: onnx for games, gguf for language models].
    #[arg(long, value_name = "NAME")]
    pub format: Option<Format>,
    /// The file, or the folder of a language model [default: the run's name with the format's extension].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Merge a language model's adapters into its weights; by default only the adapters are exported.
    #[arg(long)]
    pub merge: bool,
    /// Number format of a GGUF file [default: f32].
    #[arg(long, value_name = "NAME", value_parser = one_of(GgufType::ALL, GgufType::name))]
    pub outtype: Option<GgufType>,
    /// Also write random observations with the policy's logits, to check the exported policy elsewhere (safetensors).
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Print a description of the file as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A format of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// ONNX: observation and memory to logits, greedy action and memory.
    Onnx,
    /// Named tensors, with the settings in the header.
    Safetensors,
    /// Named tensors in row-major order, with the names of features and actions.
    Json,
    /// The format of llama.cpp: a language model with its vocabulary, or adapters for one.
    Gguf,
}

/// The name of a value on the command line.
pub fn name_of(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_string()
}

/// Options of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// The file of the sweep (TOML); see docs/runs.md.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The folder of the sweep [default: the file's name without its ending].
    ///
    /// A sweep that was interrupted continues by the command that began it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The device, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Number of CPU threads, shared by the runs side by side [default: one per core].
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Run the verifier that the file names, even if you have not approved it before.
    #[arg(long)]
    pub trust: bool,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A parser of counts in this range.
pub fn count<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be {} to {}", range.start(), range.end()))
    }
}

/// The seeds of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Parses seeds: `1..5`, both ends included, or `1,2,8`.
pub fn seeds(text: &str) -> Result<Seeds, String> {
    let wrong = || "write a range, for instance 1..5 (both included), or a list, 1,2,8".to_string();
    let number = |text: &str| {
        let number = text.trim().parse::<u64>().map_err(|_| wrong())?;
        let is_small = i64::try_from(number).is_ok();
        is_small.then_some(number).ok_or_else(|| "a seed is at most 2^63 - 1".to_string())
    };
    let seeds: Vec<u64> = match text.split_once("..") {
        Some((first, last)) => (number(first)?..=number(last)?).take(1001).collect(),
        None => text.split(',').map(number).collect::<Result<_, _>>()?,
    };
    let is_twice = |(at, seed): &(usize, &u64)| seeds[..*at].contains(seed);
    match (seeds.len(), seeds.iter().enumerate().find(is_twice)) {
        (0, _) => Err("there is no seed between the ends; write the lower one first".to_string()),
        (1001.., _) => Err("more than 1000 seeds".to_string()),
        (_, Some((_, seed))) => Err(format!("the seed {seed} is listed twice")),
        (_, None) => Ok(Seeds(seeds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_or_a_list() {
        assert_eq!(seeds("1..5"), Ok(Seeds(vec![1, 2, 3, 4, 5])));
        assert_eq!(seeds("3, 1,8"), Ok(Seeds(vec![3, 1, 8])));
        assert_eq!(seeds("7"), Ok(Seeds(vec![7])));
        assert_eq!(seeds("5000000000"), Ok(Seeds(vec![5_000_000_000])));
        assert_eq!(seeds("1..4000000000"), Err("more than 1000 seeds".to_string()));
        for text in ["5..1", "a", "", "-1..2", "1..", "1,,2", "1,2,1", "9223372036854775808"] {
            assert!(seeds(text).is_err(), "{text}");
        }
    }
}
