//! Groups that failed, why, and for how long each is unmanaged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time for which a group that failed is unmanaged: doubled each time, up to `LAST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest such time.
const LAST_RETRY: Duration = Duration::from_secs(600);
/// Control groups whose failures are remembered.
const MOST_FAILURES: usize = 1024;

/// The failures of all groups, by control group.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<String, Failure>);

#[derive(Debug)]
struct Failure {
    reason: String,
    until: Instant,
    wait: Duration,
}

impl Failures {
    /// A group fails now.
    pub(super) fn note(&mut self, cgroup: &str, reason: String, now: Instant) {
        if self.0.len() >= MOST_FAILURES && !self.0.contains_key(cgroup) {
            self.0.clear();
        }
        let wait = wait_after(self.0.get(cgroup), now);
        self.0.insert(cgroup.to_owned(), Failure { reason, until: now + wait, wait });
    }

    /// Why a group is unmanaged, if it is at this time.
    pub(super) fn reason(&self, cgroup: &str, now: Instant) -> Option<&str> {
        let failure = self.0.get(cgroup).filter(|failure| now < failure.until)?;
        Some(&failure.reason)
    }

    /// Its processes have gone.
    pub(super) fn forget(&mut self, cgroup: &str) {
        self.0.remove(cgroup);
    }

    /// All groups are tried again at once.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// How long a group that fails now is unmanaged: twice as long as after the failure before, but the
/// shortest time if it was managed for longer than it had been unmanaged.
fn wait_after(before: Option<&Failure>, now: Instant) -> Duration {
    match before {
        Some(before) if now.saturating_duration_since(before.until) <= before.wait => {
            (before.wait * 2).min(LAST_RETRY)
        }
        _ => FIRST_RETRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_served_since_its_last_failure_is_tried_again_soon() {
        let begin = Instant::now();
        let failure = |wait: Duration| Failure { reason: String::new(), until: begin, wait };
        let mut waits = vec![wait_after(None, begin)];
        // It fails again at once, each time.
        for _ in 0..8 {
            let last = failure(waits[waits.len() - 1]);
            waits.push(wait_after(Some(&last), begin + Duration::from_secs(1)));
        }
        let seconds: Vec<u64> = waits.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        let served = begin + LAST_RETRY + Duration::from_secs(1);
        assert_eq!(wait_after(Some(&failure(LAST_RETRY)), served), FIRST_RETRY);
    }

    #[test]
    fn a_group_is_unmanaged_with_its_reason_until_its_time_has_passed() {
        let begin = Instant::now();
        let mut failures = Failures::default();
        failures.note("/a", "no room".into(), begin);
        assert_eq!(failures.reason("/a", begin), Some("no room"));
        assert_eq!(failures.reason("/a", begin + FIRST_RETRY), None);
        assert_eq!(failures.reason("/b", begin), None);
        failures.clear();
        assert_eq!(failures.reason("/a", begin), None);
    }
}
