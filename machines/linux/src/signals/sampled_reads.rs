//! Sampled reads as a signal ([`crate::samples`]): samples and latencies by page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use terrace_core::scan::Scan;

use crate::files::FileError;
use crate::pace::CheckPace;
use crate::refiner::BaseRates;
use crate::samples::hub::{GroupPages, GroupSamples, SampleHub};
use crate::samples::{SOURCES, SampleReads};

use super::{GroupSignal, HostSignal, Opened, Opening, Probe, SignalKind, SignalReport};

/// Sampled reads.
pub(super) const KIND: SignalKind = SignalKind {
    name: "sampled_reads",
    probe: |roots, reads| {
        let probe = SOURCES.iter().map(|kind| {
            let found = match (kind.open)(roots, reads) {
                Ok(source) => Ok(format!("{}: {}", source.name(), kind.summary)),
                Err(error) => Err(error.to_string()),
            };
            Probe { name: format!("samples of reads, {}", kind.name), found }
        });
        probe.collect()
    },
    open,
};

fn open(opening: &Opening) -> Opened {
    let options = opening.options;
    if options.sample_reads == SampleReads::NONE {
        return Ok(None);
    }
    match (options.sample_reads, SampleHub::open(&options.roots, options.sample_reads)) {
        (_, Ok(hub)) => Ok(Some(hub)),
        (SampleReads::Auto, Err(reason)) => {
            tracing::info!(%reason, "no samples of reads here: accessed bits alone");
            Ok(None)
        }
        (SampleReads::OneIn(_), Err(reason)) => Err(reason.into()),
    }
}

impl HostSignal for SampleHub {
    fn join(self: Arc<Self>, slot: u32, by_range: bool) -> Option<Box<dyn GroupSignal>> {
        let samples = self.group(slot, by_range);
        Some(Box::new(GroupReads { samples, frames: CheckPace::default() }))
    }

    fn base_rates(self: Arc<Self>, slot: u32) -> Option<Box<dyn BaseRates>> {
        Some(Box::new(self.rates(slot)))
    }

    fn report(&self) -> SignalReport {
        let counts = self.counts();
        SignalReport {
            line: format!("samples of reads by {}: {}", self.source(), counts.line()),
            details: [("host_samples".to_owned(), json!(counts))].into_iter().collect(),
        }
    }
}

struct GroupReads {
    samples: GroupSamples,
    /// How often the frames are read by which samples are attributed to pages.
    frames: CheckPace,
}

impl GroupSignal for GroupReads {
    fn begin(&mut self, pages: GroupPages<'_>, period: Duration) -> Result<(), FileError> {
        if self.frames.due() || !self.samples.follows(pages.layout) {
            let begin = Instant::now();
            self.samples.follow(pages)?;
            self.frames.took(begin.elapsed(), period);
        }
        self.samples.resume(pages.moved);
        Ok(())
    }

    fn poll(&self) {
        self.samples.poll();
    }

    /// A page of which a read was sampled was accessed, whatever its bit reports: in one sample of its
    /// bit at least.
    fn add_to(&self, scan: &mut Scan) {
        let Some(counters) = self.samples.take(&scan.layout, &scan.fast) else { return };
        let sampled = counters.samples.iter().flat_map(|samples| samples.iter().enumerate());
        for (page, &count) in sampled {
            if count > 0 && !scan.accessed.get(page) {
                scan.accessed.set(page, true);
                if let Some(counts) = &mut scan.counts {
                    Arc::make_mut(&mut counts.counts)[page] = 1;
                }
            }
        }
        scan.counters = Some(Arc::new(counters));
    }
}
