//! Pages that could not be moved, and how long each is left out.
//!
//! Some pages never move: those that a device or another program has pinned, and those of file systems
//! that cannot migrate. The kernel tries each ten times and more, unmapped meanwhile, which took 600 ms
//! for a range of base pages in a virtual machine, six periods. A policy asks for the same pages again
//! and again, and there was no time for any other. So a page is not tried for many times as long as
//! trying has taken, and for twice as long at each further time. Such pages are left out of what
//! policies see as well, by periods, so that they choose others (`terrace_core::unmovable`).

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::plan::FailureReason;

use super::PageResult;

/// Trying a page again takes no more than one part in so many of the time.
const PART: u32 = 16;
/// After so many times the wait no longer grows.
const MOST_DOUBLINGS: u32 = 6;
/// Most pages that are remembered.
const MOST_PAGES: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
struct Stuck {
    times: u32,
    until: Duration,
}

/// The pages of a group that could not be moved.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pages: BTreeMap<(u32, u64), Stuck>,
}

impl Backoff {
    /// Whether this page is not to be tried now.
    pub fn waits(&self, pid: u32, address: u64, now: Duration) -> bool {
        self.pages.get(&(pid, address)).is_some_and(|stuck| now < stuck.until)
    }

    /// Takes a result, of a call that took so long and has just ended. A try that costs next to nothing
    /// is repeated as often as a policy asks for it: a page may be busy for a moment only.
    pub fn note(
        &mut self,
        (pid, address): (u32, u64),
        result: &PageResult,
        is_dear: bool,
        took: Duration,
        now: Duration,
    ) {
        let page = (pid, address);
        let stays = matches!(result, Err(FailureReason::Busy | FailureReason::StayedPut));
        if !stays || !is_dear {
            self.pages.remove(&page);
            return;
        }
        if self.pages.len() >= MOST_PAGES {
            self.pages.retain(|_, stuck| now < stuck.until);
        }
        if self.pages.len() < MOST_PAGES {
            let stuck = self.pages.entry(page).or_insert(Stuck { times: 0, until: now });
            let wait = took * PART * (1 << stuck.times.min(MOST_DOUBLINGS));
            *stuck = Stuck { times: stuck.times + 1, until: now + wait };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_page_waits_for_twice_as_long_at_each_further_time_and_not_after_it_has_moved() {
        let mut backoff = Backoff::default();
        let page = (7, 4096);
        let busy = Err(FailureReason::Busy);
        let mut now = 100 * MS;
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6] {
            backoff.note(page, &busy, true, 10 * MS, now);
            let wait = 160 * MS * (1 << doublings);
            assert!(backoff.waits(7, 4096, now + wait - MS), "{doublings}");
            assert!(!backoff.waits(7, 4096, now + wait), "{doublings}");
            assert!(!backoff.waits(8, 4096, now) && !backoff.waits(7, 8192, now));
            now += wait;
        }
        for forgets in [(Ok(()), true), (Err(FailureReason::NoRoom), true), (busy, false)] {
            backoff.note(page, &busy, true, 10 * MS, now);
            assert!(backoff.waits(7, 4096, now));
            backoff.note(page, &forgets.0, forgets.1, 10 * MS, now);
            assert!(!backoff.waits(7, 4096, now), "{forgets:?}");
        }
    }

    #[test]
    fn no_more_pages_are_remembered_than_the_bound() {
        let mut backoff = Backoff::default();
        let busy = Err(FailureReason::Busy);
        for page in 0..MOST_PAGES as u64 + 10 {
            backoff.note((7, page), &busy, true, MS, 10 * MS);
        }
        assert_eq!(backoff.pages.len(), MOST_PAGES);
        // Those whose time is over make room.
        backoff.note((7, u64::MAX), &busy, true, MS, Duration::from_secs(1));
        assert_eq!(backoff.pages.len(), 1);
    }
}
