//! The event of this host's processor by which it samples accesses, from `/sys/bus/event_source`.

use std::path::Path;

use super::super::SampleReads;
use super::super::pace::SamplePace;
use super::super::pmu_raw::{EXCLUDE_GUEST, EXCLUDE_HYPERVISOR, EXCLUDE_KERNEL, PRECISE};
use crate::files;
use crate::roots::Roots;

/// Loads that take longer are hardly served by a cache.
const LONG_CYCLES: u64 = 128;
/// IBS accepts multiples of 16, from this value on.
const LEAST_OPERATIONS: u64 = 0x90;
/// It counts 27 bits of them at most; a power of two, so that halves are multiples of 16, too.
const MOST_OPERATIONS: u64 = 1 << 26;
/// A processor makes at most so many of them a second.
const OPERATIONS_PER_S: u64 = 16_000_000_000;
/// Where only misses of the last level end in a sample, one in so many operations is one at most.
const OPERATIONS_PER_MISS: u64 = 40;
/// A processor makes at most so many loads longer than [`LONG_CYCLES`] a second.
const LONG_LOADS_PER_S: u64 = 40_000_000;
/// Fewest of them for each sample: with fewer a single program would have more than the bound.
const LEAST_LONG_LOADS: u64 = 400;

/// Flags that the leader of an event has, too.
pub(super) const OF_LEADERS: u64 = EXCLUDE_GUEST;

/// Attributes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: &'static str,
    pub(super) kind: u32,
    pub(super) config: u64,
    pub(super) config1: u64,
    pub(super) flags: u64,
    /// Whether only accesses that miss the last level end in a sample.
    of_misses: bool,
    /// The processors that have it; all where it is not restricted.
    pub(super) cpus: Option<Vec<u32>>,
    /// Events for each sample; at least and at most, where it follows what runs.
    pub(super) period: u64,
    pub(super) between: [u64; 2],
    /// A processor has at most so many of them a second that end in a sample.
    pub(super) busiest_per_s: u64,
    /// An event that must lead its group, on processors from Sapphire Rapids on.
    pub(super) leader: Option<u64>,
}

impl Event {
    /// The event of this host's processor, or why it has none.
    pub(super) fn find(roots: &Roots, reads: SampleReads) -> Result<Event, String> {
        match Self::ibs(roots, reads) {
            // Hardly any of the samples would be of a read from memory, and nothing but bits would be
            // known of most pages that are read.
            Some(event) if reads.is_auto() && !event.of_misses => Err(
                "ibs_op samples operations of every kind on this processor (no l3missonly), of which \
                 few are reads from memory; expected a number for them in sample_reads"
                    .to_owned(),
            ),
            Some(event) => Ok(event),
            None => Self::pebs(roots, reads).ok_or_else(|| {
                "no mem-loads and no ibs_op in /sys/bus/event_source/devices, as in most virtual \
                 machines"
                    .to_owned()
            }),
        }
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
            of_misses: misses_only,
            cpus: None,
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
                // Guests are not sampled by it, and where an event counts them the hypervisor may
                // not give them counters of their own.
                flags: PRECISE | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | EXCLUDE_GUEST,
                of_misses: true,
                // Of a processor with cores of two kinds one kind has it.
                cpus: files::read_list(&unit.join("cpus")).ok()?,
                period: reads.or(0).max(1).into(),
                between: [LEAST_LONG_LOADS, u32::MAX.into()],
                busiest_per_s: LONG_LOADS_PER_S,
                leader: named(&unit, "mem-loads-aux").map(|[config, _]| config),
            })
        })
    }
}

impl Event {
    /// An event that every kernel has, of user mode, a sample each.
    #[cfg(test)]
    pub(super) fn of_tests(kind: u32, config: u64) -> Event {
        Event {
            name: "test",
            kind,
            config,
            config1: 0,
            flags: EXCLUDE_KERNEL,
            of_misses: false,
            cpus: None,
            period: 1,
            between: [1, 64],
            busiest_per_s: 1,
            leader: None,
        }
    }

    /// How many of it for each sample, by what runs on so many processors.
    pub(super) fn pace(&self, cpus: usize) -> SamplePace {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::samples::pace::MOST_PER_S;
    use crate::testing::folder;

    const UNITS: &str = "sys/bus/event_source/devices";

    /// A host with these files of its event sources.
    pub(in super::super) fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
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
        assert_ne!(event.flags & EXCLUDE_GUEST, 0, "guests may have counters of their own");
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
    fn what_follows_the_load_begins_below_the_bound_and_halves_are_accepted() {
        let zen3 = [("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")];
        let zen4 = [zen3[0], zen3[1], ("ibs_op/format/l3missonly", "config:16\n")];
        let (_keep, roots) = host(&zen4);
        let event = Event::find(&roots, SampleReads::Auto).unwrap();
        for cpus in [1, 2, 64, 512] {
            let accesses = event.pace(cpus).accesses();
            assert!(event.busiest_per_s * cpus as u64 / accesses <= MOST_PER_S, "{cpus}");
            assert!(accesses.is_power_of_two() && accesses <= MOST_OPERATIONS, "{accesses}");
        }
        let least = LEAST_OPERATIONS.next_power_of_two();
        assert_eq!((least % 16, MOST_OPERATIONS.count_ones()), (0, 1));
        // Of operations of every kind next to none is a read from memory.
        let (_keep, roots) = host(&zen3);
        let reason = Event::find(&roots, SampleReads::Auto).unwrap_err();
        assert!(reason.contains("l3missonly") && reason.lines().count() == 1, "{reason}");
        assert!(Event::find(&roots, SampleReads::OneIn(100_000)).is_ok());
    }

    #[test]
    fn of_two_kinds_of_cores_those_are_sampled_that_have_the_event() {
        let (_keep, roots) = host(&[
            ("cpu_core/type", "4\n"),
            ("cpu_core/cpus", "0-3\n"),
            ("cpu_core/format/event", "config:0-7\n"),
            ("cpu_core/format/umask", "config:8-15\n"),
            ("cpu_core/format/ldlat", "config1:0-15\n"),
            ("cpu_core/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ]);
        let event = Event::find(&roots, SampleReads::Auto).unwrap();
        assert_eq!(event.cpus, Some(vec![0, 1, 2, 3]));
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
}
