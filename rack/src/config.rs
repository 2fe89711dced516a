//! The configuration of a rack, in TOML, with the paper's table I as the default. A configuration
//! that cannot work is rejected with the reason before anything runs.

mod check;

use serde::{Deserialize, Serialize};
use terrace_hardware::dram::config::DramConfig;
use terrace_hardware::dram::presets as dram;
use terrace_hardware::error::ConfigError;
use terrace_hardware::layered::{from_toml, over_preset};
use terrace_hardware::node::NodeConfig;
use terrace_hardware::presets as machines;
use terrace_hardware::units::Bytes;

use crate::Time;
use crate::background::BackgroundConfig;
use crate::trace::TraceConfig;

/// Bytes of a base page, the unit of migration.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a block: a cache line.
pub const BLOCK_BYTES: u64 = 64;
/// Blocks in a page.
pub const BLOCKS: u32 = 64;

/// How remote memory appears to nodes (the paper, section II, figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Organization {
    /// All of it is in every node's address space; the global manager allocates each page.
    Shared,
    /// A node gets chunks and allocates pages in them itself, at the cost of another layer of
    /// translation.
    Distributed,
}

/// The pool of the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// Each pool in turn (the paper).
    RoundRobin,
    /// The pool that has given out least.
    LeastLoaded,
    /// The node's own, node number modulo pools, while it has room.
    Affinity,
}

/// The order in which a node's pages are local and remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dealing {
    /// The ratio is exact in every 64 pages, and their order is random.
    Shuffled,
    /// Strictly alternating, so that a stride over pages may use one memory alone.
    InTurns,
}

/// Which local pages are evicted (the paper, section III-E).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimPolicy {
    /// The next without its accessed bit; bits passed are cleared (the paper's choice).
    Clock,
    /// The one not accessed for longest.
    Lru,
    /// The one accessed least often.
    Counters,
}

/// The processor of a node: the preset `rack-node-ddr4-2400` (the paper's table I) with any of its
/// values replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "toml::Table", into = "NodeConfig")]
pub struct Processor(pub NodeConfig);

/// The preset of nodes.
pub const NODE_PRESET: &str = "rack-node-ddr4-2400";

impl From<Processor> for NodeConfig {
    fn from(p: Processor) -> NodeConfig {
        p.0
    }
}

impl TryFrom<toml::Table> for Processor {
    type Error = ConfigError;
    fn try_from(given: toml::Table) -> Result<Self, ConfigError> {
        let node = |name: &str| machines::by_name(name).map(|m| m.node);
        let node: NodeConfig = over_preset("rack.processor", given, Some(NODE_PRESET), node)?;
        if node.prefetcher.is_some() {
            // A read that no core waits for is a page walk's here, and is answered at once.
            let message = "prefetcher is given, and a rack has none; expected it to be left out";
            return Err(ConfigError::new("rack.processor", message));
        }
        Ok(Processor(node))
    }
}

impl Default for Processor {
    fn default() -> Self {
        Processor(machines::by_name(NODE_PRESET).expect("the preset exists").node)
    }
}

/// Interfaces, links and switch (table I).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Bandwidth of every network interface, each direction.
    pub nic_gbit_per_s: f64,
    /// Bandwidth of every port of the switch, each direction.
    pub switch_gbit_per_s: f64,
    /// (De)packetization and processing in an interface, each direction.
    pub nic_ns: f64,
    /// Processing and switching.
    pub switch_ns: f64,
    /// From an interface to the switch or back. The paper names the parameter without a value; 10
    /// ns is two metres of cable.
    pub propagation_ns: f64,
    /// Buffer of an interface, each direction.
    pub nic_buffer: Bytes,
    /// Input buffer of a port of the switch.
    pub port_buffer: Bytes,
    /// Packets of one node that the switch's controller may have waiting for one port of a pool:
    /// beyond, its request selector waits, so that its priorities take effect.
    pub output_queue: u32,
    /// Bytes of a packet beside data: address, kind, node, checksum.
    pub header_bytes: u32,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            nic_gbit_per_s: 100.0,
            switch_gbit_per_s: 400.0,
            nic_ns: 10.0,
            switch_ns: 5.0,
            propagation_ns: 10.0,
            nic_buffer: Bytes::mib(1),
            port_buffer: Bytes::mib(4),
            output_queue: 16,
            header_bytes: 16,
        }
    }
}

/// Sizes of the structures in the switch (section III-F) and their use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MechanismConfig {
    /// Nodes that the hardware is built for: only its cost in bytes depends on it.
    pub supported_nodes: u32,
    /// Entries of the hot-page tracker for each node.
    pub tracker_entries: u32,
    /// Page requests of a node under way at once.
    pub page_requests: u32,
    /// Pages that the buffers hold for each node.
    pub page_buffers: u32,
    /// Regular block requests of a node that can wait.
    pub block_queue: u32,
    /// Blocks of pages under way that can be waited for by reads ...
    pub pending_reads: u32,
    /// ... and by writes.
    pub pending_writes: u32,
    /// Of every `block_weight + page_weight` requests that the selector forwards while both kinds
    /// wait, so many are regular blocks ...
    pub block_weight: u32,
    /// ... and so many are of pages.
    pub page_weight: u32,
    /// Reading or writing a structure of the controller.
    pub lookup_ns: f64,
    /// Factor by which footprints and caches are smaller than real ones. Batches, page buffers and
    /// trackers are smaller by as much, and so is the shootdown of a batch, which represents as
    /// many more pages; otherwise a batch would be a large part of a small cache. A shootdown for
    /// one page alone is not scaled.
    pub batch_scale: f64,
    /// Pages to migrate together at first.
    pub npm: u32,
    /// NPM below which parameters are learnt anew.
    pub npm_least: u32,
    /// Batches between two evaluations.
    pub feedback_batches: u32,
    /// Whether the score counts reads that page buffers serve as a gain. Equation 2 names accesses
    /// to migrated pages only, and most reads of a page may come before its batch is complete.
    pub credit_buffers: bool,
    /// Evaluations with a negative score in a row after which parameters are learnt anew.
    pub negative_scores: u32,
    /// Whether pages go on migrating while parameters are learnt anew, by the old thresholds. The
    /// paper says that parameters are reset and not that migration stops; where it does, one bad
    /// score costs as much time as the whole training.
    pub migrate_while_relearning: bool,
    /// Simulated time of training: the paper has "a few million cycles".
    pub training_us: f64,
    /// Filtering goes on while more than this share of the pages accessed in training is left.
    pub filter_share: f64,
    /// Share of the mean access count that makes a page hot.
    pub count_factor: f64,
    /// Least access count that training may set. Below some 6 to 8 accesses a move costs more than
    /// it gains by the paper's own equations 1 and 2.
    pub count_least: u32,
    /// Share of the mean reuse frequency that makes a page hot.
    pub frequency_factor: f64,
    /// Access count that makes a page hot, instead of training.
    pub fixed_count: Option<u32>,
}

impl Default for MechanismConfig {
    fn default() -> Self {
        MechanismConfig {
            supported_nodes: 16,
            tracker_entries: 100,
            page_requests: 4,
            page_buffers: 100,
            block_queue: 96,
            pending_reads: 16,
            pending_writes: 16,
            block_weight: 2,
            page_weight: 1,
            lookup_ns: 1.0,
            batch_scale: 1.0,
            npm: 25,
            npm_least: 5,
            feedback_batches: 4,
            credit_buffers: true,
            negative_scores: 4,
            migrate_while_relearning: true,
            training_us: 500.0,
            filter_share: 0.3,
            count_factor: 1.0,
            count_least: 1,
            frequency_factor: 1.0,
            fixed_count: None,
        }
    }
}

/// The cost of a migration for a node (section II, "Page Migration Overheads and Parameters").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigrationConfig {
    /// Interrupting all cores, once for each batch.
    pub shootdown_ns: f64,
    /// Invalidating a page's translation on all cores and its blocks in all caches.
    pub invalidate_ns_per_page: f64,
    /// Re-filling a translation, in equation 1: the paper's reference 30 has 60 to 80 cycles.
    pub tlb_miss_cycles: u32,
    /// Which local pages are evicted.
    pub victims: VictimPolicy,
    /// Page copies that a node has under way at once.
    pub copies: u32,
    /// How memory controllers treat copies of pages beside demand.
    pub background: BackgroundConfig,
}

impl Default for MigrationConfig {
    fn default() -> Self {
        MigrationConfig {
            shootdown_ns: 2000.0,
            invalidate_ns_per_page: 50.0,
            tlb_miss_cycles: 70,
            victims: VictimPolicy::Clock,
            copies: 2,
            background: BackgroundConfig::default(),
        }
    }
}

/// A rack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RackConfig {
    /// Compute nodes.
    pub nodes: u32,
    /// Memory pools.
    pub pools: u32,
    /// Of every node's pages, the share that is allocated locally.
    pub local_share: f64,
    /// The order in which local and remote pages are allocated.
    pub dealing: Dealing,
    /// How remote memory appears to nodes.
    pub organization: Organization,
    /// The pool of the next chunk.
    pub allocation: Allocation,
    /// Size of the global manager's allocations in the distributed organization.
    pub chunk: Bytes,
    /// The processor of each node.
    pub processor: Processor,
    /// Reservation stations of a core (table I). Instructions that wait for a load hold one each,
    /// so that they can fill before the reorder buffer does ([`RackConfig::window`]).
    pub reservation_stations: u32,
    /// Of the instructions after a load, the share that waits for it in a reservation station.
    /// Streams do not contain it: half is an assumption.
    pub waiting_share: f64,
    /// Misses that a node's last level can have under way. The paper has 256 for 32 cores and none
    /// for 4; here they do not limit the first levels' 16 each.
    pub llc_mshrs: u32,
    /// From the last level to the local memory controller and back.
    pub local_path_ns: f64,
    /// Translation between local and remote physical addresses, in the distributed organization.
    pub translation_ns: f64,
    /// A page fault, beside the time of the allocation.
    pub page_fault_ns: f64,
    /// Memory of a node.
    pub local_dram: DramConfig,
    /// Memory of a pool.
    pub pool_dram: DramConfig,
    /// Requests that a pool has in its memory controller at once.
    pub pool_queue: u32,
    /// Interfaces and switch.
    pub network: NetworkConfig,
    /// The structures in the switch.
    pub mechanism: MechanismConfig,
    /// The cost of a migration.
    pub migration: MigrationConfig,
    /// Instructions that each core runs before counting begins.
    pub warm_up_instructions: u64,
    /// Instructions that each core runs.
    pub instructions: u64,
    /// Width of a sample in the timelines.
    pub sample_us: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether every block holds a value that is checked: a read must return the last write.
    pub check_data: bool,
    /// Packets of this time are traced one by one.
    pub trace: Option<TraceConfig>,
    /// For tests: the fault injected.
    #[serde(skip)]
    pub fault_injection: Option<FaultInjection>,
}

/// Faults that the checks of a run must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultInjection {
    /// Writes that waited for their block are dropped when it comes.
    LosePendingWrites,
    /// Blocks written in a pool behind a page's read are still taken from the page.
    IgnoreOutdated,
    /// A page that arrives overwrites writes to its frame made meanwhile.
    OverwriteArrivals,
    /// Writes to a victim after it was sent are not sent again.
    ForgetLateWrites,
    /// Page accesses pass earlier writes of their blocks.
    PassWrites,
    /// Every thousandth packet to a node is lost.
    LosePackets,
    /// Every thousandth answer of a page buffer or pool is given twice.
    AnswerTwice,
}

impl Default for RackConfig {
    fn default() -> Self {
        let ddr4 = dram::by_name("ddr4-2400").expect("the preset exists");
        RackConfig {
            nodes: 1,
            pools: 1,
            local_share: 0.5,
            dealing: Dealing::Shuffled,
            organization: Organization::Distributed,
            allocation: Allocation::RoundRobin,
            chunk: Bytes::mib(4),
            processor: Processor::default(),
            reservation_stations: 64,
            waiting_share: 0.5,
            llc_mshrs: 64,
            local_path_ns: 10.0,
            translation_ns: 1.0,
            page_fault_ns: 500.0,
            local_dram: ddr4.clone(),
            pool_dram: ddr4,
            pool_queue: 128,
            network: NetworkConfig::default(),
            mechanism: MechanismConfig::default(),
            migration: MigrationConfig::default(),
            warm_up_instructions: 0,
            instructions: 1_000_000,
            sample_us: 20.0,
            seed: 1,
            check_data: false,
            trace: None,
            fault_injection: None,
        }
    }
}

/// A parameter in nanoseconds as picoseconds.
pub(crate) fn ps(ns: f64) -> Time {
    (ns * 1000.0).round() as Time
}

/// Picoseconds per byte at a bandwidth, in 1/1024: whole numbers, and exact for the bandwidths of
/// networks.
pub(crate) fn ps_1024_per_byte(gbit_per_s: f64) -> u64 {
    (8.0 * 1000.0 * 1024.0 / gbit_per_s).round() as u64
}

impl RackConfig {
    /// Reads TOML; unknown keys are rejected.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: RackConfig = from_toml("rack", text)?;
        config.check()?;
        Ok(config)
    }

    /// The shortest delay from one component to another: each can run alone for so long.
    pub fn window_ps(&self) -> Time {
        let n = &self.network;
        ps(n.propagation_ns + n.switch_ns.min(n.nic_ns))
    }

    /// Cores of a node.
    pub fn cores(&self) -> usize {
        self.processor.0.cores as usize
    }

    /// Instructions that a core can have behind an unfinished load: the reorder buffer's entries,
    /// or as many as fill the reservation stations. The load and store queue (`load_store_queue` of
    /// the processor, 128) is counted separately; by default the stations fill before.
    pub fn window(&self) -> u32 {
        let stations = f64::from(self.reservation_stations) / self.waiting_share;
        self.processor.0.core.window_instructions.min(stations as u32)
    }
}

impl MechanismConfig {
    /// Scales a number of pages by the rack's scale; 1 at least.
    pub fn scaled(&self, pages: u32) -> u32 {
        ((f64::from(pages) * self.batch_scale).round() as u32).max(1)
    }
}
