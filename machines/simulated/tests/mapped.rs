//! When the pages of an operation are mapped: for how long a program waits for one of them.

mod support;

use support::references::{START, chase, config, group, load, observe, script};
use terrace_core::interfaces::Mover;
use terrace_core::operations::OperationSize;
use terrace_core::page::{PageSize, SpaceId};
use terrace_core::plan::Plan;
use terrace_simulated::os::Mapped;
use terrace_simulated::reference::{Options, ReferenceMachine};

const REGION_BYTES: u64 = 2 << 20;
const PAGES: usize = 512;

/// Milliseconds for which a program waits that uses the first pages of a region while all of it goes
/// down in one operation.
fn waited_ms(mapped: Mapped) -> f64 {
    let mut c = config(64 << 20, 64 << 20);
    c.period_ns = 100_000;
    c.options = Options { finish_moves: true, ..Options::default() };
    c.os.migration.mapped = mapped;
    // These steps of all pages come before the first one is copied.
    c.os.costs.move_allocate_base_ns = Some(0);
    c.os.costs.unmap_ns = Some(0);
    let machine = ReferenceMachine::new(c).unwrap();
    let touches = (0..PAGES as u64).map(|page| load(START + page * PageSize::Base.bytes()));
    let source = script(REGION_BYTES, touches.chain(chase(32 << 10, 4_000_000)));
    let (mut tracker, mut mover) =
        machine.add_group(group(PageSize::Base, 1.0), Box::new(source)).unwrap();
    let mut scan = observe(&mut tracker);
    while scan.pages() < PAGES {
        scan = observe(&mut tracker);
    }
    let before_ps = machine.counts(0).migration_ps;
    let sizes = vec![OperationSize::both_ways(SpaceId(0), REGION_BYTES)];
    let demotions = scan.layout.ranges(0..PAGES);
    let plan = Plan { demotions, operation_sizes: sizes, ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.demoted_pages, outcome.operations), (PAGES as u64, 1), "{outcome:?}");
    machine.check().unwrap();
    (machine.counts(0).migration_ps - before_ps) as f64 / 1e9
}

#[test]
fn a_program_waits_for_the_page_it_needs_where_each_is_mapped_when_it_is_copied() {
    let (together, each) = (waited_ms(Mapped::Together), waited_ms(Mapped::Each));
    assert!(each > 0.0 && each < together / 10.0, "{each} ms, together {together}");
}
