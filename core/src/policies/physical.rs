//! The baseline of the migration-granularity paper (section 5, "Baseline"; `docs/coverage.md`,
//! G5): as `granularity-4k`, but scans read *physical* memory, page frame by page frame, and
//! read neighbours that have nothing to do with each other.
//!
//! Each period one scan reads the frames of slow memory and one those of fast memory,
//! each from where the one before ended, and reads 4,096 pages of the group. A page in slow memory
//! that was accessed may go up, one in fast memory that was not may go down. One page moves at a
//! time.
//!
//! It needs the frame of every page ([`Scan::frames`]). Machines that do not report frames are
//! refused before the run ([`Policy::needs_frames`]); a scan without frames is nevertheless read in
//! the order of virtual addresses.

use crate::bits::PageBits;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::operations::OperationSize;
use crate::plan::Decision;
use crate::policies::granularity::{Due, Granule, Leftover, Scans, Trade, Unfinished, plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};

declare_parameters! {
    struct Parameters {
        scan_pages: u32 = 4096, from 1 to 4294967295u32 => "pages that one scan sees";
        scans_per_period: u32 = 1, from 1 to 1000000 => "scans of each tier in a period";
        leftover: Leftover = Leftover::Drop, written "\"drop\""
            => "what did not move before the next scan: \"drop\" it; \"continue\" with it while scans find \
                nothing to promote; \"finish\" it, and scan a tier again only then";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "physical-4k",
    summary: "scans physical memory frame by frame and moves 4 KB at once: the baseline of granularity",
    advice: "as the baseline of granularity, on the simulated machine alone",
    source: "migration-granularity paper, section 5",
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let p: Parameters = parameters(KIND.name, value)?;
        Ok(Box::new(Physical {
            scans: Scans { scan_pages: p.scan_pages, scans_per_period: p.scans_per_period },
            features: FeatureCounter::default(),
            accessed: PageBits::default(),
            next: [0; 2],
            leftover: p.leftover,
            unfinished: Unfinished::default(),
        }))
    },
};

#[derive(Debug)]
struct Physical {
    scans: Scans,
    features: FeatureCounter,
    /// Accessed since a scan last read the page.
    accessed: PageBits,
    /// The frames at which the next scans begin, of slow and of fast memory.
    next: [u64; 2],
    leftover: Leftover,
    unfinished: Unfinished,
}

impl Physical {
    /// The pages of one tier that its scan reads, in ascending order of index; advances the scan.
    fn scan(&mut self, scan: &Scan, fast: bool) -> Vec<usize> {
        let frame = |page: usize| scan.frames.as_ref().map_or(page as u64, |frames| frames[page]);
        let from = self.next[usize::from(fast)];
        // By distance from where the scan begins; a frame below it comes after all above it.
        let mut pages: Vec<(u64, usize)> = (0..scan.pages())
            .filter(|&page| scan.fast.get(page) == fast)
            .map(|page| (frame(page).wrapping_sub(from), page))
            .collect();
        let most = u64::from(self.scans.scan_pages) * u64::from(self.scans.scans_per_period);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if pages.len() > most {
            // Linear in the pages: only which of them come first is needed, not their order.
            pages.select_nth_unstable(most);
            pages.truncate(most);
        }
        if let Some((distance, _)) = pages.iter().max() {
            self.next[usize::from(fast)] = from.wrapping_add(*distance).wrapping_add(1);
        }
        let mut pages: Vec<usize> = pages.into_iter().map(|(_, page)| page).collect();
        pages.sort_unstable();
        pages
    }
}

impl Policy for Physical {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn needs_frames(&self) -> bool {
        true
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.accessed = remap.bits(&self.accessed);
            self.unfinished.forget();
        }
        let (features, resident) = self.features.count(scan);
        let words = self.accessed.words_mut().iter_mut().zip(scan.accessed.words());
        words.for_each(|(seen, &now)| *seen |= now);
        let due = self.unfinished.due(self.leftover, &scan.fast);
        let mut read = |due, fast| if due { self.scan(scan, fast) } else { Vec::new() };
        let Due { slow, fast } = due;
        let (slow, fast) = (read(slow, false), read(fast, true));
        let of = |pages: &[usize], accessed: bool| -> Vec<Granule> {
            let pages = pages.iter().filter(|&&page| self.accessed.get(page) == accessed);
            pages.map(|&page| Granule::new(page..page + 1, 1, u64::from(accessed), 1)).collect()
        };
        let (ups, downs) = (of(&slow, true), of(&fast, false));
        let (ups, downs) = self.unfinished.candidates(self.leftover, due, &scan.fast, ups, downs);
        let mut plan = plan(scan, budget, resident, &self.accessed, ups, downs, Trade::MoreUsed);
        // The plan needs these bits: where the budget shrinks, accessed pages leave last.
        for page in slow.into_iter().chain(fast) {
            self.accessed.set(page, false);
        }
        if !plan.is_empty() {
            let mut sizes: Vec<OperationSize> = Vec::new();
            for extent in scan.layout.extents() {
                if sizes.last().is_none_or(|last| last.space != extent.space) {
                    sizes.push(OperationSize::both_ways(extent.space, 4096));
                }
            }
            plan.operation_sizes = sizes;
        }
        Decision { plan, applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.accessed.size_bytes() + self.unfinished.size_bytes()
    }
}
