//! Whatever the machine is given to do, no page is lost, duplicated, or placed where there is no
//! room.

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use rand_core::RngCore;
use rand_pcg::Pcg64;
use support::{layout, range, scan};
use terrace_core::bits::PageBits;
use terrace_core::interfaces::Mover;
use terrace_core::page::{Layout, PageSize, VirtualRange};
use terrace_core::plan::{Direction, Exchange, FailureReason, Outcome, Plan};
use terrace_core::policy::Allocation;
use terrace_recordings::source::{PeriodAccesses, PeriodSource, SourceError};
use terrace_simulated::{GroupConfig, Machine, MachineConfig, SimulatedMover, SimulatedTracker};

/// Address space of a group, in pages.
const SPAN: u64 = 600;

struct Random(Pcg64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Extents of a few pages each, anywhere in the span.
    fn layout(&mut self, page_size: PageSize) -> Arc<Layout> {
        let (mut at, mut extents) = (self.below(40), Vec::new());
        while at < SPAN {
            let pages = (1 + self.below(90)).min(SPAN - at);
            extents.push((at, pages));
            at += pages + self.below(40);
        }
        layout(page_size, &extents)
    }

    fn range(&mut self, page_size: PageSize) -> VirtualRange {
        let (first, pages) = (self.below(SPAN), 1 + self.below(30));
        range(page_size, first, pages)
    }

    /// Arbitrary ranges: absent pages, pages already there, pages named twice.
    fn plan(&mut self, page_size: PageSize) -> Plan {
        let mut plan = Plan::default();
        for _ in 0..self.below(6) {
            plan.promotions.push(self.range(page_size));
        }
        for _ in 0..self.below(6) {
            plan.demotions.push(self.range(page_size));
        }
        for _ in 0..self.below(6) {
            let (up, down) = (self.range(page_size), self.range(page_size));
            plan.exchanges.push(Exchange { up, down });
        }
        plan
    }

    /// The span cut into ranges, each used at most once, so that no page is named twice.
    fn plan_without_repeats(&mut self, page_size: PageSize) -> Plan {
        let (mut at, mut ranges) = (0, Vec::new());
        while at < SPAN {
            let pages = 1 + self.below(20);
            ranges.push(range(page_size, at, pages));
            at += pages;
        }
        for last in (1..ranges.len()).rev() {
            ranges.swap(last, self.below(last as u64 + 1) as usize);
        }
        let mut plan = Plan::default();
        for pair in ranges.chunks_exact(2) {
            match self.below(4) {
                0 => plan.promotions.push(pair[0]),
                1 => plan.demotions.push(pair[0]),
                2 => plan.exchanges.push(Exchange { up: pair[0], down: pair[1] }),
                _ => {}
            }
        }
        plan
    }
}

/// A source whose next period the test sets.
#[derive(Clone, Default)]
struct Layouts(Arc<Mutex<VecDeque<Arc<Layout>>>>);

impl PeriodSource for Layouts {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        let layout = self.0.lock().unwrap().pop_front().unwrap();
        let accessed = PageBits::new(layout.pages());
        Ok(Some(PeriodAccesses { layout, accessed, lost_periods: 0 }))
    }
}

struct Member {
    page_size: PageSize,
    budget: u64,
    layouts: Layouts,
    tracker: SimulatedTracker,
    mover: SimulatedMover,
    layout: Arc<Layout>,
}

fn members(machine: &Machine, random: &mut Random) -> Vec<Member> {
    let kinds = [
        (PageSize::Base, Allocation::FastFirst, 150),
        (PageSize::Huge, Allocation::Interleave, 200),
        (PageSize::Base, Allocation::Interleave, 10_000),
    ];
    kinds
        .into_iter()
        .map(|(page_size, allocation, budget)| {
            let layouts = Layouts::default();
            let config = GroupConfig {
                name: "g".to_owned(),
                page_size,
                allocation,
                fast_budget: Box::new(move |_| budget),
                initial: None,
            };
            let (tracker, mover) = machine.add_group(config, Box::new(layouts.clone())).unwrap();
            Member { page_size, budget, layouts, tracker, mover, layout: random.layout(page_size) }
        })
        .collect()
}

fn failed(outcome: &Outcome, direction: Direction, page_size: PageSize) -> u64 {
    let failures = outcome.failures.iter().filter(|f| f.direction == direction);
    failures.map(|f| f.range.pages(page_size)).sum()
}

/// Invariants of the whole machine at any time.
fn audit(machine: &Machine, members: &[Member]) {
    let (fast, slow) = machine.tiers();
    let (mut fast_bytes, mut slow_bytes) = (0, 0);
    for (placement, member) in machine.placements().iter().zip(members) {
        assert_eq!(placement.layout, member.layout, "every page of the group has one place");
        assert_eq!(placement.fast.len(), member.layout.pages());
        fast_bytes += placement.fast_pages() * member.page_size.bytes();
        slow_bytes += placement.slow_pages() * member.page_size.bytes();
    }
    assert_eq!((fast.used_bytes, slow.used_bytes), (fast_bytes, slow_bytes));
    assert!(fast.used_bytes <= fast.capacity_bytes && slow.used_bytes <= slow.capacity_bytes);
}

/// Runs periods of three groups until moves of a million pages have been requested. `check` gets
/// each plan with the placement before and after it.
fn run(
    busy_rate: f64,
    seed: u64,
    plan: impl Fn(&mut Random, PageSize) -> Plan,
    check: impl Fn(&Member, &Placed, &Plan, &Outcome, &Placed),
) {
    // Memory is just enough for the most pages that groups ever have: both tiers are full at times.
    let slow_bytes = 400 * PageSize::Huge.bytes() + SPAN * PageSize::Base.bytes();
    let config = MachineConfig {
        busy_rate,
        seed,
        ..MachineConfig::new(120 * PageSize::Huge.bytes() + 4096 * 300, slow_bytes, 1000)
    };
    let machine = Machine::new(config).unwrap();
    let mut random = Random(Pcg64::new(seed.into(), 1));
    let mut members = members(&machine, &mut random);
    // All groups are added before the first audit.
    for member in &mut members {
        member.layouts.0.lock().unwrap().push_back(member.layout.clone());
        scan(&mut member.tracker);
    }
    let mut operations = 0;
    while operations < 1_000_000 {
        let number = random.below(3) as usize;
        if random.below(4) == 0 {
            members[number].layout = random.layout(members[number].page_size);
        }
        let layout = members[number].layout.clone();
        members[number].layouts.0.lock().unwrap().push_back(layout);
        let before = Placed::new(&machine, number);
        let seen = scan(&mut members[number].tracker);
        audit(&machine, &members);
        let allocated = Placed::new(&machine, number);
        assert_eq!(seen.fast, machine.placements()[number].fast);
        for (page, fast) in &before.pages {
            let now = allocated.pages.get(page);
            assert!(now.is_none_or(|now| now == fast), "allocation migrates nothing");
        }

        let page_size = members[number].page_size;
        let plan = plan(&mut random, page_size);
        let outcome = members[number].mover.apply(&plan).unwrap();
        audit(&machine, &members);
        let after = Placed::new(&machine, number);
        let (up, down) = asked(&plan, page_size);
        operations += up + down;
        assert_eq!(outcome.promoted_pages + failed(&outcome, Direction::Promotion, page_size), up);
        assert_eq!(outcome.demoted_pages + failed(&outcome, Direction::Demotion, page_size), down);
        assert_eq!(
            allocated.fast_pages() + outcome.promoted_pages,
            after.fast_pages() + outcome.demoted_pages
        );
        let budget = members[number].budget;
        assert!(after.fast_pages() <= budget.max(allocated.fast_pages()));
        check(&members[number], &allocated, &plan, &outcome, &after);
    }
}

/// Pages that a plan requests to promote and demote. `Plan::pages` takes both sides of an exchange
/// to be of the same size; these need not be.
fn asked(plan: &Plan, page_size: PageSize) -> (u64, u64) {
    let sum = |ranges: &mut dyn Iterator<Item = &VirtualRange>| -> u64 {
        ranges.map(|r| r.pages(page_size)).sum()
    };
    (
        sum(&mut plan.promotions.iter().chain(plan.exchanges.iter().map(|e| &e.up))),
        sum(&mut plan.demotions.iter().chain(plan.exchanges.iter().map(|e| &e.down))),
    )
}

/// The pages of a group by number, with whether they are fast; and the room on the machine.
#[derive(Debug, Clone, PartialEq)]
struct Placed {
    pages: BTreeMap<u64, bool>,
    fast_room: u64,
    slow_room: u64,
}

impl Placed {
    fn new(machine: &Machine, number: usize) -> Self {
        let placement = &machine.placements()[number];
        let page_size = placement.layout.page_size();
        let page = |i| (placement.layout.address(i).1 / page_size.bytes(), placement.fast.get(i));
        let (fast, slow) = machine.tiers();
        Placed {
            pages: (0..placement.layout.pages()).map(page).collect(),
            fast_room: fast.free_pages(page_size),
            slow_room: slow.free_pages(page_size),
        }
    }

    fn fast_pages(&self) -> u64 {
        self.pages.values().filter(|fast| **fast).count() as u64
    }

    /// Moves one page by the stated rules, without any of the machine's bookkeeping.
    fn move_page(&mut self, page: u64, direction: Direction, budget: u64) -> Option<FailureReason> {
        let up = direction == Direction::Promotion;
        let within_budget = self.fast_pages() < budget;
        match self.pages.get_mut(&page) {
            None => return Some(FailureReason::Absent),
            Some(fast) if *fast == up => return Some(FailureReason::Unsupported),
            Some(_) if up && (self.fast_room == 0 || !within_budget) => {
                return Some(FailureReason::NoRoom);
            }
            Some(_) if !up && self.slow_room == 0 => return Some(FailureReason::NoRoom),
            Some(fast) => *fast = up,
        }
        let (gained, lost) = if up {
            (&mut self.slow_room, &mut self.fast_room)
        } else {
            (&mut self.fast_room, &mut self.slow_room)
        };
        *gained += 1;
        *lost -= 1;
        None
    }
}

type Failures = BTreeMap<(u64, Direction), FailureReason>;

/// Carries out the plan page by page.
fn model(mut placed: Placed, plan: &Plan, page_size: PageSize, budget: u64) -> (Placed, Failures) {
    let pages = |r: &VirtualRange| {
        let first = r.start / page_size.bytes();
        first..first + r.pages(page_size)
    };
    let mut failures = Failures::new();
    let mut one_way = |placed: &mut Placed, page, direction| {
        if let Some(reason) = placed.move_page(page, direction, budget) {
            failures.insert((page, direction), reason);
        }
    };
    for page in plan.demotions.iter().flat_map(pages) {
        one_way(&mut placed, page, Direction::Demotion);
    }
    for Exchange { up, down } in &plan.exchanges {
        let (mut ups, mut downs) = (pages(up), pages(down));
        loop {
            match (ups.next(), downs.next()) {
                (Some(up), Some(down))
                    if placed.pages.get(&up) == Some(&false)
                        && placed.pages.get(&down) == Some(&true) =>
                {
                    placed.pages.insert(up, true);
                    placed.pages.insert(down, false);
                }
                (None, None) => break,
                (up, down) => {
                    if let Some(page) = down {
                        one_way(&mut placed, page, Direction::Demotion);
                    }
                    if let Some(page) = up {
                        one_way(&mut placed, page, Direction::Promotion);
                    }
                }
            }
        }
    }
    for page in plan.promotions.iter().flat_map(pages) {
        one_way(&mut placed, page, Direction::Promotion);
    }
    (placed, failures)
}

#[test]
fn a_million_random_moves_lose_no_page() {
    run(0.1, 1, Random::plan, |_, _, _, _, _| {});
}

#[test]
fn a_million_moves_go_as_the_rules_say_page_by_page() {
    let seen = RefCell::new(BTreeSet::new());
    run(0.0, 2, Random::plan_without_repeats, |member, before, plan, outcome, after| {
        let (placed, failures) = model(before.clone(), plan, member.page_size, member.budget);
        let differ = |(page, fast): &(&u64, &bool)| placed.pages.get(page) != Some(*fast);
        let elsewhere: Vec<_> = after.pages.iter().filter(differ).collect();
        assert!(*after == placed, "not where the rules put them: {elsewhere:?}");
        let mut got = Failures::new();
        for failure in &outcome.failures {
            let first = failure.range.start / member.page_size.bytes();
            for page in first..first + failure.range.pages(member.page_size) {
                assert!(got.insert((page, failure.direction), failure.reason).is_none());
            }
        }
        seen.borrow_mut().extend(got.iter().map(|((_, direction), reason)| (*direction, *reason)));
        assert_eq!(got, failures);
    });
    // The test is only as good as the cases that it met.
    let reasons = [FailureReason::Absent, FailureReason::NoRoom, FailureReason::Unsupported];
    for direction in [Direction::Promotion, Direction::Demotion] {
        assert!(reasons.iter().all(|r| seen.borrow().contains(&(direction, *r))), "{seen:?}");
    }
}
