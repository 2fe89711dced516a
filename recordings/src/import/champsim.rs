//! ChampSim traces: each record is one instruction, its fetch, its loads and its stores.
//!
//! A trace has no sizes: every reference is recorded as one byte, which touches the line that
//! ChampSim touches. Branches and registers are left out.

use std::io::Write;

use super::error::{ImportError, Place};
use super::{ImportFormat, ImportOptions, Imported, Input, Makes, header};
use crate::champsim::{Instruction, RECORD_BYTES};
use crate::reference::{Event, Process, Reference, ReferenceBuilder};

pub(super) static FORMAT: ImportFormat = ImportFormat {
    name: "champsim",
    summary: "ChampSim traces: 64 bytes per instruction, raw or compressed (.xz, .gz, .zst)",
    made_by: "ChampSim's tracers; traces of its championships",
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
    let header = header(input, options, "a ChampSim tracer; references are of unknown size");
    let mut builder = ReferenceBuilder::new(out, name, &header)?;
    builder.process(&Process { process: 0, system_id: 0, command: Vec::new() })?;
    let (mut instructions, mut loads, mut stores, mut branches) = (0u64, 0, 0, 0);
    let mut bytes = [0; RECORD_BYTES];
    let cut = loop {
        let at = input.at();
        match input.fill(&mut bytes)? {
            RECORD_BYTES => {}
            0 if !input.is_cut() => break None,
            _ => break Some(Place::Byte(at)),
        }
        let Some(instruction) = Instruction::from_bytes(&bytes) else {
            let message = format!(
                "is_branch is {} and branch_taken {}, expected 0 or 1: no ChampSim trace",
                bytes[8], bytes[9]
            );
            return Err(input.malformed(Place::Byte(at + 8), message));
        };
        instructions += 1;
        branches += u64::from(instruction.is_branch);
        let fetch = Event::Fetch { address: instruction.ip, size_bytes: 1 };
        builder.event(0, 0, instructions, fetch)?;
        let mut put = |addresses: &[u64], store| {
            let mut count = 0;
            for &address in addresses.iter().filter(|a| **a != 0) {
                let reference = Reference { address, size_log2: 0, store };
                builder.reference(0, 0, instructions, reference)?;
                count += 1;
            }
            Ok::<u64, ImportError>(count)
        };
        loads += put(&instruction.loads, false)?;
        stores += put(&instruction.stores, true)?;
    };
    if instructions == 0 {
        let message = "no instructions; expected records of 64 bytes";
        return Err(input.malformed(Place::Byte(0), message));
    }
    builder.finish(cut.is_some())?;
    let counts = vec![
        ("instructions", instructions),
        ("loads", loads),
        ("stores", stores),
        ("branches", branches),
    ];
    Ok(Imported { counts, cut, differs: Vec::new() })
}
