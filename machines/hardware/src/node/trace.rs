//! What references did to translations and caches, written down for nodes that differ in their times
//! alone.
//!
//! A [`Writer`] has the hardware and writes a [`Trace`]; a [`Reader`] reads it, in the same order of
//! references. A bit for each reference says whether it was of one line that the first level of
//! everything had. Of all others the trace has words, each of a kind, a level, and a line:
//!
//! - a translation: of the first or the second level, with the line; or a walk, which is followed by
//!   its accesses and ends with the line, or with the level of the page table where it faults;
//! - a line: the level that served it;
//! - lines that were read ahead;
//! - lines written back by the word before.

use std::sync::Arc;

use super::front::{Front, Hardware, Wanted};
use crate::address::{LineAddress, PhysicalAddress};
use crate::cache::array::Access;
use crate::cache::hierarchy::Level;
use crate::tlb::Lookup;
use crate::units::Picoseconds;
use crate::walker::{Fault, PageTable};

const TRANSLATED: u64 = 0;
const TRANSLATED_BY_SECOND: u64 = 1;
const WALK: u64 = 2;
const WALK_ACCESS: u64 = 3;
const WALKED: u64 = 4;
const FAULTED: u64 = 5;
const SERVED: u64 = 6;
const READ_AHEAD: u64 = 7;
const WRITTEN_BACK: u64 = 8;

const KIND_BITS: u32 = 4;
const LEVEL_BITS: u32 = 2;
const LEVELS: [Level; 1 << LEVEL_BITS] = [Level::L1, Level::L2, Level::Llc, Level::Memory];

fn word(kind: u64, level: Level, line: LineAddress) -> u64 {
    kind | (level as u64) << KIND_BITS | line.0 << (KIND_BITS + LEVEL_BITS)
}

fn kind(word: u64) -> u64 {
    word & ((1 << KIND_BITS) - 1)
}

fn level(word: u64) -> Level {
    LEVELS[(word >> KIND_BITS) as usize % LEVELS.len()]
}

fn line(word: u64) -> LineAddress {
    LineAddress(word >> (KIND_BITS + LEVEL_BITS))
}

/// What some references did, in their order. One that faulted and is made again counts twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// A bit for each reference.
    hits: Vec<u64>,
    references: usize,
    words: Vec<u64>,
}

impl Trace {
    fn begin(&mut self) {
        if self.references.is_multiple_of(64) {
            self.hits.push(0);
        }
        self.references += 1;
    }

    fn hit(&mut self) {
        let last = self.references - 1;
        self.hits[last / 64] |= 1 << (last % 64);
    }

    fn is_hit(&self, reference: usize) -> bool {
        self.hits[reference / 64] >> (reference % 64) & 1 != 0
    }

    fn push(&mut self, kind: u64, level: Level, line: LineAddress) {
        self.words.push(word(kind, level, line));
    }

    fn write_back(&mut self, lines: &[LineAddress]) {
        self.words.extend(lines.iter().map(|&line| word(WRITTEN_BACK, Level::Memory, line)));
    }
}

/// Hardware that writes down what references do to it.
#[derive(Debug, Clone)]
pub struct Writer {
    hardware: Hardware,
    trace: Trace,
    /// Words before this reference.
    before: usize,
    /// A translation of the first level that is not written yet: most are of a reference that is a hit.
    translated: Option<LineAddress>,
}

impl Writer {
    /// With nothing written.
    pub fn new(hardware: Hardware) -> Self {
        Writer { hardware, trace: Trace::default(), before: 0, translated: None }
    }

    /// What was written since the last time.
    pub fn take(&mut self) -> Trace {
        let next = Trace {
            hits: Vec::with_capacity(self.trace.hits.len()),
            references: 0,
            words: Vec::with_capacity(self.trace.words.len()),
        };
        (self.before, self.translated) = (0, None);
        std::mem::replace(&mut self.trace, next)
    }

    /// The hardware.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// The hardware, mutable: to drop translations.
    pub fn hardware_mut(&mut self) -> &mut Hardware {
        &mut self.hardware
    }

    fn write_translated(&mut self) {
        if let Some(line) = self.translated.take() {
            self.trace.push(TRANSLATED, Level::L1, line);
        }
    }
}

impl Front for Writer {
    fn line_bits(&self) -> u32 {
        self.hardware.line_bits()
    }

    #[inline]
    fn begin(&mut self) {
        self.trace.begin();
        self.before = self.trace.words.len();
        self.translated = None;
    }

    #[inline]
    fn lookup_first_level(&mut self, page: Wanted) -> Option<PhysicalAddress> {
        self.write_translated();
        let found = self.hardware.lookup_first_level(page);
        self.translated = found.map(|physical| physical.line(self.hardware.line_bits()));
        found
    }

    fn lookup_farther(&mut self, page: Wanted) -> Lookup {
        let lookup = self.hardware.lookup_farther(page);
        if let Lookup::L2(physical) = lookup {
            let line = physical.line(self.line_bits());
            self.trace.push(TRANSLATED_BY_SECOND, Level::L2, line);
        }
        lookup
    }

    fn walk(
        &mut self,
        page: Wanted,
        lookup: Lookup,
        start: Picoseconds,
        table: &mut impl PageTable,
        mut access: impl FnMut(Picoseconds, Level, LineAddress, &[LineAddress]) -> Picoseconds,
    ) -> Result<(Picoseconds, PhysicalAddress), Fault> {
        let trace = &mut self.trace;
        trace.push(WALK, Level::L1, LineAddress(0));
        let walked = self.hardware.walk(page, lookup, start, table, |now, level, line, evicted| {
            trace.push(WALK_ACCESS, level, line);
            trace.write_back(evicted);
            access(now, level, line, evicted)
        });
        match &walked {
            Ok((_, physical)) => {
                trace.push(WALKED, Level::L1, physical.line(self.hardware.line_bits()));
            }
            Err(fault) => trace.push(FAULTED, Level::L1, LineAddress(fault.level as u64)),
        }
        walked
    }

    #[inline]
    fn access_first_level(&mut self, core: usize, line: LineAddress, write: bool) -> Access {
        let access = self.hardware.access_first_level(core, line, write);
        let is_first = self.trace.words.len() == self.before;
        if access.is_hit() && self.translated.is_some() && is_first {
            self.translated = None;
            self.trace.hit();
            return access;
        }
        self.write_translated();
        if access.is_hit() {
            self.trace.push(SERVED, Level::L1, line);
        }
        access
    }

    fn access_farther(&mut self, core: usize, line: LineAddress, l1: Access) -> Level {
        let level = self.hardware.access_farther(core, line, l1);
        self.trace.push(SERVED, level, line);
        self.trace.write_back(self.hardware.writebacks());
        level
    }

    fn writebacks(&self) -> &[LineAddress] {
        self.hardware.writebacks()
    }

    fn prefetch(
        &mut self,
        core: usize,
        line: LineAddress,
        mut read: impl FnMut(LineAddress, &[LineAddress]),
    ) {
        let trace = &mut self.trace;
        self.hardware.prefetch(core, line, |line, evicted| {
            trace.push(READ_AHEAD, Level::Memory, line);
            trace.write_back(evicted);
            read(line, evicted);
        });
    }
}

/// Reads what references did to the hardware of a [`Writer`]. Lines and addresses are that
/// processor's; of a hit in the first level of everything the address is not known.
#[derive(Debug, Clone)]
pub struct Reader {
    trace: Arc<Trace>,
    /// The next reference, and the next word.
    reference: usize,
    next: usize,
    /// The word that is looked ahead to next.
    ahead: usize,
    is_hit: bool,
    line_bits: u32,
    /// Written back by the last access.
    evicted: Vec<LineAddress>,
}

impl Reader {
    /// With nothing to read.
    pub fn new(line_bits: u32) -> Self {
        Reader {
            trace: Arc::default(),
            reference: 0,
            next: 0,
            ahead: 0,
            is_hit: false,
            line_bits,
            evicted: Vec::new(),
        }
    }

    /// Reads this trace next.
    pub fn read(&mut self, trace: Arc<Trace>) {
        (self.trace, self.reference, self.next, self.ahead) = (trace, 0, 0, 0);
    }

    /// Lines of the words to come, up to so many beyond the next one, that memory is asked for. Each is
    /// given once.
    #[inline]
    pub fn look_ahead(&mut self, words: usize, mut asked: impl FnMut(LineAddress)) {
        let end = self.trace.words.len().min(self.next + words);
        for &word in self.trace.words.get(self.ahead..end).unwrap_or_default() {
            if level(word) == Level::Memory {
                asked(line(word));
            }
        }
        self.ahead = self.ahead.max(end);
    }

    /// The next word, if it is of this kind.
    #[inline]
    fn take(&mut self, wanted: u64) -> Option<u64> {
        let next = *self.trace.words.get(self.next)?;
        let is_wanted = kind(next) == wanted;
        self.next += usize::from(is_wanted);
        is_wanted.then_some(next)
    }

    fn take_evicted(&mut self) {
        self.evicted.clear();
        while let Some(word) = self.take(WRITTEN_BACK) {
            self.evicted.push(line(word));
        }
    }

    fn physical(&self, word: u64) -> PhysicalAddress {
        line(word).first_byte(self.line_bits)
    }
}

/// A reader is asked for what its trace does not have at this place.
const OTHER: &str = "the same references in the same order";

impl Front for Reader {
    fn line_bits(&self) -> u32 {
        self.line_bits
    }

    #[inline]
    fn begin(&mut self) {
        self.is_hit = self.trace.is_hit(self.reference);
        self.reference += 1;
    }

    #[inline]
    fn lookup_first_level(&mut self, _page: Wanted) -> Option<PhysicalAddress> {
        if self.is_hit {
            return Some(PhysicalAddress(0));
        }
        self.take(TRANSLATED).map(|word| self.physical(word))
    }

    fn lookup_farther(&mut self, _page: Wanted) -> Lookup {
        match self.take(TRANSLATED_BY_SECOND) {
            Some(word) => Lookup::L2(self.physical(word)),
            None => Lookup::Miss,
        }
    }

    fn walk(
        &mut self,
        page: Wanted,
        _lookup: Lookup,
        start: Picoseconds,
        _table: &mut impl PageTable,
        mut access: impl FnMut(Picoseconds, Level, LineAddress, &[LineAddress]) -> Picoseconds,
    ) -> Result<(Picoseconds, PhysicalAddress), Fault> {
        self.take(WALK).expect(OTHER);
        let mut done = start;
        while let Some(word) = self.take(WALK_ACCESS) {
            self.take_evicted();
            done = access(done, level(word), line(word), &self.evicted);
        }
        if let Some(word) = self.take(FAULTED) {
            let level = line(word).0 as usize;
            return Err(Fault { address: page.address, write: page.write, done, level });
        }
        let word = self.take(WALKED).expect(OTHER);
        Ok((done, self.physical(word)))
    }

    #[inline]
    fn access_first_level(&mut self, _core: usize, _line: LineAddress, _write: bool) -> Access {
        if self.is_hit {
            return Access::HIT;
        }
        let next = self.trace.words.get(self.next).copied().expect(OTHER);
        let is_hit = kind(next) == SERVED && level(next) == Level::L1;
        self.next += usize::from(is_hit);
        if is_hit { Access::HIT } else { Access::MISS }
    }

    fn access_farther(&mut self, _core: usize, _line: LineAddress, _l1: Access) -> Level {
        let word = self.take(SERVED).expect(OTHER);
        self.take_evicted();
        level(word)
    }

    fn writebacks(&self) -> &[LineAddress] {
        &self.evicted
    }

    fn prefetch(
        &mut self,
        _core: usize,
        _line: LineAddress,
        mut read: impl FnMut(LineAddress, &[LineAddress]),
    ) {
        while let Some(word) = self.take(READ_AHEAD) {
            self.take_evicted();
            read(line(word), &self.evicted);
        }
    }
}
