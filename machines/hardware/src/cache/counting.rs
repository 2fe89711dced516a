//! Caches counted as Valgrind's cachegrind counts them, so that the model can be checked against an
//! independent tool.
//!
//! Its rules (Valgrind 3.19, `cachegrind/cg_sim.c`, described in its manual, section "Cachegrind
//! specifics"): two levels, LRU, write-allocate; a reference that crosses a line is one reference
//! and at most one miss, but both its lines are looked up; the last level gets a whole reference
//! whose first level missed, both its lines even if only one missed; references longer than a line
//! count as one of a line's length; a modify is one read. Lines are never written back.

use crate::address::Kind;
use crate::address::LineAddress;
use crate::cache::array::Cache;
use crate::cache::config::CacheConfig;
use crate::error::ConfigError;

/// References and misses of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LevelCounts {
    /// References of the program.
    pub references: u64,
    /// Those that missed in the first level.
    pub first_level_misses: u64,
    /// Those that missed in the last level too.
    pub last_level_misses: u64,
}

impl LevelCounts {
    fn add(&mut self, misses: (bool, bool)) {
        self.references += 1;
        self.first_level_misses += u64::from(misses.0);
        self.last_level_misses += u64::from(misses.1);
    }
}

/// A cache in which a reference may cross lines.
#[derive(Debug, Clone)]
struct Bank {
    cache: Cache,
    line_bits: u32,
}

impl Bank {
    fn new(config: &CacheConfig) -> Result<Self, ConfigError> {
        Ok(Bank { cache: Cache::new(config)?, line_bits: config.line_bytes.trailing_zeros() })
    }

    #[inline]
    fn misses(&mut self, address: u64, size: u64) -> bool {
        let first = address >> self.line_bits;
        let last = (address + (size - 1)) >> self.line_bits;
        let mut missed = !self.cache.access_first_level(LineAddress(first), false).is_hit();
        if last != first {
            missed |= !self.cache.access(LineAddress(last), false).is_hit();
        }
        missed
    }
}

/// First-level instruction and data caches over one last level.
#[derive(Debug, Clone)]
pub struct CountingCaches {
    i1: Option<Bank>,
    d1: Bank,
    ll: Bank,
    /// A reference counts as no longer than the shortest line.
    longest: u64,
    /// Instruction fetches.
    pub instructions: LevelCounts,
    /// Loads and modifies.
    pub reads: LevelCounts,
    /// Stores.
    pub writes: LevelCounts,
}

impl CountingCaches {
    /// Empty caches. Without `i1`, instructions are not counted and do not share the last level:
    /// for recordings that hold data references only.
    pub fn new(
        i1: Option<&CacheConfig>,
        d1: &CacheConfig,
        ll: &CacheConfig,
    ) -> Result<Self, ConfigError> {
        let longest = [i1, Some(d1), Some(ll)].into_iter().flatten().map(|c| c.line_bytes).min();
        Ok(CountingCaches {
            i1: i1.map(Bank::new).transpose().map_err(|e| e.within("i1"))?,
            d1: Bank::new(d1).map_err(|e| e.within("d1"))?,
            ll: Bank::new(ll).map_err(|e| e.within("ll"))?,
            longest: u64::from(longest.unwrap_or(d1.line_bytes)),
            instructions: LevelCounts::default(),
            reads: LevelCounts::default(),
            writes: LevelCounts::default(),
        })
    }

    /// Counts the fetch of an instruction of `size` bytes.
    #[inline]
    pub fn fetch(&mut self, address: u64, size: u64) {
        let Some(i1) = &mut self.i1 else { return };
        let size = size.clamp(1, self.longest);
        let first = i1.misses(address, size);
        let last = first && self.ll.misses(address, size);
        self.instructions.add((first, last));
    }

    /// Counts a read or write of `size` bytes. A modify is one read.
    #[inline]
    pub fn data(&mut self, address: u64, size: u64, kind: Kind) {
        let size = size.clamp(1, self.longest);
        let first = self.d1.misses(address, size);
        let last = first && self.ll.misses(address, size);
        match kind {
            Kind::Read => self.reads.add((first, last)),
            Kind::Write => self.writes.add((first, last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn caches() -> CountingCaches {
        let l1 = CacheConfig::new(Bytes(128), 1, 64);
        CountingCaches::new(None, &l1, &CacheConfig::new(Bytes(512), 2, 64)).unwrap()
    }

    #[test]
    fn a_reference_across_a_line_is_one_reference_and_one_miss() {
        let mut c = caches();
        c.data(60, 8, Kind::Read);
        assert_eq!(
            c.reads,
            LevelCounts { references: 1, first_level_misses: 1, last_level_misses: 1 }
        );
        // Both lines were filled.
        c.data(0, 8, Kind::Write);
        c.data(64, 8, Kind::Read);
        assert_eq!(c.writes.first_level_misses, 0);
        assert_eq!(c.reads.first_level_misses, 1);
    }

    #[test]
    fn long_references_count_as_one_line() {
        let mut c = caches();
        c.data(0, 512, Kind::Read);
        c.data(64, 8, Kind::Read);
        assert_eq!(c.reads.first_level_misses, 2);
    }

    #[test]
    fn instructions_share_the_last_level_only_if_they_are_counted() {
        let mut c = caches();
        c.fetch(0, 4);
        assert_eq!(c.instructions.references, 0);
        let l1 = CacheConfig::new(Bytes(128), 1, 64);
        let mut c =
            CountingCaches::new(Some(&l1), &l1, &CacheConfig::new(Bytes(512), 2, 64)).unwrap();
        c.fetch(0, 4);
        c.data(0, 8, Kind::Read);
        assert_eq!(c.reads.first_level_misses, 1);
        assert_eq!(c.reads.last_level_misses, 0);
    }
}
