//! The terminal during a run: progress, Ctrl-C and keys.

use super::dashboard::KeyListener;
use super::games::Games;
use super::interrupt::Interrupt;
use super::output::eprint_line;
use super::progress::ProgressLine;
use super::watch::{self, Port, Server};
use crate::run::{IterationReport, RunObserver};
use std::path::{Path, PathBuf};

/// Observer that shows a run in the terminal; ranks other than the first show nothing. Dropping it clears everything
/// below the history, and restores the terminal's mode.
pub struct Terminal<'a> {
    interrupt: Interrupt,
    keys: Option<KeyListener>,
    /// Progress, and the page that a key opens; `None` for ranks other than the first.
    progress: Option<(ProgressLine, LivePage<'a>)>,
    is_stop_pressed: bool,
    is_save_pressed: bool,
}

/// The run's live page, opened by a key.
pub struct LivePage<'a> {
    games: &'a Games,
    folder: PathBuf,
    /// The server; `None` until first opened.
    server: Option<Server>,
}

impl<'a> Terminal<'a> {
    /// Creates a terminal with this progress, which listens for keys if `progress` has a dashboard.
    pub fn new(interrupt: Interrupt, mut progress: Option<(ProgressLine, LivePage<'a>)>) -> Self {
        let dashboard = progress.as_mut().and_then(|(line, _)| line.dashboard.as_mut());
        let keys = dashboard.and_then(|dashboard| {
            let keys = KeyListener::listen();
            dashboard.has_keys = keys.is_some();
            keys
        });
        Self { interrupt, keys, progress, is_stop_pressed: false, is_save_pressed: false }
    }

    fn print_above(&self, print: impl FnOnce()) {
        if let Some((line, _)) = &self.progress {
            line.print_above(print);
        }
    }

    fn handle_key(&mut self, key: u8) {
        match key {
            b'q' => self.is_stop_pressed = true,
            b's' => self.is_save_pressed = true,
            b'o' => {
                if let Some((line, page)) = &mut self.progress {
                    page.open(|text| line.print_above(|| eprint_line!("{text}")));
                }
            }
            b'p' => self.pause(),
            _ => {}
        }
    }

    /// Waits for a second `p`, or for the end.
    fn pause(&mut self) {
        self.print_above(|| eprint_line!("Paused; press p to continue."));
        while !self.is_stop_pressed
            && !self.interrupt.has_signal()
            && let Some(keys) = &self.keys
        {
            match keys.wait() {
                Some(b'p') => break,
                Some(key) => self.handle_key(key),
                None => {}
            }
        }
    }
}

impl RunObserver for Terminal<'_> {
    fn wants_to_stop(&mut self) -> bool {
        while let Some(key) = self.keys.as_ref().and_then(KeyListener::next) {
            self.handle_key(key);
        }
        self.is_stop_pressed || self.interrupt.has_signal()
    }

    fn wants_to_save(&mut self) -> bool {
        let is_requested = std::mem::take(&mut self.is_save_pressed);
        if is_requested {
            self.print_above(|| eprint_line!("Saving after the current iteration."));
        }
        is_requested
    }

    fn on_iteration(&mut self, report: &IterationReport) {
        if let Some((line, _)) = &mut self.progress {
            line.show(report);
        }
    }

    fn on_warning(&mut self, warning: &str) {
        self.print_above(|| eprint_line!("warning: {warning}"));
    }
}

impl<'a> LivePage<'a> {
    /// Creates the page of the run in `folder`, which can play `games`.
    pub fn new(games: &'a Games, folder: &Path) -> Self {
        Self { games, folder: folder.to_path_buf(), server: None }
    }

    /// Serves the run on a free port and opens a browser; `print_line` prints a line.
    fn open(&mut self, print_line: impl Fn(String)) {
        if self.server.is_some() {
            return;
        }
        let served = Port::bind(watch::DEFAULT_HOST, 0).and_then(|port| {
            let url = port.url();
            Ok((url, watch::start(self.games, port, &self.folder)?))
        });
        match served {
            Ok((url, server)) => {
                self.server = Some(server);
                print_line(format!("The page is at {url}."));
                // If no browser can be opened, the printed address suffices.
                let _ = open::that_detached(url);
            }
            Err(error) => print_line(format!("warning: cannot open the page: {error:#}")),
        }
    }
}
