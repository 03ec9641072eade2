//! `grove generate`: text from a language model.

use super::args::GenerateArgs;
use super::ranks;
use super::say::{say, tell, tell_json};
use crate::rng::Stream;
use crate::text::LanguageModel;
use crate::text::generate::{Completion, Generator, Prompt, Sampling, stop};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

pub fn run(args: GenerateArgs) -> Result<()> {
    ranks::use_threads(args.threads)?;
    let path = model_path(&args.model);
    let model = LanguageModel::load(&path)
        .with_context(|| format!("cannot use the model in {}", path.display()))?;
    let tokens = prompt_tokens(&model, &args)?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_new_tokens: args.max_new_tokens,
        stop_tokens: model.stop_tokens.clone(),
    };
    let decoder = model.decoder();
    let is_stopped = |tokens: &[u32]| stop::before(&model.text(tokens), &args.stop).is_some();
    let stream = Stdout { model: &model, stops: &args.stop, printed: Mutex::new(0) };
    let print = |_: usize, _: usize, tokens: &[u32]| stream.print(tokens);
    let streams = args.completions == 1 && !args.json;
    let generator = Generator {
        decoder: &decoder,
        sampling: &sampling,
        slots: args.completions,
        stop: if args.stop.is_empty() { None } else { Some(&is_stopped) },
        listener: if streams { Some(&print) } else { None },
    };
    let started = Instant::now();
    let key = Stream::Evaluation.key(args.seed);
    let prompt = Prompt { tokens, completions: args.completions, key };
    let completions = generator.generate(std::slice::from_ref(&prompt)).remove(0);
    let seconds = started.elapsed().as_secs_f64();
    let text = |completion: &Completion| {
        let text = model.text(&completion.tokens);
        stop::before(&text, &args.stop).map(str::to_string).unwrap_or(text)
    };
    if args.json {
        let completions: Vec<Value> = completions
            .iter()
            .map(|one| {
                json!({
                    "text": text(one), "tokens": one.tokens, "logprobs": one.logprobs,
                    "ended": one.ended,
                })
            })
            .collect();
        tell_json(&json!({
            "prompt_tokens": prompt.tokens.len(), "completions": completions, "seconds": seconds,
        }))?;
    } else if streams {
        tell(text(&completions[0]).get(stream.printed()..).unwrap_or(""))?;
    } else {
        for completion in &completions {
            tell(format_args!("{}\n---", text(completion)))?;
        }
    }
    let count: usize = completions.iter().map(|one| one.tokens.len()).sum();
    say!("{count} tokens in {seconds:.2} s, {:.0} a second.", count as f64 / seconds.max(1e-9));
    Ok(())
}

/// The folder or file of a model. A run of `grove train` keeps its best model in a folder of its own.
fn model_path(path: &Path) -> PathBuf {
    let of_run = path.join("model");
    if of_run.is_dir() { of_run } else { path.to_path_buf() }
}

/// The tokens of the prompt, if they leave room for a completion.
fn prompt_tokens(model: &LanguageModel, args: &GenerateArgs) -> Result<Vec<u32>> {
    let messages = match args.raw {
        true => Vec::new(),
        false => vec![json!({ "role": "user", "content": args.prompt })],
    };
    let tokens = model.prompt(&args.prompt, &messages)?;
    if tokens.is_empty() {
        bail!("the prompt has no token to go on from");
    }
    let (count, context) = (tokens.len(), model.shape.context);
    if count + args.max_new_tokens > context {
        bail!(
            "a prompt of {count} tokens and {} new ones are more than the model's context of \
             {context}; --max-new-tokens can be less",
            args.max_new_tokens
        );
    }
    Ok(tokens)
}

/// A completion printed while it is generated.
struct Stdout<'a> {
    model: &'a LanguageModel,
    stops: &'a [String],
    /// Bytes of the text that have been printed.
    printed: Mutex<usize>,
}

impl Stdout<'_> {
    /// Prints the text of tokens as far as no later token can change it: a character may be incomplete, and a stop
    /// text may have begun.
    fn print(&self, tokens: &[u32]) {
        let text = self.model.text(tokens);
        let longest_stop = self.stops.iter().map(String::len).max().unwrap_or(0);
        let end = text.trim_end_matches('\u{fffd}').len().saturating_sub(longest_stop);
        let end = text.floor_char_boundary(end);
        let mut printed = self.printed.lock().expect("no holder of the lock panics");
        if end > *printed {
            // A closed pipe is noticed when the rest is printed.
            let _ = write!(stdout(), "{}", &text[*printed..end]);
            let _ = stdout().flush();
            *printed = end;
        }
    }

    fn printed(&self) -> usize {
        *self.printed.lock().expect("no holder of the lock panics")
    }
}
