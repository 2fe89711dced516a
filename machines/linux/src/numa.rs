//! Memory nodes: which exist, which have processors, their distances and their free memory.

use terrace_core::interfaces::Headroom;

use crate::files::{self, FileError};
use crate::roots::Roots;

/// Nodes that have memory, ascending.
pub fn nodes_with_memory(roots: &Roots) -> Result<Vec<u32>, FileError> {
    let path = roots.sys.join("devices/system/node/has_memory");
    files::read_list(&path)?.ok_or(FileError::Missing {
        path,
        remedy: "expected a Linux kernel with CONFIG_NUMA; boot one",
    })
}

/// Nodes that have processors, ascending; `None` if the kernel does not report them.
pub fn nodes_with_cpus(roots: &Roots) -> Result<Option<Vec<u32>>, FileError> {
    files::read_list(&roots.sys.join("devices/system/node/has_cpu"))
}

/// Distances from one node to the nodes 0, 1, ...
pub fn distances(roots: &Roots, node: u32) -> Result<Option<Vec<u32>>, FileError> {
    let path = roots.node(node).join("distance");
    files::read(&path)?
        .map(|text| {
            text.split_whitespace()
                .map(|d| d.parse().ok())
                .collect::<Option<Vec<u32>>>()
                .ok_or_else(|| FileError::malformed(&path, &text, "distances such as '10 20'"))
        })
        .transpose()
}

/// Memory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeMemory {
    /// All of it.
    pub total_bytes: u64,
    /// Unused memory.
    pub free_bytes: u64,
}

/// Memory of a node; `None` when there is no such node.
pub fn memory(roots: &Roots, node: u32) -> Result<Option<NodeMemory>, FileError> {
    let path = roots.node(node).join("meminfo");
    let Some(text) = files::read(&path)? else { return Ok(None) };
    let field = |name: &str| -> Option<u64> {
        // "Node 0 MemTotal:       1006524 kB"
        let line = text.lines().find(|l| l.split_whitespace().nth(2) == Some(name))?;
        let kib: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let bad = |expected| FileError::malformed(&path, &text, expected);
    Ok(Some(NodeMemory {
        total_bytes: field("MemTotal:").ok_or_else(|| bad("a line 'Node N MemTotal: X kB'"))?,
        free_bytes: field("MemFree:").ok_or_else(|| bad("a line 'Node N MemFree: X kB'"))?,
    }))
}

/// How much more a node can take before the kernel would have to reclaim memory in use.
///
/// A page that moves is allocated with `GFP_HIGHUSER_MOVABLE | __GFP_THISNODE` (mm/migrate.c,
/// `alloc_migration_target`), so:
/// - the node's zones count and no other's, each down to its *low* watermark plus what it holds
///   back from allocations that may also use higher zones (`protection`, `__zone_watermark_ok`).
///   That is how far any allocation fills a node. The high watermark, to which kswapd frees, is
///   above: on a node in use nothing is free beyond it. Between low and min the kernel would grant
///   the page, too, but wake kswapd with it;
/// - a node that is filled down to its low watermark has nothing left for the kernel itself: whatever
///   it allocates then, buffers of sockets, page tables, pages of files, comes from the next node of its
///   list, which is slow memory, and stays there while a program waits for it. So a part stays free
///   ([`HEADROOM_BYTES`]) that no promotion takes;
/// - below the watermark the call reclaims on the node, unmapped clean page cache first. That is
///   cheap, and reading a file must not keep a program's hot pages out. It counts as room except
///   for a reserve ([`CACHE_RESERVE`]).
///
/// No such allocation ends in the out-of-memory killer: `__GFP_THISNODE` excludes that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Free bytes above the low watermarks and the kernel's headroom.
    pub free_bytes: u64,
    /// Bytes of unmapped clean page cache, beyond the reserve.
    pub cache_bytes: u64,
    /// The kernel's headroom, and what of it is in use.
    pub headroom: Headroom,
    /// Bytes of the node that its zones manage.
    pub managed_bytes: u64,
    /// Bytes of free pages in lists of the processors, which are not in `free_bytes`: see
    /// [`crate::free_lists`].
    pub list_bytes: u64,
}

impl Room {
    /// Both.
    pub fn bytes(&self) -> u64 {
        self.free_bytes.saturating_add(self.cache_bytes)
    }
}

/// What stays free above a node's low watermarks for the kernel's own allocations, at least: two of the
/// blocks of 2 MB (`pageblock_order`) that its allocator takes for memory of one kind, which need not
/// be the same for all that it needs.
pub const HEADROOM_BYTES: u64 = 4 << 20;
/// The same as a part of the node: 1 of 256.
const HEADROOM_PART: u64 = 256;

/// Part of a node that is reserved for page cache: as much as the kernel's own reclaim on one node
/// leaves to it (`min_unmapped_ratio`, 1 %), and as much again for files being read.
pub const CACHE_RESERVE: f64 = 0.02;

/// Room on a node.
pub fn room(roots: &Roots, node: u32) -> Result<Room, FileError> {
    let path = roots.proc.join("zoneinfo");
    Ok(files::read(&path)?.map_or(Room::default(), |text| parse_room(&text, node)))
}

/// Pages of one zone, as far as read.
#[derive(Default)]
struct Zone {
    free: u64,
    low: u64,
    managed: u64,
    protection: u64,
}

fn parse_room(text: &str, node: u32) -> Room {
    let mut ours = false;
    let mut zone = Zone::default();
    let (mut free, mut managed) = (0u64, 0u64);
    let mut end_zone = |zone: &mut Zone| {
        let zone = std::mem::take(zone);
        free += zone.free.saturating_sub(zone.low.saturating_add(zone.protection));
        managed += zone.managed;
    };
    // File pages of the node on the kernel's LRU lists, and those of them that are expensive to
    // reclaim: mapped, dirty or under writeback.
    let (mut cache, mut dear, mut on_lists) = (0u64, 0u64, 0u64);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
        // "Node 0, zone   Normal"
        if key == "Node" {
            end_zone(&mut zone);
            ours = value.trim_end_matches(',').parse() == Ok(node);
            continue;
        }
        if !ours {
            continue;
        }
        let pages = || value.parse::<u32>().map_or(0, u64::from);
        match key {
            // "  pages free     3840"
            "pages" if value == "free" => {
                zone.free = words.next().and_then(|n| n.parse::<u32>().ok()).map_or(0, u64::from);
            }
            // Zones also have "high:" lines for their per-processor lists; those have a colon.
            "low" => zone.low = pages(),
            "managed" => zone.managed = pages(),
            // "protection: (0, 2927, 7897, 7897, 7897)": the last is for allocations that may use
            // every zone.
            "protection:" => {
                let last = line.rsplit([',', '(']).next().unwrap_or_default();
                zone.protection = last.trim_matches([' ', ')']).parse::<u32>().map_or(0, u64::from);
            }
            "count:" => on_lists += pages(),
            "nr_inactive_file" | "nr_active_file" => cache += pages(),
            "nr_dirty" | "nr_writeback" | "nr_mapped" => dear += pages(),
            _ => {}
        }
    }
    end_zone(&mut zone);
    let reserve = (managed as f64 * CACHE_RESERVE) as u64;
    if managed == 0 {
        // A node that is off line: it has no room, and that is known.
        let headroom = Headroom { room_bytes: Some(0), ..Headroom::default() };
        return Room { headroom, ..Room::default() };
    }
    let headroom = HEADROOM_BYTES.max(managed * PAGE_BYTES / HEADROOM_PART);
    let free_bytes = (free * PAGE_BYTES).saturating_sub(headroom);
    let cache_bytes = cache.saturating_sub(dear.saturating_add(reserve)) * PAGE_BYTES;
    Room {
        free_bytes,
        cache_bytes,
        headroom: Headroom {
            wanted_bytes: headroom,
            lacking_bytes: headroom.saturating_sub(free * PAGE_BYTES),
            room_bytes: Some(free_bytes + cache_bytes),
        },
        managed_bytes: managed * PAGE_BYTES,
        list_bytes: on_lists * PAGE_BYTES,
    }
}

/// Physical address ranges of a node's memory, holes within its zones included: first address and
/// one past the last, ascending. Adjacent zones are one range.
pub fn physical_ranges(roots: &Roots, node: u32) -> Result<Vec<(u64, u64)>, FileError> {
    let path = roots.proc.join("zoneinfo");
    let text = files::read(&path)?.unwrap_or_default();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let (mut ours, mut spanned) = (false, 0u64);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
        match key {
            "Node" => (ours, spanned) = (value.trim_end_matches(',').parse() == Ok(node), 0),
            "spanned" => spanned = value.parse().unwrap_or(0),
            // The last line of a zone.
            "start_pfn:" if ours && spanned > 0 => {
                let pages = value.parse::<u64>().ok().and_then(|first| {
                    Some((
                        first.checked_mul(PAGE_BYTES)?,
                        first.checked_add(spanned)?.checked_mul(PAGE_BYTES)?,
                    ))
                });
                let Some((start, end)) = pages else {
                    return Err(FileError::malformed(&path, line, "'start_pfn: <page>'"));
                };
                match ranges.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => ranges.push((start, end)),
                }
            }
            _ => {}
        }
    }
    if ranges.is_empty() {
        return Err(FileError::malformed(&path, "no zone of the node", "the zones of every node"));
    }
    Ok(ranges)
}

/// Pages that the kernel counts in.
const PAGE_BYTES: u64 = 4096;

/// Processors that are online; processor 0 if the kernel does not report them.
pub fn online_cpus(roots: &Roots) -> Result<Vec<u32>, FileError> {
    Ok(files::read_list(&roots.sys.join("devices/system/cpu/online"))?.unwrap_or_else(|| vec![0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use proptest::prelude::*;

    /// Node 1 in the form of Debian's 6.12.
    const FULL: &str = "Node 0, zone   Normal\n  pages free     99999\n        low      1\n\
        \x20       high     2\n        managed  99999\n        protection: (0, 0, 0, 0)\n\
        Node 1, zone    DMA32\n  per-node stats\n      nr_inactive_file 30000\n\
        \x20     nr_active_file 5000\n      nr_file_pages 45000\n      nr_dirty     1000\n\
        \x20     nr_writeback 500\n      nr_shmem     9000\n      nr_mapped    2500\n\
        \x20 pages free     1500\n        boost    0\n        min      400\n        low      500\n\
        \x20       high     600\n        spanned  100000\n        managed  60000\n\
        \x20       protection: (0, 0, 900, 900)\n      nr_free_pages 1500\n  pagesets\n\
        \x20   cpu: 0\n              count: 10\n              high:  62\n              low:  9\n\
        Node 1, zone  Movable\n  pages free     3100\n        min      800\n        low      1000\n\
        \x20       high     1200\n        managed  40000\n        protection: (0, 0, 0, 0)\n";

    #[test]
    fn a_node_has_room_down_to_the_kernels_headroom_and_for_clean_cache() {
        let (_keep, roots) = folder(&[("proc/zoneinfo", FULL)]);
        let room = room(&roots, 1).unwrap();
        // DMA32 keeps its free pages for those who can use nothing else; of Movable 2,100 pages are
        // free above the low watermark. The kernel's headroom is 1,024 pages.
        assert_eq!(room.free_bytes, (100 + 2100 - 1024) * 4096);
        let full = FULL.replace("3100", "1900");
        let full = parse_room(&full, 1);
        // 100 and 900 pages are free of the 1,024.
        let headroom = Headroom {
            wanted_bytes: 4 << 20,
            lacking_bytes: 24 * 4096,
            room_bytes: Some((35_000 - 4_000 - 2_000) * 4096),
        };
        assert_eq!((full.free_bytes, full.headroom), (0, headroom));
        assert_eq!(room.headroom.lacking_bytes, 0);
        // Of a large node, 4 GiB, it is a part: 16 MiB.
        let large = FULL.replace("managed  40000", "managed  988576").replace("3100", "6000");
        assert_eq!(parse_room(&large, 1).free_bytes, (100 + 5000 - 4096) * 4096);
        assert_eq!(room.list_bytes, 10 * 4096);
        assert_eq!(room.cache_bytes, (35_000 - 4_000 - 2_000) * 4096);
        assert_eq!(room.bytes(), room.free_bytes + room.cache_bytes);
        assert_eq!(room.headroom.room_bytes, Some(room.bytes()));
        let no_node = super::room(&roots, 7).unwrap();
        assert_eq!((no_node.bytes(), no_node.headroom.room_bytes), (0, Some(0)));
        let (_keep, roots) = folder(&[]);
        assert_eq!(super::room(&roots, 1).unwrap(), Room::default());
    }

    #[test]
    fn memory_of_a_node_is_read() {
        let (_keep, roots) = folder(&[(
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:       1048576 kB\nNode 1 MemFree:          524288 kB\n",
        )]);
        let memory = memory(&roots, 1).unwrap().unwrap();
        assert_eq!(memory, NodeMemory { total_bytes: 1 << 30, free_bytes: 512 << 20 });
        assert_eq!(super::memory(&roots, 7).unwrap(), None);
    }

    #[test]
    fn node_memory_without_its_lines_is_malformed() {
        let (_keep, roots) = folder(&[("sys/devices/system/node/node0/meminfo", "Node 0 x\n")]);
        let message = memory(&roots, 0).unwrap_err().to_string();
        assert!(message.contains("node0/meminfo"), "{message}");
    }

    proptest! {
        #[test]
        fn any_zoneinfo_gives_some_room(
            text in "(Node|low|pages free|managed|protection:|nr_active_file|nr_dirty|[0-9]{1,20}|,|\\(| |\n){0,60}",
        ) {
            parse_room(&text, 0);
        }
    }
}
