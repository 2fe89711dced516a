//! The clock of an emulated machine, as sums.
//!
//! The emulator's clock is a count of instructions, one a nanosecond, of all processors one after
//! the other, plus a bias. The guest's clock must show the time of the processor that is furthest
//! ahead. The difference is added to the bias, block by block: it is negative where a block takes
//! less time than it has instructions, or runs in the shadow of another processor.
//!
//! The emulator counts a block's instructions as the block begins, and a guest reads clocks with
//! the last instruction of a block. So the addition at the beginning of a block makes the clock
//! right at the end of the block, and no reading is earlier than one before it.

/// The guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// The time that the clock shows at the end of the running block.
    shown_ns: u64,
}

impl Clock {
    /// A clock that shows this time.
    pub fn at(shown_ns: u64) -> Self {
        Clock { shown_ns }
    }

    /// The time that the clock shows at the end of the running block.
    pub fn shown_ns(&self) -> u64 {
        self.shown_ns
    }

    /// A block of so many instructions begins on a processor whose own time will be `until_ns` at
    /// the end of the block. Returns the addition to the bias.
    #[inline]
    pub fn block(&mut self, instructions: u64, until_ns: u64) -> i64 {
        let before = self.shown_ns;
        self.shown_ns = before.max(until_ns);
        (self.shown_ns - before) as i64 - instructions as i64
    }

    /// The running block will end later than computed. Returns the addition to the bias.
    #[inline]
    pub fn extend(&mut self, until_ns: u64) -> i64 {
        self.block(0, until_ns)
    }

    /// Between two blocks the emulator's clock shows this. It may have skipped time in which no
    /// processor ran, which is kept; or not have reached the end of a block (a fault), which is
    /// corrected. Returns the addition to the bias.
    pub fn settle(&mut self, actual_ns: u64) -> i64 {
        let before = self.shown_ns;
        self.shown_ns = before.max(actual_ns);
        (self.shown_ns - actual_ns) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Events of an emulator and its processors.
    #[derive(Debug, Clone)]
    enum Step {
        /// A block on one of four processors: its instructions, its time, and the instructions that
        /// are executed before a fault ends it.
        Block { processor: usize, instructions: u64, takes_ns: u64, executed: u64 },
        /// The running block stalls for longer.
        Stall { takes_ns: u64 },
        /// Nothing runs until a timer.
        Idle { ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0usize..4, 1u64..60, 0u64..3000, 0u64..600).prop_map(
                |(processor, instructions, takes_ns, executed)| Step::Block {
                    processor,
                    instructions,
                    takes_ns,
                    executed: if executed < instructions { executed } else { instructions },
                }
            ),
            2 => (0u64..2000).prop_map(|takes_ns| Step::Stall { takes_ns }),
            1 => (0u64..1_000_000).prop_map(|ns| Step::Idle { ns }),
        ]
    }

    proptest! {
        #[test]
        fn time_never_goes_back_and_is_that_of_the_processor_furthest_ahead(
            start in 0u64..1 << 40,
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let (mut count, mut bias) = (start, 0i64);
            let mut clock = Clock::at(start);
            let mut times = [start; 4];
            let mut running = 0;
            let mut last = start;
            for step in steps {
                match step {
                    Step::Block { processor, instructions, takes_ns, executed } => {
                        if processor != running {
                            let actual = count.wrapping_add_signed(bias);
                            bias += clock.settle(actual);
                            running = processor;
                        }
                        times[processor] += takes_ns;
                        bias += clock.block(instructions, times[processor]);
                        count += executed;
                        if executed < instructions {
                            // No clock is read there; a fault ends the slice of the test.
                            running = usize::MAX;
                            continue;
                        }
                    }
                    Step::Stall { takes_ns } => {
                        if running == usize::MAX {
                            continue;
                        }
                        times[running] += takes_ns;
                        bias += clock.extend(times[running]);
                    }
                    Step::Idle { ns } => {
                        bias += clock.settle(count.wrapping_add_signed(bias));
                        bias += ns as i64;
                        bias += clock.settle(count.wrapping_add_signed(bias));
                        times = [clock.shown_ns(); 4];
                        running = usize::MAX;
                    }
                }
                let reading = count.wrapping_add_signed(bias);
                prop_assert!(reading >= last, "{reading} after {last}");
                prop_assert_eq!(reading, clock.shown_ns());
                prop_assert_eq!(reading, *times.iter().max().unwrap());
                last = reading;
            }
        }
    }

    #[test]
    fn a_block_in_the_shadow_of_another_processor_takes_no_time() {
        let mut clock = Clock::at(1000);
        assert_eq!(clock.block(10, 700), -10);
        assert_eq!(clock.block(10, 1250), 240);
        assert_eq!(clock.shown_ns(), 1250);
        assert_eq!(clock.settle(5000), 0);
        assert_eq!(clock.shown_ns(), 5000);
        assert_eq!(clock.settle(4990), 10);
    }
}
