//! Options of the commands that use a trained policy or a language model.

use super::parsers::{OneOf, count_in, parse_sampling, parse_seed, parse_temperature};
use super::verifier::VerifierArgs;
use crate::settings::Precision;
use crate::text::GgufType;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct EvalArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`).
    pub run: PathBuf,
    /// Number of episodes, played once with greedy and once with sampled actions; of a language model, of prompts.
    ///
    /// The scores at the end of a game's run come from the default episodes and seed; a language model's greedy score
    /// there comes from 1000 prompts with --seed 1 (the run's).
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = count_in::<usize>(1..=100_000_000))]
    pub episodes: usize,
    /// Completions per prompt for a language model: the k of pass@k [default: 8].
    #[arg(long, value_name = "K", value_parser = count_in::<usize>(1..=4096))]
    pub k: Option<usize>,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// The place of the file of prompts that a language model's run was given, if it has moved.
    #[arg(long, value_name = "FILE")]
    pub task_data: Option<PathBuf>,
    /// The place of the model that a run's adapters are for, if it has moved.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub verifier: VerifierArgs,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The model: a run (its best model), a checkpoint, a Hugging Face folder, or a GGUF file.
    pub model: PathBuf,
    /// The prompt; a model with a chat template receives it as a user message [default for a run over characters: a
    /// held-out prompt of its task].
    pub prompt: Option<String>,
    /// Continue the prompt directly, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// Maximum number of new tokens [default: 256, or fewer where the context has no room for them].
    #[arg(long, value_name = "N", value_parser = count_in::<usize>(1..=1_000_000))]
    pub max_new_tokens: Option<usize>,
    /// Sampling temperature; 0 for greedy decoding.
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = parse_temperature)]
    pub temperature: f32,
    /// Sample from the K most likely tokens only; 0 for no limit.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub top_k: usize,
    /// Sample from the smallest set of tokens whose probability reaches this; 1 for no limit.
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = |text: &str| parse_sampling("top_p", text))]
    pub top_p: f32,
    /// Exclude tokens below this fraction of the most likely token's probability.
    #[arg(long, default_value_t = 0.0, value_name = "X", value_parser = |text: &str| parse_sampling("min_p", text))]
    pub min_p: f32,
    /// Stop when this text is generated; may be repeated [default: those of the run].
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Number of completions.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count_in::<usize>(1..=4096))]
    pub completions: usize,
    /// Precision of matrix products.
    #[arg(long, default_value = "f32", value_name = "NAME",
        value_parser = OneOf(&[Precision::F32, Precision::Bf16], Precision::name))]
    pub precision: Precision,
    /// Random seed of sampling.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Print the result as a JSON object on stdout, with the log-probability of each token.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ExportArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`); for
    /// a language model a run, a Hugging Face folder or a GGUF file.
    pub run: PathBuf,
    /// The format: onnx, safetensors or json for games; gguf or safetensors (a Hugging Face folder) for language models
    /// [default: onnx for games, gguf for language models].
    #[arg(long, value_name = "NAME")]
    pub format: Option<ExportFormat>,
    /// The file, or the folder of a language model [default: the run's name with the format's extension].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Merge a language model's adapters into its weights; by default only the adapters are exported.
    #[arg(long)]
    pub merge: bool,
    /// Number format of a GGUF file [default: f32].
    #[arg(long, value_name = "NAME", value_parser = OneOf(GgufType::ALL, GgufType::name))]
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
pub enum ExportFormat {
    /// ONNX: observation and memory to logits, greedy action and memory.
    Onnx,
    /// Named tensors, with the settings in the header.
    Safetensors,
    /// Named tensors in row-major order, with the names of features and actions.
    Json,
    /// The format of llama.cpp: a language model with its vocabulary, or adapters for one.
    Gguf,
}

#[derive(Args, Debug)]
pub struct RecordArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`).
    pub run: PathBuf,
    /// The output file: an animation (.gif, .webp), a video (.mp4, needs ffmpeg) or a still (.png).
    ///
    /// A still shows the games after the last step.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub render: RenderOptions,
    /// The device that renders: cpu, wgpu[:N], vulkan[:N], metal[:N] or auto.
    ///
    /// All devices produce the same picture.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    pub device: String,
    /// Print a description of the file as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `record` that decide the pictures.
#[derive(Args, Debug)]
pub struct RenderOptions {
    /// Show each game's score.
    #[arg(long)]
    pub score: bool,
    /// Number of games side by side, each on a different level.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count_in::<usize>(1..=1024))]
    pub games: usize,
    /// Number of steps; a game that ends is followed by another level.
    #[arg(long, default_value_t = 100, value_name = "N",
        value_parser = count_in::<u32>(0..=100_000))]
    pub steps: u32,
    /// Size of a cell in pixels [default: the largest that fits 800 x 600].
    ///
    /// Multiples of 16 are sharpest.
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=256))]
    pub scale: Option<u32>,
    /// Random seed of the levels.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
}
