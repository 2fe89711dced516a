//! The totals of a recording, counted in one pass.
//!
//! Memory grows with the pages that were touched (a bit each), not with the recording's length.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Serialize;

use crate::error::RecordingError;
use crate::export::Recording;
use crate::period::{self, Frame, PeriodReader};
use crate::reference::{self, Event, Record, ReferenceReader, RegionKind};

/// The totals of a recording.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Survey {
    /// References.
    References(Box<ReferenceSurvey>),
    /// Periods.
    Periods(Box<PeriodSurvey>),
}

/// The totals of a reference recording.
#[derive(Debug, Clone, Serialize)]
pub struct ReferenceSurvey {
    /// The header of the recording.
    pub header: reference::Header,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Fetches of instructions; recorders leave these out.
    pub fetches: u64,
    /// Dirty lines that left the caches.
    pub write_backs: u64,
    /// References that could not be recorded.
    pub lost: u64,
    /// Other events.
    pub events: u64,
    /// Instructions executed, of all streams up to the last record of each; 0 where the recording
    /// does not count them.
    pub instructions: u64,
    /// Streams: threads, and those of forks and execs.
    pub streams: u64,
    /// Processes.
    pub processes: u64,
    /// The time of the last record: instructions, or nanoseconds where these are not counted.
    pub end_time: u64,
    /// Base pages that were loaded from or stored to.
    pub footprint_bytes: u64,
    /// Base pages that instructions were fetched from.
    pub code_bytes: u64,
    /// Bytes of the last map of each process, by kind of region.
    pub regions: BTreeMap<&'static str, RegionBytes>,
    /// How the program's run ended, where that was recorded.
    pub ending: Option<reference::Ending>,
    /// The recording was finished, and nothing stopped the program's run before its end.
    pub complete: bool,
}

/// Regions of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RegionBytes {
    /// Number of regions.
    pub regions: u64,
    /// Their sizes together.
    pub size_bytes: u64,
    /// Bytes of them that Linux may back with huge pages.
    pub huge_page_bytes: u64,
}

/// The totals of a period recording.
#[derive(Debug, Clone, Serialize)]
pub struct PeriodSurvey {
    /// The header of the recording.
    pub header: period::Header,
    /// Group by group.
    pub groups: Vec<GroupSurvey>,
    /// The recording was finished; else it was cut off.
    pub complete: bool,
}

/// The totals of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GroupSurvey {
    /// Name of the group.
    pub name: String,
    /// Periods with a scan.
    pub periods: u64,
    /// Periods between them without one.
    pub lost_periods: u64,
    /// Periods with a decision.
    pub decisions: u64,
    /// Its largest size, in bytes.
    pub largest_bytes: u64,
    /// Accessed in all periods together.
    pub accessed_bytes: u64,
    /// It ended within the recording.
    pub ended: bool,
}

/// Counts the totals of a recording.
pub fn survey(path: &Path) -> Result<Survey, RecordingError> {
    Ok(match Recording::open(path)? {
        Recording::References(reader) => Survey::References(Box::new(references(*reader)?)),
        Recording::Periods(reader) => Survey::Periods(Box::new(periods(*reader)?)),
    })
}

fn references<R: std::io::Read + std::io::Seek>(
    mut reader: ReferenceReader<R>,
) -> Result<ReferenceSurvey, RecordingError> {
    let header = reader.header().clone();
    let page_bits = header.base_page_bytes.max(1).ilog2();
    let mut s = ReferenceSurvey {
        loads: 0,
        stores: 0,
        fetches: 0,
        write_backs: 0,
        lost: 0,
        events: 0,
        instructions: 0,
        streams: 0,
        processes: reader.processes().len() as u64,
        end_time: 0,
        footprint_bytes: 0,
        code_bytes: 0,
        regions: regions(&reader),
        complete: reader.truncation().is_none(),
        ending: reader.ending().cloned(),
        header,
    };
    let (mut data, mut code) = (Pages::default(), Pages::default());
    let mut instructions: BTreeMap<u32, u64> = BTreeMap::new();
    for placed in reader.records() {
        let p = placed?;
        s.end_time = s.end_time.max(p.time);
        instructions.insert(p.stream, p.instructions);
        match p.record {
            Record::Reference(r) => {
                if r.store {
                    s.stores += 1;
                } else {
                    s.loads += 1;
                }
                data.touch(p.process, r.address >> page_bits);
                data.touch(p.process, r.address.saturating_add(r.size_bytes() - 1) >> page_bits);
            }
            Record::Event(Event::Fetch { address, .. }) => {
                s.fetches += 1;
                code.touch(p.process, address >> page_bits);
            }
            Record::Event(Event::Lost { references }) => {
                s.lost = s.lost.saturating_add(references);
            }
            Record::WriteBack(_) => s.write_backs += 1,
            Record::Event(_) => s.events += 1,
        }
    }
    s.streams = instructions.len() as u64;
    if s.header.counts_instructions() {
        s.instructions = instructions.values().fold(0, |sum, n| sum.saturating_add(*n));
    }
    s.footprint_bytes = data.count << page_bits;
    s.code_bytes = code.count << page_bits;
    s.complete &= reader.truncation().is_none();
    s.complete &= !s.ending.as_ref().is_some_and(reference::Ending::is_cut_off);
    Ok(s)
}

fn regions<R: std::io::Read + std::io::Seek>(
    reader: &ReferenceReader<R>,
) -> BTreeMap<&'static str, RegionBytes> {
    let mut last = BTreeMap::new();
    for map in reader.maps() {
        last.insert(map.process, map);
    }
    let mut kinds: BTreeMap<&'static str, RegionBytes> = BTreeMap::new();
    for region in last.values().flat_map(|map| &map.regions) {
        let kind = match region.kind {
            RegionKind::Heap => "heap",
            RegionKind::Stack => "stack",
            RegionKind::File => "file",
            RegionKind::Anonymous => "anonymous",
        };
        let sum = kinds.entry(kind).or_default();
        sum.regions += 1;
        sum.size_bytes = sum.size_bytes.saturating_add(region.end - region.start);
        let huge = region.huge_page_bytes(reader.header().huge_page_bytes);
        sum.huge_page_bytes = sum.huge_page_bytes.saturating_add(huge);
    }
    kinds
}

/// Pages, each counted once: a bit per page, in pieces of 512.
#[derive(Default)]
struct Pages {
    pieces: HashMap<(u32, u64), [u64; 8]>,
    last: Option<(u32, u64)>,
    count: u64,
}

impl Pages {
    fn touch(&mut self, process: u32, page: u64) {
        if self.last == Some((process, page)) {
            return;
        }
        self.last = Some((process, page));
        let piece = self.pieces.entry((process, page / 512)).or_default();
        let (word, bit) = (page as usize / 64 % 8, 1 << (page % 64));
        self.count += u64::from(piece[word] & bit == 0);
        piece[word] |= bit;
    }
}

fn periods<R: std::io::Read>(mut reader: PeriodReader<R>) -> Result<PeriodSurvey, RecordingError> {
    let header = reader.header().clone();
    let name = |g: &period::GroupHeader| GroupSurvey { name: g.name.clone(), ..Default::default() };
    let mut groups: Vec<_> = header.groups.iter().map(name).collect();
    for frame in reader.by_ref() {
        match frame? {
            Frame::Scan { group, scan } => {
                let (g, page) = (&mut groups[group], scan.layout.page_size().bytes());
                g.periods += 1;
                g.lost_periods += u64::from(scan.lost_periods);
                g.largest_bytes = g.largest_bytes.max(scan.pages() as u64 * page);
                let accessed = scan.accessed.count() as u64 * page;
                g.accessed_bytes = g.accessed_bytes.saturating_add(accessed);
            }
            Frame::Decision { group, .. } => groups[group].decisions += 1,
            Frame::Ended { group } => groups[group].ended = true,
            _ => {}
        }
    }
    Ok(PeriodSurvey { groups, complete: reader.truncation().is_none(), header })
}
