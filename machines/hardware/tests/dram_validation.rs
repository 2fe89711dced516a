//! The DRAM model against arithmetic: what JEDEC's timings require of a memory, written out, and
//! published results of other simulators. `cargo test -p terrace-hardware --test dram_validation --
//! --nocapture` prints the table that `VALIDATION.md` explains.
//!
//! Numbers are for DDR4-2400T (17-17-17), 1 channel, 1 rank of 8 Gb x8 devices, unless noted.

use terrace_hardware::dram::config::{DramConfig, PagePolicy};
use terrace_hardware::dram::presets;
use terrace_hardware::dram::traffic::{Load, Pattern, Traffic, TrafficReport, dram_run};
use terrace_hardware::units::Bytes;

fn ddr4() -> DramConfig {
    presets::by_name("ddr4-2400").unwrap()
}

/// Cycles in nanoseconds.
fn ns(config: &DramConfig, cycles: u32) -> f64 {
    f64::from(cycles * config.timing.clock_ps) / 1000.0
}

fn reads(config: &DramConfig, pattern: Pattern, load: Load) -> TrafficReport {
    dram_run(config, &Traffic::reads(pattern, load)).unwrap()
}

/// Prints a line of the table and holds the model to the error stated.
#[track_caller]
fn compare(what: &str, got: f64, expected: f64, error_percent: f64) {
    let error = (got / expected - 1.0) * 100.0;
    println!("{what:58} model {got:8.3}  expected {expected:8.3}  error {error:+6.2} %");
    assert!(error.abs() <= error_percent, "{what}: {got} is off {expected} by {error:.2} %");
}

#[test]
fn idle_latencies_are_the_sums_of_their_timings() {
    let mut c = ddr4();
    c.controller.refresh = false;
    let t = c.timing.clone();
    let burst = c.organization.burst_cycles();
    let one = Load::Outstanding(1);

    // The bank is closed: activate, read, burst. 17 + 17 + 4 cycles.
    c.controller.page_policy = PagePolicy::Closed;
    let closed = reads(&c, Pattern::Random, one);
    compare(
        "idle random read, bank closed, ns",
        closed.read.p50_ns,
        ns(&c, t.rcd + t.cl + burst),
        0.0,
    );

    // Another row is open: precharge first. 17 + 17 + 17 + 4.
    c.controller.page_policy = PagePolicy::Open;
    let open = reads(&c, Pattern::Random, one);
    let conflict = ns(&c, t.rp + t.rcd + t.cl + burst);
    compare("idle random read, other row open, ns", open.read.p50_ns, conflict, 0.0);
    compare("  the mean of them", open.read.mean_ns, conflict, 0.5);

    // The row is open: read, burst. 17 + 4.
    let hit = reads(&c, Pattern::Sequential, one);
    compare("idle row hit, ns", hit.read.p50_ns, ns(&c, t.cl + burst), 0.0);

    // Refresh: a read that comes within the rfc cycles of a refresh waits for its rest. Reads at
    // random times find it with probability rfc / refi and wait rfc / 2; and on average half a cycle
    // for the clock.
    c.controller.page_policy = PagePolicy::Closed;
    c.controller.refresh = true;
    let sparse = reads(&c, Pattern::Random, Load::OfferedGbPerS(0.02));
    let wait = f64::from(t.rfc) * f64::from(t.rfc) / (2.0 * f64::from(t.refi));
    let expected = ns(&c, t.rcd + t.cl + burst) + (wait + 0.5) * ns(&c, 1);
    compare("idle random read with refresh, mean, ns", sparse.read.mean_ns, expected, 2.0);
}

#[test]
fn streams_reach_what_refresh_leaves_of_the_bus() {
    // Refresh takes the rank away from the last read before it (rtp), through precharge (rp) and
    // refresh (rfc), until the row is open again (rcd), once in refi: the formula by which
    // Ramulator 2.1's own tests judge it (tests/latency_throughput/utils/checks.py).
    for (name, load) in [("ddr4-2400", 64), ("ddr4-3200", 64), ("ddr5-4800", 128)] {
        let c = presets::by_name(name).unwrap();
        let t = &c.timing;
        let lost = f64::from(t.rtp + t.rp + t.rfc + t.rcd) / f64::from(t.refi);
        let got = reads(&c, Pattern::Sequential, Load::Outstanding(load)).achieved_gb_per_s;
        compare(
            &format!("{name} streaming reads, peak, GB/s"),
            got,
            c.peak_gb_per_s() * (1.0 - lost),
            1.0,
        );
    }
    // Published: Ramulator 2.0, DDR5-4800, 16 channels: 281.1 of 307.2 GB/s ("Cleaning up the
    // Mess", arXiv 2510.15744, section 4).
    let c = presets::by_name("ddr5-4800").unwrap();
    let got = reads(&c, Pattern::Sequential, Load::Outstanding(128)).achieved_gb_per_s;
    compare(
        "ddr5-4800 streaming, share of the bus, % (Ramulator 2.0)",
        100.0 * got / c.peak_gb_per_s(),
        100.0 * 281.1 / 307.2,
        1.0,
    );
}

#[test]
fn random_reads_reach_what_activations_allow() {
    // Each read opens a row. A rank opens at most 4 in faw, or one in rrd_s, or each bank one in rc.
    for name in ["ddr4-2400", "ddr4-3200", "ddr5-4800"] {
        let c = presets::by_name(name).unwrap();
        let (o, t) = (&c.organization, &c.timing);
        let per_cycle = [
            4.0 / f64::from(t.faw),
            1.0 / f64::from(t.rrd_s),
            f64::from(o.banks()) / f64::from(t.rc),
            1.0 / f64::from(o.burst_cycles()),
        ];
        let most = per_cycle.iter().fold(f64::MAX, |a, &b| a.min(b));
        let left = 1.0 - f64::from(t.rtp + t.rp + t.rfc) / f64::from(t.refi);
        let bound = most * f64::from(o.channels) * 64.0 / ns(&c, 1) * left;
        // Enough reads under way to keep every bank busy.
        let mut deep = c.clone();
        deep.controller.read_queue = 256;
        let got = reads(&deep, Pattern::Random, Load::Outstanding(512)).achieved_gb_per_s;
        compare(&format!("{name} random reads, peak, GB/s"), got, bound, 4.0);
        assert!(got <= bound * 1.005, "faster than the devices allow");
    }
}

/// Mean wait in an M/D/1 queue with service time `s` at utilisation `rho`.
fn md1_wait(rho: f64, s: f64) -> f64 {
    rho * s / (2.0 * (1.0 - rho))
}

#[test]
fn latency_against_load_of_one_bank_is_an_m_d_1_queue() {
    // A single bank with closed pages serves one read in tRC, whatever the row: random arrivals
    // make it the textbook queue.
    let mut c = ddr4();
    c.organization.bank_groups = 1;
    c.organization.banks_per_group = 1;
    c.controller.page_policy = PagePolicy::Closed;
    c.controller.refresh = false;
    let t = &c.timing;
    let service = ns(&c, t.rc);
    let base = ns(&c, t.rcd + t.cl + c.organization.burst_cycles()) + ns(&c, 1) / 2.0;
    for rho in [0.2, 0.4, 0.6, 0.8, 0.9] {
        let traffic = Traffic {
            requests: 1_000_000,
            ..Traffic::reads(Pattern::Random, Load::OfferedGbPerS(rho * 64.0 / service))
        };
        let got = dram_run(&c, &traffic).unwrap();
        let what = format!("one bank, load {rho}, mean latency, ns");
        compare(&what, got.read.mean_ns, base + md1_wait(rho, service), 3.0);
    }
}

#[test]
fn latency_against_load_of_a_rank_follows_its_parts() {
    // Closed pages: the base latency, the wait for the bank (M/D/1 with tRC and a 16th of the load),
    // for the rank's activations (M/D/1 with tFAW/4), and for refreshes (a vacation of rfc every
    // refi: the reads that come in one wait for its rest, and then for those before them: a fluid
    // queue). The sum leaves out that the reads a refresh held back also meet each other in their
    // banks, and same-group activations (tRRD_L): it is below the model, more so at high load.
    let mut c = ddr4();
    c.controller.page_policy = PagePolicy::Closed;
    let t = c.timing.clone();
    let base = ns(&c, t.rcd + t.cl + c.organization.burst_cycles()) + ns(&c, 1) / 2.0;
    let bank = ns(&c, t.rc);
    let rank = ns(&c, t.faw) / 4.0;
    let (rfc, refi) = (ns(&c, t.rfc), ns(&c, t.refi));
    let mut last = 0.0;
    for (load, allowed) in [
        (0.1, 3.0),
        (0.2, 4.0),
        (0.3, 5.0),
        (0.4, 5.0),
        (0.5, 6.0),
        (0.6, 7.0),
        (0.7, 10.0),
        (0.8, 14.0),
        (0.9, 20.0),
    ] {
        let rate = load / rank;
        let traffic = Traffic {
            requests: 400_000,
            ..Traffic::reads(Pattern::Random, Load::OfferedGbPerS(64.0 * rate))
        };
        let got = dram_run(&c, &traffic).unwrap();
        let refresh = rfc * rfc / (2.0 * refi) / (1.0 - load);
        let expected = base + md1_wait(rate * bank / 16.0, bank) + md1_wait(load, rank) + refresh;
        let what = format!("one rank, {:5.2} GB/s offered, mean latency, ns", 64.0 * rate);
        compare(&what, got.read.mean_ns, expected, allowed);
        assert!(got.read.mean_ns > last, "latency must grow with load");
        last = got.read.mean_ns;
    }
    // Beyond the bound the queue grows for as long as the traffic lasts.
    let over = reads(&c, Pattern::Random, Load::OfferedGbPerS(64.0 / rank * 1.2));
    assert!(over.read.p99_ns > 10_000.0);
    assert!(over.achieved_gb_per_s < 64.0 / rank);
}

#[test]
fn writes_cost_their_turnarounds() {
    // Half writes, streaming: a drain of `write_high - write_low` writes and as many reads, and one
    // turn each way: read to write loses cl + burst + gap - cwl less a burst, write to read loses
    // cwl + burst + wtr_l - ... ; both within 100 cycles. So a share of the bus between.
    let c = ddr4();
    let mixed =
        Traffic { read_share: 0.5, ..Traffic::reads(Pattern::Sequential, Load::Outstanding(64)) };
    let got = dram_run(&c, &mixed).unwrap().achieved_gb_per_s;
    let pure = reads(&c, Pattern::Sequential, Load::Outstanding(64)).achieved_gb_per_s;
    let t = &c.timing;
    let burst = c.organization.burst_cycles();
    let moved = f64::from((c.controller.write_high - c.controller.write_low) * burst);
    let turns = f64::from(t.cl + 2 - t.cwl) + f64::from(t.cwl + burst + t.wtr_l - burst);
    let expected = pure * 2.0 * moved / (2.0 * moved + turns);
    compare("streaming, half writes, GB/s", got, expected, 6.0);
    assert!(got < pure);
}

#[test]
fn queues_policies_and_maps_act_as_their_names_say() {
    let random = |c: &DramConfig| reads(c, Pattern::Random, Load::Outstanding(64));
    let stream = |c: &DramConfig| reads(c, Pattern::Sequential, Load::Outstanding(64));
    let base = ddr4();

    // First come, first served leaves banks idle.
    let mut fcfs = ddr4();
    fcfs.controller.scheduler = terrace_hardware::dram::config::Scheduler::Fcfs;
    assert!(random(&fcfs).achieved_gb_per_s < 0.5 * random(&base).achieved_gb_per_s);

    // Without interleaving over bank groups a stream pays tCCD_L instead of tCCD_S.
    let mut one_group = ddr4();
    one_group.controller.address_map = ["row", "rank", "bank", "bank-group", "column", "channel"]
        .iter()
        .map(|f| f.parse().unwrap())
        .collect();
    // A short queue, so that it does not hold a request for the next row, in another group, early.
    one_group.controller.read_queue = 8;
    let ratio = stream(&one_group).achieved_gb_per_s / stream(&base).achieved_gb_per_s;
    compare("stream within one bank group, share", ratio, 4.0 / 6.0, 5.0);

    // Two channels move twice as much.
    let mut two = ddr4();
    two.organization.channels = 2;
    let double = reads(&two, Pattern::Sequential, Load::Outstanding(128)).achieved_gb_per_s;
    compare("two channels over one", double / stream(&base).achieved_gb_per_s, 2.0, 1.0);

    // A hot row: open pages hit it, closed pages open it every time at low load.
    let hot = Traffic {
        footprint: Some(Bytes::kib(4)),
        ..Traffic::reads(Pattern::Random, Load::OfferedGbPerS(0.2))
    };
    let open = dram_run(&base, &hot).unwrap();
    let mut closed = ddr4();
    closed.controller.page_policy = PagePolicy::Closed;
    let closed = dram_run(&closed, &hot).unwrap();
    assert!(open.counts.row_hits > 50 * open.counts.row_conflicts.max(1));
    assert!(closed.counts.row_hits < closed.counts.reads / 50);
    assert!(open.read.p50_ns < closed.read.p50_ns);

    // A timeout closes rows that are not used, so that the next row is a miss, not a conflict.
    let mut timeout = ddr4();
    timeout.controller.page_policy = PagePolicy::Timeout;
    let sparse = Load::OfferedGbPerS(0.1);
    let timeout = reads(&timeout, Pattern::Random, sparse);
    assert!(timeout.counts.row_conflicts < 5_000);
    assert!(reads(&base, Pattern::Random, sparse).counts.row_conflicts > 50_000);
}
