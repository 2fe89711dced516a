//! The sources of a plan: profiles, period recordings, reference recordings and other tools' files,
//! each made into the intervals that the simulated machine plays.
//!
//! A profile was measured at trace fidelity: each interval's time with all memory fast and with all
//! of it slow. All other sources have *which* memory was used and not its cost. There the time
//! follows from a model that is stated: of the time with all memory fast a share is spent waiting
//! for memory ([`Waiting`]) and grows with the latency (the leading-load model of
//! `terrace_core::projection`); every access, or sample, weighs the same.

mod imported;
mod intervals;
mod references;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tempfile::TempDir;
use terrace_core::InputError;
use terrace_core::page::PageSize;
use terrace_experiments::Experiment;
use terrace_recordings::error::RecordingError;
use terrace_recordings::period::PeriodReader;
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_simulated::timed::IntervalSource;

use crate::config::plain;
use crate::memory::Machine;
use terrace_core::refuse;

use crate::recording::imported::imported;
use crate::recording::intervals::{Kept, PeriodIntervals, Retimed, Survey};
use crate::recording::references::references;

/// Machine whose tiers are used where a recording has none.
pub const ASSUMED_MACHINE: &str = "server-ddr5-cxl";

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

impl Waiting {
    /// Refuses what is no share.
    fn check(&self) -> Result<(), InputError> {
        for (name, value) in [("share", self.share), ("error of the share", self.error)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(refuse!(
                    "the {name} of time that waits for memory is {value}: expected 0 to 1"
                ));
            }
        }
        Ok(())
    }
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
    /// The machine on whose fast memory that assumption holds, for files without costs;
    /// [`ASSUMED_MACHINE`] if `None`.
    pub machine: Option<Machine>,
}

impl Open {
    /// The machine that the times of a file without costs are made for.
    fn machine(&self) -> Result<Machine, InputError> {
        self.machine.clone().map_or_else(|| Machine::preset(ASSUMED_MACHINE), Ok)
    }

    /// Refuses an option that nothing of a file of this kind is read by.
    fn check_used(&self, path: &Path, kind: &str, used: &[&str]) -> Result<(), InputError> {
        let given = [
            ("group", self.group.is_some()),
            ("page-size", self.page_size.is_some()),
            ("sample", self.sample_one_in.is_some()),
        ];
        match given.iter().find(|(name, given)| *given && !used.contains(name)) {
            None => Ok(()),
            Some((name, _)) => Err(refuse!(
                "--{name} says nothing of {kind}, which {} is; leave it out",
                path.display()
            )),
        }
    }
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
    /// Lines from memory that each of its reads is; 0 where caches may have answered them.
    lines_per_read: f64,
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
        how.waiting.check()?;
        Self::open_as(path, path, None, how)
    }

    fn open_as(
        path: &Path,
        shown: &Path,
        folder: Option<TempDir>,
        how: &Open,
    ) -> anyhow::Result<Self> {
        let other = match ProfileReader::open(path) {
            Ok(reader) => {
                how.check_used(shown, "a profile", &[])?;
                return profile(path, reader);
            }
            Err(RecordingError::Content { got, .. }) => got,
            Err(RecordingError::NotARecording { .. }) if folder.is_none() => {
                return imported(path, how);
            }
            Err(e) => return Err(InputError::new(e).into()),
        };
        match other.as_str() {
            terrace_recordings::period::CONTENT => {
                if folder.is_none() {
                    how.check_used(shown, "a recording of periods", &["group"])?;
                }
                periods(path, shown, folder, how)
            }
            _ => {
                if folder.is_none() {
                    let used = ["page-size", "sample"];
                    how.check_used(shown, "a recording of references", &used)?;
                }
                references(path, shown, folder, how)
            }
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
        let lines_per_read = self.lines_per_read;
        Ok(Box::new(Retimed { source, recorded, machine, lines_per_read, in_proportion }))
    }

    /// Opens the recordings of several programs that are planned together. Of programs of the same
    /// name the second is NAME-2, and so on.
    pub fn open_all(paths: &[PathBuf], how: &Open) -> anyhow::Result<Vec<Self>> {
        let mut all: Vec<Recording> = Vec::new();
        for path in paths {
            let mut opened = Self::open(path, how)?;
            // Configurations of the daemon have the names so, too.
            let is_taken = |name: &str| all.iter().any(|r| plain(&r.name) == plain(name));
            if is_taken(&opened.name) {
                // Short enough that a number stays in the daemon's name.
                let name: String = opened.name.chars().take(56).collect();
                let mut others = (2..).map(|number| format!("{name}-{number}"));
                opened.name = others.find(|name| !is_taken(name)).expect("numbers go on");
            }
            all.push(opened);
        }
        Self::check_alike(&all)?;
        Ok(all)
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
        // Periods below a millisecond are planned as one.
        period_ms: experiment.as_ref().map(|e| e.period_length_us().div_ceil(1000).max(1)),
        experiment,
        fast_ps: survey.fast_ps,
        slow_ps: survey.slow_ps,
        intervals: survey.intervals,
        samples: None,
        waiting: None,
        warnings: Vec::new(),
        lines_per_read: 1.0,
        stored: survey.stored(Stored::Profile(path.to_owned())),
        _folder: None,
    })
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
    let machine = how.machine()?;
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
        lines_per_read: 1.0,
        stored: survey.stored(stored),
        _folder: folder,
    })
}
