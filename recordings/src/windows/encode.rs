//! Steps and lines of a window as bytes, and back.
//!
//! ```text
//! step   = byte [thread:number] [size:byte] instructions:number distance:signed   an access
//!          byte: kind:3 other_thread:1 size_log2:4, 15: the size follows
//!        | byte start:number size_bytes:number                       kind 3 to 5: (un)map
//!        | byte                                                      kind 6, 7: barrier, main
//! line   = (distance:signed << 1 | written):number [thread:number]
//! ```
//!
//! Distances are from the address before, of lines in lines; threads of lines are there where the
//! program has several.

use super::{Header, Kind, LINE_BYTES, Window, WindowAccess, WindowLine, WindowStep};
use crate::codec::{Cursor, Malformed, put_number, put_signed};

const MAP: u8 = 3;
const MAP_HUGE: u8 = 4;
const UNMAP: u8 = 5;
const BARRIER: u8 = 6;
const MAIN: u8 = 7;
const KIND_MASK: u8 = 7;
const OTHER_THREAD: u8 = 1 << 3;
const SIZE_SHIFT: u32 = 4;
/// The size is no power of two.
const ODD_SIZE: u8 = 15;
const PAGE_MASK: u64 = 0xfff;

pub(super) fn put_window(out: &mut Vec<u8>, window: &Window, threads: u16) {
    put_number(out, window.position);
    put_steps(out, &window.before);
    put_number(out, window.lines.len() as u64);
    let mut last = 0u64;
    for line in &window.lines {
        let number = line.address / LINE_BYTES;
        let distance = number.wrapping_sub(last) as i64;
        last = number;
        put_number(out, ((distance << 1 ^ distance >> 63) as u64) << 1 | line.is_written as u64);
        if threads > 1 {
            put_number(out, line.thread.into());
        }
    }
    put_steps(out, &window.steps);
}

pub(super) fn put_steps(out: &mut Vec<u8>, steps: &[WindowStep]) {
    put_number(out, steps.len() as u64);
    let (mut thread, mut address) = (0, 0u64);
    for step in steps {
        let range = |out: &mut Vec<u8>, kind, start, size_bytes| {
            out.push(kind);
            put_number(out, start);
            put_number(out, size_bytes);
        };
        match *step {
            WindowStep::Access(access) => {
                let kind = match access.kind {
                    Kind::Load => 0,
                    Kind::DependentLoad => 1,
                    Kind::Store => 2,
                };
                let size = match access.size.is_power_of_two() {
                    true => access.size.trailing_zeros() as u8,
                    false => ODD_SIZE,
                };
                let is_other = access.thread != thread;
                out.push(kind | if is_other { OTHER_THREAD } else { 0 } | size << SIZE_SHIFT);
                if is_other {
                    thread = access.thread;
                    put_number(out, thread.into());
                }
                if size == ODD_SIZE {
                    out.push(access.size);
                }
                put_number(out, access.instructions.into());
                put_signed(out, access.address.wrapping_sub(address) as i64);
                address = access.address;
            }
            WindowStep::Map { start, size_bytes, huge_eligible } => {
                range(out, if huge_eligible { MAP_HUGE } else { MAP }, start, size_bytes);
            }
            WindowStep::Unmap { start, size_bytes } => range(out, UNMAP, start, size_bytes),
            WindowStep::Barrier => out.push(BARRIER),
            WindowStep::MainBegins => out.push(MAIN),
        }
    }
}

pub(super) fn take_window(from: &mut Cursor<'_>, header: &Header) -> Result<Window, Malformed> {
    let position = from.number()?;
    let before = take_steps(from, header.threads)?;
    let count = from.count("lines")?;
    if count as u64 > header.lines {
        return Err(Malformed(format!("{count} lines, expected {} at most", header.lines)));
    }
    let mut lines = Vec::with_capacity(count);
    let mut last = 0u64;
    for _ in 0..count {
        let number = from.number()?;
        let distance = number >> 1;
        let distance = (distance >> 1) as i64 ^ -((distance & 1) as i64);
        last = last.wrapping_add(distance as u64);
        let address = last.checked_mul(LINE_BYTES);
        let address = address.ok_or_else(|| Malformed(format!("line {last} beyond all memory")))?;
        let thread = match header.threads {
            0..=1 => 0,
            several => from.number_below(several.into(), "a thread")? as u16,
        };
        lines.push(WindowLine { address, thread, is_written: number & 1 != 0 });
    }
    let steps = take_steps(from, header.threads)?;
    let accesses = steps.iter().filter(|s| matches!(s, WindowStep::Access(_))).count() as u64;
    let expected = header.lead_references.saturating_add(header.window_references);
    if accesses != expected {
        return Err(Malformed(format!("a window of {accesses} references, expected {expected}")));
    }
    Ok(Window { position, before, lines, steps })
}

pub(super) fn take_steps(
    from: &mut Cursor<'_>,
    threads: u16,
) -> Result<Vec<WindowStep>, Malformed> {
    let count = from.count("steps")?;
    let mut steps = Vec::new();
    let (mut thread, mut address) = (0, 0u64);
    for _ in 0..count {
        let head = from.byte()?;
        let step = match head & KIND_MASK {
            kind @ 0..=2 => {
                if head & OTHER_THREAD != 0 {
                    thread = from.number_below(u64::from(threads).max(1), "a thread")? as u16;
                }
                let size = match head >> SIZE_SHIFT {
                    ODD_SIZE => from.byte()?,
                    log2 @ 0..=7 => 1 << log2,
                    log2 => return Err(Malformed(format!("a size of 2^{log2} bytes"))),
                };
                let instructions = from.number_below(1 << 32, "instructions")? as u32;
                address = address.wrapping_add(from.signed()? as u64);
                if size == 0 || address.checked_add(size.into()).is_none() {
                    return Err(Malformed(format!("{size} bytes at {address:#x}")));
                }
                let kind = match kind {
                    0 => Kind::Load,
                    1 => Kind::DependentLoad,
                    _ => Kind::Store,
                };
                WindowStep::Access(WindowAccess { address, instructions, thread, size, kind })
            }
            BARRIER => WindowStep::Barrier,
            MAIN => WindowStep::MainBegins,
            kind => {
                let (start, size_bytes) = (from.number()?, from.number()?);
                if (start | size_bytes) & PAGE_MASK != 0 || start.checked_add(size_bytes).is_none()
                {
                    return Err(Malformed(format!("{size_bytes} bytes mapped at {start:#x}")));
                }
                match kind {
                    UNMAP => WindowStep::Unmap { start, size_bytes },
                    _ => WindowStep::Map { start, size_bytes, huge_eligible: kind == MAP_HUGE },
                }
            }
        };
        steps.push(step);
    }
    Ok(steps)
}
