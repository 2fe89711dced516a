use super::*;
use crate::config::{TierSpeed, TimedConfig};
use crate::figures::Figures;
use crate::flow::analyse;
use crate::samples::SamplePlan;
use crate::windows::WindowPlan;

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
    /// Whether accesses are reported.
    detail: bool,
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
        Self::with_windows(processors, None)
    }

    fn with_windows(processors: u32, windows: Option<WindowPlan>) -> Self {
        let config = TimedConfig { windows, ..TimedConfig::with_tiers(&TIERS).unwrap() };
        let config = config.sized(processors, &[1024 * MIB, 1024 * MIB]);
        Guest {
            machine: TimedMachine::new(&config, 5000).unwrap(),
            count: 5000,
            bias: 0,
            detail: true,
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
        self.detail = step.detail.unwrap_or(self.detail);
        if self.detail {
            self.machine.access(cpu, &which.1[0], access, || Some((tier, at)));
        } else {
            self.machine.warm(cpu, access, || Some((tier, at)), || None);
        }
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
fn a_sample_takes_time_of_the_program() {
    let ns_a_load = |accesses_per_sample: Option<u32>| {
        let mut guest = Guest::new(1);
        if let Some(accesses_per_sample) = accesses_per_sample {
            let plan = SamplePlan { accesses_per_sample, ..SamplePlan::default() };
            guest.machine.sample(Sampling::new(plan));
        }
        guest.run(0, true, 1, 0, 1 << 13);
        guest.run(0, true, 1, 1 << 14, 1 << 17)
    };
    let unsampled = ns_a_load(None);
    // 1 us for one load in a hundred, and all while the event is not throttled.
    near(ns_a_load(Some(100)) - unsampled, 10.0, 0.15);
    near(ns_a_load(Some(1000)) - unsampled, 1.0, 0.4);
    // At most 100,000 a second: of 300 and 1,000 ns each, 10 % of the time.
    near(ns_a_load(Some(1)), unsampled / 0.9, 0.02);
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
fn last_level_misses_are_known_by_tier_of_programs_and_of_the_kernel() {
    let mut guest = Guest::new(1);
    let flow = analyse([&[0x48, 0x8b, 0x00][..]].into_iter(), true);
    let kernel: (&'static Block, Vec<Site>) = (Box::leak(Box::new(flow.block)), flow.sites);
    guest.run(0, true, 0, 0, 300);
    guest.run(0, true, 1, 0, 100);
    // Lines that no one has had, and one that is in the caches by now.
    for line in 0..50 {
        guest.load(0, &kernel, 1, 600 * MIB + line * 8192);
    }
    guest.load(0, &kernel, 1, 600 * MIB);
    let figures = guest.machine.figures();
    let of_tier = [figures.tiers[0].misses, figures.tiers[1].misses];
    assert_eq!(of_tier, [[300, 0], [100, 50]]);
    assert_eq!(figures.misses.map(|levels| levels[2]), [400, 50]);
    assert_eq!(figures.first_tier_shares(), [Some(0.75), Some(0.0)]);
    assert_eq!(Figures::default().first_tier_shares(), [None, None]);
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

/// A program of phases: loads of few lines and of many, in parts that change; returns its time in
/// ns, and its figures.
fn phases(windows: Option<WindowPlan>) -> (f64, Figures) {
    use terrace_hardware::random::Random;
    // mov rcx,[rbx], and seven more.
    let work = block(&[
        &[0x48, 0x8b, 0x0b],
        &[0x90],
        &[0x90],
        &[0x90],
        &[0x90],
        &[0x90],
        &[0x90],
        &[0x90],
    ]);
    let mut guest = Guest::with_windows(1, windows);
    let mut random = Random::new(7);
    let (mut left, mut far) = (0, 0);
    let start = guest.read_clock(0);
    for _ in 0..600_000 {
        if left == 0 {
            (left, far) = (1000 + random.below(9000), random.below(20));
        }
        left -= 1;
        let (tier, lines) = match random.below(100) {
            n if n < far => (random.below(2) as usize, 1 << 23),
            _ => (0, 128),
        };
        let at = random.below(lines) * 64;
        guest.load(0, &work, tier, at);
    }
    ((guest.read_clock(0) - start) as f64, guest.machine.figures())
}

#[test]
fn sampled_time_is_that_of_the_whole_within_its_error() {
    let (whole_ns, whole) = phases(None);
    let mut covered = 0;
    for seed in 1..=5 {
        let plan = WindowPlan {
            window_instructions: 4000,
            warm_up_instructions: 4000,
            interval_instructions: 40_000,
            seed,
        };
        let (sampled_ns, sampled) = phases(Some(plan));
        let windows = sampled.windows.clone().unwrap();
        assert!(windows.sums[0].windows > 90.0, "{windows:?}");
        let error_ns = windows.error_ns().unwrap();
        assert!(error_ns < 0.15 * whole_ns, "{error_ns} of {whole_ns}");
        covered += usize::from((sampled_ns - whole_ns).abs() <= error_ns);
        // What was counted in windows only stands for all.
        let all = sampled.extrapolated();
        near(all.references as f64, whole.references as f64, 0.01);
        near(all.tiers[1].reads as f64, whole.tiers[1].reads as f64, 0.15);
        assert!(sampled.references < whole.references / 3);
        assert_eq!(all.instructions, whole.instructions);
        assert_eq!(phases(Some(plan)), (sampled_ns, sampled));
    }
    // One in twenty may be beyond a 95 % interval.
    assert!(covered >= 4, "{covered} of 5");
}

#[test]
fn caches_follow_what_is_between_windows() {
    // More lines than the first two levels hold, again and again, and within the last one.
    let chase = |windows| {
        let mut guest = Guest::with_windows(1, windows);
        let chase = guest.chase.clone();
        let start = guest.read_clock(0);
        for line in 0..1u64 << 21 {
            guest.load(0, &chase, 1, (line * 7919 % (1 << 17)) * 64);
        }
        ((guest.read_clock(0) - start) as f64, guest.machine.figures())
    };
    let plan = WindowPlan {
        window_instructions: 2000,
        warm_up_instructions: 2000,
        interval_instructions: 300_000,
        seed: 1,
    };
    let (whole_ns, whole) = chase(None);
    let (sampled_ns, sampled) = chase(Some(plan));
    near(sampled_ns, whole_ns, 0.02);
    // All lines are read once, in the first interval.
    near(sampled.extrapolated().tiers[1].reads as f64, whole.tiers[1].reads as f64, 0.02);
}

#[test]
fn a_warm_up_takes_no_time_of_its_own() {
    // Here an instruction of the second warm-up takes twice what one of a window does.
    let plan = WindowPlan {
        window_instructions: 1000,
        warm_up_instructions: 1000,
        interval_instructions: 10_000,
        seed: 1,
    };
    let mut windows = crate::windows::Windows::new(plan, 1, 100.0);
    let mut spent = Spent::default();
    let mut add = |instructions: u64, ps: u64| {
        spent.instructions[0] += instructions;
        spent.busy_ps[0] += ps;
        vec![spent]
    };
    windows.next(add(10_000, 10_000 * 500), Figures::default());
    let plain = windows.next(add(1000, 1000 * 400), Figures::default());
    assert!(windows.is_plain() && (4000..12_000).contains(&plain), "{plain}");
    let ps = (0..plain).map(|_| windows.plain_ps(0, 0, 1)).sum();
    near(ps as f64, plain as f64 * 400.0, 0.001);
    windows.next(add(plain, ps), Figures::default());
    windows.next(add(1000, 1000 * 800), Figures::default());
    let plain = windows.next(add(1000, 1000 * 400), Figures::default());
    // The warm-up took 400 ps an instruction too much.
    let ps: u64 = (0..plain).map(|_| windows.plain_ps(0, 0, 1)).sum();
    near(ps as f64, plain as f64 * 400.0 - 1000.0 * 400.0, 0.001);
    let found = windows.complete(&add(plain, ps), Figures::default()).windows.unwrap();
    assert_eq!((found.sums[0].windows, found.sums[0].n), (2.0, 2000.0));
    assert_eq!(found.error_ns(), Some(0.0), "all windows are alike");
}
