//! Costs and gains of moves, in one unit: nanoseconds where the machine measures or samples have
//! latencies, else accesses.

use super::read_costs::ReadCosts;
use crate::plan::Plan;
use crate::scan::{PeriodCounters, Scan};

/// Units of reads of a period.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    pub all: f64,
    /// Of them, those from slow memory.
    pub slow: f64,
    /// Those that would have been from slow memory under the initial placement.
    pub slow_initially: f64,
}

/// Costs per slow read, kept up to date by measurements.
#[derive(Debug)]
pub struct Ledger {
    /// Extra cost of a slow read over a fast one, for each unit of reads, on average.
    pub gain: f64,
    /// The same in the last period, over its average.
    pub weight: f64,
    read_costs: ReadCosts,
    /// Whether reads count by the cost per slow read of their period.
    weigh_reads: bool,
    /// Sums of costs by reads, and of reads: their mean is the gain.
    sums: [f64; 2],
    /// Cost of a pair of moves: as two moves, and as an exchange.
    pair: [f64; 2],
    tried: [u32; 2],
    /// How many pairs the last plan had, how many of them were due, and in which form.
    last: Option<(u64, u64, usize)>,
    measured: bool,
    /// Whether latencies of sampled reads give costs in time, though no time is measured.
    by_latency: bool,
    /// Of sampled reads from fast and from slow memory: sums of their latencies in ns, and how many.
    latencies: [[f64; 2]; 2],
    /// The length of a period: in accesses all of them, or, where bits are sampled, those that
    /// would be slow under the initial placement; by latencies, what all reads would add if slow.
    pub period: f64,
    /// Number of all periods.
    pub elapsed: f64,
    /// Gain of real moves against staying, less their cost.
    pub balance: f64,
}

/// Of the time that a slow read takes longer, the part that a program waits for where that is not
/// measured: others are under way meanwhile. An assumption.
const WAITED_FOR: f64 = 0.5;
/// Samples of each tier from which on their latencies count.
const LEAST_SAMPLES: f64 = 30.0;
/// Weight of the newest in moving averages.
const NEWEST: f64 = 0.25;
/// Part of the sums of costs that is kept after a period: the unit of the rates should hardly
/// change.
const KEEP: f64 = 0.98;

impl Ledger {
    /// `pair` is taken as the cost of a pair, in accesses, until one is measured. `weigh_reads`:
    /// reads count by the cost per slow read of their period.
    pub fn new(pair: f64, weigh_reads: bool) -> Self {
        Ledger {
            gain: 1.0,
            weight: 1.0,
            read_costs: ReadCosts::default(),
            weigh_reads,
            sums: [0.0; 2],
            pair: [pair; 2],
            tried: [0; 2],
            last: None,
            measured: false,
            by_latency: false,
            latencies: [[0.0; 2]; 2],
            period: 0.0,
            elapsed: 0.0,
            balance: 0.0,
        }
    }

    /// Adds a period before which so many pairs were moved. Returns the cost of the moves, but for
    /// those that were due: staying would have cost them, too.
    pub fn period(&mut self, scan: &Scan, reads: Reads, moved_pairs: u64) -> f64 {
        let Reads { all, slow, slow_initially } = reads;
        let Some(counters) = scan.counters.as_deref().filter(|m| m.elapsed_ns > 0) else {
            self.take_latencies(scan);
            self.period = match scan.counts {
                _ if self.by_latency => all * self.gain,
                // Of ranges that are accessed all the time, samples find hundreds of times as many
                // accesses as of those that moves are about. So there a period is what could be
                // gained in it.
                Some(_) => slow_initially,
                None => all,
            };
            self.elapsed += self.period;
            return self.spent(moved_pairs, None);
        };
        if !self.measured {
            self.pair = [unmeasured_pair_ns(scan); 2];
            self.gain = 0.0;
        }
        let extra = counters.slow_stall_ns as f64 * share_that_slowness_adds(counters);
        let seen = slow >= 1.0;
        if self.weigh_reads {
            self.read_costs.period(all, slow, slow_initially, extra);
            let now = self.read_costs.now();
            self.sums = [self.sums[0] * KEEP + now * all, self.sums[1] * KEEP + all];
            self.measured |= seen;
            if self.measured {
                self.gain = self.sums[0] / self.sums[1].max(1e-9);
            }
            self.weight = if self.gain > 0.0 { now / self.gain } else { 1.0 };
        } else if seen {
            let now = extra / slow;
            self.gain = if self.measured { average(self.gain, now) } else { now };
            self.measured = true;
        }
        self.period =
            (counters.elapsed_ns - counters.migration_stall_ns.min(counters.elapsed_ns)) as f64;
        self.elapsed += counters.elapsed_ns as f64;
        self.spent(moved_pairs, Some(counters.migration_stall_ns as f64))
    }

    /// The same of a period whose reads are not known: nothing but moves counts.
    pub fn unknown_period(&mut self, moved_pairs: u64) {
        self.balance -= self.spent(moved_pairs, None);
    }

    /// Takes costs from the latencies of sampled reads, once both tiers have had some.
    fn take_latencies(&mut self, scan: &Scan) {
        let counters = scan.counters.as_deref().filter(|m| m.samples.is_some());
        let Some(counters) = counters.filter(|m| m.reads_per_sample > 0) else { return };
        let reads_per_sample = f64::from(counters.reads_per_sample);
        let of_tiers = counters.reads.iter().zip(counters.read_latency_ps);
        for (sums, (&reads, latency_ps)) in self.latencies.iter_mut().zip(of_tiers) {
            // A source may not know how long reads took.
            let known = if latency_ps > 0 { reads } else { 0 };
            let samples = known as f64 / reads_per_sample;
            let ns = latency_ps as f64 / 1000.0;
            *sums = [sums[0] * KEEP + ns * samples, sums[1] * KEEP + samples];
        }
        let [fast, slow] = self.latencies;
        self.by_latency |= fast[1].min(slow[1]) >= LEAST_SAMPLES;
        if self.by_latency {
            let [fast, slow] = [fast, slow].map(|[ns, samples]| ns / samples.max(1.0));
            self.gain = (slow - fast).max(0.0) * WAITED_FOR * reads_per_sample;
            self.pair = [unmeasured_pair_ns(scan); 2];
        }
    }

    fn spent(&mut self, moved_pairs: u64, measured: Option<f64>) -> f64 {
        let Some((pairs, due, form)) = self.last.take() else { return 0.0 };
        // Where costs are a guess, moves that failed have none.
        let Some(cost) = measured else {
            return moved_pairs.saturating_sub(due) as f64 * self.pair[form];
        };
        let chosen = pairs.saturating_sub(due) as f64;
        let each = cost / pairs as f64;
        self.tried[form] += 1;
        let first = self.tried[form] == 1;
        self.pair[form] = if first { each } else { average(self.pair[form], each) };
        chosen * each
    }

    /// Cost of a unit of reads of the last period when it is slow.
    pub fn read_cost(&self) -> f64 {
        self.gain * self.weight
    }

    /// Whether costs are in time: measured, or by the latencies of sampled reads.
    pub fn timed(&self) -> bool {
        self.measured || self.by_latency
    }

    /// Whether costs are measured, and not a guess.
    pub fn measured(&self) -> bool {
        self.measured
    }

    /// Cost of a pair in the cheaper form.
    pub fn pair(&self) -> f64 {
        self.pair[self.form()]
    }

    /// Whether pages are better exchanged than moved one after the other: each is tried twice where
    /// costs are measured, then the cheaper one is taken.
    pub fn exchanges(&self) -> bool {
        self.form() == 1
    }

    fn form(&self) -> usize {
        match self.tried {
            _ if !self.measured => 1,
            [0..2, _] => 0,
            [_, 0..2] => 1,
            _ => usize::from(self.pair[1] < self.pair[0]),
        }
    }

    /// Remembers the requested moves, whose cost the next period has. So many demotions were due.
    pub fn plans(&mut self, plan: &Plan, ups: u64, downs: u64, due: u64) {
        let pairs = ups.max(downs);
        self.last = (pairs > 0).then_some((pairs, due, usize::from(!plan.exchanges.is_empty())));
    }
}

/// What a pair of moves takes before one is measured: steps of some microseconds, and a copy at
/// 2.5 GB/s each way.
fn unmeasured_pair_ns(scan: &Scan) -> f64 {
    8_000.0 + scan.layout.page_size().bytes() as f64 * 0.4
}

fn average(before: f64, now: f64) -> f64 {
    before + NEWEST * (now - before)
}

/// Of the time that a program waits for slow memory, the part that fast memory would save.
fn share_that_slowness_adds(counters: &PeriodCounters) -> f64 {
    match counters.read_latency_ps {
        [fast, slow] if fast > 0 && slow > fast => 1.0 - fast as f64 / slow as f64,
        [0, _] | [_, 0] => 0.5,
        _ => 0.0,
    }
}
