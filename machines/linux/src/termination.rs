//! Orderly end: a flag that SIGINT and SIGTERM set, for [`crate::host::HostOptions`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

/// A flag that the first SIGINT or SIGTERM sets. The second one ends the program at once, as it
/// would have without this; the guard restores the host then.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and only sets it.
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// For the guard, which must end when its run does and not before.
pub(crate) fn ignore_terminal() {
    let unused = Arc::new(AtomicBool::new(false));
    // systemd's watchdog sends SIGABRT to all processes of a service that hangs.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT] {
        // Without a handler the guard is only easier to kill.
        let _ = flag::register(signal, Arc::clone(&unused));
    }
}
