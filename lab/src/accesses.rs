//! Accesses by memory node, counted exactly by the recorder's plug-in under software emulation.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use terrace_recorder::cache;
use terrace_recorder::launch::default_filter;
use terrace_recorder::nodes::{Accesses, ELSEWHERE, Mark, Marked, NodeCounts, NodeRange, PLACES};
use terrace_recordings::reference::{CacheShape, Filter, Level};

use crate::error::{Doing, LabError};
use crate::machine::{GuestMachine, QemuVersion};

/// Versions of QEMU that report addresses to plug-ins as [`ranges`] gives them: since 8.2 they are
/// guest-physical addresses.
const SINCE: QemuVersion = QemuVersion { major: 6, minor: 1 };
const BEFORE: QemuVersion = QemuVersion { major: 8, minor: 2 };

/// The caches in front of memory: only what misses them reaches memory. Physically indexed; the
/// first two levels are private to a processor, the last is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct CountedCaches {
    /// First level.
    pub l1: CacheShape,
    /// Second level.
    pub l2: CacheShape,
    /// Last level.
    pub llc: CacheShape,
}

impl Default for CountedCaches {
    fn default() -> Self {
        let Filter { l1, l2, llc, .. } = default_filter();
        Self { l1, l2, llc }
    }
}

impl CountedCaches {
    fn filter(&self) -> Filter {
        let Self { l1, l2, llc } = *self;
        Filter { level: Level::Llc, l1, l2, llc, ..default_filter() }
    }
}

/// Address ranges of the two tiers as QEMU's plug-in interface reports them: the place of a block
/// among all blocks of memory, plus its place in the region around it
/// (`qemu_plugin_hwaddr_phys_addr` in QEMU 7.2's plugins/api.c). The machine's blocks come first,
/// in the order of its arguments, and the unused one behind them ([`GuestMachine::qemu_args`]) keeps
/// others out of the second's range.
pub(crate) fn ranges(machine: &GuestMachine) -> [NodeRange; 2] {
    let (fast, slow) = (machine.fast_bytes, machine.slow_bytes);
    [NodeRange { start: 0, bytes: fast }, NodeRange { start: 2 * fast, bytes: slow }]
}

/// The counts of one running machine.
pub(crate) struct Counting {
    file: File,
    counts: NodeCounts,
    plugin: std::path::PathBuf,
    /// Arguments of the plug-in and the files that they name.
    files: [(&'static str, Option<std::path::PathBuf>); 2],
    left_out: u32,
}

impl Counting {
    /// Prepares the counters of a machine that is about to start.
    pub fn new(
        machine: &GuestMachine,
        caches: &CountedCaches,
        qemu: QemuVersion,
    ) -> Result<Self, LabError> {
        if !(SINCE..BEFORE).contains(&qemu) {
            return Err(LabError::Invalid {
                what: "the QEMU that counts accesses",
                got: format!("version {}.{}", qemu.major, qemu.minor),
                expected: "6.1 to 8.1, as Debian 12's 7.2".to_owned(),
            });
        }
        let filter = caches.filter();
        let bad = |got: String, expected: &str| LabError::Invalid {
            what: "the caches before memory",
            got,
            expected: expected.to_owned(),
        };
        cache::check(&filter).map_err(|e| bad(e.to_string(), "possible caches"))?;
        let plugin =
            terrace_recorder::places::plugin(None).map_err(|e| LabError::HostProgramMissing {
                what: "the plug-in that counts accesses".to_owned(),
                remedy: e.to_string(),
            })?;
        let memory = memfd_create("terrace-counts", MemfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .doing("make memory for counts")?;
        let file = File::from(memory);
        file.set_len(NodeCounts::SIZE_BYTES as u64).doing("make memory for counts")?;
        let counts = NodeCounts::map(&file).doing("map the memory for counts")?;
        counts.begin(&ranges(machine), &filter);
        let files =
            [("pages", machine.count_pages.clone()), ("apart", machine.count_apart.clone())];
        Ok(Self { file, counts, plugin, files, left_out: machine.count_after })
    }

    /// QEMU's argument after `-plugin`.
    pub fn plugin_argument(&self) -> String {
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let given = self.files.iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let files = given.map(|(name, path)| {
            // QEMU escapes a comma in a value by doubling it.
            format!(",{name}={}", path.to_string_lossy().replace(',', ",,"))
        });
        let files: String = files.collect();
        format!("{},counts={memory},after={}{files}", self.plugin.display(), self.left_out)
    }

    /// What was counted.
    pub fn finish(self, caches: &CountedCaches) -> Result<AccessCounts, LabError> {
        if !self.counts.has_begun() {
            return Err(LabError::Invalid {
                what: "the plug-in that counts accesses",
                got: "a QEMU that did not load it".to_owned(),
                expected: "a QEMU with plug-ins, such as Debian's qemu-system-x86".to_owned(),
            });
        }
        let (marks, count) = self.counts.marks();
        Ok(AccessCounts::new(caches, &marks, count, &self.counts.now()))
    }
}

/// Accesses of programs, or of the kernel, that went to one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeAccesses {
    /// "fast", "slow", or "elsewhere" for memory that is in no node.
    pub node: &'static str,
    /// Loads.
    pub loads: u64,
    /// Stores; an atomic update is one.
    pub stores: u64,
    /// Accesses that missed the first level.
    pub l1_misses: u64,
    /// Accesses that also missed the second level.
    pub l2_misses: u64,
    /// Loads that missed all caches.
    pub memory_loads: u64,
    /// Stores that missed all caches.
    pub memory_stores: u64,
    /// Dirty lines written back to this node while programs (or the kernel) ran.
    pub write_backs: u64,
    /// Pages of 4 KiB touched; `None` for the sum of several periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_4k: Option<u64>,
    /// Pages of 2 MiB touched; `None` for the sum of several periods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_2m: Option<u64>,
}

/// Accesses between two marks, by programs and by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Window {
    /// By programs: addresses in the lower half.
    pub user: Vec<NodeAccesses>,
    /// By the kernel: addresses in the upper half.
    pub kernel: Vec<NodeAccesses>,
    /// Loads and stores of the fast and of the slow node by programs with the compatible layout
    /// (`setarch -L`), which are recognised by their addresses. Included in `user`.
    pub apart: [u64; 2],
    /// Accesses to devices.
    pub devices: u64,
}

/// Shares of the programs' accesses that went to the fast node; `None` where there were none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FastShares {
    /// Of all loads and stores.
    pub accesses: Option<f64>,
    /// Of loads and stores by programs with the compatible layout (`setarch -L`).
    pub apart: Option<f64>,
    /// Of accesses that reached memory.
    pub memory_accesses: Option<f64>,
    /// Of the pages of 4 KiB touched in a period, summed over the periods.
    pub touched_4k: Option<f64>,
    /// Of the pages of 2 MiB touched in a period, summed over the periods.
    pub touched_2m: Option<f64>,
}

/// All counts of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccessCounts {
    /// The modelled caches: bytes and ways of each level.
    pub caches: [(u64, u32); 3],
    /// From the first mark to the last.
    pub total: Window,
    /// Shares over the whole run.
    pub fast_share: FastShares,
    /// From mark to mark, where there are more than two.
    pub periods: Vec<Window>,
    /// Whether counting ended with a mark; false if the machine ended first.
    pub complete: bool,
    /// Marks beyond the number that is kept.
    pub lost_marks: u64,
}

impl FastShares {
    /// Shares over these windows together.
    #[must_use]
    pub fn of(windows: &[Window]) -> Self {
        let of = |number: fn(&NodeAccesses) -> u64| {
            share([0, 1].map(|node| windows.iter().map(|w| number(&w.user[node])).sum()))
        };
        Self {
            accesses: of(|n| n.loads + n.stores),
            apart: share([0, 1].map(|node| windows.iter().map(|w| w.apart[node]).sum())),
            memory_accesses: of(|n| n.memory_loads + n.memory_stores),
            touched_4k: of(|n| n.touched_4k.unwrap_or(0)),
            touched_2m: of(|n| n.touched_2m.unwrap_or(0)),
        }
    }
}

fn share(parts: [u64; 2]) -> Option<f64> {
    let all = parts[0] + parts[1];
    (all > 0).then(|| parts[0] as f64 / all as f64)
}

fn window(before: &Marked, after: &Marked, pages: Option<&Marked>) -> Window {
    let side = |domain: usize| {
        let mut nodes = Vec::new();
        for (place, name) in [(0, "fast"), (1, "slow"), (ELSEWHERE, "elsewhere")] {
            let Accesses {
                loads,
                stores,
                l1_misses,
                l2_misses,
                memory_loads,
                memory_stores,
                write_backs,
            } = after.accesses[domain][place].since(before.accesses[domain][place]);
            let touched_4k =
                pages.filter(|_| place < PLACES - 1).map(|m| m.base_pages[domain][place]);
            let touched_2m =
                pages.filter(|_| place < PLACES - 1).map(|m| m.huge_pages[domain][place]);
            nodes.push(NodeAccesses {
                node: name,
                loads,
                stores,
                l1_misses,
                l2_misses,
                memory_loads,
                memory_stores,
                write_backs,
                touched_4k,
                touched_2m,
            });
        }
        nodes
    };
    let devices = after.devices.saturating_sub(before.devices);
    let apart = [0, 1].map(|place| after.apart[place].saturating_sub(before.apart[place]));
    Window { user: side(0), kernel: side(1), apart, devices }
}

impl AccessCounts {
    fn new(caches: &CountedCaches, marks: &[Marked], count: u64, now: &Marked) -> Self {
        let begin = marks.iter().position(|m| m.mark == Mark::Begin);
        let marks = begin.map_or(&[][..], |begin| &marks[begin..]);
        let end = marks.iter().position(|m| m.mark == Mark::End);
        let marks = &marks[..end.map_or(marks.len(), |end| end + 1)];
        let first = marks.first().unwrap_or(now);
        let last = if end.is_some() { marks.last().unwrap_or(now) } else { now };
        let one = if let [_, only] = marks { Some(only) } else { None };
        let periods: Vec<Window> =
            marks.windows(2).map(|pair| window(&pair[0], &pair[1], Some(&pair[1]))).collect();
        let total = window(first, last, one);
        let fast_share = if end.is_some() {
            FastShares::of(&periods)
        } else {
            FastShares::of(std::slice::from_ref(&total))
        };
        let shape = |s: CacheShape| (s.size_bytes, s.ways);
        Self {
            caches: [shape(caches.l1), shape(caches.l2), shape(caches.llc)],
            fast_share,
            total,
            periods: if periods.len() > 1 { periods } else { Vec::new() },
            complete: end.is_some(),
            lost_marks: count.saturating_sub(terrace_recorder::nodes::MARKS as u64),
        }
    }

    /// A summary in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let percent = |share: Option<f64>| {
            share.map_or_else(|| "none".to_owned(), |s| format!("{:.1} %", 100.0 * s))
        };
        let FastShares { accesses, apart, memory_accesses, touched_4k, touched_2m } =
            self.fast_share;
        let apart = apart.map(|share| format!(", {} of the program apart", percent(Some(share))));
        let all = |n: &NodeAccesses| n.loads + n.stores;
        format!(
            "programs made {} loads and stores of fast memory and {} of slow: {} fast; {} of those that reached memory, {} of the 4 KiB pages touched, {} of the 2 MiB pages{}{}",
            all(&self.total.user[0]),
            all(&self.total.user[1]),
            percent(accesses),
            percent(memory_accesses),
            percent(touched_4k),
            percent(touched_2m),
            apart.unwrap_or_default(),
            if self.complete { "" } else { "; the machine ended before counting did" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(mark: Mark, fast_loads: u64, slow_stores: u64, touched: [u64; 2]) -> Marked {
        let mut accesses = [[Accesses::default(); PLACES]; 2];
        accesses[0][0].loads = fast_loads;
        accesses[0][1].stores = slow_stores;
        let mut base_pages = [[0; PLACES]; 2];
        (base_pages[0][0], base_pages[0][1]) = (touched[0], touched[1]);
        let mut apart = [0; PLACES];
        (apart[0], apart[1]) = (fast_loads / 2, slow_stores / 2);
        Marked { mark, accesses, base_pages, huge_pages: base_pages, apart, devices: 0 }
    }

    #[test]
    fn counts_are_differences_between_marks() {
        let caches = CountedCaches::default();
        let marks = [
            marked(Mark::Begin, 10, 10, [9, 9]),
            marked(Mark::Period, 40, 10, [3, 0]),
            marked(Mark::End, 40, 20, [0, 1]),
            marked(Mark::Begin, 99, 99, [0, 0]),
        ];
        let counts = AccessCounts::new(&caches, &marks, 4, &marks[3]);
        assert!(counts.complete);
        assert_eq!((counts.total.user[0].loads, counts.total.user[1].stores), (30, 10));
        assert_eq!(counts.fast_share.accesses, Some(0.75));
        assert_eq!((counts.total.apart, counts.fast_share.apart), ([15, 5], Some(0.75)));
        assert_eq!(counts.fast_share.touched_4k, Some(0.75));
        assert_eq!(counts.fast_share.memory_accesses, None);
        assert_eq!(counts.periods.len(), 2);
        assert_eq!(counts.periods[1].user[1].touched_4k, Some(1));
        assert_eq!(counts.total.user[0].touched_4k, None, "a page may be in both periods");
        // The machine ended first.
        let counts = AccessCounts::new(&caches, &marks[..1], 1, &marks[3]);
        assert!(!counts.complete && counts.line().contains("ended before"));
        assert_eq!(counts.total.user[0].loads, 89);
        // No mark was made.
        let counts = AccessCounts::new(&caches, &[], 0, &marks[3]);
        assert_eq!((counts.total.user[0].loads, counts.complete), (0, false));
    }

    #[test]
    fn only_qemus_whose_addresses_are_known_count() {
        let old = QemuVersion { major: 9, minor: 0 };
        let made = Counting::new(&GuestMachine::default(), &CountedCaches::default(), old);
        assert!(made.err().unwrap().to_string().contains("9.0"));
    }
}
