//! Hint faults of NUMA balancing as a signal ([`crate::hints`]): counts of ranges are raised by what
//! is known of their base pages.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use terrace_core::scan::Scan;

use crate::files::FileError;
use crate::hints::{GroupHints, HintHub};
use crate::refiner::BaseRates;
use crate::samples::hub::GroupPages;

use super::{GroupSignal, HostSignal, Opened, Opening, Probe, SignalKind, SignalReport};

/// Ranges with the most accesses that details have.
const HOTTEST: usize = 16;

/// Hint faults.
pub(super) const KIND: SignalKind = SignalKind {
    name: "hint_faults",
    probe: |roots, _| {
        let found = HintHub::probe(roots).map(|()| {
            "faults after scans of NUMA balancing, which promotes nothing meanwhile: hint_faults"
                .to_owned()
        });
        vec![Probe { name: "hint faults".to_owned(), found }]
    },
    open,
};

fn open(opening: &Opening) -> Opened {
    let options = opening.options;
    let may_change = options.fix_conflicts && !options.dry_run && !options.observe_only;
    if !options.hint_faults || !may_change {
        return Ok(None);
    }
    if let Err(reason) = HintHub::probe(&options.roots) {
        tracing::info!(reason, "no hint faults here: accessed bits alone");
        return Ok(None);
    }
    tracing::warn!("hint faults are on: a stock kernel can fall over by them (docs/operator.md)");
    let fast_nodes = opening.topology.fast_nodes();
    Ok(Some(HintHub::new(&options.roots, Arc::clone(opening.session), fast_nodes)))
}

impl HostSignal for HintHub {
    fn join(self: Arc<Self>, slot: u32, by_range: bool) -> Option<Box<dyn GroupSignal>> {
        by_range.then(|| Box::new(self.group(slot)) as Box<_>)
    }

    fn base_rates(self: Arc<Self>, _slot: u32) -> Option<Box<dyn BaseRates>> {
        Some(Box::new(self))
    }

    fn report(&self) -> SignalReport {
        let counts = self.counts();
        let ended = self.ended().map(|reason| format!("; none any more: {reason}"));
        let details = [("host_hints", json!(counts)), ("hottest", json!(self.hottest(HOTTEST)))];
        SignalReport {
            line: counts.line() + &ended.unwrap_or_default(),
            details: details.map(|(key, value)| (key.to_owned(), value)).into_iter().collect(),
        }
    }
}

impl GroupSignal for GroupHints {
    fn begin(&mut self, pages: GroupPages<'_>, _: Duration) -> Result<(), FileError> {
        self.follow(pages.layout);
        Ok(())
    }

    fn poll(&self) {
        GroupHints::poll(self);
    }

    /// Raises counts. A page that has a count was accessed.
    fn add_to(&self, scan: &mut Scan) {
        let Some(counts) = &scan.counts else { return };
        let Some(raised) = self.raise(&scan.layout, counts) else { return };
        for (page, &count) in raised.counts.iter().enumerate() {
            if count > 0 {
                scan.accessed.set(page, true);
            }
        }
        scan.counts = Some(raised);
    }
}
