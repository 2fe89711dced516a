//! Samples from the processor itself: Intel's PEBS by the event `mem-loads`, AMD's IBS by the unit
//! `ibs_op`, each through the ring of a perf event a processor.
//!
//! Which of them a processor has is read from `/sys/bus/event_source`, never assumed from its name.
//! Intel's event counts loads that take longer than [`LONG_CYCLES`]; AMD's unit counts operations
//! and, where it can (`l3missonly`, since Zen 4), keeps those that miss the last level. So one
//! sample in so many means another kind of event on each, and samples served by a cache are left
//! out by their data source.

use std::path::Path;

use terrace_recordings::perf_record::{
    MemorySample, Record, RecordCounts, RecordReader, SAMPLE_TYPE, SampleFormat,
};

use super::pmu_raw::{self, Attributes, EXCLUDE_HYPERVISOR, EXCLUDE_KERNEL, PRECISE, Ring};
use super::{SampleError, SampleSource, SourceKind};
use crate::files;
use crate::numa;
use crate::roots::Roots;

/// Loads that take longer are hardly served by a cache.
const LONG_CYCLES: u64 = 128;
/// Pages of each processor's ring: 4,600 samples.
const RING_PAGES: usize = 64;
/// IBS accepts multiples of 16, from this value on.
const LEAST_OPERATIONS: u64 = 0x90;

pub(super) const KIND: SourceKind = SourceKind {
    name: "pmu",
    summary: "the processor's own sampling: Intel mem-loads (PEBS), AMD ibs_op",
    open: |roots, accesses_per_sample| {
        Pmu::open(roots, accesses_per_sample).map(|pmu| Box::new(pmu) as Box<dyn SampleSource>)
    },
};

/// Attributes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    name: &'static str,
    kind: u32,
    config: u64,
    config1: u64,
    flags: u64,
    period: u64,
    /// An event that must lead its group, on processors from Sapphire Rapids on.
    leader: Option<u64>,
}

impl Event {
    /// The event of this host's processor.
    fn find(roots: &Roots, accesses_per_sample: u32) -> Option<Event> {
        Self::ibs(roots, accesses_per_sample).or_else(|| Self::pebs(roots, accesses_per_sample))
    }

    fn ibs(roots: &Roots, accesses_per_sample: u32) -> Option<Event> {
        let unit = roots.event_source("ibs_op");
        let mut config = [0; 2];
        // Operations are counted, not cycles.
        term(&unit, "cnt_ctl", 1, &mut config)?;
        let _ = term(&unit, "l3missonly", 1, &mut config);
        let period = u64::from(accesses_per_sample).next_multiple_of(16).max(LEAST_OPERATIONS);
        // IBS cannot exclude the kernel: its samples are dropped when they are read.
        let [config, config1] = config;
        let kind = number(&unit.join("type"))? as u32;
        Some(Event { name: "ibs_op", kind, config, config1, flags: 0, period, leader: None })
    }

    fn pebs(roots: &Roots, accesses_per_sample: u32) -> Option<Event> {
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
                period: accesses_per_sample.max(1).into(),
                leader: named(&unit, "mem-loads-aux").map(|[config, _]| config),
            })
        })
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
    period: u64,
    rings: Vec<(Ring, RecordReader)>,
    /// Leaders of groups, which count and do not sample.
    _leaders: Vec<std::os::fd::OwnedFd>,
}

impl Pmu {
    /// Opens the event of this host's processor, on each of its processors.
    pub fn open(roots: &Roots, accesses_per_sample: u32) -> Result<Self, SampleError> {
        let Some(event) = Event::find(roots, accesses_per_sample) else {
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
        let mut pmu = Pmu::of(&event);
        for cpu in cpus {
            pmu.add(&event, None, Some(cpu)).map_err(unusable)?;
        }
        Ok(pmu)
    }

    fn of(event: &Event) -> Self {
        Pmu { name: event.name, period: event.period, rings: Vec::new(), _leaders: Vec::new() }
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

impl SampleSource for Pmu {
    fn name(&self) -> &str {
        self.name
    }

    fn accesses_per_sample(&self) -> Option<u32> {
        u32::try_from(self.period).ok()
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
        Ok(())
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
    use crate::testing::folder;

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
        let event = Event::find(&roots, 1000).unwrap();
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
            let event = Event::find(&roots, 1001).unwrap();
            assert_eq!((event.name, event.kind, event.config), ("ibs_op", 11, config));
            assert_eq!(event.period, 1008, "a multiple of 16");
        }
    }

    #[test]
    fn a_host_whose_processor_does_not_sample_says_so_in_a_line() {
        let (_keep, roots) = host(&[("cpu/type", "4\n")]);
        let error = Pmu::open(&roots, 1000).err().expect("none").to_string();
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
            let pmu = Pmu::of(&Event::find(&roots, asked).unwrap());
            assert_eq!(SampleHub::of(&roots, Box::new(pmu), asked).accesses_per_sample, taken);
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
}
