//! What the processors and tiers of a machine counted.

use terrace_hardware::cache::hierarchy::Level;
use terrace_hardware::cpu::CAUSE_WALK;
use terrace_hardware::node::{CAUSE_L2, CAUSE_LLC, CAUSE_MEMORY};
use terrace_hardware::units::Picoseconds;

use super::{Access, CYCLE_PS, TimedMachine};
use crate::causes::Cause;
use crate::figures::{CauseFigures, Figures, TierFigures};
use crate::flow::Site;
use crate::samples::Miss;

impl TimedMachine {
    /// The counters so far.
    pub fn figures(&self) -> Figures {
        let counters = self.counters();
        match &self.windows {
            Some(windows) => windows.complete(&self.spent(), counters),
            None => counters,
        }
    }

    /// What was counted in detail.
    pub(super) fn counters(&self) -> Figures {
        let ns = |ps: u64| ps as f64 / 1000.0;
        let mut figures =
            Figures { time_ns: self.clock.shown_ns() - self.start_ns, ..Figures::default() };
        let tiers = self.names.iter().enumerate().map(|(at, name)| {
            let counts = self.memory.counts(at);
            TierFigures {
                tier: name.clone(),
                reads: counts.reads,
                writes: counts.writes,
                read_ns: ns(counts.read_ps),
                stall_ns: 0.0,
                misses: self.tier_misses[at],
            }
        });
        figures.tiers = tiers.collect();
        let causes = self.causes.ps().filter(|(_, took)| *took > 0);
        let of_cause = |(cause, took)| CauseFigures {
            cause: Cause::name(cause).to_owned(),
            busy_ns: ns(took),
        };
        figures.kernel = causes.map(of_cause).collect();
        for (cpu, processor) in self.processors.iter().enumerate() {
            figures.program_instructions.push(processor.instructions[0]);
            let (core, walks) = (self.node.core(cpu).counts(), self.node.walker(cpu).counts());
            for side in 0..2 {
                figures.instructions[side] += processor.instructions[side];
                figures.busy_ns[side] += processor.busy_ps[side] / 1000;
                for (sum, misses) in figures.misses[side].iter_mut().zip(processor.misses[side]) {
                    *sum += misses;
                }
            }
            figures.references += processor.references;
            figures.devices += processor.devices;
            figures.dependent_loads += processor.dependent_loads;
            figures.leading_loads += core.leading_loads;
            figures.compute_ns += ns(core.compute_ps);
            figures.walk_stall_ns += ns(core.stall_ps[usize::from(CAUSE_WALK)]);
            figures.cache_stall_ns[0] += ns(core.stall_ps[usize::from(CAUSE_L2)]);
            figures.cache_stall_ns[1] += ns(core.stall_ps[usize::from(CAUSE_LLC)]);
            figures.store_stall_ns += ns(core.store_stall_ps);
            figures.walks += walks.walks;
            figures.walk_reads += walks.accesses.iter().sum::<u64>();
            figures.walk_ns += ns(walks.walk_ps);
            for (at, tier) in figures.tiers.iter_mut().enumerate() {
                let stall = core.stall_ps.get(usize::from(CAUSE_MEMORY) + at);
                tier.stall_ns += ns(stall.copied().unwrap_or(0));
            }
        }
        for (level, counts) in self.node.caches().counts().iter().enumerate() {
            figures.caches[level] = [counts.references(), counts.read_misses + counts.write_misses];
        }
        figures
    }

    /// Counts an access that missed the first level, and samples it if it missed the last.
    #[inline]
    pub(super) fn missed(
        &mut self,
        cpu: usize,
        level: Level,
        (site, access): (&Site, Access),
        issued: u64,
        place: impl Fn() -> Option<(usize, u64)>,
    ) {
        let processor = &mut self.processors[cpu];
        let side = usize::from(processor.block.kernel);
        let misses = &mut processor.misses[side];
        misses[0] += 1;
        misses[1] += u64::from(level > Level::L2);
        misses[2] += u64::from(level > Level::Llc);
        if level <= Level::Llc {
            return;
        }
        let Some(place) = place() else { return };
        self.tier_misses[place.0][side] += 1;
        if side == 0
            && let Some(samples) = &mut self.samples
            && samples.picks(access.store)
        {
            let core = self.node.core_mut(cpu);
            let took = if access.store { 0 } else { core.last_load().0.saturating_sub(issued) };
            let taken = samples.take(Miss {
                time_ns: self.start_ns + core.now().0 / 1000,
                instruction: site.instruction,
                address: access.address,
                place,
                store: access.store,
                weight_cycles: took / CYCLE_PS,
            });
            if taken {
                // It is taken as the access retires, and nothing behind that is under way meanwhile.
                if !access.store {
                    core.keep_up(core.last_load(), Picoseconds::ZERO);
                    core.wait_until(core.last_load());
                }
                core.wait_until(core.now() + Picoseconds(self.sample));
            }
        }
    }
}
