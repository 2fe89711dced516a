//! Random or sequential traffic at a set load against one DRAM system, measured: the work of
//! `terrace dram`, and the model's validation.

use serde::Serialize;

use crate::address::{Kind, PhysicalAddress};
use crate::dram::channel::ChannelCounts;
use crate::dram::config::DramConfig;
use crate::dram::system::Dram;
use crate::error::{ConfigError, check_range};
use crate::random::Random;
use crate::request::{Request, RequestId};
use crate::units::{Bytes, Picoseconds, gb_per_s};

/// The order of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Uniformly random lines.
    Random,
    /// One line after the other.
    Sequential,
}

/// The rate of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// At random times (a Poisson process) with this mean rate, served or not.
    OfferedGbPerS(f64),
    /// So many reads at a time: a new one when one is done. Writes count as done when the write
    /// queue takes them.
    Outstanding(u32),
}

/// A traffic specification.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    /// The order of lines.
    pub pattern: Pattern,
    /// Share of reads among the requests, 0 to 1.
    pub read_share: f64,
    /// The rate of requests.
    pub load: Load,
    /// Number of measured requests.
    pub requests: u64,
    /// Requests before the measured ones, to fill queues and open rows.
    pub warm_up: u64,
    /// Memory used, from address 0 on; all of it if `None`.
    pub footprint: Option<Bytes>,
    /// Seed of everything random.
    pub seed: u64,
}

impl Traffic {
    /// Reads only, 200,000 of them after 20,000 of warm-up.
    pub fn reads(pattern: Pattern, load: Load) -> Self {
        Traffic {
            pattern,
            read_share: 1.0,
            load,
            requests: 200_000,
            warm_up: 20_000,
            footprint: None,
            seed: 1,
        }
    }
}

/// Latencies of one kind of request, from submission to completion.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Latency {
    /// Number of requests.
    pub requests: u64,
    /// Mean latency.
    pub mean_ns: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// Latency that 99 of 100 do not exceed.
    pub p99_ns: f64,
    /// Maximum latency.
    pub max_ns: f64,
}

impl Latency {
    fn of(mut all: Vec<u64>) -> Self {
        if all.is_empty() {
            return Latency::default();
        }
        all.sort_unstable();
        let ns = |ps: u64| ps as f64 / 1000.0;
        // The smallest value that the given share of all values does not exceed.
        let rank = |percent: usize| ns(all[(all.len() * percent).div_ceil(100).max(1) - 1]);
        let sum: u128 = all.iter().map(|&l| u128::from(l)).sum();
        Latency {
            requests: all.len() as u64,
            mean_ns: sum as f64 / all.len() as f64 / 1000.0,
            p50_ns: rank(50),
            p99_ns: rank(99),
            max_ns: rank(100),
        }
    }
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrafficReport {
    /// Peak of all data buses together.
    pub peak_gb_per_s: f64,
    /// Bytes of the measured requests over their total time.
    pub achieved_gb_per_s: f64,
    /// Latency of reads.
    pub read: Latency,
    /// Latency of writes, until their data is in the array.
    pub write: Latency,
    /// Simulated time of the measured part.
    pub elapsed_ns: f64,
    /// Counts of the whole run.
    pub counts: ChannelCounts,
}

/// Draws requests.
struct Source {
    random: Random,
    pattern: Pattern,
    read_share: f64,
    lines: u64,
    line_bytes: u64,
    next: u64,
}

impl Source {
    fn draw(&mut self, id: u64) -> Request {
        let line = match self.pattern {
            Pattern::Random => self.random.below(self.lines),
            Pattern::Sequential => {
                let line = self.next;
                self.next = (line + 1) % self.lines;
                line
            }
        };
        let read = self.read_share >= 1.0 || self.random.unit() < self.read_share;
        Request {
            id: RequestId(id),
            address: PhysicalAddress(line * self.line_bytes),
            kind: if read { Kind::Read } else { Kind::Write },
        }
    }
}

/// Measurements during the run.
struct Meter {
    warm_up: u64,
    /// When each request was made, by number, with the kind in the lowest bit.
    made: Vec<u64>,
    reads: Vec<u64>,
    writes: Vec<u64>,
    started: Picoseconds,
    ended: Picoseconds,
}

impl Meter {
    fn made(&mut self, request: &Request, at: Picoseconds) {
        if request.id.0 == self.warm_up {
            self.started = at;
        }
        self.made.push(at.0 << 1 | u64::from(request.kind.is_write()));
    }

    /// Takes out the completions so far; returns the number of reads among them.
    fn take(&mut self, dram: &mut Dram) -> u32 {
        let mut reads = 0;
        while let Some(completion) = dram.pop_completion() {
            let made = self.made[completion.id.0 as usize];
            let write = made & 1 == 1;
            reads += u32::from(!write);
            if completion.id.0 >= self.warm_up {
                let latency = completion.done.0 - (made >> 1);
                if write {
                    self.writes.push(latency)
                } else {
                    self.reads.push(latency)
                }
                self.ended = self.ended.max(completion.done);
            }
        }
        reads
    }
}

/// Runs traffic against a DRAM system.
pub fn dram_run(config: &DramConfig, traffic: &Traffic) -> Result<TrafficReport, ConfigError> {
    Ok(run(Dram::new(config)?, config, traffic)?.0)
}

/// Submits requests at random times with a mean rate.
fn offer(
    dram: &mut Dram,
    traffic: &Traffic,
    gb_per_s: f64,
    source: &mut Source,
    meter: &mut Meter,
) -> Result<(), ConfigError> {
    if !(1e-6..=1e6).contains(&gb_per_s) {
        return Err(ConfigError::new(
            "traffic",
            format!("{gb_per_s} GB/s are offered; expected 1e-6 to 1e6"),
        ));
    }
    let gap_ps = source.line_bytes as f64 * 1000.0 / gb_per_s;
    // A generator of its own: the same lines are requested at every load.
    let mut gaps = Random::new(traffic.seed ^ 0x6761_7073);
    let mut at = 0.0f64;
    for id in 0..traffic.requests + traffic.warm_up {
        at += gaps.exponential() * gap_ps;
        let now = Picoseconds(at as u64);
        dram.advance_to(now);
        meter.take(dram);
        let request = source.draw(id);
        meter.made(&request, now);
        dram.submit(now, request);
    }
    Ok(())
}

/// Submits requests so that always the same number of reads is under way.
fn keep_under_way(
    dram: &mut Dram,
    traffic: &Traffic,
    most: u32,
    source: &mut Source,
    meter: &mut Meter,
) -> Result<(), ConfigError> {
    check_range("traffic", "outstanding", u64::from(most), 1..=1 << 20)?;
    let total = traffic.requests + traffic.warm_up;
    let mut under_way = 0;
    let mut id = 0;
    let mut held: Option<Request> = None;
    while id < total {
        while under_way < most && id < total {
            let request = held.take().unwrap_or_else(|| source.draw(id));
            let write = request.kind.is_write();
            if write && !dram.has_room(&request) {
                held = Some(request);
                break;
            }
            let now = dram.now();
            meter.made(&request, now);
            dram.submit(now, request);
            id += 1;
            under_way += u32::from(!write);
        }
        if let Some(event) = dram.next_event() {
            dram.advance_to(event);
        }
        under_way -= meter.take(dram);
    }
    Ok(())
}

/// Runs traffic on a system; returns also the system after the run, for its log.
pub fn run(
    mut dram: Dram,
    config: &DramConfig,
    traffic: &Traffic,
) -> Result<(TrafficReport, Dram), ConfigError> {
    let part = "traffic";
    check_range(part, "requests", traffic.requests, 1..=1_000_000_000)?;
    check_range(part, "warm_up", traffic.warm_up, 0..=1_000_000_000)?;
    if !(0.0..=1.0).contains(&traffic.read_share) {
        return Err(ConfigError::new(
            part,
            format!("read share is {}; expected 0 to 1", traffic.read_share),
        ));
    }
    let line_bytes = config.organization.line_bytes();
    let capacity = config.organization.capacity_bytes();
    let footprint = traffic.footprint.map_or(capacity, |f| f.0);
    check_range(part, "footprint", footprint, line_bytes..=capacity)?;
    let total = traffic.requests + traffic.warm_up;
    let mut source = Source {
        random: Random::new(traffic.seed),
        pattern: traffic.pattern,
        read_share: traffic.read_share,
        lines: footprint / line_bytes,
        line_bytes,
        next: 0,
    };
    let mut meter = Meter {
        warm_up: traffic.warm_up,
        made: Vec::with_capacity(total as usize),
        reads: Vec::new(),
        writes: Vec::new(),
        started: Picoseconds::ZERO,
        ended: Picoseconds::ZERO,
    };
    match traffic.load {
        Load::OfferedGbPerS(offered) => {
            offer(&mut dram, traffic, offered, &mut source, &mut meter)?
        }
        Load::Outstanding(most) => {
            keep_under_way(&mut dram, traffic, most, &mut source, &mut meter)?
        }
    }
    while dram.outstanding() > 0 {
        let Some(event) = dram.next_event() else { break };
        dram.advance_to(event);
        meter.take(&mut dram);
    }
    let elapsed = meter.ended.since(meter.started);
    let report = TrafficReport {
        peak_gb_per_s: config.peak_gb_per_s(),
        achieved_gb_per_s: gb_per_s(traffic.requests * line_bytes, elapsed),
        read: Latency::of(meter.reads),
        write: Latency::of(meter.writes),
        elapsed_ns: elapsed.as_ns(),
        counts: dram.counts(),
    };
    Ok((report, dram))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::presets;

    #[test]
    fn every_request_is_measured_once_and_the_same_every_time() {
        let config = presets::by_name("ddr4-2400").unwrap();
        for load in [Load::OfferedGbPerS(40.0), Load::Outstanding(16)] {
            let traffic = Traffic {
                read_share: 0.6,
                requests: 5000,
                warm_up: 100,
                ..Traffic::reads(Pattern::Random, load)
            };
            let report = dram_run(&config, &traffic).unwrap();
            assert_eq!(report.read.requests + report.write.requests, 5000);
            assert!(report.read.p50_ns <= report.read.p99_ns);
            assert_eq!(report, dram_run(&config, &traffic).unwrap());
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let l = Latency::of((1..=1000).map(|n| n * 1000).collect());
        assert_eq!((l.p50_ns, l.p99_ns, l.max_ns, l.mean_ns), (500.0, 990.0, 1000.0, 500.5));
    }

    #[test]
    fn traffic_that_cannot_be_is_refused() {
        let config = presets::by_name("ddr4-2400").unwrap();
        let base = Traffic::reads(Pattern::Random, Load::Outstanding(1));
        for (traffic, printed) in [
            (Traffic { read_share: 1.5, ..base }, "read share is 1.5"),
            (Traffic { requests: 0, ..base }, "requests is 0"),
            (Traffic { load: Load::Outstanding(0), ..base }, "outstanding is 0"),
            (Traffic { load: Load::OfferedGbPerS(0.0), ..base }, "0 GB/s are offered"),
            (Traffic { footprint: Some(Bytes::gib(9)), ..base }, "footprint is"),
        ] {
            let error = dram_run(&config, &traffic).unwrap_err().to_string();
            assert!(error.contains(printed), "{error}");
        }
    }
}
