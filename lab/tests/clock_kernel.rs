//! The memory clock in guests of the Terrace kernel, which has to be built (`make kernel`).

mod timed;

use terrace_lab::Kernel;

#[test]
fn the_terrace_kernels_time_is_that_of_what_a_program_makes_it_do() {
    timed::assert_causes_of_the_kernels_time(Kernel::Terrace);
}
