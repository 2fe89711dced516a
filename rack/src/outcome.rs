//! Counters and results of a run.

use terrace_hardware::cpu::CoreCounts;
use terrace_hardware::dram::channel::ChannelCounts;

use crate::Time;
use crate::mechanism::controller::ControllerCounts;
use crate::mechanism::tracker::Threshold;
use crate::switch::PortCounts;
use crate::trace::Slice;

/// Latencies in bins of a quarter of an octave, from 1 ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    bins: Vec<u64>,
}

/// Bins of an octave.
const PER_OCTAVE: u32 = 4;
const BINS: usize = 24 * PER_OCTAVE as usize;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { bins: vec![0; BINS] }
    }
}

impl Histogram {
    /// Counts a latency.
    #[inline]
    pub fn add(&mut self, latency: Time) {
        let ns = (latency / 1000).max(1);
        let octave = ns.ilog2();
        // The two bits after the highest.
        let quarter = if octave >= 2 { (ns >> (octave - 2)) & 3 } else { (ns << (2 - octave)) & 3 };
        let bin = (octave * PER_OCTAVE) as usize + quarter as usize;
        self.bins[bin.min(BINS - 1)] += 1;
    }

    /// Lower bound in nanoseconds and count of each bin that has any.
    pub fn bins(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bins.iter().enumerate().filter(|b| *b.1 > 0).map(|(bin, &n)| {
            let (octave, quarter) = (bin as u32 / PER_OCTAVE, bin as u32 % PER_OCTAVE);
            (f64::from(1 << octave.min(30)) * (1.0 + f64::from(quarter) / 4.0), n)
        })
    }

    /// Total count.
    pub fn count(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// The lower bound of the bin that the given share of all is at or below.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut sum = 0;
        for (ns, n) in self.bins() {
            sum += n;
            if sum >= wanted {
                return ns;
            }
        }
        0.0
    }
}

/// Parts of the latency of remote reads, summed, and how they are distributed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteLatency {
    /// From the last-level miss to the data.
    pub total: Histogram,
    /// Interfaces.
    pub nic: Histogram,
    /// Switch and page buffers.
    pub switch: Histogram,
    /// Waiting in queues.
    pub queue: Histogram,
    /// The pool's memory.
    pub dram: Histogram,
    /// Sums in picoseconds, in the order above.
    pub sums: [u64; 5],
}

/// Counters of one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeCounts {
    /// Last-level misses that local memory answered.
    pub local_reads: u64,
    /// Local reads to pages that had migrated.
    pub migrated_reads: u64,
    /// Last-level misses that went out to the network.
    pub remote_reads: u64,
    /// Remote reads that a page buffer answered, at once or when the block arrived.
    pub buffer_reads: u64,
    /// Dirty blocks written to local memory.
    pub local_writes: u64,
    /// Dirty blocks sent out.
    pub remote_writes: u64,
    /// Time of local reads, in picoseconds.
    pub local_ps: u64,
    /// Time of remote reads, in picoseconds.
    pub remote_ps: u64,
    /// Time of reads that page buffers answered, in picoseconds.
    pub buffer_ps: u64,
    /// Reads that a page buffer answered at once.
    pub buffer_hits: u64,
    /// Time of these reads, in picoseconds.
    pub buffer_hit_ps: u64,
    /// Local latencies.
    pub local_latency: Histogram,
    /// Remote latencies.
    pub remote_latency: RemoteLatency,
    /// Pages that arrived.
    pub pages_in: u64,
    /// Time from the request of each batch until each of its pages was in local memory, in
    /// picoseconds, summed; for batches of one page, the time to access a remote page.
    pub page_move_ps: u64,
    /// Pages that left as victims.
    pub pages_out: u64,
    /// Batches migrated.
    pub migrations: u64,
    /// Time that cores were stopped for shootdowns, each core counted once.
    pub stall_ps: u64,
    /// Page faults.
    pub faults: u64,
    /// Pages allocated locally.
    pub pages_local: u64,
    /// Pages allocated remotely.
    pub pages_remote: u64,
    /// Blocks read whose value was not the last write; 0 unless something is broken.
    pub wrong_values: u64,
    /// Values checked.
    pub checked_values: u64,
    /// Page walks.
    pub walks: u64,
}

impl NodeCounts {
    /// The counts since `before`.
    pub fn since(&self, before: &NodeCounts) -> NodeCounts {
        // Histograms and latencies restart at the end of the warm-up instead.
        NodeCounts {
            local_reads: self.local_reads - before.local_reads,
            migrated_reads: self.migrated_reads - before.migrated_reads,
            remote_reads: self.remote_reads - before.remote_reads,
            buffer_reads: self.buffer_reads - before.buffer_reads,
            local_writes: self.local_writes - before.local_writes,
            remote_writes: self.remote_writes - before.remote_writes,
            local_ps: self.local_ps - before.local_ps,
            remote_ps: self.remote_ps - before.remote_ps,
            buffer_ps: self.buffer_ps - before.buffer_ps,
            buffer_hits: self.buffer_hits - before.buffer_hits,
            buffer_hit_ps: self.buffer_hit_ps - before.buffer_hit_ps,
            pages_in: self.pages_in - before.pages_in,
            page_move_ps: self.page_move_ps - before.page_move_ps,
            pages_out: self.pages_out - before.pages_out,
            migrations: self.migrations - before.migrations,
            stall_ps: self.stall_ps - before.stall_ps,
            faults: self.faults - before.faults,
            ..self.clone()
        }
    }

    /// Last-level misses.
    pub fn reads(&self) -> u64 {
        self.local_reads + self.remote_reads
    }

    /// Mean time of a last-level miss in nanoseconds.
    pub fn access_ns(&self) -> f64 {
        (self.local_ps + self.remote_ps) as f64 / 1000.0 / self.reads().max(1) as f64
    }
}

/// A node at one time, for timelines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Start of the span of the counts.
    pub from: Time,
    /// End of the span.
    pub to: Time,
    /// Instructions.
    pub instructions: u64,
    /// Local reads.
    pub local_reads: u64,
    /// Local reads to pages that had migrated.
    pub migrated_reads: u64,
    /// Remote reads.
    pub remote_reads: u64,
    /// Remote reads that a page buffer answered.
    pub buffer_reads: u64,
    /// Pages that arrived.
    pub pages_in: u64,
    /// Pages that left as victims.
    pub pages_out: u64,
    /// Misses under way.
    pub misses: u64,
    /// Bytes that wait in the interface.
    pub nic_bytes: u64,
    /// Regular requests that wait in the switch.
    pub block_queue: u64,
    /// Accesses in the pending queues.
    pub pending: u64,
    /// Pages in the buffers.
    pub buffered: u64,
    /// Pages that migrate together.
    pub npm: u64,
    /// The last score.
    pub score: i64,
}

/// The outcome of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeOutcome {
    /// Name of its workload.
    pub workload: String,
    /// Instructions counted, over all cores.
    pub instructions: u64,
    /// Time taken: until the last core was done.
    pub time: Time,
    /// The node's counters.
    pub counts: NodeCounts,
    /// Its cores together, warm-up included.
    pub cores: CoreCounts,
    /// Its local DRAM.
    pub dram: ChannelCounts,
    /// Its part of the switch.
    pub controller: ControllerCounts,
    /// NPM at the end.
    pub npm: u32,
    /// The last score.
    pub score: i32,
    /// The threshold for a hot page, at the end.
    pub threshold: Option<Threshold>,
    /// Maximum waiting: regular requests, pending accesses.
    pub queues_max: (usize, usize),
    /// Samples over time.
    pub samples: Vec<Sample>,
}

/// The outcome of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolOutcome {
    /// Its DRAM.
    pub dram: ChannelCounts,
    /// Blocks read.
    pub blocks_read: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Pages allocated from it.
    pub pages_given: u32,
}

/// Counters of both directions of a port's link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOutcome {
    /// Interface to switch: busy time, packets, bytes, most bytes that waited.
    pub up: PortCounts,
    /// Switch to interface.
    pub down: PortCounts,
    /// Time that the interface was busy receiving.
    pub in_busy: Time,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Outcome of each node.
    pub nodes: Vec<NodeOutcome>,
    /// Outcome of each pool.
    pub pools: Vec<PoolOutcome>,
    /// Outcome of each port's link: nodes, then pools.
    pub links: Vec<LinkOutcome>,
    /// When the last node was done.
    pub time: Time,
    /// Windows simulated.
    pub windows: u64,
    /// Packets in the traced time, by time.
    pub trace: Vec<Slice>,
}

impl Outcome {
    /// Instructions counted, over all nodes.
    pub fn instructions(&self) -> u64 {
        self.nodes.iter().map(|n| n.instructions).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_quarters_of_an_octave() {
        let mut h = Histogram::default();
        for ns in [1, 2, 3, 4, 5, 79, 80, 95, 96, 100_000_000] {
            h.add(ns * 1000);
        }
        let bins: Vec<_> = h.bins().collect();
        assert_eq!(bins[0], (1.0, 1));
        assert_eq!(bins[1], (2.0, 1));
        assert_eq!(bins[2], (3.0, 1));
        assert!(
            bins.contains(&(64.0, 1)) && bins.contains(&(80.0, 2)) && bins.contains(&(96.0, 1))
        );
        assert_eq!(h.count(), 10);
        assert_eq!(h.quantile_ns(0.5), 5.0);
    }
}
