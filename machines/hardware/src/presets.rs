//! Whole machines by name: those of the papers, and a current server with CXL memory.
//!
//! A tier's latency is from the last-level cache outwards. Where a source measured from the core
//! (Intel's latency checker does), [`beyond_caches`] subtracts the cache look-ups. Pipeline, cache
//! and TLB figures that a paper omits are those of its processor, from the makers' optimisation
//! manuals (Intel 248966, AMD 47414) and WikiChip's collections of them. `instructions_per_cycle`
//! is a plain guess everywhere: what programs reach between misses.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use terrace_core::names::hint;

use crate::cache::config::{CacheConfig, Replacement};
use crate::cache::hierarchy::{Entry, HierarchyConfig, Inclusion};
use crate::cpu::CoreConfig;
use crate::dram::presets as dram;
use crate::error::ConfigError;
use crate::layered::{from_toml, over_preset, schema_over_presets};
use crate::node::NodeConfig;
use crate::tier::queueing::QueueingConfig;
use crate::tier::timing::TimingConfig;
use crate::tier::{TierConfig, TierModel};
use crate::tlb::{SecondLevelConfig, TlbConfig, TlbsConfig};
use crate::units::Bytes;
use crate::walker::WalkerConfig;

/// A machine: a processor and its tiers, fastest first. Read as a preset with some of its values
/// replaced; `tiers` as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct MachineConfig {
    /// The machine that is modelled.
    pub description: String,
    /// Cores, caches, TLBs, walkers.
    pub node: NodeConfig,
    /// Memory tiers, fastest first.
    pub tiers: Vec<TierConfig>,
}

/// [`MachineConfig`] with every value given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Whole {
    /// The machine that is modelled.
    description: String,
    /// Cores, caches, TLBs, walkers.
    node: NodeConfig,
    /// Memory tiers, fastest first; given as a whole.
    tiers: Vec<TierConfig>,
}

impl JsonSchema for MachineConfig {
    fn schema_name() -> Cow<'static, str> {
        "MachineConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema_over_presets::<Whole>(generator, names())
    }
}

impl TryFrom<toml::Table> for MachineConfig {
    type Error = ConfigError;

    fn try_from(given: toml::Table) -> Result<Self, ConfigError> {
        let Whole { description, node, tiers } = over_preset("machine", given, None, by_name)?;
        Ok(MachineConfig { description, node, tiers })
    }
}

impl MachineConfig {
    /// Reads TOML: `preset` names the machine to start from, every other key replaces one of its
    /// values (`node.caches.l2 = "none"` removes a level); without a preset every value must be
    /// given. Unknown keys are rejected. Whether the parts can work is found when they are made.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        from_toml("machine", text)
    }
}

type Preset = (&'static str, fn() -> MachineConfig);

const PRESETS: [Preset; 7] = [
    ("nimble-xeon-e5-2650v3", nimble),
    ("radiant-xeon-6252n-optane", radiant),
    ("granularity-amd-a10-6800k", granularity),
    ("amp-xeon-throttled-dram", amp),
    ("rack-node-ddr4-2400", rack_node),
    ("server-ddr5-cxl", server_cxl),
    ("server-ddr5-cxl-timing", server_cxl_timing),
];

/// The name of every preset.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|p| p.0)
}

/// The preset of a name.
pub fn by_name(name: &str) -> Result<MachineConfig, ConfigError> {
    PRESETS.iter().find(|p| p.0 == name).map(|p| p.1()).ok_or_else(|| {
        let known: Vec<_> = names().collect();
        ConfigError::new(
            "machine",
            format!(
                "no preset {name:?}; known presets: {}{}",
                known.join(", "),
                hint(name, names())
            ),
        )
    })
}

/// A latency measured from the core, without the look-ups down to the last level.
fn beyond_caches(measured_ns: f64, node: &NodeConfig) -> f64 {
    let lookup = f64::from(node.caches.llc.latency_cycles) * 1000.0;
    measured_ns - lookup / f64::from(node.core.clock_mhz)
}

fn tier(name: &str, capacity: Bytes, model: QueueingConfig) -> TierConfig {
    TierConfig { name: name.into(), capacity, model: TierModel::Queueing(model) }
}

fn cache(size: Bytes, ways: u32, latency_cycles: u32) -> CacheConfig {
    CacheConfig::new(size, ways, 64).with_latency(latency_cycles)
}

/// Intel's TLBs since Haswell differ in the second level only.
fn intel_tlbs(entries: u32, ways: u32) -> TlbsConfig {
    TlbsConfig {
        l1_base: TlbConfig::new(64, 4),
        l1_huge: TlbConfig::new(32, 4),
        l2: SecondLevelConfig::Unified(TlbConfig::new(entries, ways)),
        l2_cycles: 7,
    }
}

/// Nimble page management (ASPLOS 2019), table 1: one socket of an E5-2650v3 with its own DDR4-2133
/// as local memory, and the other socket's, loaded by memhog, as remote memory: 84.9 ns and 34 GB/s
/// against 199.2 ns and 17 GB/s over a QPI of 19.2 GB/s.
fn nimble() -> MachineConfig {
    let node = NodeConfig {
        cores: 10,
        core: CoreConfig {
            clock_mhz: 2300,
            instructions_per_cycle: 2.0,
            window_instructions: 192,
            load_store_queue: None,
            outstanding_misses: 10,
            store_buffer: 42,
            page_walkers: 1,
        },
        caches: HierarchyConfig {
            l1: cache(Bytes::kib(32), 8, 4),
            l2: Some(cache(Bytes::kib(256), 8, 12)),
            // 10 slices of 2.5 MB.
            llc: cache(Bytes::mib(25), 20, 42).with_slices(10),
            inclusion: Inclusion::Inclusive,
            snoops: false,
        },
        tlbs: intel_tlbs(1024, 8),
        walker: WalkerConfig::default(),
        walks_enter: Entry::L1,
        prefetcher: None,
    };
    let local = QueueingConfig::dram(beyond_caches(84.9, &node), 34.0, 4);
    let remote = QueueingConfig::dram(beyond_caches(199.2, &node), 17.0, 4);
    MachineConfig {
        description: "Nimble's platform: Xeon E5-2650v3, local and emulated remote DDR4-2133"
            .into(),
        // 32 GB footprint, local memory swept from 4 to 28 GB (section 5).
        tiers: vec![tier("local", Bytes::gib(16), local), tier("remote", Bytes::gib(32), remote)],
        node,
    }
}

/// Radiant (ISMM 2021), table 1: one socket of a Xeon Gold 6252N with 192 GB of DDR4 and 800 GB of
/// Optane in six channels each. Latencies as Izraelevitz et al. (2019) measured them on Cascade Lake:
/// 101 ns and 305 ns for random reads; DRAM at 6 channels of DDR4-2933 less what a stream loses.
fn radiant() -> MachineConfig {
    let node = NodeConfig {
        cores: 24,
        core: CoreConfig {
            clock_mhz: 2300,
            instructions_per_cycle: 2.0,
            window_instructions: 224,
            load_store_queue: None,
            outstanding_misses: 12,
            store_buffer: 56,
            page_walkers: 2,
        },
        caches: HierarchyConfig {
            l1: cache(Bytes::kib(32), 8, 4),
            l2: Some(cache(Bytes::mib(1), 16, 14)),
            // 26 slices of 1.375 MB serve the 24 cores.
            llc: cache(Bytes(26 * 1408 * 1024), 11, 60).with_slices(26),
            inclusion: Inclusion::Victim,
            snoops: true,
        },
        tlbs: intel_tlbs(1536, 12),
        walker: WalkerConfig::default(),
        walks_enter: Entry::L1,
        prefetcher: None,
    };
    let dram = QueueingConfig::dram(beyond_caches(101.0, &node), 105.0, 6);
    let mut optane = QueueingConfig::optane(6);
    optane.read_latency_ns = beyond_caches(optane.read_latency_ns, &node);
    if let Some(blocks) = &mut optane.blocks {
        blocks.buffered_read_latency_ns = beyond_caches(blocks.buffered_read_latency_ns, &node);
    }
    MachineConfig {
        description: "Radiant's platform: Xeon Gold 6252N, DDR4-2933 and Optane in flat mode"
            .into(),
        tiers: vec![tier("dram", Bytes::gib(192), dram), tier("optane", Bytes::gib(800), optane)],
        node,
    }
}

/// The migration-granularity paper, table 1 and section 5: an AMD A10-6800K at 4.1 GHz with 4
/// cores, 64 KB of L1 data cache and 4 MB of L2 as the table has them, DDR3-1866 of which 400 MB are
/// fast memory; slow memory at three times the latency (section 5). The L2 is shared here as the
/// table counts it.
fn granularity() -> MachineConfig {
    let node = NodeConfig {
        cores: 4,
        core: CoreConfig {
            clock_mhz: 4100,
            instructions_per_cycle: 1.5,
            window_instructions: 128,
            load_store_queue: None,
            outstanding_misses: 8,
            store_buffer: 24,
            page_walkers: 1,
        },
        caches: HierarchyConfig {
            l1: cache(Bytes::kib(64), 4, 4),
            l2: None,
            llc: cache(Bytes::mib(4), 16, 20),
            inclusion: Inclusion::NonInclusive,
            snoops: false,
        },
        // Piledriver: 64 fully associative entries for both sizes, 1024 in 8 ways behind them.
        tlbs: TlbsConfig {
            l1_base: TlbConfig::new(64, 64),
            l1_huge: TlbConfig::new(64, 64),
            l2: SecondLevelConfig::Unified(TlbConfig::new(1024, 8)),
            l2_cycles: 20,
        },
        walker: WalkerConfig { pde_entries: 64, ..WalkerConfig::default() },
        walks_enter: Entry::L2,
        prefetcher: None,
    };
    // 2 channels of DDR3-1866 are 29.9 GB/s; the latency is a usual one of the platform.
    let fast = QueueingConfig::dram(70.0, 26.0, 2);
    let slow = QueueingConfig { read_latency_ns: 210.0, write_latency_ns: 210.0, ..fast.clone() };
    MachineConfig {
        description: "the granularity paper's platform: AMD A10-6800K, DDR3-1866 and emulated PCM"
            .into(),
        tiers: vec![tier("fast", Bytes::mib(400), fast), tier("slow", Bytes::gib(8), slow)],
        node,
    }
}

/// The adaptive-policy paper (AMP, section 6.1): a two-socket virtual machine whose slow node's
/// bandwidth is throttled and saturated until its latency is the 346 ns of Optane. The text at hand
/// lacks table 2: the processor is taken to be a Xeon of the same generation as Radiant's, the
/// throttled bandwidth to be a quarter.
fn amp() -> MachineConfig {
    let node = NodeConfig { cores: 16, ..radiant().node };
    let fast = QueueingConfig::dram(beyond_caches(101.0, &node), 105.0, 6);
    let slow = QueueingConfig::dram(beyond_caches(346.0, &node), 26.0, 6);
    MachineConfig {
        description: "AMP's platform: Xeon with DRAM and throttled DRAM of 346 ns".into(),
        tiers: vec![tier("fast", Bytes::gib(32), fast), tier("slow", Bytes::gib(64), slow)],
        node,
    }
}

/// The rack paper, table I: 4 two-wide cores at 3.6 GHz with a reorder buffer of 192, caches of 32 KB
/// (2 cycles), 256 KB (20) and 2 MB for each core (40), write-back, round-robin, over DDR4-2400. The
/// second tier is a pool behind a switch and two network interfaces at 100 Gb/s: 2 x (2 x 10 ns +
/// 5 ns) and the transfer of a line, as a link; the rack simulator has the network itself.
fn rack_node() -> MachineConfig {
    let cache =
        |size, ways, latency| cache(size, ways, latency).with_replacement(Replacement::RoundRobin);
    let node = NodeConfig {
        cores: 4,
        core: CoreConfig {
            clock_mhz: 3600,
            instructions_per_cycle: 2.0,
            window_instructions: 192,
            load_store_queue: Some(128),
            outstanding_misses: 16,
            // Half of the load and store queue's entries.
            store_buffer: 64,
            page_walkers: 1,
        },
        caches: HierarchyConfig {
            l1: cache(Bytes::kib(32), 8, 2),
            l2: Some(cache(Bytes::kib(256), 4, 20)),
            llc: cache(Bytes::mib(8), 16, 40),
            inclusion: Inclusion::NonInclusive,
            snoops: false,
        },
        tlbs: intel_tlbs(1536, 12),
        walker: WalkerConfig::default(),
        walks_enter: Entry::L1,
        prefetcher: None,
    };
    let ddr4 = dram::by_name("ddr4-2400").expect("the preset exists");
    let timing = |name: &str, path_ns, link| TierConfig {
        name: name.into(),
        capacity: Bytes::gib(8),
        model: TierModel::Dram(Box::new(TimingConfig { dram: ddr4.clone(), link, path_ns })),
    };
    let network = crate::tier::link::LinkConfig {
        out_gb_per_s: 12.5,
        back_gb_per_s: 12.5,
        request_bytes: 16,
        header_bytes: 16,
        acknowledge_bytes: 16,
    };
    MachineConfig {
        description: "the rack paper's compute node: 4 cores, local DDR4-2400 and one pool".into(),
        tiers: vec![timing("local", 10.0, None), timing("pool", 60.0, Some(network))],
        node,
    }
}

/// A current server: 16 cores of a Xeon of the fourth generation with 8 channels of DDR5-4800, and
/// two CXL expanders of one DDR5-4800 module behind eight lanes each. 108 ns local and 214 ns behind
/// CXL are in the range of published measurements (Sun et al., "Demystifying CXL Memory with Genuine
/// CXL-Ready Systems and Devices", MICRO 2023: about twice the local latency).
fn server_node() -> NodeConfig {
    NodeConfig {
        cores: 16,
        core: CoreConfig {
            clock_mhz: 3000,
            instructions_per_cycle: 2.5,
            window_instructions: 512,
            load_store_queue: None,
            outstanding_misses: 16,
            store_buffer: 112,
            page_walkers: 4,
        },
        caches: HierarchyConfig {
            l1: cache(Bytes::kib(48), 12, 5),
            l2: Some(cache(Bytes::mib(2), 16, 15)),
            // 16 slices of 1.875 MB.
            llc: cache(Bytes::mib(30), 15, 70).with_slices(16),
            inclusion: Inclusion::Victim,
            snoops: false,
        },
        tlbs: TlbsConfig {
            l1_base: TlbConfig::new(96, 6),
            l1_huge: TlbConfig::new(32, 4),
            l2: SecondLevelConfig::Unified(TlbConfig::new(2048, 16)),
            l2_cycles: 7,
        },
        walker: WalkerConfig::default(),
        walks_enter: Entry::L1,
        prefetcher: None,
    }
}

fn server_cxl() -> MachineConfig {
    let node = server_node();
    let dram = QueueingConfig::dram(beyond_caches(108.0, &node), 270.0, 16);
    let one = QueueingConfig::cxl(beyond_caches(214.0, &node));
    // Two expanders, interleaved: twice the link and twice the medium.
    let link = one.link.clone().map(|l| crate::tier::link::LinkConfig {
        out_gb_per_s: 2.0 * l.out_gb_per_s,
        back_gb_per_s: 2.0 * l.back_gb_per_s,
        ..l
    });
    let cxl = QueueingConfig {
        read_gb_per_s: 2.0 * one.read_gb_per_s,
        write_gb_per_s: 2.0 * one.write_gb_per_s,
        channels: 2 * one.channels,
        link,
        ..one
    };
    MachineConfig {
        description: "a server with 8 channels of DDR5-4800 and two CXL expanders".into(),
        tiers: vec![tier("dram", Bytes::gib(256), dram), tier("cxl", Bytes::gib(512), cxl)],
        node,
    }
}

/// The same, modelled down to DRAM commands, with one expander.
fn server_cxl_timing() -> MachineConfig {
    let node = server_node();
    let mut local = dram::by_name("ddr5-4800").expect("the preset exists");
    local.organization.channels = 16;
    local.organization.ranks = 2;
    let mut expander = dram::by_name("ddr5-4800").expect("the preset exists");
    expander.organization.ranks = 2;
    // An idle random read takes 36 ns (bank closed) to 52 ns (other row open) in the DRAM itself;
    // the rest of the latency is the way there and back.
    let in_dram = 50.0;
    let timing = |dram, link, measured| {
        let path_ns = beyond_caches(measured, &node) - in_dram;
        TierModel::Dram(Box::new(TimingConfig { dram, link, path_ns }))
    };
    MachineConfig {
        description: "a server with 8 channels of DDR5-4800 and one CXL expander, DRAM by command"
            .into(),
        tiers: vec![
            TierConfig {
                name: "dram".into(),
                capacity: Bytes::gib(256),
                model: timing(local, None, 108.0),
            },
            TierConfig {
                name: "cxl".into(),
                capacity: Bytes::gib(32),
                model: timing(expander, Some(crate::tier::link::LinkConfig::cxl_x8()), 214.0),
            },
        ],
        node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use crate::tier::memory::TieredMemory;

    #[test]
    fn every_machine_can_be_built_and_written_down() {
        for name in names() {
            let machine = by_name(name).unwrap();
            Node::new(&machine.node).unwrap_or_else(|e| panic!("{name}: {e}"));
            TieredMemory::new(&machine.tiers).unwrap_or_else(|e| panic!("{name}: {e}"));
            let text = toml::to_string(&machine).unwrap();
            assert_eq!(MachineConfig::from_toml(&text).unwrap(), machine, "{name}");
        }
        assert!(by_name("vax").unwrap_err().to_string().contains("known presets: nimble"));
    }

    #[test]
    fn a_machine_is_changed_key_by_key() {
        let machine = MachineConfig::from_toml(
            r#"
            preset = "radiant-xeon-6252n-optane"
            [node]
            cores = 2
            [node.caches.l2]
            size = "512K"
            [node.walker]
            levels = 5
            [[tiers]]
            name = "fast"
            capacity = "1G"
            [tiers.model.dram]
            path_ns = 40.0
            [tiers.model.dram.dram]
            preset = "ddr4-3200"
            timing.rcd = 30
            [[tiers]]
            name = "slow"
            capacity = "16G"
            model.queueing = { read_latency_ns = 300, write_latency_ns = 100, read_gb_per_s = 20, write_gb_per_s = 8, channels = 2 }
            "#,
        )
        .unwrap();
        assert_eq!((machine.node.cores, machine.node.walker.levels), (2, 5));
        let l2 = machine.node.caches.l2.as_ref().unwrap();
        assert_eq!((l2.size, l2.ways), (Bytes::kib(512), 16));
        let text = "preset = \"server-ddr5-cxl\"\nnode.caches.l2 = \"none\"";
        assert_eq!(MachineConfig::from_toml(text).unwrap().node.caches.l2, None);
        let TierModel::Dram(timing) = &machine.tiers[0].model else { panic!("not DRAM timing") };
        assert_eq!((timing.dram.timing.cl, timing.dram.timing.rcd), (22, 30));
        Node::new(&machine.node).unwrap();
        TieredMemory::new(&machine.tiers).unwrap();
    }

    #[test]
    fn mistakes_in_a_machine_are_named_in_one_line() {
        for (text, printed) in [
            ("preset = \"vax\"", "no preset \"vax\""),
            ("preset = \"amp-xeon-throttled-dram\"\n[node]\ncors = 3", "unknown field `cors`"),
            ("description = \"mine\"", "missing field"),
            (
                "preset = \"amp-xeon-throttled-dram\"\nnode.core.clock_mhz = \"fast\"",
                "invalid type",
            ),
            ("preset = \"amp-xeon-throttled-dram\"\ntiers = 3", "invalid type"),
            ("preset = \"amp-xeon-throttled-dram\"\n[[tiers]]\nname = \"a\"", "missing field"),
            ("node = {", "line 1"),
            (
                "preset = \"amp-xeon-throttled-dram\"\n[[tiers]]\nname = \"a\"\n\
                 capacity = \"1G\"\nmodel.dram.path_ns = 1\nmodel.dram.dram.timing.cl = 0",
                "cl is 0; expected 1 to",
            ),
        ] {
            let error = MachineConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(printed) && !error.contains('\n'), "{text:?} gives {error:?}");
        }
        // Values that only the parts can check are rejected when the parts are made.
        let text = "preset = \"server-ddr5-cxl\"\n[node.caches.l1]\nsize = \"40K\"";
        let machine = MachineConfig::from_toml(text).unwrap();
        let error = Node::new(&machine.node).unwrap_err().to_string();
        assert!(error.starts_with("caches.l1.cache: 40K in 1 slice(s) of 12 ways"), "{error}");
    }
}
