//! Shared parts of the machine's tests: scripted sources and ready groups.
#![allow(dead_code, reason = "each test file uses some of it")]

pub mod references;

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::interfaces::{Observation, Tracker};
use terrace_core::page::{Extent, Layout, PageSize, SpaceId, VirtualRange};
use terrace_core::policy::Allocation;
use terrace_core::scan::Scan;
use terrace_recordings::source::{PeriodAccesses, PeriodSource, SourceError};
use terrace_simulated::GroupConfig;

/// Yields the given layouts, with no page accessed.
pub struct Script(pub VecDeque<Arc<Layout>>);

impl PeriodSource for Script {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        Ok(self.0.pop_front().map(|layout| PeriodAccesses {
            accessed: PageBits::new(layout.pages()),
            layout,
            lost_periods: 0,
        }))
    }
}

pub fn script(layouts: impl IntoIterator<Item = Arc<Layout>>) -> Box<dyn PeriodSource> {
    Box::new(Script(layouts.into_iter().collect()))
}

/// Extents given as (first page, pages) of address space 0.
pub fn layout(page_size: PageSize, extents: &[(u64, u64)]) -> Arc<Layout> {
    let extent = |&(first, pages): &(u64, u64)| Extent {
        space: SpaceId(0),
        start: first * page_size.bytes(),
        pages,
    };
    Arc::new(Layout::new(page_size, extents.iter().map(extent).collect()).unwrap())
}

pub fn range(page_size: PageSize, first: u64, pages: u64) -> VirtualRange {
    let (start, size_bytes) = (first * page_size.bytes(), pages * page_size.bytes());
    VirtualRange { space: SpaceId(0), start, size_bytes }
}

pub fn group(page_size: PageSize, allocation: Allocation, budget_pages: u64) -> GroupConfig {
    GroupConfig {
        name: "g".to_owned(),
        page_size,
        allocation,
        fast_budget: Box::new(move |_| budget_pages),
        initial: None,
    }
}

pub fn scan(tracker: &mut impl Tracker) -> Scan {
    match tracker.observe().unwrap() {
        Observation::Period(scan) => scan,
        other => panic!("expected a period, got {other:?}"),
    }
}

/// Indices of the pages in fast memory.
pub fn fast(scan: &Scan) -> Vec<usize> {
    scan.fast.iter_ones().collect()
}
