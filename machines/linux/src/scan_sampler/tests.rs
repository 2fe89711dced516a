//! The sampler with a device each of whose calls may fail, and which bits are of which pages.

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
        _: bool,
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
fn an_error_of_any_call_leaves_no_process_watched_and_no_page_looking_unused() {
    let two = layout(PageSize::Huge, &[(4, 3 * BLOCK, 2), (7, BLOCK, 1)]);
    let reader = Arc::new(Faulty::default());
    let mut sampler =
        ScanSampler::new(Arc::clone(&reader) as Arc<dyn BitReader>, Duration::ZERO, Samples::One);
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
    let mut sampler =
        ScanSampler::new(Arc::clone(&reader) as Arc<dyn BitReader>, Duration::ZERO, Samples::One);
    reader.arm(Some((0, libc::ESRCH)));
    sampler.start(&two).unwrap();
    reader.arm(None);
    let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
    assert!(matches!(waited, Waited::Complete { .. }));
    reader.arm(Some((0, libc::ESRCH)));
    let waited = sampler.wait(Instant::now(), &mut || false).unwrap();
    assert!(matches!(waited, Waited::Lost { is_over: true, .. }));
}

/// A device on which all base pages of these ranges are accessed at all times.
struct Busy(Vec<u64>);

impl BitReader for Busy {
    fn process(&self, _: u32) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }

    fn scan(
        &self,
        _: Target<'_>,
        _: Range<u64>,
        _: bool,
        take: &mut dyn FnMut(&ScanEntry),
    ) -> io::Result<()> {
        for &addr in &self.0 {
            take(&ScanEntry { addr, bits: [u64::MAX; 8], ..ScanEntry::default() });
        }
        Ok(())
    }

    fn unwatch(&self, _: Target<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// A sampler of windows, begun, of a layout with the first and the last of three busy ranges.
fn of_windows() -> ScanSampler {
    let reader = Arc::new(Busy((1..=3).map(|range| range * BLOCK).collect()));
    let period = Duration::from_secs(3600);
    let mut sampler = ScanSampler::new(reader, period, Samples::OfParts);
    sampler.start(&layout(PageSize::Huge, &[(4, BLOCK, 1), (4, 3 * BLOCK, 1)])).unwrap();
    sampler
}

#[test]
fn base_pages_of_ranges_that_are_not_tracked_take_no_place() {
    let mut sampler = of_windows();
    (0..12).for_each(|_| drop(sampler.scan(true).unwrap()));
    let is_known = |range: u64| sampler.base_pages.of_range(4, range * BLOCK).is_some();
    assert_eq!([1, 2, 3].map(is_known), [true, false, true]);
}

#[test]
fn a_time_that_no_scan_has_opened_is_no_sample_of_base_pages() {
    let mut sampler = of_windows();
    let mut windows = |count: u32| {
        for _ in 0..count {
            sampler.scan(false).unwrap();
            sampler.scan(true).unwrap();
        }
        sampler.base_pages.of_range(4, BLOCK).is_some()
    };
    assert!(!windows(7), "seven windows and as many times between them");
    assert!(windows(3));
}

#[test]
fn each_space_is_scanned_from_its_first_page_to_its_last() {
    let base = layout(PageSize::Base, &[(4, BLOCK + 0x5000, 2), (4, 9 * BLOCK, 1), (7, 0, 512)]);
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
