//! Valgrind's lackey with `--trace-mem=yes`: a line per instruction, load, store and modify.
//!
//! ```text
//! I  04222c4d,3       an instruction of 3 bytes
//!  L 1fff0005c8,8     a load of 8 bytes
//!  S 1fff0005e8,8     a store
//!  M 0421c7cc,4       a load and a store of the same place by one instruction
//! ```
//!
//! Lines of Valgrind's own (`==PID==`) are between them; the instructions it counted are
//! compared with those imported. A size that is no power of two is recorded as the next one, of
//! more than 64 bytes as 64. Lackey does not distinguish threads.

use std::io::Write;

use super::error::{ImportError, Place};
use super::input::Line;
use super::{ImportFormat, ImportOptions, Imported, Input, Makes, header};
use crate::reference::{Event, Process, Reference, ReferenceBuilder};

/// More bytes than any instruction of Valgrind's machines moves at once.
const MAX_SIZE_BYTES: u64 = 1 << 16;

pub(super) static FORMAT: ImportFormat = ImportFormat {
    name: "lackey",
    summary: "Valgrind lackey's memory trace, as text or compressed",
    made_by: "valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM",
    makes: Makes::References,
    choices: &[],
    run,
};

fn run(
    input: &mut Input,
    out: &mut dyn Write,
    name: &str,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let mut builder = ReferenceBuilder::new(out, name, &header(input, options, "Valgrind lackey"))?;
    builder.process(&Process { process: 0, system_id: 0, command: Vec::new() })?;
    let (mut instructions, mut loads, mut stores, mut modifies) = (0u64, 0, 0, 0);
    let mut stated = None;
    let mut line = Vec::new();
    while input.line(&mut line)? == Line::Whole {
        let Some((kind, address, size_bytes)) = reference(&line) else {
            if is_note(&line) {
                stated = guest_instructions(&line).or(stated);
                continue;
            }
            return Err(input.bad_line(
                &line,
                "a line of lackey's such as ' L 1fff0005c8,8'; keep the program's own output \
                 apart with --log-file",
            ));
        };
        if kind == b'I' {
            instructions += 1;
            let fetch = Event::Fetch { address, size_bytes };
            builder.event(0, 0, instructions, fetch)?;
            continue;
        }
        let size_log2 = size_bytes.next_power_of_two().trailing_zeros().min(6) as u8;
        if kind != b'S' {
            let reference = Reference { address, size_log2, store: false };
            builder.reference(0, 0, instructions, reference)?;
            loads += 1;
        }
        if kind != b'L' {
            let reference = Reference { address, size_log2, store: true };
            builder.reference(0, 0, instructions, reference)?;
            stores += 1;
        }
        modifies += u64::from(kind == b'M');
    }
    if instructions + loads + stores == 0 {
        let message = "no references; run valgrind --tool=lackey with --trace-mem=yes";
        return Err(input.malformed(Place::Line(input.lines()), message));
    }
    builder.finish(input.is_cut())?;
    let cut = input.is_cut().then_some(Place::Line(input.lines() + 1));
    let differs = stated
        .filter(|stated| *stated != instructions)
        .map(|stated| ("instructions", stated, instructions));
    Ok(Imported {
        counts: vec![
            ("instructions", instructions),
            ("loads", loads),
            ("stores", stores),
            ("modifies", modifies),
        ],
        cut,
        differs: differs.into_iter().collect(),
    })
}

/// Kind, address and size.
fn reference(line: &[u8]) -> Option<(u8, u64, u64)> {
    let (kind, rest) = match line {
        [b'I', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return None,
    };
    let mut address = 0u64;
    let mut digits = 0;
    let mut rest = rest.trim_ascii_start().iter();
    loop {
        let digit = match rest.next()? {
            b',' if digits > 0 => break,
            b @ b'0'..=b'9' => b - b'0',
            b @ b'a'..=b'f' => b - b'a' + 10,
            _ => return None,
        };
        digits += 1;
        if digits > 16 {
            return None;
        }
        address = address << 4 | u64::from(digit);
    }
    let mut size = 0u64;
    for b in rest.as_slice() {
        size = size * 10 + u64::from(b.checked_sub(b'0').filter(|d| *d < 10)?);
        if size > MAX_SIZE_BYTES {
            return None;
        }
    }
    (size > 0).then_some((kind, address, size))
}

/// Valgrind's own lines: `==PID== ...`, `--PID-- ...`, `**PID** ...`, and empty lines.
fn is_note(line: &[u8]) -> bool {
    line.trim_ascii().is_empty() || [&b"=="[..], b"--", b"**"].iter().any(|p| line.starts_with(p))
}

/// `==PID==   guest instrs:  2,485,113`
fn guest_instructions(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let number = text.split_once("guest instrs:")?.1.trim();
    let digits: String = number.chars().filter(|c| *c != ',').collect();
    digits.parse().ok()
}
