//! Programs as scripts of accesses, for tests of the machine at trace fidelity, and a machine and a group
//! for them.

use terrace_core::interfaces::{Observation, Tracker};
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::Allocation;
use terrace_core::scan::Scan;
use terrace_recordings::source::SourceError;
use terrace_simulated::hardware::presets;
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{OsConfig, TablePolicy};
use terrace_simulated::reference::{
    Access, AccessKind, Counts, Options, ReferenceConfig, ReferenceGroup, ReferenceMachine,
    ReferenceSource, ReferenceTracker, Step,
};

pub const START: u64 = 1 << 40;
pub const HUGE: u64 = PageSize::Huge.bytes();

/// Steps written by a test.
pub struct Script {
    pub steps: Box<dyn Iterator<Item = Step> + Send>,
    pub footprint_bytes: Option<u64>,
    pub threads: usize,
}

impl ReferenceSource for Script {
    fn threads(&self) -> usize {
        self.threads
    }

    fn footprint_bytes(&self) -> Option<u64> {
        self.footprint_bytes
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        Ok(self.steps.next().unwrap_or(Step::Ended))
    }
}

pub fn load(address: u64) -> Access {
    Access { address, instructions: 10, thread: 0, size: 8, kind: AccessKind::Load }
}

/// A mapping of `bytes`, then these accesses.
pub fn script(bytes: u64, accesses: impl Iterator<Item = Access> + Send + 'static) -> Script {
    let map = Step::Map { start: START, size_bytes: bytes, huge_eligible: true };
    let mut accesses = accesses;
    let blocks = std::iter::from_fn(move || {
        let block: Vec<Access> = accesses.by_ref().take(4096).collect();
        (!block.is_empty()).then_some(Step::Accesses(block))
    });
    let steps = Box::new(std::iter::once(map).chain(blocks));
    Script { steps, footprint_bytes: Some(bytes), threads: 1 }
}

/// A spread-out order of the lines of a footprint, each a dependent load.
pub fn chase(bytes: u64, loads: u64) -> impl Iterator<Item = Access> {
    let lines = bytes / 64;
    (0..loads).map(move |n| Access {
        kind: AccessKind::DependentLoad,
        ..load(START + (n.wrapping_mul(0x9E37_79B1) % lines) * 64)
    })
}

pub fn config(fast: u64, slow: u64) -> ReferenceConfig {
    let mut hardware = presets::by_name("server-ddr5-cxl").unwrap();
    hardware.node.cores = 4;
    hardware.tiers[0].capacity = Bytes(fast);
    hardware.tiers[1].capacity = Bytes(slow);
    ReferenceConfig {
        hardware,
        os: OsConfig::default(),
        period_ns: 1_000_000,
        reads_per_sample: 0,
        sample_seed: 1,
        options: Options::default(),
    }
}

pub fn group(page_size: PageSize, fast_ratio: f64) -> ReferenceGroup {
    ReferenceGroup {
        name: "g".into(),
        page_size,
        allocation: Allocation::FastFirst,
        tables: TablePolicy::default(),
        fast_budget: Box::new(move |l: &Layout| (l.pages() as f64 * fast_ratio) as u64),
        needs_frames: false,
        start_ns: 0,
        stop_ns: None,
        stop_after_start_up_of: None,
    }
}

/// Runs one program to its end without moves: its time in ns, and its cost.
pub fn alone(
    config: ReferenceConfig,
    group: ReferenceGroup,
    source: impl ReferenceSource + 'static,
) -> (f64, Counts) {
    let machine = ReferenceMachine::new(config).unwrap();
    let _interfaces = machine.add_group(group, Box::new(source)).unwrap();
    machine.run_to_end().unwrap();
    machine.check().unwrap();
    (machine.duration(0).unwrap().as_ns(), machine.counts(0))
}

pub fn observe(tracker: &mut ReferenceTracker) -> Scan {
    match tracker.observe().unwrap() {
        Observation::Period(scan) => scan,
        other => panic!("{other:?}"),
    }
}
