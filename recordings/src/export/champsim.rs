//! ChampSim traces of one thread: a record per instruction.
//!
//! An instruction's loads and stores are in its record, those beyond four and two in records that
//! follow it. Instructions without references are records without addresses, so that ChampSim
//! counts as many as the program executed; where the recording does not have the addresses of
//! instructions, they get addresses of a loop of 16 KB. Registers and branches are unknown and left
//! 0.

use super::{
    ExportError, ExportFormat, ExportOptions, Exported, Recording, Target, check_stream, list,
    streams,
};
use crate::champsim::Instruction;
use crate::reference::{Ending, Event, Header, Record, Reference};

pub(super) static FORMAT: ExportFormat = ExportFormat {
    name: "champsim",
    summary: "a ChampSim trace of one thread: 64 bytes per instruction, not compressed",
    run,
};

/// More instructions than this between two references mean a damaged recording.
const MOST_BETWEEN: u64 = 1 << 32;

fn run(
    recording: Recording,
    out: &mut Target<'_>,
    options: &ExportOptions,
) -> Result<Exported, ExportError> {
    let unfit = |text: String| Err(ExportError::Unfit(text));
    let Recording::References(mut reader) = recording else {
        return unfit("a period recording has no references; export it as csv".to_owned());
    };
    let stream = match (options.stream, &streams(&reader)[..]) {
        (Some(stream), _) => {
            check_stream(&reader, stream)?;
            stream
        }
        (None, [only]) => *only,
        (None, []) => return unfit("the recording has no references".to_owned()),
        (None, all) => {
            return unfit(format!(
                "a ChampSim trace is of one thread, the recording has streams {}; give --stream N",
                list(all)
            ));
        }
    };
    let counts_instructions = reader.header().counts_instructions();
    let mut notes = notes(reader.header());
    let mut trace =
        Trace { out, counts_instructions, open: None, next: 0, exported: Counts::default() };
    for placed in reader.records() {
        let placed = placed?;
        if placed.stream == stream {
            trace.take(placed.instructions, placed.record)?;
        }
    }
    trace.close()?;
    match (reader.truncation(), reader.ending().is_some_and(Ending::is_cut_off)) {
        (Some(cut), _) => notes.push(cut.to_string()),
        (None, true) => notes.push("the recording ends before its program did".to_owned()),
        (None, false) => {}
    }
    let c = trace.exported;
    Ok(Exported {
        counts: vec![("records", c.records), ("loads", c.loads), ("stores", c.stores)],
        notes,
    })
}

fn notes(header: &Header) -> Vec<String> {
    let mut notes = Vec::new();
    if !header.counts_instructions() {
        notes.push("the recording does not count instructions: each reference is one".to_owned());
    }
    let filter = &header.filter;
    if filter.level != crate::reference::Level::None || filter.sample_one_in > 1 {
        notes.push(format!(
            "the recording has only a part of the references (level {}, one in {})",
            filter.level.name(),
            filter.sample_one_in
        ));
    }
    notes
}

#[derive(Default)]
struct Counts {
    records: u64,
    loads: u64,
    stores: u64,
}

struct Trace<'a, 'b> {
    out: &'a mut Target<'b>,
    counts_instructions: bool,
    /// The instruction under way and its number; whether its place is known.
    open: Option<(u64, Instruction, bool)>,
    /// Number of the instruction after the last one written.
    next: u64,
    exported: Counts,
}

impl Trace<'_, '_> {
    fn take(&mut self, number: u64, record: Record) -> Result<(), ExportError> {
        match record {
            Record::Reference(reference) => {
                self.begin(number, None)?;
                self.put(reference)
            }
            Record::Event(Event::Fetch { address, .. }) => self.begin(number, Some(address)),
            _ => Ok(()),
        }
    }

    /// Makes the instruction of this number the current one.
    fn begin(&mut self, number: u64, ip: Option<u64>) -> Result<(), ExportError> {
        match &mut self.open {
            Some((n, instruction, known))
                if *n == number && self.counts_instructions && !(*known && ip.is_some()) =>
            {
                if let Some(ip) = ip {
                    instruction.ip = ip;
                    *known = true;
                }
                return Ok(());
            }
            _ => self.close()?,
        }
        let number = if self.counts_instructions { number } else { self.next };
        // Counts begin with 0 or 1.
        if self.next == 0 {
            self.next = number.min(1);
        }
        let between = number.saturating_sub(self.next);
        if between > MOST_BETWEEN {
            return Err(ExportError::Unfit(format!(
                "{between} instructions without a reference; expected at most {MOST_BETWEEN}"
            )));
        }
        for n in self.next..number {
            self.write(Instruction { ip: in_a_loop(n), ..Instruction::default() })?;
        }
        self.next = self.next.max(number);
        let instruction =
            Instruction { ip: ip.unwrap_or_else(|| in_a_loop(number)), ..Instruction::default() };
        self.open = Some((number, instruction, ip.is_some()));
        Ok(())
    }

    fn put(&mut self, reference: Reference) -> Result<(), ExportError> {
        let Some((_, instruction, _)) = &mut self.open else { return Ok(()) };
        let places: &mut [u64] =
            if reference.store { &mut instruction.stores } else { &mut instruction.loads };
        match places.iter_mut().find(|place| **place == 0) {
            Some(place) => *place = reference.address,
            None => {
                let (full, ip) = (*instruction, instruction.ip);
                *instruction = Instruction { ip, ..Instruction::default() };
                let places: &mut [u64] =
                    if reference.store { &mut instruction.stores } else { &mut instruction.loads };
                places[0] = reference.address;
                self.write(full)?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ExportError> {
        if let Some((number, instruction, _)) = self.open.take() {
            self.write(instruction)?;
            self.next = number + 1;
        }
        Ok(())
    }

    fn write(&mut self, instruction: Instruction) -> Result<(), ExportError> {
        let used = |places: &[u64]| places.iter().filter(|a| **a != 0).count() as u64;
        self.exported.records += 1;
        self.exported.loads += used(&instruction.loads);
        self.exported.stores += used(&instruction.stores);
        self.out.put(&instruction.to_bytes())
    }
}

fn in_a_loop(number: u64) -> u64 {
    0x40_0000 + number % 4096 * 4
}
