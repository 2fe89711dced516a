//! A machine before its clock begins: in short stretches caches and TLBs follow its accesses, and
//! those that miss the last level are sampled. In between it runs at full speed. So a guest that is
//! timed only later has samples meanwhile, as from a processor that is not modelled in time.

use serde::{Deserialize, Serialize};

use super::{Access, CYCLE_PS, TimedMachine, reference};
use crate::config::{TimedConfig, TimedError};
use crate::flow::{Block, Site};
use crate::samples::{Miss, SamplePlan, Sampling};
use crate::tables::GuestWalk;
use terrace_hardware::cache::hierarchy::Level;
use terrace_hardware::tier::TierConfig;

/// When accesses are observed, in instructions of all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservationPlan {
    /// From the beginning of one stretch to that of the next.
    pub interval_instructions: u64,
    /// At the beginning of a stretch: caches fill, and nothing is sampled.
    pub fill_instructions: u64,
    /// After that: misses are sampled, as much more often as the interval is longer than this.
    pub window_instructions: u64,
}

impl Default for ObservationPlan {
    fn default() -> Self {
        ObservationPlan {
            interval_instructions: 60_000_000,
            fill_instructions: 4_000_000,
            window_instructions: 2_000_000,
        }
    }
}

impl ObservationPlan {
    /// Reports an impossible plan.
    pub fn check(&self) -> Result<(), TimedError> {
        let observed = self.fill_instructions.saturating_add(self.window_instructions);
        if self.window_instructions == 0 || self.interval_instructions <= observed {
            return Err(TimedError(format!(
                "{} of {} instructions observed, {} of them sampled; expected less than all and \
                 more than 0",
                observed, self.interval_instructions, self.window_instructions
            )));
        }
        Ok(())
    }

    /// How many instructions one of a window stands for, at least.
    fn share(&self) -> u64 {
        (self.interval_instructions / self.window_instructions.max(1)).max(1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stretch {
    Plain,
    Fill,
    Window,
}

/// A machine that is observed.
#[derive(Debug, Clone)]
pub struct Observer {
    machine: TimedMachine,
    plan: ObservationPlan,
    stretch: Stretch,
    /// Instructions until the next stretch.
    left: u64,
    /// What a read of each tier takes, in cycles of the guest's clock.
    idle_cycles: Vec<u64>,
}

impl Observer {
    /// Observes a machine with nothing cached. As many samples are taken of a second as `samples`
    /// asks for, all of them in windows.
    pub fn new(
        config: &TimedConfig,
        plan: ObservationPlan,
        samples: &SamplePlan,
    ) -> Result<Self, TimedError> {
        plan.check()?;
        let most_per_s = samples.most().saturating_mul(plan.share());
        let in_windows = SamplePlan { most_per_s, ..samples.clone() };
        let mut machine = TimedMachine::new(config, 0)?;
        machine.sample(Sampling::new(in_windows));
        let left = plan.interval_instructions - plan.fill_instructions - plan.window_instructions;
        let idle_cycles = |tier: &TierConfig| (tier.idle_read_ns() * 1000.0) as u64 / CYCLE_PS;
        let idle_cycles = config.hardware.tiers.iter().map(idle_cycles).collect();
        Ok(Observer { machine, plan, stretch: Stretch::Plain, left, idle_cycles })
    }

    /// Number of processors.
    pub fn processors(&self) -> usize {
        self.machine.processors()
    }

    /// A block begins. Whether accesses must be reported from now on, if that changes.
    #[inline]
    pub fn block(&mut self, cpu: usize, block: &'static Block) -> Option<bool> {
        self.machine.processors[cpu].block = block;
        match self.left.checked_sub(u64::from(block.instructions)) {
            Some(left) => {
                self.left = left;
                None
            }
            None => Some(self.next_stretch()),
        }
    }

    #[cold]
    fn next_stretch(&mut self) -> bool {
        let ObservationPlan { interval_instructions, fill_instructions, window_instructions } =
            self.plan;
        (self.stretch, self.left) = match self.stretch {
            Stretch::Plain => (Stretch::Fill, fill_instructions),
            Stretch::Fill => (Stretch::Window, window_instructions),
            Stretch::Window => {
                (Stretch::Plain, interval_instructions - fill_instructions - window_instructions)
            }
        };
        if self.stretch == Stretch::Fill {
            // What was translated in the last window may have moved.
            (0..self.processors()).for_each(|cpu| self.machine.flush_translations(cpu));
        }
        self.stretch != Stretch::Plain
    }

    /// An access at a site of the running block, at about this time of the guest's clock.
    #[inline]
    pub fn access(
        &mut self,
        cpu: usize,
        (site, access): (&Site, Access),
        time_ns: u64,
        place: impl Fn() -> Option<(usize, u64)>,
        walk: impl Fn() -> Option<GuestWalk>,
    ) {
        let machine = &mut self.machine;
        if machine.is_recent(cpu, access) {
            return;
        }
        let starts = &machine.starts;
        let physical = || place().map(|(tier, at)| starts[tier] + at);
        let mut table = machine.tables.of_access(physical, walk, starts);
        // An access to a device changes nothing here.
        let Ok(level) = machine.node.warm(cpu, &reference(access), &mut table) else { return };
        if level > Level::Llc
            && self.stretch == Stretch::Window
            && !machine.processors[cpu].block.kernel
            && let Some(samples) = &mut machine.samples
        {
            let ObservationPlan { interval_instructions, window_instructions, .. } = self.plan;
            let picked =
                samples.picks_of_interval(access.store, interval_instructions, window_instructions);
            let Some(place) = (picked > 0).then(place).flatten() else { return };
            let miss = Miss {
                time_ns,
                instruction: site.instruction,
                address: access.address,
                place,
                store: access.store,
                // As if nothing else were under way: how it is without time.
                weight_cycles: self.idle_cycles[place.0],
            };
            // No time is modelled that they could take.
            for _ in 0..picked {
                samples.take(miss);
            }
        }
    }

    /// The processor drops translations.
    pub fn flush_translations(&mut self, cpu: usize) {
        self.machine.flush_translations(cpu);
    }

    /// Samples one in so many accesses from now on.
    pub fn sample_one_in(&mut self, accesses: u32) {
        self.machine.sample_one_in(accesses);
    }

    /// Records of samples that were not yet taken, if there are new ones.
    #[inline]
    pub fn records(&mut self) -> Option<&mut Vec<u8>> {
        self.machine.records()
    }

    /// The same, new ones or not.
    pub fn waiting_records(&mut self) -> Option<&mut Vec<u8>> {
        self.machine.waiting_records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::Role;
    use crate::config::TierSpeed;
    use crate::flow::{NO_LOAD, Sources};
    use terrace_recordings::perf_record::{RecordCounts, RecordReader, SampleFormat};

    const PLAN: ObservationPlan = ObservationPlan {
        interval_instructions: 100_000,
        fill_instructions: 10_000,
        window_instructions: 10_000,
    };

    const SITE: Site = Site {
        position: 1,
        load: NO_LOAD,
        address: Sources { registers: 0, loads: 0 },
        instruction: 7,
    };

    fn observer(plan: ObservationPlan, accesses_per_sample: u32) -> Result<Observer, TimedError> {
        let tier = TierSpeed { latency_ns: 100.0, gb_per_s: 10.0 };
        let config = TimedConfig::with_tiers(&[tier; 2])?.sized(1, &[1 << 30; 2]);
        Observer::new(&config, plan, &SamplePlan { accesses_per_sample, ..SamplePlan::default() })
    }

    /// So many blocks of ten instructions, each of which reads a line that was not read before.
    fn run(observer: &mut Observer, blocks: u64, kernel: bool) -> RecordCounts {
        let block: &'static Block = Box::leak(Box::new(Block {
            instructions: 10,
            repeated_bytes: 0,
            kernel,
            role: Role::None,
            leaves: false,
            changes: Vec::new(),
        }));
        let mut reader = RecordReader::new(SampleFormat::of_memory());
        let mut reported = false;
        for at in 0..blocks {
            reported = observer.block(0, block).unwrap_or(reported);
            if !reported {
                continue;
            }
            let place = at * 64 % (1 << 29);
            let access = Access { address: (1 << 40) + place, size: 8, store: false };
            observer.access(0, (&SITE, access), at * 20, || Some((1, place)), || None);
            if let Some(records) = observer.records() {
                reader.push(&std::mem::take(records), |_| {});
            }
        }
        reader.counts()
    }

    #[test]
    fn windows_have_the_samples_of_all_instructions() {
        // 4 million instructions with 400,000 misses.
        let counts = run(&mut observer(PLAN, 100).unwrap(), 400_000, false);
        assert!((3600..4400).contains(&counts.samples), "{counts:?}");
        assert_eq!((counts.lost, counts.throttled), (0, 0));
        let of_kernel = run(&mut observer(PLAN, 100).unwrap(), 400_000, true);
        assert_eq!(of_kernel.samples, 0);
    }

    #[test]
    fn samples_are_as_many_as_asked_for_where_the_windows_share_is_no_divisor() {
        let [long, short] = [30_000, 2_000]
            .map(|window_instructions| ObservationPlan { window_instructions, ..PLAN });
        // An access of a window stands for ten, for three and a third, and for more than a sample.
        for (plan, per_sample, misses) in
            [(PLAN, 26, 40_000), (long, 100, 100_000), (short, 40, 100_000)]
        {
            let counts = run(&mut observer(plan, per_sample).unwrap(), misses, false);
            let of_expected = counts.samples as f64 * f64::from(per_sample) / misses as f64;
            assert!((0.95..1.05).contains(&of_expected), "{per_sample}: {of_expected}, {counts:?}");
        }
    }

    #[test]
    fn accesses_are_reported_in_stretches_only() {
        let mut observer = observer(PLAN, 100).unwrap();
        let block: &'static Block = &crate::machine::NO_BLOCK;
        let block = Box::leak(Box::new(Block { instructions: 1000, ..block.clone() }));
        let mut reported = false;
        let mut of_interval = 0;
        for _ in 0..1000 {
            reported = observer.block(0, block).unwrap_or(reported);
            of_interval += u32::from(reported);
        }
        // A fifth.
        assert!((180..=220).contains(&of_interval), "{of_interval}");
    }

    #[test]
    fn plans_that_cannot_be_are_refused_in_one_line() {
        let whole = ObservationPlan { interval_instructions: 20_000, ..PLAN };
        let none = ObservationPlan { window_instructions: 0, ..PLAN };
        for plan in [whole, none] {
            let error = observer(plan, 100).unwrap_err().to_string();
            assert!(error.contains("observed") && error.lines().count() == 1, "{error}");
        }
    }
}
