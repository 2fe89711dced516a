//! Signals that end a recording.
//!
//! The program must get the first one, and end as it would have without a recorder. A terminal
//! sends its signals to every process of the foreground, the program included; another process
//! sends them to this one only. So the handler notes who sent a signal, and the launcher passes on
//! those that the program did not get.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ, c_int, siginfo_t};
use signal_hook_registry::register_sigaction;

/// Signals received so far.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    received: AtomicU32,
    last: AtomicI32,
    /// The last signal that only this process got; 0 when there is none.
    to_pass_on: AtomicI32,
}

impl Signals {
    /// Signals that never arrive.
    pub fn none() -> Self {
        Signals::default()
    }

    /// Catches SIGINT, SIGTERM and SIGHUP from now on, instead of being ended by them. A file that
    /// grows beyond the limit for files (SIGXFSZ) is an error of writing from now on.
    pub fn catch() -> io::Result<Self> {
        let signals = Signals::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let state = Arc::clone(&signals.state);
            // SAFETY: the action only stores into atomics, which a handler may.
            unsafe { register_sigaction(signal, move |info| state.receive(signal, info))? };
        }
        // Caught, not ignored: the program would inherit an ignored signal. SAFETY: the action does
        // nothing.
        unsafe { register_sigaction(SIGXFSZ, |_| {})? };
        Ok(signals)
    }

    /// Number of signals received.
    pub(crate) fn received(&self) -> u32 {
        self.state.received.load(Ordering::Acquire)
    }

    /// The last one.
    pub(crate) fn last(&self) -> Option<c_int> {
        Some(self.state.last.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// A signal that the program did not get; returned once.
    pub(crate) fn take_to_pass_on(&self) -> Option<c_int> {
        Some(self.state.to_pass_on.swap(0, Ordering::AcqRel)).filter(|signal| *signal != 0)
    }
}

impl State {
    fn receive(&self, signal: c_int, info: &siginfo_t) {
        self.last.store(signal, Ordering::Release);
        // Codes above 0 are the kernel's: keys of the terminal, and its hang-up.
        if info.si_code <= 0 {
            self.to_pass_on.store(signal, Ordering::Release);
        }
        self.received.fetch_add(1, Ordering::AcqRel);
    }
}
