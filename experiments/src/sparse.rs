//! Sparse address spaces: a small program gets page tables of a large one's shape.
//!
//! A program of 64 MB has 32 leaf tables below one page of each upper level. A program of 1 TB has
//! 524,288 below 1,024 below 2 (Radiant paper, section 4.2). The placement of upper levels matters
//! only if they have many pages, in both tiers. So a group may be laid out sparsely: only the first
//! few entries of each page-table page are used, and the program's pages, in their order, go to the
//! next page-table page after that. Everything else is unchanged: the order in which pages are
//! touched, lines of leaf entries per touched page, and the walker.
//!
//! The fewer of their entries are used, the more memory page-table pages take: with `n` used
//! entries in a leaf table, one page for each `n`. The share is in the results (`fast_table_pages`,
//! `slow_table_pages`).

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_core::page::PageSize;
use terrace_recordings::source::SourceError;
use terrace_simulated::reference::{ReferenceSource, Step};

use terrace_core::{InputError, refuse};

/// Entries of a page-table page.
const ENTRIES: u64 = 512;
/// Where sparse pages begin: above the addresses of programs and recordings, below the half of the
/// address space that four levels give to programs.
const START: u64 = 1 << 46;

/// Number of entries used in page-table pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sparse {
    /// Of a leaf table (PTE), 1 to 512.
    #[schemars(range(min = 1, max = ENTRIES))]
    pub pte: u64,
    /// Of a page of the level above (PMD), 1 to 512.
    #[schemars(range(min = 1, max = ENTRIES))]
    pub pmd: u64,
}

impl Sparse {
    /// Refuses impossible numbers of entries.
    pub(crate) fn check(&self) -> Result<(), InputError> {
        for (name, used) in [("pte", self.pte), ("pmd", self.pmd)] {
            if !(1..=ENTRIES).contains(&used) {
                return Err(refuse!("sparse.{name} = {used}: expected 1 to {ENTRIES} entries"));
            }
        }
        Ok(())
    }

    /// The address of the program's page of this number; pages of one leaf table are adjacent.
    fn address(&self, page: u64) -> u64 {
        let (leaf, slot) = (page / self.pte, page % self.pte);
        let (upper, middle) = (leaf / self.pmd, leaf % self.pmd);
        START + ((upper * ENTRIES + middle) * ENTRIES + slot) * PageSize::Base.bytes()
    }
}

/// A range of the program's own addresses, and the number of its first page.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
    page: u64,
}

/// A source whose addresses are laid out sparsely.
pub(crate) struct SparseSource {
    inner: Box<dyn ReferenceSource>,
    sparse: Sparse,
    /// Sorted and disjoint.
    ranges: Vec<Range>,
    pages: u64,
    /// Index of the range found last.
    last: usize,
    waiting: VecDeque<Step>,
}

impl SparseSource {
    pub(crate) fn new(inner: Box<dyn ReferenceSource>, sparse: Sparse) -> Self {
        let (ranges, waiting) = (Vec::new(), VecDeque::new());
        SparseSource { inner, sparse, ranges, pages: 0, last: 0, waiting }
    }

    /// Numbers the pages of a range that have no number yet.
    fn number(&mut self, start: u64, end: u64) {
        let mut fresh = vec![(start, end)];
        for r in &self.ranges {
            fresh = fresh
                .into_iter()
                .flat_map(|(s, e)| [(s, e.min(r.start)), (s.max(r.end), e)])
                .filter(|(s, e)| s < e)
                .collect();
        }
        for (start, end) in fresh {
            self.ranges.push(Range { start, end, page: self.pages });
            self.pages += (end - start) / PageSize::Base.bytes();
        }
        self.ranges.sort_unstable_by_key(|r| r.start);
        self.last = 0;
    }

    /// The sparse address of this one; the same address where nothing was mapped.
    #[inline]
    fn place(&mut self, address: u64) -> u64 {
        let holds = |r: &Range| r.start <= address && address < r.end;
        if !self.ranges.get(self.last).is_some_and(holds) {
            let after = self.ranges.partition_point(|r| r.start <= address);
            let Some(found) = after.checked_sub(1).filter(|&n| holds(&self.ranges[n])) else {
                return address;
            };
            self.last = found;
        }
        let r = self.ranges[self.last];
        let base = PageSize::Base.bytes();
        self.sparse.address(r.page + (address - r.start) / base) + address % base
    }

    /// The runs of adjacent pages to which the pages of a range are mapped.
    fn runs(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let base = PageSize::Base.bytes();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in (start..end).step_by(base as usize) {
            let at = self.place(page);
            match runs.last_mut() {
                Some((first, bytes)) if *first + *bytes == at => *bytes += base,
                _ => runs.push((at, base)),
            }
        }
        runs
    }
}

impl ReferenceSource for SparseSource {
    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn footprint_bytes(&self) -> Option<u64> {
        self.inner.footprint_bytes()
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        if let Some(step) = self.waiting.pop_front() {
            return Ok(step);
        }
        match self.inner.next_step()? {
            Step::Accesses(mut block) => {
                for access in &mut block {
                    access.address = self.place(access.address);
                    // An access that would reach into the next page, which is elsewhere, ends with
                    // its own page.
                    let left = PageSize::Base.bytes() - access.address % PageSize::Base.bytes();
                    access.size = access.size.min(left.min(u64::from(u8::MAX)) as u8);
                }
                Ok(Step::Accesses(block))
            }
            Step::Map { start, size_bytes, huge_eligible } => {
                self.number(start, start + size_bytes);
                let runs = self.runs(start, start + size_bytes);
                self.waiting.extend(runs.into_iter().map(|(start, size_bytes)| Step::Map {
                    start,
                    size_bytes,
                    huge_eligible,
                }));
                self.next_step()
            }
            Step::Unmap { start, size_bytes } => {
                let runs = self.runs(start, start + size_bytes);
                self.waiting.extend(
                    runs.into_iter().map(|(start, size_bytes)| Step::Unmap { start, size_bytes }),
                );
                self.next_step()
            }
            step => Ok(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use terrace_simulated::reference::{Access, AccessKind};

    const PAGE: u64 = 4096;

    struct Listed(VecDeque<Step>);

    impl ReferenceSource for Listed {
        fn threads(&self) -> usize {
            1
        }

        fn footprint_bytes(&self) -> Option<u64> {
            None
        }

        fn next_step(&mut self) -> Result<Step, SourceError> {
            Ok(self.0.pop_front().unwrap_or(Step::Ended))
        }
    }

    fn access(address: u64) -> Access {
        Access { address, instructions: 1, thread: 0, size: 8, kind: AccessKind::Load }
    }

    fn steps(list: Vec<Step>, sparse: Sparse) -> Vec<Step> {
        let mut source = SparseSource::new(Box::new(Listed(list.into())), sparse);
        std::iter::from_fn(|| Some(source.next_step().unwrap()))
            .take_while(|s| *s != Step::Ended)
            .collect()
    }

    #[test]
    fn a_small_program_has_many_tables_of_each_level() {
        let (start, pages) = (0x10_0000, 4096);
        let mut list = vec![Step::Map { start, size_bytes: pages * PAGE, huge_eligible: true }];
        list.push(Step::Accesses((0..pages).map(|p| access(start + p * PAGE + 40)).collect()));
        let steps = steps(list, Sparse { pte: 64, pmd: 8 });
        let Some(Step::Accesses(block)) = steps.last() else { panic!("{steps:?}") };
        let tables = |shift: u32| -> usize {
            block.iter().map(|a| a.address >> shift).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((tables(12), tables(21), tables(30)), (4096, 64, 8));
        assert!(block.iter().all(|a| a.address % PAGE == 40));
        // All accessed pages are mapped, and no others.
        let mapped: u64 = steps
            .iter()
            .map(|s| if let Step::Map { size_bytes, .. } = s { *size_bytes } else { 0 })
            .sum();
        assert_eq!(mapped, pages * PAGE);
        let holds = |a: &Access| {
            steps.iter().any(|s| {
                matches!(s, Step::Map { start, size_bytes, .. }
                    if (*start..start + size_bytes).contains(&a.address))
            })
        };
        assert!(block.iter().step_by(37).all(holds));
    }

    #[test]
    fn what_is_unmapped_and_mapped_again_is_where_it_was() {
        let map =
            |start, pages| Step::Map { start, size_bytes: pages * PAGE, huge_eligible: false };
        let list = vec![
            map(0x10_0000, 3),
            Step::Unmap { start: 0x10_1000, size_bytes: PAGE },
            map(0x10_1000, 4),
            Step::Accesses(vec![access(0x10_1ffc), access(0x50)]),
        ];
        let sparse = Sparse { pte: 2, pmd: 512 };
        let at = |page| sparse.address(page);
        let one = |start, size_bytes| Step::Map { start, size_bytes, huge_eligible: false };
        let mut cut = access(at(1) + 0xffc);
        cut.size = 4;
        assert_eq!(
            steps(list, sparse),
            [
                one(at(0), 2 * PAGE),
                one(at(2), PAGE),
                Step::Unmap { start: at(1), size_bytes: PAGE },
                one(at(1), PAGE),
                one(at(2), 2 * PAGE),
                one(at(4), PAGE),
                Step::Accesses(vec![cut, access(0x50)]),
            ]
        );
    }

    #[test]
    fn what_is_no_number_of_entries_is_refused() {
        assert!(Sparse { pte: 0, pmd: 1 }.check().is_err());
        assert!(Sparse { pte: 1, pmd: 513 }.check().is_err());
        assert!(Sparse { pte: 512, pmd: 1 }.check().is_ok());
    }
}
