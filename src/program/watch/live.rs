//! The current state of a run, kept up to date by a thread that polls its files.

use super::completions::Completions;
use super::files::WatchedFiles;
use super::metrics_index::MetricsIndex;
use super::page::hash_content;
use crate::checkpoint::Store;
use crate::run::{CHECKPOINTS, CONFIG, METADATA, catch_panic};
use hyper::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Polling interval of the run's files.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The sections of a checkpoint that a viewer needs; the others are for resuming the run.
pub const PUBLIC_SECTIONS: [&str; 2] = ["config.toml", "weights.safetensors"];

#[derive(Default)]
pub struct RunState {
    pub name: String,
    /// The settings, `config.toml`.
    pub config: Option<Bytes>,
    /// The hardware and engine that train it, `run.json`.
    pub metadata: Option<Bytes>,
    pub metrics: MetricsIndex,
    /// The completions of a language run.
    pub completions: Option<Completions>,
    pub best: Option<ServedPolicy>,
    pub newest: Option<ServedPolicy>,
}

/// The public sections of a checkpoint.
#[derive(Clone)]
pub struct ServedPolicy {
    /// Hash of the content.
    pub tag: String,
    /// Iterations completed.
    pub iteration: u64,
    /// The content of [`PUBLIC_SECTIONS`].
    pub sections: [Bytes; 2],
}

/// The live state of a run, shared between threads.
pub struct LiveRun {
    state: Mutex<RunState>,
    /// Wakes the connections that follow the run.
    pub changes: watch::Sender<()>,
}

impl LiveRun {
    /// Reads a run and starts a thread that keeps the state up to date until it is dropped.
    pub fn follow(files: WatchedFiles) -> std::io::Result<Arc<Self>> {
        let state = RunState { name: files.name(), ..RunState::default() };
        let live = Arc::new(Self { state: Mutex::new(state), changes: watch::Sender::new(()) });
        let mut follower =
            Follower { files, best: Followed::default(), newest: Followed::default() };
        follower.poll(&live);
        let weak = Arc::downgrade(&live);
        std::thread::Builder::new().name("watch-files".into()).spawn(move || {
            while let Some(live) = weak.upgrade() {
                if let Err(panic) = catch_panic(|| follower.poll(&live)) {
                    tracing::error!("the page cannot follow the run any more: {panic}");
                    return;
                }
                drop(live);
                std::thread::sleep(POLL_INTERVAL);
            }
        })?;
        Ok(live)
    }

    /// Locks the current state. Hold the guard briefly, since it blocks the other threads.
    pub fn lock_state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls the files and updates the state, which is locked only briefly.
struct Follower {
    files: WatchedFiles,
    best: Followed,
    newest: Followed,
}

/// A checkpoint as of the last poll.
#[derive(Default)]
struct Followed {
    /// The checksums of the files.
    sums: Option<Vec<u8>>,
    /// `None` if it cannot be read.
    policy: Option<ServedPolicy>,
}

impl Follower {
    /// Reads what has changed in the run's files, and wakes the connections that follow the run if anything has.
    fn poll(&mut self, live: &LiveRun) {
        let config = self.files.read(CONFIG).map(Bytes::from);
        let metadata = self.files.read(METADATA).map(Bytes::from);
        let mut has_changed = false;
        // The weights of a language model are large, and the page does not use them.
        if Completions::open(&self.files).is_none() {
            let saved = self.list_checkpoints();
            has_changed |= self.best.poll(&self.files, &["best".to_string()]);
            has_changed |= self.newest.poll(&self.files, &saved);
        }

        let mut run = live.lock_state();
        has_changed |= run.metrics.poll(&self.files);
        // Opened after the records were read, whose completions are written before them.
        run.completions = Completions::open(&self.files);
        has_changed |= run.config != config || run.metadata != metadata;
        (run.config, run.metadata) = (config, metadata);
        (run.best, run.newest) = (self.best.policy.clone(), self.newest.policy.clone());
        drop(run);
        if has_changed {
            live.changes.send_replace(());
        }
    }

    /// Lists the saved checkpoints, newest first.
    fn list_checkpoints(&self) -> Vec<String> {
        let store = Store::new(self.files.root.join(CHECKPOINTS));
        let iterations = store.iterations().unwrap_or_default().into_iter().rev();
        let name = |iteration| Some(store.path(iteration).file_name()?.to_str()?.to_string());
        iterations.filter_map(name).map(|name| format!("{CHECKPOINTS}/{name}")).collect()
    }
}

impl Followed {
    /// Reads the first intact checkpoint of `names`, if the checksums of the first one have changed. Returns whether
    /// they have.
    fn poll(&mut self, files: &WatchedFiles, names: &[String]) -> bool {
        let sums = names.first().and_then(|name| files.read(&format!("{name}/SHA256SUMS")));
        let has_changed = sums != self.sums;
        if has_changed {
            let policy = names.iter().find_map(|name| load_policy(files, name));
            *self = Self { sums, policy };
        }
        has_changed
    }
}

/// Reads a checkpoint's public sections; `None` if it is damaged.
fn load_policy(files: &WatchedFiles, name: &str) -> Option<ServedPolicy> {
    let checkpoint = files.load_checkpoint(name)?;
    let mut sections = [const { Bytes::new() }; 2];
    for (bytes, name) in sections.iter_mut().zip(PUBLIC_SECTIONS) {
        let found = checkpoint.sections.iter().find(|section| section.name == name)?;
        *bytes = Bytes::copy_from_slice(&found.bytes);
    }
    let tag = hash_content(&sections.concat());
    Some(ServedPolicy { tag, iteration: checkpoint.iteration, sections })
}
