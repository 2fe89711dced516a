//! `perf script`: samples that have an address, as `perf mem record` and `perf record -d` take
//! them.
//!
//! ```text
//! comm  PID/TID [CPU]  seconds: [period] event:  address [data source] [weight] [ip ...]
//! ```
//!
//! Time is in nanoseconds from the first sample, and is also the number of instructions, which is
//! not known. Whether a sample is a store follows from its data source (`OP STORE`) where that is
//! printed, else from the event's name. Samples without an address (0) are counted and left out. A
//! sample's size is not known: it is recorded as one byte. Lines of a call chain are skipped.
//!
//! A sample of a process that had exited has no identifiers (`:-1 -1/-1`): such samples are counted
//! and left out.

use std::collections::BTreeMap;
use std::io::Write;

use super::error::{ImportError, Place};
use super::input::Line;
use super::{Choice, ImportFormat, ImportOptions, Imported, Input, Makes, header};
use crate::reference::{IN_NANOSECONDS, Process, Reference, ReferenceBuilder};

pub(super) static FORMAT: ImportFormat = ImportFormat {
    name: "perf",
    summary: "memory samples as text of perf script",
    made_by: "perf mem record PROGRAM; perf script -F comm,pid,tid,time,event,addr,ip > FILE",
    makes: Makes::References,
    choices: &[Choice::Sample],
    run,
};

const EXPECTED: &str = "a sample such as 'prog 12/12 3.000001: cpu/mem-loads/: 7f00 4010', from \
                        perf script -F comm,pid,tid,time,event,addr,ip";

/// From here on addresses are the kernel's on x86-64, arm64, riscv64 and ppc64. Its memory is no
/// program's.
const KERNEL: u64 = 1 << 63;

fn run(
    input: &mut Input,
    out: &mut dyn Write,
    name: &str,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let executed_by = format!("perf script samples; {IN_NANOSECONDS}");
    let header = header(input, options, &executed_by);
    let mut builder = ReferenceBuilder::new(out, name, &header)?;
    let mut processes: BTreeMap<u32, u32> = BTreeMap::new();
    let mut streams: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let (mut loads, mut stores, mut without_address) = (0u64, 0, 0);
    let (mut without_process, mut of_kernel) = (0u64, 0u64);
    let mut first_ns = None;
    let mut line = Vec::new();
    while input.line(&mut line)? == Line::Whole {
        let text = String::from_utf8_lossy(&line);
        let trimmed = text.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let Some(sample) = sample(&text) else {
            if first_ns.is_some() && is_call_chain(&text) {
                continue;
            }
            return Err(input.bad_line(&line, EXPECTED));
        };
        let first = *first_ns.get_or_insert(sample.time_ns);
        let Some((pid, tid)) = sample.ids else {
            without_process += 1;
            continue;
        };
        if sample.address == 0 {
            without_address += 1;
            continue;
        }
        if sample.address >= KERNEL {
            of_kernel += 1;
            continue;
        }
        let next = processes.len() as u32;
        let process = *processes.entry(pid).or_insert(next);
        if process == next {
            let command = vec![sample.command.to_owned()];
            builder.process(&Process { process, system_id: pid, command })?;
        }
        let next = streams.len() as u32;
        let stream = *streams.entry((pid, tid)).or_insert(next);
        let time = sample.time_ns.saturating_sub(first);
        let reference = Reference { address: sample.address, size_log2: 0, store: sample.store };
        builder.reference(stream, process, time, reference)?;
        if sample.store { stores += 1 } else { loads += 1 }
    }
    if first_ns.is_none() {
        let message = format!("no samples; expected {EXPECTED}");
        return Err(input.malformed(Place::Line(input.lines()), message));
    }
    builder.finish(input.is_cut())?;
    Ok(Imported {
        counts: vec![
            ("samples", loads + stores + without_address + without_process + of_kernel),
            ("loads", loads),
            ("stores", stores),
            ("without_address", without_address),
            ("without_process", without_process),
            ("of_kernel", of_kernel),
            ("threads", streams.len() as u64),
            ("processes", processes.len() as u64),
        ],
        cut: input.is_cut().then_some(Place::Line(input.lines() + 1)),
        differs: Vec::new(),
    })
}

struct Sample<'a> {
    command: &'a str,
    /// Process and thread; `None` where they had exited.
    ids: Option<(u32, u32)>,
    time_ns: u64,
    address: u64,
    store: bool,
}

/// A word and what follows it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn sample(line: &str) -> Option<Sample<'_>> {
    // The time is recognizable; commands may have blanks.
    let mut rest = line;
    let (before, time_ns) = loop {
        let (first, after) = word(rest)?;
        if let Some(time_ns) = first.strip_suffix(':').and_then(nanoseconds) {
            break (line[..line.len() - rest.trim_start().len()].trim(), time_ns);
        }
        rest = after;
        if rest.is_empty() {
            return None;
        }
    };
    let mut after = word(rest)?.1;
    let before = match before.rsplit_once(char::is_whitespace) {
        Some((before, cpu)) if cpu.starts_with('[') && cpu.ends_with(']') => before.trim_end(),
        _ => before,
    };
    let (command, ids) = before.rsplit_once(char::is_whitespace)?;
    let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
    let (mut event, mut tail) = word(after)?;
    if event.bytes().all(|b| b.is_ascii_digit()) {
        after = tail;
        (event, tail) = word(after)?;
    }
    let event = event.strip_suffix(':').filter(|e| !e.is_empty())?;
    let (address, tail) = word(tail)?;
    let store =
        if tail.contains("|OP ") { tail.contains("|OP STORE") } else { event.contains("store") };
    Some(Sample {
        command: command.trim(),
        ids: known(pid.parse().ok()?, tid.parse().ok()?)?,
        time_ns,
        address: u64::from_str_radix(address, 16).ok()?,
        store,
    })
}

/// Identifiers as perf prints them, negative ones as `Some(None)`; `None` of what is no identifier.
fn known(pid: i64, tid: i64) -> Option<Option<(u32, u32)>> {
    if pid < 0 || tid < 0 {
        return Some(None);
    }
    Some(Some((u32::try_from(pid).ok()?, u32::try_from(tid).ok()?)))
}

/// `1618.501809`, with up to nine places.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, places) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(seconds) || !digits(places) || places.len() > 9 {
        return None;
    }
    let fraction = places.parse::<u64>().ok()? * 10u64.pow(9 - places.len() as u32);
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// `        7f6a1fcc77ad main+0x10 (/bin/t)`
fn is_call_chain(line: &str) -> bool {
    line.starts_with(char::is_whitespace)
        && word(line).is_some_and(|(ip, _)| u64::from_str_radix(ip, 16).is_ok())
}
