use super::*;
use crate::config::{TierSpeed, TimedConfig};
use crate::flow::analyse;

const MIB: u64 = 1 << 20;
const TIERS: [TierSpeed; 2] = [
    TierSpeed { latency_ns: 80.0, gb_per_s: 100.0 },
    TierSpeed { latency_ns: 300.0, gb_per_s: 2.0 },
];

struct Guest {
    machine: TimedMachine,
    /// The emulator's count and bias.
    count: u64,
    bias: i64,
    /// Blocks are never freed.
    chase: (&'static Block, Vec<Site>),
    stream: (&'static Block, Vec<Site>),
}

/// A block of these instructions.
fn block(instructions: &[&[u8]]) -> (&'static Block, Vec<Site>) {
    let flow = analyse(instructions.iter().copied(), false);
    (Box::leak(Box::new(flow.block)), flow.sites)
}

impl Guest {
    fn new(processors: u32) -> Self {
        let config = TimedConfig::with_tiers(&TIERS).unwrap();
        let config = config.sized(processors, &[1024 * MIB, 1024 * MIB]);
        Guest {
            machine: TimedMachine::new(&config, 5000).unwrap(),
            count: 5000,
            bias: 0,
            // mov rax,[rax]
            chase: block(&[&[0x48, 0x8b, 0x00]]),
            // mov rcx,[rbx]; add rbx,64
            stream: block(&[&[0x48, 0x8b, 0x0b], &[0x48, 0x83, 0xc3, 0x40]]),
        }
    }

    fn now(&self) -> u64 {
        self.count.wrapping_add_signed(self.bias)
    }

    /// Executes a block that loads from a tier; returns whether the slice ends.
    fn load(
        &mut self,
        cpu: usize,
        which: &(&'static Block, Vec<Site>),
        tier: usize,
        at: u64,
    ) -> bool {
        self.access(cpu, which, (tier, at), 8, false)
    }

    fn store(
        &mut self,
        cpu: usize,
        which: &(&'static Block, Vec<Site>),
        (tier, at): (usize, u64),
        size: u32,
    ) {
        self.access(cpu, which, (tier, at), size, true);
    }

    fn access(
        &mut self,
        cpu: usize,
        which: &(&'static Block, Vec<Site>),
        (tier, at): (usize, u64),
        size: u32,
        store: bool,
    ) -> bool {
        if self.machine.is_switch(cpu) {
            self.bias += self.machine.switch(cpu, self.now());
        }
        let step = self.machine.block(cpu, which.0);
        self.bias += step.add_ns;
        // Huge pages of their own for each tier.
        let access = Access { address: (tier as u64 + 1) << 40 | at, size, store };
        self.machine.access(cpu, &which.1[0], access, || Some((tier, at)));
        self.count += u64::from(which.0.instructions);
        step.yields
    }

    fn read_clock(&mut self, cpu: usize) -> u64 {
        self.bias += self.machine.read_clock(cpu);
        self.now()
    }

    /// Nanoseconds per load of so many lines of a tier, each once.
    fn run(&mut self, cpu: usize, chase: bool, tier: usize, from: u64, lines: u64) -> f64 {
        let which = if chase { self.chase.clone() } else { self.stream.clone() };
        let start = self.read_clock(cpu);
        for line in from..from + lines {
            // Over the lines in an order without neighbours, or one after the other.
            let at = if chase { (line * 7919 % (1 << 18)) * 64 } else { line * 64 };
            self.load(cpu, &which, tier, at);
        }
        (self.read_clock(cpu) - start) as f64 / lines as f64
    }
}

#[track_caller]
fn near(got: f64, expected: f64, share: f64) {
    assert!((got / expected - 1.0).abs() < share, "{got}, expected {expected}");
}

#[test]
fn a_chase_takes_each_tiers_latency() {
    let mut guest = Guest::new(1);
    // Fills the TLBs with the pages.
    guest.run(0, true, 0, 0, 1 << 13);
    guest.run(0, true, 1, 0, 1 << 13);
    near(guest.run(0, true, 0, 1 << 14, 1 << 13), 80.0, 0.03);
    near(guest.run(0, true, 1, 1 << 14, 1 << 13), 300.0, 0.03);
    let figures = guest.machine.figures();
    assert!(figures.dependent_loads > 1 << 14);
    assert!(figures.tiers[1].reads >= 1 << 14, "{figures:?}");
}

#[test]
fn a_stream_takes_a_tiers_bandwidth_where_the_misses_under_way_reach_it() {
    let mut guest = Guest::new(1);
    guest.run(0, false, 1, 0, 1 << 13);
    // 2 GB/s.
    near(guest.run(0, false, 1, 1 << 14, 1 << 14), 32.0, 0.05);
    // 100 GB/s is more than 16 lines in 80 ns.
    guest.run(0, false, 0, 0, 1 << 13);
    let ns = guest.run(0, false, 0, 1 << 14, 1 << 14);
    near(ns, 80.0 / 16.0, 0.25);
}

#[test]
fn a_field_of_a_line_under_way_is_waited_for() {
    // mov rcx,[rax+8]; mov rax,[rax]: the first touches the line that the second needs.
    let both = block(&[&[0x48, 0x8b, 0x48, 0x08], &[0x48, 0x8b, 0x00]]);
    let mut guest = Guest::new(1);
    guest.run(0, true, 1, 0, 1 << 13);
    let start = guest.read_clock(0);
    let n = 4096;
    for line in 0..n {
        let at = ((line + (1 << 14)) * 7919 % (1 << 18)) * 64;
        let step = guest.machine.block(0, both.0);
        guest.bias += step.add_ns;
        for (site, offset) in both.1.iter().zip([8, 0]) {
            let access = Access { address: 2 << 40 | (at + offset), size: 8, store: false };
            guest.machine.access(0, site, access, || Some((1, at + offset)));
        }
        guest.count += 2;
    }
    near((guest.read_clock(0) - start) as f64 / n as f64, 300.0, 0.03);
}

#[test]
fn two_processors_take_as_long_as_one() {
    let alone = {
        let mut guest = Guest::new(1);
        let chase = guest.chase.clone();
        let start = guest.read_clock(0);
        for n in 0..1u64 << 13 {
            guest.load(0, &chase, 1, (n * 7919 % (1 << 18)) * 64);
        }
        guest.read_clock(0) - start
    };
    let mut guest = Guest::new(2);
    let chase = guest.chase.clone();
    let start = guest.now();
    let mut done = [0u64; 2];
    let mut cpu = 0;
    let mut last = start;
    // The emulator switches to the other where one has to yield.
    while done.iter().any(|&n| n < 1 << 13) {
        if done[cpu] == 1 << 13 {
            cpu = 1 - cpu;
        }
        let line = (done[cpu] * 7919 + cpu as u64 * 100_003) % (1 << 18);
        let yields = guest.load(cpu, &chase, 1, line * 64);
        done[cpu] += 1;
        assert!(guest.now() >= last, "{} after {last}", guest.now());
        last = guest.now();
        if yields {
            cpu = 1 - cpu;
        }
    }
    let both = guest.read_clock(cpu) - start;
    near(both as f64, alone as f64, 0.05);
}

#[test]
fn a_processor_that_waited_begins_at_the_clock() {
    let mut guest = Guest::new(2);
    let chase = guest.chase.clone();
    guest.load(0, &chase, 0, 0);
    guest.load(1, &chase, 0, 64);
    guest.bias += guest.machine.halt(0);
    guest.bias += guest.machine.halt(1);
    // Nothing runs for a second.
    guest.bias += 1_000_000_000;
    let woken = guest.now();
    guest.load(1, &chase, 0, 128);
    assert!((woken..woken + 1000).contains(&guest.read_clock(1)));
    guest.load(0, &chase, 0, 192);
    assert!((woken..woken + 2000).contains(&guest.read_clock(0)));
    let busy: u64 = guest.machine.figures().busy_ns.iter().sum();
    assert!(busy < 10_000, "{busy}");
}

#[test]
fn a_loop_that_waits_keeps_up_with_the_others() {
    let mut guest = Guest::new(2);
    let chase = guest.chase.clone();
    guest.load(0, &chase, 1, 0);
    for n in 0..100 {
        guest.load(1, &chase, 1, n * 7919 * 64 % (1 << 24));
    }
    let ahead = guest.read_clock(1);
    guest.load(0, &chase, 1, 64);
    guest.machine.pause(0);
    guest.load(0, &chase, 1, 64);
    assert!(guest.read_clock(0) >= ahead);
}

#[test]
fn a_device_is_no_memory() {
    let mut guest = Guest::new(1);
    let chase = guest.chase.clone();
    guest.load(0, &chase, 0, 0);
    let access = Access { address: 1 << 50, size: 4, store: true };
    assert!(!guest.machine.access(0, &chase.1[0], access, || None));
    let figures = guest.machine.figures();
    assert_eq!((figures.devices, figures.references), (1, 1));
}

#[test]
fn a_flush_of_translations_is_paid_for() {
    let mut guest = Guest::new(1);
    guest.run(0, true, 0, 0, 1 << 12);
    let before = guest.machine.figures();
    guest.machine.flush_translations(0);
    guest.run(0, true, 0, 0, 1 << 12);
    let figures = guest.machine.figures().since(&before);
    assert!(figures.walks >= 8 && figures.walk_reads >= figures.walks, "{figures:?}");
}

#[test]
fn a_repeated_fill_writes_32_bytes_a_cycle_whatever_its_unit() {
    // rep stosb, rep stosq, and stosq by itself, over a page that the caches have.
    let blocks = [(&[0xF3, 0xAA][..], 1), (&[0xF3, 0x48, 0xAB], 8), (&[0x48, 0xAB], 8)];
    let times = blocks.map(|(bytes, size)| {
        let mut guest = Guest::new(1);
        let which = block(&[bytes]);
        let fill = |guest: &mut Guest| {
            let start = guest.read_clock(0);
            for at in (0..4096 * 64).step_by(size as usize) {
                guest.store(0, &which, (0, at % 4096), size);
            }
            guest.read_clock(0) - start
        };
        fill(&mut guest);
        fill(&mut guest) as f64
    });
    let core = TimedConfig::with_tiers(&TIERS).unwrap().hardware.node.core;
    let clock_ghz = f64::from(core.clock_mhz) / 1000.0;
    let cycles = 4096.0 * 64.0 / 32.0;
    near(times[0], cycles / clock_ghz, 0.02);
    near(times[1], cycles / clock_ghz, 0.02);
    assert!(times[2] > 1.5 * times[1], "{times:?}");
}
