//! The heat map of a group while it runs: accessed and fast shares by address and period, in
//! bins that grow as the run does, so that memory and table stay small whatever the run.

use std::collections::BTreeMap;

use crate::page::PageSize;
use crate::scan::Scan;

/// Bins in each direction before neighbours are merged.
const ADDRESS_BINS: usize = 256;
const PERIOD_BINS: usize = 240;

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    pages: u64,
    accessed: u64,
    fast: u64,
}

/// A bin of a heat map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatBin {
    /// Address space: on Linux the process identifier.
    pub space: u32,
    /// First address, in bytes.
    pub address: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// First period, counted from 0.
    pub period: u64,
    /// Number of periods.
    pub periods: u64,
    /// Pages and periods of the bin that were accessed, over all, 0 to 1.
    pub accessed_share: f64,
    /// Share of the bin's pages and periods in fast memory, 0 to 1.
    pub fast_share: f64,
}

/// Accumulates the heat map of one group.
#[derive(Debug, Clone)]
pub struct Heat {
    page_size: PageSize,
    /// Pages of an address bin and periods of a period bin, as powers of 2.
    pages_shift: u32,
    periods_shift: u32,
    /// Period of the first scan since the last call of `resume`.
    offset: u64,
    /// Periods so far.
    end: u64,
    /// By space and address bin: one bin per period bin.
    rows: BTreeMap<(u32, u64), Vec<Bin>>,
}

impl Heat {
    /// An empty heat map of a group with pages of this size.
    pub fn new(page_size: PageSize) -> Self {
        Heat {
            page_size,
            pages_shift: 0,
            periods_shift: 0,
            offset: 0,
            end: 0,
            rows: BTreeMap::new(),
        }
    }

    /// The next scans are of a tracker that counts periods from 0 again: they follow those that were
    /// added.
    pub fn resume(&mut self) {
        self.offset = self.end;
    }

    /// Adds a scan.
    pub fn add(&mut self, scan: &Scan) {
        let period = self.offset + scan.period;
        self.end = self.end.max(period + 1);
        while (period >> self.periods_shift) as usize >= PERIOD_BINS {
            self.merge_periods();
        }
        // A terabyte of base pages would make millions of bins before the first merge.
        while scan.pages() >> self.pages_shift > 4 * ADDRESS_BINS {
            self.merge_addresses();
        }
        let column = (period >> self.periods_shift) as usize;
        for (number, extent) in scan.layout.extents().iter().enumerate() {
            let first_index = scan.layout.first_index(number);
            let first_page = extent.start / self.page_size.bytes();
            let mut done = 0;
            while done < extent.pages {
                let bin = (first_page + done) >> self.pages_shift;
                let pages =
                    (((bin + 1) << self.pages_shift) - first_page - done).min(extent.pages - done);
                let index = first_index + done as usize;
                let range = index..index + pages as usize;
                let row = self.rows.entry((extent.space.0, bin)).or_default();
                if row.len() <= column {
                    row.resize(column + 1, Bin::default());
                }
                row[column].pages += pages;
                row[column].accessed += scan.accessed.count_range(range.clone()) as u64;
                row[column].fast += scan.fast.count_range(range) as u64;
                done += pages;
            }
        }
        while self.rows.len() > ADDRESS_BINS && self.pages_shift < 40 {
            let before = self.rows.len();
            self.merge_addresses();
            if self.rows.len() == before && self.pages_shift > 30 {
                break; // as many address spaces as bins: there is nothing left to merge
            }
        }
    }

    fn merge_addresses(&mut self) {
        self.pages_shift += 1;
        for ((space, bin), row) in std::mem::take(&mut self.rows) {
            let target = self.rows.entry((space, bin >> 1)).or_default();
            if target.len() < row.len() {
                target.resize(row.len(), Bin::default());
            }
            target.iter_mut().zip(row).for_each(|(t, b)| t.add(b));
        }
    }

    fn merge_periods(&mut self) {
        self.periods_shift += 1;
        for row in self.rows.values_mut() {
            let merge = |pair: &[Bin]| {
                let mut sum = pair[0];
                pair[1..].iter().for_each(|&b| sum.add(b));
                sum
            };
            *row = row.chunks(2).map(merge).collect();
        }
    }

    /// The bins that hold pages, by space and address, then by period.
    pub fn bins(&self) -> impl Iterator<Item = HeatBin> + '_ {
        self.rows.iter().flat_map(move |(&(space, bin), columns)| {
            let with_pages = columns.iter().enumerate().filter(|(_, b)| b.pages > 0);
            with_pages.map(move |(column, b)| HeatBin {
                space,
                address: (bin << self.pages_shift) * self.page_size.bytes(),
                size_bytes: self.page_size.bytes() << self.pages_shift,
                period: (column as u64) << self.periods_shift,
                periods: 1 << self.periods_shift,
                accessed_share: b.accessed as f64 / b.pages as f64,
                fast_share: b.fast as f64 / b.pages as f64,
            })
        })
    }
}

impl Bin {
    fn add(&mut self, other: Bin) {
        self.pages += other.pages;
        self.accessed += other.accessed;
        self.fast += other.fast;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::PageBits;
    use crate::page::Layout;
    use std::sync::Arc;

    fn scan(period: u64, pages: usize, accessed: usize) -> Scan {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, pages as u64));
        let mut bits = PageBits::new(pages);
        bits.set_range(0..accessed, true);
        Scan::new(period, layout, bits, PageBits::ones(pages))
    }

    #[test]
    fn a_small_run_keeps_every_page_and_period_apart() {
        let mut heat = Heat::new(PageSize::Huge);
        heat.add(&scan(0, 4, 1));
        heat.add(&scan(1, 4, 2));
        let rows = heat.bins().collect::<Vec<_>>();
        assert_eq!(rows.len(), 8);
        let accessed: Vec<_> = rows.iter().map(|r| r.accessed_share).collect();
        assert_eq!(accessed, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(rows.iter().all(|r| r.fast_share == 1.0 && r.size_bytes == 2 << 20));
    }

    #[test]
    fn scans_of_a_tracker_that_begins_again_follow_those_before() {
        let mut heat = Heat::new(PageSize::Huge);
        (0..3).for_each(|period| heat.add(&scan(period, 1, 1)));
        heat.resume();
        (0..2).for_each(|period| heat.add(&scan(period, 1, 0)));
        let rows: Vec<_> = heat.bins().map(|b| (b.period, b.accessed_share)).collect();
        assert_eq!(rows, [(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.0), (4, 0.0)]);
    }

    #[test]
    fn a_long_and_wide_run_is_merged_and_loses_no_access() {
        let mut heat = Heat::new(PageSize::Huge);
        let (pages, periods) = (5000, 1000);
        for period in 0..periods {
            heat.add(&scan(period, pages, 1250));
        }
        let rows = heat.bins().collect::<Vec<_>>();
        assert!(rows.len() <= ADDRESS_BINS * PERIOD_BINS, "{}", rows.len());
        let bins: f64 = rows.iter().map(|r| r.accessed_share).sum();
        let share = bins / rows.len() as f64;
        assert!((share - 0.25).abs() < 0.01, "{share}");
    }
}
