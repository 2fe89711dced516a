//! Reads accessed bits with the Terrace kernel's scan (`TM_SCAN`).
//!
//! A scan reads and clears the bits of a range in one walk over its page table, and the kernel
//! keeps for it those that reclaim clears meanwhile. So multi-generational LRU may stay on, nothing
//! is set up for a new layout, and no kernel thread or trace instance is needed. It also reports
//! which pages are on the kernel's active lists.
//!
//! The kernel stops recording for a process when this sampler or the process ends. After a run that
//! was killed it goes on until the process ends: 64 bytes for each 2 MB in use.

mod tally;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize, SpaceId};

use crate::bit_rates::BitRates;
use crate::costs::thread_cpu_ns;
use crate::files::FileError;
use crate::kernel::now;
use crate::refiner::BaseRates;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::sampling::{Samples, Sampling};
use crate::scan_windows::Windows;
use crate::tiermem::{self, Device, SCAN_HUGE, ScanEntry, Target};
use tally::{PAGES_OF_RANGE, Tally};

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
        flush: bool,
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
        flush: bool,
        take: &mut dyn FnMut(&ScanEntry),
    ) -> io::Result<()> {
        Device::scan(self, target, range, flush, take)
    }

    fn unwatch(&self, target: Target<'_>) -> io::Result<()> {
        Device::unwatch(self, target)
    }
}

/// Groups of more processes keep their translations: a flush of each interrupts the processors that run
/// it.
const MOST_FLUSHED: usize = 64;

/// The scan of some processes.
pub(crate) struct ScanSampler {
    reader: Arc<dyn BitReader>,
    period: Duration,
    sampling: Sampling,
    /// Of ranges, in place of samples one behind the other.
    windows: Option<Windows>,
    layout: Option<Layout>,
    /// For each page that is a range, the accessed ones of its base pages in the last scan, as if
    /// all of them were mapped; empty if pages are no ranges.
    accessed_of_range: Vec<u16>,
    /// The same of each of their base pages.
    base_pages: BitRates,
    /// When bits were last cleared, and how long after the time before.
    scanned: Duration,
    since: Duration,
    /// Whether that was so that every page shows which is accessed afterwards.
    is_open: bool,
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
            windows: (samples == Samples::OfParts).then(|| Windows::new(period)),
            layout: None,
            accessed_of_range: Vec::new(),
            base_pages: BitRates::default(),
            scanned: now(),
            since: Duration::ZERO,
            is_open: false,
            processes: BTreeMap::new(),
        }
    }

    /// Samples of a period, and the time in which each finds pages accessed.
    fn samples(&self) -> (u32, Duration) {
        match &self.windows {
            Some(windows) => windows.of_period(),
            None => (self.sampling.samples().into(), self.sampling.interval()),
        }
    }

    /// Whether bits had about so long to be set before they were read.
    fn was_window(&self, length: Duration) -> bool {
        2 * self.since < 3 * length
    }

    /// Reads and clears all bits, and counts the time that it takes. See [`Self::scan_now`].
    fn scan(&mut self, opens: bool) -> Result<Option<Observed>, StepError> {
        let begin_ns = thread_cpu_ns();
        let observed = self.scan_now(opens);
        if let Some(windows) = &mut self.windows {
            windows.took(thread_cpu_ns().saturating_sub(begin_ns));
        }
        observed
    }

    /// Reads and clears all bits. `Ok(None)` when no process of the layout is left. If one cannot
    /// be read, the whole scan fails: its pages would look unused. Where it `opens` a window, every
    /// page that is accessed from now on shows.
    fn scan_now(&mut self, opens: bool) -> Result<Option<Observed>, StepError> {
        let Some(layout) = self.layout.as_ref() else { return Ok(None) };
        let mut accessed = PageBits::new(layout.pages());
        let mut active = PageBits::new(layout.pages());
        let mut alive = false;
        let now = now();
        self.since = now.saturating_sub(std::mem::replace(&mut self.scanned, now));
        // Of a longer time, in which pages were moved or no window was, bits say less, and so they do
        // where translations were kept as it began.
        let was_open = std::mem::replace(&mut self.is_open, opens);
        let is_sample = self.windows.is_some() && was_open && self.was_window(self.samples().1);
        let of_range = &mut self.accessed_of_range;
        of_range.clear();
        of_range.resize(if self.windows.is_some() { layout.pages() } else { 0 }, 0);
        let (base_pages, since) = (&self.base_pages, self.since);
        if is_sample {
            base_pages.at(now);
        }
        let flush = opens && self.windows.is_some() && self.processes.len() <= MOST_FLUSHED;
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
                    // Others between its extents would take the places of those that it has.
                    if is_sample && entry.flags & SCAN_HUGE == 0 {
                        base_pages.add(space.0, entry.addr, &entry.bits, since);
                    }
                }
            };
            match self.reader.scan(target, range, flush, &mut take) {
                Ok(()) => alive = true,
                Err(e) if ended(&e) => {}
                Err(source) => return Err(StepError::Process { pid: space.0, source }),
            }
        }
        Ok(alive.then_some(Observed { accessed, counts: None, active: Some(active) }))
    }

    /// Adds what a scan has found. Of ranges only that of a window counts.
    fn count(&self, tally: &mut Tally, accessed: &PageBits, length: Duration) {
        match &self.windows {
            Some(_) if !self.was_window(length) => tally.accessed(accessed),
            _ => tally.add(accessed, &self.accessed_of_range),
        }
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
        if let Some(windows) = &mut self.windows {
            windows.set_ranges(layout.pages());
        }
        self.layout = Some(layout.clone());
        // Accesses before the first period are dropped.
        self.scan(true).map(drop)
    }
}

/// Waits for a moment; whether it is there, and nobody has asked to stop.
fn sleep_until(moment: Instant, stopped: &mut dyn FnMut() -> bool) -> bool {
    while let Some(left) = moment.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
        if stopped() {
            return false;
        }
        std::thread::sleep(left.min(SLICE));
    }
    true
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
        let (samples, length) = self.samples();
        let step = self.period / samples;
        let mut tally = Tally::default();
        // Samples that came due while pages were moved are part of the first.
        let missed = (since.elapsed().as_nanos() / step.as_nanos().max(1)) as u32;
        for sample in (missed + 1).min(samples)..=samples {
            let due = since + step * sample;
            let begin = due - length.min(step);
            // An error is ignored until the last sample, which reports it.
            if length < step && Instant::now() < begin {
                if !sleep_until(begin, stopped) {
                    return Ok(Waited::Stopped);
                }
                if let Ok(Some(observed)) = self.scan(true) {
                    tally.accessed(&observed.accessed);
                }
            }
            if !sleep_until(due, stopped) {
                return Ok(Waited::Stopped);
            }
            if sample == samples {
                break;
            }
            if let Ok(Some(observed)) = self.scan(length == step) {
                self.count(&mut tally, &observed.accessed, length);
            }
        }
        // Called late, it gets the bits of several periods as one.
        let late = since.elapsed().as_secs_f64() / self.period.as_secs_f64();
        let lost = |reason, is_over| Ok(Waited::Lost { periods: 1, reason, is_over });
        match self.scan(length == step) {
            Ok(Some(mut observed)) => {
                // One bit a period is no sample.
                if samples > 1 || length < step {
                    self.count(&mut tally, &observed.accessed, length);
                    let (accessed, counts) = tally.counts(length);
                    if let Some(counts) = &counts {
                        match &mut self.windows {
                            Some(windows) => windows.follow(&counts.counts, counts.samples),
                            None => {
                                self.sampling.follow(&counts.counts, counts.samples);
                            }
                        }
                    }
                    (observed.accessed, observed.counts) = (accessed, counts);
                }
                self.base_pages.end_period();
                Ok(Waited::Complete { observed, superseded: (late as u32).saturating_sub(1) })
            }
            Ok(None) => lost("the group's processes ended".to_owned(), true),
            // The next scan has the bits of this period too.
            Err(error) => lost(error.to_string(), false),
        }
    }

    fn interval(&self) -> Duration {
        self.period / self.samples().0
    }

    fn base_rates(&self) -> Option<Box<dyn BaseRates>> {
        self.windows.is_some().then(|| Box::new(self.base_pages.clone()) as Box<dyn BaseRates>)
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
mod tests;
