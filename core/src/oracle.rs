//! Knowledge of the future, and the best placement that it allows: the input of an offline optimum,
//! and a bound that no policy can beat.
//!
//! # The problem
//! A program is cut into spans. In each, a page in slow memory costs what its reads cost more than
//! from fast memory; a promotion and a demotion have their costs; the number of fast pages in any
//! span is limited. Which pages should be fast when?
//!
//! # The method
//! Fast memory gets a *price* in each span (a Lagrange multiplier). With prices the pages do not
//! hinder each other, and each has its own cheapest path through time, found by dynamic programming
//! over the spans in which it is read ([`Outlook::solve`]): between two of them it is best either to
//! stay and pay the prices, or to be demoted at once and promoted just before. Prices of spans
//! where more pages gain from being fast than fit rise, others fall (the subgradient method, with
//! Polyak's step towards the best placement without any move, which is known to be possible).
//!
//! # How exact
//! Whatever the prices, the sum of the pages' costs less the prices of the fast memory there is
//! cannot exceed the true optimum (weak duality): [`Outlook::bound_ns`] is a bound. It is one of a
//! model:
//! - pages begin, when they are first read, wherever is best for them, and may move before any span;
//! - the costs of a span's pages are taken to add up. Where reads wait together they do not quite:
//!   for the bound they are put too low ([`Purpose`]);
//! - a move costs the same whether it goes alone or with others. (One that goes alone costs a
//!   program that rarely touches its page less than that.)
//!
//! What is *reached* by moving pages as the prices say, within the periods, budgets and costs of a
//! machine, is another number, at or above the true optimum: the policy `optimum`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::page::{Layout, SpaceId};

/// Rounds of adapting prices.
const ROUNDS: usize = 80;

/// A span of a program's future.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// How far the program has come at its end: in references since it began
    /// ([`PeriodCounters::references`](crate::scan::PeriodCounters::references)), or in periods
    /// where references are not counted.
    pub end: u64,
    /// Its pages.
    pub layout: Arc<Layout>,
    /// Reads of the pages that are read, by number.
    pub reads: Vec<(u32, u32)>,
    /// Time that the span takes with all memory fast, in ns.
    pub fast_ns: f64,
    /// Time by which it takes longer when all of its reads are slow, in ns.
    pub extra_ns: f64,
    /// Number of reads that are waited for together: of a share `s` of slow reads a part
    /// `1 - (1 - s)^overlap` of `extra_ns` comes.
    pub overlap: f64,
}

/// The future of one group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OracleTrace {
    /// The spans, in order.
    pub spans: Vec<Span>,
    /// Time by which the promotion of a page delays the program, in ns.
    pub promotion_ns: f64,
    /// The same for a demotion.
    pub demotion_ns: f64,
    /// Pages move once in this time, in ns.
    pub period_ns: f64,
}

impl OracleTrace {
    /// The same future in spans of about a period each.
    pub fn by_periods(&self) -> OracleTrace {
        let mut spans: Vec<Span> = Vec::new();
        let mut group: Vec<&Span> = Vec::new();
        let mut took_ns = 0.0;
        for span in &self.spans {
            group.push(span);
            // About as long as with a part of memory slow.
            took_ns += span.fast_ns + 0.5 * span.extra_ns;
            if took_ns >= self.period_ns {
                spans.extend(merged(&group));
                group.clear();
                took_ns = 0.0;
            }
        }
        spans.extend(merged(&group));
        let &OracleTrace { promotion_ns, demotion_ns, period_ns, .. } = self;
        OracleTrace { spans, promotion_ns, demotion_ns, period_ns }
    }
}

/// Spans as one, with the pages of the last.
fn merged(spans: &[&Span]) -> Option<Span> {
    let last = spans.last()?;
    let mut reads = vec![0u32; last.layout.pages()];
    for span in spans {
        let same = Arc::ptr_eq(&span.layout, &last.layout) || span.layout == last.layout;
        for &(page, count) in &span.reads {
            let page = match same {
                true => Some(page as usize),
                false => {
                    let (space, address) = span.layout.address(page as usize);
                    last.layout.index(space, address)
                }
            };
            if let Some(page) = page {
                reads[page] = reads[page].saturating_add(count);
            }
        }
    }
    let sum = |of: fn(&Span) -> f64| spans.iter().map(|s| of(s)).sum::<f64>();
    let extra_ns = sum(|s| s.extra_ns);
    let weighed = sum(|s| s.extra_ns * s.overlap);
    Some(Span {
        end: last.end,
        layout: last.layout.clone(),
        reads: (reads.into_iter().enumerate())
            .filter(|(_, count)| *count > 0)
            .map(|(page, count)| (page as u32, count))
            .collect(),
        fast_ns: sum(|s| s.fast_ns),
        extra_ns,
        overlap: if extra_ns > 0.0 { weighed / extra_ns } else { 1.0 },
    })
}

/// Purpose of an [`Outlook`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A bound that holds: the costs of reads that wait together are put too low.
    Bound,
    /// Planning: they are taken as the slope at the best placement without moves.
    Plan,
}

/// A span in which a page is read.
#[derive(Debug, Clone, Copy)]
struct Event {
    span: u32,
    /// Cost of the page being slow in it.
    slow_ns: f32,
    /// Cost from here to the end when the page is slow in this span, and when it is fast: prices
    /// included.
    if_slow: f32,
    if_fast: f32,
    /// Gain of being fast from here on for as long as that pays, less prices.
    stretch: f32,
}

/// The future with prices: what each page gains by being fast at any time.
#[derive(Debug)]
pub struct Outlook {
    /// Numbers of pages by address space and address.
    numbers: BTreeMap<(SpaceId, u64), usize>,
    /// Events of each page, ascending.
    events: Vec<Vec<Event>>,
    /// Ends of the spans.
    ends: Vec<u64>,
    /// Sum of the prices of the spans before each, in ns.
    paid: Vec<f64>,
    promotion_ns: f64,
    demotion_ns: f64,
    bound_ns: f64,
    static_ns: f64,
    /// The part that the costs of pages leave out.
    rest_ns: f64,
}

impl Outlook {
    /// Finds prices for this many pages of fast memory.
    pub fn solve(oracle: &OracleTrace, fast_pages: u64, purpose: Purpose) -> Self {
        let mut numbers = BTreeMap::new();
        let mut events: Vec<Vec<Event>> = Vec::new();
        for (number, span) in oracle.spans.iter().enumerate() {
            for &(page, reads) in &span.reads {
                let next = numbers.len();
                let number_of = *numbers.entry(span.layout.address(page as usize)).or_insert(next);
                if number_of == events.len() {
                    events.push(Vec::new());
                }
                let (span, slow_ns) = (number as u32, reads as f32);
                let (if_slow, if_fast, stretch) = (0.0, 0.0, 0.0);
                events[number_of].push(Event { span, slow_ns, if_slow, if_fast, stretch });
            }
        }
        let mut outlook = Outlook {
            numbers,
            events,
            ends: oracle.spans.iter().map(|span| span.end).collect(),
            paid: vec![0.0; oracle.spans.len() + 1],
            promotion_ns: oracle.promotion_ns,
            demotion_ns: oracle.demotion_ns,
            bound_ns: 0.0,
            static_ns: 0.0,
            rest_ns: 0.0,
        };
        outlook.weigh(oracle, fast_pages, purpose);
        outlook.find_prices(fast_pages);
        outlook
    }

    /// The least time that slow memory and moves add, in ns: no placement does better, as far as
    /// the model goes.
    pub fn bound_ns(&self) -> f64 {
        self.bound_ns
    }

    /// Time that the best placement without any move adds, in ns.
    pub fn static_ns(&self) -> f64 {
        self.static_ns
    }

    /// The pages that are worth most over the whole of the future, as many as fit.
    fn best_static(&self, fast_pages: u64) -> Vec<bool> {
        let worth = |events: &[Event]| events.iter().map(|e| f64::from(e.slow_ns)).sum::<f64>();
        let mut order: Vec<(f64, usize)> =
            self.events.iter().enumerate().map(|(page, e)| (worth(e), page)).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut fast = vec![false; self.events.len()];
        let room = usize::try_from(fast_pages).unwrap_or(usize::MAX);
        order.into_iter().take(room).for_each(|(_, page)| fast[page] = true);
        fast
    }

    /// Turns reads into costs. Where reads are waited for together the cost of a page depends on
    /// the others: it is taken at the best placement without moves.
    fn weigh(&mut self, oracle: &OracleTrace, fast_pages: u64, purpose: Purpose) {
        let reads: Vec<f64> = (oracle.spans.iter())
            .map(|span| span.reads.iter().map(|r| f64::from(r.1)).sum::<f64>().max(1.0))
            .collect();
        // First as if costs were in proportion, to find that placement.
        let each = |span: usize| oracle.spans[span].extra_ns / reads[span];
        let counts: Vec<Vec<f32>> =
            self.events.iter().map(|e| e.iter().map(|e| e.slow_ns).collect()).collect();
        self.scale(&counts, &each);
        let fast = self.best_static(fast_pages);
        let mut slow_reads = vec![0.0; reads.len()];
        for ((events, counts), _) in
            self.events.iter().zip(&counts).zip(&fast).filter(|(_, fast)| !**fast)
        {
            for (event, &count) in events.iter().zip(counts) {
                slow_reads[event.span as usize] += f64::from(count);
            }
        }
        let share = |span: usize| (slow_reads[span] / reads[span]).clamp(0.0, 0.95);
        let slope = |span: usize| {
            let overlap = oracle.spans[span].overlap;
            match purpose {
                // Above 1 the time is above the straight line from no slow read to all of them.
                Purpose::Bound if overlap > 1.0 => 1.0,
                _ => overlap * (1.0 - share(span)).powf(overlap - 1.0),
            }
        };
        if purpose == Purpose::Bound {
            // Below 1 it is above every tangent, which does not go through nothing.
            let spans = oracle.spans.iter().enumerate().filter(|(_, s)| s.overlap < 1.0);
            let rest = spans.map(|(span, s)| {
                let part = 1.0 - (1.0 - share(span)).powf(s.overlap);
                s.extra_ns * (part - slope(span) * share(span))
            });
            self.rest_ns = rest.sum();
        }
        self.scale(&counts, &|span| each(span) * slope(span));
        self.static_ns = (self.events.iter().zip(&fast))
            .filter(|(_, fast)| !**fast)
            .flat_map(|(events, _)| events.iter().map(|e| f64::from(e.slow_ns)))
            .sum();
    }

    /// Costs are these counts times the cost of a read in each span.
    fn scale(&mut self, counts: &[Vec<f32>], each_ns: &dyn Fn(usize) -> f64) {
        for (events, counts) in self.events.iter_mut().zip(counts) {
            for (event, &count) in events.iter_mut().zip(counts) {
                event.slow_ns = (f64::from(count) * each_ns(event.span as usize)) as f32;
            }
        }
    }

    fn find_prices(&mut self, fast_pages: u64) {
        let spans = self.ends.len();
        let room = fast_pages as f64;
        let mut prices = vec![0.0f64; spans];
        // Without prices nothing costs less than nothing.
        let mut best = (-1.0f64, prices.clone());
        let mut step = 1.0;
        let mut stuck = 0;
        for _ in 0..ROUNDS {
            self.set_prices(&prices);
            let (cost, wanted) = self.respond();
            let bound = cost - prices.iter().sum::<f64>() * room;
            if bound > best.0 + 1e-6 * best.0.abs() {
                best = (bound, prices.clone());
                stuck = 0;
            } else {
                stuck += 1;
                if stuck == 5 {
                    step *= 0.5;
                    stuck = 0;
                    prices.clone_from(&best.1);
                    continue;
                }
            }
            let over: Vec<f64> = wanted.iter().map(|&w| w - room).collect();
            // A price of 0 does not fall.
            let square: f64 = (over.iter().zip(&prices))
                .filter(|(o, p)| **o > 0.0 || **p > 0.0)
                .map(|(o, _)| o * o)
                .sum();
            let gap = self.static_ns - bound;
            if square == 0.0 || gap <= 0.0 {
                break;
            }
            for (price, over) in prices.iter_mut().zip(over) {
                *price = (*price + step * gap / square * over).max(0.0);
            }
        }
        self.set_prices(&best.1);
        self.respond();
        self.bound_ns = (best.0 + self.rest_ns).max(0.0);
    }

    fn set_prices(&mut self, prices: &[f64]) {
        let mut sum = 0.0;
        for (paid, price) in self.paid.iter_mut().zip(prices.iter().chain(&[0.0])) {
            *paid = sum;
            sum += price;
        }
    }

    /// The cheapest path of every page at the prices: what all of them cost, prices included, and
    /// how many pages are fast in each span.
    fn respond(&mut self) -> (f64, Vec<f64>) {
        let spans = self.ends.len();
        let (up, down) = (self.promotion_ns, self.demotion_ns);
        let paid = &self.paid;
        let price = |from: usize, to: usize| paid[to] - paid[from];
        let mut change = vec![0.0f64; spans + 1];
        let mut cost = 0.0;
        for events in &mut self.events {
            let mut after: Option<Event> = None;
            for event in events.iter_mut().rev() {
                let span = event.span as usize;
                let (fast_after, slow_after) = match &after {
                    None => (0.0, 0.0),
                    Some(next) => ways(next, price(span + 1, next.span as usize), up, down),
                };
                event.if_slow = (f64::from(event.slow_ns) + slow_after) as f32;
                event.if_fast = (price(span, span + 1) + fast_after) as f32;
                let later = after.map_or(0.0, |next| {
                    f64::from(next.stretch) - price(span + 1, next.span as usize)
                });
                let here = f64::from(event.slow_ns) - price(span, span + 1);
                event.stretch = (here + later.max(0.0)) as f32;
                after = Some(*event);
            }
            let Some(first) = events.first() else { continue };
            let mut fast = first.if_fast < first.if_slow;
            cost += f64::from(first.if_fast.min(first.if_slow));
            for (number, event) in events.iter().enumerate() {
                let span = event.span as usize;
                if fast {
                    change[span] += 1.0;
                    change[span + 1] -= 1.0;
                }
                let Some(next) = events.get(number + 1) else { break };
                let gap = price(span + 1, next.span as usize);
                let (slow, quick) = (f64::from(next.if_slow), f64::from(next.if_fast));
                if fast {
                    let stay = gap + quick;
                    let stays = stay <= down + slow.min(up + quick);
                    if stays {
                        change[span + 1] += 1.0;
                        change[next.span as usize] -= 1.0;
                    }
                    fast = stays || up + quick < slow;
                } else {
                    fast = up + quick < slow;
                }
            }
        }
        let mut now = 0.0;
        let wanted = change[..spans].iter().map(|c| {
            now += c;
            now
        });
        let wanted = wanted.collect();
        (cost, wanted)
    }

    /// The first span that has not ended when the program has come this far.
    pub fn span_at(&self, progress: u64) -> usize {
        self.ends.partition_point(|&end| end <= progress)
    }

    /// Gain of the page at an address from being fast from this span on, for as long as that pays,
    /// in ns, less the price of fast memory. Minus infinity for a page that is not read in this
    /// span: it can be promoted later.
    pub fn gain_ns(&self, space: SpaceId, address: u64, span: usize) -> f64 {
        match self.next(space, address, span) {
            Some((event, _)) if event.span as usize == span => f64::from(event.stretch),
            _ => f64::NEG_INFINITY,
        }
    }

    /// Loss when the page at an address leaves fast memory now, in ns: its gain, or, when it is not
    /// read at once, no more than its promotion later costs. It may be below 0.
    pub fn loss_ns(&self, space: SpaceId, address: u64, span: usize) -> f64 {
        let Some((event, waits)) = self.next(space, address, span) else {
            return f64::NEG_INFINITY;
        };
        let brings = f64::from(event.stretch);
        let at_once = event.span as usize == span;
        if at_once { brings } else { brings.min(self.promotion_ns) - waits }
    }

    /// The next span in which a page is read, and the price of fast memory until then.
    fn next(&self, space: SpaceId, address: u64, span: usize) -> Option<(&Event, f64)> {
        let events = &self.events[*self.numbers.get(&(space, address))?];
        let event = events.get(events.partition_point(|e| (e.span as usize) < span))?;
        let waits = self.paid[event.span as usize] - self.paid[span.min(self.paid.len() - 1)];
        Some((event, waits))
    }
}

/// Cost from the end of a span to the end of all, when the page is fast at the end of it and when it
/// is slow; `gap` is the price of staying until the next event.
fn ways(next: &Event, gap: f64, up: f64, down: f64) -> (f64, f64) {
    let (slow, fast) = (f64::from(next.if_slow), f64::from(next.if_fast));
    let from_slow = slow.min(up + fast);
    ((gap + fast).min(down + from_slow), from_slow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageSize;
    use proptest::prelude::*;

    fn future(reads: &[Vec<u32>], up: f64, down: f64) -> OracleTrace {
        let pages = reads.first().map_or(0, Vec::len);
        let layout = Arc::new(Layout::contiguous(PageSize::Base, pages as u64));
        let spans = reads.iter().enumerate().map(|(number, reads)| Span {
            end: number as u64 + 1,
            layout: layout.clone(),
            reads: (reads.iter().enumerate())
                .filter(|(_, r)| **r > 0)
                .map(|(page, &r)| (page as u32, r))
                .collect(),
            fast_ns: 1.0,
            // A read costs one nanosecond more.
            extra_ns: reads.iter().map(|&r| f64::from(r)).sum(),
            overlap: 1.0,
        });
        OracleTrace { spans: spans.collect(), promotion_ns: up, demotion_ns: down, period_ns: 0.0 }
    }

    /// The optimum by trying every placement in every span.
    fn by_trying_all(reads: &[Vec<u32>], room: u32, up: f64, down: f64) -> f64 {
        let pages = reads[0].len();
        let places: Vec<u32> = (0..1u32 << pages).filter(|p| p.count_ones() <= room).collect();
        let mut costs = vec![0.0f64; places.len()];
        for (number, reads) in reads.iter().enumerate() {
            let slow = |place: u32| -> f64 {
                (0..pages).filter(|p| place >> p & 1 == 0).map(|p| f64::from(reads[p])).sum()
            };
            costs = (places.iter())
                .map(|&to| {
                    let from = places.iter().zip(&costs).map(|(&from, cost)| {
                        let moved = match number {
                            0 => 0.0,
                            _ => {
                                up * f64::from((to & !from).count_ones())
                                    + down * f64::from((from & !to).count_ones())
                            }
                        };
                        cost + moved
                    });
                    from.fold(f64::INFINITY, f64::min) + slow(to)
                })
                .collect();
        }
        costs.into_iter().fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn the_bound_is_never_above_the_optimum_nor_the_optimum_above_staying(
            reads in prop::collection::vec(prop::collection::vec(0u32..20, 4), 1..7),
            room in 0u32..5, up in 0.0f64..15.0, down in 0.0f64..5.0,
        ) {
            let best = by_trying_all(&reads, room, up, down);
            let outlook = Outlook::solve(&future(&reads, up, down), room.into(), Purpose::Bound);
            prop_assert!(outlook.bound_ns() <= best * (1.0 + 1e-4) + 1e-3,
                "bound {} optimum {best}", outlook.bound_ns());
            prop_assert!(best <= outlook.static_ns() * (1.0 + 1e-4) + 1e-3);
            if room == 4 {
                prop_assert_eq!(outlook.bound_ns(), 0.0);
            }
        }
    }

    #[test]
    fn two_halves_that_take_turns_trade_places_when_it_pays() {
        let turns: Vec<Vec<u32>> =
            (0..40).map(|t| if t / 10 % 2 == 0 { vec![9, 0] } else { vec![0, 9] }).collect();
        // Staying costs 180. Each half leaves once and comes back once: twice 12.
        let outlook = Outlook::solve(&future(&turns, 10.0, 2.0), 1, Purpose::Plan);
        assert!((outlook.bound_ns() - 24.0).abs() < 0.1, "{}", outlook.bound_ns());
        assert_eq!(outlook.static_ns(), 180.0);
        let gain = outlook.gain_ns(SpaceId(0), 4096, 10);
        let loss = outlook.loss_ns(SpaceId(0), 0, 10);
        assert!(gain - loss > 12.0, "the other half comes now: {gain} {loss}");
        assert_eq!(outlook.gain_ns(SpaceId(0), 4096, 9), f64::NEG_INFINITY, "but not before");
        // Moves that cost more than they gain are not made: the first half leaves for good.
        let outlook = Outlook::solve(&future(&turns, 500.0, 2.0), 1, Purpose::Plan);
        assert!((outlook.bound_ns() - 92.0).abs() < 0.1, "{}", outlook.bound_ns());
    }
}
