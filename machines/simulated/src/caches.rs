//! A reference recording through two levels of caches, counted as cachegrind counts: the work of
//! `terrace caches`.
//!
//! A store by the instruction that has just loaded the same bytes makes that load a modify, which
//! is one read (`terrace_hardware::cache::counting`). All threads share the caches, in time order:
//! cachegrind, too, runs threads one at a time over one set of caches. Processes do not share
//! lines: the process number is in the bits above the address.

use std::io::{Read, Seek};

use terrace_hardware::address::Kind;
use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::cache::counting::{CountingCaches, LevelCounts};
use terrace_hardware::error::ConfigError;
use terrace_recordings::error::RecordingError;
use terrace_recordings::reference::{Event, Placed, Record, ReferenceReader};

/// Bits of an address below the process number; user space has 47, 56 with five levels.
const ADDRESS_BITS: u32 = 57;

/// The counts of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCounts {
    /// Instruction fetches; `None` where the recording has none.
    pub instructions: Option<LevelCounts>,
    /// Loads and modifies.
    pub reads: LevelCounts,
    /// Stores.
    pub writes: LevelCounts,
    /// Reads that were modifies: the store after the load is not counted.
    pub modifies: u64,
}

/// Counts references one by one.
#[derive(Debug, Clone)]
pub struct CacheCounter {
    caches: CountingCaches,
    modifies: u64,
    /// The last load: stream, instructions, address, size.
    loaded: Option<(u32, u64, u64, u8)>,
}

impl CacheCounter {
    /// Empty caches; an error where the configuration is impossible.
    pub fn new(i1: &CacheConfig, d1: &CacheConfig, ll: &CacheConfig) -> Result<Self, ConfigError> {
        let caches = CountingCaches::new(Some(i1), d1, ll)?;
        Ok(CacheCounter { caches, modifies: 0, loaded: None })
    }

    /// Counts a record of a recording; records that are not references are skipped.
    #[inline]
    pub fn record(&mut self, placed: &Placed) {
        let place = |address: u64| {
            (address & ((1 << ADDRESS_BITS) - 1)) | u64::from(placed.process) << ADDRESS_BITS
        };
        match placed.record {
            Record::Reference(r) => {
                let this = (placed.stream, placed.instructions, r.address, r.size_log2);
                if !r.store {
                    self.loaded = Some(this);
                    self.caches.data(place(r.address), r.size_bytes(), Kind::Read);
                } else if self.loaded.take() == Some(this) {
                    self.modifies += 1;
                } else {
                    self.caches.data(place(r.address), r.size_bytes(), Kind::Write);
                }
            }
            Record::Event(Event::Fetch { address, size_bytes }) => {
                self.loaded = None;
                self.caches.fetch(place(address), size_bytes);
            }
            _ => {}
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> CacheCounts {
        let instructions = self.caches.instructions;
        CacheCounts {
            instructions: (instructions.references > 0).then_some(instructions),
            reads: self.caches.reads,
            writes: self.caches.writes,
            modifies: self.modifies,
        }
    }
}

/// Counts a whole recording.
pub fn count<R: Read + Seek>(
    reader: &mut ReferenceReader<R>,
    mut counter: CacheCounter,
) -> Result<CacheCounts, RecordingError> {
    for placed in reader.records() {
        counter.record(&placed?);
    }
    Ok(counter.counts())
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_hardware::units::Bytes;
    use terrace_recordings::reference::Reference;

    fn counter() -> CacheCounter {
        let l1 = CacheConfig::new(Bytes(128), 1, 64);
        CacheCounter::new(&l1, &l1, &CacheConfig::new(Bytes(512), 2, 64)).unwrap()
    }

    fn placed(process: u32, instructions: u64, address: u64, store: bool) -> Placed {
        let record = Record::Reference(Reference { address, size_log2: 3, store });
        Placed { stream: process, process, time: instructions, instructions, record }
    }

    #[test]
    fn a_store_to_what_the_instruction_loaded_makes_a_modify() {
        let mut c = counter();
        for (instruction, address, store) in [
            (1, 0, false),
            (1, 0, true), // a modify
            (2, 0, true), // a store of its own
            (3, 8, false),
            (3, 16, true), // of other bytes
            (4, 8, false),
            (5, 8, true), // by another instruction
        ] {
            c.record(&placed(0, instruction, address, store));
        }
        let counts = c.counts();
        assert_eq!((counts.reads.references, counts.writes.references), (3, 3));
        assert_eq!((counts.modifies, counts.instructions), (1, None));
        assert_eq!(counts.reads.first_level_misses, 1);
    }

    #[test]
    fn processes_do_not_share_lines() {
        let mut c = counter();
        for process in 0..2 {
            c.record(&placed(process, 1, 0, false));
        }
        assert_eq!(c.counts().reads.first_level_misses, 2);
    }

    #[test]
    fn fetches_share_the_last_level_with_data() {
        let mut c = counter();
        let fetch = Record::Event(Event::Fetch { address: 0, size_bytes: 4 });
        c.record(&Placed { record: fetch, ..placed(0, 1, 0, false) });
        c.record(&placed(0, 1, 0, false));
        let counts = c.counts();
        assert_eq!(counts.instructions.unwrap().last_level_misses, 1);
        assert_eq!((counts.reads.first_level_misses, counts.reads.last_level_misses), (1, 0));
    }
}
