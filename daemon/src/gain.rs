//! Benefits of a group in words: fast memory that others may use, and what prevents a higher hit
//! ratio. Pure, from a status.

use crate::status::{GroupStatus, MachineStatus};
use crate::throttle::ThrottleReason;

/// Share of accesses below which nothing is reported.
const FEW_ACCESSES: f64 = 0.02;
/// Hot memory below this is ignored: a page or two of a large group.
const FEW_BYTES: u64 = 4 << 20;
/// Scans after which a placement can be judged.
const FEW_SCANS: u64 = 8;

impl GroupStatus {
    /// Memory of the group that would be in fast memory without tiering and is not: others may use
    /// that.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        let slow = self.bytes.saturating_sub(self.fast_bytes);
        slow.saturating_add(self.untracked_slow_bytes)
    }

    /// The first obstacle to a higher hit ratio, and its remedy. `None` if next to nothing can be
    /// gained.
    #[must_use]
    pub fn why_not(&self, machine: &MachineStatus) -> Option<String> {
        let mib = |bytes: u64| bytes >> 20;
        if self.state != "tracking" {
            return None;
        }
        let (hot_fast, hot_slow) = (self.fast.hot_bytes, self.slow.hot_bytes);
        if self.hit_ratio >= 1.0 - FEW_ACCESSES || hot_slow < FEW_BYTES {
            let untracked = self.untracked_slow_bytes;
            return (untracked > FEW_BYTES && untracked > self.bytes / 8).then(|| {
                format!(
                    "{} MiB in slow memory are not tracked, so how often they are used is not known",
                    mib(untracked)
                )
            });
        }
        let bound = |reason: ThrottleReason| {
            let at = ThrottleReason::ALL.iter().position(|r| *r == reason).unwrap_or(0);
            self.throttle.bound_periods[at] * 2 > self.scans
        };
        let hot = hot_fast.saturating_add(hot_slow);
        let text = if self.dry_run {
            "nothing is moved in a dry run; take away 'dry_run' to gain".to_owned()
        } else if self.scans < FEW_SCANS {
            format!("{} periods seen: too few to know what is hot", self.scans)
        } else if self.throttle.pause_left > 0 {
            format!(
                "migration did not pay and is paused for {} periods: hot pages change faster than \
                 they can be moved",
                self.throttle.pause_left
            )
        } else if hot > self.granted_bytes {
            format!(
                "{} MiB are hot and it may have {} of fast memory: {} MiB more would hold them",
                mib(hot),
                mib(self.granted_bytes),
                mib(hot - self.granted_bytes)
            )
        } else if let Some(text) = self.no_room(machine) {
            text
        } else if self.throttle.unmovable_pages * self.page_size_bytes > hot_slow / 2 {
            format!(
                "{} MiB of it cannot be moved; 'pages not moved' has the reasons",
                mib(self.throttle.unmovable_pages * self.page_size_bytes)
            )
        } else if self.throttle.pressure_bound.is_some() {
            "moves are throttled while it waits for memory".to_owned()
        } else if bound(ThrottleReason::Bandwidth) {
            "moves reach the bandwidth that they may take ('bandwidth')".to_owned()
        } else if bound(ThrottleReason::Cpu) {
            "moves reach the processor time that they may take ('cpu_percent')".to_owned()
        } else {
            format!(
                "{} MiB in slow memory are hot and are promoted as the policy decides",
                mib(hot_slow)
            )
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Heat;
    use crate::throttle::ThrottleStatus;

    const MIB: u64 = 1 << 20;

    fn group() -> GroupStatus {
        GroupStatus {
            state: "tracking".into(),
            scans: 100,
            page_size_bytes: 2 * MIB,
            bytes: 1000 * MIB,
            fast_bytes: 400 * MIB,
            granted_bytes: 400 * MIB,
            fast: Heat { hot_bytes: 200 * MIB, ..Heat::default() },
            slow: Heat { hot_bytes: 100 * MIB, ..Heat::default() },
            hit_ratio: 0.7,
            ..GroupStatus::default()
        }
    }

    fn why(change: impl FnOnce(&mut GroupStatus)) -> String {
        let mut group = group();
        change(&mut group);
        group.why_not(&MachineStatus::default()).unwrap_or_default()
    }

    #[test]
    fn what_is_in_slow_memory_is_what_others_may_use() {
        let group = GroupStatus { untracked_slow_bytes: 50 * MIB, ..group() };
        assert_eq!(group.freed_bytes(), 650 * MIB);
    }

    #[test]
    fn the_first_cause_is_named_with_what_would_change_it() {
        assert_eq!(why(|g| g.hit_ratio = 0.99), "");
        assert_eq!(why(|g| g.slow.hot_bytes = MIB), "");
        assert_eq!(why(|g| g.state = "lost".into()), "");
        assert!(why(|g| g.dry_run = true).contains("dry_run"));
        assert!(why(|g| g.scans = 3).contains("3 periods seen"));
        assert!(why(|g| g.throttle.pause_left = 7).contains("7 periods"));
        assert!(why(|g| g.fast.hot_bytes = 350 * MIB).contains("50 MiB more would hold them"));
        assert!(why(|g| g.no_room_bytes = 64 * MIB).contains("no room: 64 MiB"));
        assert!(why(|g| g.throttle.unmovable_pages = 40).contains("80 MiB of it cannot be moved"));
        assert!(why(|g| g.throttle.pressure_bound = Some(1)).contains("waits for memory"));
        let bound = |reason: ThrottleReason| ThrottleStatus {
            bound_periods: ThrottleReason::ALL.map(|r| if r == reason { 60 } else { 0 }),
            ..ThrottleStatus::default()
        };
        assert!(why(|g| g.throttle = bound(ThrottleReason::Bandwidth)).contains("'bandwidth'"));
        assert!(why(|g| g.throttle = bound(ThrottleReason::Cpu)).contains("'cpu_percent'"));
        assert!(why(|_| {}).contains("100 MiB in slow memory are hot"));
        assert!(
            why(|g| {
                g.hit_ratio = 1.0;
                g.untracked_slow_bytes = 200 * MIB;
            })
            .contains("200 MiB in slow memory are not tracked")
        );
    }
}
