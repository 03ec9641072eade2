//! A run as it is now: what a thread that follows its files has read, for all who want to know.

use super::completions::Completions;
use super::files::RunFiles;
use super::log::{Log, Tail};
use super::page::tag;
use crate::checkpoint::{self, Store};
use crate::program::run_dir::{CONFIG, NOTE};
use hyper::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How often the run's files are looked at.
const EVERY: Duration = Duration::from_millis(250);

/// The sections of a checkpoint that a viewer needs; the rest is for going on with the run.
pub const SECTIONS: [&str; 2] = ["config.toml", "weights.safetensors"];

/// What is known of a run.
#[derive(Default)]
pub struct Run {
    /// The name of its directory.
    pub name: String,
    /// Its settings.
    pub config: Option<Bytes>,
    /// What it was trained with.
    pub note: Option<Bytes>,
    /// Its metrics.
    pub log: Log,
    /// Its completions, where it is one of a language model.
    pub completions: Option<Completions>,
    /// Its best policy.
    pub best: Option<Policy>,
    /// Its newest checkpoint.
    pub newest: Option<Policy>,
}

/// What others may read of a checkpoint.
#[derive(Clone)]
pub struct Policy {
    /// Changes with the content.
    pub tag: String,
    /// Iterations trained.
    pub iteration: u64,
    /// The content of [`SECTIONS`].
    pub sections: [Bytes; 2],
}

/// A run that is followed.
pub struct Live {
    run: Mutex<Run>,
    changed: watch::Sender<()>,
}

impl Live {
    /// Reads a run, and follows it as long as someone holds what this returns.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn follow(files: RunFiles) -> std::io::Result<Arc<Self>> {
        let run = Run { name: files.name(), ..Run::default() };
        let live = Arc::new(Self { run: Mutex::new(run), changed: watch::Sender::new(()) });
        let mut follower = Follower { files, tail: Tail::default(), seen: [const { None }; 2] };
        follower.look(&live);
        let weak = Arc::downgrade(&live);
        std::thread::Builder::new().name("watch-files".into()).spawn(move || {
            while let Some(live) = weak.upgrade() {
                follower.look(&live);
                drop(live);
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(live)
    }

    /// What is known now. To be held for a moment only.
    pub fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes up at every change from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// Reads what is new, without holding up those who want to know what is known.
struct Follower {
    files: RunFiles,
    tail: Tail,
    /// The checksums of the best and the newest checkpoint that were read last.
    seen: [Option<Vec<u8>>; 2],
}

impl Follower {
    fn look(&mut self, live: &Live) {
        let config = self.files.read(CONFIG).map(Bytes::from);
        let note = self.files.read(NOTE).map(Bytes::from);
        let found = self.tail.look(&self.files);
        let completions = Completions::open(&self.files);
        // The weights of a language model are large, and no page plays by them.
        let [best, newest] = match completions {
            Some(_) => [None, None],
            None => [self.look_at(0, &["best".to_string()]), self.look_at(1, &self.saved())],
        };

        let mut run = live.run();
        run.completions = completions;
        let mut changed = found.apply(&mut run.log);
        changed |= run.config != config || run.note != note;
        (run.config, run.note) = (config, note);
        for (policy, place) in [(best, 0), (newest, 1)] {
            let Some(policy) = policy else { continue };
            match place {
                0 => run.best = policy,
                _ => run.newest = policy,
            }
            changed = true;
        }
        drop(run);
        if changed {
            self.tell(live);
        }
    }

    fn tell(&self, live: &Live) {
        live.changed.send_replace(());
    }

    /// The saved checkpoints, the newest first.
    fn saved(&self) -> Vec<String> {
        let Some(path) = self.files.path("checkpoints") else { return Vec::new() };
        let store = Store::new(path);
        let iterations = store.iterations().unwrap_or_default().into_iter().rev();
        let name = |iteration| Some(store.path(iteration).file_name()?.to_str()?.to_string());
        iterations.filter_map(name).map(|name| format!("checkpoints/{name}")).collect()
    }

    /// Reads the first intact one of these checkpoints, unless the first has not changed.
    fn look_at(&mut self, place: usize, names: &[String]) -> Option<Option<Policy>> {
        let sums = names.first().and_then(|name| self.files.read(&format!("{name}/SHA256SUMS")));
        if sums == self.seen[place] {
            return None;
        }
        self.seen[place] = sums;
        Some(names.iter().find_map(|name| self.load(name)))
    }

    fn load(&self, name: &str) -> Option<Policy> {
        for section in SECTIONS {
            self.files.path(&format!("{name}/{section}"))?;
        }
        let checkpoint = checkpoint::load(&self.files.path(name)?).ok()?;
        let mut sections = [const { Bytes::new() }; 2];
        for (bytes, name) in sections.iter_mut().zip(SECTIONS) {
            let found = checkpoint.sections.iter().find(|section| section.name == name)?;
            *bytes = Bytes::copy_from_slice(&found.bytes);
        }
        let tag = tag(&sections.concat());
        Some(Policy { tag, iteration: checkpoint.iteration, sections })
    }
}
