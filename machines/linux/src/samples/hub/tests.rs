//! Tests of the hub, with samples that are made up.

use super::*;
use crate::testing::folder;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use terrace_core::page::{Extent, PageSize, SpaceId};
use terrace_recordings::perf_record::DataSource;

/// Returns the samples sent to it.
struct Sent {
    samples: mpsc::Receiver<MemorySample>,
    taken: u64,
    knows_processes: bool,
}

impl SampleSource for Sent {
    fn name(&self) -> &str {
        "sent"
    }
    fn knows_processes(&self) -> bool {
        self.knows_processes
    }
    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
        for sample in self.samples.try_iter() {
            self.taken += 1;
            take(&sample);
        }
        Ok(())
    }
    fn counts(&self) -> RecordCounts {
        RecordCounts { samples: self.taken, lost: 5, throttled: 1, ..RecordCounts::default() }
    }
}

fn layout(pid: u32, page: u64, pages: u64) -> Arc<Layout> {
    let extent = Extent { space: SpaceId(pid), start: page * 4096, pages };
    Arc::new(Layout::new(PageSize::Base, vec![extent]).unwrap())
}

fn sample(pid: Option<u32>, address: u64, physical: u64) -> MemorySample {
    MemorySample {
        pid,
        address: Some(address),
        physical: Some(physical),
        weight_cycles: 600,
        source: DataSource::of_memory(MemoryLevel::Remote, false),
        ..MemorySample::default()
    }
}

/// A source of these samples.
fn sent(samples: mpsc::Receiver<MemorySample>, knows_processes: bool) -> Sent {
    Sent { samples, taken: 0, knows_processes }
}

fn host() -> (tempfile::TempDir, Roots, mpsc::Sender<MemorySample>, Arc<SampleHub>) {
    let stat = |pid: u32| format!("{pid} (a) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 777 0 0\n");
    let (keep, roots) = folder(&[
        ("proc/4/stat", &stat(4)),
        ("proc/6/stat", &stat(6)),
        ("proc/cpuinfo", "cpu MHz\t\t: 800.000\ncpu MHz\t\t: 2000.000\n"),
    ]);
    for (pid, frames) in [(4, 100u64), (6, 200)] {
        let entries = (0..64u64).map(|page| (1 << 63 | (frames + page)).to_ne_bytes());
        let bytes: Vec<u8> = entries.flatten().collect();
        std::fs::write(keep.path().join(format!("proc/{pid}/pagemap")), bytes).unwrap();
    }
    let (send, receive) = mpsc::channel();
    let hub = SampleHub::of(&roots, Box::new(sent(receive, false)), 100);
    (keep, roots, send, hub)
}

#[test]
fn each_group_gets_the_samples_of_its_pages_and_the_rest_is_counted_by_reason() {
    let (_keep, _roots, send, hub) = host();
    let (one, other) = (hub.group(0, false), hub.group(1, false));
    let layouts = [layout(4, 8, 4), layout(6, 8, 4)];
    one.follow(&layouts[0], 0).unwrap();
    assert_eq!(one.take(&layouts[0], &PageBits::new(4)), None, "nothing came yet");
    other.follow(&layouts[1], 0).unwrap();
    // By physical address, without a process: page 9 of process 4 is in frame 109.
    send.send(sample(None, 0x1234, 109 * 4096 + 8)).unwrap();
    let instruction = Some(0x40_1000);
    let known = MemorySample { instruction, ..sample(None, 0x1234, 109 * 4096 + 64) };
    send.send(known).unwrap();
    // By process and address, whatever the frame.
    send.send(sample(Some(6), 11 * 4096 + 5, 1)).unwrap();
    send.send(sample(None, 9 * 4096, 300 * 4096)).unwrap();
    send.send(MemorySample { kernel: true, ..sample(None, 0, 109 * 4096) }).unwrap();
    send.send(MemorySample { source: DataSource(0), ..sample(None, 0, 109 * 4096) }).unwrap();
    let mut fast = PageBits::new(4);
    fast.set(1, true);
    let got = one.take(&layouts[0], &fast).unwrap();
    assert_eq!(got.samples.as_deref(), Some(&[0, 2, 0, 0][..]));
    assert_eq!((got.reads, got.reads_per_sample), ([200, 0], 100));
    // 600 cycles of 2 GHz.
    assert_eq!(got.read_latency_ps, [300_000, 0]);
    let got = other.take(&layouts[1], &PageBits::new(4)).unwrap();
    assert_eq!(got.samples.as_deref(), Some(&[0, 0, 0, 1][..]));
    let expected = SampleCounts {
        of_groups: 3,
        outside: 1,
        cached: 1,
        kernel: 1,
        lost: 5,
        throttled: 1,
        ..SampleCounts::default()
    };
    assert_eq!(hub.counts(), expected);
    assert_eq!(hub.by_instruction(8), [(0x40_1000, 1)]);
    // The next period begins with none.
    let next = one.take(&layouts[0], &fast).unwrap();
    assert!(next.samples.unwrap().iter().all(|&count| count == 0));
}

#[test]
fn reads_are_counted_by_what_each_sample_stands_for() {
    let (_keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    let pages = layout(4, 8, 4);
    group.follow(&pages, 0).unwrap();
    let of = |accesses| MemorySample { accesses, ..sample(Some(4), 9 * 4096, 0) };
    // The source changes its number within the period.
    for accesses in [400, 400, 400, 800, 800] {
        send.send(of(accesses)).unwrap();
    }
    let got = group.take(&pages, &PageBits::new(4)).unwrap();
    assert_eq!((got.reads, got.reads_per_sample), ([0, 2800], 560));
    let none = group.take(&pages, &PageBits::new(4)).unwrap();
    assert_eq!((none.reads, none.reads_per_sample), ([0, 0], 800), "the number of now");
}

/// As of a processor, whose samples have process and address. Pages that two processes map are in the
/// layout once, at an address of the first.
#[test]
fn accesses_of_shared_memory_count_whichever_process_makes_them() {
    let (_keep, roots, ..) = host();
    let extents = [(4, 8), (6, 40)].map(|(pid, page)| Extent {
        space: SpaceId(pid),
        start: page * 4096,
        pages: 4,
    });
    let shared = Arc::new(Layout::new(PageSize::Base, extents.to_vec()).unwrap());
    let (send, receive) = mpsc::channel();
    let hub = SampleHub::of(&roots, Box::new(sent(receive, true)), 100);
    let group = hub.group(0, false);
    group.follow(&shared, 0).unwrap();
    // Page 9 of process 4 is in frame 109, and process 6 maps it at an address of its own.
    send.send(sample(Some(4), 9 * 4096, 109 * 4096)).unwrap();
    send.send(sample(Some(6), 0x7f00_0000, 109 * 4096 + 64)).unwrap();
    send.send(sample(Some(6), 40 * 4096, 240 * 4096)).unwrap();
    // A process that is none of the group's, and another page.
    send.send(sample(Some(7), 0x7f00_0000, 300 * 4096)).unwrap();
    let got = group.take(&shared, &PageBits::new(8)).unwrap();
    assert_eq!(got.samples.as_deref(), Some(&[0, 2, 0, 0, 1, 0, 0, 0][..]));
    assert_eq!(hub.counts().outside, 1);
    // Of a group of one process no frames are needed.
    let alone = layout(4, 8, 4);
    group.follow(&alone, 0).unwrap();
    send.send(sample(Some(6), 0x7f00_0000, 109 * 4096)).unwrap();
    let got = group.take(&alone, &PageBits::new(4)).unwrap();
    assert_eq!(got.samples.as_deref(), Some(&[0; 4][..]));
}

#[test]
fn pages_that_moved_are_found_where_they_are_and_counts_go_with_the_layout() {
    let (keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    let before = layout(4, 8, 4);
    group.follow(&before, 0).unwrap();
    send.send(sample(None, 0, 110 * 4096)).unwrap();
    // Page 10 moves from frame 110 to 500; earlier samples are still of frame 110.
    let path = keep.path().join("proc/4/pagemap");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[80..88].copy_from_slice(&(1u64 << 63 | 500).to_ne_bytes());
    std::fs::write(&path, bytes).unwrap();
    let after = layout(4, 10, 8);
    group.follow(&after, 0).unwrap();
    send.send(sample(None, 0, 500 * 4096)).unwrap();
    send.send(sample(None, 0, 110 * 4096)).unwrap();
    assert_eq!(group.take(&before, &PageBits::new(4)), None, "another layout");
    let got = group.take(&after, &PageBits::new(8)).unwrap();
    assert_eq!(got.samples.as_deref(), Some(&[2, 0, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(hub.counts().outside, 1);
}

#[test]
fn beyond_the_bound_samples_are_left_out() {
    let (_keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    let pages = layout(4, 8, 4);
    group.follow(&pages, 0).unwrap();
    for _ in 0..MOST_PER_S + 1000 {
        send.send(sample(None, 0, 109 * 4096)).unwrap();
    }
    group.take(&pages, &PageBits::new(4)).unwrap();
    let counts = hub.counts();
    assert!(counts.over_bound >= 1 && counts.of_groups <= 2 * MOST_PER_S, "{counts:?}");
    assert_eq!(counts.of_groups + counts.over_bound, MOST_PER_S + 1000);
}

#[test]
fn the_bound_leaves_some_samples_to_each_part_of_a_second() {
    let mut bound = Bound::new(Duration::ZERO);
    let mut passed_in = |ms: u64| {
        bound.fill(Duration::from_millis(ms));
        (0..3 * MOST_PER_S).filter(|_| bound.passes()).count() as u64
    };
    assert_eq!(passed_in(0), MOST_PER_S);
    assert_eq!((passed_in(100), passed_in(150)), (MOST_PER_S / 10, MOST_PER_S / 20));
}

#[test]
fn base_pages_of_ranges_are_known_by_process_and_by_frame() {
    let (_keep, roots, _, _) = host();
    let (send, receive) = mpsc::channel();
    let ms = Arc::new(AtomicU64::new(0));
    let now = Arc::clone(&ms);
    let clock: Clock = Box::new(move || Duration::from_millis(now.load(Ordering::Relaxed)));
    let hub = SampleHub::by_clock(&roots, Box::new(sent(receive, false)), 100, clock);
    let (group, rates) = (hub.group(0, true), hub.rates(0));
    let extent = Extent { space: SpaceId(4), start: 0, pages: 1 };
    let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
    let path = roots.proc.join("4/pagemap");
    let frames: Vec<u8> =
        (0..512u64).flat_map(|page| (1 << 63 | (900 - page)).to_ne_bytes()).collect();
    std::fs::write(path, frames).unwrap();
    group.follow(&layout, 0).unwrap();
    for tenth in 0..20 {
        ms.store(tenth * 100, Ordering::Relaxed);
        // Page 30 by its frame, page 44 by its address.
        send.send(sample(None, 0, 870 * 4096 + 8)).unwrap();
        (0..5).for_each(|_| send.send(sample(Some(4), 44 * 4096 + 8, 1)).unwrap());
        group.take(&layout, &PageBits::new(1)).unwrap();
        // While pages are moved frames are nobody's; addresses are whose they were.
        (0..9).for_each(|_| send.send(sample(None, 0, 860 * 4096)).unwrap());
        group.resume(0);
        if tenth > 10 {
            // A page was moved, and its frame not read again.
            group.resume(1);
            send.send(sample(None, 0, 850 * 4096)).unwrap();
            hub.inner().poll().unwrap();
            group.resume(0);
        }
    }
    assert!(rates.version() >= 3);
    let pages = rates.of_range(4, 0).unwrap();
    let between = |page: usize, per_s: f32| {
        let rate = pages[page].rate.unwrap();
        rate.least_per_s < per_s && per_s < rate.most_per_s
    };
    assert!(between(30, 1000.0) && between(44, 5000.0), "{:?} {:?}", pages[30], pages[44]);
    assert_eq!([31, 40, 50].map(|page: usize| pages[page].rate.unwrap().least_per_s), [0.0; 3]);
    assert_eq!(rates.of_range(4, 1 << 21), None);
}

#[test]
fn a_group_that_leaves_has_no_samples() {
    let (_keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    group.follow(&layout(4, 8, 4), 0).unwrap();
    drop(group);
    send.send(sample(None, 0, 109 * 4096)).unwrap();
    hub.poll();
    assert_eq!(hub.counts().outside, 1);
}
