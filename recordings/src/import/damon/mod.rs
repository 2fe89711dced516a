//! DAMON records as damo writes them: regions of each monitored target with how often samples
//! found them accessed, snapshot by snapshot. They become period recordings.
//!
//! A target becomes a group with an address space of its own, a snapshot a period. DAMON reports
//! regions: every page of a region that was found accessed at all counts as accessed in the period.
//! A target's pages are those its regions cover. The tier of a page is not known: all count as in
//! the one tier there was.
//!
//! - [`binary`]: the old `damon.data`, format versions 0 to 2;
//! - [`json`]: damo's present format, plain or zlib-compressed;
//! - [`text`]: the same as `perf script` of the tracepoint;
//! - [`spool`]: snapshots wait on disk, because a recording's header names all targets and its
//!   periods are in the order of time.

mod binary;
mod json;
mod spool;
mod text;

use std::io::Write;
use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::scan::Scan;

use super::error::{ImportError, Place};
use super::{Choice, ImportFormat, ImportOptions, Imported, Input, Makes};
use crate::period::{GroupHeader, Header, PeriodWriter};
use spool::{Spool, Spooled};

pub(super) static FORMAT: ImportFormat = ImportFormat {
    name: "damon",
    summary: "DAMON records: damo's JSON, plain or compressed, perf script text, old damon.data",
    made_by: "damo record; see also damo report raw, which shows the same snapshots",
    makes: Makes::Periods,
    choices: &[Choice::PageSize, Choice::Period],
    run,
};

/// Targets of one record.
const MOST_TARGETS: usize = 256;
/// Regions of one snapshot; DAMON's default limit is 1000.
const MOST_REGIONS: usize = 1 << 20;
/// Pages of one target: 1 TB of base pages, 512 TB of huge ones.
const MOST_PAGES: u64 = 1 << 28;

/// One region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    /// Samples that found it accessed.
    accesses: u64,
}

/// The regions of one target at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Snapshot {
    /// Begin in ns, if the file has it.
    start_ns: Option<u64>,
    /// End in ns.
    end_ns: u64,
    regions: Vec<Region>,
}

/// Target of the snapshots that are read.
struct Sink<'a> {
    spool: &'a mut Spool,
    totals: Totals,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    snapshots: u64,
    /// Snapshots of which regions were lost.
    incomplete: u64,
    regions: u64,
    accesses: u64,
    region_bytes: u64,
}

impl Sink<'_> {
    /// Takes a snapshot of the target of this key; an error names the fault in it.
    fn snapshot(&mut self, target: u64, snapshot: &Snapshot) -> Result<(), String> {
        // damo ends some files with an empty snapshot, whose time is the end of the last one.
        if let [Region { start: 0, end: 0, .. }] = snapshot.regions[..] {
            return Ok(());
        }
        for r in &snapshot.regions {
            if r.start > r.end {
                return Err(format!(
                    "a region from {:#x} to {:#x} ends before it starts",
                    r.start, r.end
                ));
            }
            self.totals.regions += 1;
            self.totals.accesses = self.totals.accesses.saturating_add(r.accesses);
            self.totals.region_bytes = self.totals.region_bytes.saturating_add(r.end - r.start);
        }
        self.totals.snapshots += 1;
        self.spool.put(target, snapshot)
    }
}

/// The part of a file that could be read.
struct ReadUp {
    /// Aggregation interval, where the file states it.
    interval_ns: Option<u64>,
    cut: Option<Place>,
}

fn run(
    input: &mut Input,
    out: &mut dyn Write,
    name: &str,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let mut spool = Spool::new();
    let mut sink = Sink { spool: &mut spool, totals: Totals::default() };
    let mut begin = input.peek(256)?;
    if is_zlib(&begin) {
        input.inflate();
        begin = input.peek(256)?;
    }
    let shown = begin.trim_ascii_start().first().copied();
    let read = if begin.starts_with(b"PERFILE") {
        return Err(input.malformed(
            Place::Byte(0),
            "perf's own file, expected damo's; run 'perf script -i FILE' and import its text",
        ));
    } else if matches!(shown, Some(b'[' | b'{')) {
        json::read(input, &mut sink)?
    } else if !begin.starts_with(binary::MAGIC) && is_text(&begin) {
        text::read(input, &mut sink)?
    } else {
        binary::read(input, &mut sink)?
    };
    let totals = sink.totals;
    let targets = spool.targets().len() as u64;
    if targets == 0 {
        return Err(input.malformed(Place::Byte(input.at()), "no snapshots; run damo record"));
    }
    let periods = write(spool, &read, out, name, options)?;
    Ok(Imported {
        counts: vec![
            ("targets", targets),
            ("snapshots", totals.snapshots),
            ("incomplete", totals.incomplete),
            ("regions", totals.regions),
            ("accesses", totals.accesses),
            ("region_bytes", totals.region_bytes),
            ("periods", periods),
        ],
        cut: read.cut,
        differs: Vec::new(),
    })
}

fn is_zlib(begin: &[u8]) -> bool {
    matches!(begin, [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..])
}

/// Whether a file that begins so, decompressed, is one that this importer reads: `damo`'s by their
/// first bytes, text by its tracepoint.
pub fn is_damon(begin: &[u8]) -> bool {
    let first = begin.trim_ascii_start().first();
    let is_text_of_damon = || String::from_utf8_lossy(begin).contains(text::EVENT);
    is_zlib(begin)
        || begin.starts_with(binary::MAGIC)
        || matches!(first, Some(b'[' | b'{'))
        || is_text_of_damon()
}

fn is_text(begin: &[u8]) -> bool {
    !begin.is_empty() && begin.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace())
}

/// A target while its periods are written.
struct Target {
    next: Option<Spooled>,
    /// Pages and accesses of the period under way, and its number.
    open: Option<(u64, Vec<Region>)>,
    last_written: Option<u64>,
    layout: Arc<Layout>,
}

fn header(targets: &[u64], period_ns: u64, page_size: PageSize, options: &ImportOptions) -> Header {
    Header {
        created_by: options.created_by.clone(),
        experiment: "DAMON record".to_owned(),
        machine: "host".to_owned(),
        kernel: String::new(),
        period_ms: (period_ns.saturating_add(500_000) / 1_000_000).max(1),
        seed: 0,
        leaves_out_unmovable: false,
        groups: targets
            .iter()
            .map(|key| GroupHeader {
                name: format!("target-{key}"),
                policy: "first-touch".to_owned(),
                parameters: serde_json::Value::Null,
                policy_seed: 0,
                page_size,
                fast_share: 1.0,
            })
            .collect(),
    }
}

/// Writes the snapshots as periods, in the order of their ends; returns how many.
fn write(
    mut spool: Spool,
    read: &ReadUp,
    out: &mut dyn Write,
    name: &str,
    options: &ImportOptions,
) -> Result<u64, ImportError> {
    let page_size = options.page_size.unwrap_or(PageSize::Base);
    let measured = spool.interval_ns();
    let own_ns = read.interval_ns.filter(|ns| *ns > 0).or(measured).unwrap_or(100_000_000);
    let period_ns = options.period_ms.map_or(own_ns, |ms| ms.saturating_mul(1_000_000));
    let header = header(&spool.targets(), period_ns, page_size, options);
    let mut writer = PeriodWriter::new(out, name, header)?;
    let first_end_ns = spool.first_end_ns();
    // With a given period every snapshot falls into one; else each snapshot is a period.
    let number = |end_ns: u64, last: Option<u64>| {
        let passed = end_ns - first_end_ns;
        match options.period_ms {
            Some(_) => passed / period_ns,
            None => {
                let near = passed.saturating_add(period_ns / 2) / period_ns;
                last.map_or(near, |last| near.max(last + 1))
            }
        }
    };
    let empty = Arc::new(Layout::contiguous(page_size, 0));
    let mut readers = spool.rewind()?;
    let mut targets = Vec::new();
    for reader in &mut readers {
        let (next, layout) = (reader.next()?, Arc::clone(&empty));
        targets.push(Target { next, open: None, last_written: None, layout });
    }
    let mut periods = 0;
    let mut close = |target: &mut Target, group: usize| -> Result<(), ImportError> {
        let Some((number, regions)) = target.open.take() else { return Ok(()) };
        let mut scan = scan(&mut target.layout, group, number, &regions, page_size, name)?;
        let lost = target.last_written.map_or(number, |last| number - last - 1);
        scan.lost_periods = u32::try_from(lost).unwrap_or(u32::MAX);
        target.last_written = Some(number);
        writer.scan(group, &scan)?;
        periods += 1;
        Ok(())
    };
    loop {
        let ends =
            targets.iter().enumerate().filter_map(|(i, t)| Some((t.next.as_ref()?.end_ns, i)));
        let Some((end_ns, group)) = ends.min() else { break };
        let target = &mut targets[group];
        let last = target.open.as_ref().map(|o| o.0);
        let number = number(end_ns, last);
        if last.is_some_and(|last| last != number) {
            close(target, group)?;
        }
        let regions = target.next.take().map(|s| s.regions).unwrap_or_default();
        match &mut target.open {
            Some((_, all)) if all.len() + regions.len() <= MOST_REGIONS => all.extend(regions),
            Some((_, all)) => {
                // Joined, regions that many snapshots repeat take little room.
                all.extend(regions);
                *all = joined(std::mem::take(all), page_size);
            }
            open => *open = Some((number, regions)),
        }
        target.next = readers[group].next()?;
    }
    for (group, target) in targets.iter_mut().enumerate() {
        close(target, group)?;
    }
    for group in 0..targets.len() {
        writer.ended(group)?;
    }
    writer.finish()?;
    Ok(periods)
}

/// Sorted regions of whole pages; neighbours that were both accessed, or both not, are merged, and
/// where they overlap, accessed wins.
fn joined(regions: Vec<Region>, page_size: PageSize) -> Vec<Region> {
    let size = page_size.bytes();
    // The last page of 64 bits has no end: it is left out.
    let most = u64::MAX / size * size;
    let mut edges: Vec<(u64, bool, bool)> = Vec::with_capacity(2 * regions.len());
    for r in regions.iter().filter(|r| r.start < r.end) {
        let (start, end) =
            (r.start / size * size, r.end.div_ceil(size).saturating_mul(size).min(most));
        if start < end {
            edges.push((start, true, r.accesses > 0));
            edges.push((end, false, r.accesses > 0));
        }
    }
    edges.sort_unstable();
    let (mut covered, mut accessed) = (0u64, 0u64);
    let mut from = 0;
    let mut all: Vec<Region> = Vec::new();
    for (at, starts, is_accessed) in edges {
        if covered > 0 && from < at {
            let accesses = u64::from(accessed > 0);
            match all.last_mut() {
                Some(l) if l.end == from && l.accesses == accesses => l.end = at,
                _ => all.push(Region { start: from, end: at, accesses }),
            }
        }
        from = at;
        if starts {
            covered += 1;
            accessed += u64::from(is_accessed);
        } else {
            covered -= 1;
            accessed -= u64::from(is_accessed);
        }
    }
    all
}

fn scan(
    layout: &mut Arc<Layout>,
    group: usize,
    period: u64,
    regions: &[Region],
    page_size: PageSize,
    name: &str,
) -> Result<Scan, ImportError> {
    let size = page_size.bytes();
    let regions = joined(regions.to_vec(), page_size);
    let space = SpaceId(group as u32);
    let mut extents: Vec<Extent> = Vec::new();
    let mut pages = 0u64;
    for r in &regions {
        let more = (r.end - r.start) / size;
        pages = pages.saturating_add(more);
        match extents.last_mut() {
            Some(e) if e.start + e.pages * size == r.start => e.pages += more,
            _ => extents.push(Extent { space, start: r.start, pages: more }),
        }
    }
    if pages > MOST_PAGES {
        return Err(ImportError::Option(format!(
            "cannot record into '{name}': the regions of a target cover {pages} pages of {size} bytes, expected at \
             most {MOST_PAGES}; give --page-size 2M, or record fewer addresses"
        )));
    }
    if layout.extents() != extents {
        let new =
            Layout::new(page_size, extents).map_err(|e| ImportError::Option(e.to_string()))?;
        *layout = Arc::new(new);
    }
    let mut accessed = PageBits::new(pages as usize);
    let mut at = 0;
    for r in &regions {
        let end = at + ((r.end - r.start) / size) as usize;
        if r.accesses > 0 {
            accessed.set_range(at..end, true);
        }
        at = end;
    }
    Ok(Scan::new(period, Arc::clone(layout), accessed, PageBits::ones(pages as usize)))
}
