//! The counters and samples that a processor would have of a program played by intervals.
//!
//! Counters are exact. One read in so many is a sample ([`SamplePicker`]). The order of an interval's
//! reads is not known; they are taken page by page.

use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::page::Layout;
use terrace_core::remap::Remap;
use terrace_core::sample_picker::SamplePicker;
use terrace_core::scan::PeriodCounters;
use terrace_recordings::profile::Interval;

/// The sampling of programs that are played by intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Reads per sample; 0: no samples.
    pub reads_per_sample: u32,
    /// Latency of a read from fast and from slow memory, in ns.
    pub latency_ns: [f64; 2],
    /// Seed of the distances between samples.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { reads_per_sample: 0, latency_ns: [80.0, 300.0], seed: 0 }
    }
}

/// Counters and samples of one program.
pub(crate) struct Meter {
    sampling: Sampling,
    sampler: SamplePicker,
    samples: Vec<u16>,
    layout: Option<Arc<Layout>>,
    references: u64,
    reads: [u64; 2],
    extra_ps: u64,
    pub(crate) moving_ps: u64,
    /// The clock at the last reading.
    read_at_ps: u64,
}

impl Meter {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Meter {
            sampling,
            sampler: SamplePicker::new(sampling.reads_per_sample, sampling.seed),
            samples: Vec::new(),
            layout: None,
            references: 0,
            reads: [0; 2],
            extra_ps: 0,
            moving_ps: 0,
            read_at_ps: 0,
        }
    }

    /// Counts an interval that took so long with these pages fast.
    pub(crate) fn interval(&mut self, interval: &Interval, fast: &PageBits, took_ps: u64) {
        self.references += interval.references;
        self.extra_ps += took_ps.saturating_sub(interval.fast_ps);
        if self.layout.as_ref().is_none_or(|l| !Arc::ptr_eq(l, &interval.layout)) {
            let samples = match &self.layout {
                None => vec![0; interval.layout.pages()],
                Some(before) => {
                    let remap = Remap::between(before, &interval.layout);
                    remap.values(&self.samples, 0, interval.layout.pages())
                }
            };
            self.samples = samples;
            self.layout = Some(interval.layout.clone());
        }
        for page in interval.accessed.iter_ones() {
            let reads = interval.reads[page];
            self.reads[usize::from(!fast.get(page))] += reads;
            let picked = self.sampler.pick(reads).min(u16::MAX.into()) as u16;
            self.samples[page] = self.samples[page].saturating_add(picked);
        }
    }

    /// The counts since the last reading.
    pub(crate) fn read(&mut self, clock_ps: u64, layout: &Layout) -> PeriodCounters {
        let [fast_ns, slow_ns] = self.sampling.latency_ns;
        // The stall of slow memory is its wait less the wait for fast memory.
        let whole = if slow_ns > fast_ns { slow_ns / (slow_ns - fast_ns) } else { 1.0 };
        let sampled = self.sampler.is_on() && self.samples.len() == layout.pages();
        let samples = sampled.then(|| Arc::from(&self.samples[..]));
        let elapsed_ps = clock_ps.saturating_sub(self.read_at_ps);
        let counters = PeriodCounters {
            elapsed_ns: elapsed_ps / 1000,
            migration_stall_ns: self.moving_ps / 1000,
            slow_stall_ns: (self.extra_ps as f64 / 1000.0 * whole) as u64,
            references: self.references,
            reads: self.reads,
            read_latency_ps: self.sampling.latency_ns.map(|ns| (ns * 1000.0) as u64),
            samples,
            reads_per_sample: self.sampler.period(),
        };
        (self.reads, self.extra_ps, self.moving_ps) = ([0; 2], 0, 0);
        self.samples.fill(0);
        self.read_at_ps = clock_ps;
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::page::PageSize;

    fn interval(reads: &[u64]) -> Interval {
        Interval {
            references: 10,
            fast_ps: 1000,
            slow_ps: 3000,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: Arc::new(Layout::contiguous(PageSize::Base, reads.len() as u64)),
            accessed: PageBits::ones(reads.len()),
            fresh: Vec::new(),
            reads: reads.to_vec(),
        }
    }

    #[test]
    fn samples_are_in_proportion_to_reads_and_counters_are_exact() {
        let sampling = Sampling { reads_per_sample: 50, ..Sampling::default() };
        let mut meter = Meter::new(sampling);
        let i = interval(&[100_000, 0, 300_000, 10]);
        let mut fast = PageBits::new(4);
        fast.set(0, true);
        meter.interval(&i, &fast, 2500);
        let got = meter.read(7_000, &i.layout);
        assert_eq!(got.reads, [100_000, 300_010]);
        assert_eq!((got.references, got.elapsed_ns), (10, 7));
        // 1.5 ns more than fast memory would have taken; slow memory takes 300 of 80 to 300.
        assert_eq!(got.slow_stall_ns, 2);
        let samples = got.samples.unwrap();
        assert!((1900..2100).contains(&samples[0]) && (5800..6200).contains(&samples[2]));
        assert_eq!(samples[1], 0);
        let next = meter.read(8_000, &i.layout);
        assert_eq!((next.reads, next.elapsed_ns), ([0, 0], 1));
        assert!(next.samples.unwrap().iter().all(|&s| s == 0));
    }

    #[test]
    fn without_sampling_there_are_no_samples() {
        let mut meter = Meter::new(Sampling::default());
        let i = interval(&[1000]);
        meter.interval(&i, &PageBits::new(1), 3000);
        assert_eq!(meter.read(1, &i.layout).samples, None);
    }
}
