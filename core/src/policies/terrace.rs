//! Terrace's own policy: all signals together, and no move that does not pay.
//!
//! **Read rates.** The policy estimates how often each page is read: from sampled reads where the
//! machine has them; else from accessed bits and the counts of reads by tier (`estimate`); else one
//! read for each accessed bit. A read counts by the cost of slow reads in its period (`read_costs`):
//! where slow reads overlap, each one costs less. Three exponentially weighted moving averages
//! (EWMA) with a short, a middle and a long horizon hold the rates (`rates`). Pages of a region
//! whose rates differ by no more than chance share one rate, so a region that is used evenly moves
//! whole and a skewed one page by page: each region has its own granularity, where the
//! migration-granularity paper has one for each process. Pages of a region that move the same way
//! in a period share one TLB shootdown.
//!
//! **When a move pays.** The time that a page saves in fast memory within the horizon must exceed
//! the cost of its moves (`ledger`). Both come from the machine's counters where it has them:
//! stalls on slow reads, and the time that the program was stopped for earlier moves. Where only
//! samples of reads have latencies, as live, costs follow from those. Only the reads
//! in excess of those of the evicted page count, less a margin for chance. An exchange and a pair of
//! moves are each tried twice, then the cheaper one is used; without counters, exchanges.
//!
//! **Choice of the horizon.** As in AMP (adaptive-migration-policy paper, section 4) each horizon
//! has a shadow placement. Its score is the time that the shadow placement saves against the initial
//! placement, less the cost of its moves, which is spread over the horizon. The best horizon is
//! applied once its score exceeds `win_threshold` periods.
//!
//! **A new phase.** When the likeness of reads and rates drops below its average, the middle
//! horizon takes over the rates of the short one, and past scores are scaled down. So following a
//! phase takes some periods, where AMP needs a window of 36. The long horizon, some 200 periods,
//! keeps its rates over phases: they rank the pages of a program whose phases recur.
//!
//! **How long a phase lasts.** A move must also pay within the age of the phase times
//! `phase_age_factor`: the longer a phase has lasted, the longer it is expected to last. For the
//! long horizon the age is the time since the program last allocated in quantity, so little moves
//! while a program sets itself up.
//!
//! **Bounded regret.** The placement is compared with the initial placement, as far as the budget has
//! allowed it since (`bound_initial`); the cost of moves and
//! `return_cost_share` of the cost of moving everything back are taken off. When the sum is below
//! the regret budget, a share of the time that has passed, nothing moves until it recovers, or,
//! within the regret reserve, until a shadow placement's score exceeds `regret_reserve_threshold`
//! periods. If the placement goes on losing meanwhile, pages return to their initial placement
//! (`retreat`), so a wrong decision costs no more than its moves and the way back. Where reads are
//! counted and not sampled, only a part (`gain_discount`) of the estimated gain counts.
//!
//! Each part can be switched off by a parameter; `docs/policies.md` has the gain of each part, the
//! source of the defaults, and the workloads.

mod estimate;
mod ledger;
mod others;
mod rates;
mod read_costs;

use super::access_unit::AccessUnit;
use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::operations::OperationSize;
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::{KeyCounts, Selection};
use estimate::Estimate;
use ledger::{Ledger, Reads};
use others::Others;
use rates::{COLDEST, HORIZONS, Rates, key, rate_of};

declare_parameters! {
    struct Parameters {
        #[serde(alias = "memory")]
        horizon: String = "adaptive".to_owned(), written "\"adaptive\"", one of ["adaptive", "short", "middle", "long"]
            => "\"adaptive\", or always \"short\", \"middle\" or \"long\"";
        regions: bool = true
            => "pages of a 64 KB region share a rate where theirs differ by no more than chance";
        operation_bytes: u64 = REGION_BYTES, written "65536"
            => "pages of a region of this size that go the same way have one shootdown";
        weigh_reads: bool = true
            => "reads count by what slow reads of their period cost; false: all alike";
        count_reads: bool = true
            => "without samples, counts of reads by tier say how often pages are read";
        #[serde(alias = "doubt")]
        gain_discount: f64 = 0.6, from 0 to 1
            => "share of the estimated gain that counts where reads are counted and not sampled";
        exchange: String = "measured".to_owned(), written "\"measured\"", one of ["measured", "always", "never"]
            => "\"measured\": whichever costs less; \"always\" or \"never\"";
        weigh_costs: bool = true
            => "false: moves are taken to cost nothing, and nothing bounds the loss";
        follow_phases: bool = true
            => "forgets when reads are suddenly unlike the rates; not by samples where no time is measured, as live";
        keep_long: bool = true => "the long horizon keeps its rates over phases";
        retreat: bool = true
            => "returns to the initial placement when moves have lost and go on losing";
        #[serde(alias = "lindy")]
        phase_age_factor: f64 = 0.7, from 0.01 to 1000000
            => "a move must also pay within the age of the phase times this";
        #[serde(alias = "exposure")]
        return_cost_share: f64 = 1.0, from 0 to 10
            => "share of the cost of moving everything back that counts as lost";
        #[serde(alias = "allowance")]
        regret_budget: f64 = 0.01, from 0 to 1
            => "loss by moves that is allowed, over the time passed";
        #[serde(alias = "allowance_periods")]
        regret_budget_periods: f64 = 0.6, from 0 to 1000
            => "or this many periods, while that is more";
        patience: f64 = 2.0, from 0.01 to 1000 => "a move must pay within the horizon times this";
        #[serde(alias = "trust")]
        win_threshold: f64 = 0.1, from 0 to 1000
            => "periods that a shadow placement must have saved before its moves are made";
        #[serde(alias = "conviction")]
        regret_reserve_threshold: f64 = 2.0, from 0 to 1000
            => "periods that it must have saved to go on when the regret budget is spent";
        #[serde(alias = "overdraft")]
        regret_reserve: f64 = 0.006, from 0 to 1
            => "share of the time passed that may be lost then, beyond the regret budget";
        margin: f64 = 1.0, from 0 to 10
            => "standard deviations of chance that a difference of rates must exceed";
        score_keep: f64 = 0.95, from 0 to 0.999
            => "share of the horizons' scores that is kept after a period";
        pair_accesses: f64 = 1.2, from 0 to 1000
            => "where nothing is measured: accesses that must be saved to pay for moving one \
                page up and one down";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "terrace",
    summary: "moves what pays: adaptive EWMA horizon, granularity by region, costs weighed",
    advice: "in simulations with counters or samples: the best or within 2 % of it in 39 of 40 new cases; with accessed bits alone, as on live machines without samples, it has lost up to 20 %: take amp there",
    source: "docs/policies.md",
    parameters: Parameters::DOCS,
    build: |value, _seed| Ok(Box::new(Terrace::new(parameters(KIND.name, value)?))),
};

/// Old names of parameters, read for one release, and the names that replace them.
pub const RENAMED: &[(&str, &str)] = &[
    ("memory", "horizon"),
    ("doubt", "gain_discount"),
    ("lindy", "phase_age_factor"),
    ("exposure", "return_cost_share"),
    ("allowance", "regret_budget"),
    ("allowance_periods", "regret_budget_periods"),
    ("trust", "win_threshold"),
    ("conviction", "regret_reserve_threshold"),
    ("overdraft", "regret_reserve"),
];

impl Parameters {
    /// Periods within which a move by a horizon must pay.
    fn patience_periods(&self, horizon: usize) -> f64 {
        self.patience / (1.0 - f64::from(KEEP[horizon]))
    }
}

/// Share of each horizon's averages that is kept after a period.
const KEEP: [f32; HORIZONS] = [0.6, 0.95, 0.995];
/// The long one.
const LONG: usize = HORIZONS - 1;
/// Their names, for the applied name in decisions.
const APPLIED: [&str; HORIZONS] = ["terrace-short", "terrace-middle", "terrace-long"];
/// A program that allocates more than one page in so many in a period is still setting itself up.
const GROWTH: usize = 64;
/// Part of the placement's score that is kept after a period.
const STANDING_KEEP: f64 = 0.98;
/// Region whose pages are taken to be alike.
const REGION_BYTES: u64 = 64 << 10;

/// A horizon's shadow placement and its score.
#[derive(Debug, Default)]
struct Shadow {
    fast: PageBits,
    /// Gain of its places against staying, less moves; older periods count less.
    score: f64,
    /// Cost of its moves that is not charged yet: it is spread over the time that they last.
    debt: f64,
}

#[derive(Debug)]
struct Terrace {
    parameters: Parameters,
    /// The horizon that is always applied, if one is.
    fixed: Option<usize>,
    features: FeatureCounter,
    rates: Rates,
    estimate: Estimate,
    shadows: [Shadow; HORIZONS],
    /// One bit per page: first placed in fast memory, and within the budget since.
    initial_placement: PageBits,
    others: Others,
    ledger: Ledger,
    /// Moving average of the likeness of reads and rates.
    likeness: f32,
    /// Periods since the beginning or since averages were forgotten.
    settled: u32,
    /// Periods since the last of these or since memory was last allocated in quantity.
    age: u32,
    /// Periods since memory was last allocated in quantity.
    since_growth: u32,
    /// Gain of the placement against the first one lately, moves not counted.
    standing: f64,
    applied: usize,
    reads: Vec<f32>,
    /// Whether they are samples.
    sampled: bool,
    /// Whether they are from accessed bits that were sampled several times in the period.
    bits_sampled: bool,
    unit: AccessUnit,
}

impl Terrace {
    fn new(parameters: Parameters) -> Self {
        let p = &parameters;
        let fixed = match p.horizon.as_str() {
            "short" => Some(0),
            "middle" => Some(1),
            "long" => Some(2),
            _ => None,
        };
        Terrace {
            fixed,
            features: FeatureCounter::default(),
            rates: Rates::new(KEEP),
            estimate: Estimate::default(),
            shadows: Default::default(),
            initial_placement: PageBits::default(),
            others: Others::default(),
            ledger: Ledger::new(p.pair_accesses, p.weigh_reads),
            likeness: 0.0,
            settled: 0,
            age: 0,
            since_growth: 0,
            standing: 0.0,
            applied: 2,
            reads: Vec::new(),
            sampled: false,
            bits_sampled: false,
            unit: AccessUnit::default(),
            parameters,
        }
    }

    /// Takes units of reads of each page in the period; whether they are known.
    fn take_reads(&mut self, scan: &Scan) -> bool {
        let unit = self.unit.follow(scan);
        if unit.is_new {
            self.begin_anew();
        }
        self.rates.scale(unit.factor);
        self.sampled = unit.by_samples;
        self.bits_sampled = !self.sampled && scan.counts.is_some();
        if !unit.known {
            self.reads = vec![0.0; scan.pages()];
            return false;
        }
        let Some(samples) = scan.samples() else {
            self.reads = self.estimate.reads(scan, self.parameters.count_reads);
            return true;
        };
        self.reads = vec![0.0; scan.pages()];
        for page in scan.accessed.iter_ones() {
            self.reads[page] = f32::from(samples[page]);
        }
        true
    }

    /// Counts in another unit from now on: rates and gains of the one before say nothing.
    fn begin_anew(&mut self) {
        self.ledger = Ledger::new(self.parameters.pair_accesses, self.parameters.weigh_reads);
        self.rates.clear();
        for shadow in &mut self.shadows {
            (shadow.score, shadow.debt) = (0.0, 0.0);
        }
        (self.standing, self.likeness, self.settled) = (0.0, 0.0, 0);
    }

    /// Reads of the pages that are fast in a placement.
    fn hits(&self, fast: &PageBits) -> f64 {
        fast.iter_ones().map(|page| f64::from(self.reads[page])).sum()
    }

    /// The part that counts of an estimated gain or loss. Where reads are counted and not sampled,
    /// how often pages are read is a guess, and a guess that moves are based on errs to their
    /// advantage: they gain less. Of accessed bits alone all is a guess, costs as well; there the
    /// part would only make the policy slow.
    fn believed(&self, brought: f64) -> f64 {
        let guessed = !self.sampled && self.ledger.measured();
        if guessed && brought > 0.0 { self.parameters.gain_discount * brought } else { brought }
    }

    /// Detects a new phase. Not by samples where no time is measured, as live: they are few, and a program
    /// whose rounds are longer than a period would seem to begin a phase with each part of a round.
    fn follow_phase(&mut self) {
        let now = self.rates.likeness(1, &self.reads);
        let is_known = !self.sampled || self.ledger.measured();
        let new = (self.parameters.follow_phases && is_known)
            && self.settled >= 4
            && now < 0.5 * self.likeness
            && self.reads.iter().any(|&r| r > 0.0);
        self.rates.observe(&self.reads);
        self.settled = self.settled.saturating_add(1);
        self.age = self.age.saturating_add(1);
        self.since_growth = self.since_growth.saturating_add(1);
        if new {
            self.rates.forget(if self.parameters.keep_long { LONG } else { HORIZONS });
            self.shadows.iter_mut().for_each(|shadow| shadow.score *= 0.25);
            (self.settled, self.age) = (0, 0);
        } else {
            self.likeness += 0.2 * (now - self.likeness);
        }
    }

    /// Periods within which a move by a horizon must pay: a state that has lasted long will last
    /// long, one that has just begun may end as soon. The long horizon spans phases, so that its
    /// age is the program's. Accessed bits alone give too little of costs to wait for that.
    fn horizon_periods(&self, horizon: usize) -> f64 {
        let patience = self.parameters.patience_periods(horizon);
        if !self.ledger.timed() {
            return patience;
        }
        let kept = horizon == LONG && self.parameters.keep_long;
        let age = f64::from(if kept { self.since_growth } else { self.age });
        patience.min((self.parameters.phase_age_factor * (age + 1.0)).max(1.0))
    }

    /// The moves by a horizon's rates, from this placement.
    fn select(&self, horizon: usize, keys: &[u8], fast: &PageBits, budget: &Budget) -> Selection {
        let p = &self.parameters;
        let counts = count(keys, fast);
        // A page stays about as hot for as long as the horizon.
        let worth = self.ledger.gain * self.horizon_periods(horizon);
        let noise = f64::from(self.rates.noise(horizon));
        let pair = if p.weigh_costs { self.ledger.pair() } else { 0.0 };
        // Accessed bits that are read once a period are no samples: chance has no part in them.
        let by_chance = self.sampled || self.bits_sampled;
        let margin = if p.weigh_costs && by_chance { p.margin } else { 0.0 };
        let trade = |up: u8, down: u8| {
            let (up, down) = (f64::from(rate_of(up)), f64::from(rate_of(down)));
            let chance = margin * ((up + down) * noise).sqrt();
            up > down && (up - down - chance) * worth > pair
        };
        // Into free room one move does.
        let promote = |up: u8| f64::from(rate_of(up)) * worth > 0.8 * pair && up < COLDEST;
        counts.select_if(COLDEST, budget, promote, trade)
    }

    /// The horizon with the best score, and whether its moves are made.
    fn choose(&self, scan: &Scan) -> (usize, bool) {
        let best = |a: usize, b: usize| {
            if self.shadows[b].score > self.shadows[a].score { b } else { a }
        };
        // Of equals the applied one.
        let horizon = self.fixed.unwrap_or((0..HORIZONS).fold(self.applied, best));
        if !self.parameters.weigh_costs {
            return (horizon, true);
        }
        let p = &self.parameters;
        let at_first = p.regret_budget_periods * self.ledger.period;
        let least = at_first.max(p.regret_budget * self.ledger.elapsed);
        let period = self.ledger.period.max(1e-9);
        let score = self.shadows[horizon].score;
        // Going back would cost as much as the moves did; a cost that is a guess is not added.
        let back = if self.ledger.measured() { self.pairs_from_initial(scan) } else { 0.0 };
        let exposed = p.return_cost_share * back * self.ledger.pair();
        let left = self.ledger.balance - exposed;
        let regret_reserve = p.regret_reserve * self.ledger.elapsed;
        let convinced = score > p.regret_reserve_threshold * period;
        let affordable = left > -least || (convinced && left > -least - regret_reserve);
        (horizon, affordable && score > p.win_threshold * period)
    }

    /// Whether pages should go back to where they were first placed: they lose where they are, and
    /// going back pays within the time of the long horizon.
    fn retreats(&self, scan: &Scan) -> bool {
        let p = &self.parameters;
        if !(p.retreat && p.weigh_costs && self.ledger.measured() && self.standing < 0.0) {
            return false;
        }
        let loss = -self.standing * (1.0 - STANDING_KEEP);
        let pairs = self.pairs_from_initial(scan);
        pairs >= 1.0 && loss * self.horizon_periods(LONG) > pairs * self.ledger.pair()
    }

    /// Pages to promote and to demote on the way back, as many as may move and have room.
    fn back_to_initial(&self, scan: &Scan, budget: &Budget) -> (PageBits, PageBits) {
        let (mut ups, mut downs) = (PageBits::new(scan.pages()), PageBits::new(scan.pages()));
        let limit = |pages: u64| usize::try_from(pages).unwrap_or(usize::MAX);
        let most = limit(budget.moved_pages / 2);
        let down = |&page: &usize| !self.initial_placement.get(page);
        scan.fast.iter_ones().filter(down).take(most).for_each(|page| downs.set(page, true));
        let stay = (scan.fast.count() - downs.count()) as u64;
        let room = limit(budget.fast_pages.saturating_sub(stay));
        let up = |&page: &usize| !scan.fast.get(page);
        self.initial_placement
            .iter_ones()
            .filter(up)
            .take(most.min(room))
            .for_each(|page| ups.set(page, true));
        (ups, downs)
    }

    /// Takes off the initial placement what the budget does not allow, as demotions that are due take
    /// it off the real one: the coldest pages by these keys. Compared with more than it may have, the
    /// policy would lose whatever it does, and move nothing any more.
    fn bound_initial(&mut self, keys: &[u8], budget: &Budget) {
        let due = due(&self.initial_placement, budget);
        if due > 0 {
            let only_due = Budget { moved_pages: due, ..*budget };
            let selection = count(keys, &self.initial_placement).select(COLDEST, &only_due, 0);
            selection.place(keys, &mut self.initial_placement);
        }
    }

    /// A plan of moves, in operations of regions.
    fn plan(&self, scan: &Scan, ups: &PageBits, downs: &PageBits) -> Plan {
        let exchange = match self.parameters.exchange.as_str() {
            "always" => true,
            "never" => false,
            _ => self.ledger.exchanges(),
        };
        let mut plan = if exchange {
            let mut plan = PlanBuilder::new(&scan.layout);
            let words = ups.words().iter().zip(downs.words()).enumerate();
            words.for_each(|(word, (&up, &down))| plan.word(word, up, down));
            plan.finish()
        } else {
            PlanBuilder::apart(&scan.layout, ups, downs)
        };
        if !plan.is_empty() {
            let mut spaces: Vec<_> = scan.layout.extents().iter().map(|e| e.space).collect();
            spaces.dedup();
            let of = |space| OperationSize::both_ways(space, self.parameters.operation_bytes);
            plan.operation_sizes = spaces.into_iter().map(of).collect();
        }
        plan
    }

    /// Pairs of pages that are not where they were first placed.
    fn pairs_from_initial(&self, scan: &Scan) -> f64 {
        let differ = self.initial_placement.words().iter().zip(scan.fast.words());
        differ
            .map(|(initial_placement, fast)| f64::from((initial_placement ^ fast).count_ones()))
            .sum::<f64>()
            / 2.0
    }

    /// What the placement brought in the last period, and what the moves before it cost: of this
    /// policy and of each horizon's shadow.
    fn account(&mut self, scan: &Scan) {
        let all: f64 = self.reads.iter().map(|&r| f64::from(r)).sum();
        let hits = self.hits(&scan.fast);
        let initially = self.hits(&self.initial_placement);
        let of_shadows = [0, 1, 2].map(|horizon: usize| self.hits(&self.shadows[horizon].fast));
        let reads = Reads { all, slow: all - hits, slow_initially: all - initially };
        let moved_pairs = self.others.moved_pairs(&scan.fast);
        let spent = self.ledger.period(scan, reads, moved_pairs);
        let read_cost = self.ledger.read_cost();
        let brought = self.believed((hits - initially) * read_cost);
        self.ledger.balance += brought - spent;
        self.standing = self.standing * STANDING_KEEP + brought;
        for (horizon, hits) in of_shadows.into_iter().enumerate() {
            let brought = self.believed((hits - initially) * read_cost);
            let shadow = &mut self.shadows[horizon];
            let charge = shadow.debt / self.parameters.patience_periods(horizon).max(1.0);
            shadow.debt -= charge;
            shadow.score = shadow.score * self.parameters.score_keep + brought - charge;
        }
        let weight = self.ledger.weight as f32;
        if weight != 1.0 {
            self.reads.iter_mut().for_each(|reads| *reads *= weight);
        }
    }

    /// Moves each horizon's shadow placement by what that horizon would select. Returns the selection
    /// of the applied one for the real placement, of `moved_pages` at most, with its keys.
    fn select_all(
        &mut self,
        scan: &Scan,
        budget: &Budget,
        moved_pages: u64,
    ) -> (Selection, Vec<u8>) {
        let region_bytes = if self.parameters.regions { REGION_BYTES } else { 0 };
        let (mut rates, mut keys) = (Vec::new(), Vec::new());
        let mut real = None;
        for horizon in 0..HORIZONS {
            self.rates.rates(horizon, &scan.layout, region_bytes, &mut rates);
            keys.clear();
            keys.extend(rates.iter().map(|&rate| key(rate)));
            keys.resize(rates.len().next_multiple_of(64), COLDEST);
            let selection = self.select(horizon, &keys, &self.shadows[horizon].fast, budget);
            // What is due moves in the initial placement, too: it is no cost of a choice.
            let due = due(&self.shadows[horizon].fast, budget);
            let pairs = selection.ups().max(selection.downs()).saturating_sub(due) as f64;
            self.shadows[horizon].debt += pairs * self.ledger.pair();
            selection.place(&keys, &mut self.shadows[horizon].fast);
            if horizon == self.applied {
                self.bound_initial(&keys, budget);
                let budget = Budget { moved_pages, ..*budget };
                real = Some((self.select(horizon, &keys, &scan.fast, &budget), keys.clone()));
            }
        }
        real.expect("the applied horizon is one of them")
    }
}

/// Pages by key and place.
fn count(keys: &[u8], fast: &PageBits) -> KeyCounts {
    let mut counts = KeyCounts::new();
    for (keys, &fast) in keys.as_chunks::<64>().0.iter().zip(fast.words()) {
        counts.count(keys, fast);
    }
    counts
}

/// Pages of this placement that must leave it now.
fn due(fast: &PageBits, budget: &Budget) -> u64 {
    (fast.count() as u64).saturating_sub(budget.fast_pages).min(budget.moved_pages)
}

impl Policy for Terrace {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            // Pages that go, or few that come, are no new beginning.
            let fresh: usize = remap.fresh().map(|pages| pages.len()).sum();
            if fresh * GROWTH > scan.pages() {
                (self.age, self.since_growth) = (0, 0);
            }
            self.rates.remap(&remap);
            self.estimate.remap(&remap);
            self.initial_placement = remap.bits_or(&self.initial_placement, &scan.fast);
            self.others.remap(&remap, &scan.fast);
            for shadow in &mut self.shadows {
                shadow.fast = remap.bits_or(&shadow.fast, &scan.fast);
            }
        }
        let (features, _) = self.features.count(scan);
        let known = self.take_reads(scan);
        let [short, middle, long] = &mut self.shadows;
        let placements =
            [&mut self.initial_placement, &mut short.fast, &mut middle.fast, &mut long.fast];
        self.others.follow(&scan.fast, placements);
        if known {
            self.account(scan);
            self.follow_phase();
        } else {
            // Few samples have come: nothing is known of the reads.
            self.ledger.unknown_period(self.others.moved_pairs(&scan.fast));
        }

        let (applied, may_move) = self.choose(scan);
        self.applied = applied;
        // Where nothing may move, only moves that are due are made.
        let due = due(&scan.fast, budget);
        let moved_pages = if may_move { budget.moved_pages } else { due };
        let (selection, keys) = self.select_all(scan, budget, moved_pages);
        let back = !may_move && selection.is_empty() && self.retreats(scan);
        let (ups, downs) = if back {
            self.back_to_initial(scan, budget)
        } else {
            let mut moves = (PageBits::new(scan.pages()), PageBits::new(scan.pages()));
            selection.moves(&keys, scan.fast.words(), |word, up, down| {
                moves.0.words_mut()[word] = up;
                moves.1.words_mut()[word] = down;
            });
            moves
        };
        let plan = self.plan(scan, &ups, &downs);
        self.others.plans(&scan.fast, &ups, &downs);
        self.ledger.plans(&plan, ups.count() as u64, downs.count() as u64, due);
        // No need to keep them until the next scan.
        self.reads = Vec::new();
        let applied = match plan.is_empty() {
            _ if back => "terrace-back",
            true => "terrace-stay",
            false => APPLIED[applied],
        };
        Decision { plan, applied, features }
    }

    fn metadata_bytes(&self) -> usize {
        let shadows: usize = self.shadows.iter().map(|s| s.fast.size_bytes()).sum();
        let rates = self.rates.size_bytes() + self.estimate.size_bytes();
        let initial = self.initial_placement.size_bytes() + self.others.size_bytes();
        self.features.size_bytes() + rates + initial + shadows
    }
}
