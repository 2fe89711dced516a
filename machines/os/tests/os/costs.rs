//! The cost tables against the figures that the papers' texts state, and against what was measured of
//! the kernel's own code, computed through the calls that a machine makes.

use std::collections::BTreeMap;

use terrace_core::page::VirtualRange;
use terrace_core::plan::Exchange;
use terrace_hardware::units::Picoseconds;
use terrace_os::config::{DataPolicy, HugePages, ShootdownPer};
use terrace_os::costs::{CostConfig, CostPreset};
use terrace_os::moves::{Copy, copies_by_thread};
use terrace_os::{Node, Os, ProcessSpec};

use crate::world::{MIB, PAGE, os_with, plain, range, touch_all};

/// One program with `bytes` on each node, and nothing else on the machine.
struct Bench {
    os: Os,
    slow: Vec<VirtualRange>,
    fast: Vec<VirtualRange>,
}

/// Settings of the paper's kernel.
#[derive(Clone, std::marker::Copy, Default)]
struct Kernel {
    split: bool,
    threads: u32,
    /// Pages under way at once: 1 is not concurrent.
    concurrent: u32,
    costs: CostPreset,
}

impl Bench {
    fn new(huge: bool, pages: u64, kernel: Kernel) -> Bench {
        let mut config = plain(if huge { HugePages::Always } else { HugePages::Never });
        let m = &mut config.migration;
        m.split_huge_first = kernel.split;
        m.threads = kernel.threads.max(1);
        (m.batch_huge_pages, m.batch_base_pages) =
            (kernel.concurrent.max(1), kernel.concurrent.max(1));
        // Linux 4.14 flushes page by page, 6.12 once for a batch.
        let of_batch = kernel.costs == CostPreset::Linux612;
        m.shootdown_per = if of_batch { ShootdownPer::Batch } else { ShootdownPer::Page };
        config.costs = CostConfig { preset: kernel.costs, ..CostConfig::default() };
        let size = if huge { 2 * MIB } else { PAGE };
        let mut os = os_with(&config, 4 * pages * size + 16 * MIB, 4 * pages * size + 16 * MIB);
        let lists = [Node::SLOW, Node::FAST].map(|node| {
            let spec = ProcessSpec { data: DataPolicy::Bind(node), ..Default::default() };
            let p = os.create_process(spec).unwrap();
            os.map(p, 0, pages * size, true).unwrap();
            (0..pages).for_each(|i| touch_all(&mut os, range(p, i * size, PAGE)));
            (0..pages).map(|i| range(p, i * size, size)).collect::<Vec<_>>()
        });
        let [slow, fast] = lists;
        Bench { os, slow, fast }
    }

    /// Time of copying: the thread with most to do, at the maximum rate of a thread.
    fn copy_time(copies: &[Copy], threads: u32, gb_per_s: f64) -> f64 {
        let most = copies_by_thread(copies, threads)
            .iter()
            .map(|c| c.iter().map(|c| c.bytes).sum::<u64>())
            .max();
        most.unwrap_or(0) as f64 / gb_per_s
    }

    /// GB/s of promoting the slow list in one call.
    fn moves(self) -> f64 {
        self.moves_at(|_, _| f64::INFINITY)
    }

    /// The same, where so many threads that copy so many bytes together come to these GB/s at most.
    fn moves_at(mut self, most_gb_per_s: impl Fn(u32, u64) -> f64) -> f64 {
        let (mut ns, mut bytes) = (0.0, 0);
        let mut rest = self.slow.clone();
        let mut batches = 0;
        while !rest.is_empty() {
            let begun = self.os.begin_move(&rest, Node::FAST);
            let done = self.os.finish_move(begun.id);
            let shot: Picoseconds = begun.shootdowns.iter().map(|s| s.initiator(0)).sum();
            ns += (begun.cost.total() + shot + done.map + done.free).as_ns();
            // One call of the program, however many batches the kernel splits it into.
            batches += 1;
            ns -= if batches > 1 { begun.cost.call.as_ns() } else { 0.0 };
            let most = most_gb_per_s(begun.copy_threads, begun.bytes);
            let rate = self.os.costs().copy_gb_per_s.min(most / f64::from(begun.copy_threads));
            ns += Self::copy_time(&begun.copies, begun.copy_threads, rate);
            bytes += done.bytes;
            rest = begun.rest;
        }
        assert_eq!(bytes, self.slow.iter().map(|r| r.size_bytes).sum::<u64>());
        bytes as f64 / ns
    }

    /// GB/s, both ways together, of exchanging the lists in one call.
    fn exchanges(mut self) -> f64 {
        let pair = |(&up, &down)| Exchange { up, down };
        let pairs: Vec<_> = self.slow.iter().zip(&self.fast).map(pair).collect();
        let begun = self.os.begin_exchange(&pairs);
        assert!(begun.rest.is_empty() && begun.fallback.is_empty());
        let done = self.os.finish_move(begun.id);
        assert_eq!(done.free, Picoseconds::ZERO, "nothing is freed");
        let shot: Picoseconds = begun.shootdowns.iter().map(|s| s.initiator(0)).sum();
        let rate = self.os.costs().exchange_gb_per_s;
        let swap = 2.0 * Self::copy_time(&begun.swaps, begun.copy_threads, rate);
        done.bytes as f64 / ((begun.cost + shot + done.map).as_ns() + swap)
    }
}

fn near(got: f64, expected: f64, percent: f64) {
    let error = (got / expected - 1.0) * 100.0;
    assert!(error.abs() <= percent, "{got:.3}, expected {expected}: {error:+.1} %");
}

const SERIAL: Kernel =
    Kernel { split: false, threads: 1, concurrent: 1, costs: CostPreset::Nimble };

#[test]
fn the_nimble_table_gives_back_the_papers_throughputs() {
    let base = Bench::new(false, 512, SERIAL).moves();
    // Section 1, figure 2: 40 MB/s for one base page, 750 MB/s for 512.
    near(Bench::new(false, 1, SERIAL).moves(), 0.040, 5.0);
    near(base, 0.750, 5.0);
    // Section 4.2.1: splitting first is as slow as base pages, a whole huge page 2.9 times faster.
    let split = Bench::new(true, 1, Kernel { split: true, ..SERIAL }).moves();
    near(split / base, 1.0, 5.0);
    let huge = Bench::new(true, 1, SERIAL).moves();
    near(huge / base, 2.9, 6.0);
    // Section 4.2.2: four threads 2.8 times faster for a huge page, no gain for a base page.
    let four = Kernel { threads: 4, ..SERIAL };
    near(Bench::new(true, 1, four).moves() / huge, 2.8, 8.0);
    near(Bench::new(false, 512, four).moves() / base, 1.0, 0.1);
    // Section 4.2.3: concurrency gains 10 to 25 % more.
    let concurrent = Kernel { concurrent: 512, ..four };
    let gain = Bench::new(true, 64, concurrent).moves() / Bench::new(true, 64, four).moves();
    assert!((1.10..1.25).contains(&gain), "{gain}");
    // Section 4.2.5: together 4.6 times native huge-page migration, and exchange 1.1 times that.
    let all = Bench::new(true, 256, concurrent).moves();
    near(all / huge, 4.6, 15.0);
    let exchange = Bench::new(true, 256, concurrent).exchanges();
    assert!(exchange / all > 1.1, "{}", exchange / all);
    // Section 4.2.4: 11.2 GB/s with huge pages, 1.1 GB/s with base pages, 37.5 % over base pages.
    near(exchange, 11.2, 5.0);
    let exchanged_base = Bench::new(false, 512, concurrent).exchanges();
    near(exchanged_base, 1.1, 5.0);
    near(exchanged_base / base, 1.375, 8.0);
    // The headline: 15 times base-page migration, 5.2 times huge pages alone.
    near(exchange / base, 15.0, 5.0);
    near(exchange / huge, 5.2, 8.0);
}

/// GB/s by part, number and column.
fn measured() -> BTreeMap<(&'static str, u64, &'static str), f64> {
    let lines = include_str!("../../../../reproductions/measured/kernel-time.tsv").lines();
    let of_line = |line: &'static str| match line.split('\t').collect::<Vec<_>>()[..] {
        [part, row, column, rate] => {
            ((part, row.parse().unwrap(), column), rate.parse::<f64>().unwrap())
        }
        _ => panic!("'{line}': expected four columns"),
    };
    lines.filter(|line| !line.starts_with('#')).map(of_line).collect()
}

#[test]
fn the_table_of_linux_gives_back_what_was_measured_of_its_code() {
    let measured = measured();
    let of = |part, row, column| measured[&(part, row, column)];
    let serial = Kernel { concurrent: 512, costs: CostPreset::Linux612, ..SERIAL };
    for pages in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        near(Bench::new(false, pages, serial).moves(), of("base", pages, "move_pages"), 5.0);
    }
    let alone = Kernel { concurrent: 1, ..serial };
    near(Bench::new(true, 1, alone).moves(), of("whole", 1, "huge page"), 5.0);
    let split = Kernel { split: true, ..serial };
    near(Bench::new(true, 1, split).moves(), of("whole", 1, "huge page, split"), 5.0);
    // Together the threads are bounded by the memory: what they come to when they only copy.
    let memory = |threads: u32, bytes: u64| match (threads, bytes >> 20) {
        (1, _) => f64::INFINITY,
        (2, _) => of("copy", 8192, "2 threads"),
        (_, 0..32) => of("copy", 8192, "4 threads"),
        _ => of("copy", 32768, "4 threads"),
    };
    for (threads, column) in [(2, "huge page"), (4, "huge page")] {
        let moved = Bench::new(true, 1, Kernel { threads, ..alone }).moves_at(memory);
        near(moved, of("threads", u64::from(threads), column), 5.0);
    }
    for pages in [2, 8, 32] {
        let column = "huge, 4 threads";
        let single = Bench::new(true, pages, Kernel { threads: 4, ..alone }).moves_at(memory);
        near(single, of("concurrent", pages, column), 5.0);
        let together = Bench::new(true, pages, Kernel { threads: 4, ..serial }).moves_at(memory);
        near(together, of("concurrent", pages, "huge, 4 threads, concurrent"), 5.0);
    }
    for pairs in [2, 8] {
        let four = Kernel { threads: 4, ..serial };
        let huge = Bench::new(true, pairs, four).exchanges();
        near(huge, of("exchange", pairs, "huge, exchange"), 8.0);
        let base = Bench::new(false, pairs, four).exchanges();
        near(base, of("exchange", pairs, "base, exchange"), 15.0);
    }
}

/// Shootdowns of moving 2 MB of base pages in operations of so many pages.
fn shootdowns(pages_per_operation: u64) -> (u64, u64, u64, Picoseconds) {
    let mut config = plain(HugePages::Never);
    config.costs = CostConfig { preset: CostPreset::Granularity, ..CostConfig::default() };
    let mut os = os_with(&config, 16 * MIB, 16 * MIB);
    let spec = ProcessSpec { data: DataPolicy::Bind(Node::SLOW), ..Default::default() };
    let p = os.create_process(spec).unwrap();
    os.map(p, 0, 2 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 2 * MIB));
    let size = pages_per_operation * PAGE;
    let mut time = Picoseconds::ZERO;
    for start in (0..2 * MIB).step_by(size as usize) {
        let begun = os.begin_move(&[range(p, start, size)], Node::FAST);
        assert_eq!(begun.shootdowns.len(), 1, "one for an operation, whatever its size");
        // The paper's machine has four cores.
        time += begun.shootdowns[0].initiator(3);
        os.finish_move(begun.id);
    }
    let c = os.counters();
    (c.shootdowns, c.single_invalidations, c.full_flushes, time)
}

#[test]
fn a_shootdown_invalidates_one_sixteen_or_everything_by_granularity() {
    // Granularity paper, section 5: one invlpg for 4 KB, sixteen for 64 KB, a flush for 2 MB.
    let (count, single, full, time) = shootdowns(1);
    assert_eq!((count, single, full), (512, 512, 0));
    // Section 2.2: 13.2 us each.
    near(time.as_ns() / 512.0, 13_200.0, 1.0);
    let (count, single, full, time_64k) = shootdowns(16);
    assert_eq!((count, single, full), (32, 512, 0));
    let (count, single, full, time_2m) = shootdowns(512);
    assert_eq!((count, single, full), (1, 0, 1));
    // Section 3: 512 times fewer, and their time likewise.
    near(time.as_ns() / time_2m.as_ns(), 512.0, 5.0);
    assert!(time_64k < Picoseconds(time.0 / 10) && time_2m < Picoseconds(time_64k.0 / 20));
}

#[test]
fn every_byte_is_copied_by_one_thread_once() {
    use terrace_hardware::address::PhysicalAddress;
    let copy = |i: u64, bytes| Copy {
        from: PhysicalAddress(i << 21),
        to: PhysicalAddress(1 << 40 | i << 21),
        bytes,
    };
    for (pages, threads, busy) in [(1, 4, 4), (8, 4, 4), (3, 4, 3), (2, 5, 4), (0, 4, 0), (1, 1, 1)]
    {
        let copies: Vec<_> = (0..pages).map(|i| copy(i, 2 * MIB)).collect();
        let work = copies_by_thread(&copies, threads);
        assert_eq!(work.len(), busy, "{pages} pages, {threads} threads");
        let mut parts: Vec<_> = work.concat();
        parts.sort_by_key(|c| c.from.0);
        let mut joined: Vec<Copy> = Vec::new();
        for part in parts {
            assert_eq!(part.to.0, 1 << 40 | part.from.0);
            match joined.last_mut() {
                Some(j) if j.from.0 + j.bytes == part.from.0 && j.bytes < 2 * MIB => {
                    j.bytes += part.bytes;
                }
                _ => joined.push(part),
            }
        }
        assert_eq!(joined, copies);
    }
}

#[test]
fn threads_and_caps_change_at_run_time() {
    let mut b = Bench::new(true, 4, SERIAL);
    assert_eq!(b.os.begin_move(&b.slow[..1], Node::FAST).copy_threads, 1);
    let mut migration = b.os.migration().clone();
    (migration.threads, migration.batch_huge_pages) = (8, 2);
    b.os.set_migration(migration.clone()).unwrap();
    let begun = b.os.begin_move(&b.slow[1..], Node::FAST);
    assert_eq!((begun.copy_threads, begun.pages, begun.rest.len()), (8, 2, 1));
    migration.threads = 0;
    assert!(b.os.set_migration(migration).is_err());
    assert_eq!(b.os.migration().threads, 8);
}
