//! Samples from the processor itself: Intel's PEBS by the event `mem-loads`, AMD's IBS by the unit
//! `ibs_op`, each through the ring of a perf event a processor.
//!
//! Which of them a processor has is read from `/sys/bus/event_source` ([`event`]), never assumed from
//! its name. Intel's event counts loads that take long; AMD's unit counts operations and, where it can (`l3missonly`, since Zen 4), keeps those that miss the last level. So one
//! sample in so many means another kind of event on each, and samples served by a cache are left
//! out by their data source. Where no number is asked for, it follows what runs ([`super::pace`]).

mod event;

use std::io::{Error, Result as IoResult};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use terrace_recordings::perf_record::{
    MemorySample, Record, RecordCounts, RecordReader, SAMPLE_TYPE, SampleFormat,
};

use self::event::Event;
use super::pace::SamplePace;
use super::pmu_raw::{self, Attributes, DISABLED, Ring};
use super::{SampleError, SampleReads, SampleSource, SourceKind};
use crate::numa;
use crate::roots::Roots;

pub(super) const KIND: SourceKind = SourceKind {
    name: "pmu",
    summary: "the processor's own sampling: Intel mem-loads (PEBS), AMD ibs_op",
    open: |roots, reads| Pmu::open(roots, reads).map(|pmu| Box::new(pmu) as Box<dyn SampleSource>),
};

/// Pages of each processor's ring, of up to so many processors: 3,600 samples. Of more, each has fewer
/// samples, and all rings together count against what may be locked.
const RING_PAGES: usize = 64;
const FEW_CPUS: usize = 16;
const RING_PAGES_OF_MANY: usize = 16;
/// Interval of checks for processors that came or went.
const CHECK_CPUS_EVERY: Duration = Duration::from_secs(5);

/// One processor's event.
struct OfCpu {
    /// `None` where it is of one process, whichever processor that runs on.
    cpu: Option<u32>,
    ring: Ring,
    reader: RecordReader,
    /// The leader of its group, which counts and does not sample.
    _leader: Option<OwnedFd>,
}

/// The processor's samples of all processes.
pub struct Pmu {
    roots: Roots,
    event: Event,
    /// How many events there are for each sample; `None` where a number was asked for.
    pace: Option<SamplePace>,
    /// Whether accesses are sampled now.
    on: bool,
    /// The clock of the pace.
    since: Instant,
    checked: Instant,
    all: Vec<OfCpu>,
    /// Counts of processors that went.
    gone: RecordCounts,
}

impl Pmu {
    /// Opens the event of this host's processor, on each of its processors. Nothing is sampled until
    /// [`SampleSource::sample`].
    pub fn open(roots: &Roots, reads: SampleReads) -> Result<Self, SampleError> {
        let event = Event::find(roots, reads).map_err(SampleError::Absent)?;
        let mut pmu = Pmu::of(roots, event);
        let cpus = pmu.cpus().map_err(|e| SampleError::Absent(e.to_string()))?;
        pmu.pace = reads.is_auto().then(|| pmu.event.pace(cpus.len()));
        pmu.event.period = pmu.pace.as_ref().map_or(pmu.event.period, SamplePace::accesses);
        for &cpu in &cpus {
            match pmu.add(None, Some(cpu), cpus.len()) {
                Err(error) if is_offline(&error) => {}
                added => added.map_err(|source| SampleError::Unusable {
                    name: pmu.event.name.to_owned(),
                    remedy: remedy(&source),
                    source,
                })?,
            }
        }
        Ok(pmu)
    }

    fn of(roots: &Roots, event: Event) -> Self {
        let now = Instant::now();
        Pmu {
            roots: roots.clone(),
            event,
            pace: None,
            on: false,
            since: now,
            checked: now,
            all: Vec::new(),
            gone: RecordCounts::default(),
        }
    }

    /// The processors that are online and have the event.
    fn cpus(&self) -> Result<Vec<u32>, crate::files::FileError> {
        let online = numa::online_cpus(&self.roots)?;
        let has = |cpu: &u32| self.event.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu));
        Ok(online.into_iter().filter(has).collect())
    }

    fn add(&mut self, pid: Option<u32>, cpu: Option<u32>, cpus: usize) -> IoResult<()> {
        let event = &self.event;
        let attributes = Attributes {
            kind: event.kind,
            config: event.config,
            config1: event.config1,
            sample_period: event.period,
            sample_type: SAMPLE_TYPE,
            flags: event.flags | DISABLED,
            ..Attributes::default()
        };
        let leader = event.leader.map(|config| {
            let (kind, flags) = (event.kind, (event.flags & event::OF_LEADERS) | DISABLED);
            let counts = Attributes { kind, config, flags, ..Attributes::default() };
            pmu_raw::open(&counts, pid, cpu, None)
        });
        let leader = leader.transpose()?;
        let sampling = pmu_raw::open(&attributes, pid, cpu, leader.as_ref())?;
        let pages = if cpus <= FEW_CPUS { RING_PAGES } else { RING_PAGES_OF_MANY };
        let ring = Ring::map(sampling, pages)?;
        if self.on {
            ring.enable(true)?;
        }
        let reader = RecordReader::new(SampleFormat::of_memory());
        self.all.push(OfCpu { cpu, ring, reader, _leader: leader });
        Ok(())
    }

    /// Another number of events for each sample, where too many samples come or few.
    fn keep_pace(&mut self) -> IoResult<()> {
        let Some(pace) = &mut self.pace else { return Ok(()) };
        // Those that found no room in a ring were taken, too.
        let taken = |of_cpu: &OfCpu| {
            let RecordCounts { samples, lost, .. } = of_cpu.reader.counts();
            samples.saturating_add(lost)
        };
        let by_cpu: Vec<u64> = self.all.iter().map(taken).collect();
        let Some(wanted) = pace.count(self.since.elapsed(), &by_cpu) else { return Ok(()) };
        for_all(&self.all, |of_cpu| of_cpu.ring.set_period(wanted))?;
        pace.set(wanted);
        self.event.period = wanted;
        tracing::debug!(events = wanted, "for each sample of reads");
        Ok(())
    }

    /// Follows processors that came online or went, whose events the kernel takes away for good.
    fn follow_cpus(&mut self) {
        let is_due = self.all.is_empty() || self.checked.elapsed() >= CHECK_CPUS_EVERY;
        if !is_due || self.all.iter().any(|of_cpu| of_cpu.cpu.is_none()) {
            return;
        }
        self.checked = Instant::now();
        let Ok(cpus) = self.cpus() else { return };
        let gone = self.all.extract_if(.., |e| e.cpu.is_none_or(|cpu| !cpus.contains(&cpu)));
        for of_cpu in gone {
            self.gone.add(&of_cpu.reader.counts());
        }
        for &cpu in &cpus {
            if self.all.iter().all(|e| e.cpu != Some(cpu))
                && let Err(error) = self.add(None, Some(cpu), cpus.len())
            {
                tracing::debug!(cpu, %error, "no samples of this processor");
            }
        }
    }
}

/// Does it for all, and returns the first error.
fn for_all(all: &[OfCpu], does: impl Fn(&OfCpu) -> IoResult<()>) -> IoResult<()> {
    all.iter().map(does).fold(Ok(()), IoResult::and)
}

fn is_offline(error: &Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

/// What to do about an event that cannot be opened.
fn remedy(error: &Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run as root or with CAP_PERFMON, under systemd with SystemCallFilter=perf_event_open; \
             with many processors raise kernel.perf_event_mlock_kb"
        }
        Some(libc::EBUSY) => "another program samples by it; end that, or set sample_reads = 0",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files",
        _ => "this processor or its hypervisor does not give it; set sample_reads = 0",
    }
}

impl SampleSource for Pmu {
    fn name(&self) -> &str {
        self.event.name
    }

    fn accesses_per_sample(&self) -> Option<u32> {
        u32::try_from(self.event.period).ok()
    }

    fn knows_processes(&self) -> bool {
        true
    }

    fn sample(&mut self, on: bool) -> IoResult<()> {
        if on && self.all.iter().all(|of_cpu| of_cpu.cpu.is_some()) {
            // Those of a processor that was offline meanwhile are dead, and nothing says so.
            for of_cpu in self.all.drain(..) {
                self.gone.add(&of_cpu.reader.counts());
            }
        }
        self.on = on;
        self.follow_cpus();
        for_all(&self.all, |of_cpu| of_cpu.ring.enable(on))
    }

    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> IoResult<()> {
        for OfCpu { ring, reader, .. } in &mut self.all {
            ring.take(|bytes| {
                reader.push(bytes, |record| {
                    if let Record::Sample(sample) = &record {
                        take(sample);
                    }
                });
            });
        }
        self.follow_cpus();
        self.keep_pace()
    }

    fn counts(&self) -> RecordCounts {
        let mut sum = self.gone;
        for of_cpu in &self.all {
            sum.add(&of_cpu.reader.counts());
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::event::tests::host;
    use super::*;
    use crate::samples::hub::SampleHub;
    use terrace_recordings::perf_record::IP;

    #[test]
    fn a_host_whose_processor_does_not_sample_says_so_in_a_line() {
        let (_keep, roots) = host(&[("cpu/type", "4\n")]);
        let error = Pmu::open(&roots, SampleReads::Auto).err().expect("none").to_string();
        assert!(error.contains("ibs_op") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn reads_are_counted_by_the_number_that_amds_unit_takes() {
        let (_keep, roots) =
            host(&[("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")]);
        for (asked, taken) in [(100, 144), (1000, 1008), (1600, 1600)] {
            let event = Event::find(&roots, SampleReads::OneIn(asked)).unwrap();
            let pmu = Pmu::of(&roots, event);
            assert_eq!(SampleHub::of(&roots, Box::new(pmu), asked).accesses_per_sample(), taken);
        }
    }

    /// The kernel's own records, of an event that every kernel has: page faults of this process.
    #[test]
    fn the_rings_records_are_the_kernels() {
        const SOFTWARE: u32 = 1;
        const PAGE_FAULTS: u64 = 2;
        let event = Event::of_tests(SOFTWARE, PAGE_FAULTS);
        let mut pmu = Pmu::of(&Roots::default(), event);
        match pmu.add(Some(0), None, 1) {
            Ok(()) => {}
            // Fails where a container forbids it; the test in the guest covers it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => return,
            Err(e) => panic!("{e}"),
        }
        pmu.sample(true).unwrap();
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
        // Switched off it takes none.
        pmu.sample(false).unwrap();
        pmu.read(&mut |_| {}).unwrap();
        let samples = pmu.counts().samples;
        let mut more = vec![0u8; 16 * step];
        (0..16).for_each(|nth| std::hint::black_box(&mut more)[nth * step] = 1);
        pmu.read(&mut |_| {}).unwrap();
        assert_eq!(pmu.counts().samples, samples);
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
