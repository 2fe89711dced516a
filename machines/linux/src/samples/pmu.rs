//! Samples from the processor itself: Intel's PEBS by the event `mem-loads`, AMD's IBS by the unit
//! `ibs_op`, each through the ring of a perf event a processor.
//!
//! Which of them a processor has is read from `/sys/bus/event_source`, never assumed from its name.
//! Intel's event counts loads that take longer than [`LONG_CYCLES`]; AMD's unit counts operations
//! and, where it can (`l3missonly`, since Zen 4), keeps those that miss the last level. So one
//! sample in so many means another kind of event on each, and samples served by a cache are left
//! out by their data source. Where no number is asked for, it follows what runs ([`super::pace`]).

use std::path::Path;
use std::time::Instant;

use terrace_recordings::perf_record::{
    MemorySample, Record, RecordCounts, RecordReader, SAMPLE_TYPE, SampleFormat,
};

use super::pace::SamplePace;
use super::pmu_raw::{self, Attributes, EXCLUDE_HYPERVISOR, EXCLUDE_KERNEL, PRECISE, Ring};
use super::{SampleError, SampleReads, SampleSource, SourceKind};
use crate::files;
use crate::numa;
use crate::roots::Roots;

/// Loads that take longer are hardly served by a cache.
const LONG_CYCLES: u64 = 128;
/// Pages of each processor's ring: 3,600 samples.
const RING_PAGES: usize = 64;
/// IBS accepts multiples of 16, from this value on.
const LEAST_OPERATIONS: u64 = 0x90;
/// It counts so many at most: 27 bits, the last four of which are zero.
const MOST_OPERATIONS: u64 = 0x7ff_fff0;
/// A processor makes at most so many of them a second.
const OPERATIONS_PER_S: u64 = 16_000_000_000;
/// Where only misses of the last level end in a sample, one in so many operations is one at most.
const OPERATIONS_PER_MISS: u64 = 40;
/// A processor makes at most so many loads longer than [`LONG_CYCLES`] a second.
const LONG_LOADS_PER_S: u64 = 40_000_000;
/// Fewest of them for each sample: with fewer a single program would have more than the bound.
const LEAST_LONG_LOADS: u64 = 400;

pub(super) const KIND: SourceKind = SourceKind {
    name: "pmu",
    summary: "the processor's own sampling: Intel mem-loads (PEBS), AMD ibs_op",
    open: |roots, reads| Pmu::open(roots, reads).map(|pmu| Box::new(pmu) as Box<dyn SampleSource>),
};

/// Attributes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    name: &'static str,
    kind: u32,
    config: u64,
    config1: u64,
    flags: u64,
    /// Events for each sample; at least and at most, where it follows what runs.
    period: u64,
    between: [u64; 2],
    /// A processor has at most so many of them a second that end in a sample.
    busiest_per_s: u64,
    /// An event that must lead its group, on processors from Sapphire Rapids on.
    leader: Option<u64>,
}

impl Event {
    /// The event of this host's processor.
    fn find(roots: &Roots, reads: SampleReads) -> Option<Event> {
        Self::ibs(roots, reads).or_else(|| Self::pebs(roots, reads))
    }

    fn ibs(roots: &Roots, reads: SampleReads) -> Option<Event> {
        let unit = roots.event_source("ibs_op");
        let mut config = [0; 2];
        // Operations are counted, not cycles.
        term(&unit, "cnt_ctl", 1, &mut config)?;
        let misses_only = term(&unit, "l3missonly", 1, &mut config).is_some();
        let period = u64::from(reads.or(0)).next_multiple_of(16).max(LEAST_OPERATIONS);
        let busiest_per_s = OPERATIONS_PER_S / if misses_only { OPERATIONS_PER_MISS } else { 1 };
        // IBS cannot exclude the kernel: its samples are dropped when they are read.
        let [config, config1] = config;
        let kind = number(&unit.join("type"))? as u32;
        Some(Event {
            name: "ibs_op",
            kind,
            config,
            config1,
            flags: 0,
            period: period.min(MOST_OPERATIONS),
            between: [LEAST_OPERATIONS, MOST_OPERATIONS],
            busiest_per_s,
            leader: None,
        })
    }

    fn pebs(roots: &Roots, reads: SampleReads) -> Option<Event> {
        ["cpu", "cpu_core"].into_iter().find_map(|name| {
            let unit = roots.event_source(name);
            let [config, config1] = named(&unit, "mem-loads")?;
            let mut config = [config, config1];
            term(&unit, "ldlat", LONG_CYCLES, &mut config)?;
            Some(Event {
                name: "mem-loads",
                kind: number(&unit.join("type"))? as u32,
                config: config[0],
                config1: config[1],
                flags: PRECISE | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
                period: reads.or(0).max(1).into(),
                between: [LEAST_LONG_LOADS, u32::MAX.into()],
                busiest_per_s: LONG_LOADS_PER_S,
                leader: named(&unit, "mem-loads-aux").map(|[config, _]| config),
            })
        })
    }
}

impl Event {
    /// How many of it for each sample, by what runs on so many processors.
    fn pace(&self, cpus: usize) -> SamplePace {
        let [least, most] = self.between;
        SamplePace::new(cpus, self.busiest_per_s, least, most)
    }
}

fn number(path: &Path) -> Option<u64> {
    files::read(path).ok()??.trim().parse().ok()
}

/// `config` and `config1` of an event that a unit has by name, as `event=0xcd,umask=0x1,ldlat=3`.
fn named(unit: &Path, event: &str) -> Option<[u64; 2]> {
    let text = files::read(&unit.join("events").join(event)).ok()??;
    let mut config = [0; 2];
    for word in text.trim().split(',') {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?,
            None => value.parse().ok()?,
        };
        term(unit, name, value, &mut config)?;
    }
    Some(config)
}

/// Sets a term of a unit: its file has the word and bits, as `config1:0-15`.
fn term(unit: &Path, name: &str, value: u64, config: &mut [u64; 2]) -> Option<()> {
    let text = files::read(&unit.join("format").join(name)).ok()??;
    let (word, bits) = text.trim().split_once(':')?;
    let word = match word {
        "config" => &mut config[0],
        "config1" => &mut config[1],
        _ => return None,
    };
    let mut left = value;
    for range in bits.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        if low > high || high > 63 {
            return None;
        }
        let mask = u64::MAX >> (63 - (high - low));
        *word = *word & !(mask << low) | (left & mask) << low;
        left = left.checked_shr(high - low + 1).unwrap_or(0);
    }
    Some(())
}

/// The processor's samples of all processes.
pub struct Pmu {
    name: &'static str,
    /// Events for each sample; of those that follow what runs, the first number.
    period: u64,
    pace: Option<SamplePace>,
    /// The clock of the pace.
    since: Instant,
    rings: Vec<(Ring, RecordReader)>,
    /// Leaders of groups, which count and do not sample.
    _leaders: Vec<std::os::fd::OwnedFd>,
}

impl Pmu {
    /// Opens the event of this host's processor, on each of its processors.
    pub fn open(roots: &Roots, reads: SampleReads) -> Result<Self, SampleError> {
        let Some(mut event) = Event::find(roots, reads) else {
            return Err(SampleError::Absent(
                "no mem-loads and no ibs_op in /sys/bus/event_source/devices, as in most virtual \
                 machines"
                    .to_owned(),
            ));
        };
        let unusable = |source| SampleError::Unusable {
            name: event.name.to_owned(),
            source,
            remedy: "run as root or with CAP_PERFMON, under systemd with SystemCallFilter=perf_event_open",
        };
        let cpus = numa::online_cpus(roots).map_err(|e| SampleError::Absent(e.to_string()))?;
        let pace = reads.is_auto().then(|| event.pace(cpus.len()));
        event.period = pace.as_ref().map_or(event.period, SamplePace::accesses);
        let mut pmu = Pmu { pace, ..Pmu::of(&event) };
        for cpu in cpus {
            pmu.add(&event, None, Some(cpu)).map_err(unusable)?;
        }
        Ok(pmu)
    }

    fn of(event: &Event) -> Self {
        Pmu {
            name: event.name,
            period: event.period,
            pace: None,
            since: Instant::now(),
            rings: Vec::new(),
            _leaders: Vec::new(),
        }
    }

    fn add(&mut self, event: &Event, pid: Option<u32>, cpu: Option<u32>) -> std::io::Result<()> {
        let attributes = Attributes {
            kind: event.kind,
            config: event.config,
            config1: event.config1,
            sample_period: event.period,
            sample_type: SAMPLE_TYPE,
            flags: event.flags,
            ..Attributes::default()
        };
        let leader = event.leader.map(|config| {
            let counts = Attributes { kind: event.kind, config, ..Attributes::default() };
            pmu_raw::open(&counts, pid, cpu, None)
        });
        let leader = leader.transpose()?;
        let sampling = pmu_raw::open(&attributes, pid, cpu, leader.as_ref())?;
        let reader = RecordReader::new(SampleFormat::of_memory());
        self.rings.push((Ring::map(sampling, RING_PAGES)?, reader));
        self._leaders.extend(leader);
        Ok(())
    }
}

impl Pmu {
    /// Another number of events for each sample, where too many samples come or few.
    fn keep_pace(&mut self) -> std::io::Result<()> {
        let samples = self.counts().samples;
        let wanted = self.pace.as_mut().and_then(|p| p.count(self.since.elapsed(), samples));
        let Some(wanted) = wanted else { return Ok(()) };
        for (ring, _) in &self.rings {
            ring.set_period(wanted)?;
        }
        tracing::debug!(events = wanted, "for each sample of reads");
        self.period = wanted;
        Ok(())
    }
}

impl SampleSource for Pmu {
    fn name(&self) -> &str {
        self.name
    }

    fn accesses_per_sample(&self) -> Option<u32> {
        u32::try_from(self.period).ok()
    }

    fn knows_processes(&self) -> bool {
        true
    }

    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
        for (ring, reader) in &mut self.rings {
            ring.take(|bytes| {
                reader.push(bytes, |record| {
                    if let Record::Sample(sample) = &record {
                        take(sample);
                    }
                });
            });
        }
        self.keep_pace()
    }

    fn counts(&self) -> RecordCounts {
        let mut sum = RecordCounts::default();
        for (_, reader) in &self.rings {
            sum.add(&reader.counts());
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::hub::SampleHub;
    use crate::samples::pace::MOST_PER_S;
    use crate::testing::folder;
    use terrace_recordings::perf_record::IP;

    const UNITS: &str = "sys/bus/event_source/devices";

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let files: Vec<_> = files.iter().map(|(p, t)| (format!("{UNITS}/{p}"), *t)).collect();
        let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
        folder(&files)
    }

    #[test]
    fn intels_event_is_the_one_that_the_kernel_names() {
        // Files of a Sapphire Rapids.
        let (_keep, roots) = host(&[
            ("cpu/type", "4\n"),
            ("cpu/format/event", "config:0-7\n"),
            ("cpu/format/umask", "config:8-15\n"),
            ("cpu/format/ldlat", "config1:0-15\n"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("cpu/events/mem-loads-aux", "event=0x03,umask=0x82\n"),
        ]);
        let event = Event::find(&roots, SampleReads::OneIn(1000)).unwrap();
        assert_eq!((event.name, event.kind, event.period), ("mem-loads", 4, 1000));
        assert_eq!((event.config, event.config1), (0x1cd, LONG_CYCLES));
        assert_eq!(event.leader, Some(0x8203));
        assert_ne!(event.flags & PRECISE, 0);
    }

    #[test]
    fn amds_unit_keeps_misses_where_it_can() {
        let zen3 = [("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")];
        let zen4 = [zen3[0], zen3[1], ("ibs_op/format/l3missonly", "config:16\n")];
        for (files, config) in [(&zen3[..], 1 << 19), (&zen4[..], 1 << 19 | 1 << 16)] {
            let (_keep, roots) = host(files);
            let event = Event::find(&roots, SampleReads::OneIn(1001)).unwrap();
            assert_eq!((event.name, event.kind, event.config), ("ibs_op", 11, config));
            assert_eq!(event.period, 1008, "a multiple of 16");
        }
    }

    /// Without a number asked for: so few at the beginning that nothing exceeds the bound.
    #[test]
    fn what_follows_the_load_begins_below_the_bound_on_every_processor() {
        let zen3 = [("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")];
        let zen4 = [zen3[0], zen3[1], ("ibs_op/format/l3missonly", "config:16\n")];
        for files in [&zen3[..], &zen4[..]] {
            let (_keep, roots) = host(files);
            let event = Event::find(&roots, SampleReads::Auto).unwrap();
            for cpus in [1, 2, 64] {
                let accesses = event.pace(cpus).accesses();
                assert_eq!(accesses % 16, 0);
                assert!(event.busiest_per_s * cpus as u64 / accesses <= MOST_PER_S, "{cpus}");
            }
        }
    }

    #[test]
    fn a_host_whose_processor_does_not_sample_says_so_in_a_line() {
        let (_keep, roots) = host(&[("cpu/type", "4\n")]);
        let error = Pmu::open(&roots, SampleReads::Auto).err().expect("none").to_string();
        assert!(error.contains("ibs_op") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn terms_may_be_in_pieces() {
        let (keep, _roots) = host(&[("cpu/format/event", "config:0-7,32-35\n")]);
        let unit = keep.path().join(UNITS).join("cpu");
        let mut config = [u64::MAX, 0];
        term(&unit, "event", 0x5ab, &mut config).unwrap();
        assert_eq!(config[0], !(0xff | 0xf << 32) | 0xab | 0x5 << 32);
        assert_eq!(term(&unit, "umask", 1, &mut config), None);
    }

    #[test]
    fn reads_are_counted_by_the_number_that_amds_unit_takes() {
        let (_keep, roots) =
            host(&[("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")]);
        for (asked, taken) in [(100, 144), (1000, 1008), (1600, 1600)] {
            let pmu = Pmu::of(&Event::find(&roots, SampleReads::OneIn(asked)).unwrap());
            assert_eq!(SampleHub::of(&roots, Box::new(pmu), asked).accesses_per_sample(), taken);
        }
    }

    /// The kernel's own records, of an event that every kernel has: page faults of this process.
    #[test]
    fn the_rings_records_are_the_kernels() {
        const SOFTWARE: u32 = 1;
        const PAGE_FAULTS: u64 = 2;
        let event = Event {
            name: "page-faults",
            kind: SOFTWARE,
            config: PAGE_FAULTS,
            config1: 0,
            flags: EXCLUDE_KERNEL,
            period: 1,
            between: [1, 64],
            busiest_per_s: 1,
            leader: None,
        };
        let mut pmu = Pmu::of(&event);
        match pmu.add(&event, Some(0), None) {
            Ok(()) => {}
            // Fails where a container forbids it; the test in the guest covers it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => return,
            Err(e) => panic!("{e}"),
        }
        // So large that it is certainly new memory; a page of each 2 MB, because huge pages take
        // one fault.
        let (step, touched) = (2usize << 20, 36usize);
        let mut memory = vec![0u8; (touched + 1) * step];
        let first = (memory.as_ptr() as u64).next_multiple_of(step as u64);
        let offset = (first - memory.as_ptr() as u64) as usize;
        (0..touched).for_each(|nth| std::hint::black_box(&mut memory)[offset + nth * step] = 1);
        let mut faulted = std::collections::BTreeSet::new();
        let pid = std::process::id();
        pmu.read(&mut |sample| {
            assert_eq!(sample.pid, Some(pid));
            assert!(!sample.kernel && sample.time_ns > 0);
            faulted.extend(sample.address.map(|address| address / 4096 * 4096));
        })
        .unwrap();
        for nth in 0..touched {
            let address = first + (nth * step) as u64;
            assert!(faulted.contains(&address), "{address:#x} of {faulted:x?}");
        }
        assert_eq!(pmu.counts().malformed, 0);
        assert!(pmu.counts().samples >= faulted.len() as u64);
    }

    #[test]
    fn the_number_of_events_for_each_sample_can_be_changed() {
        // Software events that have the period among their fields ignore it, so these have not.
        let attributes = Attributes {
            kind: 1,
            config: 2,
            sample_period: 1,
            sample_type: IP,
            ..Attributes::default()
        };
        let mut ring = match pmu_raw::open(&attributes, Some(0), None, None) {
            Ok(event) => Ring::map(event, RING_PAGES).unwrap(),
            // Fails where a container forbids it; the test in the guest covers it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => return,
            Err(e) => panic!("{e}"),
        };
        let (step, touched) = (2usize << 20, 36usize);
        let samples = |ring: &mut Ring| {
            let mut memory = vec![0u8; (touched + 1) * step];
            (0..touched).for_each(|nth| std::hint::black_box(&mut memory)[nth * step] = 1);
            let mut bytes = 0;
            ring.take(|piece| bytes += piece.len());
            bytes / SampleFormat::new(IP).unwrap().record_bytes()
        };
        let each = samples(&mut ring);
        assert!(each >= touched, "{each}");
        ring.set_period(8).unwrap();
        let eighth = samples(&mut ring);
        assert!((touched / 8..=each / 4).contains(&eighth), "{eighth} of {each}");
    }
}
