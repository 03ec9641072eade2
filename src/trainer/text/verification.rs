//! Verification of a rollout's completions: each on another thread as soon as it has ended, where the task permits it,
//! or all at once after generation.

use crate::task::{self, Prompt, Rewards, Task, TaskError};
use crate::text::CompletionIndex;
use crate::text::generate::{self, Completion, Generator};
use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use web_time::Instant;

/// Rewards of completions by their tokens, for each prompt. Equal completions of a prompt are verified once.
pub(super) type RewardCache = Vec<HashMap<Vec<u32>, Rewards>>;

/// A verification of the completions of some prompts.
pub(super) struct Verification<'a> {
    task: &'a dyn Task,
    prompts: &'a [Prompt],
    /// Decodes the text of a completion from its tokens.
    decode: &'a (dyn Fn(&[u32]) -> String + Sync),
    has_failed: AtomicBool,
}

/// The result of generation with verification alongside.
pub(super) struct Generation {
    /// Completions of each prompt.
    pub completions: Vec<Vec<Completion>>,
    /// Rewards of those that were verified meanwhile.
    pub cache: RewardCache,
    /// Seconds of generation.
    pub seconds: f64,
}

/// A completion that waits for a thread.
struct Job {
    /// Index of the prompt.
    prompt: usize,
    tokens: Vec<u32>,
    is_terminated: bool,
}

impl<'a> Verification<'a> {
    pub fn new(
        task: &'a dyn Task,
        prompts: &'a [Prompt],
        decode: &'a (dyn Fn(&[u32]) -> String + Sync),
    ) -> Self {
        Self { task, prompts, decode, has_failed: AtomicBool::new(false) }
    }

    /// Whether the verifier has failed, so that further completions are of no use.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Generates completions on this thread, and meanwhile verifies those that are over, on as many threads as the
    /// task permits.
    ///
    /// # Errors
    /// If a thread does not start, or no completion can be verified any more.
    ///
    /// # Panics
    /// If generation or the verifier panics.
    pub fn generate(
        &self,
        generator: Generator,
        requests: &[generate::CompletionRequest],
    ) -> Result<Generation, TaskError> {
        let started = Instant::now();
        let mut cache = vec![HashMap::new(); requests.len()];
        let count: usize = requests.iter().map(|request| request.num_completions).sum();
        let threads = num_threads(self.task).min(count);
        if threads == 0 {
            let completions = generator.generate(requests);
            let seconds = started.elapsed().as_secs_f64();
            return Ok(Generation { completions, cache, seconds });
        }
        let (jobs, queue) = mpsc::channel();
        let (queue, seen) = (Mutex::new(queue), Mutex::new(HashSet::new()));
        thread::scope(|scope| {
            let start = |_| thread::Builder::new().spawn_scoped(scope, || self.verify_jobs(&queue));
            let workers: io::Result<Vec<_>> = (0..threads).map(start).collect();
            let workers =
                workers.map_err(|error| TaskError::Verifier(format!("cannot verify: {error}")))?;
            let listener = move |index: CompletionIndex, completion: &Completion| {
                let (prompt, tokens) = (index.text, &completion.tokens);
                if completion.is_over(generator.sampling)
                    && lock(&seen).insert((prompt, tokens.clone()))
                {
                    let is_terminated = completion.is_terminated;
                    let job = Job { prompt, tokens: tokens.clone(), is_terminated };
                    jobs.send(job).expect("the queue outlives the listener");
                }
            };
            let generator = Generator { listener: Some(&listener), ..generator };
            let completions = generator.generate(requests);
            let seconds = started.elapsed().as_secs_f64();
            // Closes the queue, which the threads empty.
            drop(listener);
            let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            for result in results {
                let verified = result.unwrap_or_else(|panic| resume_unwind(panic))?;
                for (Job { prompt, tokens, .. }, rewards) in verified {
                    cache[prompt].insert(tokens, rewards);
                }
            }
            Ok(Generation { completions, cache, seconds })
        })
    }

    /// Verifies completions of the queue until it is closed or a verifier has failed.
    fn verify_jobs(&self, queue: &Mutex<Receiver<Job>>) -> Result<Vec<(Job, Rewards)>, TaskError> {
        let mut verified = Vec::new();
        loop {
            // Not in the head of a loop, which would hold the lock in its body.
            let next = lock(queue).recv();
            let Ok(job) = next else { return Ok(verified) };
            if self.has_failed() {
                return Ok(verified);
            }
            let text = (self.decode)(&job.tokens);
            let Job { prompt, tokens, is_terminated } = &job;
            let task_completion = self.task_completion(*prompt, tokens, *is_terminated, &text);
            let rewards = task::judge(self.task, &[task_completion])
                .inspect_err(|_| self.has_failed.store(true, Ordering::Relaxed))?;
            let [rewards] = <[Rewards; 1]>::try_from(rewards).expect("one for each completion");
            verified.push((job, rewards));
        }
    }

    /// Decodes the texts of all completions, in their order.
    pub fn decode_all(&self, completions: &[Vec<Completion>]) -> Vec<Vec<String>> {
        let decode = |completion: &Completion| (self.decode)(&completion.tokens);
        completions.iter().map(|group| group.iter().map(decode).collect()).collect()
    }

    /// Returns the rewards of all completions, in their order. Verifies those that are not in the `cache` in one
    /// call, on this thread.
    ///
    /// # Errors
    /// If no completion can be verified any more.
    pub fn collect_rewards(
        &self,
        completions: &[Vec<Completion>],
        texts: &[Vec<String>],
        mut cache: RewardCache,
    ) -> Result<Vec<Vec<Rewards>>, TaskError> {
        let groups = completions.iter().zip(texts).enumerate();
        let all = groups.flat_map(|(prompt, (group, texts))| {
            group.iter().zip(texts).map(move |(completion, text)| (prompt, completion, text))
        });
        if !self.task.verifies_duplicates_once() {
            let mut rewards = self.judge(&all.collect::<Vec<_>>())?.into_iter();
            let groups = completions.iter();
            return Ok(groups.map(|group| rewards.by_ref().take(group.len()).collect()).collect());
        }
        let mut seen = HashSet::new();
        let unknown = all.filter(|(prompt, completion, _)| {
            !cache[*prompt].contains_key(&completion.tokens)
                && seen.insert((*prompt, &completion.tokens))
        });
        let unknown: Vec<_> = unknown.collect();
        if !unknown.is_empty() {
            for ((prompt, completion, _), rewards) in unknown.iter().zip(self.judge(&unknown)?) {
                cache[*prompt].insert(completion.tokens.clone(), rewards);
            }
        }
        let groups = completions.iter().zip(&cache);
        let rewards = groups.map(|(group, cache)| {
            group.iter().map(|completion| cache[&completion.tokens].clone()).collect()
        });
        Ok(rewards.collect())
    }

    /// Verifies completions, each with the index of its prompt and its text, in one call.
    fn judge(&self, list: &[(usize, &Completion, &String)]) -> Result<Vec<Rewards>, TaskError> {
        let completions = list.iter().map(|(prompt, completion, text)| {
            self.task_completion(*prompt, &completion.tokens, completion.is_terminated, text)
        });
        task::judge(self.task, &completions.collect::<Vec<_>>())
    }

    fn task_completion<'b>(
        &'b self,
        prompt: usize,
        tokens: &[u32],
        is_terminated: bool,
        text: &'b str,
    ) -> task::Completion<'b> {
        let prompt = &self.prompts[prompt];
        task::Completion { prompt, text, num_tokens: tokens.len(), is_truncated: !is_terminated }
    }
}

/// The number of threads that verify during generation. WebAssembly has none.
fn num_threads(task: &dyn Task) -> usize {
    if cfg!(target_family = "wasm") { 0 } else { task.num_verifier_threads() }
}

/// Locks a mutex, ignoring poisoning: its data stay consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{RewardPart, Split};
    use crate::text::LanguageModel;
    use crate::text::generate::Sampling;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    /// Result of a call of the verifier.
    #[derive(Clone, Copy)]
    enum CallResult {
        Rewards,
        Error,
        Panic,
    }

    /// A task that keeps the number of completions of each call of its verifier.
    struct CountedTask {
        parts: Vec<RewardPart>,
        threads: usize,
        result: CallResult,
        calls: Mutex<Vec<usize>>,
    }

    impl Task for CountedTask {
        fn name(&self) -> &str {
            "counted"
        }

        fn prompt(&self, _: Split, index: u64) -> Result<Prompt, TaskError> {
            Ok(Prompt { text: index.to_string(), ..Prompt::default() })
        }

        fn reward_parts(&self) -> &[RewardPart] {
            &self.parts
        }

        fn verify(&self, completions: &[task::Completion]) -> Result<Vec<Rewards>, TaskError> {
            lock(&self.calls).push(completions.len());
            match self.result {
                CallResult::Rewards => Ok(completions.iter().map(reward).collect()),
                CallResult::Error => Err(TaskError::Verifier("it has broken".to_string())),
                CallResult::Panic => panic!("a bug of the verifier"),
            }
        }

        fn num_verifier_threads(&self) -> usize {
            self.threads
        }

        fn max_new_tokens(&self) -> usize {
            4
        }
    }

    /// A reward that differs between prompts and completions.
    fn reward(completion: &task::Completion) -> Rewards {
        let digits = format!("{}{}", completion.prompt.text, completion.text);
        let sum = digits.bytes().fold(0.0, |sum, byte| 0.5 * sum + f64::from(byte));
        Rewards::new(vec![
            sum + completion.num_tokens as f64 + f64::from(u8::from(completion.is_truncated)),
        ])
    }

    /// Waits for a state that is reached in much less time than the limit.
    fn wait_for(state: impl Fn() -> bool) {
        let started = Instant::now();
        while !state() {
            assert!(started.elapsed() < Duration::from_secs(600), "the state is not reached");
            thread::yield_now();
        }
    }

    /// Completions of some prompts, and what the verifier made of them.
    struct Outcome {
        completions: Vec<Vec<Completion>>,
        rewards: Vec<Vec<Rewards>>,
        /// Number of completions in each call of the verifier.
        calls: Vec<usize>,
    }

    /// Generates and verifies `completions_per_prompt` completions of each of eight prompts, one at a time on each
    /// thread of the pool. `at_token` is called for every token, with the tokens of the completion so far.
    fn run(
        (threads, result): (usize, CallResult),
        completions_per_prompt: usize,
        at_token: &(dyn Fn(&[u32], &Verification, &CountedTask) + Sync),
    ) -> Result<Outcome, TaskError> {
        let parts = vec![RewardPart::new("sum", 1.0)];
        let task = CountedTask { parts, threads, result, calls: Mutex::default() };
        let prompts: Vec<Prompt> =
            (0..8).map(|index| task.prompt(Split::Train, index)).collect::<Result<_, _>>()?;
        let model = LanguageModel::smallest("01");
        let num_completions = completions_per_prompt;
        let request = |key| generate::CompletionRequest { tokens: vec![1], num_completions, key };
        let requests: Vec<_> = (0..8).map(request).collect();
        let decode = |tokens: &[u32]| model.decode_completion(tokens);
        let verification = Verification::new(&task, &prompts, &decode);
        let stop = |tokens: &[u32]| {
            at_token(tokens, &verification, &task);
            let ends = tokens.last().is_some_and(|token| model.stop_tokens.contains(token));
            verification.has_failed() || ends
        };
        let sampling = Sampling { max_new_tokens: 4, ..Sampling::default() };
        let generator = Generator {
            decoder: &model.new_decoder(),
            sampling: &sampling,
            num_slots: 1,
            stop: Some(&stop),
            listener: None,
        };
        let Generation { completions, cache, .. } = verification.generate(generator, &requests)?;
        let texts = verification.decode_all(&completions);
        let rewards = verification.collect_rewards(&completions, &texts, cache)?;
        for (index, (group, rewards)) in completions.iter().zip(&rewards).enumerate() {
            for (completion, rewards) in group.iter().zip(rewards) {
                let (prompt, text) = (&prompts[index], &decode(&completion.tokens)[..]);
                let (num_tokens, is_truncated) =
                    (completion.tokens.len(), !completion.is_terminated);
                let task_completion = task::Completion { prompt, text, num_tokens, is_truncated };
                assert_eq!(*rewards, reward(&task_completion));
            }
        }
        let calls = lock(&task.calls).clone();
        Ok(Outcome { completions, rewards, calls })
    }

    #[test]
    fn a_completion_is_verified_while_another_is_being_generated() {
        let (begun, before) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // The last has its first token, and gets no other before the verifier was called.
        let wait = |tokens: &[u32], _: &Verification, task: &CountedTask| {
            if tokens.len() == 1 && begun.fetch_add(1, Ordering::Relaxed) == 7 {
                wait_for(|| !lock(&task.calls).is_empty());
                before.store(lock(&task.calls).len(), Ordering::Relaxed);
            }
        };
        let outcome = run((1, CallResult::Rewards), 1, &wait).unwrap();
        assert!((1..8).contains(&before.into_inner()) && outcome.calls == [1; 8]);
    }

    #[test]
    fn threads_change_no_reward_and_equal_completions_are_verified_once() {
        let run = |threads| run((threads, CallResult::Rewards), 12, &|_, _, _| {}).unwrap();
        let expected = run(0);
        let distinct = |group: &Vec<Completion>| {
            group.iter().map(|completion| &completion.tokens).collect::<HashSet<_>>().len()
        };
        let distinct: usize = expected.completions.iter().map(distinct).sum();
        assert!(distinct < 8 * 12 && expected.calls == [distinct]);
        for threads in [1, 3, 100] {
            let found = run(threads);
            assert_eq!(found.completions, expected.completions);
            assert_eq!(found.rewards, expected.rewards);
            assert_eq!(found.calls, vec![1; distinct]);
        }
    }

    #[test]
    fn a_verifier_that_fails_ends_generation_with_the_same_error() {
        let (begun, later) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // All but two completions get no second token before the verifier has failed.
        let wait = |tokens: &[u32], verification: &Verification, _: &CountedTask| {
            if tokens.len() > 1 {
                later.fetch_add(1, Ordering::Relaxed);
            } else if begun.fetch_add(1, Ordering::Relaxed) >= 2 {
                wait_for(|| verification.has_failed());
            }
        };
        let error = run((1, CallResult::Error), 1, &wait).err().unwrap().to_string();
        assert!(error.contains("it has broken"), "{error}");
        let after = run((0, CallResult::Error), 1, &|_, _, _| {}).err().unwrap().to_string();
        assert_eq!(error, after);
        let [begun, later] = [begun, later].map(AtomicUsize::into_inner);
        assert!(begun == 8 && later <= 2 * 3, "{begun} begun, {later} further tokens");
    }

    #[test]
    fn a_panic_of_a_verifier_keeps_its_message() {
        for threads in [0, 2] {
            let run = || run((threads, CallResult::Panic), 2, &|_, _, _| {}).is_ok();
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"a bug of the verifier"));
        }
    }
}
