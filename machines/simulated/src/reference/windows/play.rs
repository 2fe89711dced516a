//! Simulating windows on a machine: what is between them leaves pages where first touch puts them,
//! lines that were used last fill caches and TLBs, and the window itself is timed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use terrace_core::interfaces::MachineError;
use terrace_hardware::presets::MachineConfig;
use terrace_recordings::source::SourceError;
use terrace_recordings::windows::{Header, LINE_BYTES, Window, WindowLine, WindowStep};

use super::super::counts::TIERS;
use super::super::machine::ReferenceMachine;
use super::super::source::{Access, AccessKind, BLOCK, ReferenceSource, Step};
use super::read;

/// Lines for each that caches hold: sets fill unevenly.
const LINES_PER_PLACE: f64 = 1.25;
/// Lines that are used as the program did, beyond those for the private levels: they fill the TLBs
/// too. The others only fill the last level.
const LINES_FOR_TLBS: u64 = 32_768;

/// Steps on their way to a machine.
type Steps = Arc<Mutex<VecDeque<Step>>>;

/// The source of a machine that simulates windows.
pub struct WindowsSource {
    threads: usize,
    footprint_bytes: Option<u64>,
    steps: Steps,
}

impl ReferenceSource for WindowsSource {
    fn threads(&self) -> usize {
        self.threads
    }

    fn footprint_bytes(&self) -> Option<u64> {
        self.footprint_bytes
    }

    fn next_step(&mut self) -> Result<Step, SourceError> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(steps.pop_front().unwrap_or(Step::Ended))
    }
}

/// What a window took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Played {
    /// Time of its measured references, without page faults where the program has one thread.
    pub took_ps: u64,
    /// Lines read from memory, by tier.
    pub reads: [u64; TIERS],
}

/// Simulates the windows of one program on one machine, in order.
pub struct Player {
    machine: ReferenceMachine,
    steps: Steps,
    threads: u16,
    lead: u64,
    window: u64,
    lines: Lines,
}

/// Lines before a window that fill the caches of a machine, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Of these the last level is filled: somewhat more than all levels hold.
    pub all: u64,
    /// The latest of them are used as by the program.
    pub used: u64,
}

/// The source for [`Player::new`]; it is added to a machine as its only program.
pub fn source(header: &Header) -> WindowsSource {
    WindowsSource {
        threads: usize::from(header.threads.max(1)),
        footprint_bytes: header.footprint_bytes,
        steps: Steps::default(),
    }
}

/// The lines that leave the caches of a machine as full as in a whole run.
pub fn lines_for(hardware: &MachineConfig, threads: u16) -> Lines {
    let caches = &hardware.node.caches;
    let private = caches.l1.size.0 + caches.l2.as_ref().map_or(0, |l2| l2.size.0);
    let cores = u64::from(threads).min(u64::from(hardware.node.cores)).max(1);
    let lines = |bytes: u64| (bytes as f64 * LINES_PER_PLACE) as u64 / LINE_BYTES;
    Lines {
        all: lines(caches.llc.size.0 + cores * private),
        used: lines(cores * private) + LINES_FOR_TLBS,
    }
}

impl Player {
    /// A player on this machine, to which [`source`] gives its only program.
    pub fn new(
        machine: ReferenceMachine,
        source: &WindowsSource,
        header: &Header,
        lines: Lines,
    ) -> Self {
        Player {
            machine,
            steps: source.steps.clone(),
            threads: header.threads,
            lead: header.lead_references,
            window: header.window_references,
            lines,
        }
    }

    /// Goes through a window without timing it.
    pub fn skip(&self, window: &Window) -> Result<(), MachineError> {
        self.warm(&window.before)?;
        self.warm(&window.steps)
    }

    /// Simulates a window.
    pub fn play(&self, window: &Window) -> Result<Played, MachineError> {
        self.warm(&window.before)?;
        let last = |lines: u64| window.lines.len().saturating_sub(lines as usize);
        let (first, used) = (last(self.lines.all), last(self.lines.used));
        let filled = window.lines.get(first..used).unwrap_or_default();
        self.machine.fill_last_level(0, filled.iter().map(|l| (l.address, l.is_written)));
        let used = &window.lines[used..];
        for lines in used.chunks(BLOCK) {
            self.send(Step::Accesses(lines.iter().map(replayed).collect()));
        }
        self.machine.warm_references(0, used.len() as u64)?;
        self.send(Step::Barrier);
        self.send_all(&window.steps);
        self.machine.run_references(0, self.lead, false)?;
        let before = self.machine.counts(0);
        let took = self.machine.run_references(0, self.window, false)?.took;
        let counts = self.machine.counts(0) - before;
        // Faults of one thread are known of the whole program: they are added there.
        let faults = if self.threads > 1 { 0 } else { counts.fault_ps };
        Ok(Played { took_ps: took.0.saturating_sub(faults), reads: counts.reads })
    }

    /// Goes through the steps after the last window. Returns the time of all page faults of the
    /// program, in windows or not; 0 for several threads, whose faults are in their windows.
    pub fn end(self, tail: &[WindowStep]) -> Result<u64, MachineError> {
        self.warm(tail)?;
        Ok(if self.threads > 1 { 0 } else { self.machine.counts(0).fault_ps })
    }

    fn warm(&self, steps: &[WindowStep]) -> Result<(), MachineError> {
        let references = self.send_all(steps);
        self.machine.warm_references(0, references).map(|_| ())
    }

    fn send(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push_back(step);
    }

    /// Gives steps to the machine; how many of them are accesses.
    fn send_all(&self, steps: &[WindowStep]) -> u64 {
        let mut references = 0;
        let mut block = Vec::new();
        let mut flush = |block: &mut Vec<Access>| {
            if !block.is_empty() {
                references += block.len() as u64;
                self.send(Step::Accesses(std::mem::take(block)));
            }
        };
        for step in steps {
            let other = match *step {
                WindowStep::Access(ref access) => {
                    block.push(read(access));
                    if block.len() == BLOCK {
                        flush(&mut block);
                    }
                    continue;
                }
                WindowStep::Map { start, size_bytes, huge_eligible } => {
                    Step::Map { start, size_bytes, huge_eligible }
                }
                WindowStep::Unmap { start, size_bytes } => Step::Unmap { start, size_bytes },
                WindowStep::Barrier => Step::Barrier,
                WindowStep::MainBegins => Step::MainBegins,
            };
            flush(&mut block);
            self.send(other);
        }
        flush(&mut block);
        references
    }
}

/// The use of a line, as the program's last of it.
fn replayed(line: &WindowLine) -> Access {
    Access {
        address: line.address,
        instructions: 0,
        thread: line.thread,
        size: 1,
        kind: if line.is_written { AccessKind::Store } else { AccessKind::Load },
    }
}
