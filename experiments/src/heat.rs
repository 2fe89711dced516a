//! The heat map of a group while it runs: accessed and fast shares by address and period, in
//! bins that grow as the run does, so that memory and table stay small whatever the run.

use std::collections::BTreeMap;

use terrace_core::page::PageSize;
use terrace_core::scan::Scan;
use terrace_results::HeatRow;

/// Bins in each direction before neighbours are merged.
const ADDRESS_BINS: usize = 256;
const PERIOD_BINS: usize = 240;

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    pages: u64,
    accessed: u64,
    fast: u64,
}

/// Accumulates the heat map of one group.
pub struct Heat {
    page_size: PageSize,
    /// Pages of an address bin and periods of a period bin, as powers of 2.
    pages_shift: u32,
    periods_shift: u32,
    /// By space and address bin: one bin per period bin.
    rows: BTreeMap<(u32, u64), Vec<Bin>>,
}

impl Heat {
    /// An empty heat map of a group with pages of this size.
    pub fn new(page_size: PageSize) -> Self {
        Heat { page_size, pages_shift: 0, periods_shift: 0, rows: BTreeMap::new() }
    }

    /// Takes in a scan.
    pub fn add(&mut self, scan: &Scan) {
        while (scan.period >> self.periods_shift) as usize >= PERIOD_BINS {
            self.merge_periods();
        }
        // A terabyte of base pages would make millions of bins before the first merge.
        while scan.pages() >> self.pages_shift > 4 * ADDRESS_BINS {
            self.merge_addresses();
        }
        let column = (scan.period >> self.periods_shift) as usize;
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

    /// The rows of the table.
    pub fn rows(&self, run: &str, group: &str) -> Vec<HeatRow> {
        let mut rows = Vec::new();
        for (&(space, bin), columns) in &self.rows {
            for (column, b) in columns.iter().enumerate().filter(|(_, b)| b.pages > 0) {
                rows.push(HeatRow {
                    run: run.to_owned(),
                    group: group.to_owned(),
                    space: space.into(),
                    address: (bin << self.pages_shift) * self.page_size.bytes(),
                    size_bytes: self.page_size.bytes() << self.pages_shift,
                    period: (column as u64) << self.periods_shift,
                    periods: 1 << self.periods_shift,
                    accessed_share: b.accessed as f64 / b.pages as f64,
                    fast_share: b.fast as f64 / b.pages as f64,
                });
            }
        }
        rows
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
    use std::sync::Arc;
    use terrace_core::bits::PageBits;
    use terrace_core::page::Layout;

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
        let rows = heat.rows("r", "g");
        assert_eq!(rows.len(), 8);
        let accessed: Vec<_> = rows.iter().map(|r| r.accessed_share).collect();
        assert_eq!(accessed, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(rows.iter().all(|r| r.fast_share == 1.0 && r.size_bytes == 2 << 20));
    }

    #[test]
    fn a_long_and_wide_run_is_merged_and_loses_no_access() {
        let mut heat = Heat::new(PageSize::Huge);
        let (pages, periods) = (5000, 1000);
        for period in 0..periods {
            heat.add(&scan(period, pages, 1250));
        }
        let rows = heat.rows("r", "g");
        assert!(rows.len() <= ADDRESS_BINS * PERIOD_BINS, "{}", rows.len());
        let bins: f64 = rows.iter().map(|r| r.accessed_share).sum();
        let share = bins / rows.len() as f64;
        assert!((share - 0.25).abs() < 0.01, "{share}");
    }
}
