//! The loop against machines of a few lines: what a group's owner would notice.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use terrace_core::bits::PageBits;
use terrace_core::interfaces::{MachineError, Mover, Observation, Tracker};
use terrace_core::page::{Layout, PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{
    Decision, Direction, Exchange, Failure, FailureReason, Features, Outcome, Plan,
};
use terrace_core::policy::Policy;
use terrace_core::scan::{Budget, Scan};
use terrace_engine::{Engine, EngineError, FastLimit, Group, Observer, Options, PeriodReport};

const PAGE: u64 = 4096;

fn page(index: u64) -> VirtualRange {
    VirtualRange { space: SpaceId(0), start: index * PAGE, size_bytes: PAGE }
}

/// Returns the given answers in turn.
struct Script(VecDeque<Observation>);

impl Tracker for Script {
    fn name(&self) -> &'static str {
        "script"
    }
    fn observe(&mut self) -> Result<Observation, MachineError> {
        Ok(self.0.pop_front().unwrap_or(Observation::Ended))
    }
}

/// Requests the same plan in every period and remembers its budgets.
struct Always(Plan, Arc<Mutex<Vec<Budget>>>);

impl Policy for Always {
    fn name(&self) -> &'static str {
        "always"
    }
    fn decide(&mut self, _: &Scan, budget: &Budget) -> Decision {
        self.1.lock().unwrap().push(*budget);
        Decision { plan: self.0.clone(), applied: "always", features: Features::default() }
    }
    fn metadata_bytes(&self) -> usize {
        0
    }
}

/// Leaves all pages where they are.
struct Still;

impl Policy for Still {
    fn name(&self) -> &'static str {
        "still"
    }
    fn decide(&mut self, _: &Scan, _: &Budget) -> Decision {
        Decision { plan: Plan::default(), applied: "still", features: Features::default() }
    }
    fn most_moved_pages(&self, _: &Budget) -> u64 {
        0
    }
    fn metadata_bytes(&self) -> usize {
        0
    }
}

/// Answers each call with the next function of a list.
type Answer = fn(&Plan) -> Outcome;
struct Answers(VecDeque<Answer>, Rc<RefCell<Vec<Plan>>>, Rc<RefCell<Vec<u64>>>);

impl Mover for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }
    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        self.1.borrow_mut().push(plan.clone());
        Ok(self.0.pop_front().unwrap_or(everything)(plan))
    }
    fn refine(&mut self, _: &Scan, pages: u64) -> Result<(), MachineError> {
        self.2.borrow_mut().push(pages);
        Ok(())
    }
}

fn everything(plan: &Plan) -> Outcome {
    let (promoted_pages, demoted_pages) = plan.pages(PageSize::Base);
    Outcome { promoted_pages, demoted_pages, ..Outcome::default() }
}

fn failing(plan: &Plan, reason: FailureReason) -> Outcome {
    let of = |direction| move |range: &VirtualRange| Failure { range: *range, direction, reason };
    let promotions = plan.promotions.iter().map(of(Direction::Promotion));
    let demotions = plan.demotions.iter().map(of(Direction::Demotion));
    Outcome { failures: promotions.chain(demotions).collect(), ..Outcome::default() }
}

#[derive(Default)]
struct Notes {
    outcomes: Vec<(usize, u64, Outcome)>,
    lost: Vec<(usize, u32, String)>,
    ended: Vec<usize>,
}

impl Observer for Notes {
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError> {
        self.outcomes.push((report.group, report.scan.period, report.outcome.clone()));
        Ok(())
    }
    fn lost(&mut self, group: usize, periods: u32, reason: &str) -> Result<(), MachineError> {
        self.lost.push((group, periods, reason.to_owned()));
        Ok(())
    }
    fn ended(&mut self, group: usize) -> Result<(), MachineError> {
        self.ended.push(group);
        Ok(())
    }
}

fn period(number: u64, pages: usize) -> Observation {
    let layout = Arc::new(Layout::contiguous(PageSize::Base, pages as u64));
    Observation::Period(Scan::new(number, layout, PageBits::new(pages), PageBits::new(pages)))
}

struct Bench {
    engine: Engine,
    plans: Rc<RefCell<Vec<Plan>>>,
    refined: Rc<RefCell<Vec<u64>>>,
    budgets: Arc<Mutex<Vec<Budget>>>,
}

fn bench(observations: Vec<Observation>, plan: Plan, answers: Vec<Answer>) -> Bench {
    let (plans, refined, budgets) = (Rc::default(), Rc::default(), Arc::default());
    let group = Group {
        name: "g".into(),
        tracker: Box::new(Script(observations.into())),
        policy: Box::new(Always(plan, Arc::clone(&budgets))),
        mover: Box::new(Answers(answers.into(), Rc::clone(&plans), Rc::clone(&refined))),
        share: FastLimit::Ratio(0.5),
        moved_pages: 7,
    };
    Bench { engine: Engine::new(vec![group], Options::default()), plans, refined, budgets }
}

fn up_two() -> Plan {
    Plan { promotions: vec![page(0), page(2)], ..Plan::default() }
}

#[test]
fn a_busy_page_is_tried_again_in_the_same_period() {
    let mut b = bench(
        vec![period(0, 9)],
        up_two(),
        vec![|plan| Outcome {
            promoted_pages: 1,
            failures: vec![Failure {
                range: plan.promotions[1],
                direction: Direction::Promotion,
                reason: FailureReason::Busy,
            }],
            ..Outcome::default()
        }],
    );
    let mut notes = Notes::default();
    b.engine.run(&mut notes, || false).unwrap();
    assert_eq!(b.plans.borrow()[1].promotions, [page(2)]);
    assert_eq!(notes.outcomes[0].2, Outcome { promoted_pages: 2, ..Outcome::default() });
    assert_eq!(b.budgets.lock().unwrap()[0], Budget { fast_pages: 4, moved_pages: 7 });
    assert_eq!(notes.ended, [0]);
}

#[test]
fn a_mover_may_move_by_itself_what_a_plan_leaves_and_nothing_where_a_policy_moves_nothing() {
    let mut b = bench(vec![period(0, 9)], up_two(), Vec::new());
    b.engine.run(&mut Notes::default(), || false).unwrap();
    assert_eq!(*b.refined.borrow(), [5], "7 less the 2 of the plan");
    let mut b = bench(vec![period(0, 9)], Plan::default(), Vec::new());
    b.engine.group_mut(0).unwrap().policy = Box::new(Still);
    b.engine.run(&mut Notes::default(), || false).unwrap();
    assert_eq!(*b.refined.borrow(), [0]);
}

#[test]
fn what_fails_for_good_is_reported_by_reason_and_not_tried_again() {
    let mut b = bench(vec![period(0, 9)], up_two(), vec![|p| failing(p, FailureReason::Denied)]);
    let mut notes = Notes::default();
    b.engine.run(&mut notes, || false).unwrap();
    assert_eq!(b.plans.borrow().len(), 1);
    assert_eq!(notes.outcomes[0].2, failing(&up_two(), FailureReason::Denied));
}

#[test]
fn a_page_that_stays_busy_is_reported_after_the_retry() {
    let busy: Answer = |p| failing(p, FailureReason::Busy);
    let mut b = bench(vec![period(0, 9)], up_two(), vec![busy, busy]);
    let mut notes = Notes::default();
    b.engine.run(&mut notes, || false).unwrap();
    assert_eq!(b.plans.borrow().len(), 2);
    assert_eq!(notes.outcomes[0].2, failing(&up_two(), FailureReason::Busy));
}

#[test]
fn half_of_an_exchange_is_not_tried_again_by_itself() {
    let exchanges = vec![Exchange { up: page(2), down: page(5) }];
    let victims = vec![Exchange { up: page(0), down: page(6) }];
    let plan = Plan { promotions: vec![page(0)], exchanges, victims, ..Plan::default() };
    // The page that was to come up stays, and its partner with it.
    let busy: Answer = |plan| {
        let up = plan.exchanges.iter().map(|pair| pair.up);
        let failure =
            |range| Failure { range, direction: Direction::Promotion, reason: FailureReason::Busy };
        let failures = plan.promotions.iter().copied().chain(up).map(failure).collect();
        Outcome { failures, kept_pages: plan.exchanges.len() as u64, ..Outcome::default() }
    };
    let mut b = bench(vec![period(0, 9)], plan, vec![busy]);
    let mut notes = Notes::default();
    b.engine.run(&mut notes, || false).unwrap();
    let plans = b.plans.borrow();
    assert_eq!(plans[1], Plan { promotions: vec![page(0)], ..Plan::default() });
    let outcome = &notes.outcomes[0].2;
    assert_eq!((outcome.promoted_pages, outcome.kept_pages), (1, 1));
    let left: Vec<VirtualRange> = outcome.failures.iter().map(|f| f.range).collect();
    assert_eq!(left, [page(2)]);
}

#[test]
fn a_mover_that_loses_a_page_ends_the_run() {
    let loses: Answer = |_| Outcome { promoted_pages: 1, ..Outcome::default() };
    let mut b = bench(vec![period(0, 9)], up_two(), vec![loses]);
    let error = b.engine.run(&mut Notes::default(), || false).unwrap_err();
    assert!(matches!(error, EngineError::Unaccounted { asked: 2, got: 1, .. }), "{error}");
}

#[test]
fn lost_periods_are_reported_and_do_not_reach_the_policy() {
    let lost = Observation::Lost { periods: 2, reason: "the buffer overran".into() };
    let mut b = bench(vec![period(0, 4), lost, period(3, 4)], Plan::default(), vec![]);
    let mut notes = Notes::default();
    b.engine.run(&mut notes, || false).unwrap();
    assert_eq!(notes.lost, [(0, 2, "the buffer overran".to_owned())]);
    let periods: Vec<_> = notes.outcomes.iter().map(|o| o.1).collect();
    assert_eq!(periods, [0, 3]);
    assert_eq!(b.budgets.lock().unwrap().len(), 2);
}

#[test]
fn a_group_that_ends_leaves_the_others_running() {
    let group = |name: &str, count| Group {
        name: name.into(),
        tracker: Box::new(Script((0..count).map(|n| period(n, 4)).collect())),
        policy: Box::new(Always(Plan::default(), Arc::default())),
        mover: Box::new(Answers(VecDeque::new(), Rc::default(), Rc::default())),
        share: FastLimit::Bytes(2 * PAGE),
        moved_pages: u64::MAX,
    };
    let mut engine = Engine::new(vec![group("short", 1), group("long", 3)], Options::default());
    let mut notes = Notes::default();
    engine.run(&mut notes, || false).unwrap();
    let count = |g| notes.outcomes.iter().filter(|o| o.0 == g).count();
    assert_eq!((count(0), count(1)), (1, 3));
    assert_eq!(notes.ended, [0, 1]);
}

#[test]
fn stop_is_asked_before_every_period() {
    let mut b = bench((0..5).map(|n| period(n, 4)).collect(), Plan::default(), vec![]);
    let mut notes = Notes::default();
    let mut periods = 0;
    b.engine
        .run(&mut notes, || {
            periods += 1;
            periods > 2
        })
        .unwrap();
    assert_eq!(notes.outcomes.len(), 2);
}

/// Remembers the outcomes that it gets.
struct Learns(Always, Arc<Mutex<Vec<(Outcome, PageSize)>>>);

impl Policy for Learns {
    fn name(&self) -> &'static str {
        "learns"
    }
    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        self.0.decide(scan, budget)
    }
    fn outcome(&mut self, outcome: &Outcome, page_size: PageSize) {
        self.1.lock().unwrap().push((outcome.clone(), page_size));
    }
    fn metadata_bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_policy_gets_the_outcome_of_each_of_its_plans() {
    let outcomes = Arc::default();
    let denied: Answer = |plan| failing(plan, FailureReason::Denied);
    let group = Group {
        name: "one".into(),
        tracker: Box::new(Script((0..3).map(|n| period(n, 9)).collect())),
        policy: Box::new(Learns(Always(up_two(), Arc::default()), Arc::clone(&outcomes))),
        mover: Box::new(Answers(VecDeque::from([denied]), Rc::default(), Rc::default())),
        share: FastLimit::Bytes(2 * PAGE),
        moved_pages: u64::MAX,
    };
    let mut notes = Notes::default();
    Engine::new(vec![group], Options::default()).run(&mut notes, || false).unwrap();
    let learned = outcomes.lock().unwrap();
    let reported = notes.outcomes.iter().map(|o| (o.2.clone(), PageSize::Base));
    assert_eq!(*learned, reported.collect::<Vec<_>>());
    let failed: Vec<u64> = learned
        .iter()
        .map(|(o, size)| o.failures.iter().map(|f| f.range.pages(*size)).sum())
        .collect();
    assert_eq!(failed, [2, 0, 0]);
}
