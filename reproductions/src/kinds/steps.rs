//! Kind "steps": the cost of moving pages, step by step, through the calls of the operating-system
//! model. Nothing else is on the machine.
//!
//! A cell's settings are [`Settings`]. Measures: `gb_per_s`, `time_us`, its parts `call_us`,
//! `split_us`, `allocate_us`, `unmap_us` (shootdowns with it), `copy_us` (threads with it),
//! `map_us`, `free_us`, and `shootdowns`. `copy_gb_per_s` is copying alone.

use serde::Deserialize;
use terrace_core::page::VirtualRange;
use terrace_core::plan::Exchange;
use terrace_experiments::run::Events;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::Fault;
use terrace_os::config::{DataPolicy, HugePages, ShootdownPer};
use terrace_os::costs::CostConfig;
use terrace_os::moves::{Copy, copies_by_thread};
use terrace_os::{Node, NodeMemory, Os, OsConfig, ProcessSpec, Tier};
use toml::{Table, Value};

use super::{Job, Kind};
use crate::data::Data;

pub(super) const KIND: Kind = Kind {
    name: "steps",
    summary: "what moving pages costs, step by step, in the operating-system model",
    has_seed: false,
    make,
};

const BASE: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

/// The pages to move, and how.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Whether the pages are huge.
    huge: bool,
    /// Pages on each list.
    pages: u64,
    /// Huge pages are split first.
    split_huge_first: bool,
    /// Copying threads.
    threads: u32,
    /// Minimum bytes for several threads.
    least_bytes_for_threads: u64,
    /// Pages under way at once; 1 is not concurrent.
    concurrent: u32,
    /// The two lists are exchanged; otherwise the one in slow memory is promoted.
    exchange: bool,
    /// Pages promoted and as many demoted, by two calls: the alternative to an exchange.
    both_ways: bool,
    /// Pages in one operation, with one shootdown; 0 for the whole list.
    pages_per_operation: u64,
    /// Each operation is a call of its own.
    call_per_operation: bool,
    /// One shootdown for each page, whatever the operation.
    shootdown_per_page: bool,
    /// Processors besides the one that moves, which shootdowns wait for.
    other_processors: u64,
    /// Costs of the steps.
    costs: CostConfig,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            huge: false,
            pages: 1,
            split_huge_first: false,
            threads: 1,
            least_bytes_for_threads: 256 << 10,
            concurrent: 1,
            exchange: false,
            both_ways: false,
            pages_per_operation: 1,
            call_per_operation: false,
            shootdown_per_page: true,
            other_processors: 0,
            costs: CostConfig::default(),
        }
    }
}

/// The times of the steps, in us.
#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    bytes: f64,
    call: f64,
    split: f64,
    allocate: f64,
    unmap: f64,
    copy: f64,
    map: f64,
    free: f64,
    shootdowns: f64,
}

impl Steps {
    fn time_us(&self) -> f64 {
        self.call + self.split + self.allocate + self.unmap + self.copy + self.map + self.free
    }

    fn measure(&self, name: &str) -> Option<f64> {
        Some(match name {
            "gb_per_s" => self.bytes / self.time_us() / 1e3,
            "copy_gb_per_s" => self.bytes / self.copy / 1e3,
            "time_us" => self.time_us(),
            "call_us" => self.call,
            "split_us" => self.split,
            "allocate_us" => self.allocate,
            "unmap_us" => self.unmap,
            "copy_us" => self.copy,
            "map_us" => self.map,
            "free_us" => self.free,
            "shootdowns" => self.shootdowns,
            _ => return None,
        })
    }
}

fn make(job: &Job<'_>, _events: &mut dyn Events) -> anyhow::Result<Data> {
    let mut data = job.empty();
    for cell in job.cells() {
        let describe = |e: &dyn std::fmt::Display| {
            anyhow::anyhow!("row '{}', column '{}': {e}", cell.row, cell.column)
        };
        let settings: Settings =
            Value::Table(Table::clone(&cell.settings)).try_into().map_err(|e| describe(&e))?;
        let steps =
            Bench::new(&settings).and_then(|b| b.run(&settings)).map_err(|e| describe(&e))?;
        for measure in &job.figure.measures {
            let value = steps.measure(measure).ok_or_else(|| {
                describe(&format!("measure '{measure}': expected one of this kind's"))
            })?;
            data.put(&cell.row, &cell.column, measure, value);
        }
    }
    Ok(data)
}

/// One program with a list of pages on each node.
struct Bench {
    os: Os,
    slow: Vec<VirtualRange>,
    fast: Vec<VirtualRange>,
}

impl Bench {
    fn new(settings: &Settings) -> Result<Bench, String> {
        let printed = |e: &dyn std::fmt::Display| e.to_string();
        let mut config = OsConfig {
            huge_pages: if settings.huge { HugePages::Always } else { HugePages::Never },
            watermarks: vec![terrace_os::config::Watermarks::NONE; 2],
            costs: settings.costs.clone(),
            ..OsConfig::default()
        };
        let moves = &mut config.migration;
        moves.split_huge_first = settings.split_huge_first;
        moves.threads = settings.threads;
        moves.least_bytes_for_threads = settings.least_bytes_for_threads;
        (moves.batch_huge_pages, moves.batch_base_pages) =
            (settings.concurrent, settings.concurrent);
        let operation = match settings.pages_per_operation {
            0 => settings.pages,
            pages => pages,
        };
        if settings.pages == 0 || !settings.pages.is_multiple_of(operation) {
            return Err(format!("{} pages in operations of {operation}", settings.pages));
        }
        // A cap below an operation would have no effect.
        moves.batch_base_pages = moves.batch_base_pages.max(operation as u32);
        moves.shootdown_per =
            if settings.shootdown_per_page { ShootdownPer::Page } else { ShootdownPer::Operation };
        let size = if settings.huge { HUGE } else { BASE };
        // Room for both lists, a copy of one, and page tables.
        let capacity_bytes = (4 * settings.pages * size + (16 << 20)).next_multiple_of(HUGE);
        let node = |tier, start| NodeMemory { tier, start: PhysicalAddress(start), capacity_bytes };
        let nodes = [node(Tier::FAST, 0), node(Tier::SLOW, capacity_bytes)];
        let mut os = Os::new(&config, &nodes).map_err(|e| printed(&e))?;
        let mut lists = Vec::new();
        for place in [Node::SLOW, Node::FAST] {
            let spec = ProcessSpec { data: DataPolicy::Bind(place), ..Default::default() };
            let process = os.create_process(spec).map_err(|e| format!("{e:?}"))?;
            os.map(process, 0, settings.pages * size, true).map_err(|e| format!("{e:?}"))?;
            for page in 0..settings.pages {
                let address = VirtualAddress(page * size);
                let fault = Fault { address, write: true, done: Picoseconds::ZERO, level: 0 };
                os.fault(process, &fault).map_err(|e| format!("{e:?}"))?;
            }
            let ranges = (0..settings.pages / operation).map(|i| VirtualRange {
                space: process,
                start: i * operation * size,
                size_bytes: operation * size,
            });
            lists.push(ranges.collect::<Vec<_>>());
        }
        let fast = lists.pop().unwrap_or_default();
        let slow = lists.pop().unwrap_or_default();
        Ok(Bench { os, slow, fast })
    }

    fn run(mut self, settings: &Settings) -> Result<Steps, String> {
        let mut steps = Steps::default();
        if settings.exchange {
            self.exchange(settings, &mut steps)?;
        } else {
            let lists = [(self.slow.clone(), Node::FAST), (self.fast.clone(), Node::SLOW)];
            for (list, to) in lists.into_iter().take(if settings.both_ways { 2 } else { 1 }) {
                let calls: Vec<Vec<VirtualRange>> = if settings.call_per_operation {
                    list.into_iter().map(|r| vec![r]).collect()
                } else {
                    vec![list]
                };
                for call in calls {
                    self.moves(call, to, settings, &mut steps);
                }
            }
        }
        Ok(steps)
    }

    fn moves(&mut self, mut rest: Vec<VirtualRange>, to: Node, s: &Settings, steps: &mut Steps) {
        let mut batches = 0;
        while !rest.is_empty() {
            let begun = self.os.begin_move(&rest, to);
            let done = self.os.finish_move(begun.id);
            batches += 1;
            // One call of the program, however many batches the kernel splits it into.
            steps.call += if batches == 1 { us(begun.cost.call) } else { 0.0 };
            steps.split += us(begun.cost.split);
            steps.allocate += us(begun.cost.allocate);
            let shot: Picoseconds =
                begun.shootdowns.iter().map(|d| d.initiator(s.other_processors)).sum();
            steps.unmap += us(begun.cost.unmap) + us(shot);
            steps.shootdowns += begun.shootdowns.len() as f64;
            let rate = self.os.costs().copy_gb_per_s;
            steps.copy += us(begun.cost.threads) + copy_us(&begun.copies, begun.copy_threads, rate);
            steps.map += us(done.map);
            steps.free += us(done.free);
            steps.bytes += done.bytes as f64;
            rest = begun.rest;
        }
    }

    fn exchange(&mut self, s: &Settings, steps: &mut Steps) -> Result<(), String> {
        let pair = |(&up, &down): (&VirtualRange, &VirtualRange)| Exchange { up, down };
        let mut rest: Vec<Exchange> = self.slow.iter().zip(&self.fast).map(pair).collect();
        let mut batches = 0;
        while !rest.is_empty() {
            let begun = self.os.begin_exchange(&rest);
            if !begun.fallback.is_empty() {
                return Err("pairs that cannot be exchanged".to_owned());
            }
            let done = self.os.finish_move(begun.id);
            batches += 1;
            // The model returns the call, unmapping and starting threads in one.
            let call = self.os.costs().move_call_ns as f64 / 1e3;
            steps.call += if batches == 1 { call } else { 0.0 };
            let shot: Picoseconds =
                begun.shootdowns.iter().map(|d| d.initiator(s.other_processors)).sum();
            steps.unmap += us(begun.cost) - call + us(shot);
            steps.shootdowns += begun.shootdowns.len() as f64;
            let rate = self.os.costs().exchange_gb_per_s;
            steps.copy += 2.0 * copy_us(&begun.swaps, begun.copy_threads, rate);
            steps.map += us(done.map);
            steps.free += us(done.free);
            steps.bytes += done.bytes as f64;
            rest = begun.rest;
        }
        Ok(())
    }
}

fn us(time: Picoseconds) -> f64 {
    time.as_ns() / 1e3
}

/// Copying takes as long as the thread with most to do.
fn copy_us(copies: &[Copy], threads: u32, gb_per_s: f64) -> f64 {
    let bytes = |of: &Vec<Copy>| of.iter().map(|c| c.bytes).sum::<u64>();
    let most = copies_by_thread(copies, threads).iter().map(bytes).max().unwrap_or(0);
    most as f64 / gb_per_s / 1e3
}
