//! A group's samples between two scans: by page, and by base page where its pages are ranges.

use std::sync::Arc;

use terrace_core::page::{Layout, PageSize, SpaceId};
use terrace_core::remap::Remap;
use terrace_recordings::perf_record::MemorySample;

use super::base_pages::BasePages;
use super::frames::FrameMap;

/// Samples of a group.
pub(super) struct Member {
    pub(super) layout: Arc<Layout>,
    frames: FrameMap,
    /// Samples of each page in this period.
    pub(super) samples: Vec<u16>,
    /// Sum of the accesses that they stand for. A source may change their number.
    accesses: u64,
    /// Sum of the latencies of each page's sampled reads, in cycles.
    pub(super) cycles: Vec<u64>,
    /// Samples by base page, of groups whose pages are ranges: of longer than a period.
    pub(super) base_pages: Option<BasePages>,
    /// Its processes, ascending.
    processes: Vec<u32>,
    /// Samples of the last periods, each of which counts less the longer it is ago.
    recent: f64,
    /// Whether it has samples: enough of them came in the last periods.
    is_sampled: bool,
    /// Moves that had been made when the frames were read.
    moved: u64,
    /// Pages may have been moved since, so frames may be others' by now.
    pub(super) moving: bool,
}

/// Samples of so many periods ago count so much, to the power of their number.
const RECENT_KEEP: f64 = 0.9;
/// From so many recent samples on a group has samples, as long as it has a tenth of that.
pub(super) const LEAST_RECENT: f64 = 30.0;

/// What a group consists of as its frames are read.
#[derive(Debug, Clone, Copy)]
pub struct GroupPages<'a> {
    /// Its pages.
    pub layout: &'a Arc<Layout>,
    /// Its processes, ascending.
    pub processes: &'a [u32],
    /// Moves that were made until then.
    pub moved: u64,
}

/// A page of a group that was accessed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    page: usize,
    /// Which base page of it.
    base: usize,
    /// It was found by its frame, which may be another page's by now.
    by_frame: bool,
}

impl Member {
    /// The group has these pages, in these frames, after so many moves. What came before goes with
    /// the pages.
    pub(super) fn follow(
        before: Option<Self>,
        pages: GroupPages<'_>,
        frames: FrameMap,
        by_range: bool,
    ) -> Self {
        let GroupPages { layout, processes, moved } = pages;
        let pages = layout.pages();
        let same = |before: &Self| Arc::ptr_eq(&before.layout, layout);
        let new = Member {
            samples: Vec::new(),
            accesses: 0,
            cycles: Vec::new(),
            layout: Arc::clone(layout),
            frames,
            base_pages: by_range.then(BasePages::default),
            processes: processes.to_vec(),
            recent: 0.0,
            is_sampled: false,
            moved,
            moving: false,
        };
        let Some(before) = before else {
            return Member { samples: vec![0; pages], cycles: vec![0; pages], ..new };
        };
        let Member { recent, is_sampled, .. } = before;
        if same(&before) {
            let Member { samples, accesses, cycles, base_pages, .. } = before;
            return Member { samples, accesses, cycles, base_pages, recent, is_sampled, ..new };
        }
        let remap = Remap::between(&before.layout, layout);
        let samples = remap.values(&before.samples, 0, pages);
        // Of pages that are gone samples are gone, too.
        let kept = u128::from(before.accesses) * u128::from(sum(&samples));
        let accesses = kept.checked_div(sum(&before.samples).into()).unwrap_or(0) as u64;
        let cycles = remap.values(&before.cycles, 0, pages);
        let base_pages = before.base_pages;
        Member { samples, accesses, cycles, base_pages, recent, is_sampled, ..new }
    }

    /// So many moves have been made, and none is made until the next scan.
    pub(super) fn resume(&mut self, moved: u64) {
        self.moving = self.moved != moved;
    }

    /// The page that was accessed, by the process and address of the access.
    pub(super) fn by_address(&self, sample: &MemorySample) -> Option<Place> {
        let address = sample.address?;
        let page = self.layout.index(SpaceId(sample.pid?), address)?;
        let within = address % self.layout.page_size().bytes();
        Some(Place { page, base: (within / PageSize::Base.bytes()) as usize, by_frame: false })
    }

    /// The page that was accessed, by its frame: of sources that know no processes, and of memory that
    /// several processes of the group map, which a layout has once. While pages are moved frames may be
    /// others', so what a process of another group does there is left out.
    pub(super) fn by_frame(&self, sample: &MemorySample) -> Option<Place> {
        let known = |pid| !self.moving && self.processes.binary_search(&pid).is_ok();
        if sample.pid.is_some_and(|pid| !known(pid)) {
            return None;
        }
        let (page, base) = self.frames.page(sample.physical?)?;
        Some(Place { page, base, by_frame: true })
    }

    /// This page and this base page of it were read, and the sample stands for so many accesses.
    pub(super) fn add(&mut self, place: Place, sample: &MemorySample, accesses: u32) {
        let Place { page, base, by_frame } = place;
        if self.samples[page] < u16::MAX {
            self.samples[page] += 1;
            self.accesses += u64::from(accesses);
        }
        self.cycles[page] = self.cycles[page].saturating_add(sample.weight_cycles);
        if let Some(base_pages) = &mut self.base_pages
            // A hot page that has come would seem to be the cold one that was there before.
            && !(by_frame && self.moving)
        {
            let (SpaceId(pid), start) = self.layout.address(page);
            base_pages.add((pid, start), base, accesses);
        }
    }

    /// Accesses that each sample of this period stands for, in the mean; without samples, this many.
    pub(super) fn accesses_per_sample(&self, now: u32) -> u32 {
        let samples = sum(&self.samples);
        let mean = (self.accesses + samples / 2).checked_div(samples);
        mean.and_then(|mean| u32::try_from(mean).ok()).unwrap_or(now)
    }

    /// Whether the group has samples at all, with those of this period. Of one whose accesses the
    /// processor does not sample, such as a guest's or stores alone, they would say that nothing is
    /// accessed.
    pub(super) fn count_recent(&mut self, least_recent: f64) -> bool {
        self.recent = self.recent * RECENT_KEEP + sum(&self.samples) as f64;
        self.is_sampled = self.recent >= least_recent * if self.is_sampled { 0.1 } else { 1.0 };
        self.is_sampled
    }

    /// The same, as it was in the last period.
    pub(super) fn has_samples(&self) -> bool {
        self.is_sampled
    }

    /// The period's samples have been taken, and its moves are made now.
    pub(super) fn end_period(&mut self) {
        self.samples.fill(0);
        self.accesses = 0;
        self.cycles.fill(0);
        if let Some(base_pages) = &mut self.base_pages {
            base_pages.end_period();
        }
        self.moving = true;
    }
}

fn sum(samples: &[u16]) -> u64 {
    samples.iter().map(|&count| u64::from(count)).sum()
}
