//! The sources of a plan: profiles, period recordings, reference recordings and other tools' files,
//! each made into the intervals that the simulated machine plays.
//!
//! A profile was measured at trace fidelity: each interval's time with all memory fast and with all
//! of it slow. All other sources have *which* memory was used and not its cost. There the time
//! follows from a model that is stated: of the time with all memory fast a share is spent waiting
//! for memory ([`Waiting`]) and grows with the latency (the leading-load model of
//! `terrace_core::projection`); every access, or sample, weighs the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tempfile::TempDir;
use terrace_core::InputError;
use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_experiments::Experiment;
use terrace_recordings::error::RecordingError;
use terrace_recordings::import::{self, ImportError, ImportOptions, Input, Makes};
use terrace_recordings::period::{PeriodReader, RecordingSource};
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_recordings::reference::{Level, Record, ReferenceReader};
use terrace_recordings::source::{PeriodSource, SourceError};
use terrace_simulated::timed::IntervalSource;

use crate::memory::Machine;
use terrace_core::refuse;

/// Machine whose tiers are used where a recording has none.
pub const ASSUMED_MACHINE: &str = "server-ddr5-cxl";

/// Bytes of intervals that are kept in memory; larger recordings are read anew for each run.
const KEPT_BYTES: u64 = 768 << 20;

/// Intervals that references are cut into: at most, and at least however many pages there are.
const MOST_INTERVALS: u64 = 400;
const LEAST_INTERVALS: u64 = 20;

/// Basis of a plan's slowdowns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// A profile: times measured at trace fidelity.
    Measured,
    /// Accessed pages by period: a page that was accessed once weighs as much as one in constant
    /// use. Hit ratios and a stated latency model.
    Pages,
    /// References or samples of them: accesses are weighed, their cost is not known. Hit ratios and
    /// a
    /// stated latency model.
    Samples,
}

impl Evidence {
    /// Its reliability, in a sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            Evidence::Measured => {
                "slowdowns follow from times measured at trace fidelity (a profile)"
            }
            Evidence::Pages => {
                "the recording knows which pages were accessed, not how often nor at what cost: \
                 slowdowns are hit ratios and a latency model, weaker than a profile's"
            }
            Evidence::Samples => {
                "the recording knows which memory was referred to, not at what cost: slowdowns are \
                 hit ratios and a latency model, weaker than a profile's"
            }
        }
    }
}

/// Share of its time that a program waits for memory, with all of it fast; an assumption.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waiting {
    /// The share, 0 to 1.
    pub share: f64,
    /// Its error either way.
    pub error: f64,
}

/// Options to open a recording.
#[derive(Debug, Clone)]
pub struct Open {
    /// The group of a period recording; not needed where there is one.
    pub group: Option<String>,
    /// Pages that references and DAMON's regions are put on; base pages if `None`.
    pub page_size: Option<PageSize>,
    /// One in this many references was sampled, where the file does not have that.
    pub sample_one_in: Option<u64>,
    /// The assumption of the latency model.
    pub waiting: Waiting,
}

/// A recording, ready to be played.
pub struct Recording {
    /// Name of the program.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Its kind, in a word or two.
    pub format: &'static str,
    /// Basis of its slowdowns.
    pub evidence: Evidence,
    /// The machine that it was recorded on, as the recording names it.
    pub recorded_on: String,
    /// The tiers that its times hold for.
    pub machine: Machine,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Memory that it used in all, in bytes.
    pub footprint_bytes: u64,
    /// Length of a period that it was recorded or made with; `None` where there is none.
    pub period_ms: Option<u64>,
    /// The experiment that it can be run again with.
    pub experiment: Option<Experiment>,
    /// Its time with all memory fast.
    pub fast_ps: u64,
    /// Its time with all of it slow, measured or by the model.
    pub slow_ps: u64,
    /// Its intervals.
    pub intervals: u64,
    /// Accesses that were sampled; `None` where all were counted.
    pub samples: Option<u64>,
    /// The assumption of the latency model; `None` where costs were measured.
    pub waiting: Option<Waiting>,
    /// Notes on it for people.
    pub warnings: Vec<String>,
    stored: Stored,
    /// The importer's result from another tool's file; deleted with the recording.
    _folder: Option<TempDir>,
}

enum Stored {
    Kept(Arc<[Interval]>),
    Profile(PathBuf),
    Periods { path: PathBuf, group: String, waiting: Waiting, machine: Machine },
}

impl Recording {
    /// Opens a recording of any kind: by its content, not its name.
    pub fn open(path: &Path, how: &Open) -> anyhow::Result<Self> {
        Self::open_as(path, path, None, how)
    }

    fn open_as(
        path: &Path,
        shown: &Path,
        folder: Option<TempDir>,
        how: &Open,
    ) -> anyhow::Result<Self> {
        let other = match ProfileReader::open(path) {
            Ok(reader) => return profile(path, reader),
            Err(RecordingError::Content { got, .. }) => got,
            Err(RecordingError::NotARecording { .. }) if folder.is_none() => {
                return imported(path, how);
            }
            Err(e) => return Err(InputError::new(e).into()),
        };
        match other.as_str() {
            terrace_recordings::period::CONTENT => periods(path, shown, folder, how),
            _ => references(path, shown, folder, how),
        }
    }

    /// Its intervals, as they would be on this machine. With `in_proportion` the time follows the
    /// share of reads that are slow, whatever the runs with a part of the memory slow have shown.
    pub fn play_on(
        &self,
        machine: &Machine,
        in_proportion: bool,
    ) -> anyhow::Result<Box<dyn IntervalSource>> {
        let source: Box<dyn IntervalSource> = match &self.stored {
            Stored::Kept(all) => Box::new(Kept { all: all.clone(), next: 0 }),
            Stored::Profile(path) => Box::new(ProfileReader::open(path).map_err(InputError::new)?),
            Stored::Periods { path, group, waiting, machine } => {
                Box::new(PeriodIntervals::open(path, group, *waiting, machine)?)
            }
        };
        let (recorded, machine) = (self.machine.clone(), machine.clone());
        Ok(Box::new(Retimed { source, recorded, machine, in_proportion }))
    }

    /// Refuses recordings that cannot be planned together: of different machines or kinds.
    pub fn check_alike(all: &[Recording]) -> Result<(), InputError> {
        let Some(first) = all.first() else {
            return Err(refuse!("no recordings: expected at least one"));
        };
        for other in &all[1..] {
            let pair = |what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
                Err(refuse!(
                    "{} is {what} {a} and {} {what} {b}: expected recordings that are alike; plan \
                     for each alone",
                    first.path.display(),
                    other.path.display()
                ))
            };
            if first.recorded_on != other.recorded_on || first.machine != other.machine {
                let shown = |r: &Recording| {
                    let (fast, slow) = (&r.machine.fast, &r.machine.slow);
                    format!(
                        "'{}' ({:.0}/{:.0} ns)",
                        r.recorded_on, fast.latency_ns, slow.latency_ns
                    )
                };
                return pair("of machine", &shown(first), &shown(other));
            }
            if first.evidence != other.evidence {
                return pair("a", &first.format, &other.format);
            }
        }
        for (index, one) in all.iter().enumerate() {
            if all[..index].iter().any(|other| other.path == one.path) {
                return Err(refuse!("{} is given twice: expected each once", one.path.display()));
            }
        }
        Ok(())
    }
}

struct Kept {
    all: Arc<[Interval]>,
    next: usize,
}

impl IntervalSource for Kept {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let interval = self.all.get(self.next).cloned();
        self.next += 1;
        Ok(interval)
    }
}

struct Retimed {
    source: Box<dyn IntervalSource>,
    recorded: Machine,
    machine: Machine,
    in_proportion: bool,
}

impl IntervalSource for Retimed {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let interval = self.source.next_interval()?;
        Ok(interval.map(|interval| {
            let mut interval = self.machine.retime(interval, &self.recorded);
            if self.in_proportion {
                interval.mixed.clear();
            }
            interval
        }))
    }
}

/// Sums over the intervals of a recording, which are kept on the way if they are few enough.
#[derive(Default)]
struct Survey {
    kept: Vec<Interval>,
    bytes: u64,
    intervals: u64,
    fast_ps: u64,
    slow_ps: u64,
    pages: usize,
}

impl Survey {
    fn of(source: &mut dyn IntervalSource) -> anyhow::Result<Self> {
        let mut survey = Survey::default();
        while let Some(interval) = source.next_interval().map_err(InputError::new)? {
            survey.add(interval);
        }
        Ok(survey)
    }

    fn add(&mut self, interval: Interval) {
        self.intervals += 1;
        self.fast_ps = self.fast_ps.saturating_add(interval.fast_ps);
        self.slow_ps = self.slow_ps.saturating_add(interval.slow_ps);
        self.pages = self.pages.max(interval.layout.pages());
        self.bytes += 9 * interval.layout.pages() as u64;
        if self.bytes <= KEPT_BYTES {
            self.kept.push(interval);
        } else {
            self.kept = Vec::new();
        }
    }

    /// The intervals, or where to read them again.
    fn stored(&mut self, otherwise: Stored) -> Stored {
        match std::mem::take(&mut self.kept) {
            kept if self.bytes <= KEPT_BYTES => Stored::Kept(kept.into()),
            _ => otherwise,
        }
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        if self.intervals == 0 || self.fast_ps == 0 || self.pages == 0 {
            return Err(refuse!(
                "{}: nothing was recorded; expected a program that used memory, record it again",
                path.display()
            ));
        }
        Ok(())
    }
}

fn profile(
    path: &Path,
    mut reader: ProfileReader<std::io::BufReader<std::fs::File>>,
) -> anyhow::Result<Recording> {
    let header = reader.header().clone();
    let mut survey = Survey::of(&mut reader)?;
    if let Some(cut) = reader.truncation() {
        return Err(refuse!("{cut}; expected a finished profile, make it again").into());
    }
    survey.check(path)?;
    let mut machine = match &header.tiers[..] {
        [fast, slow, ..] => {
            Machine { fast: fast.into(), slow: slow.into(), ..Machine::preset(ASSUMED_MACHINE)? }
        }
        _ => Machine::preset(&header.machine).map_err(|e| refuse!("{}: {e}", path.display()))?,
    };
    machine.name.clone_from(&header.machine);
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let experiment = header.experiment.as_deref().map(|text| Experiment::parse(text, folder));
    let experiment = experiment.and_then(Result::ok);
    let pages = (survey.pages as u64) * header.page_size.bytes();
    Ok(Recording {
        name: header.workload,
        path: path.to_owned(),
        format: "profile",
        evidence: Evidence::Measured,
        recorded_on: header.machine,
        machine,
        page_size: header.page_size,
        footprint_bytes: header.footprint_bytes.unwrap_or(pages).max(1),
        period_ms: experiment.as_ref().map(|e| e.period_ms),
        experiment,
        fast_ps: survey.fast_ps,
        slow_ps: survey.slow_ps,
        intervals: survey.intervals,
        samples: None,
        waiting: None,
        warnings: Vec::new(),
        stored: survey.stored(Stored::Profile(path.to_owned())),
        _folder: None,
    })
}

/// Periods of accessed pages as intervals of a stated latency model.
struct PeriodIntervals {
    source: RecordingSource<std::io::BufReader<std::fs::File>>,
    period_ps: u64,
    waiting: Waiting,
    machine: Machine,
}

impl PeriodIntervals {
    fn open(
        path: &Path,
        group: &str,
        waiting: Waiting,
        machine: &Machine,
    ) -> Result<Self, InputError> {
        let source = RecordingSource::open(path, group).map_err(InputError::new)?;
        let period_ps = source.header().period_ms.max(1).saturating_mul(1_000_000_000);
        Ok(PeriodIntervals { source, period_ps, waiting, machine: machine.clone() })
    }
}

/// The time of an interval with all memory slow, by the latency model.
fn modelled_slow_ps(fast_ps: u64, waiting: Waiting, machine: &Machine) -> u64 {
    let growth = machine.slow.latency_ns / machine.fast.latency_ns.max(1e-9) - 1.0;
    (fast_ps as f64 * (1.0 + waiting.share * growth)).round() as u64
}

impl IntervalSource for PeriodIntervals {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let Some(period) = self.source.next_period()? else { return Ok(None) };
        let fast_ps = self.period_ps;
        let slow_ps = modelled_slow_ps(fast_ps, self.waiting, &self.machine);
        let pages = period.layout.pages();
        let reads = (0..pages).map(|page| u64::from(period.accessed.get(page))).collect();
        Ok(Some(Interval {
            // Once a microsecond for each: a move of a page in use is taken to delay the program.
            references: (period.accessed.count() as u64).saturating_mul(fast_ps / 1_000_000),
            fast_ps,
            slow_ps,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: period.layout,
            accessed: period.accessed,
            fresh: Vec::new(),
            reads,
        }))
    }
}

fn periods(
    path: &Path,
    shown: &Path,
    folder: Option<TempDir>,
    how: &Open,
) -> anyhow::Result<Recording> {
    let mut reader = PeriodReader::open(path).map_err(InputError::new)?;
    let whole = reader.is_whole().map_err(InputError::new)?;
    let header = reader.header().clone();
    let names: Vec<&str> = header.groups.iter().map(|g| g.name.as_str()).collect();
    let group = match (&how.group, &names[..]) {
        (Some(group), _) => group.clone(),
        (None, [one]) => (*one).to_owned(),
        (None, _) => {
            return Err(refuse!(
                "{}: groups {}: expected one of them with --group",
                shown.display(),
                names.join(", ")
            )
            .into());
        }
    };
    let number = reader.group(&group).map_err(InputError::new)?;
    let page_size = header.groups[number].page_size;
    let machine = Machine::preset(ASSUMED_MACHINE)?;
    let mut source = PeriodIntervals::open(path, &group, how.waiting, &machine)?;
    let mut survey = Survey::of(&mut source)?;
    survey.check(shown)?;
    let mut warnings = Vec::new();
    if !whole {
        warnings.push(format!("{} was cut off: what precedes the cut is used", shown.display()));
    }
    let imported = folder.is_some();
    let stored = Stored::Periods {
        path: path.to_owned(),
        group: group.clone(),
        waiting: how.waiting,
        machine: machine.clone(),
    };
    Ok(Recording {
        name: group,
        path: shown.to_owned(),
        format: if imported { "DAMON record" } else { "period recording" },
        evidence: Evidence::Pages,
        recorded_on: header.machine,
        machine,
        page_size,
        footprint_bytes: (survey.pages as u64 * page_size.bytes()).max(1),
        period_ms: Some(header.period_ms.max(1)),
        experiment: None,
        fast_ps: survey.fast_ps,
        slow_ps: survey.slow_ps,
        intervals: survey.intervals,
        samples: None,
        waiting: Some(how.waiting),
        warnings,
        stored: survey.stored(stored),
        _folder: folder,
    })
}

/// A page by process and number.
type Page = (u32, u64);

fn references(
    path: &Path,
    shown: &Path,
    folder: Option<TempDir>,
    how: &Open,
) -> anyhow::Result<Recording> {
    let mut reader = ReferenceReader::open(path).map_err(InputError::new)?;
    let header = reader.header().clone();
    let page_size = how.page_size.unwrap_or(PageSize::Base);
    // First the totals: pages in the order of their first touch, and the run time.
    let mut first_touch: BTreeMap<Page, u64> = BTreeMap::new();
    let (mut end, mut count) = (0u64, 0u64);
    for placed in reader.records() {
        let p = placed.map_err(InputError::new)?;
        end = end.max(p.time + 1);
        if let Record::Reference(r) = p.record {
            count += 1;
            let next = first_touch.len() as u64;
            first_touch.entry((p.process, r.address / page_size.bytes())).or_insert(next);
        }
    }
    if count == 0 {
        return Err(refuse!(
            "{}: no references; expected a program that used memory, record it again",
            shown.display()
        )
        .into());
    }
    let layout = Arc::new(layout(page_size, first_touch.keys().copied())?);
    let pages = layout.pages() as u64;
    let intervals = (KEPT_BYTES / (9 * pages.max(1))).clamp(LEAST_INTERVALS, MOST_INTERVALS);
    let intervals = intervals.min(end.max(1));
    let index = |page: &Page| {
        let at = layout.index(SpaceId(page.0), page.1 * page_size.bytes());
        at.unwrap_or_default()
    };
    let mut fresh: Vec<(u64, usize)> =
        first_touch.iter().map(|(page, &turn)| (turn, index(page))).collect();
    fresh.sort_unstable();
    let nanoseconds = !header.counts_instructions();
    // An instruction of a processor of 3 GHz that executes one a cycle.
    let unit_ps = if nanoseconds { 1000.0 } else { 333.0 };
    let one_in = match header.filter.sample_one_in {
        1 => how.sample_one_in.unwrap_or(1),
        n => n,
    };
    let machine = Machine::preset(ASSUMED_MACHINE)?;
    let mut survey = Survey::default();
    let length = end.div_ceil(intervals);
    let mut turn = 0;
    let mut reads = vec![0u64; pages as usize];
    let mut close = |turn: u64, reads: &mut Vec<u64>, survey: &mut Survey| {
        let time = length.min(end - turn * length);
        let fast_ps = ((time as f64 * unit_ps).round() as u64).max(1);
        let slow_ps = modelled_slow_ps(fast_ps, how.waiting, &machine);
        let mut accessed = PageBits::new(reads.len());
        reads.iter().enumerate().filter(|r| *r.1 > 0).for_each(|(p, _)| accessed.set(p, true));
        let all = std::mem::replace(reads, vec![0; accessed.len()]);
        survey.add(Interval {
            references: all.iter().sum::<u64>().saturating_mul(one_in),
            fast_ps,
            slow_ps,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: layout.clone(),
            accessed,
            fresh: std::mem::take(&mut fresh).into_iter().map(|(_, page)| page).collect(),
            reads: all,
        });
    };
    for placed in reader.records() {
        let p = placed.map_err(InputError::new)?;
        while p.time >= (turn + 1) * length {
            close(turn, &mut reads, &mut survey);
            turn += 1;
        }
        if let Record::Reference(r) = p.record {
            reads[index(&(p.process, r.address / page_size.bytes()))] += 1;
        }
    }
    close(turn, &mut reads, &mut survey);
    survey.check(shown)?;
    if survey.bytes > KEPT_BYTES {
        return Err(refuse!(
            "{}: {pages} pages are too many to plan from references; expected fewer, give \
             --page-size 2M or plan from a profile ('terrace profile')",
            shown.display()
        )
        .into());
    }
    let command = header.command.first().map(String::as_str).unwrap_or_default();
    let name = Path::new(command).file_stem().map(|s| s.to_string_lossy().into_owned());
    let mut warnings = Vec::new();
    if !nanoseconds && one_in == 1 {
        warnings.push(match header.filter.level {
            Level::None => "this recording has every reference: 'terrace profile' of it (workload \
                            kind \"recording\") measures what they cost, and plans from that are \
                            stronger"
                .to_owned(),
            level => format!(
                "this recording has only what missed cache '{}'; one of every reference ('terrace \
                 record --level none') can be profiled ('terrace profile', workload kind \
                 \"recording\"), and plans from that are stronger",
                level.name()
            ),
        });
    }
    Ok(Recording {
        name: name.filter(|n| !n.is_empty()).unwrap_or_else(|| "program".to_owned()),
        path: shown.to_owned(),
        format: if nanoseconds { "memory samples" } else { "reference recording" },
        evidence: Evidence::Samples,
        recorded_on: if nanoseconds { "host" } else { "recorder" }.to_owned(),
        machine: Machine::preset(ASSUMED_MACHINE)?,
        page_size,
        footprint_bytes: pages * page_size.bytes(),
        period_ms: None,
        experiment: None,
        fast_ps: survey.fast_ps,
        slow_ps: survey.slow_ps,
        intervals: survey.intervals,
        samples: (one_in > 1 || nanoseconds).then_some(count),
        waiting: Some(how.waiting),
        warnings,
        stored: Stored::Kept(std::mem::take(&mut survey.kept).into()),
        _folder: folder,
    })
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

/// Reads another tool's file: DAMON's by how it begins, anything else as text of `perf script`.
fn imported(path: &Path, how: &Open) -> anyhow::Result<Recording> {
    let format = match looks_like_damon(path)? {
        true => "damon",
        false => "perf",
    };
    let format = import::find(format).map_err(InputError::new)?;
    let options = ImportOptions {
        page_size: how.page_size.filter(|_| format.choices.contains(&import::Choice::PageSize)),
        period_ms: None,
        sample_one_in: how
            .sample_one_in
            .filter(|_| format.choices.contains(&import::Choice::Sample)),
        created_by: terrace_identity::created_by("terrace"),
    };
    let folder = tempfile::tempdir().context("a folder for the imported recording")?;
    let target = folder.path().join(format!("imported.{}", format.makes.suffix()));
    let mut input = Input::open(path).map_err(InputError::new)?;
    let done = format.import_file(&mut input, &target, &options).map_err(|error| match error {
        ImportError::Recording(_) => anyhow::Error::from(error),
        error => refuse!(
            "{}: no recording of Terrace, and as {} it cannot be read: {error}",
            path.display(),
            format.summary
        )
        .into(),
    })?;
    let mut recording = match format.makes {
        Makes::Periods => periods(&target, path, Some(folder), how)?,
        Makes::References => references(&target, path, Some(folder), how)?,
    };
    if recording.evidence == Evidence::Samples {
        recording.name = first_command(path).unwrap_or(recording.name);
    }
    if let Some(place) = done.cut {
        recording.warnings.push(format!("{} was cut off at {place}", path.display()));
    }
    Ok(recording)
}

/// The program of the first sample: `perf script` begins its lines with it.
fn first_command(path: &Path) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text[..text.len().min(1 << 16)]).into_owned();
    let line = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with('#'))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = line.split_whitespace().next()?.chars().filter(|&c| plain(c)).collect();
    (!name.is_empty()).then_some(name)
}

fn looks_like_damon(path: &Path) -> anyhow::Result<bool> {
    use std::io::Read;
    let mut begin = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| {
        refuse!(
            "{}: {e}; expected a recording: a profile (.tprof), .trec, .tref, a DAMON record or \
             text of 'perf script'",
            path.display()
        )
    })?;
    file.take(1 << 16).read_to_end(&mut begin).with_context(|| path.display().to_string())?;
    let text = String::from_utf8_lossy(&begin);
    let first = begin.iter().find(|b| !b.is_ascii_whitespace());
    Ok(matches!(first, Some(b'[' | b'{' | 0x78)) || text.contains("damon"))
}
