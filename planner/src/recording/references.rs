//! Reference recordings: references are cut into intervals of equal time.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tempfile::TempDir;
use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::{InputError, refuse};
use terrace_recordings::profile::Interval;
use terrace_recordings::reference::{Ending, Level, Record, ReferenceReader};

use crate::memory::Machine;
use crate::recording::intervals::{KEPT_BYTES, Survey, modelled_slow_ps};
use crate::recording::{Evidence, Open, Recording, Stored, Waiting};

/// Intervals that references are cut into: at most, and at least however many pages there are.
const MOST_INTERVALS: u64 = 400;
const LEAST_INTERVALS: u64 = 20;

/// A page by process and number.
type Page = (u32, u64);

/// Opens a reference recording; `shown` is the path for messages.
pub(super) fn references(
    path: &Path,
    shown: &Path,
    folder: Option<TempDir>,
    how: &Open,
) -> anyhow::Result<Recording> {
    let mut reader = ReferenceReader::open(path).map_err(InputError::new)?;
    let header = reader.header().clone();
    let page_size = how.page_size.unwrap_or(PageSize::Base);
    let totals = Totals::of(&mut reader, page_size)?;
    if totals.count == 0 {
        return Err(refuse!(
            "{}: no references; expected a program that used memory, record it again",
            shown.display()
        )
        .into());
    }
    let nanoseconds = !header.counts_instructions();
    let one_in = match header.filter.sample_one_in {
        1 => how.sample_one_in.unwrap_or(1),
        n => n,
    };
    let machine = how.machine()?;
    let layout = Arc::new(layout(page_size, totals.first_touch.keys().copied())?);
    let pages = layout.pages() as u64;
    let mut cutter = Cutter::new(layout, &totals, one_in, how.waiting, machine.clone());
    // An instruction of a processor of 3 GHz that executes one a cycle.
    cutter.unit_ps = if nanoseconds { 1000.0 } else { 333.0 };
    for placed in reader.records() {
        let p = placed.map_err(InputError::new)?;
        cutter.advance(p.time);
        if let Record::Reference(r) = p.record {
            let page = cutter.index(&(p.process, r.address / page_size.bytes()));
            cutter.reads[page] += 1;
        }
    }
    cutter.close();
    let survey = cutter.survey;
    survey.check(shown)?;
    if survey.bytes > KEPT_BYTES {
        return Err(refuse!(
            "{}: {pages} pages are too many to plan from references; expected fewer, give \
             --page-size 2M or plan from a profile ('terrace profile')",
            shown.display()
        )
        .into());
    }
    let has_all = !(nanoseconds || one_in > 1);
    let is_cut = reader.truncation().is_some() || reader.ending().is_some_and(Ending::is_cut_off);
    let command = header.command.first().map(String::as_str).unwrap_or_default();
    let name = Path::new(command).file_stem().map(|s| s.to_string_lossy().into_owned());
    Ok(Recording {
        name: name.filter(|n| !n.is_empty()).unwrap_or_else(|| "program".to_owned()),
        path: shown.to_owned(),
        format: if nanoseconds { "memory samples" } else { "reference recording" },
        evidence: Evidence::Samples,
        recorded_on: if nanoseconds { "host" } else { "recorder" }.to_owned(),
        machine,
        page_size,
        footprint_bytes: pages * page_size.bytes(),
        period_ms: None,
        experiment: None,
        fast_ps: survey.fast_ps,
        slow_ps: survey.slow_ps,
        intervals: survey.intervals,
        samples: (one_in > 1 || nanoseconds).then_some(totals.count),
        waiting: Some(how.waiting),
        warnings: warnings(has_all.then_some(header.filter.level), is_cut),
        lines_per_read: match header.filter.level {
            Level::Llc => one_in as f64,
            Level::None | Level::L1 | Level::L2 => 0.0,
        },
        stored: Stored::Kept(survey.kept.into()),
        _folder: folder,
    })
}

/// What is to be known of a recording that has every reference of a level, or that was cut off.
fn warnings(all_of: Option<Level>, is_cut: bool) -> Vec<String> {
    let cut = "the recording ends before its program did: what precedes that is used";
    all_of.map(stronger).into_iter().chain(is_cut.then(|| cut.to_owned())).collect()
}

/// The latest time of a record, in the recording's units. Intervals' ends are beyond it.
const LATEST: u64 = 1 << 62;

/// Totals of a recording, counted before references are cut into intervals.
struct Totals {
    /// The pages, each with its turn of being touched first.
    first_touch: BTreeMap<Page, u64>,
    /// The time after the last record.
    end: u64,
    count: u64,
}

impl Totals {
    fn of<R: Read + Seek>(
        reader: &mut ReferenceReader<R>,
        page_size: PageSize,
    ) -> Result<Self, InputError> {
        let mut totals = Totals { first_touch: BTreeMap::new(), end: 0, count: 0 };
        for placed in reader.records() {
            let p = placed.map_err(InputError::new)?;
            if p.time > LATEST {
                return Err(refuse!("a record at time {}: expected at most {LATEST}", p.time));
            }
            totals.end = totals.end.max(p.time + 1);
            if let Record::Reference(r) = p.record {
                totals.count += 1;
                let page = (p.process, r.address / page_size.bytes());
                let next = totals.first_touch.len() as u64;
                totals.first_touch.entry(page).or_insert(next);
            }
        }
        Ok(totals)
    }
}

/// Cuts references into intervals of equal time.
struct Cutter {
    layout: Arc<Layout>,
    waiting: Waiting,
    machine: Machine,
    one_in: u64,
    /// Length of a unit of the recording's time.
    unit_ps: f64,
    end: u64,
    /// Length of an interval.
    length: u64,
    /// Number of the present interval.
    number: u64,
    /// Reads of each page in the present interval.
    reads: Vec<u64>,
    /// All pages in the order of their first touch, for the first interval.
    fresh: Vec<usize>,
    survey: Survey,
}

impl Cutter {
    fn new(
        layout: Arc<Layout>,
        totals: &Totals,
        one_in: u64,
        waiting: Waiting,
        machine: Machine,
    ) -> Self {
        let pages = layout.pages() as u64;
        let intervals = (KEPT_BYTES / (9 * pages.max(1))).clamp(LEAST_INTERVALS, MOST_INTERVALS);
        let intervals = intervals.min(totals.end.max(1));
        let mut cutter = Cutter {
            layout,
            waiting,
            machine,
            one_in,
            unit_ps: 1000.0,
            end: totals.end,
            length: totals.end.div_ceil(intervals),
            number: 0,
            reads: vec![0; pages as usize],
            fresh: Vec::new(),
            survey: Survey::default(),
        };
        let mut fresh: Vec<(u64, usize)> =
            totals.first_touch.iter().map(|(page, &turn)| (turn, cutter.index(page))).collect();
        fresh.sort_unstable();
        cutter.fresh = fresh.into_iter().map(|(_, page)| page).collect();
        cutter
    }

    fn index(&self, page: &Page) -> usize {
        let address = page.1 * self.layout.page_size().bytes();
        self.layout.index(SpaceId(page.0), address).unwrap_or_default()
    }

    /// Closes the intervals before this time.
    fn advance(&mut self, time: u64) {
        while time >= (self.number + 1) * self.length {
            self.close();
            self.number += 1;
        }
    }

    /// Closes the present interval.
    fn close(&mut self) {
        let time = self.length.min(self.end - self.number * self.length);
        let fast_ps = ((time as f64 * self.unit_ps).round() as u64).max(1);
        let slow_ps = modelled_slow_ps(fast_ps, self.waiting, &self.machine);
        let all = std::mem::replace(&mut self.reads, vec![0; self.layout.pages()]);
        let mut accessed = PageBits::new(all.len());
        all.iter().enumerate().filter(|r| *r.1 > 0).for_each(|(p, _)| accessed.set(p, true));
        self.survey.add(Interval {
            references: all.iter().sum::<u64>().saturating_mul(self.one_in),
            fast_ps,
            slow_ps,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: self.layout.clone(),
            accessed,
            fresh: std::mem::take(&mut self.fresh),
            reads: all,
        });
    }
}

/// How to plan from a recording of every reference, or of every miss, with measured costs.
fn stronger(level: Level) -> String {
    match level {
        Level::None => {
            "this recording has every reference: 'terrace profile' of it (workload kind \
                        \"recording\") measures what they cost, and plans from that are stronger"
                .to_owned()
        }
        level => format!(
            "this recording has only what missed cache '{}'; one of every reference ('terrace \
             record --level none') can be profiled ('terrace profile', workload kind \
             \"recording\"), and plans from that are stronger",
            level.name()
        ),
    }
}

/// The layout of these pages, which come sorted.
fn layout(page_size: PageSize, pages: impl Iterator<Item = Page>) -> anyhow::Result<Layout> {
    let mut extents: Vec<Extent> = Vec::new();
    for (space, number) in pages {
        let start = number * page_size.bytes();
        match extents.last_mut() {
            Some(last)
                if last.space.0 == space
                    && last.start + last.pages * page_size.bytes() == start =>
            {
                last.pages += 1;
            }
            _ => extents.push(Extent { space: SpaceId(space), start, pages: 1 }),
        }
    }
    Layout::new(page_size, extents).context("the pages of a recording")
}

#[cfg(test)]
mod tests {
    use terrace_recordings::reference::{
        CacheShape, Filter, Header, Process, Reference, ReferenceBuilder,
    };

    use super::*;

    /// A recording of references that were taken after a level, of a program that went on or not.
    fn recorded(level: Level, sample_one_in: u64, is_cut: bool) -> (tempfile::TempDir, Recording) {
        let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
        let filter =
            Filter { level, line_bytes: 64, l1: shape, l2: shape, llc: shape, sample_one_in };
        let header = Header {
            command: vec!["program".to_owned()],
            filter,
            base_page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            write_backs: false,
            created_by: "test".to_owned(),
            executed_by: "test".to_owned(),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.tref");
        let file = std::fs::File::create(&path).unwrap();
        let mut builder = ReferenceBuilder::new(file, "p", &header).unwrap();
        builder.process(&Process { process: 0, system_id: 0, command: vec![] }).unwrap();
        for number in 0..1000 {
            let reference = Reference { address: 4096 * (number % 10), size_log2: 3, store: false };
            builder.reference(0, 0, number, reference).unwrap();
        }
        builder.finish(is_cut).unwrap();
        let waiting = Waiting { share: 0.4, error: 0.2 };
        let how =
            Open { group: None, page_size: None, sample_one_in: None, waiting, machine: None };
        let recording = Recording::open(&path, &how).unwrap();
        (folder, recording)
    }

    /// The longest interval with all memory slow, on a machine whose slow memory is narrow.
    fn longest_slow_ps(level: Level, sample_one_in: u64) -> u64 {
        let (_keep, recording) = recorded(level, sample_one_in, false);
        let narrow = recording.machine.with_slow(None, Some(0.001));
        let mut intervals = recording.play_on(&narrow, false).unwrap();
        let all = std::iter::from_fn(|| intervals.next_interval().unwrap());
        all.map(|interval| interval.slow_ps).max().unwrap()
    }

    #[test]
    fn a_recording_that_was_cut_off_says_so() {
        let says = |is_cut| {
            let (_keep, recording) = recorded(Level::Llc, 1, is_cut);
            recording.warnings.iter().any(|w| w.contains("ends before its program did"))
        };
        assert_eq!((says(false), says(true)), (false, true));
    }

    #[test]
    fn references_are_lines_from_memory_where_they_were_taken_after_the_last_level() {
        // 64 bytes each, at a byte in a microsecond.
        let one = longest_slow_ps(Level::Llc, 1);
        assert_eq!(one % 64_000_000, 0, "{one}");
        assert_eq!(longest_slow_ps(Level::Llc, 4), 4 * one);
        // A cache may have answered each.
        let unbounded = longest_slow_ps(Level::None, 1);
        assert!(unbounded < 64_000_000, "{unbounded}");
        assert_eq!(longest_slow_ps(Level::L2, 1), unbounded);
    }
}
