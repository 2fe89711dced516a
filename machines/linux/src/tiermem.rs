//! `/dev/tiermem` of the Terrace kernel: mechanisms that a stock kernel lacks.
//!
//! Nothing is assumed: [`Device::open`] checks whether the kernel has the device, and
//! [`Device::features`] returns the mechanisms it was built with.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::pagemap::ADDRESS_END;
use crate::tiermem_raw as raw;
pub use crate::tiermem_raw::ScanEntry;

/// A descriptor of a process, for [`Target::Process`].
pub fn process(pid: u32) -> std::io::Result<OwnedFd> {
    raw::pidfd_of(pid)
}

impl ScanEntry {
    /// Mapped as a whole by one entry, with one accessed bit.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// The device.
pub const DEVICE: &str = "/dev/tiermem";

/// The supported version of the interface.
const ABI: u32 = 1;

/// Why the device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TiermemError {
    /// The kernel is another one.
    #[error(
        "no {DEVICE}: this kernel is not the Terrace kernel; boot one that 'make kernel' or 'make \
         kernel-deb' built, or use 'terrace lab --kernel terrace'"
    )]
    Absent,
    /// No permission.
    #[error("{DEVICE}: permission denied; run as root")]
    Denied,
    /// It is newer or older than this program.
    #[error("{DEVICE} speaks version {got} of its interface, expected {ABI}; use matching ones")]
    Version {
        /// Its version.
        got: u32,
    },
    /// The kernel refused.
    #[error("cannot {doing}: {source}")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The error of the kernel.
        source: std::io::Error,
    },
}

/// The mechanisms that a kernel was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Placement of page-table pages by level.
    #[must_use]
    pub fn page_table_policy(self) -> bool {
        self.0 & 1 != 0
    }

    /// Migration of tables of the last level.
    #[must_use]
    pub fn page_table_migration(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    /// Migration of lists of pages, whose batches are copied together.
    #[must_use]
    pub fn migrate(self) -> bool {
        self.0 & 1 << 2 != 0
    }

    /// Exchange of pages.
    #[must_use]
    pub fn exchange(self) -> bool {
        self.0 & 1 << 3 != 0
    }

    /// Scans of accessed bits that keep those that reclaim clears.
    #[must_use]
    pub fn scan(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    /// Scans that drop translations, so that every later access shows.
    #[must_use]
    pub fn scan_flush(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// Each mechanism: its name, what it does, and whether this kernel has it.
    pub fn all(self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        [
            ("page-table-policy", "places page-table pages by level", self.page_table_policy()),
            (
                "page-table-migration",
                "moves tables of the last level, by themselves after data",
                self.page_table_migration(),
            ),
            ("migrate", "moves lists of pages, copied in batches", self.migrate()),
            ("exchange", "exchanges pairs of pages", self.exchange()),
            ("scan", "reads accessed bits, those cleared by reclaim included", self.scan()),
            ("debug", "can be made to lose data, for tests", self.debug()),
        ]
        .into_iter()
    }

    /// The kernel is one for tests, and can be made to lose data.
    #[must_use]
    pub fn debug(self) -> bool {
        self.0 & 1 << 63 != 0
    }
}

/// Whose memory a call is about.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// The calling process.
    This,
    /// Another, by a descriptor from `pidfd_open(2)`.
    Process(BorrowedFd<'a>),
}

impl Target<'_> {
    fn pidfd(self) -> i32 {
        match self {
            Self::This => -1,
            Self::Process(pidfd) => pidfd.as_raw_fd(),
        }
    }
}

/// Placement of page-table pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablePlace {
    /// By the policy for the data of the task that needs one.
    Default,
    /// On the nodes of the top tier.
    Fast,
    /// On this node.
    Node(u32),
}

/// Levels of the page table, as bits from the one that maps base pages (`TM_PT_LEVEL_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels(pub u32);

impl Levels {
    /// All but the one that maps base pages: the binding of Radiant's BHi (section 4.1).
    pub const UPPER: Self = Self(0x1e);
    /// All.
    pub const ALL: Self = Self(0x1f);
}

/// The policy for a process's page-table pages. Children and programs executed inherit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePolicy {
    /// Their placement.
    pub place: TablePlace,
    /// Their levels.
    pub levels: Levels,
    /// Never elsewhere: an allocation then reclaims, and in the end kills a process.
    pub hard: bool,
    /// Tables of the last level follow data that migrates to another tier.
    pub follow: bool,
}

/// Entries of 2 MB in one call of a scan: 22 KB of answers.
const SCAN_ENTRIES: usize = 128;
const SCAN_CLEAR: u32 = 1;
const SCAN_WATCH: u32 = 1 << 1;
const SCAN_FLUSH: u32 = 1 << 3;
/// Of an entry: mapped as a whole, with one accessed bit.
pub const SCAN_HUGE: u16 = 1;
const SCAN_UNWATCH: u32 = 1 << 2;

const SET: u32 = 1;
const HARD: u32 = 1 << 1;
const FOLLOW: u32 = 1 << 2;

/// The open device.
#[derive(Debug)]
pub struct Device {
    file: File,
    features: Features,
    nodes: u32,
}

impl Device {
    /// Opens the device of this machine.
    pub fn open() -> Result<Self, TiermemError> {
        Self::open_at(Path::new(DEVICE))
    }

    /// Opens a device that may be elsewhere.
    pub fn open_at(path: &Path) -> Result<Self, TiermemError> {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let file =
            File::options().read(true).write(true).open(path).map_err(|e| match e.kind() {
                NotFound => TiermemError::Absent,
                PermissionDenied => TiermemError::Denied,
                _ => TiermemError::Refused { doing: "open /dev/tiermem", source: e },
            })?;
        let info = raw::info(file.as_fd()).map_err(|e| TiermemError::Refused {
            doing: "ask /dev/tiermem what it can do",
            source: e,
        })?;
        if info.abi != ABI {
            return Err(TiermemError::Version { got: info.abi });
        }
        Ok(Self { file, features: Features(info.features), nodes: info.nr_nodes })
    }

    /// The mechanisms of this kernel.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Sets where page-table pages are allocated from now on. Existing ones stay.
    pub fn set_table_policy(
        &self,
        target: Target<'_>,
        policy: TablePolicy,
    ) -> Result<(), TiermemError> {
        let (mode, node) = match policy.place {
            TablePlace::Default => (0, -1),
            TablePlace::Fast => (1, -1),
            TablePlace::Node(node) => (2, i32::try_from(node).unwrap_or(i32::MAX)),
        };
        let hard = if policy.hard { HARD } else { 0 };
        let follow = if policy.follow { FOLLOW } else { 0 };
        let mut argument = raw::PtPolicy {
            pidfd: target.pidfd(),
            flags: SET | hard | follow,
            mode,
            levels: if mode == 0 { 0 } else { policy.levels.0 },
            node,
            ..raw::PtPolicy::default()
        };
        raw::pt_policy(self.file.as_fd(), &mut argument)
            .map_err(|source| TiermemError::Refused { doing: "place page tables", source })
    }

    /// The current policy.
    pub fn table_policy(&self, target: Target<'_>) -> Result<TablePolicy, TiermemError> {
        let mut argument = raw::PtPolicy { pidfd: target.pidfd(), ..raw::PtPolicy::default() };
        raw::pt_policy(self.file.as_fd(), &mut argument).map_err(|source| {
            TiermemError::Refused { doing: "read the policy for page tables", source }
        })?;
        Ok(TablePolicy {
            place: match argument.mode {
                1 => TablePlace::Fast,
                2 => TablePlace::Node(u32::try_from(argument.node).unwrap_or_default()),
                _ => TablePlace::Default,
            },
            levels: Levels(argument.levels),
            hard: argument.flags & HARD != 0,
            follow: argument.flags & FOLLOW != 0,
        })
    }

    /// Page-table pages of a process: by level, from the one that maps base pages, and by node.
    pub fn table_pages(&self, target: Target<'_>) -> Result<[Vec<u64>; 5], TiermemError> {
        let mut counts = vec![0; 5 * self.nodes as usize];
        raw::pt_stat(self.file.as_fd(), target.pidfd(), 0, 0, self.nodes, &mut counts)
            .map_err(|source| TiermemError::Refused { doing: "count page tables", source })?;
        let rows: Vec<Vec<u64>> =
            counts.chunks_exact(self.nodes as usize).map(<[u64]>::to_vec).collect();
        rows.try_into().map_err(|_| TiermemError::Version { got: 0 })
    }

    /// Moves the pages at these addresses to a node. `shared` moves those that other processes map
    /// too. Writes 0 for each page that is on the node afterwards, or a negated errno.
    pub fn migrate(
        &self,
        target: Target<'_>,
        addresses: &[u64],
        node: u32,
        shared: bool,
        status: &mut [i32],
    ) -> std::io::Result<u32> {
        let node = i32::try_from(node).unwrap_or(i32::MAX);
        let flags = u32::from(shared);
        raw::migrate(self.file.as_fd(), target.pidfd(), addresses, node, flags, status)
    }

    /// Exchanges the pages at `a[i]` and `b[i]`, on different nodes. Writes 0 or a negated errno
    /// for each pair; returns the number of exchanged pairs.
    pub fn exchange(
        &self,
        target: Target<'_>,
        a: &[u64],
        b: &[u64],
        shared: bool,
        status: &mut [i32],
    ) -> std::io::Result<u32> {
        raw::exchange(self.file.as_fd(), target.pidfd(), a, b, u32::from(shared), status)
    }

    /// Reads and clears the accessed bits of a range whose ends are multiples of 2 MB, and makes
    /// the kernel record those that reclaim clears until the next call. `take` is called for each 2
    /// MB that has anything, ascending. With `flush` translations of the range are dropped then, where
    /// the kernel can: a page whose translation a processor has kept would not show its next access.
    pub fn scan(
        &self,
        target: Target<'_>,
        range: std::ops::Range<u64>,
        flush: bool,
        mut take: impl FnMut(&ScanEntry),
    ) -> std::io::Result<()> {
        let flush = if flush && self.features.scan_flush() { SCAN_FLUSH } else { 0 };
        let mut entries = [ScanEntry::default(); SCAN_ENTRIES];
        let mut start = range.start;
        // A length of 0 is for all that is left. The last 2 MB of a program's addresses lack a page,
        // so that no multiple of 2 MB ends with them; without randomization its stack is there.
        let mut to_the_end = false;
        while start < range.end {
            let mut scan = raw::Scan {
                pidfd: target.pidfd(),
                start,
                len: if to_the_end { 0 } else { range.end - start },
                flags: SCAN_CLEAR | SCAN_WATCH | flush,
                ..raw::Scan::default()
            };
            match raw::scan(self.file.as_fd(), &mut scan, &mut entries) {
                Ok(()) => {}
                Err(e)
                    if e.kind() == std::io::ErrorKind::InvalidInput
                        && range.end > ADDRESS_END
                        && !to_the_end =>
                {
                    to_the_end = true;
                    continue;
                }
                Err(e) => return Err(e),
            }
            entries.iter().take(scan.filled as usize).for_each(&mut take);
            if to_the_end && scan.next >= ADDRESS_END {
                break;
            }
            if scan.next <= start {
                return Err(std::io::Error::other("the kernel's scan makes no progress"));
            }
            start = scan.next;
        }
        Ok(())
    }

    /// Stops the recording that [`Device::scan`] starts for a process.
    pub fn unwatch(&self, target: Target<'_>) -> std::io::Result<()> {
        let mut scan =
            raw::Scan { pidfd: target.pidfd(), flags: SCAN_UNWATCH, ..raw::Scan::default() };
        raw::scan(self.file.as_fd(), &mut scan, &mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_device_is_reported_with_its_remedy() {
        let error = Device::open_at(Path::new("/dev/no-such-tiermem")).unwrap_err().to_string();
        assert!(error.contains("make kernel") && error.contains("terrace lab"), "{error}");
    }

    #[test]
    fn something_else_in_its_place_is_refused() {
        let error = Device::open_at(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(error, TiermemError::Refused { .. }), "{error}");
    }
}
