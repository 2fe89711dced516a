//! Memory tiers: the memory behind the caches.
//!
//! - [`server`]: a resource that serves one transfer after the other;
//! - [`link`]: a full-duplex link of two such resources;
//! - [`queueing`]: a tier as latency, bandwidth and queues;
//! - [`timing`]: a tier as DRAM timing, with or without a link;
//! - [`memory`]: the tiers of one machine in one physical address space;
//!
//! and [`Tier`], which is either of the two kinds.

pub mod link;
pub mod memory;
pub mod queueing;
pub mod server;
pub mod timing;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check_range};
use crate::request::{Completion, Request, When};
use crate::units::{Bytes, Picoseconds};
use queueing::{QueueingConfig, QueueingTier};
use timing::{TimingConfig, TimingTier};

/// How a tier is modelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TierModel {
    /// As latency, bandwidth and queues: every completion is known at submission.
    Queueing(QueueingConfig),
    /// As DRAM timing.
    Dram(Box<TimingConfig>),
}

/// A memory tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// The tier's name: `dram`, `cxl`.
    pub name: String,
    /// Capacity in bytes.
    #[schemars(schema_with = "capacity")]
    pub capacity: Bytes,
    /// The timing model.
    pub model: TierModel,
}

/// Bytes that a tier may have: as many as addresses of 52 bits reach.
const CAPACITY: std::ops::RangeInclusive<u64> = 4096..=1 << 52;

fn capacity(_: &mut SchemaGenerator) -> Schema {
    Bytes::schema_within(Bytes(*CAPACITY.start()), Bytes(*CAPACITY.end()))
}

/// Time of an idle random read in DRAM itself, between a closed bank and one with another row open
/// (DDR4 and DDR5: 36 to 52 ns).
const IN_DRAM_NS: f64 = 50.0;

impl TierConfig {
    /// Idle latency of a random read beyond the caches, in ns; approximate for DRAM by command.
    pub fn idle_read_ns(&self) -> f64 {
        match &self.model {
            TierModel::Queueing(q) => q.read_latency_ns,
            TierModel::Dram(d) => d.path_ns + IN_DRAM_NS,
        }
    }

    /// Maximum read bandwidth in GB/s: of medium or link, whichever is less.
    pub fn read_gb_per_s(&self) -> f64 {
        let (medium, link, line) = match &self.model {
            TierModel::Queueing(q) => (q.read_gb_per_s, &q.link, f64::from(q.line_bytes)),
            TierModel::Dram(d) => {
                (d.dram.peak_gb_per_s(), &d.link, d.dram.organization.line_bytes() as f64)
            }
        };
        match link {
            Some(l) => medium.min(l.back_gb_per_s * line / (line + f64::from(l.header_bytes))),
            None => medium,
        }
    }
}

/// Counters of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TierCounts {
    /// Reads submitted.
    pub reads: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Sum of times from submission to completion, of all reads, as far as they are known.
    pub read_ps: u64,
    /// The same sum for writes.
    pub write_ps: u64,
}

/// A memory tier.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "a machine has a few tiers; an indirection on every request would cost more"
)]
pub enum Tier {
    /// As queues.
    Queueing(QueueingTier),
    /// As DRAM timing.
    Dram(Box<TimingTier>),
}

impl Tier {
    /// An idle tier; an error if the configuration cannot work.
    pub fn new(config: &TierConfig) -> Result<Self, ConfigError> {
        let within = |e: ConfigError| e.within(&config.name);
        check_range("tier", "capacity", config.capacity.0, CAPACITY).map_err(within)?;
        match &config.model {
            TierModel::Queueing(c) => QueueingTier::new(c).map(Tier::Queueing),
            TierModel::Dram(c) => {
                let holds = c.dram.organization.capacity_bytes();
                if holds < config.capacity.0 {
                    return Err(within(ConfigError::new(
                        "tier",
                        format!(
                            "capacity is {}, but its DRAM holds {}; add ranks, channels or rows",
                            config.capacity,
                            Bytes(holds)
                        ),
                    )));
                }
                TimingTier::new(c).map(|t| Tier::Dram(Box::new(t)))
            }
        }
        .map_err(within)
    }

    /// A request is made at `at`; addresses count from the start of the tier. With
    /// [`When::Pending`] the completion will come out of [`Tier::pop_completion`].
    #[inline]
    pub fn submit(&mut self, at: Picoseconds, request: Request) -> When {
        match self {
            Tier::Queueing(t) => When::At(t.serve(at, request.address, request.kind)),
            Tier::Dram(t) => {
                t.submit(at, request);
                When::Pending(request.id)
            }
        }
    }

    /// A time before which no pending request completes; `None` if none is pending. Once time has
    /// passed up to there, either one has completed or the bound is later.
    #[inline]
    pub fn completion_bound(&self) -> Option<Picoseconds> {
        match self {
            Tier::Queueing(_) => None,
            Tier::Dram(t) => t.completion_bound(),
        }
    }

    /// Lets time pass.
    pub fn advance_to(&mut self, time: Picoseconds) {
        if let Tier::Dram(t) = self {
            t.advance_to(time);
        }
    }

    /// The next completion up to the time that has passed.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        match self {
            Tier::Queueing(_) => None,
            Tier::Dram(t) => t.pop_completion(),
        }
    }

    /// The counters so far.
    pub fn counts(&self) -> TierCounts {
        match self {
            Tier::Queueing(t) => t.counts(),
            Tier::Dram(t) => t.counts(),
        }
    }
}

/// Runs several tiers to the next completion of any of them, in time order.
pub fn next_completion(tiers: &mut [Tier]) -> Option<Completion> {
    loop {
        let time = tiers.iter().filter_map(Tier::completion_bound).min()?;
        for tier in tiers.iter_mut() {
            tier.advance_to(time);
        }
        if let Some(completion) = tiers.iter_mut().find_map(Tier::pop_completion) {
            return Some(completion);
        }
    }
}
