//! A tier as DRAM timing, directly behind the last-level cache or behind a link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::Kind;
use crate::dram::channel::ChannelCounts;
use crate::dram::config::DramConfig;
use crate::dram::system::Dram;
use crate::error::ConfigError;
use crate::request::{ByRequest, Completion, Request, RequestId};
use crate::tier::TierCounts;
use crate::tier::link::{Link, LinkConfig};
use crate::units::Picoseconds;

/// A tier as DRAM timing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimingConfig {
    /// The memory.
    pub dram: DramConfig,
    /// The link to it, if there is one.
    pub link: Option<LinkConfig>,
    /// Latency from the last-level cache to the controller and back, beside link and DRAM.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub path_ns: f64,
}

/// A tier as DRAM timing.
#[derive(Debug, Clone)]
pub struct TimingTier {
    dram: Dram,
    link: Option<Link>,
    path_out: Picoseconds,
    path_back: Picoseconds,
    /// Submission time and kind of each pending request.
    pending: ByRequest<(Picoseconds, Kind)>,
    /// Answers on their way back.
    back: BinaryHeap<Reverse<(Picoseconds, u64, RequestId)>>,
    known: u64,
    counts: TierCounts,
}

impl TimingTier {
    /// An idle tier.
    pub fn new(config: &TimingConfig) -> Result<Self, ConfigError> {
        let line = config.dram.organization.line_bytes() as u32;
        let path = Picoseconds::from_parameter_ns("tier", "path_ns", config.path_ns)?;
        let path_out = Picoseconds(path.0 / 2);
        Ok(TimingTier {
            dram: Dram::new(&config.dram)?,
            link: config.link.as_ref().map(|l| Link::new(l, line)).transpose()?,
            path_out,
            path_back: path - path_out,
            pending: ByRequest::default(),
            back: BinaryHeap::new(),
            known: 0,
            counts: TierCounts::default(),
        })
    }

    /// The counters so far.
    pub fn counts(&self) -> TierCounts {
        self.counts
    }

    /// The counters of its DRAM.
    pub fn dram_counts(&self) -> ChannelCounts {
        self.dram.counts()
    }

    /// A request is made at `at`; its number must not be pending already.
    pub fn submit(&mut self, at: Picoseconds, request: Request) {
        let kind = request.kind;
        let earlier = self.pending.insert(request.id, (at, kind));
        debug_assert!(earlier.is_none(), "{:?} is pending already", request.id);
        match kind {
            Kind::Read => self.counts.reads += 1,
            Kind::Write => self.counts.writes += 1,
        }
        let arrived = match &mut self.link {
            None => at,
            Some(link) => {
                let time = link.transfer_times(kind).0;
                link.send(at, kind) + time
            }
        };
        self.dram.submit(arrived + self.path_out, request);
    }

    /// A time before which no pending request completes; `None` if none is pending.
    pub fn completion_bound(&self) -> Option<Picoseconds> {
        if self.pending.is_empty() {
            return None;
        }
        let known = self.back.peek().map(|Reverse(b)| b.0);
        let unknown = self.dram.completion_bound().map(|bound| bound + self.path_back);
        [known, unknown].into_iter().flatten().min()
    }

    /// Lets time pass.
    pub fn advance_to(&mut self, time: Picoseconds) {
        self.dram.advance_to(time);
        while let Some(Completion { id, done }) = self.dram.pop_completion() {
            let (at, kind) = self.pending[&id];
            let ready = done + self.path_back;
            let done = match &mut self.link {
                None => ready,
                Some(link) => {
                    let time = link.transfer_times(kind).1;
                    link.answer(ready + time, kind)
                }
            };
            match kind {
                Kind::Read => self.counts.read_ps += done.since(at).0,
                Kind::Write => self.counts.write_ps += done.since(at).0,
            }
            self.known += 1;
            self.back.push(Reverse((done, self.known, id)));
        }
    }

    /// The next completion up to the time that has passed.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        let Reverse((done, _, _)) = self.back.peek()?;
        if *done > self.dram.now() {
            return None;
        }
        let Reverse((done, _, id)) = self.back.pop()?;
        self.pending.remove(&id);
        Some(Completion { id, done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PhysicalAddress;
    use crate::dram::presets;
    use crate::tier::{Tier, TierConfig, TierModel, next_completion};
    use crate::units::{Bytes, gb_per_s};

    fn tier(link: bool) -> Tier {
        let config = TimingConfig {
            dram: presets::by_name("ddr5-4800").unwrap(),
            link: link.then(LinkConfig::cxl_x8),
            path_ns: 60.0,
        };
        let model = TierModel::Dram(Box::new(config));
        Tier::new(&TierConfig { name: "cxl".into(), capacity: Bytes::gib(16), model }).unwrap()
    }

    fn request(id: u64, line: u64, kind: Kind) -> Request {
        Request { id: RequestId(id), address: PhysicalAddress(line * 64), kind }
    }

    #[test]
    fn an_idle_read_is_path_link_and_dram() {
        for link in [false, true] {
            let mut t = [tier(link)];
            t[0].submit(Picoseconds(0), request(1, 0, Kind::Read));
            let done = next_completion(&mut t).unwrap().done.as_ns();
            // rcd + cl + burst = 87 cycles of 416 ps, and 4 and 68 bytes at 28.3 GB/s.
            let expected = 60.0 + 87.0 * 0.416 + if link { 72.0 / 28.3 } else { 0.0 };
            assert!((done - expected).abs() < 0.5, "{done} {expected}");
            assert_eq!(next_completion(&mut t), None);
        }
    }

    #[test]
    fn a_stream_of_reads_is_bound_by_the_way_back() {
        let mut t = [tier(true)];
        for id in 0..512 {
            t[0].submit(Picoseconds(0), request(id, id, Kind::Read));
        }
        let mut last = Picoseconds::ZERO;
        let n = 50_000;
        for id in 512..n + 512 {
            let c = next_completion(&mut t).unwrap();
            assert!(c.done >= last);
            last = c.done;
            t[0].submit(last, request(id, id, Kind::Read));
        }
        let got = gb_per_s(n * 64, last);
        assert!((got / (28.3 * 64.0 / 68.0) - 1.0).abs() < 0.02, "{got}");
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let config =
            TimingConfig { dram: presets::by_name("ddr4-2400").unwrap(), link: None, path_ns: 0.0 };
        let model = TierModel::Dram(Box::new(config));
        let config = TierConfig { name: "dram".into(), capacity: Bytes::gib(64), model };
        let error = Tier::new(&config).unwrap_err().to_string();
        assert!(error.contains("dram.tier: capacity is 64G, but its DRAM holds 8G"), "{error}");
    }
}
