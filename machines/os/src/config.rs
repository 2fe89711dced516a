//! Configuration of the operating system.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::error::ConfigError;

use crate::costs::CostConfig;
use crate::entry::{MAX_MOVE_PAGES, PHYSICAL_BITS};
use crate::tables::TableMoveOrder;

/// The number of a memory node: its position in the list that [`crate::Os::new`] was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Node(pub u8);

impl Node {
    /// The first node. In a machine of two nodes, the fast one.
    pub const FAST: Node = Node(0);
    /// The second node. In a machine of two nodes, the slow one.
    pub const SLOW: Node = Node(1);

    /// The node's position in the list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How fast a node is: 0 is the fastest tier, which "fast" refers to everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tier(pub u8);

impl Tier {
    /// The fastest tier.
    pub const FAST: Tier = Tier(0);
    /// The second fastest tier.
    pub const SLOW: Tier = Tier(1);
}

/// The memory of one node. Nodes are listed fastest tier first; one tier may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// The tier that the node belongs to.
    pub tier: Tier,
    /// First physical address: a multiple of 2 MB.
    pub start: PhysicalAddress,
    /// Size: a multiple of 4 KB, not 0.
    pub capacity_bytes: u64,
}

/// When programs get huge pages of 2 MB (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// In no mapping.
    Never,
    /// In mappings that are marked for it (`madvise`): Debian's default.
    #[default]
    Eligible,
    /// In every mapping.
    Always,
}

/// Free memory below which a node is avoided, as shares of its size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Watermarks {
    /// No allocation goes below this, except by reclaim.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub min: f64,
    /// An allocation takes another node rather than go below this; background reclaim starts.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub low: f64,
    /// Background reclaim stops here.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub high: f64,
}

impl Watermarks {
    /// Every frame may be used.
    pub const NONE: Watermarks = Watermarks { min: 0.0, low: 0.0, high: 0.0 };
}

/// How invalidations are grouped into shootdowns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShootdownPer {
    /// One shootdown for every page (Linux up to 6.2, and Nimble's).
    Page,
    /// One for every operation, that is, for every contiguous range (granularity paper, section 3).
    #[default]
    Operation,
    /// One for all operations of a batch (Linux since 6.3).
    Batch,
}

/// How pages are migrated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MigrationConfig {
    /// Huge pages are split first and migrated as base pages: the baseline of Nimble's section
    /// 3.1.1.
    pub split_huge_first: bool,
    /// Threads that share the copying (Nimble, section 3.1.2).
    #[schemars(range(min = 1, max = 1024))]
    pub threads: u32,
    /// Below so many bytes one thread copies alone: starting others costs more than it saves
    /// (Nimble, figure 9: no gain for single base pages).
    pub least_bytes_for_threads: u64,
    /// Huge pages under way at once in one batch (Nimble, section 4.5.2: 8 is best).
    #[schemars(range(min = 1, max = MAX_MOVE_PAGES / 1024))]
    pub batch_huge_pages: u32,
    /// Base pages under way at once in one batch (Nimble, section 4.3: 512).
    #[schemars(range(min = 1, max = MAX_MOVE_PAGES / 2))]
    pub batch_base_pages: u32,
    /// Whether two ranges may be exchanged without allocation (Nimble, section 3.1.4).
    pub exchange: bool,
    /// How invalidations are grouped.
    pub shootdown_per: ShootdownPer,
    /// Up to so many pages are invalidated one by one, more by a full flush (Linux's
    /// `tlb_single_page_flush_ceiling`, 33). The granularity paper's 4 KB and 64 KB ranges are
    /// below it, its 2 MB of base pages above (section 5).
    pub single_invalidations: u32,
    /// When the pages of a batch are mapped, all when the last is copied or each when it is. Accesses to
    /// them wait until then.
    pub mapped: Mapped,
    /// The order of the steps in which a page-table page is moved.
    pub table_move_order: TableMoveOrder,
}

/// When pages that move together are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mapped {
    /// All when the last is copied (Nimble, section 3.1.3).
    #[default]
    Together,
    /// Each when it is copied, as Linux does: one page after the other in the granularity paper's 3.16
    /// (`unmap_and_move` in `mm/migrate.c`), since 6.3 after one shootdown for many
    /// (`migrate_pages_batch`). Pairs that are exchanged are mapped together all the same.
    Each,
}

impl Default for MigrationConfig {
    /// The papers' best values, with one copying thread.
    fn default() -> Self {
        MigrationConfig {
            split_huge_first: false,
            threads: 1,
            least_bytes_for_threads: 256 << 10,
            batch_huge_pages: 8,
            batch_base_pages: 512,
            exchange: true,
            shootdown_per: ShootdownPer::Operation,
            single_invalidations: 33,
            mapped: Mapped::default(),
            table_move_order: TableMoveOrder::default(),
        }
    }
}

impl MigrationConfig {
    /// Rejects a configuration that cannot work.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (name, value, bound) in [
            ("threads", self.threads, 1024),
            ("batch_huge_pages", self.batch_huge_pages, MAX_MOVE_PAGES as u32 / 1024),
            ("batch_base_pages", self.batch_base_pages, MAX_MOVE_PAGES as u32 / 2),
        ] {
            if !(1..=bound).contains(&value) {
                return Err(ConfigError::new(
                    "os.migration",
                    format!("{name} is {value}; expected 1 to {bound}"),
                ));
            }
        }
        Ok(())
    }
}

/// Configuration of the whole operating-system model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OsConfig {
    /// Levels of page tables: 4 or 5.
    #[schemars(range(min = 4, max = 5))]
    pub levels: u32,
    /// Which mappings get huge pages.
    pub huge_pages: HugePages,
    /// By tier; a tier without an entry has Linux's watermarks.
    pub watermarks: Vec<Watermarks>,
    /// By tier: the share of each node that clean page cache takes at the start, at most down to
    /// the high watermark. Reclaim drops it when memory is short. A tier without an entry has none.
    #[schemars(inner(range(min = 0, max = 1)))]
    pub page_cache: Vec<f64>,
    /// The cost of each step.
    pub costs: CostConfig,
    /// How pages are migrated.
    pub migration: MigrationConfig,
    /// Passes of reclaim without a frame freed before a process is killed (Linux:
    /// `MAX_RECLAIM_RETRIES`, 16).
    pub reclaim_retries: u32,
    /// Base pages that may be missing when a huge page is collapsed (Linux: `max_ptes_none`, 511).
    pub collapse_max_none: u32,
}

impl Default for OsConfig {
    fn default() -> Self {
        OsConfig {
            levels: 4,
            huge_pages: HugePages::default(),
            watermarks: Vec::new(),
            page_cache: Vec::new(),
            costs: CostConfig::default(),
            migration: MigrationConfig::default(),
            reclaim_retries: 16,
            collapse_max_none: 511,
        }
    }
}

impl OsConfig {
    /// Rejects a configuration that cannot work.
    pub(crate) fn check(&self, nodes: &[NodeMemory]) -> Result<(), ConfigError> {
        let refuse = |part: &str, problem: String| Err(ConfigError::new(part, problem));
        if !(4..=5).contains(&self.levels) {
            return refuse("os", format!("levels is {}; expected 4 or 5", self.levels));
        }
        for (tier, w) in self.watermarks.iter().enumerate() {
            if !(0.0 <= w.min && w.min <= w.low && w.low <= w.high && w.high < 1.0) {
                return refuse(
                    &format!("os.watermarks[{tier}]"),
                    format!(
                        "min {}, low {}, high {}; expected shares below 1 that do not fall",
                        w.min, w.low, w.high
                    ),
                );
            }
        }
        for (tier, share) in self.page_cache.iter().enumerate() {
            if !(0.0..=1.0).contains(share) {
                return refuse(
                    &format!("os.page_cache[{tier}]"),
                    format!("{share}; expected a share of the tier, 0 to 1"),
                );
            }
        }
        self.migration.check()?;
        self.check_nodes(nodes)
    }

    fn check_nodes(&self, nodes: &[NodeMemory]) -> Result<(), ConfigError> {
        if nodes.is_empty() || nodes.len() > 64 {
            let problem = format!("{} nodes; expected 1 to 64", nodes.len());
            return Err(ConfigError::new("os.nodes", problem));
        }
        for (i, n) in nodes.iter().enumerate() {
            let refuse = |problem: String| Err(ConfigError::new(format!("os.nodes[{i}]"), problem));
            if !n.start.0.is_multiple_of(2 << 20) {
                return refuse(format!("starts at {:#x}; expected a multiple of 2 MB", n.start.0));
            }
            if n.capacity_bytes == 0 || !n.capacity_bytes.is_multiple_of(4096) {
                return refuse(format!(
                    "capacity is {} bytes; expected a multiple of 4,096, not 0",
                    n.capacity_bytes
                ));
            }
            let end = n.start.0.checked_add(n.capacity_bytes);
            if end.is_none_or(|end| end > 1 << PHYSICAL_BITS) {
                return refuse(format!("ends above {PHYSICAL_BITS} bits of physical address"));
            }
            if i > 0 && nodes[i - 1].tier > n.tier {
                return refuse("is faster than the one before; list the fastest tier first".into());
            }
            if i == 0 && n.tier != Tier::FAST {
                return refuse(format!("is of tier {}; expected the first to be 0", n.tier.0));
            }
            let overlaps = |o: &NodeMemory| {
                n.start.0 < o.start.0 + o.capacity_bytes && o.start.0 < n.start.0 + n.capacity_bytes
            };
            if nodes[..i].iter().any(overlaps) {
                return refuse("overlaps another node".into());
            }
        }
        Ok(())
    }
}

/// Linux's watermarks for a node of so many bytes among `total_bytes`, in bytes: `min` is the
/// node's share of `4 * sqrt(memory in KB)` KB, at least 128 KB and at most 256 MB
/// (`calculate_min_free_kbytes`); `low` and `high` are one and two steps above it. A step is a
/// quarter of `min`, or 0.1 % of the node if more (`watermark_scale_factor` 10).
pub fn linux_watermarks(capacity_bytes: u64, total_bytes: u64) -> [u64; 3] {
    let kib = (total_bytes >> 10) as f64;
    let min_free = ((kib * 16.0).sqrt() as u64).clamp(128, 262_144) << 10;
    let min = (u128::from(min_free) * u128::from(capacity_bytes) / u128::from(total_bytes)) as u64;
    let step = (min / 4).max(capacity_bytes / 1000);
    [min, min + step, min + 2 * step]
}

/// Where a process's data is placed at the first touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPolicy {
    /// The fastest node with room, in node order: Linux's first touch, Nimble's section 3.2.
    #[default]
    FastFirst,
    /// The nodes in turn, by the number of the page.
    Interleave,
    /// This node only.
    Bind(Node),
}

/// Where a process's page-table pages are placed (Radiant paper, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TablePlacement {
    /// Like data, as in Linux.
    #[default]
    FollowData,
    /// The fastest node with room, whatever the policy of the data.
    FirstTouch,
    /// The nodes in turn, whatever the policy of the data.
    Interleave,
    /// BHi: every level but the leaf in the fastest tier, the leaf like data.
    BindHighLevels,
    /// Every level in the fastest tier (the patches of section 3.5).
    BindAll,
}

/// How a process's page-table pages are placed and moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TablePolicy {
    /// Initial placement of page-table pages.
    pub placement: TablePlacement,
    /// Mig: leaf tables follow the data that they map (algorithm 1).
    pub migrate: bool,
    /// A bound page-table page is placed nowhere else, at any cost: reclaim, and in the end the
    /// killing of a process (section 3.5). Without `hard`, the page is placed elsewhere and
    /// counted.
    pub hard: bool,
}

/// The policies of a process to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessSpec {
    /// Placement of data.
    pub data: DataPolicy,
    /// Bytes of data that the process and its children may have in the fastest tier.
    pub fast_limit_bytes: Option<u64>,
    /// Placement and migration of page tables.
    pub tables: TablePolicy,
}
