//! Windows simulated without what is between them, against the same windows of whole runs.

use terrace_core::page::PageSize;
use terrace_recordings::source::SourceError;
use terrace_recordings::windows::{Header, Window};
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::reference::windows::play::Lines;
use terrace_simulated::reference::windows::{Choice, Played, Player, lines_for, source, take};
use terrace_simulated::reference::{Access, AccessKind, ReferenceConfig, ReferenceMachine};

mod support;

use support::references::*;

const REFERENCES: u64 = 600_000;
const BYTES: u64 = 8 << 20;
const CHOICE: Choice =
    Choice { windows: 10, window_references: 5_000, lead_references: 500, lines: 1 << 16, seed: 1 };

/// Every other access is within 256 KB, the others anywhere in 8 MB; half are stores.
fn program() -> support::references::Script {
    let near = chase(256 << 10, REFERENCES / 2);
    let far = chase(BYTES, REFERENCES / 2);
    let both = near.zip(far).enumerate().flat_map(|(n, (near, far))| {
        let kind = if n % 2 == 0 { AccessKind::Store } else { AccessKind::Load };
        [near, Access { kind, ..far }]
    });
    script(BYTES, both)
}

/// Caches of 1 MB, so that a window without the lines before it misses what a whole run has.
fn machine() -> (ReferenceConfig, Lines) {
    let mut config = config(16 << 20, 16 << 20);
    let caches = &mut config.hardware.node.caches;
    caches.l2 = None;
    (caches.llc.size, caches.llc.ways) = (Bytes(1 << 20), 16);
    let lines = lines_for(&config.hardware, 1);
    (config, lines)
}

fn windows() -> (Vec<Window>, Header) {
    let mut windows = Vec::new();
    let tail = take::<SourceError>(&mut program(), REFERENCES, &CHOICE, &mut |window| {
        windows.push(window.clone());
        Ok(())
    });
    assert!(tail.is_ok());
    let header = Header {
        workload: "w".into(),
        threads: 1,
        footprint_bytes: Some(BYTES),
        references: REFERENCES,
        windows: CHOICE.windows,
        window_references: CHOICE.window_references,
        lead_references: CHOICE.lead_references,
        lines: CHOICE.lines,
        seed: CHOICE.seed,
        experiment: String::new(),
        created_by: "test".into(),
    };
    (windows, header)
}

fn played(lines: Lines) -> Vec<Played> {
    let (windows, header) = windows();
    let machine = ReferenceMachine::new(machine().0).unwrap();
    let source = source(&header);
    let player = Player::new(machine.clone(), &source, &header, lines);
    let _interfaces = machine.add_group(group(PageSize::Base, 0.5), Box::new(source)).unwrap();
    windows.iter().map(|window| player.play(window).unwrap()).collect()
}

/// Time without faults and reads from memory of the same references in a whole run.
fn in_a_whole_run() -> Vec<Played> {
    let machine = ReferenceMachine::new(machine().0).unwrap();
    let _interfaces = machine.add_group(group(PageSize::Base, 0.5), Box::new(program())).unwrap();
    let mut results = Vec::new();
    for window in windows().0 {
        let begins = window.position + CHOICE.lead_references;
        machine.run_references(0, begins - machine.counts(0).references, false).unwrap();
        let before = machine.counts(0);
        let took = machine.run_references(0, CHOICE.window_references, false).unwrap().took;
        let counts = machine.counts(0) - before;
        results.push(Played { took_ps: took.0 - counts.fault_ps, reads: counts.reads });
    }
    results
}

fn sums(results: &[Played]) -> (f64, f64) {
    let took = results.iter().map(|r| r.took_ps as f64).sum();
    (took, results.iter().flat_map(|r| r.reads).sum::<u64>() as f64)
}

#[test]
fn a_window_with_its_lines_takes_what_it_takes_in_a_whole_run_and_without_them_more() {
    let whole = sums(&in_a_whole_run());
    let (_, lines) = machine();
    let off = |lines: Lines| {
        let (took, reads) = sums(&played(lines));
        (took / whole.0 - 1.0, reads / whole.1 - 1.0)
    };
    let (time, reads) = off(lines);
    assert!(time.abs() < 0.01 && reads.abs() < 0.01, "{time} {reads}");
    let (time, reads) = off(Lines { all: 0, used: 0 });
    assert!(time > 0.02 && reads > 0.1, "{time} {reads}");
    // Used one by one they give the same as where most only fill the last level.
    let (time, reads) = off(Lines { used: lines.all, ..lines });
    assert!(time.abs() < 0.01 && reads.abs() < 0.01, "{time} {reads}");
}

#[test]
fn pages_are_where_the_whole_run_has_them_whether_windows_before_are_played_or_skipped() {
    let (windows, header) = windows();
    let (config, lines) = machine();
    let reads = |skip: bool| {
        let machine = ReferenceMachine::new(config.clone()).unwrap();
        let source = source(&header);
        let player = Player::new(machine.clone(), &source, &header, lines);
        let _interfaces = machine.add_group(group(PageSize::Base, 0.5), Box::new(source)).unwrap();
        let (last, before) = windows.split_last().unwrap();
        for window in before {
            if skip {
                player.skip(window).unwrap();
            } else {
                player.play(window).unwrap();
            }
        }
        player.play(last).unwrap().reads
    };
    let whole = in_a_whole_run();
    let expected = whole.last().unwrap().reads;
    for got in [reads(false), reads(true)] {
        for (got, expected) in got.into_iter().zip(expected) {
            assert!(got.abs_diff(expected) <= expected / 50, "{got} for {expected}");
        }
    }
    assert!(expected[0] > 100 && expected[1] > 100, "{expected:?}");
}
