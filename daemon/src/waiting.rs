//! `terraced run --wait`: a host that cannot be managed is checked again until it can.
//!
//! A node with one memory tier is no fault in a cluster in which the daemon runs on every node, and
//! memory of a second tier may come online later. The daemon then stays, reports the reason in its
//! log and its metrics, changes nothing, and answers the service manager.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::notify::Notifier;

/// Interval of checks.
pub const ASK_EVERY: Duration = Duration::from_secs(60);
/// Longest wait of a signal.
const SLICE: Duration = Duration::from_millis(200);

/// Why a host could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CannotOpen {
    /// Nothing changes without a change of configuration or host.
    Permanent(String),
    /// Another attempt may succeed.
    Passing(String),
}

/// Tries at intervals until the host opens, and at once when `reload` is set. `None` if `stop` was set
/// first. Passing errors are returned: the service manager restarts the daemon.
pub fn until_open<M>(
    mut open: impl FnMut() -> Result<M, CannotOpen>,
    every: Duration,
    board: &Board,
    notifier: &mut Notifier,
    stop: &AtomicBool,
    reload: &AtomicBool,
) -> Result<Option<M>, String> {
    let mut is_ready = false;
    loop {
        let reason = match open() {
            Ok(machine) => {
                board.frame().waiting = None;
                return Ok(Some(machine));
            }
            Err(CannotOpen::Passing(reason)) => return Err(reason),
            Err(CannotOpen::Permanent(reason)) => reason,
        };
        if board.frame().waiting.as_ref() != Some(&reason) {
            tracing::warn!(reason, "this host cannot be managed; waiting until it can");
        }
        board.frame().waiting = Some(reason);
        if !is_ready {
            notifier.ready();
            is_ready = true;
        }
        let asked = Instant::now();
        // Whoever opens reads the configuration again.
        while asked.elapsed() < every && !reload.load(Ordering::Relaxed) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            notifier.alive();
            std::thread::sleep(SLICE.min(every));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn wait(
        stop: &AtomicBool,
        open: impl FnMut() -> Result<u8, CannotOpen>,
    ) -> (Result<Option<u8>, String>, Option<String>) {
        let board = Board::default();
        let reload = AtomicBool::new(false);
        let got = until_open(open, SHORT, &board, &mut Notifier::default(), stop, &reload);
        let waiting = board.frame().waiting.clone();
        (got, waiting)
    }

    #[test]
    fn a_host_that_comes_to_have_two_tiers_is_opened_then() {
        let mut asked = 0;
        let got = wait(&AtomicBool::new(false), || {
            asked += 1;
            if asked < 3 { Err(CannotOpen::Permanent("one tier".into())) } else { Ok(7) }
        });
        assert_eq!(got, (Ok(Some(7)), None));
    }

    #[test]
    fn the_reason_is_shown_while_it_waits_and_a_signal_ends_it() {
        let stop = AtomicBool::new(false);
        let mut asked = 0;
        let got = wait(&stop, || {
            asked += 1;
            stop.store(asked == 3, Ordering::Relaxed);
            Err(CannotOpen::Permanent("one tier".into()))
        });
        assert_eq!(got, (Ok(None), Some("one tier".to_owned())));
    }

    #[test]
    fn a_reload_tries_again_at_once() {
        let (stop, reload) = (AtomicBool::new(false), AtomicBool::new(false));
        let board = Board::default();
        let mut asked = 0;
        let begin = Instant::now();
        let open = || {
            asked += 1;
            // A signal comes while it waits for the first time.
            reload.store(asked == 1, Ordering::Relaxed);
            if asked == 1 { Err(CannotOpen::Permanent("one tier".into())) } else { Ok(7) }
        };
        let hour = Duration::from_secs(3600);
        let got = until_open(open, hour, &board, &mut Notifier::default(), &stop, &reload);
        assert!(got == Ok(Some(7)) && begin.elapsed() < hour);
    }

    #[test]
    fn what_only_passes_is_not_waited_for() {
        let got = wait(&AtomicBool::new(false), || Err(CannotOpen::Passing("busy".into())));
        assert_eq!(got.0, Err("busy".to_owned()));
    }
}
