//! Estimates the slowdown of a whole program from its windows, with an interval.
//!
//! Every share of fast memory is simulated on the same windows as all memory fast. A quarter of the
//! windows comes first, and the others where their error is above what was asked.

mod ratio;

use std::path::{Path, PathBuf};

use terrace_core::{InputError, refuse};
use terrace_engine::FastLimit;
use terrace_recordings::windows::{Header, WindowsReader};
use terrace_simulated::reference::windows::{Player, lines_for, source};
use terrace_simulated::reference::{ReferenceConfig, ReferenceMachine};

use crate::file::{Experiment, Fidelity, GroupSpec};
use crate::reference::{self, Share};
use crate::run::{Event, Events};
use crate::windows::only_group;
pub use ratio::Ratio;
use ratio::{Times, ratio};

/// One window in so many is simulated first.
const FIRST: u64 = 4;

/// What is asked.
#[derive(Debug, Clone)]
pub struct Request {
    /// Shares of memory that are fast, 0 to 1; none: that of the experiment.
    pub fast_shares: Vec<f64>,
    /// Half of the interval's width over the slowdown that is enough; `None`: all windows.
    pub error: Option<f64>,
    /// Simulations at a time.
    pub jobs: usize,
}

/// The answer for one share of fast memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The share that is fast, 0 to 1; `None`: as the experiment has it, in bytes.
    pub fast_share: Option<f64>,
    /// Run time over that with all memory fast.
    pub slowdown: Ratio,
    /// Run time of the whole program, in ms.
    pub time_ms: f64,
    /// Share of lines read from memory that came from the fast tier, in the windows.
    pub fast_reads: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimated {
    /// One for each share.
    pub estimates: Vec<Estimate>,
    /// Run time with all memory fast, in ms.
    pub all_fast_ms: f64,
    /// Windows that were simulated.
    pub windows: u64,
    /// Loads and stores that were timed over those of the program.
    pub timed_share: f64,
}

/// A file of windows and the experiment that they are simulated in.
pub struct Windows {
    path: PathBuf,
    header: Header,
    experiment: Experiment,
}

/// One way to simulate the windows.
struct Way {
    share: Share,
    fast_share: Option<f64>,
}

/// Results of one way.
#[derive(Debug, Clone, Default)]
struct Results {
    times: Times,
    fast_reads: u64,
    reads: u64,
}

impl Windows {
    /// Opens windows. They are simulated in `experiment` where it is given, else in that which they
    /// were taken from.
    pub fn open(path: &Path, experiment: Option<Experiment>) -> anyhow::Result<Self> {
        let header = WindowsReader::open(path).map_err(InputError::new)?.header().clone();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let experiment = match experiment {
            Some(experiment) => experiment,
            None => Experiment::parse(&header.experiment, folder)?,
        };
        let windows = Windows {
            path: path.to_owned(),
            header,
            experiment: experiment.at_fidelity(Fidelity::Trace)?,
        };
        let config = reference::config(&windows.experiment)?;
        let needed = lines_for(&config.hardware, windows.header.threads).all;
        if needed > windows.header.lines {
            return Err(refuse!(
                "'{}' has {} lines for each window: expected at least {needed} for the caches of \
                 this machine; take windows with --lines {needed}",
                path.display(),
                windows.header.lines,
            )
            .into());
        }
        only_group(&windows.experiment)?;
        Ok(windows)
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn group(&self) -> anyhow::Result<&GroupSpec> {
        only_group(&self.experiment)
    }

    /// Shares to simulate, all memory fast first.
    fn ways(&self, request: &Request) -> anyhow::Result<Vec<Way>> {
        let group = self.group()?;
        let given = |limit: FastLimit, fast_share| {
            let limit = match self.header.footprint_bytes {
                Some(bytes) => limit.of_whole(group.page_size.size(), bytes),
                None => limit,
            };
            Way { share: Share::Given(limit), fast_share }
        };
        let mut ways = vec![Way { share: Share::AllFast, fast_share: Some(1.0) }];
        match &request.fast_shares[..] {
            [] => ways.push(given(group.share(), group.fast_ratio)),
            shares => {
                ways.extend(shares.iter().map(|&s| given(FastLimit::Ratio(s), Some(s))));
            }
        }
        Ok(ways)
    }

    /// Simulates the windows and estimates the slowdown of the whole program.
    pub fn estimate(
        &self,
        request: &Request,
        events: &mut dyn Events,
    ) -> anyhow::Result<Estimated> {
        let ways = self.ways(request)?;
        let first = |n: u64| n % FIRST == FIRST / 2;
        let mut results = self.simulate(&ways, request.jobs, first)?;
        let mut windows = (0..self.header.windows).filter(|n| first(*n)).count() as u64;
        let answer = self.answer(&ways, &results, windows);
        let is_enough = |e: &Estimate| {
            request.error.is_some_and(|asked| e.slowdown.half_width <= asked * e.slowdown.value)
        };
        if answer.estimates.iter().all(is_enough) {
            return Ok(answer);
        }
        events.event(Event::Stage("simulating the other three quarters of the windows"));
        let others = self.simulate(&ways, request.jobs, |n| !first(n))?;
        for (result, other) in results.iter_mut().zip(others) {
            result.times.windows_ps.extend(other.times.windows_ps);
            result.fast_reads += other.fast_reads;
            result.reads += other.reads;
        }
        windows = self.header.windows;
        Ok(self.answer(&ways, &results, windows))
    }

    fn answer(&self, ways: &[Way], results: &[Results], windows: u64) -> Estimated {
        let parts = self.header.references as f64 / self.header.window_references as f64;
        let (base, others) = (&results[0], &results[1..]);
        let in_ms = |times: &Times| times.whole_ps(parts) / 1e9;
        let estimate = |(way, result): (&Way, &Results)| Estimate {
            fast_share: way.fast_share,
            slowdown: ratio(&result.times, &base.times, parts),
            time_ms: in_ms(&result.times),
            fast_reads: result.fast_reads as f64 / result.reads.max(1) as f64,
        };
        Estimated {
            estimates: ways[1..].iter().zip(others).map(estimate).collect(),
            all_fast_ms: in_ms(&base.times),
            windows,
            timed_share: windows as f64 / parts,
        }
    }

    /// Simulates the windows that `chosen` names by their number, in every way.
    fn simulate(
        &self,
        ways: &[Way],
        jobs: usize,
        chosen: impl Fn(u64) -> bool + Sync,
    ) -> anyhow::Result<Vec<Results>> {
        terrace_jobs::try_all(ways, jobs, |way| self.one(way.share, &chosen))
    }

    fn one(&self, share: Share, chosen: &impl Fn(u64) -> bool) -> anyhow::Result<Results> {
        let config = self.machine(share)?;
        let lines = lines_for(&config.hardware, self.header.threads);
        let machine = ReferenceMachine::new(config)?;
        let source = source(&self.header);
        let player = Player::new(machine.clone(), &source, &self.header, lines);
        let group = reference::unmanaged(self.group()?, share);
        let _interfaces = machine.add_group(group, Box::new(source))?;
        let mut reader = WindowsReader::open(&self.path).map_err(InputError::new)?;
        let (mut results, mut number) = (Results::default(), 0);
        while let Some(window) = reader.next_window().map_err(InputError::new)? {
            if chosen(number) {
                let played = player.play(&window)?;
                results.times.windows_ps.push(played.took_ps as f64);
                results.fast_reads += played.reads[0];
                results.reads += played.reads.iter().sum::<u64>();
            } else {
                player.skip(&window)?;
            }
            number += 1;
        }
        results.times.once_ps = player.end(reader.tail())? as f64;
        Ok(results)
    }

    /// The machine: with all memory fast, one that has room for it.
    fn machine(&self, share: Share) -> Result<ReferenceConfig, InputError> {
        let config = reference::config(&self.experiment)?;
        Ok(if share == Share::AllFast { reference::roomy(config) } else { config })
    }

    /// Runs the whole program with the source of the experiment, with these shares of its memory
    /// fast and nothing moved: what [`Windows::estimate`] estimates. Returns the slowdowns.
    pub fn whole(&self, request: &Request) -> anyhow::Result<Vec<f64>> {
        let group = self.group()?;
        let run = |way: &Way| -> anyhow::Result<f64> {
            let machine = ReferenceMachine::new(self.machine(way.share)?)?;
            let source = reference::source(&self.experiment, group)?;
            let _interfaces = machine.add_group(reference::unmanaged(group, way.share), source)?;
            machine.run_to_end()?;
            let took = machine.duration(0);
            Ok(took.ok_or_else(|| refuse!("the program did not end"))?.0 as f64)
        };
        let times = terrace_jobs::try_all(&self.ways(request)?, request.jobs, run)?;
        Ok(times[1..].iter().map(|time| time / times[0]).collect())
    }
}
