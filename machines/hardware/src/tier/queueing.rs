//! A tier as latency, bandwidth and queues.
//!
//! A request waits for the link's way out, for its channel of the medium, and for the link's way
//! back; the rest of the time is the idle latency. Every wait is a queue ([`super::server`]), so
//! that latency rises with load as it must, and the bandwidth of each part is never exceeded.
//!
//! A medium can be asymmetric and coarse, as Optane is: reads and writes have bandwidths of their
//! own, and it works in blocks larger than a line through a small buffer of blocks (256 bytes and
//! 16 KB: Yang et al., "An Empirical Guide to the Behavior and Use of Scalable Persistent Memory",
//! FAST 2020, sections 3 and 4). Lines of a buffered block cost the medium nothing and have a
//! latency of their own; written blocks go to the medium when they leave the buffer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Kind, LineAddress, PhysicalAddress};
use crate::cache::array::Cache;
use crate::cache::config::CacheConfig;
use crate::error::{ConfigError, check_range};
use crate::tier::TierCounts;
use crate::tier::link::{Link, LinkConfig};
use crate::tier::server::Server;
use crate::units::{Bandwidth, Bytes, Picoseconds};

/// A medium that works in blocks, through a buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// Bytes that one access to the medium moves: a power of two.
    #[schemars(range(min = 8, max = 4096))]
    pub block_bytes: u32,
    /// Size of the buffer.
    #[schemars(schema_with = "crate::cache::config::size")]
    pub buffer: Bytes,
    /// Ways of the buffer.
    #[schemars(range(min = 1, max = 1024))]
    pub buffer_ways: u32,
    /// Idle latency of a read that finds its block in the buffer.
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub buffered_read_latency_ns: f64,
}

/// A tier as queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueingConfig {
    /// Idle latency of a read, from leaving the last-level cache to coming back.
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub read_latency_ns: f64,
    /// Idle latency of a write, until it is accepted.
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub write_latency_ns: f64,
    /// Read bandwidth of the medium, over all channels.
    #[schemars(range(min = 0.001, max = 1e6))]
    pub read_gb_per_s: f64,
    /// Write bandwidth of the medium, over all channels. Reads and writes share its time.
    #[schemars(range(min = 0.001, max = 1e6))]
    pub write_gb_per_s: f64,
    /// Channels that lines are interleaved over.
    #[schemars(range(min = 1, max = 1024))]
    pub channels: u32,
    /// Bytes of a line: a power of two.
    #[schemars(range(min = 8, max = 65536))]
    #[serde(default = "default_line")]
    pub line_bytes: u32,
    /// The link to it, if there is one.
    pub link: Option<LinkConfig>,
    /// Blocks and their buffer, if the medium works in blocks.
    pub blocks: Option<BlockConfig>,
}

fn default_line() -> u32 {
    64
}

impl QueueingConfig {
    /// Symmetric DRAM of so many channels.
    pub fn dram(latency_ns: f64, gb_per_s: f64, channels: u32) -> Self {
        QueueingConfig {
            read_latency_ns: latency_ns,
            write_latency_ns: latency_ns,
            read_gb_per_s: gb_per_s,
            write_gb_per_s: gb_per_s,
            channels,
            line_bytes: default_line(),
            link: None,
            blocks: None,
        }
    }

    /// A CXL expander with one DDR5 module behind eight lanes.
    pub fn cxl(latency_ns: f64) -> Self {
        QueueingConfig { link: Some(LinkConfig::cxl_x8()), ..Self::dram(latency_ns, 38.4, 2) }
    }

    /// Optane DC modules of the first generation, as measured by Izraelevitz et al., "Basic
    /// Performance Measurements of the Intel Optane DC Persistent Memory Module" (2019): 305 ns for
    /// random and 169 ns for sequential reads, 94 ns for writes, 6.6 GB/s read and 2.3 GB/s write
    /// for each module.
    pub fn optane(modules: u32) -> Self {
        QueueingConfig {
            read_latency_ns: 305.0,
            write_latency_ns: 94.0,
            read_gb_per_s: 6.6 * f64::from(modules),
            write_gb_per_s: 2.3 * f64::from(modules),
            channels: modules,
            line_bytes: default_line(),
            link: None,
            blocks: Some(BlockConfig {
                block_bytes: 256,
                buffer: Bytes::kib(16),
                buffer_ways: 16,
                buffered_read_latency_ns: 169.0,
            }),
        }
    }
}

#[derive(Debug, Clone)]
struct Blocks {
    /// One buffer for each channel.
    buffers: Vec<Cache>,
    bits: u32,
    buffered_read: Picoseconds,
}

/// A tier as queues.
#[derive(Debug, Clone)]
pub struct QueueingTier {
    media: Vec<Server>,
    link: Option<Link>,
    blocks: Option<Blocks>,
    /// Idle latencies.
    read_latency: Picoseconds,
    write_latency: Picoseconds,
    /// Time of one access on its channel.
    read_time: Picoseconds,
    write_time: Picoseconds,
    line_bits: u32,
    /// Binary logarithm of the contiguous bytes in a channel.
    channel_bits: u32,
    counts: TierCounts,
}

/// Contiguous bytes in a channel: a page, as servers interleave persistent memory; or a line.
const BLOCK_INTERLEAVE_BITS: u32 = 12;

impl QueueingTier {
    /// An idle tier.
    pub fn new(config: &QueueingConfig) -> Result<Self, ConfigError> {
        let part = "tier";
        check_range(part, "channels", u64::from(config.channels), 1..=1024)?;
        check_power_of_two("line_bytes", config.line_bytes)?;
        let channels = f64::from(config.channels);
        let bandwidth = |name, gb: f64| {
            Bandwidth::from_parameter_gb_per_s(part, name, gb)?;
            Bandwidth::from_parameter_gb_per_s(part, name, gb / channels)
        };
        let latency = |name, ns: f64| match Picoseconds::from_parameter_ns(part, name, ns)? {
            Picoseconds::ZERO => Err(ConfigError::new(part, format!("{name} is 0; expected more"))),
            latency => Ok(latency),
        };
        let line_bits = config.line_bytes.trailing_zeros();
        let mut unit = u64::from(config.line_bytes);
        let mut channel_bits = line_bits;
        let mut blocks = None;
        if let Some(b) = &config.blocks {
            check_power_of_two("block_bytes", b.block_bytes)?;
            if b.block_bytes < config.line_bytes {
                return Err(ConfigError::new(
                    part,
                    format!(
                        "block_bytes is {}; expected at least a line of {}",
                        b.block_bytes, config.line_bytes
                    ),
                ));
            }
            unit = u64::from(b.block_bytes);
            channel_bits = BLOCK_INTERLEAVE_BITS.max(b.block_bytes.trailing_zeros());
            let buffer = CacheConfig::new(b.buffer, b.buffer_ways, b.block_bytes);
            let buffer = Cache::new(&buffer).map_err(|e| e.within("buffer"))?;
            blocks = Some(Blocks {
                buffers: vec![buffer; config.channels as usize],
                bits: b.block_bytes.trailing_zeros(),
                buffered_read: latency("buffered_read_latency_ns", b.buffered_read_latency_ns)?,
            });
        }
        Ok(QueueingTier {
            media: vec![Server::default(); config.channels as usize],
            link: config.link.as_ref().map(|l| Link::new(l, config.line_bytes)).transpose()?,
            blocks,
            read_latency: latency("read_latency_ns", config.read_latency_ns)?,
            write_latency: latency("write_latency_ns", config.write_latency_ns)?,
            read_time: bandwidth("read_gb_per_s", config.read_gb_per_s)?.transfer_time(unit),
            write_time: bandwidth("write_gb_per_s", config.write_gb_per_s)?.transfer_time(unit),
            line_bits,
            channel_bits,
            counts: TierCounts::default(),
        })
    }

    /// The same for requesters that run far ahead of each other.
    #[must_use]
    pub fn far_out_of_order(mut self) -> Self {
        self.media.iter_mut().for_each(|server| *server = Server::far_out_of_order());
        self.link = self.link.map(Link::far_out_of_order);
        self
    }

    /// The counters so far.
    pub fn counts(&self) -> TierCounts {
        self.counts
    }

    /// The link, read-only.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// A line is read or written, requested at `at`; returns the completion time.
    #[inline]
    pub fn serve(&mut self, at: Picoseconds, address: PhysicalAddress, kind: Kind) -> Picoseconds {
        let mut latency = match kind {
            Kind::Read => self.read_latency,
            Kind::Write => self.write_latency,
        };
        let sent = match &mut self.link {
            None => at,
            Some(link) => link.send(at, kind),
        };
        let taken = if self.blocks.is_some() {
            self.serve_block(sent, address, kind, &mut latency)
        } else {
            let channel = self.channel(address);
            let time = if kind.is_write() { self.write_time } else { self.read_time };
            self.media[channel].serve(sent, time)
        };
        let done = match &mut self.link {
            None => taken + latency,
            Some(link) => link.answer(taken + latency, kind),
        };
        match kind {
            Kind::Read => {
                self.counts.reads += 1;
                self.counts.read_ps += (done - at).0;
            }
            Kind::Write => {
                self.counts.writes += 1;
                self.counts.write_ps += (done - at).0;
            }
        }
        done
    }

    #[inline]
    fn channel(&self, address: PhysicalAddress) -> usize {
        let channels = self.media.len() as u64;
        if channels == 1 {
            return 0;
        }
        // Folded, so that strides of a power of two do not meet in one channel.
        let unit = address.0 >> self.channel_bits;
        ((unit ^ (unit >> 7) ^ (unit >> 15)) % channels) as usize
    }

    /// An access through the buffer of blocks; returns when the medium, if needed, starts.
    fn serve_block(
        &mut self,
        at: Picoseconds,
        address: PhysicalAddress,
        kind: Kind,
        latency: &mut Picoseconds,
    ) -> Picoseconds {
        let channel = self.channel(address);
        let Some(blocks) = &mut self.blocks else { return at };
        let block = LineAddress(address.0 >> blocks.bits);
        let access = blocks.buffers[channel].access(block, kind.is_write());
        let medium = &mut self.media[channel];
        let mut start = at;
        if access.is_hit() {
            if kind == Kind::Read {
                *latency = blocks.buffered_read;
            }
            return start;
        }
        // A written block that is evicted goes to the medium first.
        if access.evicted().is_some_and(|e| e.dirty) {
            start = medium.serve(start, self.write_time);
        }
        if kind == Kind::Read {
            start = medium.serve(start, self.read_time);
        }
        start
    }

    /// Binary logarithm of the line size.
    pub fn line_bits(&self) -> u32 {
        self.line_bits
    }
}

fn check_power_of_two(name: &str, bytes: u32) -> Result<(), ConfigError> {
    if bytes.is_power_of_two() && (8..=65536).contains(&bytes) {
        return Ok(());
    }
    Err(ConfigError::new(
        "tier",
        format!("{name} is {bytes}; expected a power of two from 8 to 65536"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::units::gb_per_s;

    /// Bandwidth when more is requested than can be served.
    fn saturated(config: &QueueingConfig, read_share: f64, random_lines: bool) -> f64 {
        let mut tier = QueueingTier::new(config).unwrap();
        let mut random = Random::new(5);
        let mut last = Picoseconds::ZERO;
        let n = 200_000u64;
        for i in 0..n {
            let line = if random_lines { random.below(1 << 24) } else { i };
            let kind = if random.unit() < read_share { Kind::Read } else { Kind::Write };
            last = last.max(tier.serve(Picoseconds(i), PhysicalAddress(line * 64), kind));
        }
        gb_per_s(n * 64, last)
    }

    #[test]
    fn an_idle_tier_answers_in_its_latency() {
        for config in [
            QueueingConfig::dram(84.9, 34.0, 4),
            QueueingConfig::cxl(214.0),
            QueueingConfig::optane(6),
        ] {
            let mut tier = QueueingTier::new(&config).unwrap();
            for i in 0..100u64 {
                let at = Picoseconds::from_ns(i * 10_000);
                let done = tier.serve(at, PhysicalAddress(i << 20), Kind::Read);
                let got = (done - at).as_ns();
                assert!((got - config.read_latency_ns).abs() < 3.5, "{got}");
            }
        }
    }

    #[test]
    fn bandwidth_is_what_was_asked_for() {
        let got = saturated(&QueueingConfig::dram(84.9, 34.0, 4), 1.0, true);
        assert!((got / 34.0 - 1.0).abs() < 0.02, "{got}");
    }

    #[test]
    fn a_cxl_expander_gains_from_mixing_in_writes() {
        let config = QueueingConfig::cxl(214.0);
        let reads = saturated(&config, 0.98, true);
        let mixed = saturated(&config, 0.70, true);
        assert!((reads - 27.0).abs() < 0.6, "{reads}");
        assert!((mixed - 37.0).abs() < 0.8, "{mixed}");
        // Without a link, its medium's single number.
        let medium = QueueingConfig { link: None, ..config };
        assert!(
            (saturated(&medium, 0.98, true) / saturated(&medium, 0.7, true) - 1.0).abs() < 0.01
        );
    }

    #[test]
    fn optane_reads_faster_than_it_writes_and_blocks_cost_random_lines_four_times() {
        let config = QueueingConfig::optane(6);
        let sequential = saturated(&config, 1.0, false);
        assert!((sequential / 39.6 - 1.0).abs() < 0.03, "{sequential}");
        let writes = saturated(&config, 0.0, false);
        assert!((writes / 13.8 - 1.0).abs() < 0.03, "{writes}");
        let random = saturated(&config, 1.0, true);
        assert!((random * 4.0 / 39.6 - 1.0).abs() < 0.05, "{random}");
        let mut tier = QueueingTier::new(&config).unwrap();
        tier.serve(Picoseconds(0), PhysicalAddress(0), Kind::Read);
        let at = Picoseconds::from_ns(1000);
        let next = tier.serve(at, PhysicalAddress(64), Kind::Read) - at;
        assert_eq!(next, Picoseconds::from_ns(169));
    }

    #[test]
    fn latency_rises_with_load_as_queues_do() {
        let config = QueueingConfig::dram(100.0, 20.0, 1);
        for rho in [0.3, 0.6, 0.9] {
            let mut tier = QueueingTier::new(&config).unwrap();
            let mut random = Random::new(9);
            let (mut at, n) = (0.0, 500_000);
            for _ in 0..n {
                at += random.exponential() * 3200.0 / rho;
                tier.serve(Picoseconds(at as u64), PhysicalAddress(0), Kind::Read);
            }
            let mean = tier.counts().read_ps as f64 / f64::from(n) / 1000.0;
            let expected = 100.0 + rho * 3.2 / (2.0 * (1.0 - rho));
            assert!((mean - expected).abs() < 0.03 * (expected - 100.0), "{mean} {expected}");
        }
    }

    #[test]
    fn tiers_that_cannot_work_are_refused() {
        let good = QueueingConfig::cxl(200.0);
        for (bad, printed) in [
            (QueueingConfig { read_latency_ns: 0.0, ..good.clone() }, "read_latency_ns is 0"),
            (
                QueueingConfig { read_latency_ns: f64::NAN, ..good.clone() },
                "read_latency_ns is NaN",
            ),
            (QueueingConfig { write_gb_per_s: 0.0, ..good.clone() }, "write_gb_per_s is 0"),
            (QueueingConfig { channels: 0, ..good.clone() }, "channels is 0"),
            (QueueingConfig { line_bytes: 48, ..good.clone() }, "line_bytes is 48"),
            (
                QueueingConfig {
                    link: Some(LinkConfig { out_gb_per_s: -1.0, ..LinkConfig::cxl_x8() }),
                    ..good
                },
                "out_gb_per_s is -1",
            ),
        ] {
            let error = QueueingTier::new(&bad).unwrap_err().to_string();
            assert!(error.contains(printed), "{error}");
        }
    }
}
