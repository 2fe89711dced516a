//! A node's hits, misses and bounds, counted by hand.

use super::*;
use crate::presets;
use crate::speed::FlatTable;
use crate::tier::memory::TieredMemory;
use terrace_core::page::PageSize;

struct Machine {
    node: Node,
    memory: TieredMemory,
    table: FlatTable,
}

/// The server with CXL; data pages and page-table pages in a tier each.
fn machine(name: &str, data: usize, tables: usize, size: PageSize) -> Machine {
    machine_of(&presets::by_name(name).unwrap(), data, tables, size)
}

fn machine_of(
    config: &presets::MachineConfig,
    data: usize,
    tables: usize,
    size: PageSize,
) -> Machine {
    let memory = TieredMemory::new(&config.tiers).unwrap();
    let start = [memory.start(data)];
    let tables_at = PhysicalAddress(memory.start(tables).0 + (8 << 30));
    Machine {
        node: Node::new(&config.node).unwrap(),
        table: FlatTable::new(1 << 30, size, &start, tables_at),
        memory,
    }
}

impl Machine {
    /// One load of 8 bytes that needs the one before; returns its completion time.
    fn chase(&mut self, address: u64) -> Picoseconds {
        let reference = Reference {
            address: VirtualAddress(address),
            size: 8,
            kind: Kind::Read,
            instructions: 1,
            dependence: Dependence::PreviousLoad,
        };
        self.node.reference(0, &reference, &mut self.table, &mut self.memory).unwrap();
        self.node.drain(0, &mut self.memory);
        self.node.core(0).now()
    }

    fn ns_of(&mut self, address: u64) -> f64 {
        let before = self.node.core(0).now();
        self.chase(address).since(before).as_ns()
    }
}

// The server: 3 GHz; 5, 15 and 70 cycles; 108 and 214 ns for a program.
const CYCLE: f64 = 1.0 / 3.0;
const DRAM: f64 = 108.0;
const CXL: f64 = 214.0;

#[track_caller]
fn near(got: f64, expected: f64) {
    assert!((got - expected).abs() < 0.2, "{got} ns, expected {expected}");
}

#[test]
fn a_cold_load_takes_its_walk_and_then_its_line() {
    let mut m = machine("server-ddr5-cxl", 0, 0, PageSize::Base);
    // The second-level TLB, four entries of the page table, the accessed bit in a line that the
    // first level has by then, and the line: one after the other.
    let first = 7.0 * CYCLE + 4.0 * DRAM + 5.0 * CYCLE + DRAM;
    near(m.ns_of(0), first);
    // The same page: no walk. The same line: nothing to wait for.
    near(m.ns_of(64), DRAM);
    near(m.ns_of(72), 0.0);
    // The next page: after the load before (from the first level) and the second-level TLB only
    // the leaf is read, from the line of the one before, and its bit set.
    near(m.ns_of(4096), (5.0 + 7.0 + 5.0 + 5.0) * CYCLE + DRAM);
    // A page whose leaf is 8 entries on: another line of the page table.
    near(m.ns_of(9 * 4096), 7.0 * CYCLE + DRAM + 5.0 * CYCLE + DRAM);
}

#[test]
fn a_walk_costs_what_the_tier_of_the_page_table_costs() {
    let cold = |data, tables| machine("server-ddr5-cxl", data, tables, PageSize::Base).ns_of(0);
    near(cold(1, 0) - cold(0, 0), CXL - DRAM);
    near(cold(0, 1) - cold(0, 0), 4.0 * (CXL - DRAM));
    let huge = |tables| machine("server-ddr5-cxl", 0, tables, PageSize::Huge).ns_of(0);
    near(huge(1) - huge(0), 3.0 * (CXL - DRAM));
}

#[test]
fn independent_loads_overlap_and_chased_ones_do_not() {
    for name in ["server-ddr5-cxl", "server-ddr5-cxl-timing"] {
        let run = |dependence| {
            let mut m = machine(name, 0, 0, PageSize::Huge);
            let n = 20_000u64;
            for i in 0..n {
                let reference = Reference {
                    address: VirtualAddress((i * 0x9E3779B1 % (1 << 30)) & !7),
                    size: 8,
                    kind: Kind::Read,
                    instructions: 4,
                    dependence,
                };
                m.node.reference(0, &reference, &mut m.table, &mut m.memory).unwrap();
            }
            m.node.drain(0, &mut m.memory);
            m.node.core(0).now().as_ns() / n as f64
        };
        let (chased, overlapped) = (run(Dependence::PreviousLoad), run(Dependence::None));
        // 16 lines under way at once.
        assert!((95.0..150.0).contains(&chased), "{name}: {chased} ns a load");
        let overlap = chased / overlapped;
        assert!((12.0..16.5).contains(&overlap), "{name}: {overlap} at once");
    }
}

#[test]
fn dram_by_command_and_dram_as_a_queue_agree_when_idle() {
    // A load at a time, far apart: the command-level model is between a closed bank and an open
    // one, as its preset says.
    for tier in [0, 1] {
        let mean = |name| {
            let mut m = machine(name, tier, 0, PageSize::Huge);
            let loads: Vec<f64> =
                (1..400u64).map(|i| m.ns_of((i * 0x9E3779B1 % (1 << 30)) & !7)).collect();
            m.ns_of(0);
            loads.iter().sum::<f64>() / loads.len() as f64
        };
        let (queue, commands) = (mean("server-ddr5-cxl"), mean("server-ddr5-cxl-timing"));
        assert!((queue - commands).abs() < 0.1 * queue, "tier {tier}: {queue} {commands}");
    }
}

#[test]
fn a_store_to_two_pages_touches_both() {
    let mut m = machine("server-ddr5-cxl", 0, 0, PageSize::Base);
    let reference = Reference {
        address: VirtualAddress(4096 - 4),
        size: 8,
        kind: Kind::Write,
        instructions: 1,
        dependence: Dependence::None,
    };
    let level = m.node.reference(0, &reference, &mut m.table, &mut m.memory).unwrap();
    assert_eq!(level, Level::Memory);
    assert_eq!((m.table.accessed(), m.table.dirty()), (2, 2));
    m.node.drain(0, &mut m.memory);
    // Four lines of the page table, the second leaf in the first one's, and two of data.
    assert_eq!(m.memory.counts(0).reads, 4 + 2);
}

#[test]
fn a_warm_reference_leaves_everything_as_a_timed_one() {
    use crate::random::Random;
    for (name, size) in [
        ("server-ddr5-cxl", PageSize::Base),
        ("server-ddr5-cxl", PageSize::Huge),
        ("granularity-amd-a10-6800k", PageSize::Base),
        ("nimble-xeon-e5-2650v3", PageSize::Base),
    ] {
        let (mut timed, mut warm) = (machine(name, 0, 1, size), machine(name, 0, 1, size));
        let mut random = Random::new(5);
        for n in 0..300_000u64 {
            // Often near, sometimes anywhere, now and then across lines and pages.
            let far = if n % 4 == 0 { random.below(1 << 29) } else { random.below(1 << 15) };
            let reference = Reference {
                address: VirtualAddress(far + random.below(8)),
                size: 8,
                kind: if random.below(3) == 0 { Kind::Write } else { Kind::Read },
                instructions: 3,
                dependence: Dependence::None,
            };
            let core = (n % 2) as usize;
            let expected =
                timed.node.reference(core, &reference, &mut timed.table, &mut timed.memory);
            let got = warm.node.warm(core, &reference, &mut warm.table);
            assert_eq!(got.unwrap(), expected.unwrap(), "{name}, reference {n}");
        }
        assert_eq!(warm.node.caches().counts(), timed.node.caches().counts(), "{name}");
        for core in 0..2 {
            assert_eq!(warm.node.tlbs(core).counts(), timed.node.tlbs(core).counts(), "{name}");
            let walks = |m: &Machine| {
                let c = m.node.walker(core).counts();
                (c.walks, c.accesses, c.accessed_set, c.dirty_set)
            };
            assert_eq!(walks(&warm), walks(&timed), "{name}");
        }
        let bits = |m: &Machine| (m.table.accessed(), m.table.dirty());
        assert_eq!(bits(&warm), bits(&timed), "{name}");
        assert_eq!(warm.node.core(0).now(), Picoseconds::ZERO, "{name}");
    }
}

#[test]
fn a_node_that_reads_a_trace_is_the_one_that_wrote_it_and_takes_time() {
    use super::trace::{Reader, Trace, Writer};
    use crate::random::Random;
    for (name, size, prefetches) in [
        ("server-ddr5-cxl", PageSize::Base, false),
        ("server-ddr5-cxl", PageSize::Huge, true),
        ("granularity-amd-a10-6800k", PageSize::Base, false),
        ("nimble-xeon-e5-2650v3", PageSize::Base, true),
    ] {
        let mut config = presets::by_name(name).unwrap();
        config.node.prefetcher = prefetches.then(StreamPrefetcherConfig::default);
        let mut timed = machine_of(&config, 0, 1, size);
        let mut written = machine_of(&config, 0, 1, size);
        let mut read = machine_of(&config, 0, 1, size);
        let writer = Writer::new(Hardware::new(&config.node).unwrap());
        let mut writing = Node::with_front(&config.node, writer).unwrap();
        let reader = Reader::new(timed.node.line_bits);
        let mut reading = Node::with_front(&config.node, reader).unwrap();
        let mut random = Random::new(5);
        for part in 0..50 {
            let references: Vec<Reference> = (0..2_000)
                .map(|n| {
                    let far = if n % 4 == 0 { 1 << 29 } else { 1 << 15 };
                    Reference {
                        address: VirtualAddress(random.below(far) + random.below(8)),
                        size: 8,
                        kind: if random.below(3) == 0 { Kind::Write } else { Kind::Read },
                        instructions: 3,
                        dependence: match random.below(4) {
                            0 => Dependence::PreviousLoad,
                            _ => Dependence::None,
                        },
                    }
                })
                .collect();
            for reference in &references {
                writing.warm(0, reference, &mut written.table).unwrap();
            }
            let trace = writing.front_mut().take();
            assert_ne!(trace, Trace::default());
            reading.front_mut().read(std::sync::Arc::new(trace));
            for reference in &references {
                let level = timed.node.reference(0, reference, &mut timed.table, &mut timed.memory);
                let got = reading.reference(0, reference, &mut read.table, &mut read.memory);
                assert_eq!(got.unwrap(), level.unwrap(), "{name}");
            }
            assert_eq!(reading.core(0).now(), timed.node.core(0).now(), "{name}, part {part}");
        }
        assert_eq!(reading.core(0).counts(), timed.node.core(0).counts(), "{name}");
        assert!(timed.memory.counts(0).reads > 1000 && timed.memory.counts(1).reads > 0, "{name}");
        for tier in 0..2 {
            assert_eq!(read.memory.counts(tier), timed.memory.counts(tier), "{name}");
        }
    }
}

/// A server whose cores read 8 lines ahead on 16 streams, or do not.
fn prefetching(yes: bool, data: usize) -> Machine {
    let mut config = presets::by_name("server-ddr5-cxl").unwrap();
    config.node.prefetcher = yes.then_some(StreamPrefetcherConfig { streams: 16, lines_ahead: 8 });
    machine_of(&config, data, 0, PageSize::Huge)
}

/// Time of one load of each line of a megabyte in this order, each of which needs the one before,
/// and the lines read from memory.
fn chase_all(machine: &mut Machine, order: impl Iterator<Item = u64>) -> (f64, u64) {
    let (mut ns, mut lines) = (0.0, 0);
    for line in order {
        ns += machine.ns_of(line * 64);
        lines += 1;
    }
    (ns / lines as f64, machine.memory.counts(0).reads + machine.memory.counts(1).reads)
}

#[test]
fn a_stream_that_is_prefetched_waits_less_and_reads_no_line_twice() {
    const LINES: u64 = 16_384;
    for data in [0, 1] {
        let (without, read) = chase_all(&mut prefetching(false, data), 0..LINES);
        let (with, read_ahead) = chase_all(&mut prefetching(true, data), 0..LINES);
        // The first three lines of each page are waited for, the others for an eighth at the most.
        assert!(with < 0.3 * without && with > 0.04 * without, "{with} of {without} ns a line");
        assert_eq!(read, read_ahead, "lines read");
    }
}

#[test]
fn a_prefetched_line_that_is_under_way_is_waited_for() {
    let mut machine = prefetching(true, 1);
    let ns: Vec<f64> = (0..12).map(|line| machine.ns_of(line * 64)).collect();
    // The third line requests eight, which come a look-up later than the third itself. The twelfth
    // is requested with the fourth, and the program is there sooner than memory.
    assert!(ns[3..11].iter().all(|&ns| ns < 0.1 * CXL), "{ns:?}");
    let reached: f64 = ns[3..11].iter().sum();
    assert!((0.7 * CXL..CXL).contains(&ns[11]), "{ns:?}");
    assert!((0.9 * CXL..1.1 * CXL).contains(&(reached + ns[11])), "{ns:?}");
    let mut later = prefetching(true, 1);
    for line in 0..3 {
        later.chase(line * 64);
    }
    later.node.core_mut(0).wait_until(Picoseconds::from_ns(10_000));
    assert!(later.ns_of(3 * 64) < 10.0, "a line that has come is a hit of the second level");
}

#[test]
fn references_at_random_take_as_long_with_a_prefetcher_and_read_as_much() {
    let mut random = crate::random::Random::new(3);
    let order: Vec<u64> = (0..20_000).map(|_| random.below(1 << 23)).collect();
    let without = chase_all(&mut prefetching(false, 1), order.iter().copied());
    let with = chase_all(&mut prefetching(true, 1), order.iter().copied());
    assert!((with.0 / without.0 - 1.0).abs() < 0.001, "{with:?} {without:?}");
    assert!(with.1.abs_diff(without.1) < 20, "{with:?} {without:?}");
}

#[test]
fn a_prefetcher_that_cannot_be_is_refused() {
    let refused = |streams, lines_ahead, change: fn(&mut NodeConfig)| {
        let mut config = presets::by_name("server-ddr5-cxl").unwrap().node;
        config.prefetcher = Some(StreamPrefetcherConfig { streams, lines_ahead });
        change(&mut config);
        Node::new(&config).unwrap_err().to_string()
    };
    assert!(refused(0, 8, |_| ()).contains("streams is 0; expected 1 to 1024"));
    assert!(refused(16, 65, |_| ()).contains("lines_ahead is 65; expected 1 to 64"));
    let message = refused(16, 8, |node| node.caches.l2 = None);
    assert!(message.contains("no level for its lines"), "{message}");
}
