//! Sources of a node's instructions: a workload program traced as it runs, a recording, or a
//! synthetic pattern for tests. One stream for each core, with barriers where the program's phases
//! begin and end.
//!
//! A program's start-up is not simulated: only the order in which its references first touch pages
//! is used (the paper skips it too, section IV-A).

mod recording;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use terrace_hardware::error::ConfigError;
use terrace_hardware::random::Random;
use terrace_hardware::units::Bytes;
use terrace_workloads::programs::memory::{Edge, phase};
use terrace_workloads::programs::pull::{self, Event, Events};
use terrace_workloads::programs::{self, Params};

use crate::config::BLOCK_BYTES;

/// The workload of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadConfig {
    /// The name in results.
    pub name: String,
    /// A workload program (`terrace-workload list` names them), ...
    pub program: Option<String>,
    /// ... or the file of a reference recording, of which the process with most references is
    /// played, ...
    pub recording: Option<PathBuf>,
    /// ... or a synthetic pattern.
    pub synthetic: Option<Synthetic>,
    /// Memory of a program or pattern.
    pub footprint: Option<Bytes>,
    /// Of its loads, the share whose address came from the load before: pointers followed, indices
    /// looked up. No recorder observes it.
    #[serde(default)]
    pub dependent_loads: f64,
    /// Factor on its instructions beside loads and stores, where the program that it represents is
    /// known to execute fewer or more.
    #[serde(default = "one")]
    pub compute: f64,
    /// The phase of the program that is simulated; what comes before counts as its start-up. `main`,
    /// if left out.
    pub region: Option<String>,
    /// A program's own parameters.
    #[serde(default)]
    pub options: serde_json::Map<String, serde_json::Value>,
}

fn one() -> f64 {
    1.0
}

/// A synthetic pattern.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    /// Share of references that go to the hot pages.
    pub hot_share: f64,
    /// Share of the pages that are hot.
    pub hot_pages: f64,
    /// Share of references that store.
    pub store_share: f64,
    /// Blocks accessed one after the other before the next page is drawn.
    pub run_blocks: u32,
    /// Other instructions between two references.
    pub gap: u32,
    /// Share of the pages, the last ones, that are not mapped when it begins: their first access is
    /// a page fault.
    #[serde(default)]
    pub untouched: f64,
}

/// One load or store, within one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Virtual address.
    pub address: u64,
    /// Other instructions of its thread since the reference before.
    pub gap: u32,
    /// Size in bytes.
    pub size: u8,
    /// Whether it is a store.
    pub store: bool,
    /// Whether the address is the result of the load before.
    pub dependent: bool,
}

/// A core's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This reference.
    Item(Item),
    /// Waits until all cores have reached this point.
    Barrier,
    /// Nothing now: other cores must run first.
    Starved,
    /// The end of the stream.
    End,
}

/// References that may wait for cores that are behind.
const MOST_AHEAD: usize = 1 << 18;

enum Source {
    Program(Events),
    Recording(Receiver<Vec<(u32, Item)>>, Option<JoinHandle<Result<(), String>>>),
    Synthetic(Box<Pattern>),
    Ended,
}

struct Pattern {
    shape: Synthetic,
    pages: u64,
    cores: Vec<(Random, u64, u32)>,
}

/// The streams of a node.
pub struct Stream {
    cores: Vec<VecDeque<Next>>,
    /// Cores that take no more references.
    closed: Vec<bool>,
    waiting: usize,
    /// The share of loads that depend on the one before, and the state of each core.
    dependent_loads: f64,
    towards_dependent: Vec<f64>,
    /// Factor on instructions beside loads and stores, and what rounding left of each core's.
    compute: f64,
    fractions: Vec<f64>,
    source: Source,
    /// The program's phase at which its start-up ends.
    region: String,
    footprint: u64,
    /// Why the source ended early, if it did.
    problem: Option<String>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

fn bad(config: &WorkloadConfig, what: impl std::fmt::Display) -> ConfigError {
    ConfigError::new(format!("workload.{}", config.name), what.to_string())
}

impl WorkloadConfig {
    /// Checks that the workload is possible on a node of so many cores: its program starts, its
    /// recording opens. Otherwise it would be rejected when its turn comes, perhaps after hours.
    pub fn check(&self, cores: usize) -> Result<(), ConfigError> {
        let mut stream = Stream::new(self, cores, 1)?;
        // A program checks its options when it starts: its first event, or the reason for none.
        if let Source::Program(events) = &mut stream.source
            && events.next().is_none()
        {
            stream.end();
        }
        stream.problem.map_or(Ok(()), |problem| Err(bad(self, problem)))
    }
}

impl Stream {
    /// Starts the source.
    pub fn new(config: &WorkloadConfig, cores: usize, seed: u64) -> Result<Self, ConfigError> {
        let sources =
            [config.program.is_some(), config.recording.is_some(), config.synthetic.is_some()];
        if sources.iter().filter(|&&s| s).count() != 1 {
            return Err(bad(config, "expected one of program, recording and synthetic"));
        }
        if !(0.0..=1.0).contains(&config.dependent_loads) {
            let share = config.dependent_loads;
            return Err(bad(config, format!("dependent_loads is {share}; expected 0 to 1")));
        }
        if !(0.01..=100.0).contains(&config.compute) {
            let factor = config.compute;
            return Err(bad(config, format!("compute is {factor}; expected 0.01 to 100")));
        }
        let footprint = config.footprint.unwrap_or(Bytes::mib(64)).0;
        let source = if let Some(program) = &config.program {
            let kind = programs::kind(program).map_err(|e| bad(config, e))?;
            let mut params = Params::new(footprint, seed);
            params.threads = if kind.threads { cores } else { 1 };
            params.options = serde_json::Value::Object(config.options.clone());
            Source::Program(pull::events(program, &params).map_err(|e| bad(config, e))?)
        } else if let Some(file) = &config.recording {
            recording::open(config, file)?
        } else {
            let shape = config.synthetic.ok_or_else(|| bad(config, "no source"))?;
            let shares = [shape.hot_share, shape.hot_pages, shape.store_share, shape.untouched];
            if shares.iter().any(|s| !(0.0..=1.0).contains(s)) || shape.run_blocks == 0 {
                return Err(bad(config, "shares must be in 0 to 1 and run_blocks 1 at least"));
            }
            if footprint < 4096 * 4 {
                return Err(bad(
                    config,
                    format!("a footprint of {footprint}; expected 16K at least"),
                ));
            }
            let start = |core: usize| (Random::new(seed ^ (core as u64) << 32), 0, 0);
            Source::Synthetic(Box::new(Pattern {
                shape,
                pages: footprint / 4096,
                cores: (0..cores).map(start).collect(),
            }))
        };
        Ok(Stream {
            cores: vec![VecDeque::new(); cores],
            closed: vec![false; cores],
            waiting: 0,
            dependent_loads: config.dependent_loads,
            towards_dependent: vec![0.0; cores],
            compute: config.compute,
            fractions: vec![0.0; cores],
            source,
            region: config.region.clone().unwrap_or_else(|| phase::MAIN.to_owned()),
            footprint,
            problem: None,
        })
    }

    /// Memory of the program, as far as it is known.
    pub fn footprint(&self) -> u64 {
        self.footprint
    }

    /// Why the source ended early, if it did.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Skips a program's start-up; `touch` gets the address of each reference.
    pub fn skip_start_up(&mut self, mut touch: impl FnMut(u64)) {
        match &mut self.source {
            Source::Program(events) => {
                for event in events.by_ref() {
                    match event {
                        Event::References(block) => block.iter().for_each(|r| touch(r.address)),
                        Event::Mark(m) if m.phase == self.region && m.edge == Edge::Begin => return,
                        _ => {}
                    }
                }
                self.end();
                if self.problem.is_none() {
                    self.problem = Some(format!("the program has no phase {:?}", self.region));
                }
            }
            Source::Synthetic(pattern) => {
                let touched = pattern.pages as f64 * (1.0 - pattern.shape.untouched);
                (0..touched as u64).for_each(|p| touch(p << 12));
            }
            _ => {}
        }
    }

    /// A core's next step.
    #[inline]
    pub fn next(&mut self, core: usize) -> Next {
        let Some(mut next) = self.cores[core].pop_front() else { return self.refill(core) };
        self.waiting -= 1;
        if self.compute != 1.0
            && let Next::Item(item) = &mut next
        {
            let gap = f64::from(item.gap) * self.compute + self.fractions[core];
            item.gap = gap as u32;
            self.fractions[core] = gap - f64::from(item.gap);
        }
        if self.dependent_loads > 0.0
            && let Next::Item(item) = &mut next
            && !item.store
        {
            let towards = &mut self.towards_dependent[core];
            *towards += self.dependent_loads;
            if *towards >= 1.0 {
                *towards -= 1.0;
                item.dependent = true;
            }
        }
        next
    }

    /// A core takes no more references: the rest of its stream is dropped, so that it does not hold
    /// up the others.
    pub fn close(&mut self, core: usize) {
        self.closed[core] = true;
        self.waiting -= self.cores[core].len();
        self.cores[core].clear();
    }

    fn end(&mut self) {
        match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Program(events) => {
                if let Err(error) = events.finish() {
                    self.problem = Some(error.to_string());
                }
            }
            Source::Recording(_, Some(reader)) => {
                if let Ok(Err(error)) = reader.join() {
                    self.problem = Some(error);
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn refill(&mut self, core: usize) -> Next {
        let cores = self.cores.len();
        while self.cores[core].is_empty() {
            if self.waiting >= MOST_AHEAD {
                return Next::Starved;
            }
            let closed = &self.closed;
            let push = |queues: &mut Vec<VecDeque<Next>>, thread: usize, item: Item| {
                if closed[thread % cores] {
                    return 0;
                }
                let queue = &mut queues[thread % cores];
                let before = queue.len();
                split(item, |item| queue.push_back(Next::Item(item)));
                queue.len() - before
            };
            match &mut self.source {
                Source::Ended => return Next::End,
                Source::Synthetic(pattern) => {
                    for _ in 0..256 {
                        let item = pattern.draw(core);
                        self.waiting += push(&mut self.cores, core, item);
                    }
                }
                Source::Recording(blocks, _) => match blocks.recv() {
                    Ok(block) => {
                        for (thread, item) in block {
                            self.waiting += push(&mut self.cores, thread as usize, item);
                        }
                    }
                    Err(_) => self.end(),
                },
                Source::Program(events) => match events.next() {
                    Some(Event::References(block)) => {
                        for r in block {
                            let item = Item {
                                address: r.address,
                                gap: r.gap,
                                size: r.size,
                                store: r.is_store,
                                dependent: false,
                            };
                            self.waiting += push(&mut self.cores, usize::from(r.thread), item);
                        }
                    }
                    Some(Event::Mark(m)) if m.phase == phase::MAIN && m.edge == Edge::End => {
                        self.end();
                    }
                    Some(Event::Mark(_)) => {
                        let open = self.cores.iter_mut().zip(&self.closed).filter(|c| !c.1);
                        for (queue, _) in open {
                            queue.push_back(Next::Barrier);
                            self.waiting += 1;
                        }
                    }
                    Some(Event::Region(_)) => {}
                    None => self.end(),
                },
            }
        }
        self.next(core)
    }
}

/// A reference to two blocks is two references.
fn split(item: Item, mut push: impl FnMut(Item)) {
    let size = u64::from(item.size.max(1));
    let end = item.address + size;
    let boundary = (item.address / BLOCK_BYTES + 1) * BLOCK_BYTES;
    if end <= boundary {
        return push(item);
    }
    push(Item { size: (boundary - item.address) as u8, ..item });
    push(Item {
        address: boundary,
        gap: 0,
        size: (end - boundary).min(64) as u8,
        store: item.store,
        dependent: false,
    });
}

impl Pattern {
    fn draw(&mut self, core: usize) -> Item {
        let (random, block, left) = &mut self.cores[core];
        let shape = self.shape;
        if *left == 0 {
            *left = shape.run_blocks;
            let hot = ((self.pages as f64 * shape.hot_pages) as u64).clamp(1, self.pages);
            let page = if random.unit() < shape.hot_share {
                random.below(hot)
            } else {
                random.below(self.pages)
            };
            *block = page * 64 + random.below(64);
        }
        let address = (*block % (self.pages * 64)) * BLOCK_BYTES;
        *block += 1;
        *left -= 1;
        Item {
            address,
            gap: shape.gap,
            size: 8,
            store: random.unit() < shape.store_share,
            dependent: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_to_two_blocks_is_two() {
        let mut items = Vec::new();
        let item = Item { address: 60, gap: 3, size: 8, store: true, dependent: false };
        split(item, |i| items.push((i.address, i.gap, i.size)));
        assert_eq!(items, [(60, 3, 4), (64, 0, 4)]);
        items.clear();
        split(Item { address: 56, ..item }, |i| items.push((i.address, i.gap, i.size)));
        assert_eq!(items, [(56, 3, 8)]);
    }

    #[test]
    fn a_core_that_is_done_does_not_starve_the_others() {
        let mut config = program("stream");
        config.options.insert("iterations".into(), 1000.into());
        let mut stream = Stream::new(&config, 2, 1).unwrap();
        stream.skip_start_up(|_| {});
        assert!(matches!(stream.next(0), Next::Item(_) | Next::Barrier));
        stream.close(0);
        for _ in 0..2 * MOST_AHEAD {
            assert!(matches!(stream.next(1), Next::Item(_) | Next::Barrier));
        }
    }

    fn program(name: &str) -> WorkloadConfig {
        WorkloadConfig {
            name: name.into(),
            program: Some(name.into()),
            recording: None,
            synthetic: None,
            footprint: Some(Bytes::mib(2)),
            dependent_loads: 0.0,
            compute: 1.0,
            region: None,
            options: Default::default(),
        }
    }

    #[test]
    fn compute_scales_instructions_beside_references_and_nothing_else() {
        let first = |compute: f64| {
            let mut stream =
                Stream::new(&WorkloadConfig { compute, ..program("ft") }, 1, 1).unwrap();
            stream.skip_start_up(|_| {});
            let (mut gaps, mut addresses) = (0u64, Vec::new());
            while addresses.len() < 10_000 {
                if let Next::Item(item) = stream.next(0) {
                    gaps += u64::from(item.gap);
                    addresses.push(item.address);
                }
            }
            (gaps, addresses)
        };
        let (all, addresses) = first(1.0);
        let (third, same) = first(0.3);
        assert_eq!(addresses, same);
        assert!((third as f64 / all as f64 - 0.3).abs() < 1e-4, "{third} of {all}");
        let refused = Stream::new(&WorkloadConfig { compute: 0.0, ..program("ft") }, 1, 1);
        assert!(refused.unwrap_err().to_string().contains("compute is 0; expected 0.01 to 100"));
    }

    #[test]
    fn a_region_begins_when_its_phase_does() {
        let touches = |region: Option<&str>| {
            let region = region.map(str::to_owned);
            let mut stream =
                Stream::new(&WorkloadConfig { region, ..program("minife") }, 2, 1).unwrap();
            let mut touches = 0u64;
            stream.skip_start_up(|_| touches += 1);
            (touches, stream.problem().map(str::to_owned))
        };
        let (main, no_problem) = touches(None);
        assert_eq!(no_problem, None);
        // The assembly goes over the whole matrix many times before the solver begins.
        let (solve, no_problem) = touches(Some("solve"));
        assert_eq!(no_problem, None);
        assert!(solve > 2 * main, "{solve} {main}");
        let (_, problem) = touches(Some("sovle"));
        assert!(problem.is_some_and(|p| p.contains("no phase \"sovle\"")));
    }

    #[test]
    fn a_programs_start_up_only_touches_and_then_all_threads_have_work() {
        let mut stream = Stream::new(&program("stream"), 2, 1).unwrap();
        let mut touched = std::collections::BTreeSet::new();
        stream.skip_start_up(|a| {
            touched.insert(a >> 12);
        });
        assert!(touched.len() > 500, "{}", touched.len());
        let mut items = [0u32; 2];
        let mut barriers = [0; 2];
        let mut ended = [false; 2];
        // In turns, like cores: taking only one thread's references starves it.
        for core in [0, 1].into_iter().cycle() {
            match stream.next(core) {
                Next::Item(_) => items[core] += 1,
                Next::Barrier => barriers[core] += 1,
                Next::Starved => unreachable!("both take theirs"),
                Next::End => {
                    ended[core] = true;
                    if ended == [true; 2] {
                        break;
                    }
                }
            }
        }
        assert!(items[0] > 1000 && items[0].abs_diff(items[1]) <= items[0] / 2, "{items:?}");
        assert!(barriers[0] > 0 && barriers[0] == barriers[1]);
    }

    #[test]
    fn what_cannot_be_a_workload_is_refused() {
        let refused = |config: &WorkloadConfig| Stream::new(config, 2, 1).unwrap_err().to_string();
        assert!(refused(&program("nosuch")).contains("no program is named 'nosuch'"));
        let none = WorkloadConfig { program: None, ..program("x") };
        assert!(refused(&none).contains("expected one of program, recording and synthetic"));
        let missing = WorkloadConfig { recording: Some("missing.trec".into()), ..none };
        assert!(refused(&missing).contains("missing.trec"));
        // Options that a program rejects only when it starts.
        let mut options = program("stream");
        assert_eq!(options.check(2), Ok(()));
        options.options.insert("iterations".into(), "many".into());
        let printed = options.check(2).unwrap_err().to_string();
        assert!(printed.contains("workload.stream") && printed.contains("iterations"), "{printed}");
        assert!(!printed.contains('\n'), "{printed}");
    }
}
