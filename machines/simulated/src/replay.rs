//! Replays a recording through the policies.
//!
//! [`replay_plans`] feeds the recorded scans and budgets, in order, to policies built like those of
//! the recording, and compares their decisions with the recorded ones: the same policy on two
//! machines. Placement is the recorded one, so no difference of the other machine (a page that was
//! busy, say) can make the policies diverge.
//!
//! [`replay_placement`] lets the simulated machine place the pages itself, from the recorded
//! accesses and budgets, and reports the period from which the two placements differ: the effect
//! of everything that the machine's rules omit.

use std::fmt::Debug;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_core::interfaces::{MachineError, Mover, Observation, Tracker};
use terrace_core::live_policy::LivePolicy;
use terrace_core::policy::{self, Policy, PolicyError};
use terrace_core::scan::Scan;
use terrace_recordings::container::Truncation;
use terrace_recordings::error::RecordingError;
use terrace_recordings::period::{
    GroupHeader, PeriodReader, PeriodRecord, Record, RecordingSource, Records,
};

use crate::machine::{GroupConfig, Machine, MachineConfig};
use crate::placement::Placement;

/// Why a recording could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The policy's decisions depend on inputs that no recording of a run contains.
    #[error(
        "group '{group}': policy '{policy}' had an oracle trace, which a recording of its run does \
         not contain; expected a policy that decides by its scans"
    )]
    Future {
        /// The group's name.
        group: String,
        /// The policy's name.
        policy: String,
    },
    /// The recording could not be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The policy of a group could not be built.
    #[error("group '{group}' of the recording: {source}")]
    Policy {
        /// The group's name.
        group: String,
        /// The reason.
        source: PolicyError,
    },
    /// The simulated machine could not go on.
    #[error("{0}")]
    Machine(#[from] MachineError),
}

/// A decision that differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("group '{group}', period {period}: {what} recorded as {recorded}, replayed as {replayed}")]
pub struct Mismatch {
    /// The group's name.
    pub group: String,
    /// The period's number.
    pub period: u64,
    /// The part that differs: "plan", "applied policy" or "features".
    pub what: &'static str,
    /// The recorded value; of a plan, its first entry that differs.
    pub recorded: String,
    /// The replayed value.
    pub replayed: String,
}

/// The result of replaying plans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanReplay {
    /// Periods with a decision to compare, of all groups.
    pub compared_periods: u64,
    /// Of the others, those whose decision was not recorded.
    pub undecided_periods: u64,
    /// Decisions that differ, in the order of the recording.
    pub mismatches: Vec<Mismatch>,
    /// Where the recording was cut off, if it was.
    pub truncation: Option<Truncation>,
}

/// Builds the policies of a recording's groups, feeds them its scans and budgets, and compares
/// their decisions: plan, applied policy and features must be equal to the last bit.
pub fn replay_plans<R: Read>(mut records: Records<R>) -> Result<PlanReplay, ReplayError> {
    let groups = records.header().groups.clone();
    let mut policies = groups.iter().map(build).collect::<Result<Vec<_>, _>>()?;
    if records.header().leaves_out_unmovable {
        let live = |policy| Box::new(LivePolicy::new(policy)) as Box<dyn Policy>;
        policies = policies.into_iter().map(live).collect();
    }
    let mut replay = PlanReplay::default();
    for record in records.by_ref() {
        let Record::Period(record) = record? else { continue };
        let PeriodRecord { group, scan, budget: Some(budget), decision, outcome } = *record else {
            replay.undecided_periods += 1;
            continue;
        };
        let mut again = policies[group].decide(&scan, &budget);
        // Recordings have none.
        again.plan.victims.clear();
        if let Some(outcome) = outcome {
            policies[group].outcome(&outcome, scan.layout.page_size());
        }
        let Some(decision) = decision else {
            replay.undecided_periods += 1;
            continue;
        };
        replay.compared_periods += 1;
        let mut compare = |what, same: bool, recorded, replayed| {
            if !same {
                let (group, period) = (groups[group].name.clone(), scan.period);
                let mismatch = Mismatch { group, period, what, recorded, replayed };
                replay.mismatches.push(mismatch);
            }
        };
        let (before, now) = (&decision.plan, &again.plan);
        if before != now {
            let (recorded, replayed) =
                first_difference("promotion", &before.promotions, &now.promotions)
                    .or_else(|| first_difference("demotion", &before.demotions, &now.demotions))
                    .or_else(|| first_difference("exchange", &before.exchanges, &now.exchanges))
                    .or_else(|| {
                        let (before, now) = (&before.operation_sizes, &now.operation_sizes);
                        first_difference("operation size", before, now)
                    })
                    .unwrap_or_default();
            compare("plan", false, recorded, replayed);
        }
        compare(
            "applied policy",
            decision.applied == again.applied,
            decision.applied.clone(),
            again.applied.to_owned(),
        );
        compare(
            "features",
            decision.features == again.features,
            format!("{:?}", decision.features),
            format!("{:?}", again.features),
        );
    }
    replay.truncation = records.truncation().cloned();
    Ok(replay)
}

fn build(group: &GroupHeader) -> Result<Box<dyn Policy>, ReplayError> {
    let policy = policy::build(&group.policy, &group.parameters, group.policy_seed)
        .map_err(|source| ReplayError::Policy { group: group.name.clone(), source })?;
    if policy.needs_oracle() {
        let (group, policy) = (group.name.clone(), group.policy.clone());
        return Err(ReplayError::Future { group, policy });
    }
    Ok(policy)
}

/// The first entries of two lists that differ, in words; `None` when the lists are equal.
fn first_difference<T: PartialEq + Debug>(
    what: &str,
    recorded: &[T],
    replayed: &[T],
) -> Option<(String, String)> {
    let length = recorded.len().max(replayed.len());
    let at = (0..length).find(|&i| recorded.get(i) != replayed.get(i))?;
    let tell = |list: &[T]| match list.get(at) {
        Some(entry) => format!("{what} {at} of {}: {entry:?}", list.len()),
        None => format!("{} {what}s", list.len()),
    };
    Some((tell(recorded), tell(replayed)))
}

/// The placement of a group's pages before its first recorded period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialPlacement {
    /// The recorded placement.
    Recorded,
    /// The placement of the policy's allocation.
    Allocated,
}

/// How closely the simulated machine's placement follows a recorded one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlacementReplay {
    /// Periods compared.
    pub compared_periods: u64,
    /// Of these, periods in which some page was in the other tier.
    pub differing_periods: u64,
    /// The first of them.
    pub first_difference: Option<PlacementDifference>,
    /// Pages that were in the other tier, over all pages, summed over the periods and divided by
    /// them.
    pub mean_differing_ratio: f64,
    /// Where the recording was cut off, if it was.
    pub truncation: Option<Truncation>,
}

/// A period in which the simulated and the recorded placement differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementDifference {
    /// The period's number.
    pub period: u64,
    /// Pages that were in the other tier.
    pub differing_pages: u64,
    /// Pages of the group.
    pub pages: u64,
}

/// Runs the accesses of one group of a recording on the simulated machine under the recorded policy
/// and budgets, and compares the placements. Memory is unlimited here: only the group's budget
/// limits the group.
pub fn replay_placement(
    path: &Path,
    group: &str,
    initial: InitialPlacement,
) -> Result<PlacementReplay, ReplayError> {
    let source = RecordingSource::open(path, group)?;
    let header = source.header().clone();
    let reader = PeriodReader::open(path)?;
    let number = reader.group(group)?;
    let mut policy = build(&header.groups[number])?;
    let initial = match initial {
        InitialPlacement::Allocated => None,
        InitialPlacement::Recorded => source
            .first_scan()
            .map(|scan| Placement { layout: scan.layout.clone(), fast: scan.fast.clone() }),
    };
    let budget_pages = Arc::new(AtomicU64::new(0));
    let budget = budget_pages.clone();
    let machine = Machine::new(MachineConfig::new(u64::MAX, u64::MAX, header.period_ms.max(1)))?;
    let config = GroupConfig {
        name: group.to_owned(),
        page_size: header.groups[number].page_size,
        allocation: policy.allocation(),
        fast_budget: Box::new(move |_| budget.load(Ordering::Relaxed)),
        initial,
    };
    let (mut tracker, mut mover) = machine.add_group(config, Box::new(source))?;

    let mut replay = PlacementReplay::default();
    let mut records = reader.records();
    for record in records.by_ref() {
        let PeriodRecord { scan: recorded, budget: Some(budget), .. } = (match record? {
            Record::Period(record) if record.group == number => *record,
            Record::Ended { group } if group == number => break,
            _ => continue,
        }) else {
            break;
        };
        budget_pages.store(budget.fast_pages, Ordering::Relaxed);
        let Observation::Period(scan) = tracker.observe()? else { break };
        replay.compare(&recorded, &scan);
        let decision = policy.decide(&scan, &budget);
        mover.apply(&decision.plan)?;
    }
    if replay.compared_periods > 0 {
        replay.mean_differing_ratio /= replay.compared_periods as f64;
    }
    replay.truncation = records.truncation().cloned();
    Ok(replay)
}

impl PlacementReplay {
    fn compare(&mut self, recorded: &Scan, simulated: &Scan) {
        self.compared_periods += 1;
        let pairs = recorded.fast.words().iter().zip(simulated.fast.words());
        let differing_pages: u64 = pairs.map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
        if differing_pages == 0 {
            return;
        }
        let (period, pages) = (recorded.period, recorded.pages() as u64);
        self.differing_periods += 1;
        self.mean_differing_ratio += differing_pages as f64 / pages as f64;
        let difference = PlacementDifference { period, differing_pages, pages };
        self.first_difference.get_or_insert(difference);
    }
}
