//! `grove generate`: a language model goes on with a text.

use super::GenerateArgs;
use super::say::say;
use crate::model::language::LanguageModel;
use crate::rng::Stream;
use crate::rollout::generate::{Generator, Prompt, Sampling, stop};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::Write;
use std::sync::Mutex;
use std::time::Instant;

pub fn run(args: GenerateArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    let model = LanguageModel::load(&args.model)
        .with_context(|| format!("cannot use the model in {}", args.model.display()))?;
    let messages = match args.raw {
        true => Vec::new(),
        false => vec![json!({ "role": "user", "content": args.prompt })],
    };
    let tokens = model.prompt(&args.prompt, &messages)?;
    if tokens.is_empty() {
        bail!("the prompt has no token to go on from");
    }
    let context = model.shape.context;
    if tokens.len() + args.max_new_tokens > context {
        let count = tokens.len();
        bail!(
            "a prompt of {count} tokens and {} new ones are more than the model's context of \
             {context}; --max-new-tokens can be less",
            args.max_new_tokens
        );
    }
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_new_tokens: args.max_new_tokens,
        stop_tokens: model.stop_tokens.clone(),
    };
    let decoder = model.decoder();
    let told = Mutex::new(0);
    let is_over = |tokens: &[u32]| stop::before(&model.text(tokens), &args.stop).is_some();
    // What could still become another text is held back: a broken character, or a stop text that begins.
    let stream = |_: usize, _: usize, tokens: &[u32]| {
        let text = model.text(tokens);
        let held = args.stop.iter().map(String::len).max().unwrap_or(0);
        let safe = text.trim_end_matches('\u{fffd}').len().saturating_sub(held);
        let mut told = told.lock().expect("nobody panics with it");
        let safe = (0..=safe).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        if safe > *told {
            let _ = write!(std::io::stdout(), "{}", &text[*told..safe]);
            let _ = std::io::stdout().flush();
            *told = safe;
        }
    };
    let one = args.completions == 1 && !args.json;
    let generator = Generator {
        decoder: &decoder,
        sampling: &sampling,
        slots: args.completions,
        stop: if args.stop.is_empty() { None } else { Some(&is_over) },
        listener: if one { Some(&stream) } else { None },
    };
    let started = Instant::now();
    let key = Stream::Evaluation.key(args.seed);
    let prompt = Prompt { tokens, completions: args.completions, key };
    let completions = generator.generate(std::slice::from_ref(&prompt)).remove(0);
    let seconds = started.elapsed().as_secs_f64();
    let texts: Vec<String> = completions
        .iter()
        .map(|one| {
            let text = model.text(&one.tokens);
            stop::before(&text, &args.stop).map(str::to_string).unwrap_or(text)
        })
        .collect();
    let count: usize = completions.iter().map(|one| one.tokens.len()).sum();
    if args.json {
        let all: Vec<_> = completions.iter().zip(&texts).map(|(one, text)| {
            json!({ "text": text, "tokens": one.tokens, "logprobs": one.logprobs, "ended": one.ended })
        }).collect();
        let prompt_tokens = prompt.tokens.len();
        super::say::tell_json(&json!({
            "prompt_tokens": prompt_tokens, "completions": all, "seconds": seconds,
        }))?;
    } else if one {
        let told = *told.lock().expect("nobody panics with it");
        super::say::tell(texts[0].get(told..).unwrap_or(""))?;
    } else {
        for text in &texts {
            super::say::tell(format_args!("{text}\n---"))?;
        }
    }
    say!("{count} tokens in {seconds:.2} s, {:.0} a second.", count as f64 / seconds.max(1e-9));
    Ok(())
}
