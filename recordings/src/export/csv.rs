//! CSV (RFC 4180, line feeds): a row per record of a reference recording, or per range of pages
//! of each period of a period recording. Every value is a number or one word: nothing is quoted.

use super::{ExportError, ExportFormat, ExportOptions, Exported, Recording, Target, check_stream};
use crate::period::{Frame, PeriodReader};
use crate::reference::{Event, Record};

pub(super) static FORMAT: ExportFormat = ExportFormat {
    name: "csv",
    summary: "a row per reference, or per range of pages of each period",
    run,
};

fn run(
    recording: Recording,
    out: &mut Target<'_>,
    options: &ExportOptions,
) -> Result<Exported, ExportError> {
    match recording {
        Recording::Periods(_) if options.stream.is_some() => {
            Err(ExportError::Unfit("a period recording has no streams; leave --stream out".into()))
        }
        Recording::Periods(reader) => periods(*reader, out),
        Recording::References(mut reader) => {
            if let Some(stream) = options.stream {
                check_stream(&reader, stream)?;
            }
            out.line(format_args!("time,stream,process,instructions,kind,address,size_bytes"))?;
            let mut rows = 0;
            for placed in reader.records() {
                let p = placed?;
                if options.stream.is_some_and(|s| s != p.stream) {
                    continue;
                }
                let (kind, address, size_bytes) = columns(p.record);
                rows += 1;
                let (time, stream, process, instructions) =
                    (p.time, p.stream, p.process, p.instructions);
                match (address, size_bytes) {
                    (Some(a), Some(s)) => out.line(format_args!(
                        "{time},{stream},{process},{instructions},{kind},{a:#x},{s}"
                    ))?,
                    (Some(a), None) => out.line(format_args!(
                        "{time},{stream},{process},{instructions},{kind},{a:#x},"
                    ))?,
                    (None, _) => {
                        out.line(format_args!("{time},{stream},{process},{instructions},{kind},,"))?
                    }
                }
            }
            let notes = reader.truncation().map(ToString::to_string).into_iter().collect();
            Ok(Exported { counts: vec![("rows", rows)], notes })
        }
    }
}

fn columns(record: Record) -> (&'static str, Option<u64>, Option<u64>) {
    let event = match record {
        Record::Reference(r) => {
            let kind = if r.store { "store" } else { "load" };
            return (kind, Some(r.address), Some(r.size_bytes()));
        }
        Record::WriteBack(w) => return ("write-back", Some(w.address), None),
        Record::Event(event) => event,
    };
    match event {
        Event::Fetch { address, size_bytes } => ("fetch", Some(address), Some(size_bytes)),
        Event::Map { address, length_bytes, .. } => ("map", Some(address), Some(length_bytes)),
        Event::Unmap { address, length_bytes } => ("unmap", Some(address), Some(length_bytes)),
        Event::Remap { address, length_bytes, .. } => ("remap", Some(address), Some(length_bytes)),
        Event::Break { address } => ("break", Some(address), None),
        Event::Advise { address, length_bytes, .. } => {
            ("advise", Some(address), Some(length_bytes))
        }
        Event::Protect { address, length_bytes, .. } => {
            ("protect", Some(address), Some(length_bytes))
        }
        Event::Created { .. } => ("created", None, None),
        Event::Exec => ("exec", None, None),
        Event::SignalReturn => ("signal-return", None, None),
        Event::Exit { .. } => ("exit", None, None),
        Event::Mark { .. } => ("mark", None, None),
        Event::Waited { .. } => ("waited", None, None),
        Event::Lost { .. } => ("lost", None, None),
        Event::Unknown { .. } => ("unknown", None, None),
    }
}

fn periods<R: std::io::Read>(
    mut reader: PeriodReader<R>,
    out: &mut Target<'_>,
) -> Result<Exported, ExportError> {
    out.line(format_args!("period,group,space,start,size_bytes,accessed,fast"))?;
    let groups: Vec<String> = reader.header().groups.iter().map(|g| one_word(&g.name)).collect();
    let (mut rows, mut scans) = (0, 0);
    for frame in reader.by_ref() {
        let Frame::Scan { group, scan } = frame? else { continue };
        scans += 1;
        let page = scan.layout.page_size().bytes();
        let mut first = 0;
        for extent in scan.layout.extents() {
            let end = first + extent.pages as usize;
            let start = first;
            while first < end {
                let state = |i| (scan.accessed.get(i), scan.fast.get(i));
                let (accessed, fast) = state(first);
                let mut next = first + 1;
                while next < end && state(next) == (accessed, fast) {
                    next += 1;
                }
                out.line(format_args!(
                    "{},{},{},{:#x},{},{},{}",
                    scan.period,
                    groups[group],
                    extent.space.0,
                    extent.start + (first - start) as u64 * page,
                    (next - first) as u64 * page,
                    u8::from(accessed),
                    u8::from(fast)
                ))?;
                rows += 1;
                first = next;
            }
        }
    }
    let notes = reader.truncation().map(ToString::to_string).into_iter().collect();
    Ok(Exported { counts: vec![("rows", rows), ("periods", scans)], notes })
}

/// A group's name without characters that CSV would have to quote.
fn one_word(name: &str) -> String {
    name.chars().map(|c| if c == ',' || c == '"' || c.is_control() { '_' } else { c }).collect()
}
