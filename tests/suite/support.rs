//! Helpers that several tests share.

pub use crate::shared::cpu;
use burn::cubecl::logging::{LaunchObservation, LaunchObserver};
use burn::tensor::{Device, Tensor};
use grove::checkpoint::{self, Checkpoint};
use grove::device::DeviceInfo;
use grove::env::{Fruit, FruitObservation};
use grove::task::{Completion, Prompt, RewardPart, Rewards, Split, Task, TaskError};
use grove::trainer::text::LanguageConfig;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Upper limit of every wait in the tests. It ends a hang and decides nothing else, so that a busy machine fails no
/// test.
pub const HANG: Duration = Duration::from_secs(600);

/// The system's message for a missing file.
pub const MISSING: &str =
    if cfg!(windows) { "cannot find the file" } else { "No such file or directory" };

/// Waits until a state is reached; `what` names it.
pub fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < HANG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Evaluates an expression for each built-in game with its default parameters: `for_every_game!(game => check(game))`.
macro_rules! for_every_game {
    ($game:ident => $body:expr) => {
        grove::for_each_game!(for_every_game, $game, { $body });
    };
    ($game:ident, $body:tt, $($Game:ident),*) => {
        $({
            let $game = <grove::env::$Game>::default();
            $body
        })*
    };
}
pub(crate) use for_every_game;

/// Returns a fruit catcher with features: its width, height, basket, most and fewest fruits, interval between them, and
/// steps.
pub const fn fruit(sizes: [u32; 7]) -> Fruit {
    let [width, height, basket, max_fruits, min_fruits, spawn_interval, max_steps] = sizes;
    let observation = FruitObservation::Features;
    Fruit { width, height, basket, max_fruits, min_fruits, spawn_interval, max_steps, observation }
}

/// The kind of device that tests take: `wgpu`, or what `GROVE_TEST_DEVICE` names.
pub fn adapter_kind() -> String {
    std::env::var("GROVE_TEST_DEVICE").unwrap_or_else(|_| "wgpu".to_string())
}

/// The device of a graphics adapter: the one that [`adapter_name`] chooses.
pub fn adapter() -> Option<Device> {
    let name = adapter_name()?;
    Some(grove::device::start(&name).expect("a listed adapter starts").device)
}

/// The listed name of a graphics adapter, hardware before software; `None`, with a line that says so, where there is
/// none. With `GROVE_REQUIRE_ADAPTER=1` a missing adapter is a failure; [`adapter_kind`] says of which kind.
///
/// Mesa's lavapipe (llvmpipe) crashes on some of Burn's kernels and rounds some functions of Grove's otherwise, so that
/// actions and pixels are not exactly the CPU's: it counts only where an adapter is required.
pub fn adapter_name() -> Option<String> {
    let kind = adapter_kind();
    let required = std::env::var("GROVE_REQUIRE_ADAPTER").as_deref() == Ok("1");
    let is_wanted = |info: &DeviceInfo| {
        info.name.split(':').next() == Some(&kind)
            && (required || !info.description.contains("llvmpipe"))
    };
    let mut adapters: Vec<_> = grove::device::list().into_iter().filter(is_wanted).collect();
    adapters.sort_by_key(|d| d.is_software);
    let Some(info) = adapters.first() else {
        assert!(!required, "GROVE_REQUIRE_ADAPTER is 1, but there is no {kind} adapter");
        // Not by `eprintln!`, whose output a test that passes captures.
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        let _ = writeln!(std::io::stderr(), "no {kind} adapter: {test} did nothing on one");
        return None;
    };
    Some(info.name.clone())
}

/// A temporary folder, which is deleted with this value.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self
    }
}

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Reads a tensor.
pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32")
}

/// The program with these arguments, in a folder.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grove"));
    command.args(arguments).current_dir(folder);
    command
}

/// Runs the program in a folder.
pub fn grove(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("the program starts")
}

/// Starts the program in `folder`, without waiting for its end.
pub fn start(folder: &Path, arguments: &[&str]) -> Child {
    command(folder, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends a signal to a process, such as `-INT`.
pub fn signal(process: u32, name: &str) {
    let kill = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(kill.success());
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must succeed.
pub fn success(folder: &Path, arguments: &[&str]) -> Output {
    let output = grove(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    output
}

/// Runs a command that must succeed, and parses the JSON object that it prints.
pub fn json(folder: &Path, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(&success(folder, arguments))).expect("one JSON object on stdout")
}

/// The end of a line, with `--set` before each of these settings.
pub fn sets(settings: &str) -> String {
    settings.split(' ').map(|set| format!(" --set {set}")).collect()
}

/// Runs a line of words that must succeed, and parses the JSON object that it prints.
pub fn report(folder: &Path, line: &str) -> serde_json::Value {
    json(folder, &line.split(' ').collect::<Vec<_>>())
}

/// All files below a folder with their bytes, by their paths in it.
pub fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() {
            files.extend(
                tree(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)),
            );
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

/// All files of Rust below a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let names = tree(folder).into_keys().filter(|name| name.ends_with(".rs"));
    names.map(|name| folder.join(name)).collect()
}

/// The metrics of a run.
pub fn records<T: DeserializeOwned>(run: &Path) -> Vec<T> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Changes a section of a saved checkpoint, and returns what is saved now, with valid checksums.
pub fn rewrite(path: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Checkpoint {
    let mut checkpoint = checkpoint::load(path).unwrap();
    let section = checkpoint.sections.iter_mut().find(|section| section.name == name);
    change(&mut section.unwrap().bytes);
    checkpoint::save(&checkpoint, path).unwrap();
    checkpoint
}

/// Checks that two folders hold the same files, byte for byte.
pub fn assert_same_files(a: &Path, b: &Path) {
    let (a_files, b_files) = (tree(a), tree(b));
    assert!(!a_files.is_empty());
    assert_eq!(a_files.keys().collect::<Vec<_>>(), b_files.keys().collect::<Vec<_>>());
    for (path, bytes) in a_files {
        assert!(bytes == b_files[&path], "{path} differs");
    }
}

/// The arguments of a run of a second or two.
pub fn train<'a>(game: &'a str, dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let small = ["--device", "cpu", "--set", "num_groups=8", "--set", "eval_every=5"];
    let few = ["--set", "eval_episodes=50"];
    [&["train", game, "--run-dir", dir, "--json"], &small[..], &few, more].concat()
}

/// Settings of a model of 16 units, whose runs take a second.
pub const TINY_SIZES: [&str; 5] =
    ["hidden_size=16", "num_layers=1", "num_heads=2", "num_kv_heads=1", "intermediate_size=24"];

/// A run of a model of 16 units.
pub fn tiny(num_layers: usize) -> LanguageConfig {
    let mut config = LanguageConfig::for_model("tiny");
    let sizes = &mut config.model.tiny;
    (sizes.hidden_size, sizes.num_layers, sizes.intermediate_size) = (16, num_layers, 24);
    (sizes.num_heads, sizes.num_kv_heads) = (2, 1);
    config
}

/// A verifier in Python that gives 1 to everything.
pub const GIVES_ONE: &str = "import json, sys\nfor line in sys.stdin:\n    \
    print(json.dumps({'id': json.loads(line)['id'], 'reward': 1}), flush=True)\n";

/// Verifies completions of a task.
type Verify = dyn Fn(&dyn Task, &[Completion]) -> Result<Vec<Rewards>, TaskError> + Send + Sync;

/// Another task with a verifier of its own, on so many threads.
pub struct Verified {
    pub task: Arc<dyn Task>,
    pub threads: usize,
    pub verify: Box<Verify>,
}

impl Task for Verified {
    fn name(&self) -> &str {
        self.task.name()
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        self.task.num_prompts(split)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        self.task.prompt(split, index)
    }

    fn reward_parts(&self) -> &[RewardPart] {
        self.task.reward_parts()
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        (self.verify)(&*self.task, completions)
    }

    fn num_verifier_threads(&self) -> usize {
        self.threads
    }

    fn alphabet(&self) -> Option<String> {
        self.task.alphabet()
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        self.task.solution(prompt)
    }

    fn max_new_tokens(&self) -> usize {
        self.task.max_new_tokens()
    }
}

/// Runs a command that must fail without a panic, and returns what it prints on stderr.
pub fn refusal(folder: &Path, arguments: &[&str]) -> String {
    let output = grove(folder, arguments);
    let text = stderr(&output);
    assert!(!output.status.success(), "{arguments:?} must fail");
    assert!(output.stdout.is_empty(), "{arguments:?} prints {}", stdout(&output));
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    text
}

/// Runs a line of words that must fail with these words on stderr, and returns what it prints there.
pub fn refused(folder: &Path, line: &str, words: &[&str]) -> String {
    let text = refusal(folder, &line.split(' ').collect::<Vec<_>>());
    for word in words {
        assert!(text.contains(word), "`{line}` lacks `{word}`: {text}");
    }
    text
}

thread_local! {
    /// Kernels that this thread has launched since launches are counted.
    static LAUNCHES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the kernels that each thread launches.
struct LaunchCounter;

impl LaunchObserver for LaunchCounter {
    fn launched(&self, _kernel: &'static str) {
        LAUNCHES.set(LAUNCHES.get() + 1);
    }
}

/// Whether this process runs the test `name` alone. If not, starts one that does, in which the test must pass. For
/// tests of what all threads of a process share.
pub fn is_alone(name: &str) -> bool {
    const ALONE: &str = "GROVE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
    let said = stdout(&output);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// The number of kernels that `work` launches on this thread; other threads may launch some at the same time.
pub fn launches(work: impl FnOnce()) -> usize {
    static COUNTED: LazyLock<LaunchObservation> =
        LazyLock::new(|| LaunchObservation::new(Arc::new(LaunchCounter)));
    LazyLock::force(&COUNTED);
    let before = LAUNCHES.get();
    work();
    LAUNCHES.get() - before
}

#[test]
fn a_test_without_its_adapter_prints_that_it_was_skipped() {
    let test = "rollouts::native_and_stepwise_play_the_same_games_on_an_adapter";
    let run = |required: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env("GROVE_TEST_DEVICE", "imaginary")
            .env("GROVE_REQUIRE_ADAPTER", required)
            .output()
            .unwrap()
    };
    let without = run("0");
    assert!(without.status.success() && stdout(&without).contains("1 passed"));
    let printed = stderr(&without);
    assert!(printed.contains(&format!("no imaginary adapter: {test} did nothing")), "{printed}");
    assert!(!run("1").status.success());
}

/// Makes processes that are started from now on react to Ctrl-C, even if these tests run where it is ignored.
#[cfg(unix)]
pub fn hear_ctrl_c() {
    // SAFETY: the default action has no preconditions.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// Starts a run, sends it Ctrl-C once it has recorded `iterations`, and returns its report. A run that has finished all
/// its `total` iterations before that, on a busy machine, is started again.
#[cfg(unix)]
pub fn interrupted_run(
    folder: &Path,
    arguments: &[&str],
    dir: &str,
    iterations: usize,
    total: usize,
) -> serde_json::Value {
    let metrics = folder.join(dir).join("metrics.jsonl");
    let lines = || fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    let mut report = serde_json::Value::Null;
    hear_ctrl_c();
    wait_for("a run that is interrupted before its end", || {
        let _ = fs::remove_dir_all(folder.join(dir));
        let mut child = command(folder, arguments);
        let child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the first iterations", || lines() >= iterations);
        signal(child.id(), "-INT");
        let output = child.wait_with_output().unwrap();
        let done = lines();
        if done < total {
            assert!(output.status.success(), "Ctrl-C exits with 0");
            report = serde_json::from_slice(&output.stdout).unwrap();
        }
        done < total
    });
    report
}
