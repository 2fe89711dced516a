//! Tracker and mover on a real kernel with two memory tiers, as root. All tests here are ignored by
//! default and meant for the virtual machine of the lab:
//!
//! ```text
//! cargo test -p terrace-linux --test in_guest --no-run   # prints the path of the binary
//! boot --program BINARY BINARY --ignored --test-threads=1 --nocapture
//! ```
//!
//! The tracked programs are this binary itself, started with the name of an entry below.

mod support;

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use support::*;

use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Exchange, FailureReason, Plan};
use terrace_core::scan::Scan;
use terrace_linux::conflicts::Intent;
use terrace_linux::group_layout::LayoutReader;
use terrace_linux::journal::Journal;
use terrace_linux::process::bytes_per_node;
use terrace_linux::roots::Roots;
use terrace_linux::{GroupSpec, Host, HostOptions, Source, guard_main};

#[test]
#[ignore = "the guard process of the other tests"]
fn guard_process() {
    let arguments: Vec<_> = std::env::args().collect();
    if let [.., journal, run] = arguments.as_slice()
        && Path::new(journal).is_absolute()
    {
        let failed = guard_main(Path::new(journal), run);
        assert!(failed.is_empty(), "{failed:?}");
        // The test harness's output is not read any more.
        std::process::exit(0);
    }
}

/// A program that touches the given pages over and over, and no others. Commands, a line each: `hot
/// FIRST COUNT STEP`, `grow BYTES`, `check`, `quit`.
#[test]
#[ignore = "the program that the other tests watch"]
fn hotcold_process() {
    let Ok(megabytes) = std::env::var("HOTCOLD_MB") else { return };
    let page: u64 = std::env::var("HOTCOLD_PAGE").unwrap().parse().unwrap();
    if page == BASE {
        rustix::thread::disable_transparent_huge_pages(true).unwrap();
    }
    let bytes: u64 = megabytes.parse::<u64>().unwrap() << 20;
    let mut blocks = vec![Block::new(bytes)];
    let (tell, reported) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
        let _ = tell.send("quit".to_owned());
    });
    println!("at {} {}", blocks[0].start(), bytes);
    let mut hot: Vec<u64> = Vec::new();
    loop {
        while let Ok(line) = reported.try_recv() {
            let mut words = line.split(' ');
            let command = words.next();
            let numbers: Vec<u64> = words.map(|w| w.parse().unwrap()).collect();
            match (command, numbers.as_slice()) {
                (Some("hot"), &[first, count, step]) => {
                    hot = (0..count).map(|n| first + n * step).collect();
                    println!("done");
                }
                (Some("grow"), &[bytes]) => {
                    let block = Block::new(bytes);
                    println!("at {} {bytes}", block.start());
                    blocks.push(block);
                }
                (Some("check"), _) => {
                    println!(
                        "{}",
                        if blocks.iter().all(Block::is_intact) { "intact" } else { "DAMAGED" }
                    );
                }
                _ => std::process::exit(0),
            }
        }
        for &index in &hot {
            blocks[0].touch(index * page);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Memory that starts at a huge page and holds a known word in each of its base pages.
struct Block {
    words: Vec<u64>,
    first: usize,
    bytes: u64,
}

impl Block {
    fn new(bytes: u64) -> Self {
        let words = vec![0u64; ((bytes + HUGE) / 8) as usize];
        let address = words.as_ptr() as u64;
        let first = ((address.next_multiple_of(HUGE) - address) / 8) as usize;
        let mut block = Block { words, first, bytes };
        for page in 0..bytes / BASE {
            let at = block.at(page * BASE);
            block.words[at] = Self::word(page);
        }
        block
    }

    fn word(page: u64) -> u64 {
        page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    fn at(&self, offset: u64) -> usize {
        self.first + (offset / 8) as usize
    }

    fn start(&self) -> u64 {
        self.words.as_ptr() as u64 + self.first as u64 * 8
    }

    /// Reads one word and adds to another.
    fn touch(&mut self, offset: u64) {
        let at = self.at(offset);
        black_box(self.words[at]);
        self.words[at + 1] = black_box(self.words[at + 1] + 1);
    }

    fn is_intact(&self) -> bool {
        (0..self.bytes / BASE).all(|p| self.words[self.at(p * BASE)] == Self::word(p))
    }
}

fn sees_exactly_the_hot_pages(page_size: PageSize, megabytes: u64) {
    // For measuring: without flushing, or with more memory.
    let flush = std::env::var_os("TERRACE_NO_FLUSH").is_none();
    let megabytes = std::env::var("TERRACE_MB").map_or(megabytes, |mb| mb.parse().unwrap());
    let before = host_state();
    let pages = (megabytes << 20) / page_size.bytes();
    let mut host = Host::open(options(page_size)).unwrap();
    println!("tiers {:?} by {}", host.topology().tiers.len(), host.topology().source);
    let mut program = HotCold::start(megabytes, page_size);
    let spec = GroupSpec { flush, ..spec(&program, page_size) };
    let mut group = host.attach(vec![spec]).unwrap().remove(0);
    // Three patterns: every third page, the second half, a single page.
    let patterns = [(0, pages.div_ceil(3), 3), (pages / 2, pages / 2, 1), (pages - 2, 1, 1)];
    let (mut right, mut wrong) = (0, 0);
    for (first, count, step) in patterns {
        let hot = program.hot(first, count, step);
        // The period in which the pattern changes has both.
        next_scan(&mut group.tracker);
        for _ in 0..5 {
            let begin = Instant::now();
            let scan = next_scan(&mut group.tracker);
            assert_eq!(program.tracked(&scan, pages), pages, "pages are missing in the layout");
            let seen = program.accessed(&scan, pages);
            let errors = seen.symmetric_difference(&hot).count() as u64;
            println!(
                "period {}: {} of {} hot pages seen, {errors} wrong, {} ms",
                scan.period,
                seen.intersection(&hot).count(),
                hot.len(),
                begin.elapsed().as_millis()
            );
            (right, wrong) = (right + pages - errors, wrong + errors);
        }
    }
    let costs = group.costs.snapshot();
    println!("{right} of {} records right, costs {costs:?}", right + wrong);
    assert_eq!(wrong, 0);
    assert!(program.is_intact());
    drop(group);
    host.close().unwrap();
    assert_eq!(host_state(), before);
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn every_hot_huge_page_is_seen_and_no_cold_one() {
    sees_exactly_the_hot_pages(PageSize::Huge, 256);
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn every_hot_base_page_is_seen_and_no_cold_one() {
    sees_exactly_the_hot_pages(PageSize::Base, 8);
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn pages_go_where_the_plan_says_and_their_data_stays() {
    let mut host = Host::open(options(PageSize::Huge)).unwrap();
    let slow = host.topology().slow_nodes()[0] as usize;
    let mut program = HotCold::start(128, PageSize::Huge);
    let hot = program.hot(0, 16, 1);
    let mut group = host.attach(vec![spec(&program, PageSize::Huge)]).unwrap().remove(0);
    let scan = next_scan(&mut group.tracker);
    let on_slow = || {
        let bytes = bytes_per_node(&Roots::default(), program.pid()).unwrap();
        bytes.get(slow).copied().unwrap_or(0) / HUGE
    };
    let fast_pages = |scan: &Scan| -> Vec<u64> {
        (0..64).filter(|p| program.index(scan, *p).is_some_and(|i| scan.fast.get(i))).collect()
    };
    assert_eq!(fast_pages(&scan).len(), 64, "all pages fit into fast memory at first");
    let slow_before = on_slow();

    let begin = Instant::now();
    let plan = Plan { demotions: vec![program.range(0, 40)], ..Plan::default() };
    assert_eq!(apply(&mut group.mover, &plan), (0, 40));
    println!("demoting 40 huge pages took {} ms", begin.elapsed().as_millis());
    assert_eq!(on_slow() - slow_before, 40, "numa_maps agrees");
    let scan = next_scan(&mut group.tracker);
    assert_eq!(fast_pages(&scan), (40..64).collect::<Vec<_>>());
    // Moving a page does not count as an access, nor does it hide one, once a period has passed
    // that it did not begin in.
    let scan = if scan.lost_periods > 0 { next_scan(&mut group.tracker) } else { scan };
    assert_eq!(program.accessed(&scan, 64), hot);

    let plan = Plan {
        promotions: vec![program.range(0, 10)],
        demotions: vec![program.range(40, 2)],
        exchanges: vec![Exchange { up: program.range(10, 6), down: program.range(50, 6) }],
        ..Plan::default()
    };
    assert_eq!(apply(&mut group.mover, &plan), (16, 8));
    let scan = next_scan(&mut group.tracker);
    let expected: Vec<u64> = (0..16).chain(42..50).chain(56..64).collect();
    assert_eq!(fast_pages(&scan), expected);
    assert_eq!(program.accessed(&scan, 64), hot);

    let absent = VirtualRange { space: program.space(), start: 1 << 30, size_bytes: HUGE };
    let plan = Plan { promotions: vec![absent], ..Plan::default() };
    let outcome = group.mover.apply(&plan).unwrap();
    assert_eq!(outcome.failures[0].reason, FailureReason::Absent);
    assert!(program.is_intact());
    println!("costs {:?}", group.costs.snapshot());
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn pages_trade_places_where_the_kernel_lets_them_and_their_data_stays() {
    for (page_size, megabytes) in [(PageSize::Huge, 64), (PageSize::Base, 8)] {
        let mut host = Host::open(options(page_size)).unwrap();
        let trades = Roots::default().tiermem().exists();
        let pages = (megabytes << 20) / page_size.bytes();
        let mut program = HotCold::start(megabytes, page_size);
        let hot = program.hot(0, pages / 4, 1);
        let mut group = host.attach(vec![spec(&program, page_size)]).unwrap().remove(0);
        let expected = if trades { "tiermem" } else { "damon" };
        assert_eq!(group.tracker.name(), expected);
        let half = pages / 2;
        let down = Plan { demotions: vec![program.range(0, half)], ..Plan::default() };
        next_scan(&mut group.tracker);
        assert_eq!(apply(&mut group.mover, &down), (0, half));

        let exchange = Exchange { up: program.range(0, half), down: program.range(half, half) };
        let plan = Plan { exchanges: vec![exchange], ..Plan::default() };
        next_scan(&mut group.tracker);
        let (mut traded, mut left) = (0, 1);
        for _ in 0..100 {
            let outcome = group.mover.apply(&plan).unwrap();
            traded += outcome.exchanged_pairs;
            left = outcome.failures.len();
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0);
        // Pairs blocked by a lock or an LRU cache become two moves.
        println!("{} of {half} pairs traded places by {}", traded, group.mover.name());
        assert!(if trades { traded >= half / 2 } else { traded == 0 });
        next_scan(&mut group.tracker);
        let scan = next_scan(&mut group.tracker);
        let fast: Vec<u64> = (0..pages)
            .filter(|p| program.index(&scan, *p).is_some_and(|i| scan.fast.get(i)))
            .collect();
        assert_eq!(fast, (0..half).collect::<Vec<_>>());
        assert_eq!(program.accessed(&scan, pages), hot);
        assert!(program.is_intact());
    }
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn base_pages_move_in_batches_that_do_not_stall() {
    let mut host = Host::open(options(PageSize::Base)).unwrap();
    let mut program = HotCold::start(16, PageSize::Base);
    program.hot(0, 100, 1);
    let mut group = host.attach(vec![spec(&program, PageSize::Base)]).unwrap().remove(0);
    next_scan(&mut group.tracker);
    let plan = Plan { demotions: vec![program.range(0, 4096)], ..Plan::default() };
    assert_eq!(apply(&mut group.mover, &plan), (0, 4096));
    println!("costs {:?}", group.costs.snapshot());
    let scan = next_scan(&mut group.tracker);
    let fast = (0..4096).filter_map(|p| program.index(&scan, p)).filter(|i| scan.fast.get(*i));
    assert_eq!(fast.count(), 0);
    assert!(program.is_intact());
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn a_group_that_grows_shrinks_and_ends_is_followed() {
    let mut host = Host::open(options(PageSize::Huge)).unwrap();
    let cgroup = host.make_cgroup(Path::new("terrace-test")).unwrap();
    let mut first = HotCold::start_in(32, PageSize::Huge, Some(cgroup.path()));
    let source = Source::Cgroup(cgroup.path().to_owned());
    let group = GroupSpec::new("test", source, PageSize::Huge, PERIOD_MS);
    let mut group = host.attach(vec![group]).unwrap().remove(0);
    let hot = first.hot(1, 5, 2);
    let scan = next_scan(&mut group.tracker);
    assert_eq!(first.tracked(&scan, 16), 16);

    let more = first.grow(16 << 20);
    let mut second = HotCold::start_in(200, PageSize::Huge, Some(cgroup.path()));
    let hot_too = second.hot(3, 7, 3);
    wait_for("the layout with both", || {
        let scan = next_scan(&mut group.tracker);
        second.tracked(&scan, 100) == 100 && scan.layout.index(first.space(), more).is_some()
    });
    for _ in 0..3 {
        let scan = next_scan(&mut group.tracker);
        assert_eq!(first.accessed(&scan, 16), hot);
        assert_eq!(second.accessed(&scan, 100), hot_too);
    }
    let untracked = group.tracker.untracked_bytes().unwrap();
    println!("untracked {untracked} bytes, costs {:?}", group.costs.snapshot());
    assert!(untracked < 64 << 20, "most of the group's memory is tracked");

    let gone = first.space();
    drop(first);
    wait_for("the layout without the first", || {
        let scan = next_scan(&mut group.tracker);
        scan.layout.extents().iter().all(|e| e.space != gone)
    });
    let scan = next_scan(&mut group.tracker);
    assert_eq!(second.accessed(&scan, 100), hot_too);
    drop(second);
    wait_for("the end of the group", || {
        matches!(group.tracker.observe().unwrap(), Observation::Ended)
    });
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn groups_of_both_page_sizes_are_tracked_at_once() {
    let intent = Intent { huge: true, base: true, cgroups: true };
    let mut host = Host::open(HostOptions { intent, ..options(PageSize::Huge) }).unwrap();
    let mut huge = HotCold::start(64, PageSize::Huge);
    let mut base = HotCold::start(4, PageSize::Base);
    let (hot_huge, hot_base) = (huge.hot(0, 16, 2), base.hot(5, 200, 3));
    let specs = vec![spec(&huge, PageSize::Huge), spec(&base, PageSize::Base)];
    let mut groups = host.attach(specs).unwrap();
    for _ in 0..5 {
        let scans: Vec<Scan> = groups.iter_mut().map(|g| next_scan(&mut g.tracker)).collect();
        assert_eq!(huge.accessed(&scans[0], 32), hot_huge);
        assert_eq!(base.accessed(&scans[1], 1024), hot_base);
        let lost: Vec<u32> = scans.iter().map(|s| s.lost_periods).collect();
        println!("periods {} and {}, lost {lost:?}", scans[0].period, scans[1].period);
    }
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn a_program_that_replaces_itself_is_tracked_on() {
    let mut host = Host::open(options(PageSize::Huge)).unwrap();
    // A shell first, then in the same process the program.
    let mut command = Command::new("sh");
    command.args(["-c", "read x; exec \"$0\" --exact hotcold_process --ignored --nocapture"]);
    command.arg(std::env::current_exe().unwrap());
    let mut program = HotCold::spawn(command, 32, PageSize::Huge, None);
    let mut group = host.attach(vec![spec(&program, PageSize::Huge)]).unwrap().remove(0);
    assert_eq!(next_scan(&mut group.tracker).pages(), 0, "the shell has no huge pages");
    writeln!(program.input, "go").unwrap();
    program.start = program.answer_at();
    let hot = program.hot(1, 7, 2);
    wait_for("the program's pages", || program.tracked(&next_scan(&mut group.tracker), 16) == 16);
    for _ in 0..3 {
        assert_eq!(program.accessed(&next_scan(&mut group.tracker), 16), hot);
    }
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn a_run_that_is_asked_to_stop_ends_in_the_midst_of_a_period() {
    let before = host_state();
    let stop = Arc::new(AtomicBool::new(false));
    let stoppable = HostOptions { stop: Some(Arc::clone(&stop)), ..options(PageSize::Huge) };
    let mut host = Host::open(stoppable).unwrap();
    let program = HotCold::start(32, PageSize::Huge);
    let spec = GroupSpec { period_ms: 600_000, ..spec(&program, PageSize::Huge) };
    let mut group = host.attach(vec![spec]).unwrap().remove(0);
    let begin = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(matches!(group.tracker.observe().unwrap(), Observation::Ended));
    assert!(begin.elapsed() < Duration::from_secs(60));
    drop(group);
    host.close().unwrap();
    assert_eq!(host_state(), before);
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn conflicts_are_refused_without_leave_to_fix_them() {
    let before = host_state();
    let refused = HostOptions { fix_conflicts: false, ..options(PageSize::Huge) };
    let Err(error) = Host::open(refused) else { panic!("opened with MGLRU on") };
    println!("{error}");
    assert!(error.to_string().contains("multi-generational LRU is on"));
    assert_eq!(host_state(), before);

    let kdamonds = Roots::default().kdamonds().join("nr_kdamonds");
    fs::write(&kdamonds, "1").unwrap();
    let Err(error) = Host::open(options(PageSize::Huge)) else { panic!("opened beside DAMON") };
    println!("{error}");
    assert!(error.to_string().contains("DAMON is used by another program (1 kdamonds)"));
    fs::write(&kdamonds, "0").unwrap();
    assert_eq!(host_state(), before);
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn shared_pages_of_a_forked_child_are_counted_once() {
    let host = Host::open(options(PageSize::Base)).unwrap();
    let cgroup = host.make_cgroup(Path::new("terrace-test")).unwrap();
    let roots = Roots::default();
    let script = format!(
        "echo $$ > {}/cgroup.procs; mkfifo /tmp/fifo.$$; (read x < /tmp/fifo.$$; :) & echo; read y",
        cgroup.path().display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    BufReader::new(shell.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let pages = |source: Source| {
        let mut layout_reader = LayoutReader::new(roots.clone(), source, PageSize::Base, 1 << 20);
        let group = layout_reader.read(None).unwrap();
        (group.processes.len(), group.layout.pages())
    };
    let (_, parent) = pages(Source::Pids(vec![shell.id()]));
    let mut both = (0, 0);
    wait_for("the child", || {
        both = pages(Source::Cgroup(cgroup.path().to_owned()));
        both.0 == 2
    });
    let child = cgroup.processes().unwrap().into_iter().find(|p| *p != shell.id()).unwrap();
    let (_, alone) = pages(Source::Pids(vec![child]));
    println!("parent {parent} pages, child {alone}, both {}", both.1);
    assert!(both.1 >= parent.max(alone) && both.1 < parent + alone);
    drop(shell.stdin.take());
    shell.wait().unwrap();
    // The child waits for ever: the group is removed with it inside.
    host.close().unwrap();
    assert!(!cgroup.exists());
    let child = rustix::process::Pid::from_raw(child as i32).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

/// A run that tracks and moves pages back and forth until it is killed.
#[test]
#[ignore = "the run that the test below kills"]
fn victim_process() {
    let Ok(pid) = std::env::var("VICTIM_PID") else { return };
    let start: u64 = std::env::var("VICTIM_START").unwrap().parse().unwrap();
    let pid: u32 = pid.parse().unwrap();
    let mut host = Host::open(options(PageSize::Huge)).unwrap();
    host.make_cgroup(Path::new("terrace-victim")).unwrap();
    let mut spec = GroupSpec::new("v", Source::Pids(vec![pid]), PageSize::Huge, 100);
    spec.move_share = 1.0;
    let mut group = host.attach(vec![spec]).unwrap().remove(0);
    let range = VirtualRange { space: SpaceId(pid), start, size_bytes: 16 * HUGE };
    loop {
        next_scan(&mut group.tracker);
        println!("tracking");
        let demote = Plan { demotions: vec![range], ..Plan::default() };
        group.mover.apply(&demote).unwrap();
        let promote = Plan { promotions: vec![range], ..Plan::default() };
        group.mover.apply(&promote).unwrap();
    }
}

#[test]
#[ignore = "needs root and two memory tiers"]
fn a_run_killed_at_any_moment_leaves_program_and_host_as_they_were() {
    let moments: u64 =
        std::env::var("TERRACE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let before = host_state();
    let mut program = HotCold::start(32, PageSize::Huge);
    program.hot(0, 8, 2);
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for moment in 0..moments {
        let mut command = entry("victim_process");
        command.env("VICTIM_PID", program.pid().to_string());
        command.env("VICTIM_START", program.start.to_string());
        let mut victim = command.stdout(Stdio::piped()).spawn().unwrap();
        // xorshift: the moments are the same in every run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Held until the end, or the victim could not write any more.
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        if moment % 2 == 0 {
            // After the first scan, while pages are moved; else at any moment of the start.
            assert!(lines.by_ref().map_while(Result::ok).any(|l| l == "tracking"));
        }
        std::thread::sleep(Duration::from_millis(random % 700));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let journal = Journal::path(&Roots::default().run);
        wait_for("the end of the journal", || !journal.exists());
        assert_eq!(host_state(), before, "after moment {moment}");
    }
    assert!(program.is_intact());
    println!("{moments} kills survived");
}
