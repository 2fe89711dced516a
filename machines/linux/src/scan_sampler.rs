//! Reads accessed bits with the Terrace kernel's scan (`TM_SCAN`).
//!
//! A scan reads and clears the bits of a range in one walk over its page table, and the kernel
//! keeps for it those that reclaim clears meanwhile. So multi-generational LRU may stay on, nothing
//! is set up for a new layout, and no kernel thread or trace instance is needed. It also reports
//! which pages are on the kernel's active lists.
//!
//! The kernel stops recording for a process when this sampler or the process ends. After a run that
//! was killed it goes on until the process ends: 64 bytes for each 2 MB in use.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{Layout, PageSize, SpaceId};

use crate::files::FileError;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::sampling::{Samples, Sampling};
use crate::tiermem::{self, Device, ScanEntry, Target};

/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);
/// Bytes of an entry of a scan.
const BLOCK: u64 = PageSize::Huge.bytes();

/// The reader of accessed bits: the device, or that of a test.
pub(crate) trait BitReader: Send + Sync {
    /// A descriptor of a process.
    fn process(&self, pid: u32) -> io::Result<OwnedFd>;

    /// Reads and clears the bits of a range: see [`Device::scan`].
    fn scan(
        &self,
        target: Target<'_>,
        range: Range<u64>,
        take: &mut dyn FnMut(&ScanEntry),
    ) -> io::Result<()>;

    /// Stops recording for a process.
    fn unwatch(&self, target: Target<'_>) -> io::Result<()>;
}

impl BitReader for Device {
    fn process(&self, pid: u32) -> io::Result<OwnedFd> {
        tiermem::process(pid)
    }

    fn scan(
        &self,
        target: Target<'_>,
        range: Range<u64>,
        take: &mut dyn FnMut(&ScanEntry),
    ) -> io::Result<()> {
        Device::scan(self, target, range, take)
    }

    fn unwatch(&self, target: Target<'_>) -> io::Result<()> {
        Device::unwatch(self, target)
    }
}

/// Base pages of a range.
const PAGES_OF_RANGE: u32 = 512;

/// Weight of a sample in a range's count: a count is in eighths of a range's base pages.
const LOOKS_OF_RANGE: u8 = 8;

/// The scan of some processes.
pub(crate) struct ScanSampler {
    reader: Arc<dyn BitReader>,
    period: Duration,
    sampling: Sampling,
    layout: Option<Layout>,
    /// For each page that is a range, the accessed ones of its base pages in the last scan, as if
    /// all of them were mapped; empty if pages are no ranges.
    accessed_of_range: Vec<u16>,
    is_by_range: bool,
    /// The processes that the kernel records for.
    processes: BTreeMap<u32, OwnedFd>,
}

fn ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

impl ScanSampler {
    /// Uses a device that can scan.
    pub(crate) fn new(reader: Arc<dyn BitReader>, period: Duration, samples: Samples) -> Self {
        let sampling = Sampling::new(period, samples);
        ScanSampler {
            reader,
            period,
            sampling,
            layout: None,
            accessed_of_range: Vec::new(),
            is_by_range: samples == Samples::OfParts,
            processes: BTreeMap::new(),
        }
    }

    /// Reads and clears all bits. `Ok(None)` when no process of the layout is left. If one cannot
    /// be read, the whole scan fails: its pages would look unused.
    fn scan(&mut self) -> Result<Option<Observed>, StepError> {
        let Some(layout) = self.layout.as_ref() else { return Ok(None) };
        let mut accessed = PageBits::new(layout.pages());
        let mut active = PageBits::new(layout.pages());
        let mut alive = false;
        let of_range = &mut self.accessed_of_range;
        of_range.clear();
        of_range.resize(if self.is_by_range { layout.pages() } else { 0 }, 0);
        for (space, range) in spans(layout) {
            let Some(process) = self.processes.get(&space.0) else { continue };
            let target = Target::Process(process.as_fd());
            let mut take = |entry: &ScanEntry| {
                note(layout, space, entry, &mut accessed, &mut active);
                if !of_range.is_empty()
                    && let Some(page) = layout.index(space, entry.addr)
                {
                    let (of, all) = (u32::from(entry.accessed), u32::from(entry.present.max(1)));
                    of_range[page] = (of * PAGES_OF_RANGE).div_ceil(all).min(PAGES_OF_RANGE) as u16;
                }
            };
            match self.reader.scan(target, range, &mut take) {
                Ok(()) => alive = true,
                Err(e) if ended(&e) => {}
                Err(source) => return Err(StepError::Process { pid: space.0, source }),
            }
        }
        Ok(alive.then_some(Observed { accessed, counts: None, active: Some(active) }))
    }

    fn begin(&mut self, layout: &Layout) -> Result<(), StepError> {
        let spaces: Vec<u32> = spans(layout).into_iter().map(|(space, _)| space.0).collect();
        // Processes that left the group are dropped; the tracker handles those that died.
        self.processes.retain(|pid, process| {
            let stays = spaces.contains(pid);
            if !stays {
                let _ = self.reader.unwatch(Target::Process(process.as_fd()));
            }
            stays
        });
        for pid in spaces {
            // Opened again each time: the number may belong to another process.
            match self.reader.process(pid) {
                Ok(process) => self.processes.insert(pid, process),
                Err(e) if ended(&e) => self.processes.remove(&pid),
                Err(source) => return Err(StepError::Process { pid, source }),
            };
        }
        self.sampling.set_pages(layout.pages());
        self.layout = Some(layout.clone());
        // Accesses before the first period are dropped.
        self.scan().map(drop)
    }
}

/// The samples of a period.
#[derive(Default)]
struct Tally {
    samples: u8,
    counts: Vec<u8>,
    /// Accessed base pages of each range, summed over all samples.
    of_range: Vec<u32>,
}

impl Tally {
    fn add(&mut self, accessed: &PageBits, of_range: &[u16]) {
        self.counts.resize(accessed.len(), 0);
        self.of_range.resize(of_range.len(), 0);
        self.samples = self.samples.saturating_add(1);
        accessed
            .iter_ones()
            .for_each(|page| self.counts[page] = self.counts[page].saturating_add(1));
        for (sum, &pages) in self.of_range.iter_mut().zip(of_range) {
            *sum += u32::from(pages);
        }
    }

    /// Accessed pages and their counts: for a range the share of its base pages.
    fn counts(self, interval: Duration) -> (PageBits, AccessCounts) {
        let accessed = self.counts.iter().map(|&count| count > 0).collect();
        let interval_us = interval.as_micros() as u32;
        if self.of_range.is_empty() {
            let counts = self.counts.into();
            return (accessed, AccessCounts { samples: self.samples, interval_us, counts });
        }
        let weight = LOOKS_OF_RANGE.min(u8::MAX / self.samples.max(1));
        let of = |sum: u32| (sum * u32::from(weight)).div_ceil(PAGES_OF_RANGE) as u8;
        let counts = self.of_range.into_iter().map(of).collect();
        (accessed, AccessCounts { samples: self.samples * weight, interval_us, counts })
    }
}

/// The address spaces of a layout, each with the range of its pages, extended to multiples of 2 MB.
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

/// Sets the bits of the pages that an entry reports as accessed, and of those that are active. A
/// huge page that is mapped by base pages is accessed if one of them is.
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
        let begun = self.begin(layout);
        if begun.is_err() {
            self.stop()?;
        }
        begun
    }

    fn wait(
        &mut self,
        since: Instant,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, StepError> {
        let (samples, interval) = (self.sampling.samples(), self.sampling.interval());
        let mut tally = Tally::default();
        // Samples that came due while pages were moved are part of the first.
        let missed = (since.elapsed().as_nanos() / interval.as_nanos().max(1)) as u32;
        let first = (missed + 1).min(samples.into());
        for sample in first..=u32::from(samples) {
            let due = since + interval * sample;
            while let Some(left) =
                due.checked_duration_since(Instant::now()).filter(|l| !l.is_zero())
            {
                if stopped() {
                    return Ok(Waited::Stopped);
                }
                std::thread::sleep(left.min(SLICE));
            }
            if sample == u32::from(samples) {
                break;
            }
            // An error is ignored until the last sample, which reports it.
            if let Ok(Some(observed)) = self.scan() {
                tally.add(&observed.accessed, &self.accessed_of_range);
            }
        }
        // Called late, it gets the bits of several periods as one.
        let late = since.elapsed().as_secs_f64() / self.period.as_secs_f64();
        let lost = |reason, is_over| Ok(Waited::Lost { periods: 1, reason, is_over });
        match self.scan() {
            Ok(Some(mut observed)) => {
                if samples > 1 {
                    tally.add(&observed.accessed, &self.accessed_of_range);
                    let (accessed, counts) = tally.counts(interval);
                    self.sampling.follow(&counts.counts, counts.samples);
                    (observed.accessed, observed.counts) = (accessed, Some(counts));
                }
                Ok(Waited::Complete { observed, superseded: (late as u32).saturating_sub(1) })
            }
            Ok(None) => lost("the group's processes ended".to_owned(), true),
            // The next scan has the bits of this period too.
            Err(error) => lost(error.to_string(), false),
        }
    }

    fn interval(&self) -> Duration {
        self.sampling.interval()
    }

    fn stop(&mut self) -> Result<(), FileError> {
        for process in std::mem::take(&mut self.processes).into_values() {
            // A process that has ended needs no call.
            let _ = self.reader.unwatch(Target::Process(process.as_fd()));
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
    use std::collections::BTreeSet;
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use terrace_core::page::Extent;

    fn layout(page_size: PageSize, extents: &[(u32, u64, u64)]) -> Layout {
        let extent = |&(space, start, pages): &_| Extent { space: SpaceId(space), start, pages };
        Layout::new(page_size, extents.iter().map(extent).collect()).unwrap()
    }

    /// A device whose call number `fail_at` fails.
    #[derive(Default)]
    struct Faulty {
        calls: AtomicUsize,
        fail_at: Mutex<Option<(usize, i32)>>,
        watched: Mutex<BTreeSet<i32>>,
    }

    impl Faulty {
        fn call(&self) -> io::Result<()> {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            match *self.fail_at.lock().unwrap() {
                Some((at, errno)) if at == number => Err(io::Error::from_raw_os_error(errno)),
                _ => Ok(()),
            }
        }

        fn arm(&self, fault: Option<(usize, i32)>) {
            self.calls.store(0, Ordering::Relaxed);
            *self.fail_at.lock().unwrap() = fault;
        }

        fn number(target: Target<'_>) -> i32 {
            let Target::Process(fd) = target else { panic!("no process") };
            fd.as_raw_fd()
        }
    }

    impl BitReader for Faulty {
        fn process(&self, _: u32) -> io::Result<OwnedFd> {
            self.call()?;
            Ok(std::fs::File::open("/dev/null")?.into())
        }

        fn scan(
            &self,
            target: Target<'_>,
            _: Range<u64>,
            _: &mut dyn FnMut(&ScanEntry),
        ) -> io::Result<()> {
            self.call()?;
            self.watched.lock().unwrap().insert(Self::number(target));
            Ok(())
        }

        fn unwatch(&self, target: Target<'_>) -> io::Result<()> {
            self.watched.lock().unwrap().remove(&Self::number(target));
            Ok(())
        }
    }

    /// Each call of the device with each error: no recording is left, the next attempt succeeds,
    /// and no unread page is reported as unused.
    #[test]
    fn the_count_of_a_range_is_the_share_of_its_base_pages() {
        let mut tally = Tally::default();
        let all: PageBits = [true, true, true].into_iter().collect();
        for of_range in [[512, 64, 1], [512, 64, 0], [512, 0, 0], [512, 0, 0]] {
            tally.add(&all, &of_range);
        }
        let (_, counts) = tally.counts(Duration::from_millis(25));
        assert_eq!((counts.samples, counts.interval_us), (32, 25_000));
        // All of 4 times 512, 128 of them, and one, which counts.
        assert_eq!(*counts.counts, [32, 2, 1]);
    }

    #[test]
    fn an_error_of_any_call_leaves_no_process_watched_and_no_page_looking_unused() {
        let two = layout(PageSize::Huge, &[(4, 3 * BLOCK, 2), (7, BLOCK, 1)]);
        let reader = Arc::new(Faulty::default());
        let mut sampler = ScanSampler::new(
            Arc::clone(&reader) as Arc<dyn BitReader>,
            Duration::ZERO,
            Samples::One,
        );
        let mut injected = 0;
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EIO] {
            // Two descriptors and two scans at the start, two scans in a period.
            for at in 0..4 {
                reader.arm(Some((at, errno)));
                assert!(sampler.start(&two).is_err(), "call {at}");
                assert!(reader.watched.lock().unwrap().is_empty(), "call {at}");
                reader.arm(None);
                sampler.start(&two).unwrap();
                sampler.stop().unwrap();
                injected += 1;
            }
            reader.arm(None);
            sampler.start(&two).unwrap();
            for at in 0..2 {
                reader.arm(Some((at, errno)));
                let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
                assert!(matches!(waited, Waited::Lost { is_over: false, .. }), "call {at}");
                reader.arm(None);
                let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
                assert!(matches!(waited, Waited::Complete { .. }), "call {at}");
                injected += 1;
            }
            sampler.stop().unwrap();
        }
        assert_eq!(injected, 18);
        assert!(reader.watched.lock().unwrap().is_empty());
    }

    #[test]
    fn a_process_that_has_ended_is_no_error() {
        let two = layout(PageSize::Huge, &[(4, 3 * BLOCK, 2), (7, BLOCK, 1)]);
        let reader = Arc::new(Faulty::default());
        let mut sampler = ScanSampler::new(
            Arc::clone(&reader) as Arc<dyn BitReader>,
            Duration::ZERO,
            Samples::One,
        );
        reader.arm(Some((0, libc::ESRCH)));
        sampler.start(&two).unwrap();
        reader.arm(None);
        let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
        assert!(matches!(waited, Waited::Complete { .. }));
        reader.arm(Some((0, libc::ESRCH)));
        let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
        assert!(matches!(waited, Waited::Lost { is_over: true, .. }));
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
