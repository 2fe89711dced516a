//! The bound on samples a second: how many are used, and how many a processor is asked for.
//!
//! Where the source is the processor, the accesses that it counts for each sample follow what runs.
//! Each sample costs the processor that takes it about a microsecond, needed or not, so it is not enough
//! to read no more of them. The number of accesses is doubled, as often as needed, where more come. It
//! is halved where for a second fewer than a quarter came: a processor may hand over samples a thousand
//! at a time. It never falls below a least number, with which the busiest processors of a host give a
//! hundred times the bound, until that is noticed.

use std::time::Duration;

/// Most samples used per second, of all groups together: MEMTIS's maximum.
pub const MOST_PER_S: u64 = 20_000;
/// Samples are counted for so long before the number is changed.
const COUNTED_FOR: Duration = Duration::from_millis(50);
/// The number is halved once few samples have come for so long.
const FEW_FOR: Duration = Duration::from_secs(1);
/// So many times the bound come with the least number at worst.
const WORST: u64 = 100;

/// A bound on samples per second. What it lets pass is spread over the second: with all of it at the
/// beginning, short periods after that would have none.
pub(super) struct Bound {
    left: f64,
    /// When it was last filled.
    filled: Duration,
}

impl Bound {
    pub(super) fn new(now: Duration) -> Self {
        Bound { left: MOST_PER_S as f64, filled: now }
    }

    pub(super) fn fill(&mut self, now: Duration) {
        let gained = now.saturating_sub(self.filled).as_secs_f64() * MOST_PER_S as f64;
        *self = Bound { left: (self.left + gained).min(MOST_PER_S as f64), filled: now };
    }

    pub(super) fn passes(&mut self) -> bool {
        let passes = self.left >= 1.0;
        self.left -= f64::from(u8::from(passes));
        passes
    }
}

/// The number of accesses for each sample, changed by how many samples come.
#[derive(Debug)]
pub(super) struct SamplePace {
    least: u64,
    most: u64,
    accesses: u64,
    /// Samples were counted from this time, by the caller's clock, and were so many then.
    since: Duration,
    counted: u64,
    /// When there were last enough of them.
    enough: Duration,
}

impl SamplePace {
    /// Of so many processors, each of which makes at most `busiest_per_s` accesses of those that are
    /// counted. It begins with a number that no program exceeds the bound with.
    pub(super) fn new(cpus: usize, busiest_per_s: u64, least: u64, most: u64) -> Self {
        let busiest_per_s = busiest_per_s.saturating_mul(cpus as u64);
        let least = least.max(busiest_per_s / (WORST * MOST_PER_S)).next_power_of_two().min(most);
        let accesses = (least * WORST.next_power_of_two()).min(most);
        let (since, enough) = (Duration::ZERO, Duration::ZERO);
        SamplePace { least, most, accesses, since, counted: 0, enough }
    }

    /// Accesses for each sample.
    pub(super) fn accesses(&self) -> u64 {
        self.accesses
    }

    /// So many samples have come until now in all. Returns another number of accesses, if there is
    /// to be one: it counts once it is [`SamplePace::set`].
    pub(super) fn count(&mut self, now: Duration, samples: u64) -> Option<u64> {
        let counted_for = now.saturating_sub(self.since);
        if counted_for < COUNTED_FOR {
            return None;
        }
        let per_s = samples.saturating_sub(self.counted) as f64 / counted_for.as_secs_f64();
        (self.since, self.counted) = (now, samples);
        let bound = MOST_PER_S as f64;
        if per_s >= bound / 4.0 {
            self.enough = now;
        }
        let wanted = if per_s > bound {
            self.accesses.saturating_mul(((per_s / bound).ceil() as u64).next_power_of_two())
        } else if now.saturating_sub(self.enough) >= FEW_FOR {
            // Half of it is tried for a while, too.
            self.enough = now;
            self.accesses / 2
        } else {
            self.accesses
        };
        let wanted = wanted.clamp(self.least, self.most);
        (wanted != self.accesses).then_some(wanted)
    }

    /// The processors count so many accesses for each sample now.
    pub(super) fn set(&mut self, accesses: u64) {
        self.accesses = accesses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Samples a second in each of so many seconds, of a load that makes so many accesses a second.
    fn play(pace: &mut SamplePace, from_s: u32, seconds: u32, accesses_per_s: u64) -> Vec<u64> {
        let mut all = pace.counted;
        let second = |s| {
            let before = all;
            for poll in 1..=100 {
                all += accesses_per_s / pace.accesses / 100;
                if let Some(wanted) = pace.count((s * 1000 + poll * 10) * MS, all) {
                    pace.set(wanted);
                }
            }
            all - before
        };
        (from_s..from_s + seconds).map(second).collect()
    }

    #[test]
    fn samples_a_second_stay_below_their_bound_whatever_runs() {
        for (cpus, load) in
            [(1, 1_000_000), (2, 20_000_000), (64, 300_000_000), (512, 9_000_000_000)]
        {
            let mut pace = SamplePace::new(cpus, 20_000_000, 400, u64::MAX);
            let by_second = play(&mut pace, 0, 20, load);
            assert!(by_second.iter().all(|&n| n <= MOST_PER_S), "{cpus} {load}: {by_second:?}");
            // Enough to be of use come in the end, unless the least number of accesses has so few.
            let enough = (MOST_PER_S / 4).min(load / pace.least) * 9 / 10;
            assert!(by_second[19] >= enough, "{cpus} {load}: {by_second:?}");
        }
    }

    #[test]
    fn a_load_that_begins_after_a_pause_is_noticed_at_once() {
        let mut pace = SamplePace::new(64, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 20, 0);
        assert_eq!(pace.accesses, pace.least, "nothing runs");
        let by_second = play(&mut pace, 20, 3, 64 * 20_000_000);
        // A hundred times the bound, for the time in which they are counted.
        assert!(by_second[0] < 8 * MOST_PER_S, "{by_second:?}");
        assert!(by_second[1..].iter().all(|&n| n <= MOST_PER_S), "{by_second:?}");
    }

    #[test]
    fn a_steady_load_keeps_its_number() {
        let mut pace = SamplePace::new(8, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 10, 80_000_000);
        let accesses = pace.accesses;
        for second in 10..20 {
            // It rises and falls by a half.
            play(&mut pace, second, 1, if second % 2 == 0 { 120_000_000 } else { 60_000_000 });
            assert_eq!(pace.accesses, accesses, "second {second}");
        }
    }

    /// As Intel's do, where samples need no interrupt each.
    #[test]
    fn samples_that_are_handed_over_a_thousand_at_a_time_keep_their_number() {
        let mut pace = SamplePace::new(1, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 10, 4_000_000);
        let accesses = pace.accesses;
        let (mut all, mut waiting) = (pace.counted, 0);
        for tick in 0..1000u32 {
            waiting += 4_000_000 / accesses / 100;
            if waiting >= 900 {
                all += std::mem::take(&mut waiting);
            }
            let wanted = pace.count(10 * MS * (1001 + tick), all);
            assert_eq!(wanted, None, "after {tick} ticks");
        }
    }

    #[test]
    fn a_processor_is_never_asked_for_more_than_it_can_count() {
        let mut pace = SamplePace::new(1, 20_000_000, 400, 4096);
        play(&mut pace, 0, 2, u64::MAX / 1000);
        assert_eq!(pace.accesses, 4096);
    }
}
