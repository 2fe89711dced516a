//! What other signals than accessed bits add to a scan.

use std::sync::Arc;

use terrace_core::scan::Scan;

use crate::hints::GroupHints;
use crate::samples::hub::GroupSamples;

/// Adds the samples of the period. A page of which a read was sampled was accessed, whatever its bit
/// says: in one sample of its bit at least.
pub(super) fn add_samples(scan: &mut Scan, samples: &GroupSamples) {
    let Some(counters) = samples.take(&scan.layout, &scan.fast) else { return };
    for (page, &count) in counters.samples.iter().flat_map(|samples| samples.iter().enumerate()) {
        if count > 0 && !scan.accessed.get(page) {
            scan.accessed.set(page, true);
            if let Some(counts) = &mut scan.counts {
                Arc::make_mut(&mut counts.counts)[page] = 1;
            }
        }
    }
    scan.counters = Some(Arc::new(counters));
}

/// Raises counts by what hint faults report. What has a count was accessed.
pub(super) fn add_hints(scan: &mut Scan, hints: &GroupHints) {
    let Some(counts) = &scan.counts else { return };
    let Some(raised) = hints.raise(&scan.layout, counts) else { return };
    for (page, &count) in raised.counts.iter().enumerate() {
        if count > 0 {
            scan.accessed.set(page, true);
        }
    }
    scan.counts = Some(raised);
}
