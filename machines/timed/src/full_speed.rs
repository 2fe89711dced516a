//! Time before the clock begins, when nothing is modelled: each instruction takes a cycle of the modelled
//! processor. So programs, the kernel and whoever moves pages are as fast there as later, to a factor of
//! two or so, and a second before the clock begins is worth one behind.

use crate::config::TimedConfig;

/// Brings the emulator's clock, which counts a nanosecond an instruction, to the processor's cycles.
#[derive(Debug, Clone)]
pub struct FullSpeed {
    clock_mhz: i64,
    /// Thousandths of cycles that have not passed.
    rest: i64,
}

impl FullSpeed {
    /// At the speed of this machine's processor.
    #[must_use]
    pub fn of(machine: &TimedConfig) -> Self {
        FullSpeed { clock_mhz: i64::from(machine.hardware.node.core.clock_mhz), rest: 0 }
    }

    /// How much to add to the emulator's clock for so many instructions: mostly a negative number.
    #[inline]
    pub fn add_ns(&mut self, instructions: u32) -> i64 {
        let parts = self.rest + i64::from(instructions) * 1000;
        self.rest = parts % self.clock_mhz;
        parts / self.clock_mhz - i64::from(instructions)
    }
}

/// Instructions that take so much time at full speed, at most.
#[must_use]
pub fn instructions_in(time_ns: u64, machine: &TimedConfig) -> u64 {
    let clock_mhz = u128::from(machine.hardware.node.core.clock_mhz);
    u64::try_from(u128::from(time_ns) * clock_mhz / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT_PRESET;
    use terrace_hardware::presets;

    #[test]
    fn each_instruction_takes_a_cycle() {
        let mut machine = TimedConfig::of(presets::by_name(DEFAULT_PRESET).unwrap());
        for clock_mhz in [800, 1000, 2600, 3000] {
            machine.hardware.node.core.clock_mhz = clock_mhz;
            let mut speed = FullSpeed::of(&machine);
            let (mut instructions, mut clock_ns) = (0u64, 0i64);
            for block in (1..40).cycle().take(10_000) {
                instructions += u64::from(block);
                clock_ns += i64::from(block) + speed.add_ns(block);
                let cycles_ns = instructions * 1000 / u64::from(clock_mhz);
                assert_eq!(clock_ns, cycles_ns as i64, "{clock_mhz} MHz");
            }
            let in_that_time = instructions_in(clock_ns as u64, &machine);
            assert!(instructions - in_that_time <= 3, "{in_that_time} of {instructions}");
        }
    }
}
