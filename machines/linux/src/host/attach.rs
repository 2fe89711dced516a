//! Attaching groups: each gets a tracker, a mover and one of the kernel threads kept ready.

use std::sync::Arc;
use std::time::Duration;

use crate::cgroup::Cgroup;
use crate::conflicts;
use crate::costs::Costs;
use crate::group_layout::{LayoutReader, Source};
use crate::host::options::{AttachedGroup, GroupSpec, MOST_PAGES};
use crate::host::{Host, HostError};
use crate::kernel::PageKernel;
use crate::mover::{MoverOptions, PageMover, SharedTrackerState, TierNodes};
use crate::page_tables::{self, TableKeeper};
use crate::ranges::{PagemapFolios, RangeKernel, RangeTiers};
use crate::refiner::{self, BaseRates, Refiner};
use crate::sampling::Samples;
use crate::signals::GroupSignal;
use crate::tracker::{GroupTracker, TrackerOptions};

impl Host {
    /// Begins to manage groups. Tracking starts with the first call of each tracker's
    /// `observe`.
    pub fn attach(&mut self, groups: Vec<GroupSpec>) -> Result<Vec<AttachedGroup>, HostError> {
        for group in &groups {
            self.check(group)?;
        }
        if !self.topology.is_tiered() && !self.options.observe_only {
            return Err(HostError::Group {
                name: groups.first().map_or_else(String::new, |g| g.name.clone()),
                message: format!(
                    "all memory nodes ({:?}) are of one tier now, expected two or more: bring the memory of the other back",
                    self.topology.fast_nodes()
                ),
            });
        }
        let wanted = self.attached() + groups.len() as u32;
        if wanted > self.options.max_groups {
            return Err(HostError::Group {
                name: groups.last().map_or_else(String::new, |g| g.name.clone()),
                message: format!(
                    "it would be group {wanted}, expected at most {}: raise max_groups",
                    self.options.max_groups
                ),
            });
        }
        if self.backend.needs_damon() {
            // Each time: another program may have taken them meanwhile.
            self.session.take_kdamonds(self.options.max_groups)?;
        }
        if !self.taken {
            if !self.options.dry_run && !self.options.observe_only {
                self.backend.set_up(&self.options.roots, &self.session)?;
            }
            self.taken = true;
        }
        let move_shared = conflicts::may_move_shared(&self.options.roots);
        let nodes =
            TierNodes { fast: self.topology.fast_nodes(), slow: self.topology.slow_nodes() };
        let mut attached = Vec::with_capacity(groups.len());
        for group in groups {
            let Some(slot) = self.slots.iter().position(|taken| !taken) else { break };
            attached.push(self.attach_one(group, slot, &nodes, move_shared));
            self.slots[slot] = true;
        }
        Ok(attached)
    }

    /// Tracker and mover of a group that gets the kernel thread of this number.
    fn attach_one(
        &self,
        group: GroupSpec,
        slot: usize,
        nodes: &TierNodes,
        move_shared: bool,
    ) -> AttachedGroup {
        let roots = &self.options.roots;
        let kernel = || self.backend.kernel(roots, move_shared);
        let folios = || Box::new(PagemapFolios::new(roots.clone()));
        let range_tiers = RangeTiers::new(nodes.clone());
        let tracker_state = SharedTrackerState::default();
        let costs = Costs::default();
        let period = Duration::from_millis(group.period_ms);
        let stop = group.stop.or_else(|| self.options.stop.clone());
        let samples = match group.samples {
            Samples::Several if group.by_range => Samples::OfParts,
            samples => samples,
        };
        let sampler = self.backend.sampler(roots, &self.session, slot, period, samples);
        let base_rates = refiner::first_of(self.base_rates(slot as u32), sampler.base_rates());
        let tracker = GroupTracker::new(
            roots,
            group.source,
            TrackerOptions {
                period,
                page_size: group.page_size,
                by_range: group.by_range,
                cap_pages: group.cap_pages,
                keep_empty: group.keep_empty,
                flush: group.flush.then(|| self.flushes.clone()),
                signals: self.group_signals(slot as u32, group.by_range),
                shared_memory: self.shared_memory.join(),
                tables: group
                    .tables
                    .zip(self.backend.device())
                    .map(|(policy, device)| TableKeeper::new(Arc::clone(device), policy)),
                stop: stop.clone(),
            },
            sampler,
            kernel(),
            nodes.clone(),
            range_tiers.clone(),
            Arc::clone(&tracker_state),
            costs.clone(),
        );
        let stall = Duration::from_millis(group.stall_ms);
        let bounds = MoverOptions::in_period(period, group.move_share, stall);
        let may_change = self.options.fix_conflicts && !self.options.dry_run;
        let mover_kernel: Box<dyn PageKernel> = match group.by_range {
            true => Box::new(RangeKernel::new(kernel(), folios(), range_tiers.clone())),
            false => kernel(),
        };
        let refiner = base_rates.filter(|_| group.by_range).map(|rates| {
            let state = Arc::clone(&tracker_state);
            Refiner::new(
                kernel(),
                folios(),
                rates,
                nodes.clone(),
                range_tiers,
                state,
                costs.clone(),
            )
        });
        let mover = PageMover::new(
            mover_kernel,
            nodes.clone(),
            group.page_size,
            bounds,
            tracker_state,
            costs.clone(),
        )
        .stopping(stop)
        .emptying(may_change.then(|| self.free_lists.clone()))
        .refining(refiner);
        AttachedGroup { name: group.name, slot: slot as u32, tracker, mover, costs }
    }

    /// A group's parts of the signals that are open.
    fn group_signals(&self, slot: u32, by_range: bool) -> Vec<Box<dyn GroupSignal>> {
        let parts = self.signals.iter().map(|(_, signal)| Arc::clone(signal).join(slot, by_range));
        parts.flatten().collect()
    }

    /// Rates of base pages by the signals that know some, the first of them first.
    fn base_rates(&self, slot: u32) -> Option<Box<dyn BaseRates>> {
        let all = self.signals.iter().map(|(_, signal)| Arc::clone(signal).base_rates(slot));
        all.fold(None, refiner::first_of)
    }

    /// Groups that use a kernel thread.
    fn attached(&self) -> u32 {
        self.slots.iter().filter(|taken| **taken).count() as u32
    }

    /// Frees the kernel thread of a group. Its tracker must have been dropped.
    pub fn release(&mut self, slot: u32) {
        if let Some(taken) = self.slots.get_mut(slot as usize) {
            *taken = false;
        }
    }

    fn check(&self, group: &GroupSpec) -> Result<(), HostError> {
        let refuse = |message: String| HostError::Group { name: group.name.clone(), message };
        if !(50..=3_600_000).contains(&group.period_ms) {
            return Err(refuse(format!(
                "a period of {} ms, expected 50 to 3600000: correct period_ms",
                group.period_ms
            )));
        }
        if !(1..=MOST_PAGES).contains(&group.cap_pages) {
            return Err(refuse(format!(
                "at most {} pages tracked, expected 1 to {MOST_PAGES}: correct cap_pages",
                group.cap_pages
            )));
        }
        if !(0.0..=1.0).contains(&group.move_share) {
            return Err(refuse(format!(
                "a share of {} for moves, expected 0 to 1: correct move_share",
                group.move_share
            )));
        }
        if let Some(policy) = group.tables {
            let device = self.backend.device().map(AsRef::as_ref);
            if let Some(message) = page_tables::conflict(device, policy) {
                return Err(refuse(message));
            }
        }
        let roots = &self.options.roots;
        match &group.source {
            Source::Cgroup(path) => {
                let cgroup = Cgroup::new(roots, path);
                if !cgroup.exists() {
                    return Err(refuse(format!(
                        "{} does not exist, expected a control group of version 2: create it or correct its name",
                        cgroup.path().display()
                    )));
                }
            }
            Source::Pids(pids) => {
                let source = group.source.clone();
                let mut layout_reader =
                    LayoutReader::new(roots.clone(), source, group.page_size, 1);
                if layout_reader.processes()?.is_empty() && !group.keep_empty {
                    return Err(refuse(format!(
                        "none of the processes {pids:?} lives, expected at least one: correct the list"
                    )));
                }
            }
        }
        Ok(())
    }
}
