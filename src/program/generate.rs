//! `grove generate`: generates text with a language model.

use super::args::GenerateArgs;
use super::output::{eprint_line, escape_for_terminal, print_json, print_result};
use super::{ranks, text, trust};
use crate::disk::input;
use crate::rng::Stream;
use crate::run::{CONFIG, RunFolder};
use crate::settings::{GenerationConfig, overlay};
use crate::task::{DEFAULT_MAX_NEW_TOKENS, DataTask, Message, Split};
use crate::text::generate::{Completion, CompletionRequest, Generator, Sampling, stop};
use crate::text::{Arithmetic, CompletionIndex, LanguageModel};
use crate::trainer::text::{LanguageSettings, TINY, split_language_settings};
use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Completes a prompt, and prints a single completion while it is generated, others at the end.
pub fn run(args: GenerateArgs) -> Result<()> {
    ranks::start_thread_pool(args.threads)?;
    let model = text::load_named_model(&args.model)?;
    let (tokens, max_new_tokens) = tokenize_prompt(&model, &choose_prompt(&args)?, &args)?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_new_tokens,
        stop_tokens: model.stop_tokens.clone(),
    };
    let decoder = model.new_decoder().with_arithmetic(Arithmetic::for_precision(args.precision));
    let decode = |tokens: &[u32]| model.decode_completion(tokens);
    let stops = choose_stops(&args);
    let printer = CompletionPrinter {
        model: &model,
        stops: &stops,
        printed: Mutex::default(),
        is_closed: AtomicBool::new(false),
    };
    let is_stopped = |tokens: &[u32]| {
        printer.is_closed.load(Ordering::Relaxed) || stop::is_reached(decode, tokens, &stops)
    };
    let print = |_: CompletionIndex, completion: &Completion| printer.print(&completion.tokens);
    let is_streaming = args.completions == 1 && !args.json;
    let generator = Generator {
        decoder: &decoder,
        sampling: &sampling,
        num_slots: args.completions.min(GenerationConfig::default().slots),
        stop: Some(&is_stopped),
        listener: if is_streaming { Some(&print) } else { None },
    };
    let started = Instant::now();
    let key = Stream::Evaluation.key(args.seed);
    let request = CompletionRequest { tokens, num_completions: args.completions, key };
    let completions = generator.generate(std::slice::from_ref(&request)).remove(0);
    let seconds = started.elapsed().as_secs_f64();
    let text = |completion: &Completion| {
        let text = decode(&completion.tokens);
        stop::text_before(&text, &stops).map(str::to_string).unwrap_or(text)
    };
    if args.json {
        let describe = |completion: &Completion| {
            let Completion { tokens, logprobs, is_terminated, .. } = completion;
            json!({ "text": text(completion), "tokens": tokens, "logprobs": logprobs, "ended": is_terminated })
        };
        let completions: Vec<Value> = completions.iter().map(describe).collect();
        print_json(&json!({
            "prompt_tokens": request.tokens.len(),
            "completions": completions,
            "seconds": seconds,
        }))?;
    } else if is_streaming {
        let printed = printer.printed.into_inner().expect("no holder of the lock panics");
        print_result(text(&completions[0]).get(printed.num_bytes..).unwrap_or(""))?;
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

/// Returns the stop texts on the command line, or else those of the run.
fn choose_stops(args: &GenerateArgs) -> Vec<String> {
    if !args.stop.is_empty() {
        return args.stop.clone();
    }
    let settings = read_run_settings(&args.model).and_then(Result::ok);
    let stops = settings.map(|settings| settings.config.generation.stop).unwrap_or_default();
    if !stops.is_empty() {
        eprint_line!(
            "Note: completions end before {stops:?}, as in the run; --stop chooses another text."
        );
    }
    stops
}

/// Reads the settings of a run; `None` if the path leads to no run.
fn read_run_settings(path: &Path) -> Option<Result<LanguageSettings>> {
    let run = RunFolder::find(path).ok()?;
    let settings = input::read_description(&run.config_path()).ok()?;
    let settings = overlay::parse(CONFIG, &settings).map_err(anyhow::Error::from);
    Some(settings.and_then(|settings| Ok(split_language_settings(settings)?)))
}

/// Finds a held-out prompt of a run's task, if the model's tokens are the task's characters.
fn find_held_out_prompt(path: &Path) -> Result<String> {
    let missing = || anyhow!("the prompt is missing: grove generate {} 'TEXT'", path.display());
    let settings = read_run_settings(path).ok_or_else(missing)??;
    let LanguageSettings { task_name, mut task_settings, config } = settings;
    // The run may come from someone else.
    task_settings.retain(|key, _| !trust::is_about_code(key));
    let is_over_characters = config.model.path == TINY && task_name != DataTask::NAME;
    let task = is_over_characters
        .then(|| text::open_task(&task_name, task_settings))
        .ok_or_else(missing)??;
    Ok(task.prompt(Split::Test, 0)?.text)
}

/// Tokenizes the prompt, checks that it leaves room for a completion, and returns the maximum number of new tokens,
/// too.
fn tokenize_prompt(
    model: &LanguageModel,
    prompt: &str,
    args: &GenerateArgs,
) -> Result<(Vec<u32>, usize)> {
    let messages = if args.raw || model.template.is_none() {
        Vec::new()
    } else {
        vec![Message::user(prompt.to_string())]
    };
    let tokens = model.tokenize_prompt(prompt, &messages)?;
    let (num_tokens, context) = (tokens.len(), model.shape.context);
    if num_tokens >= context {
        bail!(
            "the prompt has {num_tokens} tokens, which leave no room for a completion in the context of {context}; shorten it"
        );
    }
    let room = context - num_tokens;
    let max_new_tokens = args.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(room));
    if max_new_tokens > room {
        bail!(
            "the prompt ({num_tokens} tokens) and --max-new-tokens ({max_new_tokens}) exceed the context of {context} \
             tokens; lower --max-new-tokens"
        );
    }
    Ok((tokens, max_new_tokens))
}

/// A completion that is printed while it is generated.
struct CompletionPrinter<'a> {
    model: &'a LanguageModel,
    stops: &'a [String],
    printed: Mutex<PrintedPart>,
    /// Whether stdout is closed, so that no further token is needed.
    is_closed: AtomicBool,
}

/// The part of a completion that has been printed.
#[derive(Default)]
struct PrintedPart {
    /// The length in bytes.
    num_bytes: usize,
    /// The first token of those that are still decoded.
    first_token: usize,
    /// Length in bytes of what has been printed of their text.
    num_bytes_of_tail: usize,
}

/// Number of tokens beyond which fewer are decoded.
const MAX_TAIL_TOKENS: usize = 128;

impl CompletionPrinter<'_> {
    /// Prints the text of tokens as far as it is final.
    fn print(&self, tokens: &[u32]) {
        let mut printed = self.printed.lock().expect("no holder of the lock panics");
        let decode = |tokens: &[u32]| self.model.decode_completion(tokens);
        let new = printed.extend(decode, tokens, self.stops);
        if !new.is_empty() {
            let written = write!(stdout(), "{}", escape_for_terminal(&new));
            let written = written.and_then(|()| stdout().flush());
            self.is_closed.store(written.is_err(), Ordering::Relaxed);
        }
    }
}

impl PrintedPart {
    /// Returns the further text of tokens that is final.
    fn extend(
        &mut self,
        decode: impl Fn(&[u32]) -> String,
        tokens: &[u32],
        stops: &[String],
    ) -> String {
        let text = decode(&tokens[self.first_token..]);
        let end = final_length(&text, stops);
        // A tokenizer may also change earlier text, so that what was printed need not end at a character any more.
        let new = text.get(self.num_bytes_of_tail..end).unwrap_or("");
        if !new.is_empty() {
            (self.num_bytes, self.num_bytes_of_tail) = (self.num_bytes + new.len(), end);
        }
        if tokens.len() - self.first_token > MAX_TAIL_TOKENS {
            let longest_stop = stops.iter().map(String::len).max().unwrap_or(0);
            let first = stop::tail_start(&decode, tokens, longest_stop);
            let tail = decode(tokens.get(first..).unwrap_or_default());
            let num_dropped = text.strip_suffix(&tail[..]).map(str::len);
            if let Some(rest) = num_dropped.and_then(|num| self.num_bytes_of_tail.checked_sub(num))
                && first > self.first_token
            {
                (self.first_token, self.num_bytes_of_tail) = (first, rest);
            }
        }
        new.to_string()
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
    use crate::rng::{below, draw};

    #[test]
    fn what_is_printed_of_a_long_completion_is_its_text() {
        let pieces: [&[u8]; 7] = [b"\xe2", b"\x82", b"\xac", b"a", b" b", b"ab", b"\n"];
        let decode = |tokens: &[u32]| {
            let bytes = tokens.iter().map(|token| pieces[*token as usize]).collect::<Vec<_>>();
            let text = String::from_utf8_lossy(&bytes.concat()).into_owned();
            text.strip_prefix(' ').map(str::to_string).unwrap_or(text)
        };
        let mut num_shortened = 0;
        for key in 0..20 {
            let token = |at| (key + below(draw(key, at), 1 + key % 7)) % 7;
            let tokens: Vec<u32> = (0..600).map(token).collect();
            for stops in [vec![], vec!["b\u{20ac}aabb\n".to_string()]] {
                let (mut printed, mut whole) = (PrintedPart::default(), 0);
                for end in 1..=tokens.len() {
                    let new = printed.extend(decode, &tokens[..end], &stops);
                    let text = decode(&tokens[..end]);
                    if stop::text_before(&text, &stops).is_some() {
                        break;
                    }
                    let now = final_length(&text, &stops);
                    let expected = text.get(whole..now).unwrap_or("");
                    assert_eq!(new, expected, "{key}: {end} tokens");
                    whole += new.len();
                    assert_eq!(printed.num_bytes, whole);
                }
                num_shortened += usize::from(printed.first_token > 400);
            }
        }
        assert!(num_shortened > 20, "{num_shortened} of 40");
    }

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
