//! The loop: all groups are observed, then all decide, then all act, so that their scans are of the
//! same time and no group's moves delay another's scan.

use terrace_core::interfaces::{Headroom, MachineError, Mover, Observation, Tracker};
use terrace_core::page::VirtualRange;
use terrace_core::plan::{Direction, Failure, FailureReason, Outcome, Plan};
use terrace_core::policy::Policy;
use terrace_core::scan::{Budget, Scan};

use crate::limit::FastLimit;
use crate::report::{Cpu, Observer, PeriodReport};

/// A group that the engine manages.
pub struct Group {
    /// Its name, for messages.
    pub name: String,
    /// Observes its pages.
    pub tracker: Box<dyn Tracker>,
    /// Chooses the pages to move.
    pub policy: Box<dyn Policy>,
    /// Moves its pages.
    pub mover: Box<dyn Mover>,
    /// Fast memory it may use.
    pub share: FastLimit,
    /// Pages that may be moved for it in one period.
    pub moved_pages: u64,
}

/// Options of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How often moves that failed for a passing reason are tried again in the same period.
    /// Halves of exchanges are not, since their partners may have stayed.
    /// The rest is reported by reason; the next scan shows the page where it is, and the policy
    /// requests the move again if it still pays.
    pub retries: u32,
    /// Processor time of the calling thread in ns, where the machine has such a clock. Used for
    /// reporting only, never for deciding.
    pub cpu_clock: fn() -> Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options { retries: 1, cpu_clock: || None }
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A machine could not continue.
    #[error("group '{group}', {part}: {source}")]
    Machine {
        /// Name of the group.
        group: String,
        /// "tracker", "mover" or "observer".
        part: &'static str,
        /// The machine's message.
        source: MachineError,
    },
    /// A mover that lost or invented pages. The run ends, because none of its reports can be relied
    /// on.
    #[error(
        "group '{group}': the mover '{mover}' was asked for {asked} pages of {direction:?} and \
         accounted for {got}; this is a defect of the mover, please report it"
    )]
    Unaccounted {
        /// Name of the group.
        group: String,
        /// Name of the mover.
        mover: &'static str,
        /// Direction of the moves.
        direction: Direction,
        /// Number of pages in the plan.
        asked: u64,
        /// Pages moved and failed.
        got: u64,
    },
}

struct Member {
    group: Group,
    ended: bool,
    tracker_cpu_ns: Option<u64>,
    mover_cpu_ns: Option<u64>,
}

/// The loop over all groups: see the crate's documentation.
pub struct Engine {
    members: Vec<Member>,
    options: Options,
}

impl Engine {
    /// An engine for these groups.
    pub fn new(groups: Vec<Group>, options: Options) -> Self {
        let member =
            |group| Member { group, ended: false, tracker_cpu_ns: None, mover_cpu_ns: None };
        Engine { members: groups.into_iter().map(member).collect(), options }
    }

    /// Names of the groups, in the order of their numbers in reports.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|m| m.group.name.as_str())
    }

    /// A group, to be changed between periods: its share, its bounds, its policy.
    pub fn group_mut(&mut self, index: usize) -> Option<&mut Group> {
        self.members.get_mut(index).map(|m| &mut m.group)
    }

    /// Runs periods until every group has ended or `stop` returns true before a period.
    pub fn run(
        &mut self,
        observer: &mut dyn Observer,
        mut stop: impl FnMut() -> bool,
    ) -> Result<(), EngineError> {
        while !stop() && self.step(observer)? {}
        Ok(())
    }

    /// One period of every group. False when all groups have ended.
    pub fn step(&mut self, observer: &mut dyn Observer) -> Result<bool, EngineError> {
        let mut scans: Vec<Option<Scan>> = Vec::with_capacity(self.members.len());
        for (index, member) in self.members.iter_mut().enumerate() {
            scans.push(member.observe(index, observer)?);
        }
        let mut decided = Vec::with_capacity(scans.len());
        for (member, scan) in self.members.iter_mut().zip(scans) {
            decided.push(scan.map(|scan| {
                let limit_pages = member.group.share.pages(&scan.layout);
                let headroom = member.group.mover.headroom();
                let room_pages = room_pages(&scan, headroom);
                let budget = Budget {
                    fast_pages: with_headroom(limit_pages, &scan, headroom),
                    moved_pages: member.group.moved_pages,
                };
                let before = (self.options.cpu_clock)();
                let decision = member.group.policy.decide(&scan, &budget);
                let policy_ns = spent(before, (self.options.cpu_clock)());
                ((scan, limit_pages, room_pages), budget, decision, policy_ns)
            }));
        }
        for (index, (member, decided)) in self.members.iter_mut().zip(decided).enumerate() {
            let Some((seen, budget, decision, policy_ns)) = decided else { continue };
            let (scan, limit_pages, room_pages) = seen;
            let outcome = member.act(&decision.plan, &scan, self.options.retries)?;
            member.group.policy.outcome(&outcome, scan.layout.page_size());
            let (up, down) = decision.plan.pages(scan.layout.page_size());
            let most = member.group.policy.most_moved_pages(&budget);
            let left = most.saturating_sub(up + down);
            let refined = member.group.mover.refine(&scan, left);
            refined.map_err(|e| member.error("mover", e))?;
            let cpu = Cpu { policy_ns, ..member.cpu() };
            let report = PeriodReport {
                group: index,
                scan: &scan,
                limit_pages,
                room_pages,
                budget,
                decision: &decision,
                outcome: &outcome,
                cpu,
                untracked_bytes: member.group.tracker.untracked_bytes(),
            };
            observer.period(&report).map_err(|e| member.error("observer", e))?;
        }
        Ok(self.members.iter().any(|m| !m.ended))
    }
}

impl Member {
    fn error(&self, part: &'static str, source: MachineError) -> EngineError {
        EngineError::Machine { group: self.group.name.clone(), part, source }
    }

    fn observe(
        &mut self,
        index: usize,
        observer: &mut dyn Observer,
    ) -> Result<Option<Scan>, EngineError> {
        if self.ended {
            return Ok(None);
        }
        let reported = match self.group.tracker.observe().map_err(|e| self.error("tracker", e))? {
            Observation::Period(scan) => return Ok(Some(scan)),
            Observation::Lost { periods, reason } => observer.lost(index, periods, &reason),
            Observation::Ended => {
                self.ended = true;
                observer.ended(index)
            }
        };
        reported.map(|()| None).map_err(|e| self.error("observer", e))
    }

    fn act(&mut self, plan: &Plan, scan: &Scan, retries: u32) -> Result<Outcome, EngineError> {
        if plan.is_empty() {
            return Ok(Outcome::default());
        }
        let mut outcome = self.apply(plan, scan)?;
        let may_pass =
            |f: &Failure| f.reason.is_transient() && f.reason != FailureReason::OutOfTime;
        let mut halves = None;
        for _ in 0..retries {
            if !outcome.failures.iter().any(may_pass) {
                break;
            }
            // Half of an exchange alone would take the group above its limit, or cost it a page of
            // fast memory: the policy asks for the pair again.
            let halves = halves.get_or_insert_with(|| Halves::new(plan));
            let (again, settled): (Vec<Failure>, Vec<Failure>) =
                outcome.failures.iter().partition(|f| may_pass(f) && !halves.has_some_of(f.range));
            if again.is_empty() {
                break;
            }
            let going = |direction| {
                let ranges = again.iter().filter(move |f| f.direction == direction);
                ranges.map(|f| f.range).collect::<Vec<_>>()
            };
            let retry = Plan {
                promotions: going(Direction::Promotion),
                demotions: going(Direction::Demotion),
                operation_sizes: plan.operation_sizes.clone(),
                // Without victims: where the first call lost their places, more would be lost.
                ..Plan::default()
            };
            let second = self.apply(&retry, scan)?;
            outcome.promoted_pages += second.promoted_pages;
            outcome.demoted_pages += second.demoted_pages;
            outcome.exchanged_pairs += second.exchanged_pairs;
            outcome.operations += second.operations;
            outcome.victim_pages += second.victim_pages;
            outcome.kept_pages += second.kept_pages;
            outcome.failures = settled;
            outcome.failures.extend(second.failures);
        }
        Ok(outcome)
    }

    /// Applies a plan and checks that every page of it is accounted for.
    fn apply(&mut self, plan: &Plan, scan: &Scan) -> Result<Outcome, EngineError> {
        let outcome = self.group.mover.apply(plan).map_err(|e| self.error("mover", e))?;
        let page_size = scan.layout.page_size();
        let (up, down) = plan.pages(page_size);
        // Victims come on top of the plan, and no more than it names.
        let named: u64 = plan.victims.iter().map(|v| v.down.pages(page_size)).sum();
        let asked_down = down + outcome.victim_pages.min(named);
        for (direction, asked, moved) in [
            (Direction::Promotion, up, outcome.promoted_pages),
            (Direction::Demotion, asked_down, outcome.demoted_pages + outcome.kept_pages),
        ] {
            let failures = outcome.failures.iter().filter(|f| f.direction == direction);
            let got = moved + failures.map(|f| f.range.pages(page_size)).sum::<u64>();
            if got != asked {
                let (group, mover) = (self.group.name.clone(), self.group.mover.name());
                return Err(EngineError::Unaccounted { group, mover, direction, asked, got });
            }
        }
        Ok(outcome)
    }

    /// Processor time of tracker and mover since the last call.
    fn cpu(&mut self) -> Cpu {
        let tracker = self.group.tracker.cpu_ns();
        let mover = self.group.mover.cpu_ns();
        let since = |now: Option<u64>, before: Option<u64>| {
            now.map(|now| now.saturating_sub(before.unwrap_or(0)))
        };
        let cpu = Cpu {
            tracker_ns: since(tracker, self.tracker_cpu_ns),
            policy_ns: None,
            mover_ns: since(mover, self.mover_cpu_ns),
        };
        (self.tracker_cpu_ns, self.mover_cpu_ns) = (tracker, mover);
        cpu
    }
}

/// The ranges of a plan's exchanges, by where they begin.
struct Halves(Vec<VirtualRange>);

impl Halves {
    fn new(plan: &Plan) -> Self {
        let mut ranges: Vec<VirtualRange> =
            plan.exchanges.iter().flat_map(|pair| [pair.up, pair.down]).collect();
        ranges.sort_by_key(|range| (range.space, range.start));
        Halves(ranges)
    }

    /// Whether some page of this range is half of an exchange.
    fn has_some_of(&self, range: VirtualRange) -> bool {
        let before = self.0.partition_point(|r| (r.space, r.start) < (range.space, range.end()));
        self.0[..before].last().is_some_and(|r| r.space == range.space && r.end() > range.start)
    }
}

/// A limit, less what the group has to leave so that enough of fast memory is free, and no more than
/// there is room for. A policy that counted on more would plan to promote its hottest pages into room
/// that others have, in vain, where it could exchange them.
fn with_headroom(limit: u64, scan: &Scan, headroom: Headroom) -> u64 {
    let pages = |bytes: u64| bytes.div_ceil(scan.layout.page_size().bytes());
    let fast = scan.fast.count() as u64;
    let room = room_pages(scan, headroom).unwrap_or(u64::MAX);
    let most = limit.min(fast.saturating_add(room));
    if headroom.lacking_bytes == 0 {
        return most;
    }
    let left = fast.saturating_sub(pages(headroom.lacking_bytes));
    let least = limit.saturating_sub(pages(headroom.wanted_bytes));
    limit.min(left.max(least.min(most)))
}

/// Pages for which there is room beside those that the group has, where that is known.
fn room_pages(scan: &Scan, headroom: Headroom) -> Option<u64> {
    headroom.room_bytes.map(|bytes| bytes / scan.layout.page_size().bytes())
}

fn spent(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Layout, PageSize};

    #[test]
    fn a_budget_leaves_headroom_and_no_more_however_much_others_take() {
        const MIB: u64 = 1 << 20;
        let scan = |fast: usize| {
            let layout = Arc::new(Layout::contiguous(PageSize::Huge, 40));
            let mut bits = PageBits::new(40);
            (0..fast).for_each(|page| bits.set(page, true));
            Scan::new(0, layout, PageBits::new(40), bits)
        };
        let with = |fast, lacking_bytes| {
            let room_bytes = None;
            with_headroom(
                20,
                &scan(fast),
                Headroom { wanted_bytes: 4 * MIB, lacking_bytes, room_bytes },
            )
        };
        assert_eq!(with(20, 0), 20);
        assert_eq!(with(20, 1), 19);
        assert_eq!(with(20, 4 * MIB), 18);
        // What it has left is taken, again and again.
        assert_eq!((with(19, 4 * MIB), with(18, 4 * MIB)), (18, 18));
        // A group far below its limit, or above it.
        assert_eq!((with(5, 4 * MIB), with(30, 4 * MIB)), (18, 20));
    }

    #[test]
    fn a_budget_counts_on_no_more_room_than_there_is() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 40));
        let with = |fast: usize, lacking_bytes, room_mib: u64| {
            let fast = (0..40).map(|page| page < fast).collect();
            let scan = Scan::new(0, Arc::clone(&layout), PageBits::new(40), fast);
            let room_bytes = Some(room_mib << 20);
            with_headroom(20, &scan, Headroom { wanted_bytes: 4 << 20, lacking_bytes, room_bytes })
        };
        // None, less than a page, three pages, more than the limit allows.
        assert_eq!([0, 1, 7, 100].map(|room_mib| with(15, 0, room_mib)), [15, 15, 18, 20]);
        // What it has within its limit it keeps, and what is above it goes.
        assert_eq!((with(20, 0, 0), with(25, 0, 0)), (20, 20));
        // Where headroom is lacking as well: it gets nothing, or what clean cache leaves.
        assert_eq!((with(5, 2 << 20, 0), with(5, 2 << 20, 6)), (5, 8));
        assert_eq!((with(20, 2 << 20, 0), with(18, 2 << 20, 0)), (19, 18));
    }
}
