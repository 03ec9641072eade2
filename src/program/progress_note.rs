//! Notes in a terminal about work that takes longer than a second, with the time elapsed. Where stderr is not a
//! terminal nothing is printed, so that captured output does not depend on the speed of the machine.

use super::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, Builder};
use std::time::Duration;

/// Delay before a note.
const NOTE_DELAY: Duration = Duration::from_secs(1);
/// Interval at which a note is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(125);

/// Runs `work`, and shows `note` if it takes longer than a second.
pub fn with_note<T>(note: &str, work: impl FnOnce() -> T) -> T {
    with_note_after(NOTE_DELAY, note, work)
}

/// Runs `work` like [`with_note`]; only the first rank shows it.
pub fn with_note_if<T>(is_root: bool, note: &str, work: impl FnOnce() -> T) -> T {
    if is_root { with_note(note, work) } else { work() }
}

/// Runs `work`, and shows `note` if it takes longer than `delay`.
pub fn with_note_after<T>(delay: Duration, note: &str, work: impl FnOnce() -> T) -> T {
    notify_if_slow(delay, |done| show_note(note, delay, done), work)
}

/// Shows a note, with a clock that starts at `delay`, until the work is done.
fn show_note(note: &str, delay: Duration, done: &Receiver<()>) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if bar.is_hidden() || output::is_muted() {
        return;
    }
    let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
    bar.set_style(style.expect("the template is valid"));
    bar.set_elapsed(delay);
    bar.set_message(note.to_string());
    while done.recv_timeout(REDRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        bar.tick();
    }
    bar.finish_and_clear();
}

/// Runs `work`, and meanwhile calls `notify` if it takes longer than `delay`. The channel passed to `notify` closes
/// when the work is done.
fn notify_if_slow<T>(
    delay: Duration,
    notify: impl FnOnce(&Receiver<()>) + Send,
    work: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        let wait = move || {
            if waiting.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                notify(&waiting);
            }
        };
        // Without a thread there is no note.
        let _ = Builder::new().spawn_scoped(scope, wait);
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_shown_only_while_work_takes_long() {
        let (notify, notified) = channel();
        // This work takes until the message has come.
        notify_if_slow(Duration::ZERO, |_| notify.send(()).unwrap(), || notified.recv().unwrap());
        notify_if_slow(Duration::MAX, |_| panic!("the work took no time"), || ());
    }
}
