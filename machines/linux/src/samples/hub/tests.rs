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

fn group_of<'a>(layout: &'a Arc<Layout>, processes: &'a [u32], moved: u64) -> GroupPages<'a> {
    GroupPages { layout, processes, moved }
}

/// A hub of this source for which a sample is enough to be one.
fn hub_of(roots: &Roots, source: Sent) -> Arc<SampleHub> {
    let mut hub = SampleHub::of(roots, Box::new(source), 100);
    Arc::get_mut(&mut hub).expect("nobody else has it").least_recent = 1.0;
    hub
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
    let hub = hub_of(&roots, sent(receive, false));
    (keep, roots, send, hub)
}

#[test]
fn each_group_gets_the_samples_of_its_pages_and_the_rest_is_counted_by_reason() {
    let (_keep, _roots, send, hub) = host();
    let (one, other) = (hub.group(0, false), hub.group(1, false));
    let layouts = [layout(4, 8, 4), layout(6, 8, 4)];
    one.follow(group_of(&layouts[0], &[], 0)).unwrap();
    assert_eq!(one.take(&layouts[0], &PageBits::new(4)), None, "nothing came yet");
    other.follow(group_of(&layouts[1], &[], 0)).unwrap();
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
    group.follow(group_of(&pages, &[], 0)).unwrap();
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

/// As of a processor, whose samples have process and address. Pages that processes 4 and 6 map are in the
/// layout once, at an address of 4; 6 has no page of its own in it.
#[test]
fn accesses_of_shared_memory_count_whichever_process_makes_them() {
    let (_keep, roots, ..) = host();
    let shared = layout(4, 8, 4);
    let (send, receive) = mpsc::channel();
    let hub = hub_of(&roots, sent(receive, true));
    let group = hub.group(0, false);
    let taken = || group.take(&shared, &PageBits::new(4)).map(|got| got.samples.unwrap().to_vec());
    let read_by = |pid| send.send(sample(Some(pid), 0x7f00_0000, 109 * 4096 + 64)).unwrap();
    group.follow(group_of(&shared, &[4, 6], 0)).unwrap();
    // Page 9 of process 4 is in frame 109, and process 6 maps it at an address of its own.
    send.send(sample(Some(4), 9 * 4096, 109 * 4096)).unwrap();
    read_by(6);
    // Of a process that is none of the group's frames say nothing: they may be its own by now.
    read_by(7);
    assert_eq!(taken().unwrap(), [0, 2, 0, 0]);
    assert_eq!(hub.counts().outside, 1);
    // Pages are moved until the next period begins, and frames may be other pages'.
    read_by(6);
    assert_eq!(taken().unwrap(), [0; 4]);
    group.resume(0);
    read_by(6);
    assert_eq!(taken().unwrap(), [0, 1, 0, 0]);
    // A group of one process needs no frames.
    group.follow(group_of(&shared, &[4], 0)).unwrap();
    read_by(4);
    send.send(sample(Some(4), 10 * 4096, 0)).unwrap();
    assert_eq!(taken().unwrap(), [0, 0, 1, 0]);
}

/// A guest's group, of which a processor samples next to nothing, has its accessed bits.
#[test]
fn a_group_without_samples_of_its_own_has_none_whatever_others_have() {
    let (_keep, roots, ..) = host();
    let (send, receive) = mpsc::channel();
    let hub = SampleHub::of(&roots, Box::new(sent(receive, true)), 100);
    let (busy, guest) = (hub.group(0, false), hub.group(1, false));
    let layouts = [layout(4, 8, 4), layout(6, 8, 4)];
    busy.follow(group_of(&layouts[0], &[4], 0)).unwrap();
    guest.follow(group_of(&layouts[1], &[6], 0)).unwrap();
    let period = |of_busy: usize| {
        let samples = [(4, of_busy), (6, 1)];
        for (pid, count) in samples {
            (0..count).for_each(|_| send.send(sample(Some(pid), 8 * 4096, 0)).unwrap());
        }
        let none = PageBits::new(4);
        [(&busy, 0), (&guest, 1)].map(|(group, nth)| group.take(&layouts[nth], &none).is_some())
    };
    assert_eq!(period(29), [false, false], "too few to rank pages by");
    assert_eq!(period(29), [true, false]);
    // It pauses for a while, and then has ended.
    assert!((0..20).all(|_| period(0) == [true, false]));
    assert!((0..20).any(|_| period(0) == [false, false]));
}

#[test]
fn accesses_are_sampled_only_as_long_as_there_is_a_group() {
    struct Switched(Arc<AtomicU64>);
    impl SampleSource for Switched {
        fn name(&self) -> &str {
            "switched"
        }
        fn sample(&mut self, on: bool) -> std::io::Result<()> {
            self.0.store(u64::from(on), Ordering::Relaxed);
            Ok(())
        }
        fn read(&mut self, _: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
            Ok(())
        }
        fn counts(&self) -> RecordCounts {
            RecordCounts::default()
        }
    }
    let (_keep, roots, ..) = host();
    let on = Arc::new(AtomicU64::new(0));
    let hub = SampleHub::of(&roots, Box::new(Switched(Arc::clone(&on))), 100);
    let is_on = || on.load(Ordering::Relaxed) == 1;
    let (one, other) = (hub.group(0, false), hub.group(1, false));
    assert!(is_on());
    drop(one);
    assert!(is_on());
    drop(other);
    assert!(!is_on());
    let _again = hub.group(0, false);
    assert!(is_on());
}

#[test]
fn samples_of_pages_that_are_gone_leave_with_their_reads() {
    let (_keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    let (before, after) = (layout(4, 8, 4), layout(4, 10, 2));
    group.follow(group_of(&before, &[4], 0)).unwrap();
    for page in 8..12 {
        send.send(MemorySample { accesses: 400, ..sample(Some(4), page * 4096, 0) }).unwrap();
    }
    group.follow(group_of(&after, &[4], 0)).unwrap();
    let got = group.take(&after, &PageBits::new(2)).unwrap();
    assert_eq!((got.reads, got.reads_per_sample), ([0, 800], 400));
}

#[test]
fn pages_that_moved_are_found_where_they_are_and_counts_go_with_the_layout() {
    let (keep, _roots, send, hub) = host();
    let group = hub.group(0, false);
    let before = layout(4, 8, 4);
    group.follow(group_of(&before, &[], 0)).unwrap();
    send.send(sample(None, 0, 110 * 4096)).unwrap();
    // Page 10 moves from frame 110 to 500; earlier samples are still of frame 110.
    let path = keep.path().join("proc/4/pagemap");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[80..88].copy_from_slice(&(1u64 << 63 | 500).to_ne_bytes());
    std::fs::write(&path, bytes).unwrap();
    let after = layout(4, 10, 8);
    group.follow(group_of(&after, &[], 0)).unwrap();
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
    group.follow(group_of(&pages, &[], 0)).unwrap();
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
    let mut hub = SampleHub::by_clock(&roots, Box::new(sent(receive, false)), 100, clock);
    Arc::get_mut(&mut hub).expect("nobody else has it").least_recent = 1.0;
    let (group, rates) = (hub.group(0, true), hub.rates(0));
    let extent = Extent { space: SpaceId(4), start: 0, pages: 1 };
    let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
    let path = roots.proc.join("4/pagemap");
    let frames: Vec<u8> =
        (0..512u64).flat_map(|page| (1 << 63 | (900 - page)).to_ne_bytes()).collect();
    std::fs::write(path, frames).unwrap();
    group.follow(group_of(&layout, &[], 0)).unwrap();
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
    group.follow(group_of(&layout(4, 8, 4), &[], 0)).unwrap();
    drop(group);
    send.send(sample(None, 0, 109 * 4096)).unwrap();
    hub.poll();
    assert_eq!(hub.counts().outside, 1);
}
