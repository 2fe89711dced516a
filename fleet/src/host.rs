//! One host: its histories are read, planned and reduced to what each service on it needs.
//!
//! Of the periods only what services used together remains, two services at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use terrace_core::InputError;
use terrace_planner::memory::Machine;
use terrace_planner::plan::{Request, curves};
use terrace_planner::recording::{Open, Recording};
use terrace_recordings::period::{HISTORY, PeriodReader, Record};
use terrace_stores::{Entry, Fetched};

use crate::boots::{Boots, Saved};
use crate::file::{Fleet, Matcher, Terms};
use crate::folders::HostFolder;
use crate::interval::seed_of;
use crate::needs::{Need, RESOLUTION, need};
use crate::pairs::{Pair, Series, together};

/// What is left of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Position of its class.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Its groups of which the boot is known: hashes of both.
    pub groups: Vec<u64>,
    /// What its services need, by name.
    pub services: Vec<ServiceOnHost>,
    /// Each two of its services that have periods together.
    pub pairs: Vec<Pair>,
    /// What could not be used.
    pub left_out: Vec<LeftOut>,
}

impl Host {
    /// Whether all histories of its groups were used: only then its whole need is known. Groups of an
    /// earlier boot have no part in it.
    pub fn is_whole(&self) -> bool {
        self.left_out.iter().all(|left| left.ended) && !self.services.is_empty()
    }

    /// What all of its services need, in bytes, at a latency of its class.
    pub fn need(&self, latency: usize) -> Need {
        let mut sum = Need::default();
        let needs = self.services.iter().filter_map(|s| s.needs.get(latency));
        needs.for_each(|need| sum.add(need));
        sum
    }

    /// Memory of its services, in bytes.
    pub fn footprint_bytes(&self) -> f64 {
        self.services.iter().map(|s| s.footprint_bytes).sum()
    }
}

/// The groups of one service on a host, together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceOnHost {
    /// Name of the service.
    pub service: String,
    /// Run time that it can bear, over that with all memory fast.
    pub target: f64,
    /// How many groups there are.
    pub groups: u64,
    /// Their memory, in bytes.
    pub footprint_bytes: f64,
    /// Fast memory that they need, in bytes, by latency of the class.
    pub needs: Vec<Need>,
}

/// A file or a folder that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Path.
    pub path: String,
    /// Reason, in a line.
    pub reason: String,
    /// Whether it is of a group that does not run any more, so that nothing is missing without it.
    pub ended: bool,
}

impl LeftOut {
    /// A file or folder without which the host's need is not known.
    pub fn missing(path: String, reason: String) -> Self {
        LeftOut { path, reason, ended: false }
    }
}

/// Reads hosts of a fleet.
pub struct HostReader<'a> {
    fleet: &'a Fleet,
    matcher: Matcher,
    /// Machines of each class: with its own slow memory, then with others.
    machines: Vec<Vec<Machine>>,
}

impl<'a> HostReader<'a> {
    /// Ready to read the hosts of this fleet.
    ///
    /// # Errors
    /// A pattern that cannot be read.
    pub fn new(fleet: &'a Fleet) -> Result<Self, InputError> {
        let mut machines = Vec::new();
        for class in &fleet.classes {
            let own = class.machine()?;
            let latencies = fleet.latencies_ns(class)?.into_iter();
            machines.push(latencies.map(|ns| own.with_slow(Some(ns), None)).collect());
        }
        Ok(HostReader { fleet, matcher: fleet.matcher()?, machines })
    }

    /// Reads a host. What cannot be used is named in the result, and is no error.
    pub fn read(&self, folder: &HostFolder) -> Host {
        let mut host = Host {
            class: folder.class,
            name: folder.name.clone(),
            groups: Vec::new(),
            services: Vec::new(),
            pairs: Vec::new(),
            left_out: Vec::new(),
        };
        let place = &folder.place;
        let files = match place.histories() {
            Ok(files) => files,
            Err(reason) => {
                host.left_out.push(LeftOut::missing(place.to_string(), reason));
                return host;
            }
        };
        if files.is_empty() {
            let reason = "no history, expected files of terraced (.trec)".to_owned();
            host.left_out.push(LeftOut::missing(place.to_string(), reason));
        }
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let fetched = place.fetch(&paths);
        let saved: Vec<Option<Saved>> =
            files.iter().zip(&fetched).map(|(file, fetched)| saved(file, fetched)).collect();
        let boots = Boots::of(saved.iter().flatten());
        let mut services: BTreeMap<String, (ServiceOnHost, Series)> = BTreeMap::new();
        let mut groups = BTreeSet::new();
        for ((file, fetched), saved) in paths.iter().zip(fetched).zip(saved) {
            let boot = saved.map(|saved| saved.boot);
            if let Some(reason) = boot.as_ref().and_then(|boot| boots.reason(boot)) {
                let ended = matches!(boots, Boots::Newest(_));
                host.left_out.push(LeftOut { path: place.shown(file), reason, ended });
                continue;
            }
            let read = fetched.and_then(|local| {
                let read = self.history(local.path(), folder.class, &mut groups);
                read.map_err(|e| one_line(&e, local.path()))
            });
            match read {
                Ok((terms, used, needs)) => {
                    let boot = boot.filter(|boot| !boot.is_empty());
                    host.groups.extend(boot.map(|boot| seed_of(0, &[&boot, &used.group])));
                    let added = services.entry(terms.service.clone()).or_insert_with(|| {
                        let needs = vec![Need::default(); needs.len()];
                        let one = ServiceOnHost {
                            service: terms.service.clone(),
                            target: terms.target,
                            groups: 0,
                            footprint_bytes: 0.0,
                            needs,
                        };
                        (one, Series::default())
                    });
                    added.0.groups += 1;
                    added.0.footprint_bytes += used.footprint_bytes;
                    added.0.needs.iter_mut().zip(&needs).for_each(|(sum, need)| sum.add(need));
                    added.1.add(&used.series);
                }
                Err(reason) => host.left_out.push(LeftOut::missing(place.shown(file), reason)),
            }
        }
        let all: Vec<&(ServiceOnHost, Series)> = services.values().collect();
        for (at, first) in all.iter().enumerate() {
            for (after, second) in all[at + 1..].iter().enumerate() {
                let services = [at, at + 1 + after].map(|at| at as u32);
                let both = together(&first.1, &second.1);
                host.pairs.extend(both.map(|both| Pair { services, burst: both.burst() }));
            }
        }
        host.services = services.into_values().map(|(service, _)| service).collect();
        host
    }

    /// One history: its service, what it used, and what it needs in bytes by latency.
    fn history(
        &self,
        path: &Path,
        class: usize,
        groups: &mut BTreeSet<String>,
    ) -> anyhow::Result<(Terms, Used, Vec<Need>)> {
        let used = Used::read(path, self.fleet.least_periods)?;
        if !groups.insert(used.group.clone()) {
            anyhow::bail!("group {} is in another history of the host", used.group);
        }
        let terms = self.fleet.terms(&self.matcher, &used.group);
        if used.pages == 0 {
            // Without pages of the size that is tracked it needs nothing, as far as can be known.
            let needs = vec![Need::default(); self.machines[class].len()];
            return Ok((terms, used, needs));
        }
        // The share of waiting is one of the time on the class's own fast memory. Slow memory of every
        // latency, the class's own too, comes from the same times, so that its answer is the same.
        let recorded_on = self.machines[class].first().map(|own| {
            let slow_latency_ns = 2.0 * own.fast.latency_ns;
            own.with_slow(Some(slow_latency_ns), None)
        });
        let how = Open {
            group: None,
            page_size: None,
            sample_one_in: None,
            waiting: terms.waiting,
            machine: recorded_on,
        };
        let recording = Recording::open(path, &how)?;
        let pages = recording.footprint_bytes.div_ceil(recording.page_size.bytes());
        let footprint_bytes = recording.footprint_bytes as f64;
        let request = Request {
            recordings: vec![recording],
            target: terms.target,
            policies: vec![self.fleet.policy.clone()],
            machines: self.machines[class].clone(),
            fast_at_most: 1.0,
            seeds: 1,
            period_ms: None,
            moved_pages: None,
            settle_periods: self.fleet.settle_periods,
            resolution: RESOLUTION,
            jobs: 1,
        };
        let curves = curves(&request, &|_, _| {})?;
        let needs = curves.iter().map(|curve| {
            let share = need(&curve.points, terms.target, terms.waiting, pages);
            share.map(|share| share * footprint_bytes)
        });
        let needs = needs.collect();
        Ok((terms, Used { footprint_bytes, ..used }, needs))
    }
}

/// The boot of a history and the time of its file; `None` of a file that is none.
fn saved(file: &Entry, fetched: &Result<Fetched, String>) -> Option<Saved> {
    let reader = PeriodReader::open(fetched.as_ref().ok()?.path()).ok()?;
    let mut lines = reader.header().experiment.lines();
    let is_history = lines.next() == Some(HISTORY);
    let boot = lines.next().filter(|_| is_history)?.to_owned();
    Some(Saved { boot, modified: file.modified })
}

/// What a history shows before it is planned.
struct Used {
    group: String,
    footprint_bytes: f64,
    /// The most pages in a period.
    pages: usize,
    series: Series,
}

impl Used {
    /// Reads a history to its end.
    fn read(path: &Path, least_periods: u64) -> anyhow::Result<Self> {
        let mut reader = PeriodReader::open(path)?;
        if !reader.is_whole()? {
            anyhow::bail!("cut off, expected a history that was saved whole");
        }
        let header = reader.header();
        if header.experiment.lines().next() != Some(HISTORY) {
            anyhow::bail!("a recording, but no history of terraced");
        }
        let [group] = &header.groups[..] else {
            anyhow::bail!("{} groups, expected the history of one", header.groups.len());
        };
        let (name, page_bytes) = (group.name.clone(), group.page_size.bytes());
        let mut pages = 0;
        let mut series = Series { period_ms: header.period_ms.max(1), bytes: Vec::new() };
        for record in reader.records() {
            if let Record::Period(period) = record.context("damaged")? {
                let bytes = period.scan.accessed.count() as f64 * page_bytes as f64;
                series.push(u64::from(period.scan.lost_periods), bytes);
                pages = pages.max(period.scan.pages());
            }
        }
        if (series.known() as u64) < least_periods {
            anyhow::bail!("{} periods, expected at least {least_periods}", series.known());
        }
        Ok(Used { group: name, footprint_bytes: 0.0, pages, series })
    }
}

/// The error and its causes in a line, without the path beside it.
fn one_line(error: &anyhow::Error, path: &Path) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    let path = path.display();
    InputError::new(text.replace(&format!("{path}: "), "").replace(&format!("'{path}' "), "")).0
}
