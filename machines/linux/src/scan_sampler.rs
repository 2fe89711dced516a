//! Reads accessed bits with the Terrace kernel's scan (`TM_SCAN`).
//!
//! A scan reads and clears the bits of a range in one walk over its page table, and the kernel
//! keeps for it those that reclaim clears meanwhile. So multi-generational LRU may stay on, nothing
//! is set up for a new layout, and no kernel thread or trace instance is needed. It says as well
//! which pages are on the kernel's active lists.
//!
//! The watch over a process ends with this sampler or with the process. Should a run be killed, it
//! stays until the process ends: 64 bytes for each 2 MB in use.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize, SpaceId};

use crate::files::FileError;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::tiermem::{self, Device, ScanEntry, Target};

/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);
/// What a scan's entry is about.
const BLOCK: u64 = PageSize::Huge.bytes();

/// The scan of some processes.
pub(crate) struct ScanSampler {
    device: Arc<Device>,
    period: Duration,
    layout: Option<Layout>,
    /// The processes under watch.
    processes: BTreeMap<u32, OwnedFd>,
}

impl ScanSampler {
    /// With a device that can scan.
    pub(crate) fn new(device: Arc<Device>, period: Duration) -> Self {
        ScanSampler { device, period, layout: None, processes: BTreeMap::new() }
    }

    /// Reads and clears all bits. `None` when no process of the layout is left.
    fn scan(&mut self) -> Option<Observed> {
        let layout = self.layout.as_ref()?;
        let mut accessed = PageBits::new(layout.pages());
        let mut active = PageBits::new(layout.pages());
        let mut alive = false;
        for (space, range) in spans(layout) {
            let Some(process) = self.processes.get(&space.0) else { continue };
            let target = Target::Process(process.as_fd());
            let take = |entry: &ScanEntry| note(layout, space, entry, &mut accessed, &mut active);
            match self.device.scan(target, range, take) {
                Ok(()) => alive = true,
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                // What was not observed looks unused: as with a process that is ending.
                Err(error) => tracing::warn!(pid = space.0, %error, "a scan failed"),
            }
        }
        alive.then_some(Observed { accessed, active: Some(active) })
    }
}

/// The spaces of a layout, each with the range that holds its pages, out to multiples of 2 MB.
fn spans(layout: &Layout) -> Vec<(SpaceId, std::ops::Range<u64>)> {
    let bytes = layout.page_size().bytes();
    let mut spans: Vec<(SpaceId, std::ops::Range<u64>)> = Vec::new();
    for extent in layout.extents() {
        let end = (extent.start + extent.pages * bytes).next_multiple_of(BLOCK);
        match spans.last_mut() {
            Some((space, range)) if *space == extent.space => range.end = end,
            _ => spans.push((extent.space, extent.start / BLOCK * BLOCK..end)),
        }
    }
    spans
}

/// Sets the bits of the pages that an entry says were accessed, and of those that are active. A
/// huge page is what one of its base pages is, where it is mapped by those.
fn note(
    layout: &Layout,
    space: SpaceId,
    entry: &ScanEntry,
    accessed: &mut PageBits,
    active: &mut PageBits,
) {
    for (of_entry, of_layout) in [(&entry.bits, accessed), (&entry.active, active)] {
        let mut set = |address: u64| {
            if let Some(index) = layout.index(space, address) {
                of_layout.set(index, true);
            }
        };
        match layout.page_size() {
            PageSize::Huge if of_entry.iter().any(|&bits| bits != 0) => set(entry.addr),
            PageSize::Huge => {}
            PageSize::Base => {
                for (word, &bits) in of_entry.iter().enumerate() {
                    let mut bits = bits;
                    while bits != 0 {
                        let page = word as u64 * 64 + u64::from(bits.trailing_zeros());
                        set(entry.addr + page * PageSize::Base.bytes());
                        bits &= bits - 1;
                    }
                }
            }
        }
    }
}

impl Sampler for ScanSampler {
    fn name(&self) -> &'static str {
        "tiermem"
    }

    fn start(&mut self, layout: &Layout) -> Result<(), StepError> {
        let spaces: Vec<u32> = spans(layout).into_iter().map(|(space, _)| space.0).collect();
        // Those that left the group are let go of; the tracker asks again for those that died.
        self.processes.retain(|pid, process| {
            let stays = spaces.contains(pid);
            if !stays {
                let _ = self.device.unwatch(Target::Process(process.as_fd()));
            }
            stays
        });
        for pid in spaces {
            // Anew each time: a number may have got another process.
            match tiermem::process(pid) {
                Ok(process) => self.processes.insert(pid, process),
                Err(_) => self.processes.remove(&pid),
            };
        }
        self.layout = Some(layout.clone());
        // What was accessed before the first period is nobody's.
        let _ = self.scan();
        Ok(())
    }

    fn wait(&mut self, since: Instant, stopped: &dyn Fn() -> bool) -> Result<Waited, StepError> {
        let due = since + self.period;
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            if stopped() {
                return Ok(Waited::Stopped);
            }
            std::thread::sleep(left.min(SLICE));
        }
        // Asked for late, the bits of several periods come as one.
        let late = since.elapsed().as_secs_f64() / self.period.as_secs_f64();
        match self.scan() {
            Some(observed) => {
                Ok(Waited::Complete { observed, superseded: (late as u32).saturating_sub(1) })
            }
            None => Ok(Waited::Lost {
                periods: 1,
                reason: "the group's processes ended".to_owned(),
                is_over: true,
            }),
        }
    }

    fn stop(&mut self) -> Result<(), FileError> {
        for process in std::mem::take(&mut self.processes).into_values() {
            // A process that has ended is not watched any more.
            let _ = self.device.unwatch(Target::Process(process.as_fd()));
        }
        self.layout = None;
        Ok(())
    }
}

impl Drop for ScanSampler {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::page::Extent;

    fn layout(page_size: PageSize, extents: &[(u32, u64, u64)]) -> Layout {
        let extent = |&(space, start, pages): &_| Extent { space: SpaceId(space), start, pages };
        Layout::new(page_size, extents.iter().map(extent).collect()).unwrap()
    }

    #[test]
    fn each_space_is_scanned_from_its_first_page_to_its_last() {
        let base =
            layout(PageSize::Base, &[(4, BLOCK + 0x5000, 2), (4, 9 * BLOCK, 1), (7, 0, 512)]);
        let expected = [(SpaceId(4), BLOCK..10 * BLOCK), (SpaceId(7), 0..BLOCK)];
        assert_eq!(spans(&base), expected);
        let huge = layout(PageSize::Huge, &[(4, 3 * BLOCK, 2)]);
        assert_eq!(spans(&huge), [(SpaceId(4), 3 * BLOCK..5 * BLOCK)]);
    }

    #[test]
    fn bits_find_their_pages_and_no_others() {
        let base = layout(PageSize::Base, &[(4, BLOCK + 0x5000, 2), (4, BLOCK + 65 * 0x1000, 1)]);
        let mut accessed = PageBits::new(base.pages());
        let mut active = PageBits::new(base.pages());
        let mut entry = ScanEntry { addr: BLOCK, ..ScanEntry::default() };
        // Pages 4 and 511 of the block are not of the layout.
        entry.bits[0] = 1 << 4 | 1 << 6;
        entry.bits[1] = 1 << 1;
        entry.bits[7] = 1 << 63;
        entry.active[0] = 1 << 5;
        note(&base, SpaceId(4), &entry, &mut accessed, &mut active);
        assert_eq!(accessed.iter_ones().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(active.iter_ones().collect::<Vec<_>>(), [0]);
        let all = ScanEntry { bits: [u64::MAX; 8], active: [u64::MAX; 8], ..entry };
        note(&base, SpaceId(5), &all, &mut accessed, &mut active);
        assert_eq!((accessed.count(), active.count()), (2, 1));

        let huge = layout(PageSize::Huge, &[(4, BLOCK, 2)]);
        let mut accessed = PageBits::new(huge.pages());
        let mut active = PageBits::new(huge.pages());
        let idle = ScanEntry { bits: [0; 8], ..entry };
        note(&huge, SpaceId(4), &idle, &mut accessed, &mut active);
        assert_eq!((accessed.count(), active.count()), (0, 1));
        note(&huge, SpaceId(4), &entry, &mut accessed, &mut active);
        assert_eq!(accessed.iter_ones().collect::<Vec<_>>(), [0]);
    }
}
