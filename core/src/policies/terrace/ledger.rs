//! What moves cost and bring, in one unit: nanoseconds where the machine measures, else accesses.

use super::prices::Prices;
use crate::plan::Plan;
use crate::scan::{PeriodCounters, Scan};

/// Units of reads of a period.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    pub all: f64,
    /// Of them, those from slow memory.
    pub slow: f64,
    /// Those that would have been from slow memory under the first placement.
    pub slow_at_home: f64,
}

/// Prices, kept up to date by what is measured.
#[derive(Debug)]
pub struct Ledger {
    /// What a read that is slow costs more than a fast one, for each unit of reads, on average.
    pub gain: f64,
    /// The same in the last period, over what it is on average.
    pub weight: f64,
    prices: Prices,
    /// Whether reads count by the price of their period.
    weigh_reads: bool,
    /// Sums of prices by reads, and of reads: their mean is the gain.
    sums: [f64; 2],
    /// What a pair of moves costs: as two moves, and as an exchange.
    pair: [f64; 2],
    tried: [u32; 2],
    /// How many pairs the last plan had, and in which form.
    last: Option<(u64, usize)>,
    measured: bool,
    /// The length of a period.
    pub period: f64,
    /// All periods.
    pub elapsed: f64,
    /// What real moves brought against staying, less what they cost.
    pub balance: f64,
}

/// Weight of the newest in moving averages.
const NEWEST: f64 = 0.25;
/// What is left of the sums of prices after a period: the unit that rates are kept in should hardly
/// change.
const KEEP: f64 = 0.98;

impl Ledger {
    /// `pair` is taken as the cost of a pair, in accesses, until one is measured.
    /// `weigh_reads`: reads count by the price of their period.
    pub fn new(pair: f64, weigh_reads: bool) -> Self {
        Ledger {
            gain: 1.0,
            weight: 1.0,
            prices: Prices::default(),
            weigh_reads,
            sums: [0.0; 2],
            pair: [pair; 2],
            tried: [0; 2],
            last: None,
            measured: false,
            period: 0.0,
            elapsed: 0.0,
            balance: 0.0,
        }
    }

    /// Takes in a period. Says what the moves before it cost.
    pub fn period(&mut self, scan: &Scan, reads: Reads) -> f64 {
        let Reads { all, slow, slow_at_home } = reads;
        let Some(counters) = scan.counters.as_deref().filter(|m| m.elapsed_ns > 0) else {
            self.period = all;
            self.elapsed += all;
            return self.spent(None);
        };
        if !self.measured {
            // Steps of some microseconds, and a copy at 2.5 GB/s each way, until one is measured.
            let page_bytes = scan.layout.page_size().bytes();
            self.pair = [8_000.0 + page_bytes as f64 * 0.4; 2];
            self.gain = 0.0;
        }
        let extra = counters.slow_stall_ns as f64 * share_that_slowness_adds(counters);
        let seen = slow >= 1.0;
        if self.weigh_reads {
            self.prices.period(all, slow, slow_at_home, extra);
            let now = self.prices.now();
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
        self.spent(Some(counters.migration_stall_ns as f64))
    }

    fn spent(&mut self, measured: Option<f64>) -> f64 {
        let Some((pairs, form)) = self.last.take() else { return 0.0 };
        let Some(cost) = measured else { return pairs as f64 * self.pair[form] };
        let each = cost / pairs as f64;
        self.tried[form] += 1;
        let first = self.tried[form] == 1;
        self.pair[form] = if first { each } else { average(self.pair[form], each) };
        cost
    }

    /// What a unit of reads of the last period costs when it is slow.
    pub fn price(&self) -> f64 {
        self.gain * self.weight
    }

    /// Whether costs are measured, and not a guess in accesses.
    pub fn measured(&self) -> bool {
        self.measured
    }

    /// What a pair costs in the form that costs less.
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

    /// Remembers what is asked for, to be paid in the next period.
    pub fn plans(&mut self, plan: &Plan, ups: u64, downs: u64) {
        let pairs = ups.max(downs);
        self.last = (pairs > 0).then_some((pairs, usize::from(!plan.exchanges.is_empty())));
    }
}

fn average(before: f64, now: f64) -> f64 {
    before + NEWEST * (now - before)
}

/// Of the time that a program waits for slow memory, the part that it would not wait for fast.
fn share_that_slowness_adds(counters: &PeriodCounters) -> f64 {
    match counters.read_latency_ps {
        [fast, slow] if fast > 0 && slow > fast => 1.0 - fast as f64 / slow as f64,
        [0, _] | [_, 0] => 0.5,
        _ => 0.0,
    }
}
