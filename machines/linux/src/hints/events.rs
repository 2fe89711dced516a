//! What the kernel does to find out which pages are accessed, as it happens: which memory it makes
//! fault, and which pages then do.
//!
//! Faults are the software event `page-faults` of each processor. Scans are calls of the kernel's
//! `change_prot_numa(vma, start, end)`, which runs in a thread of the process that is scanned, several
//! times within a call of `task_numa_work()`; until that returns the thread accesses nothing. Both are
//! probed by the event source `kprobe`: at the entry of the one, with the registers of its arguments,
//! and at the return of the other. All end when they are closed, with the process that has opened them
//! at the latest; nothing is left on the host.

use std::io;

use terrace_recordings::perf_record::{ADDR, TID, TIME};

use crate::files;
use crate::numa;
use crate::roots::Roots;
use crate::samples::pmu_raw::{self, Attributes, Ring};

/// Pages of a processor's ring of faults: 16,000 of them.
const FAULT_PAGES: usize = 128;
const SCAN_PAGES: usize = 8;
/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_PAGE_FAULTS`.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: u64 = 2;
/// `config` of a probe at the return of a function.
const AT_RETURN: u64 = 1;
/// `PERF_SAMPLE_REGS_INTR`: registers at the moment of the sample.
const REGS_INTR: u64 = 1 << 18;
/// Of x86-64's registers (`PERF_REG_X86_*`), those of the second and the third argument.
const DX: u64 = 1 << 3;
const SI: u64 = 1 << 4;
/// `PERF_RECORD_LOST` and `PERF_RECORD_SAMPLE`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const HEADER_BYTES: usize = 8;
/// No record of these events is longer.
const LONGEST_BYTES: usize = 256;

/// Something that the kernel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It begins to make memory of a process fault, in this thread of it.
    Scan { pid: u32, thread: u32, time_ns: u64, start: u64, end: u64 },
    /// The thread goes on after its scans.
    Resumed { pid: u32, thread: u32, time_ns: u64 },
    /// A page of a process faulted.
    Fault { pid: u32, time_ns: u64, address: u64 },
}

impl Event {
    pub(super) fn time_ns(self) -> u64 {
        match self {
            Event::Scan { time_ns, .. }
            | Event::Resumed { time_ns, .. }
            | Event::Fault { time_ns, .. } => time_ns,
        }
    }

    pub(super) fn pid(self) -> u32 {
        match self {
            Event::Scan { pid, .. } | Event::Resumed { pid, .. } | Event::Fault { pid, .. } => pid,
        }
    }
}

/// Records that are cut out of pieces of a ring.
#[derive(Debug, Default)]
struct Cutter {
    rest: Vec<u8>,
}

impl Cutter {
    /// Gives type and body of each record that is whole by now. What cannot be a record ends the piece.
    fn push(&mut self, piece: &[u8], mut take: impl FnMut(u32, &[u8])) {
        self.rest.extend_from_slice(piece);
        let mut at = 0;
        while let Some(header) = self.rest.get(at..at + HEADER_BYTES) {
            let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
            if !(HEADER_BYTES..=LONGEST_BYTES).contains(&size) {
                at = self.rest.len();
                break;
            }
            let Some(body) = self.rest.get(at + HEADER_BYTES..at + size) else { break };
            take(kind, body);
            at += size;
        }
        self.rest.drain(..at);
    }
}

/// Word of a body.
fn word(body: &[u8], nth: usize) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(8 * nth..8 * nth + 8)?.try_into().ok()?))
}

/// Process and thread.
fn task(body: &[u8]) -> Option<(u32, u32)> {
    let word = word(body, 0)?;
    Some((word as u32, (word >> 32) as u32))
}

fn fault(body: &[u8]) -> Option<Event> {
    let (pid, _) = task(body)?;
    Some(Event::Fault { pid, time_ns: word(body, 1)?, address: word(body, 2)? })
}

fn resumed(body: &[u8]) -> Option<Event> {
    let (pid, thread) = task(body)?;
    Some(Event::Resumed { pid, thread, time_ns: word(body, 1)? })
}

fn scan(body: &[u8]) -> Option<Event> {
    // The third word is the kind of registers: 0 where there are none.
    let (pid, thread) = task(body)?;
    (word(body, 2)? != 0).then_some(())?;
    let (time_ns, end, start) = (word(body, 1)?, word(body, 3)?, word(body, 4)?);
    Some(Event::Scan { pid, thread, time_ns, start, end })
}

/// The events of all processors, for as long as it lives.
pub(super) struct Events {
    faults: Vec<(Ring, Cutter)>,
    scans: Vec<(Ring, Cutter)>,
    returns: Vec<(Ring, Cutter)>,
    lost: u64,
}

impl Events {
    /// Opens both on each processor.
    pub(super) fn open(roots: &Roots) -> io::Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(io::Error::other(
                "arguments of the kernel's scan are known on x86-64 only",
            ));
        }
        let path = roots.event_source("kprobe").join("type");
        let text = files::read(&path).map_err(io::Error::other)?;
        let kprobe = text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            io::Error::other(format!("{} is absent; expected CONFIG_KPROBE_EVENTS", path.display()))
        })?;
        let cpus = numa::online_cpus(roots).map_err(io::Error::other)?;
        let mut events =
            Events { faults: Vec::new(), scans: Vec::new(), returns: Vec::new(), lost: 0 };
        let faults = Attributes {
            kind: SOFTWARE,
            config: PAGE_FAULTS,
            sample_period: 1,
            sample_type: TID | TIME | ADDR,
            ..Attributes::default()
        };
        for cpu in cpus {
            let scan = pmu_raw::open_probe(
                &Attributes {
                    kind: kprobe,
                    sample_period: 1,
                    sample_type: TID | TIME | REGS_INTR,
                    sample_regs_intr: DX | SI,
                    ..Attributes::default()
                },
                c"change_prot_numa",
                cpu,
            )?;
            events.scans.push((Ring::map(scan, SCAN_PAGES)?, Cutter::default()));
            let resumed = pmu_raw::open_probe(
                &Attributes {
                    kind: kprobe,
                    config: AT_RETURN,
                    sample_period: 1,
                    sample_type: TID | TIME,
                    ..Attributes::default()
                },
                c"task_numa_work",
                cpu,
            )?;
            events.returns.push((Ring::map(resumed, SCAN_PAGES)?, Cutter::default()));
            let fault = pmu_raw::open(&faults, None, Some(cpu), None)?;
            events.faults.push((Ring::map(fault, FAULT_PAGES)?, Cutter::default()));
        }
        Ok(events)
    }

    /// Adds what has come since the last call, in the order of time. A fault comes with the scan that
    /// has caused it, or after it.
    pub(super) fn read(&mut self, events: &mut Vec<Event>) {
        let (first, lost) = (events.len(), &mut self.lost);
        // Scans last: what a fault that was read here answers is there by then.
        let kinds = [
            (&mut self.faults, fault as fn(&[u8]) -> _),
            (&mut self.returns, resumed),
            (&mut self.scans, scan),
        ];
        for (rings, parse) in kinds {
            for (ring, cutter) in rings {
                ring.take(|piece| {
                    cutter.push(piece, |kind, body| match kind {
                        SAMPLE => events.extend(parse(body)),
                        LOST => *lost += word(body, 1).unwrap_or(0),
                        _ => {}
                    });
                });
            }
        }
        events[first..].sort_by_key(|event| event.time_ns());
    }

    /// Events that the rings had no room for.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(((HEADER_BYTES + 8 * words.len()) as u16).to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    proptest! {
        #[test]
        fn records_are_whole_wherever_a_ring_cuts_them(cuts in proptest::collection::vec(0usize..128, 0..6)) {
            let bytes = [
                record(SAMPLE, &[7 << 32 | 6, 100, 0x5000]),
                record(LOST, &[1, 9]),
                record(SAMPLE, &[7 << 32 | 6, 90, 2, 0x9000, 0x1000]),
            ]
            .concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut cutter, mut got) = (Cutter::default(), Vec::new());
            for pair in cuts.windows(2) {
                cutter.push(&bytes[pair[0]..pair[1]], |kind, body| got.push((kind, body.to_vec())));
            }
            prop_assert_eq!(got.len(), 3);
            prop_assert_eq!(fault(&got[0].1), Some(Event::Fault { pid: 6, time_ns: 100, address: 0x5000 }));
            prop_assert_eq!(word(&got[1].1, 1), Some(9));
            let expected = Event::Scan { pid: 6, thread: 7, time_ns: 90, start: 0x1000, end: 0x9000 };
            prop_assert_eq!(scan(&got[2].1), Some(expected));
        }

        #[test]
        fn nothing_in_a_ring_makes_it_panic_or_grow(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut cutter = Cutter::default();
            for piece in bytes.chunks(37) {
                cutter.push(piece, |_, body| {
                    let _ = (fault(body), scan(body));
                });
                prop_assert!(cutter.rest.len() <= LONGEST_BYTES);
            }
        }
    }
}
