//! The rules of section 4 of the migration-granularity paper: what a scan of slow memory raises
//! the granularity to, and what a scan of fast memory lowers it to.
//!
//! Thresholds are compared as the paper words it: "more than" and "above" are strict, and so are
//! "fewer than" and "below". Two places of the text need a reading:
//! - The decision to raise is taken when pages move in, the decision to lower when they move out.
//!   So the rule that sets 64 KB while moving in does not lower it from 2 MB.
//! - Lowering from 2 MB to 64 KB asks, as worded, only that few 64 KB regions are sparse. That is
//!   so of memory that is used throughout, which would then never stay at 2 MB; the paper's figure
//!   11 shows that it does. Read together with the sentence before it, more than a threshold of
//!   2 MB regions must be sparse as well; `keep_dense_2mb = false` gives the rule as worded.

/// 64 KB and 2 MB, the regions whose use is judged.
pub(super) const REGION_64KB: u64 = 64 << 10;
pub(super) const REGION_2MB: u64 = 2 << 20;

/// How much is moved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Base,
    Medium,
    Large,
}

impl Level {
    /// In bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Level::Base => 4 << 10,
            Level::Medium => REGION_64KB,
            Level::Large => REGION_2MB,
        }
    }

    /// The policy that always moves as much: the name reported as applied by an adaptive one.
    pub fn policy(self) -> &'static str {
        match self {
            Level::Base => "granularity-4k",
            Level::Medium => "granularity-64k",
            Level::Large => "granularity-2m",
        }
    }
}

/// The thresholds under the paper's names. Pages are base pages of 4 KB: an accessed huge page
/// counts as 512.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thresholds {
    pub thr_high_2mb: u32,
    pub thr_high_64kb: u32,
    pub thr_high_num_reg_2mb: u32,
    pub thr_high_num_reg_64kb: u32,
    pub thr_low_2mb: u32,
    pub thr_low_64kb: u32,
    /// The paper's text calls it `thr1_downgrade_2MB` once.
    pub thr_low_num_reg_2mb: u32,
    pub thr_low_num_reg_64kb: u32,
    pub keep_dense_2mb: bool,
}

/// Counts of the regions that a scan read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Regions {
    /// With more accessed pages than `thr_high_2mb`, `thr_high_64kb`.
    pub dense_2mb: u32,
    pub dense_64kb: u32,
    /// With fewer than `thr_low_2mb`, `thr_low_64kb`.
    pub sparse_2mb: u32,
    pub sparse_64kb: u32,
}

impl Thresholds {
    /// Adds a region of 2 MB with this many accessed pages of the scanned tier.
    pub fn region_2mb(&self, accessed: u32, regions: &mut Regions) {
        regions.dense_2mb += u32::from(accessed > self.thr_high_2mb);
        regions.sparse_2mb += u32::from(accessed < self.thr_low_2mb);
    }

    /// Adds a region of 64 KB.
    pub fn region_64kb(&self, accessed: u32, regions: &mut Regions) {
        regions.dense_64kb += u32::from(accessed > self.thr_high_64kb);
        regions.sparse_64kb += u32::from(accessed < self.thr_low_64kb);
    }

    /// After a scan of slow memory.
    pub fn moving_in(&self, now: Level, found: &Regions) -> Level {
        if found.dense_2mb > self.thr_high_num_reg_2mb {
            Level::Large
        } else if found.dense_64kb > self.thr_high_num_reg_64kb {
            now.max(Level::Medium)
        } else {
            now
        }
    }

    /// After a scan of fast memory.
    pub fn moving_out(&self, now: Level, found: &Regions) -> Level {
        let sparse_2mb = found.sparse_2mb > self.thr_low_num_reg_2mb;
        if sparse_2mb && found.sparse_64kb > self.thr_low_num_reg_64kb {
            return Level::Base;
        }
        let dense_64kb = found.sparse_64kb < self.thr_low_num_reg_64kb;
        if now == Level::Large && dense_64kb && (sparse_2mb || !self.keep_dense_2mb) {
            return Level::Medium;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Base, Large, Medium};
    use super::*;

    const LEVELS: [Level; 3] = [Base, Medium, Large];

    fn dense(dense_2mb: u32, dense_64kb: u32) -> Regions {
        Regions { dense_2mb, dense_64kb, ..Regions::default() }
    }

    fn sparse(sparse_2mb: u32, sparse_64kb: u32) -> Regions {
        Regions { sparse_2mb, sparse_64kb, ..Regions::default() }
    }

    #[test]
    fn a_2mb_region_is_dense_above_480_and_sparse_below() {
        let counted = |accessed| {
            let mut regions = Regions::default();
            Thresholds::default().region_2mb(accessed, &mut regions);
            (regions.dense_2mb, regions.sparse_2mb)
        };
        assert_eq!([counted(479), counted(480), counted(481)], [(0, 1), (0, 0), (1, 0)]);
    }

    #[test]
    fn a_64kb_region_is_dense_above_10_and_sparse_below() {
        let counted = |accessed| {
            let mut regions = Regions::default();
            Thresholds::default().region_64kb(accessed, &mut regions);
            (regions.dense_64kb, regions.sparse_64kb)
        };
        assert_eq!([counted(9), counted(10), counted(11)], [(0, 1), (0, 0), (1, 0)]);
    }

    #[test]
    fn more_than_3_dense_2mb_regions_set_2mb() {
        let rules = Thresholds::default();
        assert_eq!(LEVELS.map(|now| rules.moving_in(now, &dense(4, 0))), [Large; 3]);
        assert_eq!(LEVELS.map(|now| rules.moving_in(now, &dense(3, 0))), LEVELS);
        assert_eq!(rules.moving_in(Base, &dense(4, 128)), Large, "before the rule of 64 KB");
    }

    #[test]
    fn else_more_than_3_dense_64kb_regions_set_64kb_and_lower_nothing() {
        let rules = Thresholds::default();
        let after = |found| LEVELS.map(|now| rules.moving_in(now, &found));
        assert_eq!(after(dense(3, 4)), [Medium, Medium, Large]);
        assert_eq!(after(dense(3, 3)), LEVELS);
    }

    #[test]
    fn more_than_3_sparse_regions_of_both_sizes_set_4kb() {
        let rules = Thresholds::default();
        let after = |found| LEVELS.map(|now| rules.moving_out(now, &found));
        assert_eq!(after(sparse(4, 4)), [Base; 3]);
        assert_eq!(after(sparse(3, 4)), LEVELS);
        assert_eq!(after(sparse(4, 3)), LEVELS, "neither above nor below");
    }

    #[test]
    fn sparse_2mb_regions_that_are_dense_at_64kb_lower_2mb_to_64kb() {
        let rules = Thresholds::default();
        let after = |found| LEVELS.map(|now| rules.moving_out(now, &found));
        assert_eq!(after(sparse(4, 2)), [Base, Medium, Medium]);
        assert_eq!(after(sparse(3, 2)), LEVELS, "2 MB regions are used well enough");
        let worded = Thresholds { keep_dense_2mb: false, ..rules };
        assert_eq!(worded.moving_out(Large, &sparse(0, 2)), Medium);
        assert_eq!(worded.moving_out(Large, &sparse(0, 3)), Large);
    }

    #[test]
    fn every_threshold_is_its_own() {
        // Each raised alone moves its own rule and no other.
        let up = |change: fn(&mut Thresholds)| {
            let mut rules = Thresholds::default();
            change(&mut rules);
            let mut regions = Regions::default();
            rules.region_2mb(481, &mut regions);
            rules.region_2mb(480, &mut regions);
            rules.region_64kb(11, &mut regions);
            rules.region_64kb(10, &mut regions);
            let levels = [
                rules.moving_in(Base, &dense(4, 0)),
                rules.moving_in(Base, &dense(0, 4)),
                rules.moving_out(Large, &sparse(4, 4)),
                rules.moving_out(Large, &sparse(4, 2)),
            ];
            (regions, levels)
        };
        let (regions, levels) = up(|_| {});
        let as_before = Regions { dense_2mb: 1, dense_64kb: 1, sparse_2mb: 0, sparse_64kb: 0 };
        assert_eq!((regions, levels), (as_before, [Large, Medium, Base, Medium]));
        assert_eq!(up(|t| t.thr_high_2mb = 481).0, Regions { dense_2mb: 0, ..as_before });
        assert_eq!(up(|t| t.thr_high_64kb = 11).0, Regions { dense_64kb: 0, ..as_before });
        assert_eq!(up(|t| t.thr_low_2mb = 481).0, Regions { sparse_2mb: 1, ..as_before });
        assert_eq!(up(|t| t.thr_low_64kb = 11).0, Regions { sparse_64kb: 1, ..as_before });
        assert_eq!(up(|t| t.thr_high_num_reg_2mb = 4).1, [Base, Medium, Base, Medium]);
        assert_eq!(up(|t| t.thr_high_num_reg_64kb = 4).1, [Large, Base, Base, Medium]);
        assert_eq!(up(|t| t.thr_low_num_reg_2mb = 4).1, [Large, Medium, Large, Large]);
        assert_eq!(up(|t| t.thr_low_num_reg_64kb = 4).1, [Large, Medium, Large, Medium]);
    }
}
