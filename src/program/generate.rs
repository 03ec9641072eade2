//! `grove generate`: generates text with a language model.

use super::args::GenerateArgs;
use super::output::{eprint_line, escape_for_terminal, print_json, print_result};
use super::{ranks, text, trust};
use crate::disk::input;
use crate::rng::Stream;
use crate::run::{CONFIG, RunFolder};
use crate::settings::{GenerationConfig, overlay};
use crate::task::{DataTask, Split};
use crate::text::generate::{Completion, CompletionRequest, Generator, Sampling, stop};
use crate::text::{Arithmetic, CompletionIndex, LanguageModel};
use crate::trainer::text::{LanguageSettings, TINY, split_language_settings};
use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

/// Completes a prompt, and prints a single completion while it is generated, others at the end.
pub fn run(args: GenerateArgs) -> Result<()> {
    ranks::start_thread_pool(args.threads)?;
    let model = text::load_named_model(&args.model)?;
    let tokens = tokenize_prompt(&model, &choose_prompt(&args)?, &args)?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_new_tokens: args.max_new_tokens,
        stop_tokens: model.stop_tokens.clone(),
    };
    let decoder = model.new_decoder().with_arithmetic(Arithmetic::for_precision(args.precision));
    let is_stopped =
        |tokens: &[u32]| stop::text_before(&model.decode_completion(tokens), &args.stop).is_some();
    let printer =
        CompletionPrinter { model: &model, stops: &args.stop, printed_bytes: Mutex::new(0) };
    let print = |_: CompletionIndex, completion: &Completion| printer.print(&completion.tokens);
    let is_streaming = args.completions == 1 && !args.json;
    let generator = Generator {
        decoder: &decoder,
        sampling: &sampling,
        num_slots: args.completions.min(GenerationConfig::default().slots),
        stop: if args.stop.is_empty() { None } else { Some(&is_stopped) },
        listener: if is_streaming { Some(&print) } else { None },
    };
    let started = Instant::now();
    let key = Stream::Evaluation.key(args.seed);
    let request = CompletionRequest { tokens, num_completions: args.completions, key };
    let completions = generator.generate(std::slice::from_ref(&request)).remove(0);
    let seconds = started.elapsed().as_secs_f64();
    let text = |completion: &Completion| {
        let text = model.decode_completion(&completion.tokens);
        stop::text_before(&text, &args.stop).map(str::to_string).unwrap_or(text)
    };
    if args.json {
        let describe = |completion: &Completion| {
            let Completion { tokens, logprobs, has_ended, .. } = completion;
            json!({ "text": text(completion), "tokens": tokens, "logprobs": logprobs, "ended": has_ended })
        };
        let completions: Vec<Value> = completions.iter().map(describe).collect();
        print_json(&json!({
            "prompt_tokens": request.tokens.len(),
            "completions": completions,
            "seconds": seconds,
        }))?;
    } else if is_streaming {
        let printed_bytes =
            printer.printed_bytes.into_inner().expect("no holder of the lock panics");
        print_result(text(&completions[0]).get(printed_bytes..).unwrap_or(""))?;
    } else {
        for completion in &completions {
            print_result(format_args!("{}\n---", text(completion)))?;
        }
    }
    let num_tokens: usize = completions.iter().map(|completion| completion.tokens.len()).sum();
    let rate = num_tokens as f64 / seconds.max(1e-9);
    eprint_line!("{num_tokens} tokens in {seconds:.2} s, {rate:.0} a second.");
    Ok(())
}

/// Returns the prompt on the command line, or else a held-out one of the run's task, which is printed.
fn choose_prompt(args: &GenerateArgs) -> Result<String> {
    let example = find_held_out_prompt(&args.model);
    let Some(prompt) = &args.prompt else {
        let example = example?;
        eprint_line!("Prompt: {example}");
        return Ok(example);
    };
    if let Ok(example) = example
        && prompt.chars().last() != example.chars().last()
    {
        eprint_line!("Note: prompts of this run look like `{example}`.");
    }
    Ok(prompt.clone())
}

/// Finds a held-out prompt of a run's task, if the model's tokens are the task's characters.
fn find_held_out_prompt(path: &Path) -> Result<String> {
    let missing = || anyhow!("the prompt is missing: grove generate {} 'TEXT'", path.display());
    let run = RunFolder::find(path).map_err(|_| missing())?;
    let settings = input::read_description(&run.config_path()).map_err(|_| missing())?;
    let split = split_language_settings(overlay::parse(CONFIG, &settings)?)?;
    let LanguageSettings { task_name, mut task_settings, config } = split;
    // The run may come from someone else.
    task_settings.retain(|key, _| !trust::is_about_code(key));
    let is_over_characters = config.model.path == TINY && task_name != DataTask::NAME;
    let task = is_over_characters
        .then(|| text::open_task(&task_name, task_settings))
        .ok_or_else(missing)??;
    Ok(task.prompt(Split::Test, 0)?.text)
}

/// Tokenizes the prompt, and checks that it leaves room for a completion.
fn tokenize_prompt(model: &LanguageModel, prompt: &str, args: &GenerateArgs) -> Result<Vec<u32>> {
    let messages = if args.raw || model.template.is_none() {
        Vec::new()
    } else {
        vec![json!({ "role": "user", "content": prompt })]
    };
    let tokens = model.tokenize_prompt(prompt, &messages)?;
    let (num_tokens, context) = (tokens.len(), model.shape.context);
    if num_tokens >= context {
        bail!(
            "the prompt has {num_tokens} tokens, which leave no room for a completion in the context of {context}; shorten it"
        );
    }
    if num_tokens + args.max_new_tokens > context {
        bail!(
            "the prompt ({num_tokens} tokens) and --max-new-tokens ({}) exceed the context of {context} tokens; lower \
             --max-new-tokens",
            args.max_new_tokens
        );
    }
    Ok(tokens)
}

/// A completion that is printed while it is generated.
struct CompletionPrinter<'a> {
    model: &'a LanguageModel,
    stops: &'a [String],
    /// Length in bytes of the text that has been printed.
    printed_bytes: Mutex<usize>,
}

impl CompletionPrinter<'_> {
    /// Prints the text of tokens as far as it is final.
    fn print(&self, tokens: &[u32]) {
        let text = self.model.decode_completion(tokens);
        let end = final_length(&text, self.stops);
        let mut printed_bytes = self.printed_bytes.lock().expect("no holder of the lock panics");
        // A tokenizer may also change earlier text, so `printed_bytes` need not be a character boundary any more.
        if let Some(new) = text.get(*printed_bytes..end).filter(|new| !new.is_empty()) {
            // A closed pipe is noticed when the rest is printed.
            let _ = write!(stdout(), "{}", escape_for_terminal(new));
            let _ = stdout().flush();
            *printed_bytes = end;
        }
    }
}

/// Length of the part of a text that later tokens cannot change: the last character may be incomplete, and a stop text
/// may have begun. Text from a stop text on is excluded, since a token may extend beyond the stop text.
fn final_length(text: &str, stops: &[String]) -> usize {
    if let Some(before) = stop::text_before(text, stops) {
        return before.len();
    }
    let longest_stop = stops.iter().map(String::len).max().unwrap_or(0);
    let end = text.trim_end_matches('\u{fffd}').len().saturating_sub(longest_stop);
    text.floor_char_boundary(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_settled_up_to_what_may_change_or_is_a_stop_text() {
        let end = |text: &str, stops: &[&str]| {
            final_length(text, &stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(end("abc", &[]), 3);
        assert_eq!(end("aé\u{fffd}", &[]), 3);
        assert_eq!(end("abcd", &["xy"]), 2);
        assert_eq!(end("aé", &["x"]), 1);
        // The last token is longer than the stop text in it.
        assert_eq!(end("abc\n\n", &["\n"]), 3);
        assert_eq!(end("abc ENDING", &["longest", "END"]), 4);
    }
}
