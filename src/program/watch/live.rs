//! The current state of a run, kept up to date by a thread that polls its files.

use super::completions::Completions;
use super::files::RunFiles;
use super::log::Log;
use super::page::tag;
use crate::checkpoint::Store;
use crate::run::{CONFIG, NOTE, caught};
use hyper::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Polling interval of the run's files.
const INTERVAL: Duration = Duration::from_millis(250);

/// The sections of a checkpoint that a viewer needs; the others are for resuming the run.
pub const SECTIONS: [&str; 2] = ["config.toml", "weights.safetensors"];

/// The state of a run.
#[derive(Default)]
pub struct Run {
    pub name: String,
    /// The settings, `config.toml`.
    pub config: Option<Bytes>,
    /// The hardware and engine that train it, `run.json`.
    pub note: Option<Bytes>,
    pub log: Log,
    /// The completions of a language run.
    pub completions: Option<Completions>,
    pub best: Option<Policy>,
    pub newest: Option<Policy>,
}

/// The public sections of a checkpoint.
#[derive(Clone)]
pub struct Policy {
    /// Hash of the content.
    pub tag: String,
    /// Iterations completed.
    pub iteration: u64,
    /// The content of [`SECTIONS`].
    pub sections: [Bytes; 2],
}

/// The live state of a run, shared between threads.
pub struct Live {
    run: Mutex<Run>,
    changed: watch::Sender<()>,
}

impl Live {
    /// Reads a run and starts a thread that keeps the state up to date until it is dropped.
    pub fn follow(files: RunFiles) -> std::io::Result<Arc<Self>> {
        let run = Run { name: files.name(), ..Run::default() };
        let live = Arc::new(Self { run: Mutex::new(run), changed: watch::Sender::new(()) });
        let mut follower = Follower { files, seen: [const { None }; 2] };
        follower.poll(&live);
        let weak = Arc::downgrade(&live);
        std::thread::Builder::new().name("watch-files".into()).spawn(move || {
            while let Some(live) = weak.upgrade() {
                if let Err(panic) = caught(|| follower.poll(&live)) {
                    tracing::error!("the page cannot follow the run any more: {panic}");
                    return;
                }
                drop(live);
                std::thread::sleep(INTERVAL);
            }
        })?;
        Ok(live)
    }

    /// Locks the current state. Hold the guard briefly, since it blocks the other threads.
    pub fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// Polls the files and updates the state, which is locked only briefly.
struct Follower {
    files: RunFiles,
    /// Checksums of the best and the newest checkpoint that were read last.
    seen: [Option<Vec<u8>>; 2],
}

impl Follower {
    fn poll(&mut self, live: &Live) {
        let config = self.files.read(CONFIG).map(Bytes::from);
        let note = self.files.read(NOTE).map(Bytes::from);
        // The weights of a language model are large, and the page does not use them.
        let [best, newest] = match Completions::open(&self.files) {
            Some(_) => [None, None],
            None => {
                [self.poll_policy(0, &["best".to_string()]), self.poll_policy(1, &self.saved())]
            }
        };

        let mut run = live.run();
        let mut changed = run.log.poll(&self.files);
        // Opened after the records were read, whose completions are written before them.
        run.completions = Completions::open(&self.files);
        changed |= run.config != config || run.note != note;
        (run.config, run.note) = (config, note);
        changed |= best.is_some() || newest.is_some();
        best.into_iter().for_each(|best| run.best = best);
        newest.into_iter().for_each(|newest| run.newest = newest);
        drop(run);
        if changed {
            live.changed.send_replace(());
        }
    }

    /// Lists the saved checkpoints, newest first.
    fn saved(&self) -> Vec<String> {
        let store = Store::new(self.files.root().join("checkpoints"));
        let iterations = store.iterations().unwrap_or_default().into_iter().rev();
        let name = |iteration| Some(store.path(iteration).file_name()?.to_str()?.to_string());
        iterations.filter_map(name).map(|name| format!("checkpoints/{name}")).collect()
    }

    /// Reads the first intact checkpoint of `names`; `None` if the first one has not changed since the last
    /// poll.
    fn poll_policy(&mut self, place: usize, names: &[String]) -> Option<Option<Policy>> {
        let sums = names.first().and_then(|name| self.files.read(&format!("{name}/SHA256SUMS")));
        if sums == self.seen[place] {
            return None;
        }
        self.seen[place] = sums;
        Some(names.iter().find_map(|name| self.load(name)))
    }

    fn load(&self, name: &str) -> Option<Policy> {
        let checkpoint = self.files.checkpoint(name)?;
        let mut sections = [const { Bytes::new() }; 2];
        for (bytes, name) in sections.iter_mut().zip(SECTIONS) {
            let found = checkpoint.sections.iter().find(|section| section.name == name)?;
            *bytes = Bytes::copy_from_slice(&found.bytes);
        }
        let tag = tag(&sections.concat());
        Some(Policy { tag, iteration: checkpoint.iteration, sections })
    }
}
