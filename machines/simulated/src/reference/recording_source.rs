//! A reference recording as a source: the references of one process of a real program.
//!
//! The memory map comes from the recording's snapshots and from its events; threads are the
//! process's streams. Time between streams is the recording's: streams are merged in its order, and
//! the machine's cores give them times of their own.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use terrace_core::page::PageSize;
use terrace_recordings::error::RecordingError;
use terrace_recordings::reference::{
    Event, MapSnapshot, Placed, Record, Reference, ReferenceReader, Region, RegionKind, Visitor,
};
use terrace_recordings::source::SourceError;

use super::source::{Access, AccessKind, Closed, Pipe, Piped, Step};

/// Linux `MADV_DONTNEED`.
const MADV_DONTNEED: u64 = 4;
/// Linux `MAP_ANONYMOUS`.
const MAP_ANONYMOUS: u64 = 0x20;
/// Linux `MAP_SHARED`.
const MAP_SHARED: u64 = 0x01;

/// The selection from a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingChoice {
    /// The file.
    pub path: PathBuf,
    /// Number of the process in it; by default the one with the most references.
    pub process: Option<u32>,
    /// Every load takes its address from the load before.
    pub dependent: bool,
}

/// Opens a recording as a source. A truncated recording is used up to the cut.
pub fn recording(choice: &RecordingChoice) -> Result<Piped, SourceError> {
    let source_error = |e: RecordingError| SourceError(e.to_string());
    let mut reader = ReferenceReader::open(&choice.path).map_err(source_error)?;
    let processes = streams_by_process(&mut reader).map_err(source_error)?;
    let chosen = match choice.process {
        Some(process) => processes.get(&process).map(|p| (process, p)),
        None => processes
            .iter()
            .max_by_key(|(n, p)| (p.references, std::cmp::Reverse(**n)))
            .map(|(n, p)| (*n, p)),
    };
    let Some((process, streams)) = chosen else {
        return Err(SourceError(format!(
            "{}: {}; expected a process with references, see 'terrace info'",
            choice.path.display(),
            match choice.process {
                Some(n) => format!("no process {n}"),
                None => "no references".to_owned(),
            }
        )));
    };
    let threads: BTreeMap<u32, u16> = streams
        .streams
        .iter()
        .enumerate()
        .map(|(n, &stream)| (stream, n.min(usize::from(u16::MAX)) as u16))
        .collect();
    let (path, dependent) = (choice.path.clone(), choice.dependent);
    let footprint = streams.pages * PageSize::Base.bytes();
    Ok(Piped::start(threads.len().max(1), Some(footprint), move |pipe| {
        play(&path, process, &threads, dependent, pipe)
    }))
}

/// Facts about a process, read beforehand.
#[derive(Debug, Default)]
struct Streams {
    streams: Vec<u32>,
    references: u64,
    /// Base pages touched.
    pages: u64,
}

/// Reads the recording once: a process's streams, and how many pages it touches.
fn streams_by_process<R: std::io::Read + std::io::Seek>(
    reader: &mut ReferenceReader<R>,
) -> Result<BTreeMap<u32, Streams>, RecordingError> {
    let mut survey = Survey::default();
    reader.records().visit(&mut survey)?;
    survey.take_count();
    Ok(survey.processes)
}

/// Collects facts about processes.
#[derive(Default)]
struct Survey {
    processes: BTreeMap<u32, Streams>,
    /// By process and huge-page region: base pages touched.
    touched: BTreeMap<(u32, u64), [u64; 8]>,
    /// Process and stream of the last reference, and the references in a row from there.
    last: Option<(u32, u32)>,
    count: u64,
    /// Process and page of the last reference.
    last_page: (u32, u64),
}

impl Survey {
    fn take_count(&mut self) {
        let count = std::mem::take(&mut self.count);
        if let Some(streams) = self.last.and_then(|last| self.processes.get_mut(&last.0)) {
            streams.references += count;
        }
    }

    #[cold]
    fn begin(&mut self, process: u32, stream: u32) {
        self.take_count();
        self.last = Some((process, stream));
        let streams = self.processes.entry(process).or_default();
        if let Err(at) = streams.streams.binary_search(&stream) {
            streams.streams.insert(at, stream);
        }
    }

    fn touch(&mut self, process: u32, page: u64) {
        let bits = self.touched.entry((process, page >> 9)).or_default();
        let (word, bit) = ((page >> 6 & 7) as usize, 1u64 << (page & 63));
        if bits[word] & bit == 0 {
            bits[word] |= bit;
            if let Some(streams) = self.processes.get_mut(&process) {
                streams.pages += 1;
            }
        }
    }
}

impl Visitor for Survey {
    #[inline]
    fn reference(
        &mut self,
        stream: u32,
        process: u32,
        _instructions: u64,
        reference: Reference,
    ) -> ControlFlow<()> {
        if self.last != Some((process, stream)) {
            self.begin(process, stream);
        }
        self.count += 1;
        // Counted from 1: the initial value 0 is no page.
        let page = (process, (reference.address >> 12) + 1);
        if self.last_page != page {
            self.last_page = page;
            self.touch(process, page.1 - 1);
        }
        ControlFlow::Continue(())
    }

    fn other(&mut self, _placed: Placed) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Passes all steps of the process to the pipe.
fn play(
    path: &Path,
    process: u32,
    threads: &BTreeMap<u32, u16>,
    dependent: bool,
    pipe: &mut Pipe,
) -> Result<(), SourceError> {
    let source_error = |e: RecordingError| SourceError(e.to_string());
    let mut reader = ReferenceReader::open(path).map_err(source_error)?;
    let mut snapshots: Vec<MapSnapshot> =
        reader.maps().iter().filter(|m| m.process == process).cloned().collect();
    // Only the first snapshot: later mappings come with their events.
    snapshots.truncate(1);
    for region in snapshots.iter().flat_map(|s| &s.regions) {
        if pipe.step(map_of(region)).is_err() {
            return Ok(());
        }
    }
    let heap_end = snapshots
        .iter()
        .flat_map(|s| &s.regions)
        .find(|r| r.kind == RegionKind::Heap)
        .map_or(0, |r| r.end);
    let instructions = vec![0; threads.len()];
    let mut player =
        Player { process, threads, dependent, pipe, heap_end, instructions, last: None };
    reader.records().visit(&mut player).map_err(source_error)
}

/// Plays the records of a process into a pipe.
struct Player<'a> {
    process: u32,
    threads: &'a BTreeMap<u32, u16>,
    dependent: bool,
    pipe: &'a mut Pipe,
    heap_end: u64,
    /// Instructions that each thread had executed.
    instructions: Vec<u64>,
    /// The stream of the last reference and its thread: references of one stream come in runs.
    last: Option<(u32, u16)>,
}

impl Visitor for Player<'_> {
    #[inline]
    fn reference(
        &mut self,
        stream: u32,
        process: u32,
        instructions: u64,
        reference: Reference,
    ) -> ControlFlow<()> {
        if process != self.process {
            return ControlFlow::Continue(());
        }
        let thread = match self.last {
            Some((last, thread)) if last == stream => thread,
            _ => {
                let Some(&thread) = self.threads.get(&stream) else {
                    return ControlFlow::Continue(());
                };
                self.last = Some((stream, thread));
                thread
            }
        };
        let before = &mut self.instructions[usize::from(thread)];
        let passed = instructions.saturating_sub(*before).max(1);
        *before = instructions;
        flow(self.pipe.access(Access {
            address: reference.address,
            instructions: u32::try_from(passed).unwrap_or(u32::MAX),
            thread,
            size: reference.size_bytes() as u8,
            kind: AccessKind::new(reference.store, self.dependent),
        }))
    }

    fn other(&mut self, placed: Placed) -> ControlFlow<()> {
        match placed.record {
            Record::Event(event) if placed.process == self.process => {
                flow(happened(event, &mut self.heap_end, self.pipe))
            }
            // Write-backs of the recorder's own caches; the machine has caches of its own.
            _ => ControlFlow::Continue(()),
        }
    }
}

fn flow(sent: Result<(), Closed>) -> ControlFlow<()> {
    match sent {
        Ok(()) => ControlFlow::Continue(()),
        Err(Closed) => ControlFlow::Break(()),
    }
}

fn map_of(region: &Region) -> Step {
    Step::Map {
        start: region.start & !0xfff,
        size_bytes: (region.end - region.start).next_multiple_of(PageSize::Base.bytes()),
        huge_eligible: !region.shared && region.kind != RegionKind::File,
    }
}

fn pages(address: u64, length_bytes: u64) -> (u64, u64) {
    let start = address & !0xfff;
    let end = address.saturating_add(length_bytes).saturating_add(0xfff) & !0xfff;
    (start, end.saturating_sub(start))
}

fn happened(event: Event, heap_end: &mut u64, pipe: &mut Pipe) -> Result<(), Closed> {
    match event {
        Event::Map { address, length_bytes, flags, .. } => {
            let (start, size_bytes) = pages(address, length_bytes);
            let huge_eligible = flags & MAP_ANONYMOUS != 0 && flags & MAP_SHARED == 0;
            pipe.step(Step::Map { start, size_bytes, huge_eligible })
        }
        Event::Unmap { address, length_bytes } => {
            let (start, size_bytes) = pages(address, length_bytes);
            pipe.step(Step::Unmap { start, size_bytes })
        }
        Event::Remap { old_address, old_length_bytes, address, length_bytes } => {
            let (start, size_bytes) = pages(old_address, old_length_bytes);
            pipe.step(Step::Unmap { start, size_bytes })?;
            let (start, size_bytes) = pages(address, length_bytes);
            pipe.step(Step::Map { start, size_bytes, huge_eligible: true })
        }
        Event::Break { address } => {
            let end = address.next_multiple_of(PageSize::Base.bytes());
            let before = std::mem::replace(heap_end, end);
            if before == 0 || before == end {
                Ok(())
            } else if end > before {
                let size_bytes = end - before;
                pipe.step(Step::Map { start: before, size_bytes, huge_eligible: true })
            } else {
                pipe.step(Step::Unmap { start: end, size_bytes: before - end })
            }
        }
        Event::Advise { address, length_bytes, advice: MADV_DONTNEED } => {
            let (start, size_bytes) = pages(address, length_bytes);
            pipe.step(Step::Unmap { start, size_bytes })?;
            pipe.step(Step::Map { start, size_bytes, huge_eligible: true })
        }
        _ => Ok(()),
    }
}
