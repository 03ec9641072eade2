//! Streaming of datasets: a thread copies the windows of the next iteration while the current one learns.
//!
//! At most two blocks of windows are in memory: one in use, and one being filled from the memory-mapped
//! files. The content of a block depends on the index of its iteration only, so results equal those of a
//! resident dataset, even after a resume.

use crate::data::{WindowBatch, WindowSet};
use crate::device;
use crate::learner::Batches;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use web_time::Instant;

/// Reads the windows of a dataset ahead, iteration by iteration.
#[derive(Debug)]
pub(super) struct WindowPrefetcher {
    window_set: Arc<WindowSet>,
    batches: Batches,
    reader: Option<Reader>,
    /// Receives all windows once a background thread has read them.
    all_windows: Option<Receiver<WindowBatch>>,
    /// Seconds spent waiting for the reader since the last query.
    waiting_seconds: f64,
}

/// A thread that reads windows ahead.
#[derive(Debug)]
struct Reader {
    /// Iteration of the block that the thread prepares.
    next_iteration: u32,
    filled_blocks: Receiver<WindowBatch>,
    empty_blocks: Sender<WindowBatch>,
    thread: JoinHandle<()>,
}

impl WindowPrefetcher {
    /// Creates a prefetcher of the windows of `window_set`, in the order of `batches`.
    pub fn new(window_set: WindowSet, batches: Batches) -> Self {
        Self {
            window_set: Arc::new(window_set),
            batches,
            reader: None,
            all_windows: None,
            waiting_seconds: 0.0,
        }
    }

    /// Also reads all windows in the background, so that the dataset can become resident.
    pub fn read_all_in_background(mut self) -> Self {
        let (send, all_windows) = channel();
        let window_set = self.window_set.clone();
        let reader = thread::Builder::new().spawn(move || {
            // The receiver is gone if the run has ended.
            let _ = send.send(window_set.copy_all());
        });
        // Without a thread the dataset stays streamed.
        self.all_windows = reader.is_ok().then_some(all_windows);
        self
    }

    /// Whether all windows are being read in the background.
    pub fn reads_all(&self) -> bool {
        self.all_windows.is_some()
    }

    /// Returns all windows, once, when they have been read.
    pub fn take_all(&mut self) -> Option<WindowBatch> {
        self.all_windows.as_ref()?.try_recv().ok()
    }

    /// Returns the windows of an iteration, batch by batch. They count as uploaded.
    pub fn take(&mut self, iteration: u32) -> WindowBatch {
        let started = Instant::now();
        let reader = match self.reader.take() {
            Some(reader) if reader.next_iteration == iteration => reader,
            _ => Reader::start(&self.window_set, &self.batches, iteration),
        };
        let Ok(windows) = reader.filled_blocks.recv() else {
            // It reads as long as it is listened to, unless it panics.
            let _ = reader.thread.join();
            panic!(
                "the dataset cannot be read; its files must not change while a run reads them, so restore them, then \
                 resume the run"
            );
        };
        self.reader = Some(Reader { next_iteration: iteration + 1, ..reader });
        self.waiting_seconds += started.elapsed().as_secs_f64();
        device::count_upload(windows.bytes());
        windows
    }

    /// Returns a block for reuse.
    pub fn give_back(&self, windows: WindowBatch) {
        if let Some(reader) = &self.reader {
            // The thread may have ended.
            let _ = reader.empty_blocks.send(windows);
        }
    }

    /// Returns the seconds spent waiting since the last call.
    pub fn take_waiting_seconds(&mut self) -> f64 {
        std::mem::take(&mut self.waiting_seconds)
    }
}

impl Reader {
    fn start(window_set: &Arc<WindowSet>, batches: &Batches, first: u32) -> Self {
        // Unbuffered, so that the thread holds a filled block until it is requested.
        let (send, filled_blocks) = sync_channel(0);
        let (empty_blocks, emptied) = channel();
        let (window_set, mut batches) = (window_set.clone(), batches.clone());
        let thread = thread::spawn(move || {
            for iteration in first.. {
                let mut windows = emptied.try_recv().unwrap_or_default();
                let minibatches = batches.minibatches(iteration, window_set.len());
                let indices: Vec<i32> =
                    minibatches.iter().flat_map(|minibatch| minibatch.games()).copied().collect();
                window_set.fill(indices.iter().map(|index| *index as usize), &mut windows);
                if send.send(windows).is_err() {
                    return;
                }
            }
        });
        Self { next_iteration: first, filled_blocks, empty_blocks, thread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Shards;
    use crate::settings::TrainConfig;
    use crate::trainer::source::tests::window_set;
    use std::time::Duration;

    #[test]
    fn a_stream_gives_each_iteration_its_windows_from_wherever_it_is_asked() {
        let window_set = window_set(40, 3, [1, 1]);
        let mut config = TrainConfig::for_game("any");
        config.data.path = "somewhere".to_string();
        (config.data.batch_size, config.update.num_minibatches) = (5, 2);
        config.update.update_epochs = 1;
        let mut batches = Batches::with_shards(&config, Shards::new(window_set.len(), 3));
        let mut stream = WindowPrefetcher::new(window_set.clone(), batches.clone());
        for iteration in [0, 1, 2, 7, 8] {
            let mut expected = WindowBatch::default();
            let indices: Vec<i32> = batches
                .minibatches(iteration, window_set.len())
                .iter()
                .flat_map(|minibatch| minibatch.games().to_vec())
                .collect();
            assert_eq!(indices.len(), 10);
            window_set.fill(indices.iter().map(|index| *index as usize), &mut expected);
            let windows = stream.take(iteration);
            assert_eq!(windows, expected, "{iteration}");
            stream.give_back(windows);
        }
        assert!(!stream.reads_all() && stream.take_all().is_none());
        let mut stream =
            WindowPrefetcher::new(window_set.clone(), batches).read_all_in_background();
        assert!(stream.reads_all());
        // The number of looks ends a hang and decides nothing else.
        let all = (0..60_000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            stream.take_all()
        });
        assert_eq!(all, Some(window_set.copy_all()));
    }
}
