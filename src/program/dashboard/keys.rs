//! Keys pressed during a run, on Unix terminals.

use std::sync::mpsc::Receiver;

/// A listener for single keys. The terminal passes them on without waiting for Enter and does not print them; Ctrl-C
/// and Ctrl-Z work as always. Dropping the listener restores the terminal's mode.
pub struct KeyListener {
    pressed_keys: Receiver<u8>,
    #[cfg(unix)]
    _mode: unix::RawMode,
}

impl KeyListener {
    /// Listens on stdin; `None` if it is not a terminal, or another process is in its foreground.
    pub fn listen() -> Option<Self> {
        #[cfg(unix)]
        return unix::listen();
        #[cfg(not(unix))]
        None
    }

    /// Returns the next key, if one has been pressed.
    pub fn next(&self) -> Option<u8> {
        self.pressed_keys.try_recv().ok()
    }

    /// Waits up to 0.1 s for a key.
    pub fn wait(&self) -> Option<u8> {
        self.pressed_keys.recv_timeout(std::time::Duration::from_millis(100)).ok()
    }
}

#[cfg(unix)]
mod unix {
    use super::KeyListener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex, Once};

    const STDIN: libc::c_int = libc::STDIN_FILENO;

    /// Terminal mode to restore.
    static MODE_BEFORE: Mutex<Option<libc::termios>> = Mutex::new(None);

    /// A terminal without line editing and echo, until it is dropped or the process exits.
    pub struct RawMode {
        is_over: Arc<AtomicBool>,
    }

    impl Drop for RawMode {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::Relaxed);
            restore_mode();
        }
    }

    extern "C" fn restore_mode() {
        // In the background the shell has set its own mode, and the call would stop the process.
        if !is_in_foreground() {
            return;
        }
        let Some(before) = MODE_BEFORE.lock().ok().and_then(|mut before| before.take()) else {
            return;
        };
        // SAFETY: `before` is what the terminal had; without a terminal the call fails and does nothing.
        unsafe { libc::tcsetattr(STDIN, libc::TCSANOW, &before) };
    }

    /// Whether stdin is a terminal, and this process in its foreground.
    fn is_in_foreground() -> bool {
        // SAFETY: both calls only ask; without a terminal the first gives -1.
        unsafe { libc::tcgetpgrp(STDIN) == libc::getpgrp() }
    }

    /// The mode of the terminal at stdin.
    fn current_mode() -> Option<libc::termios> {
        // SAFETY: all bits 0 are a valid `termios`, which the call fills in.
        unsafe {
            let mut mode: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(STDIN, &raw mut mode) == 0).then_some(mode)
        }
    }

    /// Switches the terminal to passing on every key at once, and reads the keys on a thread. `None` unless this
    /// process is in the foreground of a terminal.
    pub fn listen() -> Option<KeyListener> {
        if !is_in_foreground() {
            return None;
        }
        let before = current_mode()?;
        *MODE_BEFORE.lock().ok()? = Some(before);
        let mut mode = before;
        mode.c_lflag &= !(libc::ICANON | libc::ECHO);
        // A read returns at once.
        mode.c_cc[libc::VMIN] = 0;
        mode.c_cc[libc::VTIME] = 0;
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: `restore_mode` may run at any time, and neither panics nor unwinds.
            unsafe { libc::atexit(restore_mode) };
        });
        // SAFETY: `mode` is a mode of this terminal with other flags.
        if unsafe { libc::tcsetattr(STDIN, libc::TCSANOW, &mode) } != 0 {
            return None;
        }
        let guard = RawMode { is_over: Arc::default() };
        let (sender, pressed_keys) = channel();
        let ended = guard.is_over.clone();
        let reader = std::thread::Builder::new().spawn(move || {
            block_stop_signals();
            while !ended.load(Ordering::Relaxed) {
                let mut key = 0_u8;
                let is_read = is_in_foreground() && {
                    set_mode_again(&mode);
                    // SAFETY: one byte is read into one byte.
                    unsafe { libc::read(STDIN, (&raw mut key).cast(), 1) == 1 }
                };
                if !is_read {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                } else if sender.send(key).is_err() {
                    break;
                }
            }
        });
        reader.ok()?;
        Some(KeyListener { pressed_keys, _mode: guard })
    }

    /// Sets the mode again if the terminal is in line mode, as after Ctrl-Z and `fg`.
    fn set_mode_again(mode: &libc::termios) {
        // Once the mode has been restored, it stays so.
        let Ok(before) = MODE_BEFORE.lock() else { return };
        let is_in_line_mode = current_mode().is_some_and(|now| now.c_lflag & libc::ICANON != 0);
        if before.is_some() && is_in_line_mode {
            // SAFETY: `mode` is one of this terminal.
            unsafe { libc::tcsetattr(STDIN, libc::TCSANOW, mode) };
        }
    }

    /// Makes reads from a background process fail instead of stopping the process.
    fn block_stop_signals() {
        // SAFETY: all bits 0 are a valid set, which the calls fill in; the mask is that of this thread alone.
        unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGTTIN);
            libc::sigaddset(&raw mut signals, libc::SIGTTOU);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        }
    }
}
