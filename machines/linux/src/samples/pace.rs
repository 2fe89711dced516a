//! The bound on samples a second: how many are used, and how many a processor is asked for.
//!
//! Where the source is the processor, the accesses that it counts for each sample follow what runs.
//! Each sample costs the processor that takes it about a microsecond, needed or not, so it is not enough
//! to read no more of them. They are bounded for all processors together and for the busiest one, which
//! may be all that a program has. The number of accesses is doubled, as often as needed, where more come
//! in a second, and where four times as many come in a moment. It is halved where for a second fewer than
//! a quarter came: a processor may hand over samples a thousand at a time. It never falls below a least number, with which the busiest processors of a host give a
//! hundred times the bound, until that is noticed.

use std::time::Duration;

/// Most samples used per second, of all groups together: MEMTIS's maximum.
pub const MOST_PER_S: u64 = 20_000;
/// Most samples that are asked of one processor a second: half a percent of its time.
pub const MOST_OF_CPU_PER_S: u64 = 5_000;
/// Samples are counted for so long before the number is changed.
const COUNTED_FOR: Duration = Duration::from_secs(1);
/// Where so many times the bound come, for this long.
const FAR_OVER: f64 = 4.0;
const MOMENT: Duration = Duration::from_millis(50);
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

/// From this time on, by the caller's clock, samples are counted; by processor there were so many then.
#[derive(Debug, Default)]
struct Counted {
    since: Duration,
    before: Vec<u64>,
}

impl Counted {
    /// What came since, over what may come, once that is so long ago; it is counted anew then.
    fn share_after(&mut self, length: Duration, now: Duration, by_cpu: &[u64]) -> Option<f64> {
        let counted_for = now.saturating_sub(self.since);
        if counted_for < length {
            return None;
        }
        let before = self.before.iter().chain(std::iter::repeat(&0));
        let came = by_cpu.iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
        let (all, busiest) = came.fold((0, 0), |(all, most), n: u64| (all + n, most.max(n)));
        *self = Counted { since: now, before: by_cpu.to_vec() };
        let over = |came: u64, per_s: u64| came as f64 / counted_for.as_secs_f64() / per_s as f64;
        Some(over(all, MOST_PER_S).max(over(busiest, MOST_OF_CPU_PER_S)))
    }
}

/// The number of accesses for each sample, changed by how many samples come.
#[derive(Debug)]
pub(super) struct SamplePace {
    least: u64,
    most: u64,
    accesses: u64,
    /// Samples are counted for a second and for a moment.
    second: Counted,
    moment: Counted,
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
        SamplePace { accesses, ..SamplePace::at(least, most) }
    }

    /// Of a source that begins with the least number: it has a bound of its own until it is slowed down.
    pub(super) fn at(least: u64, most: u64) -> Self {
        let (second, moment) = (Counted::default(), Counted::default());
        SamplePace { least, most, accesses: least, second, moment, enough: Duration::ZERO }
    }

    /// Accesses for each sample.
    pub(super) fn accesses(&self) -> u64 {
        self.accesses
    }

    /// So many samples of each processor have come until now. Returns another number of accesses, if
    /// there is to be one: it counts once it is [`SamplePace::set`].
    pub(super) fn count(&mut self, now: Duration, by_cpu: &[u64]) -> Option<u64> {
        let of_moment = self.moment.share_after(MOMENT, now, by_cpu)?;
        let of_second = self.second.share_after(COUNTED_FOR, now, by_cpu);
        if of_moment >= 0.25 {
            self.enough = now;
        }
        let too_many = of_second.filter(|share| *share > 1.0);
        let wanted = if let Some(share) = too_many.or(Some(of_moment).filter(|s| *s > FAR_OVER)) {
            // What came before is not of the new number.
            self.second = Counted { since: now, before: by_cpu.to_vec() };
            self.accesses.saturating_mul((share.ceil() as u64).next_power_of_two())
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

    /// Samples a second in each of so many seconds, of processors that make so many accesses a second
    /// each: of all, and of the busiest.
    fn play(pace: &mut SamplePace, from_s: u32, seconds: u32, loads: &[u64]) -> Vec<[u64; 2]> {
        let mut all = pace.moment.before.clone();
        all.resize(loads.len(), 0);
        let mut accesses = vec![0; loads.len()];
        let second = |s| {
            let before = all.clone();
            for poll in 1..=100 {
                for ((all, accesses), load) in all.iter_mut().zip(&mut accesses).zip(loads) {
                    *accesses += load / 100;
                    *all += *accesses / pace.accesses;
                    *accesses %= pace.accesses;
                }
                if let Some(wanted) = pace.count((s * 1000 + poll * 10) * MS, &all) {
                    pace.set(wanted);
                }
            }
            let came = all.iter().zip(&before).map(|(all, before)| all - before);
            came.fold([0, 0], |[all, busiest], n| [all + n, busiest.max(n)])
        };
        (from_s..from_s + seconds).map(second).collect()
    }

    fn is_below([all, busiest]: &[u64; 2]) -> bool {
        *all <= MOST_PER_S && *busiest <= MOST_OF_CPU_PER_S
    }

    #[test]
    fn samples_a_second_stay_below_their_bounds_whatever_runs() {
        for (cpus, load) in
            [(1, 1_000_000), (2, 20_000_000), (64, 300_000_000), (512, 9_000_000_000)]
        {
            let mut pace = SamplePace::new(cpus, 20_000_000, 400, u64::MAX);
            let by_second = play(&mut pace, 0, 20, &vec![load / cpus as u64; cpus]);
            assert!(by_second.iter().all(is_below), "{cpus} {load}: {by_second:?}");
            // Enough to be of use come in the end, unless the least number of accesses has so few.
            let enough = (MOST_PER_S / 4).min(MOST_OF_CPU_PER_S * cpus as u64 / 4);
            let enough = enough.min(load / pace.least) * 9 / 10;
            assert!(by_second[19][0] >= enough, "{cpus} {load}: {by_second:?}");
        }
    }

    #[test]
    fn a_processor_that_is_busy_alone_takes_no_more_of_them() {
        let mut loads = vec![0; 64];
        loads[5] = 20_000_000;
        let mut pace = SamplePace::new(64, 20_000_000, 400, u64::MAX);
        let by_second = play(&mut pace, 0, 40, &loads);
        assert!(by_second[2..].iter().all(is_below), "{by_second:?}");
        assert!(by_second[39][1] >= MOST_OF_CPU_PER_S / 4, "{by_second:?}");
    }

    #[test]
    fn a_load_that_begins_after_a_pause_is_noticed_at_once() {
        let mut pace = SamplePace::new(64, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 20, &[0; 64]);
        assert_eq!(pace.accesses, pace.least, "nothing runs");
        let by_second = play(&mut pace, 20, 3, &[20_000_000; 64]);
        // A hundred times the bound, for the time in which they are counted.
        assert!(by_second[0][0] < 8 * MOST_PER_S, "{by_second:?}");
        assert!(by_second[1..].iter().all(is_below), "{by_second:?}");
    }

    #[test]
    fn a_steady_load_keeps_its_number() {
        let mut pace = SamplePace::new(8, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 10, &[10_000_000; 8]);
        let accesses = pace.accesses;
        for second in 10..20 {
            // It rises and falls by a half.
            let load = if second % 2 == 0 { 15_000_000 } else { 7_500_000 };
            play(&mut pace, second, 1, &[load; 8]);
            assert_eq!(pace.accesses, accesses, "second {second}");
        }
    }

    #[test]
    fn a_source_that_begins_with_the_least_number_is_slowed_down_at_once() {
        let mut pace = SamplePace::at(400, u64::from(u32::MAX));
        let by_second = play(&mut pace, 0, 3, &[60_000_000]);
        assert!(by_second[1..].iter().all(is_below), "{by_second:?}");
        assert!(by_second[2][0] > MOST_OF_CPU_PER_S / 4, "{by_second:?}");
    }

    /// As Intel's do, where samples need no interrupt each.
    #[test]
    fn samples_that_are_handed_over_a_thousand_at_a_time_keep_their_number() {
        let mut pace = SamplePace::new(1, 20_000_000, 400, u64::MAX);
        play(&mut pace, 0, 10, &[4_000_000]);
        let accesses = pace.accesses;
        let (mut all, mut waiting) = (pace.moment.before[0], 0);
        for tick in 0..1000u32 {
            waiting += 4_000_000 / accesses / 100;
            if waiting >= 900 {
                all += std::mem::take(&mut waiting);
            }
            let wanted = pace.count(10 * MS * (1001 + tick), &[all]);
            assert_eq!(wanted, None, "after {tick} ticks");
        }
    }

    #[test]
    fn a_processor_is_never_asked_for_more_than_it_can_count() {
        let mut pace = SamplePace::new(1, 20_000_000, 400, 4096);
        play(&mut pace, 0, 2, &[u64::MAX / 1000]);
        assert_eq!(pace.accesses, 4096);
    }
}
