//! Conservation laws, a million random operations each: every reference is served exactly once,
//! hits and misses add up, nothing is in two places, time never runs backwards, and the same seed
//! gives the same bytes.

use std::collections::{HashMap, HashSet};

use terrace_core::page::PageSize;
use terrace_hardware::address::{Kind, LineAddress, PhysicalAddress, VirtualAddress};
use terrace_hardware::cache::array::Cache;
use terrace_hardware::cache::config::{CacheConfig, Replacement};
use terrace_hardware::cache::hierarchy::{
    CacheHierarchy, Entry, HierarchyConfig, Inclusion, Level,
};
use terrace_hardware::cpu::Dependence;
use terrace_hardware::dram::presets as dram;
use terrace_hardware::dram::system::Dram;
use terrace_hardware::node::{Node, Reference};
use terrace_hardware::presets;
use terrace_hardware::random::Random;
use terrace_hardware::request::{Request, RequestId};
use terrace_hardware::speed::{FlatTable, Workbench};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::tlb::{Lookup, SecondLevelConfig, TlbConfig, Tlbs, TlbsConfig};
use terrace_hardware::units::{Bytes, Picoseconds};

const MILLION: u64 = 1_000_000;

/// The obvious LRU set: a list, the line used last first.
#[derive(Default, Clone)]
struct PlainSet(Vec<(u64, bool)>);

#[test]
fn a_cache_is_the_obvious_cache() {
    for (sets, ways, slices) in
        [(1, 1, 1), (4, 2, 1), (16, 8, 1), (8, 11, 3), (2, 20, 5), (1, 64, 1)]
    {
        let config = CacheConfig::new(Bytes(64 * sets * ways * slices), ways as u32, 64)
            .with_slices(slices as u32);
        let mut cache = Cache::new(&config).unwrap();
        // With slices only the cache knows the set of a line; lines that conflict are learnt from
        // its evictions, so the plain model only has capacity there.
        let mut plain = vec![PlainSet::default(); sets as usize];
        let mut random = Random::new(sets * 100 + ways);
        let (mut hits, mut misses, mut inside) = (0, 0, HashMap::new());
        for _ in 0..MILLION / 6 {
            let line = random.below(sets * ways * slices * 2);
            match random.below(20) {
                0 => {
                    let dirty = cache.invalidate(LineAddress(line));
                    assert_eq!(dirty, inside.remove(&line));
                    let set = &mut plain[(line % sets) as usize].0;
                    set.retain(|l| l.0 != line);
                }
                kind => {
                    let write = kind < 6;
                    let access = cache.access(LineAddress(line), write);
                    assert_eq!(access.is_hit(), inside.contains_key(&line));
                    hits += u64::from(access.is_hit());
                    misses += u64::from(!access.is_hit());
                    if let Some(out) = access.evicted() {
                        assert_eq!(inside.remove(&out.line.0), Some(out.dirty));
                    }
                    *inside.entry(line).or_insert(false) |= write;
                    if slices == 1 {
                        let set = &mut plain[(line % sets) as usize].0;
                        let was = set.iter().position(|l| l.0 == line);
                        assert_eq!(was.is_some(), access.is_hit());
                        let dirty = was.is_some_and(|i| set.remove(i).1);
                        set.insert(0, (line, dirty | write));
                        let out = (set.len() > ways as usize).then(|| set.pop().unwrap());
                        assert_eq!(access.evicted().map(|e| (e.line.0, e.dirty)), out);
                    }
                }
            }
        }
        let counts = cache.counts();
        assert_eq!(counts.references(), hits + misses);
        assert_eq!(counts.misses(), misses);
        let there: HashMap<u64, bool> = cache.lines().iter().map(|e| (e.line.0, e.dirty)).collect();
        assert_eq!(there, inside);
    }
}

#[test]
fn other_policies_keep_what_they_were_given() {
    for replacement in
        [Replacement::Random, Replacement::TreePlru, Replacement::Srrip, Replacement::RoundRobin]
    {
        let config = CacheConfig::new(Bytes(64 * 8 * 8), 8, 64).with_replacement(replacement);
        let mut cache = Cache::new(&config).unwrap();
        let mut random = Random::new(8);
        let mut inside: HashMap<u64, bool> = HashMap::new();
        for _ in 0..MILLION / 4 {
            let (line, write) = (random.below(120), random.below(4) == 0);
            let access = cache.access(LineAddress(line), write);
            assert_eq!(access.is_hit(), inside.contains_key(&line));
            if let Some(out) = access.evicted() {
                // Never a line of another set, never before the set is full.
                assert_eq!(out.line.0 % 8, line % 8);
                assert_eq!(inside.keys().filter(|l| **l % 8 == line % 8).count(), 8);
                assert_eq!(inside.remove(&out.line.0), Some(out.dirty));
            }
            *inside.entry(line).or_insert(false) |= write;
        }
    }
}

/// Data in flight: each line's newest version is in exactly the places that may have it.
#[test]
fn no_written_line_is_lost_between_caches_and_memory() {
    for inclusion in [Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim] {
        for (l2, cores) in [(true, 1), (true, 3), (false, 1)] {
            let cache = |lines: u64, ways| CacheConfig::new(Bytes(64 * lines), ways, 64);
            let config = HierarchyConfig {
                l1: cache(8, 2),
                l2: l2.then(|| cache(16, 4)),
                llc: cache(96, 16).with_slices(3),
                inclusion,
                snoops: cores > 1,
            };
            let mut h = CacheHierarchy::new(&config, cores).unwrap();
            let mut random = Random::new(77);
            // Lines that were written since they were last removed, and of those the ones that were
            // not written back since. (A write-back may be of an older version, of a lower level,
            // while the newest stays above: then it will come too.)
            let mut written: HashSet<u64> = HashSet::new();
            let mut dirty: HashSet<u64> = HashSet::new();
            let mut references = 0;
            for n in 0..MILLION / 9 {
                let core = random.below(cores as u64) as usize;
                // Each core has its own lines: the model has no coherence to keep shared ones.
                let line = random.below(160) * cores as u64 + core as u64;
                match random.below(40) {
                    0 => {
                        let was = h.invalidate(LineAddress(line));
                        assert!(was || !dirty.remove(&line), "{inclusion:?} {n}: lost {line}");
                        assert!(!was || written.contains(&line), "{inclusion:?} {n}");
                        dirty.remove(&line);
                        written.remove(&line);
                        assert!(!h.contains(LineAddress(line)));
                    }
                    kind => {
                        let write = kind < 12;
                        let entry = if kind % 5 == 0 { Entry::L2 } else { Entry::L1 };
                        let was = h.contains(LineAddress(line));
                        let level = h.access_from(entry, core, LineAddress(line), write);
                        assert_eq!(was, level != Level::Memory, "{inclusion:?} {n}");
                        references += 1;
                        if write {
                            dirty.insert(line);
                            written.insert(line);
                        }
                        if level != Level::L1 {
                            for out in h.writebacks() {
                                assert!(written.contains(&out.0), "{inclusion:?} {n}: clean");
                                dirty.remove(&out.0);
                            }
                        }
                    }
                }
                if inclusion == Inclusion::Inclusive && n % 64 == 0 {
                    for core in 0..cores {
                        let (l1, l2) = h.private(core);
                        let above = l1.lines().into_iter().chain(l2.map_or(vec![], Cache::lines));
                        for line in above {
                            assert!(h.shared().contains(line.line), "not included: {line:?}");
                        }
                    }
                }
            }
            // Every dirty line is still in some level.
            for line in dirty {
                assert!(h.invalidate(LineAddress(line)), "{inclusion:?}: line {line} was lost");
            }
            let [l1, l2_counts, llc] = h.counts();
            assert!(l1.references() <= references);
            if l2 {
                assert_eq!(l2_counts.references(), references - (l1.references() - l1.misses()));
                assert_eq!(llc.references(), l2_counts.misses());
            } else {
                assert_eq!(llc.references(), references - (l1.references() - l1.misses()));
            }
        }
    }
}

#[test]
fn tlbs_hold_only_what_was_filled_and_not_invalidated() {
    let config = TlbsConfig {
        l1_base: TlbConfig::new(16, 4),
        l1_huge: TlbConfig::new(8, 4),
        l2: SecondLevelConfig::Unified(TlbConfig::new(48, 12)),
        l2_cycles: 7,
    };
    let mut tlbs = Tlbs::new(&config).unwrap();
    let mut random = Random::new(5);
    // Base pages live below 1 GB, huge ones above; the frame of each changes when it is remapped.
    let mut frames: HashMap<u64, u64> = HashMap::new();
    let mut may_hold: HashSet<u64> = HashSet::new();
    let mut writable: HashSet<u64> = HashSet::new();
    let mut next_frame = 1u64;
    for _ in 0..MILLION {
        let huge = random.below(3) == 0;
        let (page, size) = if huge {
            ((1 << 30) + (random.below(24) << 21), PageSize::Huge)
        } else {
            (random.below(90) << 12, PageSize::Base)
        };
        let address = VirtualAddress(page + random.below(4096));
        match random.below(200) {
            0 => {
                tlbs.flush();
                may_hold.clear();
            }
            1..=4 => {
                tlbs.invalidate(address);
                may_hold.remove(&page);
                frames.remove(&page);
            }
            5 => {
                let size_bytes = random.below(64) << 12;
                tlbs.invalidate_range(VirtualAddress(page), size_bytes);
                may_hold.retain(|&p| {
                    let end = p + if p < 1 << 30 { 4096 } else { 2 << 20 };
                    size_bytes == 0 || p >= page + size_bytes || end <= page
                });
            }
            kind => {
                let write = kind % 4 == 0;
                let lookup = tlbs.lookup(address, write);
                match lookup {
                    Lookup::L1(physical) | Lookup::L2(physical) => {
                        assert!(may_hold.contains(&page));
                        let offset = address.0 & (size.bytes() - 1);
                        assert_eq!(physical.0, frames[&page] + offset);
                        assert!(!write || writable.contains(&page));
                    }
                    Lookup::Miss | Lookup::Clean => {
                        assert!(lookup == Lookup::Miss || (write && may_hold.contains(&page)));
                        let frame = *frames.entry(page).or_insert_with(|| {
                            next_frame += 1;
                            next_frame << 21
                        });
                        tlbs.fill(lookup, address, size, PhysicalAddress(frame), write);
                        may_hold.insert(page);
                        if write {
                            writable.insert(page);
                        } else {
                            writable.remove(&page);
                        }
                    }
                }
            }
        }
    }
    let c = tlbs.counts();
    assert_eq!(c.lookups, c.l1_hits + c.l2_hits + c.misses);
    assert!(c.l1_hits > 100_000 && c.l2_hits > 100_000 && c.misses > 100_000);
}

#[test]
fn dram_answers_every_request_once_and_in_the_order_of_time() {
    for name in ["ddr4-2400", "ddr5-4800"] {
        let mut config = dram::by_name(name).unwrap();
        config.organization.ranks = 2;
        let mut memory = Dram::new(&config).unwrap();
        let mut random = Random::new(13);
        let mut waiting: HashMap<u64, Picoseconds> = HashMap::new();
        let (mut now, mut last) = (Picoseconds::ZERO, Picoseconds::ZERO);
        let n = MILLION / 2;
        for id in 0..n {
            now += Picoseconds(random.below(9_000));
            // Half a megabyte: enough to hit lines that wait to be written.
            let address = PhysicalAddress(random.below(8192) * 64);
            let kind = if random.below(3) == 0 { Kind::Write } else { Kind::Read };
            memory.advance_to(now);
            while let Some(c) = memory.pop_completion() {
                let made = waiting.remove(&c.id.0).expect("answered once");
                assert!(c.done > made && c.done >= last && c.done <= now);
                last = c.done;
            }
            memory.submit(now, Request { id: RequestId(id), address, kind });
            waiting.insert(id, now);
            assert_eq!(memory.outstanding(), waiting.len() as u64);
        }
        while let Some(c) = memory.next_completion() {
            assert!(waiting.remove(&c.id.0).is_some() && c.done >= last);
            last = c.done;
        }
        assert!(waiting.is_empty());
        let c = memory.counts();
        assert_eq!(c.reads + c.writes + c.forwarded + c.merged, n);
        assert_eq!(c.row_hits + c.row_misses + c.row_conflicts, c.reads + c.writes);
        assert!(c.forwarded > 100 && c.merged > 100 && c.refreshes > 100);
    }
}

/// A machine with everything on: random references, shootdowns, cleared bits.
fn run_machine(name: &str, references: u64, seed: u64) -> (Workbench, String) {
    let mut machine = presets::by_name(name).unwrap();
    machine.node.cores = 2;
    let mut bench = Workbench::new(&machine, 64 << 20, PageSize::Base).unwrap();
    let mut random = Random::new(seed);
    let mut last = [Picoseconds::ZERO; 2];
    for n in 0..references {
        // The core that is furthest behind.
        let core = usize::from(bench.node.core(1).now() < bench.node.core(0).now());
        let hot = random.below(4) > 0;
        let reference = Reference {
            address: VirtualAddress(random.below(if hot { 1 << 16 } else { (64 << 20) - 64 })),
            size: 1 + random.below(64) as u32,
            kind: if random.below(3) == 0 { Kind::Write } else { Kind::Read },
            instructions: 1 + random.below(20) as u32,
            dependence: if random.below(5) == 0 {
                Dependence::PreviousLoad
            } else {
                Dependence::None
            },
        };
        bench.node.reference(core, &reference, &mut bench.table, &mut bench.memory).unwrap();
        let now = bench.node.core(core).now();
        assert!(now >= last[core], "time ran backwards");
        last[core] = now;
        match random.below(2_000) {
            0 => bench.node.flush_translations(core),
            1 => bench.node.invalidate_range(core, reference.address, 1 << 16),
            2 if n > references / 2 => {
                bench.table.clear_accessed();
                bench.node.flush_translations(0);
                bench.node.flush_translations(1);
            }
            _ => {}
        }
    }
    for core in 0..2 {
        bench.node.drain(core, &mut bench.memory);
    }
    let mut summary = String::new();
    for core in 0..2 {
        let node = &bench.node;
        summary += &serde_json::to_string(&(
            node.core(core).counts(),
            node.tlbs(core).counts(),
            node.walker(core).counts(),
            node.core(core).now().0,
        ))
        .unwrap();
    }
    let memory: Vec<_> = (0..2).map(|t| bench.memory.counts(t)).collect();
    summary += &serde_json::to_string(&(bench.node.caches().counts(), memory)).unwrap();
    (bench, summary)
}

#[test]
fn every_reference_of_a_machine_is_accounted_for() {
    for (name, references) in [
        ("radiant-xeon-6252n-optane", MILLION),
        ("granularity-amd-a10-6800k", MILLION / 2),
        ("server-ddr5-cxl-timing", MILLION / 4),
    ] {
        let (bench, _) = run_machine(name, references, 4);
        let node = &bench.node;
        let (mut lookups, mut walks, mut walk_reads, mut bits) = (0, 0, 0, 0);
        for core in 0..2 {
            let (t, w, c) =
                (node.tlbs(core).counts(), node.walker(core).counts(), node.core(core).counts());
            assert_eq!(t.lookups, t.l1_hits + t.l2_hits + t.misses);
            assert_eq!(t.misses, w.walks, "each miss is one walk");
            assert_eq!((w.faults, w.stale), (0, 0));
            lookups += t.lookups;
            walks += w.walks;
            walk_reads += w.accesses.iter().sum::<u64>();
            bits += w.accessed_set + w.dirty_set;
            // The parts of the core's time add up to its time, to the picosecond.
            let stalls: u64 = c.stall_ps.iter().sum();
            assert_eq!(c.compute_ps + stalls + c.store_stall_ps, node.core(core).now().0);
        }
        // Lookups: one for each line that a reference touches.
        assert!(lookups > references && lookups < 2 * references);
        assert!(walks > 1000 && walk_reads >= walks);
        let [l1, l2, llc] = node.caches().counts();
        let enters_l2 = name.contains("amd");
        if !enters_l2 {
            let bit_writes = l1.references() - lookups - walk_reads;
            assert!(bit_writes <= bits && bit_writes * 2 >= bits, "{bit_writes} for {bits} bits");
            assert_eq!(l2.references(), l1.misses());
            assert_eq!(llc.references(), l2.misses());
        }
        // Memory got each miss of the last level as a read, and no other read, but for lines that
        // came from the other core.
        let counts: Vec<_> = (0..2).map(|t| bench.memory.counts(t)).collect();
        let snooped = node.caches().snooped();
        assert_eq!(counts.iter().map(|c| c.reads).sum::<u64>() + snooped, llc.misses());
        assert_eq!(snooped > 0, name.contains("radiant"), "{snooped} lines from the other core");
        assert!(counts.iter().all(|c| c.reads > 0));
        assert!(counts[0].writes > 0 || references < MILLION);
        assert!(bench.table.accessed() <= (64 << 20) / 4096 && bench.table.dirty() > 0);
    }
}

#[test]
fn accessed_bits_come_from_walks_only() {
    let machine = presets::by_name("server-ddr5-cxl").unwrap();
    let mut node = Node::new(&machine.node).unwrap();
    let mut memory = TieredMemory::new(&machine.tiers).unwrap();
    let mut table =
        FlatTable::new(1 << 20, PageSize::Base, &[PhysicalAddress(0)], PhysicalAddress(1 << 30));
    let mut load = |table: &mut FlatTable, node: &mut Node, page: u64| {
        let reference = Reference {
            address: VirtualAddress(page << 12),
            size: 8,
            kind: Kind::Read,
            instructions: 1,
            dependence: Dependence::None,
        };
        node.reference(0, &reference, table, &mut memory).unwrap();
    };
    for page in 0..10 {
        load(&mut table, &mut node, page);
    }
    assert_eq!(table.accessed(), 10);
    // Cleared without a shootdown: the translations stay, so no walk, so no bit.
    table.clear_accessed();
    for page in 0..10 {
        load(&mut table, &mut node, page);
    }
    assert_eq!(table.accessed(), 0);
    node.flush_translations(0);
    for page in 0..3 {
        load(&mut table, &mut node, page);
    }
    assert_eq!(table.accessed(), 3);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for name in presets::names() {
        let (_, first) = run_machine(name, 40_000, 9);
        let (_, second) = run_machine(name, 40_000, 9);
        assert_eq!(first, second, "{name}");
        assert_ne!(first, run_machine(name, 40_000, 10).1);
    }
}

#[test]
fn a_fault_leaves_nothing_behind_but_the_walk() {
    let machine = presets::by_name("radiant-xeon-6252n-optane").unwrap();
    let mut node = Node::new(&machine.node).unwrap();
    let mut memory = TieredMemory::new(&machine.tiers).unwrap();
    let mut table =
        FlatTable::new(8192, PageSize::Base, &[PhysicalAddress(0)], PhysicalAddress(1 << 30));
    // The last 4 bytes of the last page and the first 4 of the hole behind.
    let reference = Reference {
        address: VirtualAddress(8192 - 4),
        size: 8,
        kind: Kind::Write,
        instructions: 5,
        dependence: Dependence::None,
    };
    let fault = node.reference(0, &reference, &mut table, &mut memory).unwrap_err();
    assert_eq!((fault.address, fault.level, fault.write), (VirtualAddress(8195), 0, true));
    assert!(fault.done > Picoseconds::ZERO);
    let faulted = node.caches().counts()[0];
    assert_eq!(faulted.writes, node.walker(0).counts().accessed_set);
    assert_eq!(node.core(0).counts().instructions, 5);
}
