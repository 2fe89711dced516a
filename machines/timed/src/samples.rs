//! Samples of memory accesses, as a processor's PEBS or IBS and Linux's perf event on it would give
//! them: one in so many accesses of programs that miss the last level, as records of a ring.
//!
//! A machine knows addresses and no processes, so samples have the process that Linux writes for
//! one that has ended. Samples are lost as with a real ring: those that find it full are lost, and
//! counted in a record before the next sample. Throttling is as in Linux: at most so many samples
//! are taken between two ticks. Both can be configured, the same in every run.

use serde::{Deserialize, Serialize};
use terrace_core::sample_picker::SamplePicker;
use terrace_recordings::perf_record::{
    DataSource, MemoryLevel, MemorySample, put_lost, put_sample, put_throttle,
};

use crate::config::{TierRange, TimedError};
use crate::machine::observed::ObservationPlan;

/// Most bytes of records that were not yet taken: a ring of 32 pages.
pub const RING_BYTES: usize = 128 << 10;
/// Linux counts samples between two of its ticks: 250 a second, as Debian's kernel has it.
const TICKS_PER_S: u64 = 250;
/// Linux's `perf_event_max_sample_rate`.
const MOST_PER_S: u64 = 100_000;

/// Parameters of sampling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplePlan {
    /// Accesses for each sample.
    pub accesses_per_sample: u32,
    /// Whether stores count as well as loads.
    pub stores: bool,
    /// Samples a second at most, 0: 100,000; more throttle the event.
    pub most_per_s: u64,
    /// One sample in so many is lost intentionally; 0: none.
    pub lose_one_in: u32,
    /// Seed of random numbers.
    pub seed: u64,
    /// The guest's own addresses of the tiers' memory.
    pub physical: Vec<TierRange>,
    /// Samples before the clock begins, too, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_clock: Option<ObservationPlan>,
}

impl Default for SamplePlan {
    fn default() -> Self {
        SamplePlan {
            accesses_per_sample: 1000,
            stores: false,
            most_per_s: 0,
            lose_one_in: 0,
            seed: 1,
            physical: Vec::new(),
            before_clock: None,
        }
    }
}

impl SamplePlan {
    /// Samples a second at most.
    pub(crate) fn most(&self) -> u64 {
        if self.most_per_s == 0 { MOST_PER_S } else { self.most_per_s }
    }

    /// Reports an impossible plan.
    pub fn check(&self) -> Result<(), TimedError> {
        if self.accesses_per_sample == 0 {
            return Err(TimedError(
                "one sample in 0 accesses; expected 1 or more, or no samples".to_owned(),
            ));
        }
        if !(0..=MOST_PER_S).contains(&self.most_per_s) {
            return Err(TimedError(format!(
                "up to {} samples a second; expected at most {MOST_PER_S}",
                self.most_per_s
            )));
        }
        self.before_clock.map_or(Ok(()), |plan| plan.check())
    }
}

/// An access that missed the last level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Miss {
    pub time_ns: u64,
    /// Address of the instruction; 0 if unknown.
    pub instruction: u64,
    pub address: u64,
    /// The tier and the place in its memory.
    pub place: (usize, u64),
    pub store: bool,
    pub weight_cycles: u64,
}

/// The samples of a machine.
#[derive(Debug, Clone)]
pub struct Sampling {
    plan: SamplePlan,
    picker: SamplePicker,
    loser: SamplePicker,
    ring: Vec<u8>,
    /// Whether there are records since the ring was last read.
    fresh: bool,
    lost: u64,
    tick: u64,
    taken_in_tick: u64,
    throttled: bool,
    /// Of the accesses that a window's stand for, what is left over, in parts of the window.
    rest: u64,
}

impl Sampling {
    /// Samples by this plan.
    pub fn new(plan: SamplePlan) -> Self {
        Sampling {
            picker: SamplePicker::new(plan.accesses_per_sample, plan.seed),
            loser: SamplePicker::new(plan.lose_one_in, plan.seed.wrapping_add(1)),
            plan,
            ring: Vec::new(),
            fresh: false,
            lost: 0,
            tick: 0,
            taken_in_tick: 0,
            throttled: false,
            rest: 0,
        }
    }

    /// One in so many accesses from now on; 0 changes nothing.
    pub fn set_accesses_per_sample(&mut self, accesses: u32) {
        if accesses > 0 {
            self.plan.accesses_per_sample = accesses;
            self.picker.set_period(accesses);
        }
    }

    /// Whether this access is a sample. Called for each miss of a program, once.
    #[inline]
    pub(crate) fn picks(&mut self, store: bool) -> bool {
        (!store || self.plan.stores) && self.picker.pick(1) > 0
    }

    /// The same where only a window of each interval is observed: how many samples there are among the
    /// accesses that this one stands for.
    #[inline]
    pub(crate) fn picks_of_interval(&mut self, store: bool, interval: u64, window: u64) -> u64 {
        if store && !self.plan.stores {
            return 0;
        }
        let parts = self.rest.saturating_add(interval);
        self.rest = parts % window;
        self.picker.pick(parts / window)
    }

    /// Writes a sample's record, or counts it as lost; not where the event is throttled. Whether the
    /// processor has taken one.
    #[cold]
    pub(crate) fn take(&mut self, miss: Miss) -> bool {
        let most = self.plan.most();
        let tick = miss.time_ns / (1_000_000_000 / TICKS_PER_S);
        if tick > self.tick {
            (self.tick, self.taken_in_tick) = (tick, 0);
            if std::mem::take(&mut self.throttled) {
                let tick_ns = tick * (1_000_000_000 / TICKS_PER_S);
                put_throttle(&mut self.ring, tick_ns, false);
            }
        }
        if self.throttled {
            return false;
        }
        self.taken_in_tick += 1;
        self.fresh = true;
        if self.ring.len() > RING_BYTES || self.loser.pick(1) > 0 {
            self.lost += 1;
        } else {
            if self.lost > 0 {
                put_lost(&mut self.ring, std::mem::take(&mut self.lost));
            }
            let level = if miss.place.0 == 0 { MemoryLevel::Local } else { MemoryLevel::Remote };
            let sample = MemorySample {
                pid: None,
                instruction: (miss.instruction != 0).then_some(miss.instruction),
                time_ns: miss.time_ns,
                address: Some(miss.address),
                physical: self.physical(miss.place),
                accesses: self.plan.accesses_per_sample.into(),
                weight_cycles: miss.weight_cycles,
                source: DataSource::of_memory(level, miss.store),
                kernel: false,
            };
            put_sample(&mut self.ring, &sample);
        }
        if self.taken_in_tick > (most / TICKS_PER_S).max(1) {
            self.throttled = true;
            put_throttle(&mut self.ring, miss.time_ns, true);
        }
        true
    }

    fn physical(&self, (tier, at): (usize, u64)) -> Option<u64> {
        self.plan.physical.iter().find_map(|range| range.address((tier, at)))
    }

    /// The pending records, new ones or not.
    pub fn waiting(&mut self) -> &mut Vec<u8> {
        &mut self.ring
    }

    /// The pending records, if there are new ones. The reader removes what it takes from the front.
    #[inline]
    pub fn ring(&mut self) -> Option<&mut Vec<u8>> {
        std::mem::take(&mut self.fresh).then_some(&mut self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_recordings::perf_record::{Record, RecordCounts, RecordReader, SampleFormat};

    fn plan() -> SamplePlan {
        let of = |tier, start, bytes, offset| TierRange { tier, start, bytes, offset };
        SamplePlan {
            accesses_per_sample: 100,
            physical: vec![of(0, 0, 4096, 0), of(1, 1 << 32, 4096, 0), of(1, 1 << 33, 4096, 4096)],
            ..SamplePlan::default()
        }
    }

    /// So many misses, one a microsecond; the reader takes all at the end.
    fn run(plan: SamplePlan, misses: u64) -> (Vec<Record>, RecordCounts) {
        let mut sampling = Sampling::new(plan);
        for at in 0..misses {
            if sampling.picks(false) {
                sampling.take(Miss {
                    time_ns: at * 1000,
                    instruction: 0x40_0000 + at,
                    address: 0x7000 + at,
                    place: (1, at % 8192),
                    store: false,
                    weight_cycles: 900,
                });
            }
        }
        let mut reader = RecordReader::new(SampleFormat::of_memory());
        let mut records = Vec::new();
        reader.push(sampling.ring().expect("records"), |record| records.push(record));
        assert_eq!(sampling.ring(), None, "nothing since");
        (records, reader.counts())
    }

    #[test]
    fn one_miss_in_so_many_is_a_record_with_the_guests_own_address() {
        let (records, counts) = run(plan(), 100_000);
        assert!((950..1050).contains(&counts.samples), "{counts:?}");
        assert_eq!((counts.lost, counts.throttled, counts.malformed), (0, 0, 0));
        for record in records {
            let Record::Sample(sample) = record else { panic!("{record:?}") };
            let at = sample.time_ns / 1000;
            assert_eq!(sample.address, Some(0x7000 + at));
            assert_eq!(sample.instruction, Some(0x40_0000 + at));
            let place = at % 8192;
            let base = if place < 4096 { (1 << 32) + place } else { (1 << 33) + place - 4096 };
            assert_eq!(sample.physical, Some(base), "at {place}");
            assert_eq!(sample.source.memory(), Some(MemoryLevel::Remote));
            assert_eq!((sample.pid, sample.weight_cycles, sample.kernel), (None, 900, false));
        }
    }

    #[test]
    fn stores_count_where_they_are_asked_for() {
        for stores in [false, true] {
            let mut sampling = Sampling::new(SamplePlan { stores, ..plan() });
            let picked = (0..10_000).filter(|_| sampling.picks(true)).count();
            assert_eq!(picked > 0, stores);
        }
    }

    #[test]
    fn what_is_lost_on_purpose_is_counted_and_the_same_again() {
        let lossy = SamplePlan { lose_one_in: 4, ..plan() };
        let (records, counts) = run(lossy.clone(), 100_000);
        let all = counts.samples + counts.lost;
        assert!((950..1050).contains(&all), "{counts:?}");
        assert!((230..330).contains(&counts.lost), "{counts:?}");
        assert_eq!(run(lossy, 100_000).0, records);
    }

    #[test]
    fn a_full_ring_loses_samples_and_says_how_many() {
        let mut sampling = Sampling::new(SamplePlan { accesses_per_sample: 1, ..plan() });
        let miss = |at| Miss {
            time_ns: at * 20_000,
            instruction: 0,
            address: at,
            place: (0, 0),
            store: false,
            weight_cycles: 0,
        };
        let mut given = 0;
        for at in 0..5000 {
            if sampling.picks(false) {
                given += 1;
                sampling.take(miss(at));
            }
        }
        let mut reader = RecordReader::new(SampleFormat::of_memory());
        let ring = sampling.ring().expect("records");
        assert!(ring.len() < RING_BYTES + 200);
        reader.push(&std::mem::take(ring), |_| {});
        let before = reader.counts();
        assert!(before.samples > 1000 && before.lost == 0, "{before:?}");
        sampling.take(miss(6000));
        reader.push(sampling.ring().expect("records"), |_| {});
        let after = reader.counts();
        assert_eq!(after.samples + after.lost, given + 1);
        assert!(after.lost > 3000, "{after:?}");
    }

    #[test]
    fn too_many_samples_throttle_until_the_next_tick() {
        let (records, counts) = run(SamplePlan { most_per_s: 2500, ..plan() }, 200_000);
        // 200 ms are 50 ticks, of 11 samples each until it is throttled, where 40 would come.
        assert_eq!(counts.throttled, 50);
        assert_eq!(counts.samples, 550);
        let throttled = |r: &&Record| **r == Record::Unthrottle;
        assert_eq!(records.iter().filter(throttled).count(), 49);
    }

    #[test]
    fn plans_that_cannot_be_are_refused_in_one_line() {
        let none = SamplePlan { accesses_per_sample: 0, ..plan() };
        let many = SamplePlan { most_per_s: 1_000_000, ..plan() };
        for (plan, named) in [(none, "in 0"), (many, "1000000")] {
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(named) && error.lines().count() == 1, "{error}");
        }
        plan().check().unwrap();
    }
}
