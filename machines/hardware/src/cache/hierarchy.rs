//! Private first and second levels over a shared last level.
//!
//! Lines move as in write-back hardware: a miss fills every level that keeps the line, a dirty
//! victim goes to the next level down, a dirty victim of the last level goes to memory. There is no
//! coherence protocol between the private levels: two cores that write one line each keep it. For
//! tiering this hides only lines bounced between cores, which never leave the chip. With
//! `snoops` a core gets a line that only another has from there, and not from memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::LineAddress;
use crate::cache::array::{Access, Cache, CacheCounts, Evicted};
use crate::cache::config::CacheConfig;
use crate::error::{ConfigError, check_range};

/// Which lines of the private levels the last level contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusion {
    /// All of them: a line evicted from the last level is removed from the private ones too (Intel
    /// client parts, Xeons up to Broadwell).
    Inclusive,
    /// Filled by misses, but its victims stay in the private levels.
    #[default]
    NonInclusive,
    /// Only victims of the second level (Xeon Scalable, AMD Zen). A hit moves the line up.
    Victim,
}

/// Caches of one socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HierarchyConfig {
    /// First-level data cache of each core.
    pub l1: CacheConfig,
    /// Second level of each core; absent where the second level is the shared one.
    pub l2: Option<CacheConfig>,
    /// The level that all cores share.
    pub llc: CacheConfig,
    /// Which lines the last level contains.
    #[serde(default)]
    pub inclusion: Inclusion,
    /// Whether a line that the last level lacks comes from another core that has it, at the last
    /// level's latency, as by the snoop filter of Xeon Scalable. If not, it comes from memory, which
    /// is too much where threads share data or page tables and the last level has victims only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snoops: bool,
}

/// The level that served a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Level {
    /// The core's first level.
    L1,
    /// The core's second level.
    L2,
    /// The shared last level.
    Llc,
    /// None of these: memory must serve the reference.
    Memory,
}

/// Dirty lines that the last miss evicted to memory.
#[derive(Debug, Clone, Copy, Default)]
struct Writebacks {
    count: u8,
    lines: [LineAddress; 4],
}

impl Writebacks {
    fn push(&mut self, line: LineAddress) {
        self.lines[usize::from(self.count)] = line;
        self.count += 1;
    }
}

/// The level at which a reference enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// The first level, as loads and stores do, and the page walker of Intel's cores.
    #[default]
    L1,
    /// The second level (the last where there are two), as the page walker of AMD's cores.
    L2,
}

#[derive(Debug, Clone)]
struct Private {
    l1: Cache,
    l2: Option<Cache>,
    /// Whether the caches were ever used: caches of idle cores need not be searched.
    used: bool,
}

impl Private {
    fn contains(&self, line: LineAddress) -> bool {
        self.l1.contains(line) || self.l2.as_ref().is_some_and(|l2| l2.contains(line))
    }
}

/// Private first and second levels over a shared last level.
#[derive(Debug, Clone)]
pub struct CacheHierarchy {
    cores: Vec<Private>,
    llc: Cache,
    inclusion: Inclusion,
    snoops: bool,
    snooped: u64,
    line_bits: u32,
    writebacks: Writebacks,
}

impl CacheHierarchy {
    /// Empty caches for `cores` cores.
    pub fn new(config: &HierarchyConfig, cores: usize) -> Result<Self, ConfigError> {
        check_range("caches", "cores", cores as u64, 1..=4096)?;
        let line = config.llc.line_bytes;
        let l2_line = config.l2.as_ref().map_or(line, |l2| l2.line_bytes);
        if config.l1.line_bytes != line || l2_line != line {
            return Err(ConfigError::new(
                "caches",
                format!(
                    "lines of {}, {l2_line} and {line} bytes; all levels need the same",
                    config.l1.line_bytes
                ),
            ));
        }
        let private = Private {
            l1: Cache::new(&config.l1).map_err(|e| e.within("l1"))?,
            l2: config.l2.as_ref().map(Cache::new).transpose().map_err(|e| e.within("l2"))?,
            used: false,
        };
        Ok(CacheHierarchy {
            cores: vec![private; cores],
            llc: Cache::new(&config.llc).map_err(|e| e.within("llc"))?,
            inclusion: config.inclusion,
            snoops: config.snoops,
            snooped: 0,
            line_bits: line.trailing_zeros(),
            writebacks: Writebacks::default(),
        })
    }

    /// Binary logarithm of the line size.
    pub fn line_bits(&self) -> u32 {
        self.line_bits
    }

    /// One reference of one core to one line: the level that had it. After a miss of the first
    /// level, [`CacheHierarchy::writebacks`] returns the evicted dirty lines.
    #[inline]
    pub fn access(&mut self, core: usize, line: LineAddress, write: bool) -> Level {
        let l1 = self.access_first_level(core, line, write);
        if l1.is_hit() { Level::L1 } else { self.access_farther(core, line, l1) }
    }

    /// The commonest part of [`CacheHierarchy::access`]. After a miss
    /// [`CacheHierarchy::access_farther`] must follow.
    #[inline(always)]
    pub(crate) fn access_first_level(
        &mut self,
        core: usize,
        line: LineAddress,
        write: bool,
    ) -> Access {
        self.cores[core].l1.access_first_level(line, write)
    }

    /// The rest of [`CacheHierarchy::access`].
    pub(crate) fn access_farther(&mut self, core: usize, line: LineAddress, l1: Access) -> Level {
        self.writebacks.count = 0;
        self.cores[core].used = true;
        // The line moves first: filling it must not evict it below.
        let level = self.at_l2(core, line, false);
        self.l1_victim(core, l1.evicted());
        level
    }

    /// One reference that enters at `entry`: a page walk's.
    #[inline]
    pub fn access_from(
        &mut self,
        entry: Entry,
        core: usize,
        line: LineAddress,
        write: bool,
    ) -> Level {
        // The first level's copy is newer: a dirty copy there must not be bypassed.
        if entry == Entry::L1 || self.cores[core].l1.contains(line) {
            return self.access(core, line, write);
        }
        self.writebacks.count = 0;
        self.cores[core].used = true;
        self.at_l2(core, line, write)
    }

    /// Brings a line to the second level of a core, or to the last where there is none, before the
    /// program asks for it. Returns the level that had it; from memory the caller reads it. Counts
    /// as a reference of the levels that it enters, and of none if a private level has the line.
    pub(crate) fn prefetch_line(&mut self, core: usize, line: LineAddress) -> Level {
        self.writebacks.count = 0;
        let private = &mut self.cores[core];
        if private.l1.contains(line) {
            return Level::L1;
        }
        private.used = true;
        if private.l2.as_ref().is_some_and(|l2| l2.contains(line)) {
            return Level::L2;
        }
        self.at_l2(core, line, false)
    }

    /// Dirty lines that the last access evicted to memory, in order of eviction; meaningless after
    /// a hit in the first level, which evicts nothing.
    #[inline]
    pub fn writebacks(&self) -> &[LineAddress] {
        &self.writebacks.lines[..usize::from(self.writebacks.count)]
    }

    fn l1_victim(&mut self, core: usize, out: Option<Evicted>) {
        let Some(out) = out else { return };
        if out.dirty && self.inclusion == Inclusion::Inclusive && !self.llc.contains(out.line) {
            // The last level evicted it just now, for the line that it was evicted for above: no
            // level below may keep it.
            self.writebacks.push(out.line);
            return;
        }
        match &mut self.cores[core].l2 {
            None => self.l2_victim(Some(out)),
            Some(l2) if out.dirty => {
                let victim = l2.fill(out.line, true);
                self.l2_victim(victim);
            }
            Some(_) => {}
        }
    }

    fn at_l2(&mut self, core: usize, line: LineAddress, write: bool) -> Level {
        let Some(l2) = &mut self.cores[core].l2 else {
            return self.at_llc(core, line, write);
        };
        let access = l2.access(line, write);
        if access.is_hit() {
            return Level::L2;
        }
        let level = self.at_llc(core, line, false);
        self.l2_victim(access.evicted());
        level
    }

    fn at_llc(&mut self, core: usize, line: LineAddress, write: bool) -> Level {
        if self.inclusion == Inclusion::Victim {
            let Some(dirty) = self.llc.take(line, write) else {
                // Only a walk in a machine without a second level writes here; it must not be lost.
                if write && let Some(victim) = self.llc.fill(line, true) {
                    self.llc_victim(victim);
                }
                return self.beyond_llc(core, line);
            };
            // The only copy moves up, and its dirty bit with it.
            if dirty | write {
                let private = &mut self.cores[core];
                let moved = match &mut private.l2 {
                    Some(l2) => l2.mark_dirty(line),
                    None => private.l1.mark_dirty(line),
                };
                // No level above keeps it (a walk in a machine without a second level).
                if !moved {
                    self.llc.fill(line, true);
                }
            }
            return Level::Llc;
        }
        let access = self.llc.access(line, write);
        if access.is_hit() {
            return Level::Llc;
        }
        if let Some(out) = access.evicted() {
            self.llc_victim(out);
        }
        self.beyond_llc(core, line)
    }

    /// What has a line that the last level lacked.
    fn beyond_llc(&mut self, core: usize, line: LineAddress) -> Level {
        let mut others = self.cores.iter().enumerate().filter(|&(n, p)| n != core && p.used);
        if !self.snoops || !others.any(|(_, p)| p.contains(line)) {
            return Level::Memory;
        }
        self.snooped += 1;
        Level::Llc
    }

    fn l2_victim(&mut self, out: Option<Evicted>) {
        let Some(out) = out else { return };
        if out.dirty && self.inclusion == Inclusion::Inclusive && !self.llc.contains(out.line) {
            self.writebacks.push(out.line);
            return;
        }
        if (out.dirty || self.inclusion == Inclusion::Victim)
            && let Some(victim) = self.llc.fill(out.line, out.dirty)
        {
            self.llc_victim(victim);
        }
    }

    fn llc_victim(&mut self, out: Evicted) {
        let mut dirty = out.dirty;
        if self.inclusion == Inclusion::Inclusive {
            dirty |= self.invalidate_private(out.line);
        }
        if dirty {
            self.writebacks.push(out.line);
        }
    }

    /// Empties the private levels and fills the last with lines, each with whether it is dirty, as
    /// by uses of them in this order that the levels above have forgotten. Counts as no reference,
    /// and writes nothing back.
    pub fn fill_shared(&mut self, lines: &[(LineAddress, bool)]) {
        /// Lines prefetched on the host ahead of the line being filled.
        const AHEAD: usize = 16;
        for private in self.cores.iter_mut().filter(|p| p.used) {
            for cache in [Some(&mut private.l1), private.l2.as_mut()].into_iter().flatten() {
                cache.lines().iter().for_each(|out| {
                    cache.invalidate(out.line);
                });
            }
        }
        lines.iter().take(AHEAD).for_each(|(line, _)| self.llc.prefetch(*line));
        for (n, &(line, dirty)) in lines.iter().enumerate() {
            if let Some((ahead, _)) = lines.get(n + AHEAD) {
                self.llc.prefetch(*ahead);
            }
            self.writebacks.count = 0;
            if let Some(victim) = self.llc.fill(line, dirty) {
                self.llc_victim(victim);
            }
        }
        self.writebacks.count = 0;
    }

    fn invalidate_private(&mut self, line: LineAddress) -> bool {
        let mut dirty = false;
        for private in self.cores.iter_mut().filter(|p| p.used) {
            dirty |= private.l1.invalidate(line) == Some(true);
            if let Some(l2) = &mut private.l2 {
                dirty |= l2.invalidate(line) == Some(true);
            }
        }
        dirty
    }

    /// Prefetches on the host the data that a reference of this core to this line will read beyond
    /// the first level.
    #[inline]
    pub(crate) fn prefetch(&self, core: usize, line: LineAddress) {
        if let Some(l2) = &self.cores[core].l2 {
            l2.prefetch(line);
        }
        self.llc.prefetch(line);
    }

    /// Prefetches the sets of the lines that it will evict, once the data that
    /// [`CacheHierarchy::prefetch`] requested is present.
    #[inline]
    pub(crate) fn prefetch_victims(&self, core: usize, line: LineAddress) {
        let private = &self.cores[core];
        let Some(l2) = &private.l2 else { return };
        if let Some(out) = private.l1.next_victim(line)
            && out.dirty
        {
            l2.prefetch(out.line);
        }
        if let Some(out) = l2.next_victim(line)
            && (out.dirty || self.inclusion == Inclusion::Victim)
        {
            self.llc.prefetch(out.line);
        }
    }

    /// Removes consecutive lines from every level.
    pub fn invalidate_lines(&mut self, first: LineAddress, lines: u64) {
        /// Lines prefetched ahead of the line being removed.
        const AHEAD: u64 = 16;
        let end = first.0 + lines;
        let ask = |caches: &Self, line: u64| {
            if line < end {
                let line = LineAddress(line);
                caches.llc.prefetch(line);
                let l2 = caches.cores.iter().filter(|p| p.used).filter_map(|p| p.l2.as_ref());
                l2.for_each(|l2| l2.prefetch(line));
            }
        };
        (first.0..first.0 + AHEAD).for_each(|line| ask(self, line));
        for line in first.0..end {
            ask(self, line + AHEAD);
            self.invalidate(LineAddress(line));
        }
    }

    /// Removes a line from every level, as when its page moves. Returns whether memory must get it
    /// first.
    pub fn invalidate(&mut self, line: LineAddress) -> bool {
        let above = self.invalidate_private(line);
        let here = self.llc.invalidate(line) == Some(true);
        above | here
    }

    /// Whether any level has the line; counts and uses nothing.
    pub fn contains(&self, line: LineAddress) -> bool {
        self.llc.contains(line) || self.cores.iter().any(|p| p.contains(line))
    }

    /// The caches of one core, first and second level, read-only.
    pub fn private(&self, core: usize) -> (&Cache, Option<&Cache>) {
        (&self.cores[core].l1, self.cores[core].l2.as_ref())
    }

    /// The shared cache, read-only.
    pub fn shared(&self) -> &Cache {
        &self.llc
    }

    /// Counts of all cores' first levels together, of the second levels, of the last level.
    pub fn counts(&self) -> [CacheCounts; 3] {
        let mut sum = [CacheCounts::default(); 3];
        for private in &self.cores {
            sum[0] += private.l1.counts();
            if let Some(l2) = &private.l2 {
                sum[1] += l2.counts();
            }
        }
        sum[2] = self.llc.counts();
        sum
    }

    /// Misses of the last level whose line came from another core.
    pub fn snooped(&self) -> u64 {
        self.snooped
    }

    /// Resets the counts; the lines stay.
    pub fn reset_counts(&mut self) {
        self.snooped = 0;
        for private in &mut self.cores {
            private.l1.reset_counts();
            if let Some(l2) = &mut private.l2 {
                l2.reset_counts();
            }
        }
        self.llc.reset_counts();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    /// One set each: 2, 4 and 8 lines.
    fn config(inclusion: Inclusion) -> HierarchyConfig {
        let cache = |ways: u32| CacheConfig::new(Bytes(64 * u64::from(ways)), ways, 64);
        let (l1, l2, llc) = (cache(2), Some(cache(4)), cache(8));
        HierarchyConfig { l1, l2, llc, inclusion, snoops: false }
    }

    fn read(h: &mut CacheHierarchy, line: u64) -> Level {
        h.access(0, LineAddress(line), false)
    }

    #[test]
    fn a_line_is_found_at_the_level_its_age_allows() {
        for inclusion in [Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim] {
            let mut h = CacheHierarchy::new(&config(inclusion), 1).unwrap();
            for line in 1..=6 {
                assert_eq!(read(&mut h, line), Level::Memory);
            }
            assert_eq!(read(&mut h, 6), Level::L1, "{inclusion:?}");
            assert_eq!(read(&mut h, 4), Level::L2, "{inclusion:?}");
            assert_eq!(read(&mut h, 1), Level::Llc, "{inclusion:?}");
            assert_eq!(read(&mut h, 1), Level::L1, "{inclusion:?}");
        }
    }

    #[test]
    fn a_victim_cache_adds_its_lines_to_the_level_above() {
        // 12 lines cycle: 4 + 8 fit only when no line is kept twice.
        let hits = |inclusion| {
            let mut h = CacheHierarchy::new(&config(inclusion), 1).unwrap();
            let mut memory = 0;
            for n in 0..120u64 {
                memory += u64::from(read(&mut h, n % 12) == Level::Memory);
            }
            memory
        };
        assert_eq!(hits(Inclusion::Victim), 12);
        assert_eq!(hits(Inclusion::NonInclusive), 120);
    }

    #[test]
    fn an_inclusive_last_level_takes_its_victims_out_everywhere() {
        let mut h = CacheHierarchy::new(&config(Inclusion::Inclusive), 2).unwrap();
        h.access(1, LineAddress(100), true);
        let mut written = Vec::new();
        for line in 1..=8 {
            h.access(0, LineAddress(line), false);
            written.extend(h.writebacks().to_vec());
        }
        assert!(!h.private(1).0.contains(LineAddress(100)));
        assert_eq!(written, [LineAddress(100)]);
    }

    #[test]
    fn with_snoops_a_line_that_only_another_core_has_is_not_read_from_memory() {
        let levels = |snoops| {
            let config = HierarchyConfig { snoops, ..config(Inclusion::Victim) };
            let mut h = CacheHierarchy::new(&config, 2).unwrap();
            let mut read = |core, line| h.access(core, LineAddress(line), false);
            [read(0, 1), read(1, 1), read(1, 1), read(1, 2), read(0, 2), read(0, 3)]
        };
        use Level::{L1, Llc, Memory};
        assert_eq!(levels(true), [Memory, Llc, L1, Memory, Llc, Memory]);
        assert_eq!(levels(false), [Memory, Memory, L1, Memory, Memory, Memory]);
    }

    #[test]
    fn lines_that_fill_the_last_level_are_there_as_by_old_uses() {
        for inclusion in [Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim] {
            let mut h = CacheHierarchy::new(&config(inclusion), 1).unwrap();
            h.access(0, LineAddress(20), true);
            let counts = |h: &CacheHierarchy| (h.counts()[2].references(), h.counts()[2].misses());
            let before = counts(&h);
            // One more than the level holds: the first is gone.
            let lines: Vec<_> = (1..=9).map(|line| (LineAddress(line), line == 9)).collect();
            h.fill_shared(&lines);
            assert_eq!(counts(&h), before);
            assert!(!h.private(0).0.contains(LineAddress(20)), "{inclusion:?}");
            assert!(h.writebacks().is_empty());
            assert_eq!(read(&mut h, 9), Level::Llc, "{inclusion:?}");
            assert_eq!(read(&mut h, 1), Level::Memory, "{inclusion:?}");
            assert!(h.invalidate(LineAddress(9)), "dirty, {inclusion:?}");
        }
    }

    #[test]
    fn an_invalidated_line_says_whether_it_was_dirty() {
        let mut h = CacheHierarchy::new(&config(Inclusion::Victim), 1).unwrap();
        h.access(0, LineAddress(1), true);
        h.access(0, LineAddress(2), false);
        assert!(h.invalidate(LineAddress(1)));
        assert!(!h.invalidate(LineAddress(1)));
        assert!(!h.invalidate(LineAddress(2)));
        assert!(!h.contains(LineAddress(2)));
    }

    #[test]
    fn levels_with_different_lines_are_refused() {
        let mut c = config(Inclusion::Inclusive);
        c.l1.line_bytes = 32;
        c.l1.ways = 4;
        let error = CacheHierarchy::new(&c, 1).unwrap_err().to_string();
        assert!(error.contains("all levels need the same"), "{error}");
        let mut c = config(Inclusion::Inclusive);
        c.l1.size = Bytes(100);
        let error = CacheHierarchy::new(&c, 1).unwrap_err().to_string();
        assert!(error.starts_with("l1.cache: 100"), "{error}");
    }
}
